"""Brightness, contrast and saturation, elastic deformation, and pixelation."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn.corruptions.geometry import box_matrices, gaussian_matrix, interpolated, separable
from sdebnn.corruptions.pixels import Image

BRIGHTNESS = (0.05, 0.1, 0.15, 0.2, 0.3)
CONTRAST = (0.75, 0.5, 0.4, 0.3, 0.15)
SATURATION = ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))  # factor, added
ELASTIC = ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03))
PIXELATE = (0.95, 0.9, 0.85, 0.75, 0.65)


def brightness(image: Image, added: Float[Array, ""], *, key: PRNGKeyArray) -> Image:
    """Adds to the value of HSV, the largest channel, and keeps hue and saturation."""
    value = image.max(-1, keepdims=True)
    brighter = jnp.minimum(value + 255 * added, 255)
    return jnp.where(value > 0, image * brighter / jnp.maximum(value, 1), brighter)


def contrast(image: Image, factor: Float[Array, ""], *, key: PRNGKeyArray) -> Image:
    """Shrinks each channel towards its mean over the image."""
    mean = image.mean((0, 1))
    return mean + factor * (image - mean)


def saturate(image: Image, parameters: Float[Array, "2"], *, key: PRNGKeyArray) -> Image:
    """Multiplies and adds to the saturation of HSV, and keeps hue and value; the hue of grey is red.

    With value v and saturation s a channel is v - v s f, where f depends on the hue alone.
    """
    factor, added = parameters
    value = image.max(-1, keepdims=True)
    saturation = 1 - image.min(-1, keepdims=True) / jnp.maximum(value, 1)
    new = jnp.clip(factor * saturation + added, 0, 1)
    red = jnp.array([0.0, 1.0, 1.0], jnp.float32)
    shade = jnp.where(saturation > 0, (value - image) / jnp.maximum(saturation, 1e-3), value * red)
    return value - new * shade


def elastic_parameters(height: int, width: int, severity: int) -> tuple[np.ndarray, ...]:
    """The size α of displacements, the matrices that smooth them, and the jitter of the affine map, in shorter sides.

    The published numbers are multiples of the side of 32 pixels.
    """
    side = min(height, width)
    alpha, sigma, jitter = (side * number for number in ELASTIC[severity - 1])
    smooth = (gaussian_matrix(size, sigma, truncate=3.0, border="reflect") for size in (height, width))
    return np.asarray(alpha, np.float32), *smooth, np.asarray(jitter, np.float32)


def elastic_transform(image: Image, parameters: tuple[Array, Array, Array, Array], *, key: PRNGKeyArray) -> Image:
    """An affine map, in which three points are displaced at random, and then smooth displacements of all pixels.

    The points are corners of a square of two thirds of the shorter side around the centre.
    """
    alpha, rows, columns, jitter = parameters
    height, width, _ = image.shape
    affine_key, smooth_key = jax.random.split(key)
    y, x = jnp.arange(height, dtype=jnp.float32)[:, None], jnp.arange(width, dtype=jnp.float32)

    half, centre = min(height, width) // 3, (width // 2, height // 2)
    # (x, y) of the corners: (+, +), (+, -) and (-, -).
    first, second, third = jax.random.uniform(affine_key, (3, 2), jnp.float32, minval=-1) * jitter
    # A maps the unit vectors to these columns; the image is sampled at p = corner + A⁻¹ (p' - corner').
    (a, c), (b, d) = (second - third) / (2 * half), (first - second) / (2 * half)
    a, d = 1 + a, 1 + d
    right, down = x - (centre[0] + half + first[0]), y - (centre[1] + half + first[1])
    determinant = a * d - b * c
    source_x = centre[0] + half + (d * right - b * down) / determinant
    source_y = centre[1] + half + (a * down - c * right) / determinant
    image = interpolated(image, source_y, source_x, repeat=False)

    noise = jax.random.uniform(smooth_key, (height, width, 2), jnp.float32, minval=-1)
    across, along = jnp.moveaxis(alpha * separable(noise, rows, columns), -1, 0)
    return interpolated(image, y + along, x + across, repeat=True)


def pixelate_matrices(height: int, width: int, severity: int) -> tuple[np.ndarray, ...]:
    """The matrices that shrink rows and columns, and those that enlarge them."""
    scale = PIXELATE[severity - 1]
    (shrink_rows, rows), (shrink_columns, columns) = (box_matrices(n, int(n * scale)) for n in (height, width))
    return shrink_rows, shrink_columns, rows, columns


def pixelate(image: Image, matrices: tuple[Array, Array, Array, Array], *, key: PRNGKeyArray) -> Image:
    """Shrunk by a box filter along one axis and then the other, rounded each time, and enlarged by repeating pixels."""
    shrink_rows, shrink_columns, rows, columns = matrices
    narrow = jnp.floor(jnp.einsum("hwc,jw->hjc", image, shrink_columns, precision="highest") + 0.5)
    small = jnp.floor(jnp.einsum("ih,hjc->ijc", shrink_rows, narrow, precision="highest") + 0.5)
    return separable(small, rows, columns)
