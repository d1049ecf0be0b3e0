"""Checks of the arguments of ``fit``: the weights of rows, and the size of numbers."""

import numpy as np
from sklearn.utils.validation import _check_sample_weight  # pyright: ignore[reportPrivateUsage]

from sdebnn.estimators.table import ArrayLike

MAX_ENTRY = 1e300  # of a table: predictions may be a million times as large, and must not overflow


def checked_weight(sample_weight: ArrayLike | None, X: np.ndarray) -> np.ndarray:
    """The weight of each row, of which at least one must be well above zero."""
    weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if not 1e-30 < weight.max() < 1e30:
        raise ValueError(
            f"the largest sample_weight is {weight.max():.3g}: pass weights of which some are neither nearly zero nor "
            "nearly infinite."
        )
    return weight


def check_magnitude(name: str, columns: np.ndarray) -> None:
    """Refuse numbers so large that predictions of their size could overflow."""
    largest = columns.ravel()[np.abs(columns).argmax()]
    if abs(float(largest)) > MAX_ENTRY:
        raise ValueError(
            f"{name} holds {largest:.3g}, and results computed from numbers beyond {MAX_ENTRY:g} may overflow: divide "
            "its columns by a constant."
        )
