"""Small problems whose truth is known: regressions y = f(x) + noise on a line, and classes in the plane.

Each is drawn by a key: the same key is the same data. ``<name>_mean`` is the truth behind ``<name>``.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sdebnn.checks import check_count, check_key, check_positive

Regression = tuple[Float[Array, "example 1"], Float[Array, "example 1"]]
Classification = tuple[Float[Array, "example 2"], Int[Array, " example"]]

WAVE_RANGE = (-2.0, 2.0)
WAVE_NOISE = 0.1


def wave_mean(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The truth behind ``wave``: a damped sine on a slope. It is not monotonic."""
    return jnp.sin(2.5 * x) * jnp.exp(-0.1 * x**2) + 0.3 * x


def wave(examples: int, *, key: PRNGKeyArray) -> Regression:
    """Inputs uniform on [-2, 2]; targets with normal noise of standard deviation 0.1."""
    return _regression(examples, WAVE_RANGE, wave_mean, lambda x: WAVE_NOISE, key)


def ripple_mean(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The truth behind ``ripple``: a sine on a slope. It is not monotonic."""
    return jnp.sin(1.5 * x) + 0.2 * x


def ripple(examples: int, *, key: PRNGKeyArray) -> Regression:
    """Inputs uniform on [-5, 5], noise 0.2: all that the paper says of its toy set is this range, and not monotonic."""
    return _regression(examples, (-5.0, 5.0), ripple_mean, lambda x: 0.2, key)


def cubic_mean(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The truth behind ``cubic``: x³."""
    return x**3


def cubic(examples: int, *, key: PRNGKeyArray) -> Regression:
    """Inputs uniform on [-4, 4], noise 3: the toy of Hernández-Lobato & Adams (2015), there with 20 examples."""
    return _regression(examples, (-4.0, 4.0), cubic_mean, lambda x: 3.0, key)


def step_mean(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The truth behind ``step``: 0 below zero, 1 from there on."""
    return jnp.where(x < 0, 0.0, 1.0)


def step(examples: int, *, key: PRNGKeyArray) -> Regression:
    """Inputs uniform on [-1, 1], noise 0.1."""
    return _regression(examples, (-1.0, 1.0), step_mean, lambda x: 0.1, key)


def uneven_mean(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The truth behind ``uneven``: a sine."""
    return jnp.sin(2 * x)


def uneven_std(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The noise of ``uneven``: from 0.05 at the left end to 0.5 at the right one."""
    return 0.05 + 0.45 * (x + 3) / 6


def uneven(examples: int, *, key: PRNGKeyArray) -> Regression:
    """Inputs uniform on [-3, 3], noise that grows from left to right: for likelihoods that learn their scale."""
    return _regression(examples, (-3.0, 3.0), uneven_mean, uneven_std, key)


def gap_mean(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The truth behind ``gap``: cos(4x + 0.8)."""
    return jnp.cos(4 * x + 0.8)


def gap(examples: int, *, key: PRNGKeyArray) -> Regression:
    """Inputs in [-1, -0.7] and in [0.5, 1], half each, noise 0.1: Foong et al. (2019). Between, no one knows."""
    check_count("examples", examples)
    check_key(key)
    input_key, noise_key = jax.random.split(key)
    u = jax.random.uniform(input_key, (examples, 1))
    left = jnp.arange(examples)[:, None] % 2 == 0
    x = jnp.where(left, -1 + 0.3 * u, 0.5 + 0.5 * u)
    return x, gap_mean(x) + 0.1 * jax.random.normal(noise_key, x.shape)


def moons(examples: int, *, noise: float = 0.1, key: PRNGKeyArray) -> Classification:
    """Two half circles of radius 1, one in the mouth of the other, blurred by normal noise; half of each class."""
    label, u, blur = _plane(examples, 2, noise, key)
    angle = jnp.pi * u
    upper = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)
    return jnp.where(label[:, None] == 0, upper, jnp.array([1.0, 0.5]) - upper) + blur, label


def spirals(examples: int, *, arms: int = 2, noise: float = 0.05, key: PRNGKeyArray) -> Classification:
    """Arms that each wind once about the origin, from radius 0.1 to 1, blurred by normal noise; as many of each."""
    check_count("arms", arms, least=2)
    label, u, blur = _plane(examples, arms, noise, key)
    angle, radius = 2 * jnp.pi * (u + label / arms), 0.1 + 0.9 * u
    return radius[:, None] * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1) + blur, label


def _regression(
    examples: int,
    interval: tuple[float, float],
    mean: Callable[[Array], Array],
    std: Callable[[Array], Array | float],
    key: PRNGKeyArray,
) -> Regression:
    """Inputs uniform on an interval, targets normal about a mean."""
    check_count("examples", examples)
    check_key(key)
    input_key, noise_key = jax.random.split(key)
    x = jax.random.uniform(input_key, (examples, 1), minval=interval[0], maxval=interval[1])
    return x, mean(x) + std(x) * jax.random.normal(noise_key, x.shape)


def _plane(
    examples: int, classes: int, noise: float, key: PRNGKeyArray
) -> tuple[Int[Array, " example"], Float[Array, " example"], Float[Array, "example 2"]]:
    """Labels in turn, a place along each class's curve, and the blur about it."""
    check_count("examples", examples)
    check_positive("noise", noise, or_zero=True)
    check_key(key)
    place_key, noise_key = jax.random.split(key)
    label = jnp.arange(examples, dtype=jnp.int32) % classes
    return label, jax.random.uniform(place_key, (examples,)), noise * jax.random.normal(noise_key, (examples, 2))
