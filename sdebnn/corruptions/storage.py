"""Cells on disk: generated ones, which are stored for the next time, and the published arrays of CIFAR-10-C.

A generated cell is a .npy file followed by the SHA-256 of its bytes, by which a damaged file is recognised.
"""

import hashlib
import io
import warnings
from pathlib import Path

import numpy as np
from jaxtyping import Integer, UInt8

from sdebnn.checks import check_choice
from sdebnn.corruptions.cells import NAMES, SEVERITIES, check_cell, check_severity, corrupted
from sdebnn.data import CATALOGUE, formats
from sdebnn.data.storage import Folder, home, user_cache
from sdebnn.files import check_regular, write_whole
from sdebnn.fingerprints import digest

VERSION = 1  # of the generator: increase it when a cell changes, so that stored cells are made again
DIGEST_BYTES = 32
Images = UInt8[np.ndarray, "example height width channel"]


def cached(images: Images, name: str, severity: int, *, seed: int = 0, folder: Folder = None) -> Images:
    """``corrupted(images, name, severity, seed=seed)``, stored in a folder and read from it the next time.

        from sdebnn import corruptions

        pixels = np.uint8(255 * images)
        for name in corruptions.NAMES[:2]:
            noisy = corruptions.cached(pixels, name, 5, folder="corrupted")

    The file's name contains a digest of the images, the seed and the version of the generator. A damaged file is
    replaced. Two processes may use the folder at once. By default it is in the user's cache folder.
    """
    check_cell(images, name, severity, seed)
    root = user_cache() / "sdebnn-corruptions" if folder is None else home(folder)
    about = hashlib.sha256(f"{VERSION} {seed} {digest(images)}".encode()).hexdigest()[:32]
    path = root / f"{name}-{severity}-{about}.npy"
    stored = _read(path)
    if stored is not None and stored.shape == images.shape and stored.dtype == np.uint8:
        return stored
    made = corrupted(images, name, severity, seed=seed)
    try:
        root.mkdir(parents=True, exist_ok=True)
        _write(path, made)
    except OSError as error:
        warnings.warn(f"{path} cannot be written ({error.strerror}): the cell will be made again.", stacklevel=2)
    return made


def published(
    name: str, severity: int, labels: Integer[np.ndarray, " example"], *, folder: Folder = None
) -> UInt8[np.ndarray, "example 32 32 3"] | None:
    """The published images of CIFAR-10-C as a memory map, or None if they are not in the folder of data sets.

        from sdebnn import corruptions

        pixels = corruptions.published("fog", 3, np.asarray(labels))
        print("not on disk" if pixels is None else pixels.shape)

    ``labels`` are those of the first test images of CIFAR-10, which tell how many are wanted, and that they are the
    same. ``folder`` is the folder of all data sets, as in ``sdebnn.data.load``. The digest of the file is checked by
    ``sdebnn.data.load("cifar10c/NAME/SEVERITY")``, not here.
    """
    check_choice("name", name, NAMES)
    check_severity(severity)
    root = CATALOGUE["cifar10c"].folder(home(folder))
    path = root / f"{name}.npy"
    if not path.exists():
        return None
    try:
        images, truth = formats.mapped(path), formats.mapped(root / "labels.npy")
    except FileNotFoundError as error:
        raise ValueError(f"{error} Copy it there: it belongs to CIFAR-10-C.") from None
    block = len(images) // len(SEVERITIES) if images.ndim else 0
    if images.dtype != np.uint8 or images.shape != (5 * block, 32, 32, 3) or truth.shape != images.shape[:1]:
        shapes = f"shapes {images.shape} and {truth.shape}"
        raise ValueError(f"{path} and labels.npy have {shapes}: they should hold 5 blocks of 32 x 32 x 3 bytes.")
    if not 0 < len(labels) <= block:
        raise ValueError(f"labels has {len(labels)} entries: pass from 1 to {block}, of the first test images.")
    at = slice((severity - 1) * block, (severity - 1) * block + len(labels))
    different = np.flatnonzero(truth[at] != labels)
    if len(different):
        first = different[0]
        raise ValueError(
            f"labels[{first}]={labels[first]} is {truth[at][first]} in {root / 'labels.npy'}: "
            "pass the labels of the CIFAR-10 test part in their order."
        )
    return images[at]


def _read(path: Path) -> np.ndarray | None:
    """The array in a file, or None if there is none or it is damaged."""
    try:
        check_regular(path)
        blob = path.read_bytes()
        content, expected = blob[:-DIGEST_BYTES], blob[-DIGEST_BYTES:]
        if hashlib.sha256(content).digest() != expected:
            return None
        return np.load(io.BytesIO(content), allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None


def _write(path: Path, array: np.ndarray) -> None:
    """Write an array and its digest, atomically."""
    file = io.BytesIO()
    np.save(file, array)
    content = file.getvalue()
    write_whole(path, content + hashlib.sha256(content).digest())
