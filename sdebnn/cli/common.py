"""What the commands share."""

import importlib.util
import io
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax

from sdebnn.files import write_whole


def key_of(seed: int) -> jax.Array:
    """The key that a seed names."""
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed={seed} must be a whole number from 0 to {2**32 - 1}.")
    return jax.random.key(seed)


def check_out(path: Path, suffix: str, *, force: bool, inputs: Iterable[Path]) -> None:
    """Refuse, before long work, a file that could not be written after it, or that should not be."""
    if path.suffix != suffix:
        raise ValueError(f"out={path} must end in {suffix}: choose another name.")
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"{path} cannot be written: choose a file name in a folder that is there.")
    if path.exists():
        for each in inputs:
            if each.exists() and path.samefile(each):
                raise ValueError(f"out={path} is the file of the inputs, which would be lost: choose another name.")
        if not force:
            raise ValueError(f"{path} is there already: add --force to replace it, or choose another name with --out.")
    with tempfile.TemporaryFile(dir=path.parent):  # refused here where the folder cannot be written to
        pass


def prepare_pictures(out: Path) -> None:
    """Find out before long work whether its pictures can be drawn and its files written."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("pictures need matplotlib: pip install 'sdebnn[plot]'.")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=out):
        pass


def pyplot() -> Any:
    """Matplotlib, drawing into files alone."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    return pyplot


def save_picture(figure: Any, path: Path) -> None:
    """Write a figure as PNG, whole or not at all."""
    picture = io.BytesIO()
    figure.savefig(picture, dpi=160, format="png")
    write_whole(path, picture.getvalue())


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Warnings as one line each."""
    before = warnings.showwarning

    def show(message: Any, *_: Any, **__: Any) -> None:
        with suppress(OSError):  # nobody reads it any more
            print(f"sdebnn: {message}", file=sys.stderr)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before
