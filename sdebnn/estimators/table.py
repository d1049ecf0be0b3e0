"""Tables as a net receives them: each distinct row once, every column standardised, and few different shapes.

Weights are counts: a row of weight 2 equals two rows, and a row of weight 0 is left out. Equal rows are merged, so that
a fit depends neither on the order of the rows nor on how they were counted.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sdebnn.data import Standardiser

if TYPE_CHECKING:
    from numpy.typing import ArrayLike as ArrayLike
else:
    ArrayLike = object  # at run time, scikit-learn checks the arguments and raises its own errors

MAX_PADDED_ROWS = 4096  # larger tables are not padded: they are seldom fitted again and again
MIN_ROWS_PER_BIN = 64  # on average: in smaller bins, the bends of the net follow the noise


class Table(NamedTuple):
    """Inputs "row feature", targets "row target", and the weight of each row, all float64."""

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray

    def at(self, index: np.ndarray | slice) -> "Table":
        """Some of the rows."""
        return Table(*(column[index] for column in self))

    def distinct(self) -> "Table":
        """The distinct rows of positive weight, sorted, with their weights added up."""
        kept = self.at(self.weight > 0)
        both, index = np.unique(np.hstack([kept.x, kept.y]), axis=0, return_inverse=True)
        features = self.x.shape[1]
        return Table(both[:, :features], both[:, features:], np.bincount(index.ravel(), kept.weight, len(both)))

    def split(self, share: float, seed: int, fold: int = 0) -> tuple["Table", "Table"]:
        """Two random parts; the second has this share of the rows. Folds differ in it, until all rows were in it."""
        rows = len(self.x)
        size = min(rows - 1, max(1, round(share * rows)))
        order = np.roll(np.random.default_rng(seed).permutation(rows), -fold * size)
        return self.at(order[size:]), self.at(order[:size])

    def with_rows(self, others: "Table") -> "Table":
        """These rows followed by others."""
        return Table(*(np.concatenate(pair) for pair in zip(self, others, strict=True)))

    def padded(self, least: int) -> "Table":
        """The same weighted sums over a power of two of rows: some rows are repeated, and share their weight."""
        rows = len(self.x)
        if rows > MAX_PADDED_ROWS:
            return self
        index = np.arange(power_of_two(rows, least)) % rows
        times = np.bincount(index, minlength=rows)
        return Table(self.x[index], self.y[index], (self.weight / times)[index])


class Encoding(NamedTuple):
    """Every column standardised, and also encoded piecewise-linearly over quantile bins.

    A smooth function of these numbers may bend at every knot, as trees do by splits. Knots beyond those of a column are
    infinite, and their bins are 0.
    """

    columns: Standardiser
    knots: np.ndarray  # feature knot
    bins: Standardiser  # of feature · bin

    @staticmethod
    def of(x: np.ndarray, weight: np.ndarray, bins: int) -> "Encoding":
        """The encoding of a table. Knots are at quantiles; there are fewer than ``bins`` bins if there are few rows."""
        columns = Standardiser.of(x, weight, constant=np.inf)
        z = columns.clipped(x)
        count = int(np.clip(len(x) // MIN_ROWS_PER_BIN, 2, bins))
        knots = np.full((x.shape[1], bins + 1), np.inf)
        for column, row in zip(z.T, knots, strict=True):
            distinct = np.unique(np.quantile(column, np.linspace(0, 1, count + 1)))
            row[: len(distinct)] = distinct
        unscaled = Encoding(columns, knots, Standardiser.identity(knots[:, 1:].size))
        return unscaled._replace(bins=Standardiser.of(unscaled.in_bins(z), weight, constant=np.inf))

    def in_bins(self, z: np.ndarray) -> np.ndarray:
        """The piecewise-linear encoding, "row feature·bin": 0 below a bin, 1 above it, linear inside."""
        low, high = self.knots[:, :-1], self.knots[:, 1:]
        with np.errstate(invalid="ignore"):
            share = np.clip((z[:, :, None] - low) / (high - low), 0, 1)
        return np.nan_to_num(share).reshape(len(z), -1)

    def to(self, x: np.ndarray, features: int) -> np.ndarray:
        """Rows of ``features`` standardised columns, then the bins of each; columns beyond those of x are zero."""
        z = self.columns.clipped(x)
        missing, bins = features - x.shape[1], self.knots.shape[1] - 1
        # Divided by √(number of bins), so that the sum over all bins is of the size of one column.
        in_bins = self.bins.to(self.in_bins(z)) / np.sqrt(self.knots[:, 1:].size)
        return np.hstack([np.pad(z, ((0, 0), (0, missing))), np.pad(in_bins, ((0, 0), (0, missing * bins)))])


def power_of_two(rows: int, least: int) -> int:
    """The smallest power of two that is at least ``rows`` and ``least``. Few shapes need few compiled programs."""
    return max(least, 1 << (rows - 1).bit_length())
