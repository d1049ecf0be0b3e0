"""Parsers of the formats in which data are stored: .npy, idx, the two of CIFAR-10, and gzip and tar around them.

Files are not trusted: each parser compares the declared sizes with the actual ones, builds nothing but arrays, and
raises a one-line error that starts with the name of the file.
"""

import io
import lzma
import pickle
import re
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np
import numpy.lib.format as npy

from sdebnn import files
from sdebnn.checks import shown

CIFAR_SHAPE = (3, 32, 32)
MAX_FILE_BYTES = 2**30  # of a file of images, packed or not: five times the largest published one
# Of a zip archive: damaged, packed in an unknown way, or encrypted.
ARCHIVE_ERRORS = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, NotImplementedError, RuntimeError, OSError, EOFError
)  # fmt: skip
MAX_NPZ_BYTES = 2**32  # of one array
MAX_NPY_HEADER_BYTES = 1000  # of a .npy file of numbers; numpy.save writes 118
MAX_ARRAY_AXES = 32  # supported by every version of NumPy
PLAIN_HEADER = re.compile(rb"""\s*\{[\w\s'":,.<>|=]*(\([\w\s,]*\))?[\w\s'":,.<>|=]*\}\s*""")


def contents(path: Path) -> bytes:
    """The bytes of a file, decompressed if its name ends in .gz."""
    try:
        blob = files.contents(path, MAX_FILE_BYTES)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing.") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}.") from None
    return gunzip(blob, str(path)) if path.suffix == ".gz" else blob


def mapped(path: Path) -> np.ndarray:
    """A memory map of a .npy file of numbers. A file of Python objects is refused, and never unpickled."""
    try:
        files.check_regular(path)
        with path.open("rb") as stream:
            shape, fortran, dtype = _npy_header(stream, path)
            start = stream.tell()
        held = path.stat().st_size - start
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing.") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}.") from None
    if dtype.kind not in "buifc":
        raise ValueError(f"{path} holds {str(dtype)[:80]}: save an array of numbers.")
    size = extent = dtype.itemsize
    for n in shape:  # in Python integers, which do not overflow
        size, extent = size * n, extent * max(n, 1)
    if len(shape) > MAX_ARRAY_AXES or extent >= 2**63:
        raise ValueError(f"{path} is damaged: it declares the shape {shown(shape)}, which no array can have.")
    if size != held or min(shape, default=0) < 0:
        raise ValueError(f"{path} declares {shape} values of {dtype} and holds {held} bytes.")
    if not size:
        return np.empty(shape, dtype)  # an empty file cannot be mapped
    return np.memmap(path, dtype, "r", start, shape, "F" if fortran else "C")


def array_in(path: Path, name: str) -> np.ndarray:
    """An array of numbers, or of text, in a .npz file. Python objects are refused, and never unpickled."""
    where = f"{path}: {name}"
    files.check_regular(path)
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as stream:
            declared = archive.getinfo(f"{name}.npy").file_size
            shape, fortran, dtype = _npy_header(stream, Path(where))
            if dtype.kind not in "buifU":
                raise ValueError(f"{where} holds {str(dtype)[:80]}: save an array of numbers.")
            held, size = declared - stream.tell(), dtype.itemsize
            for n in shape:  # in Python integers, which do not overflow
                size *= n
            if size != held or min(shape, default=0) < 0 or len(shape) > MAX_ARRAY_AXES or not dtype.itemsize:
                raise ValueError(f"{where} declares {shown(shape)} values of {dtype} and holds {held} bytes.")
            if size > MAX_NPZ_BYTES:
                raise ValueError(f"{where} holds {size} bytes, more than {MAX_NPZ_BYTES}: save .npy files instead.")
            blob = stream.read(size)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing.") from None
    except KeyError:
        raise ValueError(f"{path} holds no array {name}: add it by numpy.savez.") from None
    except ARCHIVE_ERRORS as error:
        raise ValueError(f"{where} is damaged ({type(error).__name__}): write it by numpy.savez.") from None
    if len(blob) != size:
        raise ValueError(f"{where} is truncated: write it by numpy.savez.")
    return np.frombuffer(blob, dtype).reshape(shape, order="F" if fortran else "C")


def _npy_header(stream: IO[bytes] | io.BufferedIOBase, path: Path) -> tuple[tuple[int, ...], bool, np.dtype]:
    """The shape, the order and the type that a .npy file declares; the stream is left at the first value."""
    if stream.read(len(npy.MAGIC_PREFIX)) != npy.MAGIC_PREFIX:
        if path.suffix.lower() in (".csv", ".tsv", ".txt"):
            raise ValueError(f"{path} is not a .npy file: read the table, and save its inputs with numpy.save.")
        raise ValueError(f"{path} is not a .npy file: write it with numpy.save.")
    version = tuple(stream.read(2))
    prefix = stream.read(2 if version == (1, 0) else 4)
    length = int.from_bytes(prefix, "little")
    header = stream.read(min(length, MAX_NPY_HEADER_BYTES))
    # The header is a Python literal, and parsing a deeply nested one can exhaust the stack.
    if version not in ((1, 0), (2, 0), (3, 0)) or length > MAX_NPY_HEADER_BYTES or not PLAIN_HEADER.fullmatch(header):
        raise ValueError(f"{path} is damaged, or holds something other than one array of numbers.")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    try:
        return read(io.BytesIO(prefix + header))
    except Exception as error:  # parsing the literal can raise many kinds of errors
        raise ValueError(f"{path} is damaged: {type(error).__name__} in its header.") from None


