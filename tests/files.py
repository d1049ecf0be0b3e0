"""Files written by nothing of sdebnn, from published descriptions: what the readers must read back."""

import gzip
import hashlib
import io
import os
import struct
import tarfile
from pathlib import Path

import numpy as np


def md5(blob: bytes) -> str:
    return hashlib.md5(blob).hexdigest()


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def tar(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, blob in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(blob)
            archive.addfile(info, io.BytesIO(blob))
    return stream.getvalue()


def cifar_binary(x: np.ndarray, y: np.ndarray) -> bytes:
    """A label, then the red, the green and the blue plane."""
    return b"".join(
        bytes([label]) + b"".join(image[:, :, c].tobytes() for c in range(3)) for image, label in zip(x, y, strict=True)
    )


def cifar_pickle(x: np.ndarray, y: np.ndarray) -> bytes:
    """A batch in the opcodes that Python 2 wrote: protocol 2, strings that are bytes, an array that is rebuilt."""
    planes = x.transpose(0, 3, 1, 2).tobytes()
    number = lambda n: b"J" + struct.pack("<i", n)  # noqa: E731
    word = lambda text: b"U" + bytes([len(text)]) + text  # noqa: E731
    rebuilt = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + number(0) + b"\x85" + word(b"b") + b"\x87R"
    dtype = b"cnumpy\ndtype\n" + word(b"u1") + number(0) + number(1) + b"\x87R"
    dtype += b"(" + number(3) + word(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    raw = b"T" + struct.pack("<i", len(planes)) + planes
    shape = number(len(x)) + number(3072) + b"\x86"
    array = rebuilt + b"(" + number(1) + shape + dtype + b"\x89" + raw + b"tb"
    labels = b"](" + b"".join(b"K" + bytes([label]) for label in y) + b"e"
    return b"\x80\x02}(" + word(b"data") + array + word(b"labels") + labels + b"u."


def pictures(seed: int, examples: int, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    """Random images, and labels of all ten classes in turn."""
    x = np.random.default_rng(seed).integers(0, 256, (examples, *shape), np.uint8)
    return x, np.arange(examples, dtype=np.uint8) % 10


def mnist_files(zipped: bool = True) -> tuple[dict[str, bytes], dict[str, str], list[np.ndarray]]:
    """A small MNIST: files by name, the md5 of their contents, and the arrays that are in them."""
    parts = pictures(0, 20, 9, 7), pictures(1, 10, 9, 7)
    arrays = [array for part in parts for array in part]
    names = [f"{of}-{kind}-ubyte" for of in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    plain = {name: idx(array) for name, array in zip(names, arrays, strict=True)}
    digests = {name: md5(blob) for name, blob in plain.items()}
    files = {f"{name}.gz": gzip.compress(blob, mtime=0) for name, blob in plain.items()} if zipped else plain
    return files, digests, arrays


def cifar_files(version: str, packed: bool) -> tuple[dict[str, bytes], dict[str, str], list[np.ndarray]]:
    """A small CIFAR-10 of six batches of two images, likewise."""
    write, suffix = (cifar_binary, ".bin") if version == "bin" else (cifar_pickle, "")
    batches = [pictures(seed, 2, 32, 32, 3) for seed in range(6)]
    names = [f"cifar-10-batches-{version}/data_batch_{i}{suffix}" for i in range(1, 6)]
    names.append(f"cifar-10-batches-{version}/test_batch{suffix}")
    plain = {name: write(*batch) for name, batch in zip(names, batches, strict=True)}
    digests = {name: md5(blob) for name, blob in plain.items()}
    train = [np.concatenate([batch[i] for batch in batches[:5]]) for i in range(2)]
    archive = {"bin": "cifar-10-binary.tar.gz", "py": "cifar-10-python.tar.gz"}[version]
    files = {archive: gzip.compress(tar(plain), mtime=0)} if packed else plain
    return files, digests, [*train, *batches[5]]


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, blob in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(blob)


def everything_under(folder: Path) -> dict[str, bytes]:
    found = (Path(top) / name for top, _, names in os.walk(folder) for name in names)
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def moons_file(path: Path) -> Path:
    """Two moons as arrays: vectors, which train a net, where a table trains the estimators."""
    rng = np.random.default_rng(0)
    y = np.arange(600) % 2
    turn = rng.uniform(0, np.pi, 600)
    x = np.column_stack([np.cos(turn), np.sin(turn)]) * np.where(y, -1, 1)[:, None] + np.outer(y, [1, 0.5])
    x = (x + rng.normal(0, 0.1, x.shape)).astype(np.float32)
    np.savez(path, x_train=x[:400], y_train=y[:400], x_test=x[400:], y_test=y[400:])
    return path
