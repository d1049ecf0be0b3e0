"""Image sets: what is published is read back exactly, and what is damaged is refused in one line."""

import gzip
import os
import pickle
import struct
import tarfile
import tracemalloc
import zlib
from pathlib import Path

import files
import numpy as np
import pytest

from sdebnn.data import CATALOGUE, Entry, formats, home, load


def arrays_of(loaded) -> list[np.ndarray]:
    parts = (loaded.train, loaded.test) if hasattr(loaded, "train") else (loaded,)
    return [np.asarray(array) for part in parts for array in part]


def same(loaded, expected) -> bool:
    return all(
        np.array_equal(a.reshape(b.shape), b) and a.dtype == (np.uint8 if a.ndim == 4 else np.int32)
        for a, b in zip(arrays_of(loaded), expected, strict=True)
    )


def corrupted_files():
    x, y = files.pictures(3, 15, 32, 32, 3)
    made = {"fog.npy": files.npy(x), "labels.npy": files.npy(y)}
    return made, {name: files.md5(blob) for name, blob in made.items()}, [x[6:9], y[6:9]]


# form: the data set, its files, the one to damage
FORMS = {
    "idx.gz": ("mnist", files.mnist_files, "train-images-idx3-ubyte.gz"),
    "idx.gz labels": ("mnist", files.mnist_files, "t10k-labels-idx1-ubyte.gz"),
    "idx": ("fashion-mnist", lambda: files.mnist_files(False), "t10k-images-idx3-ubyte"),
    "bin": ("cifar10", lambda: files.cifar_files("bin", False), "cifar-10-batches-bin/data_batch_3.bin"),
    "bin tar": ("cifar10", lambda: files.cifar_files("bin", True), "cifar-10-binary.tar.gz"),
    "pickle": ("cifar10", lambda: files.cifar_files("py", False), "cifar-10-batches-py/test_batch"),
    "pickle tar": ("cifar10", lambda: files.cifar_files("py", True), "cifar-10-python.tar.gz"),
    "npy": ("cifar10c", corrupted_files, "fog.npy"),
    "npy labels": ("cifar10c", corrupted_files, "labels.npy"),
}


def small(name: str, digests: dict[str, str]) -> Entry:
    """The row of a data set with other digests, and with the shape of the images of ``files``."""
    return CATALOGUE[name]._replace(digests=digests, shape=(9, 7, 1) if "mnist" in name else (32, 32, 3))


def fog(severity: int, folder: Path):
    return load(f"cifar10c/fog/{severity}", folder=folder, parts=("test",)).test


@pytest.fixture
def published_as(tmp_path, monkeypatch):
    """Write the files of a form to disk, and make their digests the published ones."""

    def publish(form):
        name, make, damaged = FORMS[form]
        made, digests, arrays = make()
        entry = small(name, digests)
        monkeypatch.setitem(CATALOGUE, name, entry)
        files.write(entry.folder(tmp_path), made)
        read = (lambda: fog(3, tmp_path)) if name == "cifar10c" else lambda: load(name, folder=tmp_path)
        return entry.folder(tmp_path) / damaged, read, arrays, name

    return publish


@pytest.mark.parametrize("form", FORMS)
def test_published_files_are_read_exactly(form, published_as):
    _, read, arrays, _ = published_as(form)
    assert same(read(), arrays)


