"""How far examples are from those of training, as one number for each."""

from typing import NamedTuple

import numpy as np
from scipy import linalg

USUAL = 0.99  # share of the training rows that are at most as far from their center as a distance of 1
RIDGE = 1e-3  # on the correlations, in which columns may depend on each other
GRID = 4  # images are compared by the means of so many rows and columns of tiles


class Distance(NamedTuple):
    """How far rows are from the center of the training rows, in units within which 99 % of those are."""

    center: np.ndarray
    spread: np.ndarray
    factor: np.ndarray  # of the inverse correlations of the matrix's columns
    limit: float

    @staticmethod
    def of(matrix: np.ndarray) -> "Distance":
        """The distance from the rows of a matrix."""
        center, spread = matrix.mean(0), matrix.std(0)
        spread = np.where(
            spread > 0, spread, np.maximum(1e-6 * np.abs(center), 1e-12)
        )  # a constant that changes is far
        z = (matrix - center) / spread
        root = linalg.cholesky(z.T @ z / len(z) + RIDGE * np.eye(z.shape[1]), lower=True)
        factor = linalg.solve_triangular(root, np.eye(z.shape[1]), lower=True)
        unscaled = Distance(center, spread, factor, 1.0)
        return unscaled._replace(limit=max(float(np.quantile(unscaled.to(matrix), USUAL)), 1e-12))

    def standardised(self, matrix: np.ndarray) -> np.ndarray:
        """Columns of mean 0 and spread 1, at most so far out that squares stay finite."""
        return np.clip((matrix - self.center) / self.spread, -1e100, 1e100)

    def to(self, matrix: np.ndarray) -> np.ndarray:
        """The distance of every row. Above 1, a row is unlike 99 % of those of training."""
        return np.sqrt(((self.standardised(matrix) @ self.factor.T) ** 2).mean(1)) / self.limit


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