def gunzip(blob: bytes, where: str) -> bytes:
    """The contents of a gzip file with one member, its checksum verified."""
    unpack = zlib.decompressobj(wbits=31)  # 31 selects gzip, whose CRC is then verified
    try:
        data = unpack.decompress(blob, MAX_FILE_BYTES)
    except zlib.error as error:
        raise ValueError(f"{where} is damaged or not gzip: {error}.") from None
    if unpack.unconsumed_tail:
        raise ValueError(f"{where} decompresses to more than {MAX_FILE_BYTES} bytes: it is not a file of images.")
    if not unpack.eof:
        raise ValueError(f"{where} is truncated: its gzip stream does not end.")
    if unpack.unused_data:
        raise ValueError(f"{where} has {len(unpack.unused_data)} bytes after the end of its gzip stream.")
    return data


def parse_idx(blob: bytes, where: str) -> np.ndarray:
    """The array in an idx file of bytes: two zeros, the type 8, the number of axes, their sizes, the values."""
    if len(blob) < 4 or blob[:3] != b"\0\0\x08" or not 1 <= blob[3] <= 4:
        raise ValueError(f"{where} is not an idx file of bytes: it begins with {blob[:4].hex() or 'nothing'}.")
    start = 4 + 4 * blob[3]
    if len(blob) < start:
        raise ValueError(f"{where} is truncated: it ends within its header.")
    shape = tuple(int(n) for n in np.frombuffer(blob, ">u4", count=blob[3], offset=4))
    size = 1
    for n in shape:  # in Python integers, which do not overflow
        size *= n
    if len(blob) - start != size:
        raise ValueError(f"{where} declares {'x'.join(map(str, shape))} values and has {len(blob) - start}.")
    return np.frombuffer(blob, np.uint8, offset=start).reshape(shape)


def parse_cifar_binary(blob: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of a .bin batch: records of one label and three colour planes of 32x32 bytes."""
    record = 1 + int(np.prod(CIFAR_SHAPE))
    if not blob or len(blob) % record:
        raise ValueError(f"{where} has {len(blob)} bytes, which is not a multiple of {record}, the size of a record.")
    table = np.frombuffer(blob, np.uint8).reshape(-1, record)
    return _images(table[:, 1:]), labels(table[:, 0], where)


def parse_cifar_pickle(blob: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of a batch of the Python version, read without executing anything in the pickle."""
    stream = io.BytesIO(blob)
    try:
        batch = _Inert(stream, encoding="bytes").load()
        pixels, found = batch[b"data"], batch[b"labels"]
        _, shape, dtype, fortran, raw = pixels.state
        table = np.frombuffer(raw, np.uint8).reshape(shape)
        sound = pixels.name == "_reconstruct" and dtype.name == "dtype" and dtype.args[0] in ("u1", b"u1")
        sound = sound and not fortran and table.shape == (len(found), int(np.prod(CIFAR_SHAPE))) and len(found) > 0
        sound = sound and all(type(label) is int and 0 <= label < 256 for label in found) and not stream.read(1)
    except Exception as error:  # a pickle can raise anything
        raise ValueError(f"{where} is not a batch of CIFAR-10: reading it raised {type(error).__name__}.") from None
    if not sound:
        raise ValueError(
            f"{where} is not a batch of CIFAR-10: it needs 'data' with 3072 bytes per image, and one label per image."
        )
    return _images(table), labels(np.array(found, np.uint8), where)


def labels(found: np.ndarray, where: str, classes: int = 10) -> np.ndarray:
    """Labels as int32; a label that is not below the number of classes is refused."""
    if found.max(initial=0) >= classes:
        raise ValueError(f"{where} holds the label {found.max()}: the classes are 0 to {classes - 1}.")
    return found.astype(np.int32)


def _images(table: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(table.reshape(-1, *CIFAR_SHAPE).transpose(0, 2, 3, 1))


class _Name:
    """Stands for a name in a pickle: it can be called and given a state, and only stores its arguments."""

    __slots__ = ("args", "name", "state")

    def __init__(self, name: str, args: tuple[object, ...] = ()):
        self.name, self.args, self.state = name, args, None

    def __call__(self, *args: object) -> "_Name":
        return _Name(self.name, args)

    def __setstate__(self, state: object) -> None:
        self.state = state


# The unpickler written in Python: the one in C allocates as much memory as a damaged pickle declares.
class _Inert(pickle._Unpickler):  # pyright: ignore[reportPrivateUsage]
    """Reads a pickle of dicts, lists, numbers, bytes and arrays, and imports none of the names in it."""

    def find_class(self, module: str, name: str) -> _Name:
        if module.partition(".")[0] == "numpy" and name in ("_reconstruct", "ndarray", "dtype"):
            return _Name(name)
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed")


def tar_members(blob: bytes, where: str, names: list[str]) -> dict[str, bytes]:
    """The contents of the named files in a tar archive. Nothing is written to disk."""
    found, name = {}, names[0]
    try:
        with tarfile.open(fileobj=io.BytesIO(blob), mode="r:") as archive:
            for name in names:
                member = archive.getmember(name)
                # A sparse file may declare any size.
                stream = archive.extractfile(member) if member.isreg() and member.size <= len(blob) else None
                if stream is None:
                    raise KeyError
                found[name] = stream.read()
    except KeyError:
        raise ValueError(f"{where} does not contain {name} as a regular file.") from None
    except Exception as error:  # a damaged header can raise many kinds of errors
        raise ValueError(f"{where} is damaged or not a tar archive: {type(error).__name__} at {name}.") from None
    return found
