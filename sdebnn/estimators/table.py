"""Rows of a table as a net takes them: each distinct row once, every column standardised, shapes that repeat.

Weights are counts: a row of weight 2 is two rows, one of weight 0 is none. So rows that are equal are made one, and a
fit depends neither on their order nor on how they were counted.
"""

from typing import NamedTuple

import numpy as np

FARTHEST = 1e6  # spreads from the centre, beyond which an input counts as that far: no row overflows
MOST_PADDED = 4096  # larger tables are seldom fitted often, and not padded
ROWS_A_BIN = 64  # at least, in the mean: with fewer, bends follow the noise


class Rows(NamedTuple):
    """A table: inputs "row feature", targets "row target", and how often each row counts; all float64."""

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray

    def at(self, index: np.ndarray | slice) -> "Rows":
        """Some of the rows."""
        return Rows(*(column[index] for column in self))

    def distinct(self) -> "Rows":
        """Rows that count, each once, in an order that is their own."""
        kept = self.at(self.weight > 0)
        both, index = np.unique(np.hstack([kept.x, kept.y]), axis=0, return_inverse=True)
        features = self.x.shape[1]
        return Rows(both[:, :features], both[:, features:], np.bincount(index.ravel(), kept.weight, len(both)))

    def parted(self, share: float, seed: int, number: int = 0) -> tuple["Rows", "Rows"]:
        """Two parts by lot, the second with this share of the rows: other rows for each number, while they last."""
        rows = len(self.x)
        size = min(rows - 1, max(1, round(share * rows)))
        order = np.roll(np.random.default_rng(seed).permutation(rows), -number * size)
        return self.at(order[size:]), self.at(order[:size])

    def with_rows(self, others: "Rows") -> "Rows":
        """These rows, and others after them."""
        return Rows(*(np.concatenate(pair) for pair in zip(self, others, strict=True)))

    def padded(self, least: int) -> "Rows":
        """The same sums over as many rows as a power of two: some are there twice, and count half each time."""
        rows = len(self.x)
        if rows > MOST_PADDED:
            return self
        index = np.arange(power_of_two(rows, least)) % rows
        times = np.bincount(index, minlength=rows)
        return Rows(self.x[index], self.y[index], (self.weight / times)[index])


class Scaling(NamedTuple):
    """Centre and spread of each column."""

    center: np.ndarray
    spread: np.ndarray

    @staticmethod
    def of(columns: np.ndarray, weight: np.ndarray, constant: float) -> "Scaling":
        """Mean and standard deviation of each column, of rows that count as often as ``weight`` says.

        The spread of a column of one value is ``constant`` times that value, or times 1 if it is 0.
        """
        largest = np.abs(columns).max(0)
        unit = np.where(largest > 0, largest, 1.0)
        within = columns / unit  # squares of what is huge or tiny stay within range
        share = (weight / weight.sum())[:, None]
        mean = (share * within).sum(0)
        std = np.sqrt((share * (within - mean) ** 2).sum(0))
        same = (columns.max(0) == columns.min(0)) | (std == 0)
        return Scaling(unit * np.where(same, within[0], mean), unit * np.where(same, constant, std))

    def to(self, columns: np.ndarray) -> np.ndarray:
        """Columns of mean 0 and spread 1."""
        with np.errstate(over="ignore"):
            return (columns - self.center) / self.spread

    def near(self, columns: np.ndarray) -> np.ndarray:
        """The same, nothing farther than what counts as farthest."""
        return np.clip(self.to(columns), -FARTHEST, FARTHEST)


class Encoding(NamedTuple):
    """Inputs as a net takes them: every column standardised, and how far it has come through each of its quantile bins.

    A net that is smooth in these numbers may bend at every knot: what trees do by splits. Knots beyond those that a
    column has are infinite, and their bins 0.
    """

    columns: Scaling
    knots: np.ndarray  # feature knot
    bins: Scaling  # of feature · bin

    @staticmethod
    def of(x: np.ndarray, weight: np.ndarray, bins: int) -> "Encoding":
        """Knots at the quantiles of each column, so many bins between them, or fewer where there are few rows."""
        columns = Scaling.of(x, weight, constant=np.inf)
        z = columns.near(x)
        count = int(np.clip(len(x) // ROWS_A_BIN, 2, bins))
        knots = np.full((x.shape[1], bins + 1), np.inf)
        for column, row in zip(z.T, knots, strict=True):
            distinct = np.unique(np.quantile(column, np.linspace(0, 1, count + 1)))
            row[: len(distinct)] = distinct
        fresh = Encoding(columns, knots, Scaling(np.zeros(knots[:, 1:].size), np.ones(knots[:, 1:].size)))
        return fresh._replace(bins=Scaling.of(fresh.through(z), weight, constant=np.inf))

    def through(self, z: np.ndarray) -> np.ndarray:
        """How far each value has come through each bin of its column, from 0 to 1: "row feature·bin"."""
        low, high = self.knots[:, :-1], self.knots[:, 1:]
        with np.errstate(invalid="ignore"):
            share = np.clip((z[:, :, None] - low) / (high - low), 0, 1)
        return np.nan_to_num(share).reshape(len(z), -1)

    def to(self, x: np.ndarray, features: int) -> np.ndarray:
        """Rows of ``features`` standardised columns, dead ones after those there are, and then the bins of each."""
        z = self.columns.near(x)
        dead, bins = features - x.shape[1], self.knots.shape[1] - 1
        # Bins of one column are many, of all columns more: their sum has the size of one.
        through = self.bins.to(self.through(z)) / np.sqrt(self.knots[:, 1:].size)
        return np.hstack([np.pad(z, ((0, 0), (0, dead))), np.pad(through, ((0, 0), (0, dead * bins)))])


def power_of_two(rows: int, least: int) -> int:
    """The least power of two, from ``least`` on, that holds so many rows: shapes that come again are compiled once."""
    return max(least, 1 << (rows - 1).bit_length())
