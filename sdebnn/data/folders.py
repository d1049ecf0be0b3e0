"""Images in a folder, with one folder for each class inside, and arrays in one .npz file.

Pictures are not trusted: their sizes are read and compared with a limit before they are decoded.
"""

import os
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sdebnn.checks import check_count, shown
from sdebnn.data.dataset import DataSet, Part, held_out
from sdebnn.data.formats import ARCHIVE_ERRORS, array_in
from sdebnn.data.tabular import TEST, check_no_share, data_set_of
from sdebnn.files import check_regular

SUFFIXES = (".png", ".jpg", ".jpeg")
GREY = ("1", "L", "LA")  # modes of Pillow
COLOUR = ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr", "RGBX")
MAX_PIXELS = 2**26  # of one picture
MAX_SIDE = 64  # of pictures that are taken as they are, if all have the same size
SIDE = 32  # to which other pictures are scaled, unless told
MAX_BYTES = 2**32  # of all pictures, once scaled
ARRAYS = ("x_train", "y_train", "x_test", "y_test")


class Picture(NamedTuple):
    """What the header of a picture says: its height and width as it is shown, and whether it has colours."""

    path: Path
    height: int
    width: int
    has_colours: bool


def is_pictures(folder: Path) -> bool:
    """Whether a folder holds pictures, in folders for classes or for the parts of a data set."""
    inside = (path for path in folder.iterdir() if path.is_dir())
    return any(next(_files(each), None) is not None for each in (*inside, folder))


def images(
    folder: str | os.PathLike[str], *, size: int | None = None, test: float | None = None, seed: int = 0
) -> DataSet:
    """Pictures, .png or .jpg, in one folder for each class: FOLDER/cat/1.png, or FOLDER/train/cat/1.png and so on.

        data = sdebnn.data.folders.images("photos", size=16, test=0.25)

    Without a folder for the test part, the share ``test`` of the pictures, a tenth, is drawn with the seed. Pictures of
    one size of at most 64 pixels are taken as they are. All others are scaled and cropped to squares of ``size``
    pixels, 32 unless told. If all are grey, the images have one channel, otherwise three. Transparent parts are white.
    """
    root = Path(folder)
    if size is not None:
        check_count("size", size, least=4)
    parts = [root / "train", root / "test"] if (root / "train").is_dir() and (root / "test").is_dir() else [root]
    labelled = [_labelled(part) for part in parts]
    classes = tuple(sorted({label for part in labelled for _, label in part}))
    if len(classes) < 2:
        raise ValueError(
            f"{root} has pictures of {len(classes)} class: put those of each class into a folder of its name."
        )
    pictures = [[_picture(path) for path, _ in part] for part in labelled]
    height, width = _common_shape(root, [each for part in pictures for each in part], size)
    channels = 3 if any(each.has_colours for part in pictures for each in part) else 1
    found = [
        Part(
            _decoded(root, part, (height, width, channels)),
            np.array([classes.index(label) for _, label in labels], np.int32),
        )
        for part, labels in zip(pictures, labelled, strict=True)
    ]
    if len(found) == 2:
        check_no_share(root, test)
    train, rest = (
        found if len(found) == 2 else held_out(found[0], TEST if test is None else test, seed=seed, name="test")
    )
    return DataSet(root.name, train, rest, classes)


def pictures(path: Path, shape: tuple[int, ...]) -> tuple[np.ndarray, list[str]]:
    """One picture, or all in a folder and the folders inside, in the shape of a net's images, and their names."""
    files = sorted(_files(path)) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{path} holds no picture: put {', '.join(SUFFIXES)} files there.")
    x = _decoded(path, [_picture(file) for file in files], shape)
    return x, [str(file.relative_to(path)) if path.is_dir() else file.name for file in files]


def labelled_pictures(folder: Path, shape: tuple[int, ...], classes: Sequence[str]) -> Part:
    """All pictures in the folders of some classes, in the shape of a net's images, with their labels."""
    labelled = _labelled(folder)
    strange = next((label for _, label in labelled if label not in classes), None)
    if strange is not None:
        raise ValueError(f"{folder} has a folder {shown(strange)}, which is none of the classes {shown(classes)}.")
    x = _decoded(folder, [_picture(path) for path, _ in labelled], shape)
    return Part(x, np.array([classes.index(label) for _, label in labelled], np.int32))


def npz(path: str | os.PathLike[str], *, test: float | None = None, seed: int = 0) -> DataSet:
    """Arrays x_train, y_train, x_test and y_test of a .npz file, or x and y, of which a share is drawn for the test.

        data = sdebnn.data.folders.npz("table.npz", test=0.2)

    If y has one axis, it holds labels, whole numbers or text. Targets of a regression have two axes.
    """
    path = Path(path)
    names = members(path)
    if set(ARRAYS) <= names:
        check_no_share(path, test)
        found = {name: array_in(path, name) for name in ARRAYS}
    elif {"x", "y"} <= names:
        x, y = array_in(path, "x"), array_in(path, "y")
        if x.ndim < 2 or not y.ndim:
            raise ValueError(f"{path}: x has shape {x.shape} and y {y.shape}: save examples along their first axis.")
        if len(x) != len(y):
            raise ValueError(f"{path}: x has {len(x)} examples and y has {len(y)}: they must agree.")
        parts = held_out(Part(x, y), TEST if test is None else test, seed=seed, name="test")
        found = dict(zip(ARRAYS, (array for part in parts for array in part), strict=True))
    else:
        raise ValueError(
            f"{path} holds {', '.join(sorted(names)) or 'nothing'}: save x and y, or {', '.join(ARRAYS)}, with "
            "numpy.savez."
        )
    return data_set_of(path, {name: np.asarray(array) for name, array in found.items()})


