"""Split conformal prediction: what n held-out rows say of one more, if all n + 1 come in any order alike.

The k-th smallest of their n scores, k = ⌈(n + 1) · coverage⌉, is not exceeded by the score of a new row with
probability at least ``coverage``: its rank among the n + 1 is uniform.
"""

import math
from numbers import Real

import numpy as np

from sdebnn.checks import shown


def check_level(name: str, level: object) -> float:
    """Refuse what is not between 0 and 1."""
    if not isinstance(level, Real) or isinstance(level, bool) or not 0 < float(level) < 1:
        raise ValueError(f"{name}={shown(level)} must be between 0 and 1, such as 0.95.")
    return float(level)


def conformal_rank(scores: np.ndarray, coverage: float) -> np.ndarray:
    """The score, of each of some ascending rows of them, that a new one does not exceed with this probability."""
    n = scores.shape[-1]
    rank = math.ceil((n + 1) * coverage - 1e-9)  # 20 · 0.95 is 19, whatever the last digit
    if rank > n:
        raise ValueError(
            f"coverage={coverage} takes {math.ceil(coverage / (1 - coverage) - 1e-9)} held-out rows, there are {n}: "
            "ask for less, raise calibration_fraction, or fit on more rows."
        )
    return scores[..., rank - 1]
