"""Whether inputs have the scale of those that a model was trained on; a warning says so if they have not.

Each column is standardised by the mean and the spread that it had in training, and should then have mean 0 and
spread 1. A wrong unit, or columns in another order, is far outside the limits here; other data of the same kind are
within them.
"""

import math
import warnings
from typing import NamedTuple

import numpy as np
from jax.core import Tracer

from sdebnn.data.rows import Inputs
from sdebnn.data.standardise import Standardiser

# Limits within which inputs count as similar to the training inputs, in units of the training spread.
MIN_SPREAD, MAX_SPREAD, MAX_MEAN = 0.1, 10.0, 5.0
CONSTANT_SPREAD = 1e-4  # a smaller spread is the rounding of a constant column in float32
MIN_IMAGES_FOR_CONTRAST = 2  # with fewer, a small spread is not a warning sign
MIN_ROWS_FOR_WARNING = 30  # a smaller table is not compared
# Only the first examples are compared.
MAX_ROWS_CHECKED = 2048
MAX_PIXELS_CHECKED, MAX_IMAGES_CHECKED = 1_000_000, 1000


class UnlikeTrainingWarning(UserWarning):
    """Inputs are far from those of training: their units, or their source, may be others.

        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sdebnn.data.UnlikeTrainingWarning)
            samples = predict(net, images, draws=4, key=key)

    Estimators, and nets that take images of bytes, warn so when they predict.
    """


class TrainingInputs(NamedTuple):
    """The mean and the spread of each column of the training inputs: of a table, or of the channels of images."""

    columns: Standardiser
    are_images: bool

    @staticmethod
    def table(columns: Standardiser) -> "TrainingInputs":
        """The columns of a table."""
        return TrainingInputs(columns, False)

    @staticmethod
    def images(mean: tuple[float, ...], std: tuple[float, ...]) -> "TrainingInputs":
        """The channels of images of bytes, with mean and standard deviation as fractions of 255."""
        return TrainingInputs(Standardiser(255 * np.asarray(mean), 255 * np.asarray(std)), True)

    def warn_if_unlike(self, x: Inputs, *, stacklevel: int = 2) -> None:
        """Warn once if a column of x, the last axis, has another mean or spread than in training.

        A constant column is judged by its mean alone. In a table, a small spread is normal, and small tables and
        columns of two values are not judged. ``stacklevel`` counts from the caller, as in ``warnings.warn``.
        """
        if isinstance(x, Tracer) or (not self.are_images and x.shape[0] < MIN_ROWS_FOR_WARNING):
            return
        first = self._first(x)
        with np.errstate(over="ignore", invalid="ignore"):
            z = self.columns.to(first.reshape(-1, first.shape[-1]).astype(float))
            centers, spreads = z.mean(0), z.std(0)
        judge_contrast = self.are_images and len(first) >= MIN_IMAGES_FOR_CONTRAST
        for number, (center, spread) in enumerate(zip(centers, spreads, strict=True)):
            if not self.are_images and len(np.unique(z[:, number])) <= 2:  # a rare flag may be the same in all rows
                continue
            usual = spread <= MAX_SPREAD and (spread >= MIN_SPREAD or not judge_contrast)
            if abs(center) > MAX_MEAN or not (usual or spread < CONSTANT_SPREAD):
                warnings.warn(self._line(number, center, spread), UnlikeTrainingWarning, stacklevel=stacklevel + 1)
                return

    def _first(self, x: Inputs) -> np.ndarray:
        """The first examples, as many as are compared."""
        count = MAX_ROWS_CHECKED
        if self.are_images:
            count = min(MAX_IMAGES_CHECKED, -(-MAX_PIXELS_CHECKED // math.prod(x.shape[1:])))
        return np.asarray(x[:count])

    def _line(self, number: int, center: float, spread: float) -> str:
        column, remedy = "column", "Pass columns in the units and the order of those that it was trained on."
        if self.are_images:
            column = "channel"
            remedy = "The net takes bytes, 0 to 255: scale the images as those of the training were."
        return (
            f"x is unlike the training data: after standardisation its {column} {number} has mean {center:.3g} and "
            f"spread {spread:.3g} instead of 0 and 1. {remedy}"
        )
