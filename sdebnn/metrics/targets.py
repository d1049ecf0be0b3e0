"""Scores of forecasts of numbers. Samples are one array, "draw example target".

NaN and infinite values are errors, but for the ends of an interval and for quantiles, which may be infinite.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from sdebnn.checks import check_level
from sdebnn.metrics.classes import Numbers, check_is_array

Targets = Float[Numbers, "example target"]
TargetSamples = Float[Numbers, "draw example target"]


def _check_regression(samples: Float[Numbers, "draw example target"], y: Float[Numbers, "example target"]) -> None:
    """Refuse targets of another shape than the samples: broadcasting would pair each target with every example."""
    check_is_array("samples", samples)
    check_is_array("y", y)
    if samples.ndim != 3 or y.shape != samples.shape[1:] or samples.size == 0:
        raise ValueError(
            f"samples have shape {samples.shape} and y has shape {y.shape}: pass (draws, examples, targets) and "
            "(examples, targets)."
        )
    _check_finite("samples", samples)
    _check_finite("y", y)


def _check_finite(name: str, values: Numbers) -> None:
    """Refuse NaN and infinite values, which some scores would hide."""
    check_is_array(name, values)
    if not isinstance(values, Tracer) and not np.isfinite(values).all():
        raise ValueError(f"{name} holds NaN or infinite values: look for a model that blew up, or impute them.")


def rmse(samples: Float[Numbers, "draw example target"], y: Float[Numbers, "example target"]) -> Float[Array, ""]:
    """Root mean squared error of the mean prediction.

        metrics.rmse(samples, y)

    ``samples`` are means of y or draws of y, "draw example target"; they are averaged over the draws.
    """
    _check_regression(samples, y)
    return jnp.sqrt(jnp.mean((samples.mean(0) - y) ** 2))


def interval(
    samples: Float[Numbers, "draw *rest"], level: float = 0.95
) -> tuple[Float[Numbers, "*rest"], Float[Numbers, "*rest"]]:
    """The ends of the central interval that contains one more draw with probability ``level``.

        lower, upper = metrics.interval(samples, level=0.9)  # of the function
        measurements = likelihood.sample(samples, key=key)
        lower, upper = metrics.interval(measurements, level=0.9)  # of a new measurement

    The rank of one more draw among n exchangeable draws is uniform. The draw therefore falls below the k-th smallest
    with probability k / (n + 1), and the end at probability p is the draw of rank p (n + 1), interpolated between two
    draws if the rank is not whole (Weibull's quantiles). If n is too small for the level (n < 39 at 95 %), the ends lie
    outside all draws, and the tails are assumed to be exponential: at 95 % and n = 10 the interval then covers normal
    draws with probability 95.9 %, Laplace draws with 95.0 %, and uniform draws with 97.1 %.
    """
    check_level("level", level)
    if samples.ndim == 0 or samples.shape[0] < 2:
        raise ValueError(f"samples have shape {samples.shape}: pass at least two draws, on the first axis.")
    _check_finite("samples", samples)
    ascending = (jnp if isinstance(samples, jax.Array) else np).sort(samples, axis=0)
    p = (1 - float(level)) / 2
    return _lower_end(ascending, p), -_lower_end(-ascending[::-1], p)


def _lower_end(ascending: Float[Numbers, "draw *rest"], p: float) -> Float[Numbers, "*rest"]:
    """The value below which one more draw falls with probability p, at most 1/2."""
    place = p * (ascending.shape[0] + 1)
    if place < 1:
        # In an exponential tail of scale s, with E_1 and E_2 standard exponential: a new draw below the lowest one is
        # s E_1 away from it, and the next lowest is s E_2 / 2 away (Rényi): P(E_1 > c E_2 / 2) = 1/(1 + c/2) = place.
        return ascending[0] - 2 * (1 / place - 1) * (ascending[1] - ascending[0])
    below = int(place)
    return ascending[below - 1] + (place - below) * (ascending[below] - ascending[below - 1])


def coverage(
    samples: Float[Numbers, "draw example target"], y: Float[Numbers, "example target"], level: float = 0.95
) -> Float[Array, ""]:
    """Fraction of targets inside the ``interval`` of this level; samples are at least two draws of y itself.

        metrics.coverage(likelihood.sample(samples, key=key), y, level=0.9)

    ``interval`` says what happens if there are few draws.
    """
    _check_regression(samples, y)
    low, high = interval(samples, level)
    return jnp.mean((low <= y) & (y <= high))


def crps(samples: TargetSamples, y: Targets) -> Float[Array, ""]:
    """Continuous ranked probability score in the units of y; samples are draws of y itself, and lower is better.

        metrics.crps(likelihood.sample(samples, key=key), y)

    It is small if the draws are near y and near each other. Of a single point it would be the absolute error.
    """
    return jnp.mean(crps_of_each(samples, y))


def crps_of_each(samples: TargetSamples, y: Targets) -> Float[Array, "example target"]:
    """The score of every target: E|Y - y| - ½ E|Y - Y'|, where the second mean is over all pairs of different draws.

        worst = metrics.crps_of_each(likelihood.sample(samples, key=key), y).argmax()

    Samples are draws of y itself, "draw example target".
    """
    _check_regression(samples, y)
    draws = samples.shape[0]
    if draws < 2:
        raise ValueError(f"samples have shape {samples.shape}: pass at least two draws, on the first axis.")
    # Σ_ij |Y_i - Y_j| = 2 Σ_i (2i - n + 1) Y_(i), for draws in ascending order, i from 0.
    ranks = jnp.arange(draws)[:, None, None]
    pairs = jnp.sum((2 * ranks - draws + 1) * jnp.sort(samples, axis=0), axis=0) / (draws * (draws - 1))
    return jnp.mean(jnp.abs(samples - y), axis=0) - pairs


def interval_score(lower: Targets, upper: Targets, y: Targets, level: float = 0.95) -> float:
    """The mean score of central intervals in the units of y; lower is better (Winkler, Gneiting and Raftery).

        lower, upper = metrics.interval(likelihood.sample(samples, key=key), level=0.9)
        metrics.interval_score(lower, upper, y, level=0.9)

    The width of an interval, plus 2 / (1 - level) times the distance by which y misses it.
    """
    check_level("level", level)
    low, high, at = (np.asarray(array, float) for array in (lower, upper, y))
    if not low.shape == high.shape == at.shape or at.size == 0:
        raise ValueError(f"lower, upper and y have shapes {low.shape}, {high.shape} and {at.shape}: pass equal ones.")
    if np.isnan(low).any() or np.isnan(high).any() or not np.isfinite(at).all():
        raise ValueError("lower or upper hold NaN, or y holds NaN or infinite values: impute them.")
    if (low > high).any():
        raise ValueError(f"lower={low[low > high][0]:g} is above upper={high[low > high][0]:g}: pass them in order.")
    misses = np.maximum(low - at, 0) + np.maximum(at - high, 0)
    return float(np.mean(high - low + 2 / (1 - level) * misses))


def pinball(quantiles: TargetSamples, y: Targets, levels: Float[Numbers, " draw"]) -> float:
    """The mean pinball loss of quantiles, in the units of y; the first axis of ``quantiles`` holds the levels.

        levels = np.array([0.1, 0.5, 0.9])
        quantiles = np.quantile(likelihood.sample(samples, key=key), levels, axis=0)
        metrics.pinball(quantiles, y, levels)

    Lower is better. At level 0.5 the loss is half the mean absolute error.
    """
    at, q, p = (np.asarray(array, float) for array in (y, quantiles, levels))
    if q.shape[1:] != at.shape or p.shape != q.shape[:1] or q.size == 0:
        raise ValueError(
            f"quantiles have shape {q.shape}, y {at.shape} and levels {p.shape}: pass (levels, examples, targets), "
            "(examples, targets) and (levels,)."
        )
    if np.isnan(q).any() or not np.isfinite(at).all():
        raise ValueError("quantiles hold NaN, or y holds NaN or infinite values: impute them.")
    for level in p:
        check_level("level", float(level))
    p = p[:, None, None]
    return float(np.mean(np.where(at >= q, p * (at - q), (1 - p) * (q - at))))


def pit(samples: TargetSamples, y: Targets, *, seed: int = 0) -> Float[np.ndarray, "example target"]:
    """The probability integral transform of each target: uniform on [0, 1] if the forecast is right.

        ranks = metrics.pit(likelihood.sample(samples, key=key), y)

    It is the rank of y among the draws of y itself, placed at random in its step of width 1 / (draws + 1). If y equals
    some draws, its rank is any of theirs with equal probability.
    """
    _check_regression(samples, y)
    draws, at = np.asarray(samples, float), np.asarray(y, float)
    below, same = (draws < at).sum(0), (draws == at).sum(0)
    place = np.random.default_rng(seed).uniform(size=at.shape)
    return (below + place * (same + 1)) / (len(draws) + 1)
