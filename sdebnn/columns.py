"""Forecasts as named columns, and the files in which they are written: .csv, .npy or .parquet."""

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sdebnn.checks import check_choice
from sdebnn.files import save_array, write_whole

SUFFIXES = (".csv", ".npy", ".parquet")
Columns = dict[str, np.ndarray]
# Of the columns of a forecast, beside the target and the probabilities of classes.
NAMES = (
    "std", "std_reducible", "std_noise", "lower", "upper", "unlike", "probability", "entropy", "entropy_reducible",
    "file",
)  # fmt: skip


def of_numbers(
    target: str, mean: np.ndarray, std: np.ndarray, reducible: np.ndarray, noise: np.ndarray,
    interval: tuple[np.ndarray, np.ndarray], unlike: np.ndarray,
) -> Columns:  # fmt: skip
    """The forecast of a number.

    Its mean and standard deviation; the part of it that more data would reduce, and the noise; an interval; and how far
    the row is from those of training.
    """
    parts = {"std_reducible": reducible, "std_noise": noise}
    return {target: mean, "std": std, **parts, "lower": interval[0], "upper": interval[1], "unlike": unlike}


def of_classes(
    target: str, classes: Sequence[Any] | np.ndarray, proba: np.ndarray, reducible: np.ndarray, noise: np.ndarray,
    unlike: np.ndarray,
) -> Columns:  # fmt: skip
    """The forecast of a class.

    The most probable one, its probability, that of every class; the entropy in nats, with its part that more data would
    reduce; and how far the row is from those of training.
    """
    best = proba.argmax(1)
    each = {f"p({label})": column for label, column in zip(classes, proba.T, strict=True)}
    return {
        target: np.asarray(classes)[best], "probability": proba[np.arange(len(best)), best], **each,
        "entropy": reducible + noise, "entropy_reducible": reducible, "unlike": unlike,
    }  # fmt: skip


def check_suffix(path: Path) -> None:
    """Refuse a file whose format is not known, or for which something is not installed."""
    check_choice("the suffix of out", path.suffix, SUFFIXES)
    if path.suffix == ".parquet":
        _polars()


def write_columns(path: Path, columns: Columns) -> list[str]:
    """Write named columns as a file, whose suffix says in which format, and return the names of those in it."""
    if path.suffix == ".npy":  # the columns of numbers
        columns = {name: column for name, column in columns.items() if column.dtype.kind == "f"}
        save_array(path, np.column_stack(list(columns.values())))
    elif path.suffix == ".parquet":
        stream = io.BytesIO()
        _polars().DataFrame({name: column.tolist() for name, column in columns.items()}).write_parquet(stream)
        write_whole(path, stream.getvalue())
    else:
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator=os.linesep)
        writer.writerow(columns)
        writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
        write_whole(path, stream.getvalue().encode(errors="surrogateescape"))
    return list(columns)


def _polars() -> Any:
    try:
        import polars
    except ImportError:
        raise ValueError(
            "a file .parquet needs polars: pip install polars, or choose a name that ends in .csv."
        ) from None
    return polars
