"""One-dimensional regression problems whose truth is known: y = f(x) + noise."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn.checks import check_count, check_key

WAVE_RANGE = (-2.0, 2.0)
WAVE_NOISE = 0.1


def wave_mean(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The truth behind ``wave``: a damped sine on a slope. It is not monotonic."""
    return jnp.sin(2.5 * x) * jnp.exp(-0.1 * x**2) + 0.3 * x


def wave(examples: int, *, key: PRNGKeyArray) -> tuple[Float[Array, "example 1"], Float[Array, "example 1"]]:
    """Inputs uniform on [-2, 2]; targets with normal noise of standard deviation 0.1."""
    check_count("examples", examples)
    check_key(key)
    input_key, noise_key = jax.random.split(key)
    low, high = WAVE_RANGE
    x = jax.random.uniform(input_key, (examples, 1), minval=low, maxval=high)
    return x, wave_mean(x) + WAVE_NOISE * jax.random.normal(noise_key, x.shape)