def members(path: Path) -> set[str]:
    """The names of the arrays in a .npz file."""
    check_regular(path)
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")}
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing.") from None
    except (*ARCHIVE_ERRORS, ValueError) as error:
        raise ValueError(
            f"{path} is damaged, or no .npz file ({type(error).__name__}): write it by numpy.savez."
        ) from None


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and not path.name.startswith("."))


def _labelled(folder: Path) -> list[tuple[Path, str]]:
    """The pictures in the folders of a folder, each with the name of its folder."""
    found = []
    for inside in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
        files = sorted(path for path in _files(inside) if path.parent == inside)
        if not files:
            raise ValueError(f"{inside} holds no picture: put {', '.join(SUFFIXES)} files there, or remove the folder.")
        found += [(path, inside.name) for path in files]
    left_out = sum(1 for _ in _files(folder)) - len(found)
    if found and left_out > 0:
        warnings.warn(f"{folder}: {left_out} pictures are in no folder of a class, and are left out.", stacklevel=4)
    if not found:
        raise ValueError(f"{folder} has no folders: put the pictures of each class into a folder of its name.")
    return found


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise ValueError("pictures need Pillow: pip install 'sdebnn[images]'.") from None
    return Image


def _picture(path: Path) -> Picture:
    """What the header of a file says; the picture is not decoded."""
    image_of = _pillow()
    try:
        check_regular(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the size is checked here
            with image_of.open(path, formats=("PNG", "JPEG")) as image:
                turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
                (width, height), mode = image.size, image.mode
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing.") from None
    except image_of.DecompressionBombError:
        raise ValueError(f"{path} declares more than {MAX_PIXELS} pixels: make it smaller.") from None
    except Exception as error:  # a damaged header can raise many kinds of errors
        raise ValueError(f"{path} is no picture that can be read ({type(error).__name__}): remove it.") from None
    if width * height > MAX_PIXELS:
        raise ValueError(f"{path} declares more than {MAX_PIXELS} pixels: make it smaller.")
    if mode not in (*GREY, *COLOUR):
        raise ValueError(f"{path} has pixels of kind {mode}: save it with 8 bits a channel, grey or RGB.")
    return Picture(path, *((width, height) if turned else (height, width)), mode in COLOUR)


def _common_shape(root: Path, found: list[Picture], size: int | None) -> tuple[int, int]:
    """The height and width of the images of a data set; aloud if pictures are scaled without having been asked to."""
    shapes = {(each.height, each.width) for each in found}
    if size is not None:
        return size, size
    if len(shapes) == 1 and max(next(iter(shapes))) <= MAX_SIDE:
        return next(iter(shapes))
    smallest, largest = min(shapes), max(shapes)
    warnings.warn(
        f"{root}: pictures from {smallest[1]} by {smallest[0]} to {largest[1]} by {largest[0]} pixels are scaled and "
        f"cropped to {SIDE} by {SIDE}: choose another side with size (--size).",
        stacklevel=3,
    )
    return SIDE, SIDE


def _over_white(image: Any) -> Any:
    """A picture with its transparent parts white."""
    if "A" not in image.mode and "transparency" not in image.info:
        return image
    white = _pillow().new("RGBA", image.size, "white")
    white.alpha_composite(image.convert("RGBA"))
    return white


def _decoded(where: Path, found: list[Picture], shape: tuple[int, ...]) -> np.ndarray:
    """The pixels of pictures as bytes, "example height width channel": scaled to cover the shape, and cropped to it."""
    total = len(found) * int(np.prod(shape))
    if total > MAX_BYTES:
        raise ValueError(f"{where} holds {total} bytes of pictures, more than {MAX_BYTES}: choose a smaller size.")
    from PIL import ImageOps

    image_of, pixels = _pillow(), np.empty((len(found), *shape), np.uint8)
    for i, each in enumerate(found):
        try:
            with image_of.open(each.path, formats=("PNG", "JPEG")) as image:
                upright = _over_white(ImageOps.exif_transpose(image)).convert("L" if shape[2] == 1 else "RGB")
            if upright.size != (shape[1], shape[0]):
                upright = ImageOps.fit(upright, (shape[1], shape[0]), image_of.Resampling.BOX)
        except Exception as error:  # damaged data can raise many kinds of errors
            raise ValueError(f"{each.path} cannot be decoded ({type(error).__name__}): remove it.") from None
        pixels[i] = np.asarray(upright).reshape(shape)
    return pixels
