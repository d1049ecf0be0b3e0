"""Intervals for scores: by drawing examples again with replacement, and exact ones for shares."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int
from scipy import stats

from sdebnn.checks import check_count, check_level


class Estimate(NamedTuple):
    """The ``value`` of a score, and an interval of the score of all such examples, were there infinitely many.

    ``lower`` and ``upper`` are the ends of the interval.
    """

    value: float
    lower: float
    upper: float


def bootstrap(
    score: Callable[..., float], *examples: int, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> Estimate:
    """The score of all examples, with the interval between two quantiles of the scores of resamples.

        error = np.asarray(samples.mean(0) - y)
        rmse = metrics.bootstrap(lambda rows: np.sqrt(np.mean(error[rows] ** 2)), len(y))
        print(f"{rmse.value:.2f}, 95 % interval {rmse.lower:.2f} to {rmse.upper:.2f}")

    ``score`` is a function of the numbers of the rows. With several numbers of examples, such as of usual and of
    strange ones, it takes the rows of each. The interval is about the examples; the draws and the training stay as they
    are. It is too narrow for few examples, and lies above the score if chance can only raise it, as with an ECE near
    zero. One example says nothing about others: if there is only one of a kind, the interval is (-inf, inf). A score
    that is NaN is an error.
    """
    check_level("level", level)
    check_count("resamples", resamples, least=2)
    if not examples:
        raise ValueError("no number of examples was given: pass it after the score, such as len(labels).")
    for count in examples:
        check_count("examples", count)
    random = np.random.default_rng(seed)

    def scored(draw: Callable[[int], Int[np.ndarray, " row"]]) -> float:
        found = float(score(*map(draw, examples)))
        if math.isnan(found):
            raise ValueError("the score of some examples is NaN: choose one that every resample has.")
        return found

    value = scored(np.arange)
    if min(examples) == 1:
        return Estimate(value, -math.inf, math.inf)
    found = [scored(lambda count: random.integers(count, size=count)) for _ in range(resamples)]
    lower, upper = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(value, float(lower), float(upper))


def share(hits: Bool[np.ndarray, " example"], level: float = 0.95) -> Estimate:
    """The share of examples that are hits, with the exact interval of Clopper and Pearson.

        accuracy = metrics.share(np.asarray(probs.argmax(-1) == labels))
        print(f"{accuracy.value:.0%}, 95 % interval {accuracy.lower:.0%} to {accuracy.upper:.0%}")

    Unlike that of a bootstrap, it is not empty if all examples, or none, are hits.
    """
    check_level("level", level)
    if hits.dtype != bool or hits.ndim != 1 or not len(hits):
        raise ValueError(f"hits have shape {hits.shape} of {hits.dtype}: pass True or False for at least one example.")
    count, found = len(hits), int(hits.sum())
    tail = (1 - level) / 2
    lower = stats.beta.ppf(tail, found, count - found + 1) if found else 0.0
    upper = stats.beta.ppf(1 - tail, found + 1, count - found) if found < count else 1.0
    return Estimate(found / count, float(lower), float(upper))
