"""Noise of cameras: Gaussian, Poisson (shot), impulse (salt and pepper) and speckle. Channels are independent."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn.corruptions.pixels import Image

GAUSSIAN_SIGMA = (0.04, 0.06, 0.08, 0.09, 0.10)
SHOT_RATE = (500, 250, 100, 75, 50)
IMPULSE_AMOUNT = (0.01, 0.02, 0.03, 0.05, 0.07)
SPECKLE_SIGMA = (0.06, 0.1, 0.12, 0.16, 0.2)


def gaussian_noise(image: Image, sigma: Float[Array, ""], *, key: PRNGKeyArray) -> Image:
    """x + σ z."""
    return image + 255 * sigma * jax.random.normal(key, image.shape, jnp.float32)


def speckle_noise(image: Image, sigma: Float[Array, ""], *, key: PRNGKeyArray) -> Image:
    """x (1 + σ z)."""
    return image * (1 + sigma * jax.random.normal(key, image.shape, jnp.float32))


def impulse_noise(image: Image, amount: Float[Array, ""], *, key: PRNGKeyArray) -> Image:
    """A share of all values becomes 0 or 255, with equal probability."""
    u = jax.random.uniform(key, image.shape, jnp.float32)
    return jnp.where(u < amount / 2, 0, jnp.where(u < amount, 255, image))


def shot_table(rate: int | float) -> Float[np.ndarray, "value result"]:
    """P(255 min(n / rate, 1) truncated <= result) for n ~ Poisson(rate value / 255), for all 256 values and results."""
    n = np.arange(int(rate + 20 * np.sqrt(rate) + 20))
    log_factorial = np.concatenate([[0], np.cumsum(np.log(n[1:]))])
    mean = rate * np.arange(1, 256)[:, None] / 255
    density = np.vstack([n == 0, np.exp(n * np.log(mean) - mean - log_factorial)])
    result = (np.clip(n / rate, 0, 1) * 255).astype(int)
    table = np.zeros((256, 256))
    np.add.at(table.T, result, density.T)
    return np.cumsum(table, axis=1).astype(np.float32)


def shot_noise(image: Image, table: Float[Array, "value result"], *, key: PRNGKeyArray) -> Image:
    """n / rate for n ~ Poisson(rate x), by inversion of its distribution function.

    There are 256 values and as many results, so that a binary search of eight steps in ``shot_table`` is a draw.
    """
    u = jax.random.uniform(key, image.shape, jnp.float32)
    start = 256 * image.astype(jnp.int32)
    flat, result = table.ravel(), jnp.zeros(image.shape, jnp.int32)
    for step in (128, 64, 32, 16, 8, 4, 2, 1):
        result += step * (flat[start + result + step - 1] <= u)
    return result.astype(jnp.float32)