class Evil:
    """Makes a file when it is unpickled by someone who trusts it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def mutations(blob: bytes, ran: Path) -> dict[str, bytes]:
    """Foreign files, and the file cut short, drawn out, and with one bit flipped at places that a seed names."""
    rng = np.random.default_rng(len(blob))
    found = {
        "empty": b"",
        "png": b"\x89PNG\r\n\x1a\n" + bytes(100),
        "text": b"<html><body>404 Not Found</body></html>\n",
        "text in gzip": gzip.compress(b"404 Not Found"),
        "evil pickle": pickle.dumps(Evil(ran), protocol=2),
        "evil pickle of old": b"cos\nsystem\n(S'touch " + str(ran).encode() + b"'\ntR.",
        "evil pickle in gzip": gzip.compress(pickle.dumps({b"data": Evil(ran), b"labels": [1]})),
        "another array": files.npy(np.array([1])),
        "zeros": bytes(len(blob)),
        "one byte more": blob + b"\0",
        "twice": blob + blob,
    }
    for at in (1, 3, 4, 10, len(blob) // 2, len(blob) - 1):
        found[f"cut at {at}"] = blob[:at]
    for at in [*range(0, 20, 4), *rng.integers(0, len(blob), 20)]:
        flipped, bit = bytearray(blob), int(rng.integers(8))
        flipped[at] ^= 1 << bit
        found[f"bit at {at}, {bit}"] = bytes(flipped)
    return found


@pytest.mark.parametrize("form", FORMS)
def test_a_damaged_file_is_refused_in_one_line_that_names_it(form, published_as, tmp_path):
    path, read, arrays, name = published_as(form)
    ran = tmp_path / "ran"
    tried = mutations(path.read_bytes(), ran)
    assert len(tried) >= 40
    for label, blob in tried.items():
        path.write_bytes(blob)
        try:
            loaded = read()
        except ValueError as error:
            message = str(error)
            assert str(path) in message, label
            assert message.endswith(f"Delete it and run: sdebnn data get {name}"), label
            assert "\n" not in message, label
        else:  # a bit that means nothing, such as the clock time in a gzip header
            assert label.startswith("bit at"), label
            assert path.suffix == ".gz", label
            assert same(loaded, arrays), label
        assert not ran.exists(), label


@pytest.mark.parametrize("form", FORMS)
def test_a_missing_file_is_named_with_the_command_that_fetches_it(form, published_as):
    path, read, _, name = published_as(form)
    path.unlink()
    with pytest.raises(ValueError, match=rf"is missing.*\. Run: sdebnn data get {name}$"):
        read()


def test_a_batch_missing_from_the_unpacked_folder_is_read_from_the_archive(tmp_path):
    unpacked, digests, arrays = files.cifar_files("bin", packed=False)
    entry = small("cifar10", digests)
    files.write(tmp_path / "cifar10", unpacked | files.cifar_files("bin", packed=True)[0])
    (tmp_path / "cifar10/cifar-10-batches-bin/data_batch_2.bin").unlink()
    assert same(load(entry, folder=tmp_path), arrays)
    (tmp_path / "cifar10/cifar-10-binary.tar.gz").unlink()
    with pytest.raises(ValueError, match=r"data_batch_2\.bin is missing, and .* holds no archive of CIFAR-10"):
        load(entry, folder=tmp_path)


def test_a_folder_in_place_of_a_file_is_refused_in_one_line(published_as):
    path, read, _, _ = published_as("idx.gz")
    path.unlink()
    path.mkdir()
    with pytest.raises(ValueError, match=r"images-idx3-ubyte.gz is a folder: pass a regular file"):
        read()


def test_a_part_that_is_not_wanted_need_not_be_on_disk(published_as, tmp_path):
    path, _, arrays, _ = published_as("idx.gz")
    path.unlink()
    loaded = load("mnist", folder=tmp_path, parts=("test",))
    assert same(loaded, [arrays[0][:0], arrays[1][:0], *arrays[2:]])
    with pytest.raises(ValueError, match=r"the test part alone, pass parts=\('test',\)"):
        load("mnist", folder=tmp_path)
    with pytest.raises(ValueError, match=r"parts='test' must be some of"):
        load("mnist", folder=tmp_path, parts="test")


def test_images_and_labels_that_do_not_match_are_refused(tmp_path):
    made, digests, _ = files.mnist_files(False)
    made["t10k-labels-idx1-ubyte"] = files.idx(np.zeros(9, np.uint8))
    digests["t10k-labels-idx1-ubyte"] = files.md5(made["t10k-labels-idx1-ubyte"])
    files.write(tmp_path / "mnist", made)
    with pytest.raises(ValueError, match=r"test images have shape \(10, 9, 7\), their labels \(9,\)"):
        load(small("mnist", digests), folder=tmp_path)


def test_a_label_that_is_not_a_class_is_refused():
    x, y = files.pictures(0, 3, 32, 32, 3)
    y[1] = 10
    for parse, write in (
        (formats.parse_cifar_binary, files.cifar_binary),
        (formats.parse_cifar_pickle, files.cifar_pickle),
    ):
        with pytest.raises(ValueError, match="here holds the label 10: the classes are 0 to 9"):
            parse(write(x, y), "here")


def test_every_flipped_bit_in_an_idx_header_is_detected():
    blob = files.idx(files.pictures(0, 3, 5, 4)[0])
    for at in range(16):
        for bit in range(8):
            flipped = bytearray(blob)
            flipped[at] ^= 1 << bit
            with pytest.raises(ValueError, match=r"^here (is not an idx file|declares|is truncated)"):
                formats.parse_idx(bytes(flipped), "here")


def test_an_idx_file_with_too_many_axes_is_refused():
    with pytest.raises(ValueError, match="here is not an idx file of bytes: it begins with 000008c8"):
        formats.parse_idx(struct.pack(">BBBB200I", 0, 0, 8, 200, *[1] * 200) + b"\0", "here")


def test_declared_sizes_allocate_no_memory(tmp_path, monkeypatch):
    bomb = gzip.compress(bytes(10_000_000))
    tracemalloc.start()
    with pytest.raises(ValueError, match="declares 4294967295x4294967295x4294967295 values and has 1"):
        formats.parse_idx(struct.pack(">I3I", 0x803, *[2**32 - 1] * 3) + b"\0", "here")
    header = "{'descr': '|u1', 'fortran_order': False, 'shape': (%s), }".ljust(117) + "\n"
    for shape in ("1" + "0" * 14 + ",", "-4,-4,", "10**9,"):
        path = tmp_path / "x.npy"
        path.write_bytes(b"\x93NUMPY\x01\x00v\x00" + (header % shape)[:118].encode() + bytes(16))
        with pytest.raises(ValueError, match=r"x\.npy (declares|is damaged)"):
            formats.mapped(path)
    memo_of_4_billion = b"\x80\x02}r\xff\xff\xff\xff."
    string_of_2_gigabytes = b"\x80\x02T\xff\xff\xff\x7f."
    for blob in (memo_of_4_billion, string_of_2_gigabytes):
        with pytest.raises(ValueError, match="here is not a batch of CIFAR-10"):
            formats.parse_cifar_pickle(blob, "here")
    monkeypatch.setattr(formats, "MAX_FILE_BYTES", 10_000)
    with pytest.raises(ValueError, match="here decompresses to more than 10000 bytes"):
        formats.gunzip(bomb, "here")
    sparse = tarfile.TarInfo("a")
    sparse.type, sparse.size = tarfile.GNUTYPE_SPARSE, 2**40
    blob = sparse.tobuf(tarfile.GNU_FORMAT) + bytes(10_240)
    with pytest.raises(ValueError, match=r"here (is damaged|does not contain a)"):
        formats.tar_members(blob, "here", ["a"])
    assert tracemalloc.get_traced_memory()[1] < 3e6
    tracemalloc.stop()


def test_a_gzip_file_that_is_truncated_extended_or_has_a_wrong_checksum_is_refused():
    blob = gzip.compress(b"some bytes" * 50)
    assert formats.gunzip(blob, "here") == b"some bytes" * 50
    wrong = blob[:-8] + struct.pack("<I", zlib.crc32(b"other bytes")) + blob[-4:]
    for damaged in (blob[:-1], blob + b"\0", blob + blob, wrong, blob[:1], b""):
        with pytest.raises(ValueError, match=r"^here (is truncated|has \d+ bytes after|is damaged)"):
            formats.gunzip(damaged, "here")


def test_batches_pickled_by_python_2_and_3_are_read():
    x, y = files.pictures(0, 4, 32, 32, 3)
    batch = {b"data": x.transpose(0, 3, 1, 2).reshape(4, 3072).copy(), b"labels": y.tolist(), b"batch_label": b"1 of 5"}
    for blob in (pickle.dumps(batch, protocol=3), pickle.dumps(batch, protocol=4), files.cifar_pickle(x, y)):
        images_, labels = formats.parse_cifar_pickle(blob, "here")
        assert np.array_equal(images_, x)
        assert np.array_equal(labels, y)


def test_a_pickle_executes_nothing_and_fails_with_a_one_line_error(tmp_path):
    x, y = files.pictures(0, 2, 32, 32, 3)
    blob, ran, rng, refused = files.cifar_pickle(x, y), tmp_path / "ran", np.random.default_rng(0), 0
    touch = f"touch {ran}".encode()
    evil = [
        pickle.dumps(Evil(ran), protocol) for protocol in range(6)
    ] + [
        b"cos\nsystem\n(S'" + touch + b"'\ntR.",
        b"(S'" + touch + b"'\nios\nsystem\n.",
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c" + bytes([len(touch)]) + touch + b"\x85R.",
        b"cnumpy\nload\n(S'" + touch + b"'\ntR.",
        b"cnumpy\ndtype\n}S'__call__'\nK\x01sb.",
        b"cnumpy\ndtype\n(N}S'name'\nK\x01stb.",
        b"cnumpy\nndarray\n)\x81.",
        b"\x82\x01.", b"Pid\n.", b"]q\x00h\x00a.",
    ]  # fmt: skip
    flips = []
    frame = [*range(300), *range(len(blob) - 60, len(blob))]  # where the opcodes are; between lie pixels
    for _ in range(400):
        at = int(rng.choice(frame))
        flips.append(blob[:at] + bytes([blob[at] ^ 1 << int(rng.integers(8))]) + blob[at + 1 :])
    for candidate in [*evil, *flips, *(blob[:at] for at in frame)]:
        try:
            images_, labels = formats.parse_cifar_pickle(candidate, "here")
        except ValueError as error:
            refused += 1
            assert str(error).startswith("here ")
            assert "\n" not in str(error)
        else:
            assert images_.dtype == np.uint8
            assert images_.shape[1:] == (32, 32, 3)
            assert len(labels) == len(images_)
    assert refused > len(evil) + len(frame)
    assert not ran.exists()


def test_only_regular_files_are_read_from_an_archive():
    link = tarfile.TarInfo("a")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    device = tarfile.TarInfo("b")
    device.type = tarfile.CHRTYPE
    blob = link.tobuf() + device.tobuf() + files.tar({"c": b"plain"})
    assert formats.tar_members(blob, "here", ["c"]) == {"c": b"plain"}
    for name in "ab":
        with pytest.raises(ValueError, match=f"here does not contain {name} as a regular file"):
            formats.tar_members(blob, "here", [name])


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, "<i8", bool])
def test_a_saved_array_is_mapped_and_not_read(dtype, tmp_path):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    for order in "CF":
        np.save(tmp_path / "x.npy", np.asarray(array, order=order))
        found = formats.mapped(tmp_path / "x.npy")
        assert isinstance(found, np.memmap)
        assert np.array_equal(found, array)
        assert found.dtype == array.dtype


def test_saved_objects_are_refused_and_never_unpickled(tmp_path):
    ran = tmp_path / "ran"
    np.save(tmp_path / "x.npy", np.array([Evil(ran)], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"x\.npy holds object: save an array of numbers"):
        formats.mapped(tmp_path / "x.npy")
    assert not ran.exists()
    with (tmp_path / "x.npy").open("r+b") as stream:  # as many bytes as pointers would take
        stream.truncate(128 + 8)
    with pytest.raises(ValueError, match=r"x\.npy holds object"):
        formats.mapped(tmp_path / "x.npy")


def test_bytes_after_a_batch_are_refused():
    blob = files.cifar_pickle(*files.pictures(0, 2, 32, 32, 3))
    formats.parse_cifar_pickle(blob, "here")
    with pytest.raises(ValueError, match="here is not a batch of CIFAR-10"):
        formats.parse_cifar_pickle(blob + b"\0", "here")


@pytest.mark.parametrize(("corruption", "severity", "line"), [
    ("fogg", 1, "corruption='fogg' is unknown: choose one of 'brightness'"),
    ("fog", 0, "severity='0' is unknown: choose one of '1'"),
    ("fog", 6, "severity='6' is unknown: choose one of '1'"),
])  # fmt: skip
def test_corruptions_and_severities_that_do_not_exist_are_refused(corruption, severity, line, tmp_path):
    with pytest.raises(ValueError, match=line):
        load(f"cifar10c/{corruption}/{severity}", folder=tmp_path, parts=("test",))


def test_corrupted_images_have_no_training_part(published_as, tmp_path):
    published_as("npy")
    with pytest.raises(ValueError, match=r"cifar10c/fog/1 has no train part: pass parts=\('test',\)"):
        load("cifar10c/fog/1", folder=tmp_path)
    with pytest.raises(ValueError, match="cifar10c is incomplete: write cifar10c/CORRUPTION/SEVERITY"):
        load("cifar10c")


def test_severities_are_the_five_blocks_of_a_file_that_stays_on_disk(published_as, tmp_path):
    published_as("npy")
    x, _ = files.pictures(3, 15, 32, 32, 3)
    parts = [fog(severity, tmp_path) for severity in range(1, 6)]
    assert np.array_equal(np.concatenate([part.x for part in parts]), x)
    assert all(isinstance(part.x, np.memmap) for part in parts)


def test_the_folder_argument_overrides_the_environment_and_that_overrides_the_cache(monkeypatch):
    monkeypatch.setenv("SDEBNN_DATA", "from/environment")
    assert home("given") == Path("given")
    assert home() == Path("from/environment")
    monkeypatch.delenv("SDEBNN_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")
    assert home() == Path("caches/sdebnn")


def test_digits_are_those_of_scikit_learn_times_15_in_one_split():
    datasets = pytest.importorskip("sklearn.datasets")
    bunch = datasets.load_digits()
    known = {(image.tobytes(), label) for image, label in zip((bunch.images * 15), bunch.target, strict=True)}
    loaded = load("digits")
    assert [len(part.x) for part in (loaded.train, loaded.test)] == [1437, 360]
    x, y = (np.concatenate([a, b]) for a, b in zip(loaded.train, loaded.test, strict=True))
    assert {(image[..., 0].astype(float).tobytes(), label) for image, label in zip(x, y, strict=True)} == known
    assert sorted(y) == sorted(bunch.target)
    assert np.array_equal(load("digits", seed=1).test.x, loaded.test.x)


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    with pytest.raises(ValueError, match=r"pip install 'sdebnn\[data\]'"):
        load("digits")


def on_this_machine(name, **options):
    """The real data set, if SDEBNN_DATA has it."""
    if "SDEBNN_DATA" not in os.environ:
        pytest.skip("SDEBNN_DATA names no folder of data sets")
    try:
        return load(name, **options)
    except ValueError as error:
        if "is missing" in str(error):
            pytest.skip(str(error))
        raise


@pytest.mark.parametrize(
    ("name", "options", "shape", "counts", "balanced"),
    [
        ("mnist", {}, (28, 28, 1), (60_000, 10_000), False),
        ("fashion-mnist", {"parts": ("test",)}, (28, 28, 1), (0, 10_000), True),
        ("fashion-mnist", {}, (28, 28, 1), (60_000, 10_000), True),
        ("cifar10", {}, (32, 32, 3), (50_000, 10_000), True),
    ],
)
def test_the_real_sets_have_their_published_counts(name, options, shape, counts, balanced):
    loaded = on_this_machine(name, **options)
    for (x, y), count in zip((loaded.train, loaded.test), counts, strict=True):
        assert x.shape == (count, *shape)
        assert x.dtype == np.uint8
        assert y.dtype == np.int32
        of_each = np.bincount(y, minlength=10)
        assert len(of_each) == len(loaded.classes) == 10
        assert not balanced or set(of_each) == {count // 10}
