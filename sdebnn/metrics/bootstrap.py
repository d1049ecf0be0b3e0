"""Intervals for scores, by drawing examples again with replacement."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from sdebnn.checks import check_count, check_level


class Estimate(NamedTuple):
    """A score, and an interval that would contain the score of all such examples, were there infinitely many."""

    value: float
    lower: float
    upper: float


def bootstrap(
    score: Callable[..., float], *examples: int, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> Estimate:
    """The score of all examples, with the interval between two quantiles of the scores of resamples.

    ``score`` is a function of the numbers of the rows: ``bootstrap(lambda rows: accuracy(samples[:, rows],
    labels[rows]), len(labels))``. With several numbers of examples, such as of usual and of strange ones, it takes the
    rows of each. The interval is about the examples; the draws and the training stay as they are. It is too narrow
    for few examples, and lies above the score if chance can only raise it, as with an ECE near zero.
    """
    check_level("level", level)
    check_count("resamples", resamples)
    if not examples:
        raise ValueError("no number of examples was given: pass it after the score, such as len(labels).")
    for count in examples:
        check_count("examples", count)
    random = np.random.default_rng(seed)

    def scored(draw: Callable[[int], Int[np.ndarray, " row"]]) -> float:
        return float(score(*map(draw, examples)))

    value = scored(np.arange)
    found = [scored(lambda count: random.integers(count, size=count)) for _ in range(resamples)]
    lower, upper = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(value, float(lower), float(upper))
