"""Files that are not what they should be: pipes, devices, text, and headers that claim too much."""

import os
import re
import socket
import struct
import tracemalloc

import files
import numpy as np
import pytest

from sdebnn.data import CATALOGUE, formats, images, load, tabular


def a_pipe(path):
    os.mkfifo(path)


def a_device(path):
    path.symlink_to("/dev/zero")  # it can be opened, and never ends


def a_folder(path):
    path.mkdir()


def a_socket(path):
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket has to be short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(here)


def uci(root):
    table = np.random.default_rng(0).normal(size=(6, 2))
    where = root / "uci" / "boats"
    where.mkdir(parents=True)
    np.savetxt(where / "data.txt", table)
    for name, index in {"features": [0], "target": [1], "train_0": [0, 1, 2], "test_0": [3]}.items():
        np.savetxt(where / f"index_{name}.txt", index, fmt="%d")


def arrays(root):
    for of in ("train", "test"):
        np.save(root / f"x_{of}.npy", np.ones((3, 2)))
        np.save(root / f"y_{of}.npy", np.ones((3, 1)))


def cifar_archive(root):
    files.write(root / "cifar10", files.cifar_files("bin", packed=True)[0])


def cifar_batches(root):
    files.write(root / "cifar10", files.cifar_files("py", packed=False)[0])


# What lies in a folder, the file that is replaced, and how the folder is read.
PLACES = {
    "csv": (lambda root: None, "mine.csv", lambda root: tabular.csv(root / "mine.csv")),
    "uci table": (uci, "uci/boats/data.txt", lambda root: load("uci/boats/0", folder=root)),
    "uci index": (uci, "uci/boats/index_test_0.txt", lambda root: load("uci/boats/0", folder=root)),
    "arrays": (arrays, "y_test.npy", tabular.arrays),
    "one array": (lambda root: None, "x.npy", lambda root: formats.mapped(root / "x.npy")),
    "idx": (lambda root: files.write(root / "mnist", files.mnist_files()[0]), "mnist/train-images-idx3-ubyte.gz",
            lambda root: load(CATALOGUE["mnist"]._replace(digests=files.mnist_files()[1]), folder=root)),
    "archive": (cifar_archive, "cifar10/cifar-10-binary.tar.gz", lambda root: load("cifar10", folder=root)),
    "batch": (cifar_batches, "cifar10/cifar-10-batches-py/data_batch_3", lambda root: load("cifar10", folder=root)),
    "published array": (lambda root: None, "x.npy", lambda root: images.saved(root / "x.npy", "0" * 32)),
}  # fmt: skip


@pytest.mark.parametrize("make", [a_pipe, a_device, a_folder, a_socket])
@pytest.mark.parametrize("place", PLACES)
def test_anything_but_a_regular_file_is_refused_at_once(place, make, tmp_path):
    fill, name, read = PLACES[place]
    fill(tmp_path)
    path = tmp_path / name
    path.unlink(missing_ok=True)
    make(path)
    kind = "a folder" if make is a_folder else "a pipe, a socket or a device"
    with pytest.raises(ValueError, match=re.escape(f"{path} is {kind}: pass a regular file.")) as caught:
        read(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_file_larger_than_any_published_one_is_not_read(tmp_path):
    with (tmp_path / "train-images-idx3-ubyte").open("wb") as stream:
        stream.truncate(2**31)  # of a sparse file
    tracemalloc.start()
    with pytest.raises(ValueError, match="2147483648 bytes, more than the 1073741824"):
        formats.contents(tmp_path / "train-images-idx3-ubyte")
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()


def npy(header: str, *, version: tuple[int, int] = (1, 0), values: bytes = b"", length: int | None = None) -> bytes:
    head = header.encode() + b"\n"
    size = struct.pack("<H" if version == (1, 0) else "<I", len(head) if length is None else length)
    return b"\x93NUMPY" + bytes(version) + size + head + values


def declared(descr: str = "'<f4'", shape: str = "(2,)", more: str = "") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, {more}}}"


