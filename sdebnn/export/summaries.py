"""From draws to the outputs of an exported program, in float64, as ``sdebnn predict`` computes them with NumPy.

Of classes, with p_k the probabilities of draw k and H the entropy in nats:

    probabilities = mean p_k,   entropy = max(H(mean p_k), mean H(p_k)),   entropy_reducible = entropy - mean H(p_k)

Of numbers, with location_k and scale_k of draw k:

    std² = std_reducible² + std_noise²,   std_reducible = std of location_k,   std_noise² = variance · mean scale_k²
"""

import math
from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jax.scipy.special import erf
from jaxtyping import Array, Float

Outputs = dict[str, Array]
Cdf = Callable[[Array], Array]
HALVINGS = 50  # of the interval that contains a quantile
SMALLEST = 1e-300  # probability whose logarithm is taken
MEANINGS = {
    "probabilities": "of the classes, in their order",
    "entropy": "of the class, in nats",
    "entropy_reducible": "the part of the entropy that more data would reduce",
    "mean": "of the target",
    "std": "standard deviation of the target",
    "std_reducible": "the part of std that more data would reduce; the squares of both parts add up",
    "std_noise": "the part of std that more data would not reduce",
    "lower": "lower end of an interval that contains the target with probability coverage",
    "upper": "upper end of that interval",
}


def of_classes(proba: Float[Array, "draw example class"]) -> Outputs:
    """The outputs from the probabilities of each draw."""
    mean = proba.mean(0)
    mean = mean / mean.sum(-1, keepdims=True)
    noise = _entropy(proba).mean(0)
    reducible = jnp.maximum(_entropy(mean) - noise, 0.0)
    return {"probabilities": mean, "entropy": reducible + noise, "entropy_reducible": reducible}


def _entropy(proba: Float[Array, "*lead class"]) -> Float[Array, "*lead"]:
    return -(proba * jnp.log(jnp.maximum(proba, SMALLEST))).sum(-1)


def of_numbers(location: Float[Array, "draw example target"], variance: Float[Array, "draw example target"]) -> Outputs:
    """The moments of the target from the location and the variance of each draw."""
    mean = location.mean(0)
    of_draws, of_noise = jnp.square(location - mean).mean(0), variance.mean(0)
    return {
        "mean": mean, "std": jnp.sqrt(of_draws + of_noise), "std_reducible": jnp.sqrt(of_draws),
        "std_noise": jnp.sqrt(of_noise),
    }  # fmt: skip


def quantile(
    location: Float[Array, "draw example target"],
    scale: Float[Array, "draw example target"],
    cdf: Cdf,
    level: float,
    standard: float,
) -> Float[Array, "example target"]:
    """The quantile of the mixture of all draws, by bisection between the quantiles of the draws.

    ``standard`` is the quantile of the law with location 0 and scale 1. The distribution function is evaluated in
    float32, which moves a quantile by about 1e-6 scales.
    """
    each = location + scale * standard

    def halve(ends: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        low, high = ends
        middle = low + (high - low) / 2
        below = cdf(((middle - location) / scale).astype(jnp.float32)).astype(jnp.float64).mean(0) < level
        return (jnp.where(below, middle, low), jnp.where(below, high, middle)), None

    (low, high), _ = lax.scan(halve, (each.min(0), each.max(0)), None, length=HALVINGS)
    return low + (high - low) / 2


def _student_cdf(z: Array) -> Array:
    """Student's t with 5 degrees of freedom, in closed form."""
    u = z / math.sqrt(5)
    cos2 = 1 / (1 + u * u)
    return 0.5 + (jnp.arctan(u) + u * cos2 * (1 + 2 / 3 * cos2)) / math.pi


CDFS: dict[str, Cdf] = {
    "gaussian": lambda z: 0.5 + 0.5 * erf(z / math.sqrt(2)),
    "laplace": lambda z: 0.5 + 0.5 * jnp.sign(z) * (1 - jnp.exp(-jnp.abs(z))),
    "student": _student_cdf,
}
