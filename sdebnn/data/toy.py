"""Generated problems with a known truth: regressions y = f(x) + noise on a line, and classes in the plane.

A key determines the data. ``<name>_mean`` is the true mean of the regression ``<name>``.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sdebnn.checks import check_count, check_key, check_positive
from sdebnn.data.dataset import Part
from sdebnn.data.entry import Reader, Request

Regression = tuple[Float[Array, "example 1"], Float[Array, "example 1"]]
Classification = tuple[Float[Array, "example 2"], Int[Array, " example"]]

WAVE_RANGE = (-2.0, 2.0)
WAVE_NOISE = 0.1


def wave_mean(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The mean of ``wave``: a damped sine plus a linear trend, which is not monotonic.

        x, y = sdebnn.data.toy.wave(40, key=key)
        errors = y - sdebnn.data.toy.wave_mean(x)

    x may have any shape.
    """
    return jnp.sin(2.5 * x) * jnp.exp(-0.1 * x**2) + 0.3 * x


def wave(examples: int, *, key: PRNGKeyArray) -> Regression:
    """A regression on a line: a damped sine on a slope.

        x, y = sdebnn.data.toy.wave(40, key=key)

    Inputs are uniform on [-2, 2]; the noise is normal with standard deviation 0.1.
    """
    return _regression(examples, WAVE_RANGE, wave_mean, lambda x: WAVE_NOISE, key)