ABSURD = {
    "2 GB a word, none of them": (npy(declared("'<U500000000'", "(0,)")), "holds <U500000000"),
    "2 GB a record, none of them": (npy(declared("'V2000000000'", "(0,)")), "holds |V2000000000"),
    "a word": (npy(declared("'<U500000000'", "(1,)")), "holds <U500000000"),
    "objects": (npy(declared("'|O'", "(1,)"), values=bytes(8)), "holds object"),
    "records": (npy(declared("[('a', '<f4')]")), "is damaged, or holds something other than one array of numbers"),
    "arrays of arrays": (npy(declared("('<f4', (1000000, 1000000))")), "something other than one array of numbers"),
    "100 axes": (
        npy(declared(shape="(" + "1," * 100 + ")"), values=bytes(4)),
        "is damaged: it declares the shape (1, 1, 1",
    ),
    "none of too many": (
        npy(declared(shape="(0, 1" + "0" * 30 + ")")),
        "it declares the shape (0, 1000000000000000000",
    ),
    "none of too many axes": (npy(declared(shape="(" + "0," * 100 + ")")), "it declares the shape (0, 0, 0"),
    "a shape of 900 digits": (npy(declared(shape="(" + "9" * 900 + ",)")), "it declares the shape (99999999"),
    "a negative shape": (npy(declared(shape="(-2, -1)"), values=bytes(8)), "is damaged"),
    "nested parentheses": (npy(declared(shape="(" * 400 + ")" * 400)), "is damaged"),
    "nested lists": (npy(declared("[" * 5000 + "]" * 5000)), "is damaged"),
    "a chain of signs": (npy(declared(shape="(" + "-" * 9000 + "1,)")), "is damaged"),
    "another key": (npy(declared(more="'more': 1")), "is damaged: ValueError in its header"),
    "no literal": (npy("0" * 50), "is damaged"),
    "a header of 4 GB": (npy(declared(), version=(2, 0), length=2**32 - 1), "is damaged"),
    "a header that is cut short": (npy(declared())[:30], "is damaged"),
    "no header": (b"\x93NUMPY\x01\x00", "is damaged"),
    "another version": (npy(declared(), version=(9, 0)), "is damaged"),
    "a type of many digits": (npy(declared("'<U" + "9" * 500 + "'")), "is damaged"),
}


@pytest.mark.parametrize("case", ABSURD)
def test_an_absurd_header_is_refused_without_allocating_memory(case, tmp_path):
    blob, line = ABSURD[case]
    path = tmp_path / "x.npy"
    path.write_bytes(blob)
    tracemalloc.start()
    with pytest.raises(ValueError, match=re.escape(line)) as caught:
        formats.mapped(path)
    assert tracemalloc.get_traced_memory()[1] < 3e6
    tracemalloc.stop()
    assert str(caught.value).startswith(f"{path} ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300 + len(str(path))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize(
    "header",
    [
        declared(),
        declared().replace("'", '"'),
        "{'shape':(2,),'fortran_order':False,'descr':'<f4'}",
        "  " + declared() + " " * 200,
    ],
)
def test_headers_written_by_other_programs_are_read(header, version, tmp_path):
    (tmp_path / "x.npy").write_bytes(npy(header, version=version, values=np.array([1.5, -2], "<f4").tobytes()))
    assert formats.mapped(tmp_path / "x.npy").tolist() == [1.5, -2]


@pytest.mark.parametrize("name", ["inputs.csv", "inputs.CSV", "inputs.txt"])
def test_a_table_in_place_of_an_array_is_named_in_the_error(name, tmp_path):
    path = tmp_path / name
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r".") as caught:
        formats.mapped(path)
    assert str(caught.value) == f"{path} is not a .npy file: read the table, and save its inputs with numpy.save."


@pytest.mark.parametrize("blob", [b"", b"1,2\n", b"PK\x03\x04", b"\x89PNG\r\n\x1a\n"])
def test_a_file_that_is_not_a_saved_array_is_refused(blob, tmp_path):
    path = tmp_path / "x.npy"
    path.write_bytes(blob)
    with pytest.raises(ValueError, match=r".") as caught:
        formats.mapped(path)
    assert str(caught.value) == f"{path} is not a .npy file: write it with numpy.save."
