"""Standardisation of columns:   z = (x - center) / spread,   with both estimated from training rows."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from sdebnn.data.dataset import DataSet

MAX_STANDARDISED = 1e6  # clipped values are at most this many spreads from the center, so that nothing overflows
ROWS_FOR_STATISTICS = 10_000  # of a data set that may be larger than memory
IMAGES_PER_BATCH = 500


class Standardiser(NamedTuple):
    """The center and the spread of each column.

        columns = sdebnn.data.Standardiser.of(X)
        z = columns.to(X)
        np.testing.assert_allclose(columns.undo(z), X)

    Use it for nets that suit inputs of unit scale, such as ``SDEBNN.paper_mlp``. The estimators for tables standardise
    by themselves.
    """

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


def magnitude(columns: np.ndarray) -> np.ndarray:
    """The largest absolute value of each column, or 1 if that is 0."""
    largest = np.abs(columns).max(0)
    return np.where(largest > 0, largest, 1.0)


def pixel_statistics(data: DataSet) -> tuple[tuple[int, int, int], dict[str, tuple[float, ...]]]:
    """The shape of an image, and the mean and standard deviation of each channel as fractions of 255.

        shape, statistics = sdebnn.data.pixel_statistics(sdebnn.data.load("digits"))
        net = our_net(shape, 10, channels=(8,), blocks=1, **statistics, key=key)

    They are computed from at most 10,000 training images, and are the arguments ``mean`` and ``std`` of ``paper_net``
    and ``our_net``.
    """
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


def evenly_spaced_rows(examples: int, most: int = ROWS_FOR_STATISTICS) -> np.ndarray:
    """Indices of the rows from which statistics are computed: all of them, or ``most`` evenly spaced ones."""
    return np.linspace(0, examples - 1, min(examples, most)).astype(int)
