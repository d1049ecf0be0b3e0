"""How good predictions are. Samples are one array, "draw example output"; a forecast averages over the draws.

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
    """Refuse what are not probabilities of classes, or not one label for each example."""
    if samples.ndim != 3 or labels.shape != samples.shape[1:2] or samples.size == 0:
        raise ValueError(
            f"samples have shape {samples.shape}, labels {labels.shape}: pass (draws, examples, classes), (examples,)."
        )
    if isinstance(samples, Tracer) or isinstance(labels, Tracer):
        return
    check_classes("labels", labels, samples.shape[-1])
    if not np.allclose(np.sum(samples, axis=-1), 1, atol=1e-3) or np.min(samples) < 0:
        raise ValueError(
            "samples do not add up to 1 over the classes: pass probabilities, Categorical().center(logits)."
        )


def _check_regression(samples: Float[Numbers, "draw example target"], y: Float[Numbers, "example target"]) -> None:
    """Refuse targets that are not those of the samples: broadcasting would pair each with every example."""
    if samples.ndim != 3 or y.shape != samples.shape[1:] or samples.size == 0:
        raise ValueError(
            f"samples has shape {samples.shape}, y {y.shape}: pass (draws, examples, targets) and (examples, targets)."
        )


def accuracy(samples: ClassSamples, labels: Labels) -> Float[Array, ""]:
    """Share of examples whose most probable class is the true one."""
    _check_classified(samples, labels)
    return jnp.mean(jnp.argmax(samples.mean(0), axis=-1) == labels)


def nll(
    log_probs: Float[Numbers, "draw example"], weights: Float[Numbers, " example"] | None = None
) -> Float[Array, ""]:
    """Mean -log p(y | x) in nats, where p averages the densities exp(log_probs) over draws; rows may be weighted."""
    if log_probs.ndim != 2 or log_probs.size == 0:
        raise ValueError(f"log_probs has shape {log_probs.shape}: pass (draws, examples).")
    if weights is not None and weights.shape != log_probs.shape[1:]:
        raise ValueError(f"weights has shape {weights.shape}: pass one for each of {log_probs.shape[1]} examples.")
    draws = log_probs.shape[0]
    return -jnp.average(jax.nn.logsumexp(log_probs, axis=0) - jnp.log(draws), weights=weights)


def brier(samples: ClassSamples, labels: Labels) -> Float[Array, ""]:
    """Mean squared distance between the forecast and the one-hot truth."""
    _check_classified(samples, labels)
    truth = jax.nn.one_hot(labels, samples.shape[-1])
    return jnp.mean(jnp.sum((samples.mean(0) - truth) ** 2, axis=-1))


def ece(samples: ClassSamples, labels: Labels, bins: int = 10) -> Float[Array, ""]:
    """Expected calibration error: |accuracy - confidence| in equal bins, weighted by how many fall in each."""
    check_count("bins", bins)
    _check_classified(samples, labels)
    probs = samples.mean(0)
    confidence = probs.max(-1)
    correct = jnp.argmax(probs, axis=-1) == labels
    # Bins are [a, b), the last one [a, 1]: confidence exactly 1 belongs to it.
    index = jnp.clip((confidence * bins).astype(int), 0, bins - 1)
    gap = jnp.zeros(bins).at[index].add(correct - confidence)
    return jnp.sum(jnp.abs(gap)) / labels.shape[0]


def rmse(samples: Float[Numbers, "draw example target"], y: Float[Numbers, "example target"]) -> Float[Array, ""]:
    """Root mean squared error of the mean prediction."""
    _check_regression(samples, y)
    return jnp.sqrt(jnp.mean((samples.mean(0) - y) ** 2))


def coverage(
    samples: Float[Numbers, "draw example target"], y: Float[Numbers, "example target"], level: float = 0.95
) -> Float[Array, ""]:
    """Share of targets inside the central interval of the given level, the samples being draws of y itself."""
    if not isinstance(level, Real) or not 0 < level < 1:
        raise ValueError(f"level={level!r} must be between 0 and 1, such as 0.95.")
    _check_regression(samples, y)
    low, high = jnp.quantile(samples, jnp.array([(1 - level) / 2, (1 + level) / 2]), axis=0)
    return jnp.mean((low <= y) & (y <= high))


def crps(samples: Float[Numbers, "draw example target"], y: Float[Numbers, "example target"]) -> Float[Array, ""]:
    """Continuous ranked probability score, in the units of y, the samples being draws of y itself: less is better.

    E|Y - y| - ½ E|Y - Y'|, the second mean taken over all pairs of different draws.
    """
    _check_regression(samples, y)
    draws = samples.shape[0]
    if draws < 2:
        raise ValueError(f"samples has shape {samples.shape}: the spread of a forecast needs two draws or more.")
    # Σ_ij |Y_i - Y_j| = 2 Σ_i (2i - n + 1) Y_(i), the draws ascending, i from 0.
    ranks = jnp.arange(draws)[:, None, None]
    pairs = jnp.sum((2 * ranks - draws + 1) * jnp.sort(samples, axis=0), axis=0) / (draws * (draws - 1))
    return jnp.mean(jnp.mean(jnp.abs(samples - y), axis=0) - pairs)
