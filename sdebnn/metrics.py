"""How good predictions are. Samples are one array, "draw example output"; a forecast averages over the draws.

Probabilities are averaged, never logits or log-probabilities:   p(y | x) = E_w[ p(y | x, w) ].
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sdebnn.checks import check_count

Numbers = Array | np.ndarray
ClassSamples = Float[Numbers, "draw example class"]
Labels = Int[Numbers, " example"]


def accuracy(samples: ClassSamples, labels: Labels) -> Float[Array, ""]:
    """Share of examples whose most probable class is the true one."""
    return jnp.mean(jnp.argmax(samples.mean(0), axis=-1) == labels)


def nll(log_probs: Float[Numbers, "draw example"]) -> Float[Array, ""]:
    """Mean -log p(y | x) in nats, where p averages the densities exp(log_probs) over the draws."""
    draws = log_probs.shape[0]
    return -jnp.mean(jax.nn.logsumexp(log_probs, axis=0) - jnp.log(draws))


def brier(samples: ClassSamples, labels: Labels) -> Float[Array, ""]:
    """Mean squared distance between the forecast and the one-hot truth."""
    truth = jax.nn.one_hot(labels, samples.shape[-1])
    return jnp.mean(jnp.sum((samples.mean(0) - truth) ** 2, axis=-1))


def ece(samples: ClassSamples, labels: Labels, bins: int = 10) -> Float[Array, ""]:
    """Expected calibration error: |accuracy - confidence| in equal bins, weighted by how many fall in each."""
    check_count("bins", bins)
    probs = samples.mean(0)
    confidence = probs.max(-1)
    correct = jnp.argmax(probs, axis=-1) == labels
    # Bins are [a, b), the last one [a, 1]: confidence exactly 1 belongs to it.
    index = jnp.clip((confidence * bins).astype(int), 0, bins - 1)
    gap = jnp.zeros(bins).at[index].add(correct - confidence)
    return jnp.sum(jnp.abs(gap)) / labels.shape[0]


def rmse(samples: Float[Numbers, "draw example target"], y: Float[Numbers, "example target"]) -> Float[Array, ""]:
    """Root mean squared error of the mean prediction."""
    return jnp.sqrt(jnp.mean((samples.mean(0) - y) ** 2))


def coverage(
    samples: Float[Numbers, "draw example target"], y: Float[Numbers, "example target"], level: float = 0.95
) -> Float[Array, ""]:
    """Share of targets inside the central interval of the given level, the samples being draws of y itself."""
    if not 0 < level < 1:
        raise ValueError(f"level={level!r} must be between 0 and 1, such as 0.95.")
    low, high = jnp.quantile(samples, jnp.array([(1 - level) / 2, (1 + level) / 2]), axis=0)
    return jnp.mean((low <= y) & (y <= high))
