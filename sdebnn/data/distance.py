"""How far examples are from those of training, as one number for each."""

from typing import NamedTuple

import numpy as np
from scipy import linalg

USUAL = 0.99  # share of the training rows that are at most as far from their center as a distance of 1
RIDGE = 1e-3  # on the correlations, in which columns may depend on each other; few rows need more
MAX_COLUMNS = 512  # beyond, correlations are not used
MIN_ROWS_TO_SPLIT = 10
MIN_FLAG_SPREAD = 0.3  # of a column of zeros and ones: a rare word or an empty cell alone does not make a row far
GRID = 4  # images are compared by the means of so many rows and columns of tiles


class Distance(NamedTuple):
    """How far rows are from the center of the training rows, in units within which 99 % of those are."""

    center: np.ndarray
    spread: np.ndarray
    factor: np.ndarray  # of the inverse correlations of the matrix's columns; ones if there are too many columns
    limit: float

    @staticmethod
    def of(matrix: np.ndarray) -> "Distance":
        """The distance from the rows of a matrix. Its unit is found on rows from which no correlations were taken."""
        if len(matrix) < MIN_ROWS_TO_SPLIT:
            found = Distance._unscaled(matrix).to(matrix)
        else:
            one, other, spread = matrix[::2], matrix[1::2], _spread(matrix)
            found = np.concatenate(
                [Distance._unscaled(one, spread).to(other), Distance._unscaled(other, spread).to(one)]
            )  # fmt: skip
        return Distance._unscaled(matrix)._replace(limit=max(float(np.quantile(found, USUAL, method="higher")), 1e-12))

    @staticmethod
    def _unscaled(matrix: np.ndarray, spread_of_all: np.ndarray | None = None) -> "Distance":
        """The distance in other units. Columns that are constant here have the spread that they have in all rows."""
        center, spread = matrix.mean(0), _spread(matrix)
        if spread_of_all is not None:
            spread = np.where(matrix.std(0) > 0, spread, spread_of_all)
        rows, columns = matrix.shape
        if columns > MAX_COLUMNS:
            return Distance(center, spread, np.ones(columns), 1.0)
        z = (matrix - center) / spread
        correlations = z.T @ z / rows
        # Also of columns whose spread is not their own, so that they are not enlarged again.
        np.fill_diagonal(correlations, 1 + RIDGE + columns / rows)
        root = linalg.cholesky(correlations, lower=True)
        return Distance(center, spread, linalg.solve_triangular(root, np.eye(columns), lower=True), 1.0)

    @staticmethod
    def from_arrays(arrays: dict[str, np.ndarray], limit: float, size: int) -> "Distance | None":
        """The distance with these arrays, if they are those of one of so many columns."""
        shapes = {name: array.shape for name, array in arrays.items()}
        factor = (size,) if size > MAX_COLUMNS else (size, size)
        if shapes != {"center": (size,), "spread": (size,), "factor": factor} or not size:
            return None
        return Distance(**arrays, limit=limit) if limit > 0 and (arrays["spread"] > 0).all() else None

    def standardised(self, matrix: np.ndarray) -> np.ndarray:
        """Columns of mean 0 and spread 1, at most so far out that squares stay finite."""
        return np.clip((matrix - self.center) / self.spread, -1e100, 1e100)

    def to(self, matrix: np.ndarray) -> np.ndarray:
        """The distance of every row. Above 1, a row is unlike 99 % of those of training."""
        z = self.standardised(matrix)
        return np.sqrt(((z * self.factor if self.factor.ndim == 1 else z @ self.factor.T) ** 2).mean(1)) / self.limit


def _spread(matrix: np.ndarray) -> np.ndarray:
    """The spread of every column, which is never zero."""
    spread, is_flag = matrix.std(0), ((matrix == 0) | (matrix == 1)).all(0)
    spread = np.where(is_flag & (spread > 0), np.maximum(spread, MIN_FLAG_SPREAD), spread)
    # A constant that changes is far.
    return np.where(spread > 0, spread, np.maximum(1e-6 * np.abs(matrix.mean(0)), 1e-12))


def features(x: np.ndarray) -> np.ndarray:
    """The matrix in which examples are compared: vectors as they are; of images the colours of tiles, and the contrast.

    The contrast of a channel is the log of the mean difference of neighbouring pixels.
    """
    if x.ndim == 2:
        return np.asarray(x, np.float64)
    pixels = np.asarray(x, np.float32)
    rows, columns = (np.array_split(np.arange(size), min(GRID, size)) for size in x.shape[1:3])
    tiles = [pixels[:, r[0] : r[-1] + 1, c[0] : c[-1] + 1].mean((1, 2)) for r in rows for c in columns]
    steps = [np.abs(np.diff(pixels, axis=axis)).mean((1, 2)) for axis in (1, 2) if x.shape[axis] > 1]
    return np.hstack([*tiles, *(np.log1p(step) for step in steps)]).astype(np.float64)
