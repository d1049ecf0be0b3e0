"""What the commands share."""

import importlib.util
import io
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from sdebnn.files import write_whole


def key_of(seed: int) -> jax.Array:
    """The key that a seed names."""
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed={seed} must be a whole number from 0 to {2**32 - 1}.")
    return jax.random.key(seed)


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
    warnings.showwarning = lambda message, *_, **__: print(f"sdebnn: {message}", file=sys.stderr)
    try:
        yield
    finally:
        warnings.showwarning = before