def ripple_mean(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The mean of ``ripple``: a sine plus a linear trend, which is not monotonic.

        x, y = sdebnn.data.toy.ripple(40, key=key)
        errors = y - sdebnn.data.toy.ripple_mean(x)

    x may have any shape.
    """
    return jnp.sin(1.5 * x) + 0.2 * x


def ripple(examples: int, *, key: PRNGKeyArray) -> Regression:
    """A regression on a line: a sine on a slope.

        x, y = sdebnn.data.toy.ripple(40, key=key)

    Inputs are uniform on [-5, 5]; the noise has standard deviation 0.2. The paper describes its toy data only as a
    non-monotonic function on this range.
    """
    return _regression(examples, (-5.0, 5.0), ripple_mean, lambda x: 0.2, key)


def cubic_mean(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The mean of ``cubic``: x³.

        x, y = sdebnn.data.toy.cubic(40, key=key)
        errors = y - sdebnn.data.toy.cubic_mean(x)

    x may have any shape.
    """
    return x**3


def cubic(examples: int, *, key: PRNGKeyArray) -> Regression:
    """A regression on a line: a cubic with large noise.

        x, y = sdebnn.data.toy.cubic(20, key=key)

    Inputs are uniform on [-4, 4]; the noise has standard deviation 3. The toy data of Hernández-Lobato & Adams (2015),
    who use 20 examples.
    """
    return _regression(examples, (-4.0, 4.0), cubic_mean, lambda x: 3.0, key)


def step_mean(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The mean of ``step``: 0 for negative inputs, 1 otherwise.

        x, y = sdebnn.data.toy.step(40, key=key)
        errors = y - sdebnn.data.toy.step_mean(x)

    x may have any shape.
    """
    return jnp.where(x < 0, 0.0, 1.0)


def step(examples: int, *, key: PRNGKeyArray) -> Regression:
    """A regression on a line: a step from 0 to 1.

        x, y = sdebnn.data.toy.step(40, key=key)

    Inputs are uniform on [-1, 1]; the noise has standard deviation 0.1.
    """
    return _regression(examples, (-1.0, 1.0), step_mean, lambda x: 0.1, key)


def uneven_mean(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The mean of ``uneven``: a sine.

        x, y = sdebnn.data.toy.uneven(40, key=key)
        errors = y - sdebnn.data.toy.uneven_mean(x)

    x may have any shape.
    """
    return jnp.sin(2 * x)


def uneven_std(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The standard deviation of the noise of ``uneven``: 0.05 at x = -3, growing linearly to 0.5 at x = 3.

        x, y = sdebnn.data.toy.uneven(40, key=key)
        z = (y - sdebnn.data.toy.uneven_mean(x)) / sdebnn.data.toy.uneven_std(x)

    x may have any shape.
    """
    return 0.05 + 0.45 * (x + 3) / 6


def uneven(examples: int, *, key: PRNGKeyArray) -> Regression:
    """A regression on a line: a sine whose noise grows with x.

        x, y = sdebnn.data.toy.uneven(40, key=key)

    Inputs are uniform on [-3, 3]. This is for likelihoods that learn their scale.
    """
    return _regression(examples, (-3.0, 3.0), uneven_mean, uneven_std, key)


def gap_mean(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The mean of ``gap``: cos(4x + 0.8).

        x, y = sdebnn.data.toy.gap(40, key=key)
        errors = y - sdebnn.data.toy.gap_mean(x)

    x may have any shape.
    """
    return jnp.cos(4 * x + 0.8)


def gap(examples: int, *, key: PRNGKeyArray) -> Regression:
    """A regression on a line, with no inputs between -0.7 and 0.5.

        x, y = sdebnn.data.toy.gap(40, key=key)

    Half of the inputs are in [-1, -0.7], half in [0.5, 1]; the noise has standard deviation 0.1. From Foong et al.
    (2019): a good posterior is uncertain between the two intervals.
    """
    check_count("examples", examples)
    check_key(key)
    input_key, noise_key = jax.random.split(key)
    u = jax.random.uniform(input_key, (examples, 1))
    left = jnp.arange(examples)[:, None] % 2 == 0
    x = jnp.where(left, -1 + 0.3 * u, 0.5 + 0.5 * u)
    return x, gap_mean(x) + 0.1 * jax.random.normal(noise_key, x.shape)


TWO_SIDES_RANGE, TWO_SIDES_GAP, TWO_SIDES_NOISE = (-2.0, 2.0), (-0.7, 0.7), 0.1


def two_sides_mean(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The mean of ``two_sides``: a sine plus a linear trend.

        x, y = sdebnn.data.toy.two_sides(40, key=key)
        errors = y - sdebnn.data.toy.two_sides_mean(x)

    x may have any shape.
    """
    return jnp.sin(3 * x) + 0.3 * x


def two_sides(examples: int, *, key: PRNGKeyArray) -> Regression:
    """A regression on a line, with no inputs between -0.7 and 0.7.

        x, y = sdebnn.data.toy.two_sides(40, key=key)

    Half of the inputs are in [-2, -0.7], half in [0.7, 2]; the noise has standard deviation 0.1.
    """
    check_count("examples", examples)
    check_key(key)
    input_key, noise_key = jax.random.split(key)
    x = jax.random.uniform(input_key, (examples, 1), minval=TWO_SIDES_GAP[1], maxval=TWO_SIDES_RANGE[1])
    x = jnp.where(jnp.arange(examples)[:, None] % 2 == 0, x, -x)
    return x, two_sides_mean(x) + TWO_SIDES_NOISE * jax.random.normal(noise_key, x.shape)


def moons(examples: int, *, noise: float = 0.1, key: PRNGKeyArray) -> Classification:
    """Two classes in the plane: interleaving half circles of radius 1, with normal noise.

        x, labels = sdebnn.data.toy.moons(200, noise=0.1, key=key)

    Half of the examples are in each class.
    """
    label, u, blur = _plane(examples, 2, noise, key)
    angle = jnp.pi * u
    upper = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)
    return jnp.where(label[:, None] == 0, upper, jnp.array([1.0, 0.5]) - upper) + blur, label


def spirals(examples: int, *, arms: int = 2, noise: float = 0.05, key: PRNGKeyArray) -> Classification:
    """Classes in the plane: spiral arms that wind once around the origin, with normal noise.

        x, labels = sdebnn.data.toy.spirals(300, arms=3, key=key)

    There is one class for each of the ``arms``. The radius goes from 0.1 to 1.
    """
    check_count("arms", arms, least=2)
    label, u, blur = _plane(examples, arms, noise, key)
    angle, radius = 2 * jnp.pi * (u + label / arms), 0.1 + 0.9 * u
    return radius[:, None] * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1) + blur, label


def sample(problem: Callable[..., Regression | Classification], train: int = 400, test: int = 1000) -> Reader:
    """A reader of the catalogue: so many training and test examples of a problem, drawn with the seed."""

    def read(request: Request) -> tuple[Part, Part]:
        keys = jax.random.split(jax.random.fold_in(jax.random.key(request.seed), 3))
        sizes = (train, test)
        first, second = (Part(*map(np.asarray, problem(n, key=key))) for n, key in zip(sizes, keys, strict=True))
        return first, second

    return read


def _regression(
    examples: int,
    interval: tuple[float, float],
    mean: Callable[[Array], Array],
    std: Callable[[Array], Array | float],
    key: PRNGKeyArray,
) -> Regression:
    """Inputs uniform on an interval, and targets with normal noise."""
    check_count("examples", examples)
    check_key(key)
    input_key, noise_key = jax.random.split(key)
    x = jax.random.uniform(input_key, (examples, 1), minval=interval[0], maxval=interval[1])
    return x, mean(x) + std(x) * jax.random.normal(noise_key, x.shape)


def _plane(
    examples: int, classes: int, noise: float, key: PRNGKeyArray
) -> tuple[Int[Array, " example"], Float[Array, " example"], Float[Array, "example 2"]]:
    """Labels that alternate between the classes, positions along the curve of each class, and the noise."""
    check_count("examples", examples)
    check_positive("noise", noise, or_zero=True)
    check_key(key)
    place_key, noise_key = jax.random.split(key)
    label = jnp.arange(examples, dtype=jnp.int32) % classes
    return label, jax.random.uniform(place_key, (examples,)), noise * jax.random.normal(noise_key, (examples, 2))
