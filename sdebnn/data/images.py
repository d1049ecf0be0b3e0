"""Readers of published image sets: the idx files of MNIST, CIFAR-10, CIFAR-10-C, and the digits of scikit-learn.

Everything that is read is compared with its published digest; a damaged file is refused with a one-line error.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from sdebnn.checks import check_choice
from sdebnn.data import formats
from sdebnn.data.dataset import Part
from sdebnn.data.entry import Request
from sdebnn.data.storage import check_digest, fetch_hint

SEVERITIES = 5


def idx(request: Request) -> tuple[Part, Part]:
    """The two parts of a set in the format of MNIST: one idx file of images and one of labels each, gzipped or not."""
    root, entry = request.folder, request.entry

    def read(part: str) -> Part:
        prefix = "train" if part == "train" else "t10k"
        x, y = (_idx(root, f"{prefix}-{kind}-ubyte", entry.digests) for kind in ("images-idx3", "labels-idx1"))
        if x.ndim != 3 or y.shape != x.shape[:1]:
            raise ValueError(f"{root}: the {part} images have shape {x.shape}, their labels {y.shape}.")
        return Part(x[..., None], formats.labels(y, f"{root / prefix}-labels-idx1-ubyte", len(entry.classes or ())))

    return _parts(request, read)


def cifar10(request: Request) -> tuple[Part, Part]:
    """The two parts of CIFAR-10, from the binary or the Python version, unpacked or not."""
    return _parts(request, lambda part: _cifar_part(request, part))


def cifar10c(request: Request) -> tuple[Part, Part]:
    """An empty training part, and the test images under one corruption at one severity; images stay on disk."""
    digests = request.entry.digests
    corruptions = tuple(name.removesuffix(".npy") for name in digests if name != "labels.npy")
    if len(request.options) != 2:
        raise ValueError(
            f"{'/'.join((request.entry.name, *request.options))} is incomplete: "
            f"write {request.entry.name}/CORRUPTION/SEVERITY, such as {request.entry.name}/{corruptions[0]}/1."
        )
    corruption, severity = request.options
    check_choice("corruption", corruption, corruptions)
    check_choice("severity", severity, tuple(str(level) for level in range(1, SEVERITIES + 1)))
    with fetch_hint(request.entry.name):
        x, y = (saved(request.folder / name, digests[name]) for name in (f"{corruption}.npy", "labels.npy"))
        block = len(x) // SEVERITIES
        if x.shape[1:] != (32, 32, 3) or y.shape != x.shape[:1] or len(x) != block * SEVERITIES:
            raise ValueError(f"{request.folder / corruption}.npy and labels.npy have shapes {x.shape} and {y.shape}.")
        at = slice((int(severity) - 1) * block, int(severity) * block)
        classes = len(request.entry.classes or ())
        test = Part(x[at], formats.labels(np.asarray(y[at]), str(request.folder / "labels.npy"), classes))
    return Part(test.x[:0], test.y[:0]), test


def digits(request: Request) -> tuple[Part, Part]:
    """The handwritten digits that come with scikit-learn, in one fixed split: four fifths for training."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ValueError(f"{request.entry.name} needs scikit-learn: pip install 'sdebnn[data]'.") from None
    pixels, classes = map(np.asarray, load_digits(return_X_y=True))
    x = (15 * pixels).astype(np.uint8).reshape(-1, 8, 8, 1)  # from 0..16 to 0..240, exactly
    order = np.random.default_rng(0).permutation(len(x))
    first = 4 * len(x) // 5
    train, test = (Part(x[at], classes[at].astype(np.int32)) for at in (order[:first], order[first:]))
    return train, test


def saved(path: Path, md5: str) -> np.ndarray:
    """A memory map of a published .npy file of bytes."""
    array = formats.mapped(path)
    if array.dtype != np.uint8 or not array.size:
        raise ValueError(f"{path} holds {array.size} values of {array.dtype}: it should hold bytes.")
    check_digest(str(path), np.memmap(path, np.uint8, "r").data, md5)
    return array


def _parts(request: Request, read: Callable[[str], Part]) -> tuple[Part, Part]:
    """The parts that are wanted; the other one is empty."""
    with fetch_hint(request.entry.name):
        found = {part: read(part) for part in request.parts}
    x, y = next(iter(found.values()))
    nothing = Part(x[:0], y[:0])
    return found.get("train", nothing), found.get("test", nothing)


def _idx(root: Path, file: str, digests: Mapping[str, str]) -> np.ndarray:
    """The array in an idx file, gzipped or not."""
    path = root / f"{file}.gz"
    if not path.exists():
        path = root / file
    if not path.exists():
        other = "" if file.startswith("t10k") else " (to read the test part alone, pass parts=('test',))"
        raise FileNotFoundError(f"{root / file}.gz is missing{other}.")
    blob = formats.contents(path)
    array = formats.parse_idx(blob, str(path))
    check_digest(str(path), blob, digests[file])
    return array


def _cifar_part(request: Request, part: str) -> Part:
    """Images and labels from the first of the published versions that is on disk."""
    root = request.folder
    batches = [f"data_batch_{i}" for i in range(1, 6)] if part == "train" else ["test_batch"]
    versions = (
        ("cifar-10-batches-bin", "cifar-10-binary.tar.gz", ".bin", formats.parse_cifar_binary),
        ("cifar-10-batches-py", "cifar-10-python.tar.gz", "", formats.parse_cifar_pickle),
    )
    lacking = []
    for folder, archive, suffix, parse in versions:
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
            check_digest(where, blob, request.entry.digests[name])  # before it is parsed
        x, y = zip(*(parse(blob, where) for where, blob in blobs.items()), strict=True)
        return Part(np.concatenate(x), np.concatenate(y))
    nearest = root / min(lacking, key=len)[0]
    raise FileNotFoundError(f"{nearest} is missing, and {root} holds no archive of CIFAR-10.")
