"""Split conformal prediction: a bound on the score of a new row from the scores of n held-out rows.

If all n + 1 rows are exchangeable, the rank of the new score among them is uniform. It therefore does not exceed the
k-th smallest of the n scores, k = ⌈(n + 1) · coverage⌉, with probability at least ``coverage``.
"""

import math

import numpy as np


def conformal_bound(scores: np.ndarray, coverage: float) -> np.ndarray:
    """The value that a new score does not exceed with this probability. Scores ascend along the last axis."""
    n = scores.shape[-1]
    rank = math.ceil((n + 1) * coverage - 1e-9)  # 20 · 0.95 counts as 19 despite rounding
    if rank > n:
        needed = math.ceil(coverage / (1 - coverage) - 1e-9)
        raise ValueError(
            f"coverage={coverage} needs {needed} held-out rows, and there are {n}: "
            "ask for a lower coverage, raise calibration_fraction, or fit on more rows."
        )
    return scores[..., rank - 1]
