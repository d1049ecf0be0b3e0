"""Scores of predictions. Samples are one array, "draw example output", and a forecast averages over the draws.

Probabilities are averaged, never logits or log-probabilities:   p(y | x) = E_w[ p(y | x, w) ].
"""

from numbers import Real

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from sdebnn.checks import check_classes, check_count

Numbers = Array | np.ndarray
ClassSamples = Float[Numbers, "draw example class"]
Labels = Int[Numbers, " example"]


def _check_classified(samples: ClassSamples, labels: Labels) -> None:
    """Refuse samples that are not class probabilities, and anything but one label for each example."""
    if samples.ndim != 3 or labels.shape != samples.shape[1:2] or samples.size == 0:
        raise ValueError(
            f"samples have shape {samples.shape} and labels have shape {labels.shape}: pass (draws, examples, classes) "
            "and (examples,)."
        )
    if isinstance(samples, Tracer) or isinstance(labels, Tracer):
        return
    check_classes("labels", labels, samples.shape[-1])
    if not np.allclose(np.sum(samples, axis=-1), 1, atol=1e-3) or np.min(samples) < 0:
        raise ValueError(
            "samples do not add up to 1 over the classes: pass probabilities, such as Categorical().center(logits)."
        )


def _check_regression(samples: Float[Numbers, "draw example target"], y: Float[Numbers, "example target"]) -> None:
    """Refuse targets of another shape than the samples: broadcasting would pair each target with every example."""
    if samples.ndim != 3 or y.shape != samples.shape[1:] or samples.size == 0:
        raise ValueError(
            f"samples have shape {samples.shape} and y has shape {y.shape}: pass (draws, examples, targets) and "
            "(examples, targets)."
        )


def accuracy(samples: ClassSamples, labels: Labels) -> Float[Array, ""]:
    """Fraction of examples whose most probable class is the true one."""
    _check_classified(samples, labels)
    return jnp.mean(jnp.argmax(samples.mean(0), axis=-1) == labels)


def nll(
    log_probs: Float[Numbers, "draw example"], weights: Float[Numbers, " example"] | None = None
) -> Float[Array, ""]:
    """Mean of -log p(y | x) in nats, where p averages exp(log_probs) over draws; examples may be weighted."""
    if log_probs.ndim != 2 or log_probs.size == 0:
        raise ValueError(f"log_probs has shape {log_probs.shape}: pass (draws, examples).")
    if weights is not None and weights.shape != log_probs.shape[1:]:
        raise ValueError(
            f"weights has shape {weights.shape}: pass one weight for each of the {log_probs.shape[1]} examples."
        )
    draws = log_probs.shape[0]
    return -jnp.average(jax.nn.logsumexp(log_probs, axis=0) - jnp.log(draws), weights=weights)


def brier(samples: ClassSamples, labels: Labels) -> Float[Array, ""]:
    """Mean squared distance between the forecast and the one-hot truth."""
    _check_classified(samples, labels)
    truth = jax.nn.one_hot(labels, samples.shape[-1])
    return jnp.mean(jnp.sum((samples.mean(0) - truth) ** 2, axis=-1))


def ece(samples: ClassSamples, labels: Labels, bins: int = 10) -> Float[Array, ""]:
    """Expected calibration error: |accuracy - confidence| in bins of equal width, weighted by their counts."""
    check_count("bins", bins)
    _check_classified(samples, labels)
    probs = samples.mean(0)
    confidence = probs.max(-1)
    correct = jnp.argmax(probs, axis=-1) == labels
    # Bins are [a, b), and the last one is [a, 1].
    index = jnp.clip((confidence * bins).astype(int), 0, bins - 1)
    gap = jnp.zeros(bins).at[index].add(correct - confidence)
    return jnp.sum(jnp.abs(gap)) / labels.shape[0]


def rmse(samples: Float[Numbers, "draw example target"], y: Float[Numbers, "example target"]) -> Float[Array, ""]:
    """Root mean squared error of the mean prediction."""
    _check_regression(samples, y)
    return jnp.sqrt(jnp.mean((samples.mean(0) - y) ** 2))


def interval(
    samples: Float[Numbers, "draw *rest"], level: float = 0.95
) -> tuple[Float[Numbers, "*rest"], Float[Numbers, "*rest"]]:
    """The ends of the central interval that contains one more draw with probability ``level``.

    The rank of one more draw among n exchangeable draws is uniform. The draw therefore falls below the k-th smallest
    with probability k / (n + 1), and the end at probability p is the draw of rank p (n + 1), interpolated between two
    draws if the rank is not whole (Weibull's quantiles). If n is too small for the level (n < 39 at 95 %), the ends lie
    outside all draws, and the tails are assumed to be exponential: at 95 % and n = 10 the interval then covers normal
    draws with probability 95.9 %, Laplace draws with 95.0 %, and uniform draws with 97.1 %.
    """
    if not isinstance(level, Real) or not 0 < level < 1:
        raise ValueError(f"level={level!r} must be between 0 and 1, such as 0.95.")
    if samples.ndim == 0 or samples.shape[0] < 2:
        raise ValueError(f"samples have shape {samples.shape}: pass at least two draws, on the first axis.")
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
    """Fraction of targets inside the ``interval`` of this level; samples are at least two draws of y itself."""
    low, high = interval(samples, level)
    _check_regression(samples, y)
    return jnp.mean((low <= y) & (y <= high))


def crps(samples: Float[Numbers, "draw example target"], y: Float[Numbers, "example target"]) -> Float[Array, ""]:
    """Continuous ranked probability score in the units of y; samples are draws of y itself, and lower is better.

    E|Y - y| - ½ E|Y - Y'|, where the second mean is over all pairs of different draws.
    """
    _check_regression(samples, y)
    draws = samples.shape[0]
    if draws < 2:
        raise ValueError(f"samples have shape {samples.shape}: pass at least two draws, on the first axis.")
    # Σ_ij |Y_i - Y_j| = 2 Σ_i (2i - n + 1) Y_(i), for draws in ascending order, i from 0.
    ranks = jnp.arange(draws)[:, None, None]
    pairs = jnp.sum((2 * ranks - draws + 1) * jnp.sort(samples, axis=0), axis=0) / (draws * (draws - 1))
    return jnp.mean(jnp.mean(jnp.abs(samples - y), axis=0) - pairs)
