"""Image sets, as published: MNIST, Fashion-MNIST, CIFAR-10, CIFAR-10-C, and the digits of scikit-learn.

Each is read from ``folder`` (else SDEBNN_DATA, else the user's cache), where ``sdebnn data get`` puts it:
mnist/*.gz, fashion-mnist/*.gz, cifar10/cifar-10-*, CIFAR-10-C/*.npy. All that is read is compared with its published
digest; what is damaged is refused in one line.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from sdebnn.checks import check_choice, check_count, shown
from sdebnn.data import formats, published
from sdebnn.data.dataset import DataSet, Part

Folder = str | os.PathLike[str] | None

PARTS = ("train", "test")
DIGIT_CLASSES = tuple("0123456789")
FASHION_CLASSES = (
    "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CORRUPTIONS = tuple(name.removesuffix(".npy") for name in published.DIGESTS["cifar10c"] if name != "labels.npy")
SEVERITIES = 5


def mnist(folder: Folder = None, parts: Sequence[str] = PARTS) -> DataSet:
    """Handwritten digits, 28x28x1: 60,000 and 10,000. A part that is not asked for is empty."""
    return _idx_set("mnist", folder, parts, DIGIT_CLASSES)


def fashion_mnist(folder: Folder = None, parts: Sequence[str] = PARTS) -> DataSet:
    """Articles of clothing, 28x28x1: 60,000 and 10,000. A part that is not asked for is empty."""
    return _idx_set("fashion-mnist", folder, parts, FASHION_CLASSES)


def cifar10(folder: Folder = None, parts: Sequence[str] = PARTS) -> DataSet:
    """Photographs of ten kinds of things, 32x32x3: 50,000 and 10,000, from either published version, packed or not."""
    root = published.home(folder) / "cifar10"
    return _dataset("cifar10", parts, CIFAR10_CLASSES, lambda part: _cifar_part(root, part))


def cifar10c(corruption: str, severity: int, folder: Folder = None) -> Part:
    """The test images of CIFAR-10 under one of 19 corruptions, at a severity from 1 to 5; images stay on disk."""
    check_choice("corruption", corruption, CORRUPTIONS)
    check_count("severity", severity)
    if severity > SEVERITIES:
        raise ValueError(f"severity={severity} is beyond the five that there are: choose 1 to {SEVERITIES}.")
    root, digests = published.home(folder) / "CIFAR-10-C", published.DIGESTS["cifar10c"]
    with _remedy("cifar10c"):
        x, y = (saved(root / name, digests[name]) for name in (f"{corruption}.npy", "labels.npy"))
        block = len(x) // SEVERITIES
        if x.shape[1:] != (32, 32, 3) or y.shape != x.shape[:1] or len(x) != block * SEVERITIES:
            raise ValueError(f"{root / corruption}.npy and labels.npy have shapes {x.shape} and {y.shape}.")
        at = slice((severity - 1) * block, severity * block)
        return Part(x[at], formats.labels(np.asarray(y[at]), str(root / "labels.npy")))


def digits(seed: int = 0) -> DataSet:
    """The handwritten digits that come with scikit-learn, 8x8x1: 1,437 and 360, split by the seed. No files needed."""
    check_count("seed", seed, least=0)
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ValueError("digits are part of scikit-learn: pip install 'sdebnn[data]'.") from None
    images, classes = map(np.asarray, load_digits(return_X_y=True))
    x = (15 * images).astype(np.uint8).reshape(-1, 8, 8, 1)  # from 0..16 to 0..240, exactly
    order = np.random.default_rng(seed).permutation(len(x))
    first = 4 * len(x) // 5
    train, test = (Part(x[at], classes[at].astype(np.int32)) for at in (order[:first], order[first:]))
    return DataSet("digits", train, test, DIGIT_CLASSES)


def saved(path: Path, md5: str) -> np.ndarray:
    """A memory map of a published .npy file of bytes."""
    array = formats.mapped(path)
    if array.dtype != np.uint8 or not array.size:
        raise ValueError(f"{path} holds {array.size} values of {array.dtype}: it should hold bytes.")
    published.check_digest(str(path), np.memmap(path, np.uint8, "r").data, md5)
    return array


def _dataset(name: str, parts: Sequence[str], classes: tuple[str, ...], read: Callable[[str], Part]) -> DataSet:
    if isinstance(parts, str) or not parts or any(part not in PARTS for part in parts):
        raise ValueError(f"parts={shown(parts)} must be some of {PARTS}, such as parts=('test',).")
    with _remedy(name):
        found = {part: read(part) for part in PARTS if part in parts}
    x, y = next(iter(found.values()))
    nothing = Part(x[:0], y[:0])
    return DataSet(name, found.get("train", nothing), found.get("test", nothing), classes)


def _idx_set(name: str, folder: Folder, parts: Sequence[str], classes: tuple[str, ...]) -> DataSet:
    root = published.home(folder) / name

    def read(part: str) -> Part:
        prefix = "train" if part == "train" else "t10k"
        x, y = _idx(root, f"{prefix}-images-idx3-ubyte", name), _idx(root, f"{prefix}-labels-idx1-ubyte", name)
        if x.ndim != 3 or y.shape != x.shape[:1]:
            raise ValueError(f"{root}: the {part} images have shape {x.shape}, their labels {y.shape}.")
        return Part(x[..., None], formats.labels(y, f"{root / prefix}-labels-idx1-ubyte"))

    return _dataset(name, parts, classes, read)


def _idx(root: Path, file: str, name: str) -> np.ndarray:
    """The array of an idx file, gzipped or not."""
    path = root / f"{file}.gz"
    if not path.exists():
        path = root / file
    if not path.exists():
        other = "" if file.startswith("t10k") else " (to read the test part alone, pass parts=('test',))"
        raise FileNotFoundError(f"{root / file}.gz is missing{other}.")
    blob = formats.contents(path)
    array = formats.parse_idx(blob, str(path))
    published.check_digest(str(path), blob, published.DIGESTS[name][file])
    return array


def _cifar_part(root: Path, part: str) -> Part:
    """Images and labels from the first of the published forms that is there."""
    batches = [f"data_batch_{i}" for i in range(1, 6)] if part == "train" else ["test_batch"]
    forms = (
        ("cifar-10-batches-bin", "cifar-10-binary.tar.gz", ".bin", formats.parse_cifar_binary),
        ("cifar-10-batches-py", "cifar-10-python.tar.gz", "", formats.parse_cifar_pickle),
    )
    lacking = []
    for folder, archive, suffix, parse in forms:
        names = [f"{folder}/{batch}{suffix}" for batch in batches]
        missing = [name for name in names if not (root / name).exists()]
        if not missing:
            blobs = {str(root / name): formats.contents(root / name) for name in names}
        elif (root / archive).exists():
            where = str(root / archive)
            members = formats.tar_members(formats.contents(root / archive), where, names)
            blobs = {f"{where}: {name}": blob for name, blob in members.items()}
        else:
            lacking.append(missing)
            continue
        for name, (where, blob) in zip(names, blobs.items(), strict=True):
            published.check_digest(where, blob, published.DIGESTS["cifar10"][name])  # before it is parsed
        x, y = zip(*(parse(blob, where) for where, blob in blobs.items()), strict=True)
        return Part(np.concatenate(x), np.concatenate(y))
    nearest = root / min(lacking, key=len)[0]
    raise FileNotFoundError(f"{nearest} is missing, and {root} holds no archive of CIFAR-10.")


@contextmanager
def _remedy(name: str) -> Iterator[None]:
    """Say after what is wrong with a file what to do about it."""
    try:
        yield
    except FileNotFoundError as error:
        raise ValueError(f"{error} Run: sdebnn data get {name}") from None
    except ValueError as error:
        raise ValueError(f"{error} Delete it and run: sdebnn data get {name}") from None
