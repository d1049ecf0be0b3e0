"""Standardisation of columns:   z = (x - center) / spread,   with both estimated from training rows."""

import warnings
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from sdebnn.data.dataset import DataSet

MAX_STANDARDISED = 1e6  # clipped values are at most this many spreads from the center, so that nothing overflows
ROWS_FOR_STATISTICS = 10_000  # of a data set that may be larger than memory
IMAGES_PER_BATCH = 500

# Limits within which inputs count as similar to the training inputs, in units of the training spread.
MIN_SPREAD, MAX_SPREAD, MAX_MEAN = 0.1, 10.0, 5.0
CONSTANT_SPREAD = 1e-4  # a smaller spread is the rounding of a constant column in float32
MIN_IMAGES_FOR_CONTRAST = 2  # with fewer, a small spread is not a warning sign
MIN_ROWS_FOR_WARNING = 30  # a smaller table is not compared


class Standardiser(NamedTuple):
    """The center and the spread of each column."""

    center: np.ndarray
    spread: np.ndarray

    @staticmethod
    def of(
        columns: np.ndarray, weight: np.ndarray | None = None, *, constant: float | np.ndarray = 1.0
    ) -> "Standardiser":
        """The mean and standard deviation of each column; ``weight`` says how often each row counts.

        The spread of a column with a single value is ``constant``; with inf the column is always standardised to 0.
        """
        unit = magnitude(columns)
        scaled = columns / unit  # so that squares of huge or tiny values stay in range
        if weight is None:
            mean, std = scaled.mean(0), scaled.std(0)
        else:
            share = (weight / weight.sum())[:, None]
            mean = (share * scaled).sum(0)
            std = np.sqrt((share * (scaled - mean) ** 2).sum(0))
        same = (columns.max(0) == columns.min(0)) | (std == 0)
        return Standardiser(unit * np.where(same, scaled[0], mean), np.where(same, constant, unit * std))

    @staticmethod
    def of_batches(batches: Iterable[np.ndarray]) -> "Standardiser":
        """The mean and standard deviation of columns that are read in batches of rows; constants have spread 1."""
        count, total, squares = 0, np.zeros(()), np.zeros(())
        for batch in batches:
            count = count + len(batch)
            total = total + batch.sum(0, dtype=float)
            squares = squares + np.square(batch).sum(0, dtype=float)
        mean = total / count
        std = np.sqrt(np.maximum(squares / count - mean**2, 0))
        return Standardiser(mean, np.where(std > 0, std, 1.0))

    @staticmethod
    def identity(columns: int) -> "Standardiser":
        """Changes nothing."""
        return Standardiser(np.zeros(columns), np.ones(columns))

    def to(self, columns: np.ndarray) -> np.ndarray:
        """Standardised columns."""
        with np.errstate(over="ignore"):
            return (columns - self.center) / self.spread

    def clipped(self, columns: np.ndarray) -> np.ndarray:
        """Standardised columns, clipped at 10⁶ spreads."""
        return np.clip(self.to(columns), -MAX_STANDARDISED, MAX_STANDARDISED)

    def undo(self, columns: np.ndarray) -> np.ndarray:
        """The columns in their own units again."""
        return self.center + self.spread * columns

    def warn_if_unlike(
        self, x: np.ndarray, *, column: str, remedy: str, table: bool = False, stacklevel: int = 2
    ) -> None:
        """Warn once if a column of x, the last axis, has another mean or spread than the training inputs.

        ``column`` is the word for a column, and ``remedy`` the end of the warning. A constant column is judged by its
        mean alone. For a ``table``, a small spread is normal, small tables and columns of two values are not judged.
        """
        if table and len(x) < MIN_ROWS_FOR_WARNING:
            return
        with np.errstate(over="ignore", invalid="ignore"):
            z = self.to(x.reshape(-1, x.shape[-1]).astype(float))
            centers, spreads = z.mean(0), z.std(0)
        judge_contrast = not table and len(x) >= MIN_IMAGES_FOR_CONTRAST
        for number, (center, spread) in enumerate(zip(centers, spreads, strict=True)):
            if table and len(np.unique(z[:, number])) <= 2:  # a rare flag may be the same in all rows
                continue
            usual = spread <= MAX_SPREAD and (spread >= MIN_SPREAD or not judge_contrast)
            if abs(center) > MAX_MEAN or not (usual or spread < CONSTANT_SPREAD):
                warnings.warn(
                    f"x is unlike the training data: after standardisation its {column} {number} has mean "
                    f"{center:.3g} and spread {spread:.3g} instead of 0 and 1. {remedy}",
                    stacklevel=stacklevel + 1,
                )
                return


def magnitude(columns: np.ndarray) -> np.ndarray:
    """The largest absolute value of each column, or 1 if that is 0."""
    largest = np.abs(columns).max(0)
    return np.where(largest > 0, largest, 1.0)


def pixel_statistics(data: DataSet) -> tuple[tuple[int, int, int], dict[str, tuple[float, ...]]]:
    """The shape of an image, and the mean and standard deviation of each channel as fractions of 255."""
    images = data.train.x
    if images.dtype != np.uint8:
        raise ValueError(f"{data.name} has images of {images.dtype}: save them as uint8, 0 to 255.")
    height, width, channels = images.shape[1:]
    rows = evenly_spaced_rows(len(images))
    batches = np.array_split(rows, max(1, len(rows) // IMAGES_PER_BATCH))
    mean, std = Standardiser.of_batches(
        np.asarray(images[batch], dtype=np.float32).reshape(-1, channels) / 255 for batch in batches
    )
    mean, std = (tuple(round(float(value), 4) for value in values) for values in (mean, std))
    return (height, width, channels), {"mean": mean, "std": tuple(value or 1.0 for value in std)}


def evenly_spaced_rows(examples: int) -> np.ndarray:
    """Indices of the rows from which statistics are computed: all of them, or 10,000 evenly spaced ones."""
    return np.linspace(0, examples - 1, min(examples, ROWS_FOR_STATISTICS)).astype(int)
