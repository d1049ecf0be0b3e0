"""Linear maps of images: blurs, zooms and resizes along rows and columns, motion blur, and interpolation.

A map that acts on rows and columns separately is two matrices, R and C, and the image X becomes R X Cᵀ. The border is
part of the matrices.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sdebnn.corruptions.pixels import AnyArray, Image


def separable(
    image: Image, rows: Float[AnyArray, "new_height height"], columns: Float[AnyArray, "new_width width"]
) -> Float[Array, "new_height new_width channel"]:
    """R X Cᵀ for each channel."""
    return jnp.einsum("ih,hwc,jw->ijc", rows, image, columns, precision="highest")


def gaussian_matrix(
    size: int, sigma: int | float, *, truncate: int | float = 4.0, border: str = "nearest"
) -> Float[np.ndarray, "size size"]:
    """A Gaussian blur along one axis, cut off after ``truncate`` standard deviations.

    Beyond the border are the last pixel (``border="nearest"``) or the mirrored pixels ("reflect").
    """
    radius = int(truncate * sigma + 0.5)
    offsets = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 * (offsets / sigma) ** 2) if sigma > 0 else np.ones(1)
    source = np.arange(size)[:, None] + offsets
    source = np.clip(source, 0, size - 1) if border == "nearest" else np.asarray(mirrored(source, size))
    return _matrix(size, source, weights / weights.sum())


def zoom_matrix(size: int, factor: int | float) -> Float[np.ndarray, "size size"]:
    """The middle of an axis, magnified by linear interpolation and cut to its former size."""
    crop = math.ceil(size / factor)
    zoomed = round(crop * factor)
    first, trim = (size - crop) // 2, (zoomed - size) // 2
    position = first + (np.arange(size) + trim) * (crop - 1) / max(zoomed - 1, 1)
    left = np.clip(np.floor(position), first, first + crop - 1)
    part = (position - left)[:, None]
    source = left[:, None].astype(int) + np.arange(2)
    return _matrix(size, np.clip(source, 0, size - 1), np.hstack([1 - part, part]))


def enlarging_matrix(size: int, small: int) -> Float[np.ndarray, "size small"]:
    """Linear interpolation from ``small`` pixels to ``size``, with the centres of pixels at halves."""
    position = np.clip((np.arange(size) + 0.5) * small / size - 0.5, 0, small - 1)
    return np.maximum(1 - abs(position[:, None] - np.arange(small)), 0).astype(np.float32)


def box_matrices(size: int, small: int) -> tuple[Float[np.ndarray, "size size"], Float[np.ndarray, "size size"]]:
    """Shrink an axis to ``small`` pixels by a box filter, and enlarge it again; unused rows and columns are zero.

    A pixel counts fully for the box that contains its centre.
    """
    shrink, enlarge = np.zeros((2, size, size), np.float32)
    ratio = size / small
    at, centre = np.arange(size), (np.arange(small)[:, None] + 0.5) * ratio
    # Both conditions, as in Pillow: they round differently for pixels whose centre lies on the edge of a box.
    inside = (at >= np.floor(centre - 0.5 * ratio + 0.5)) & (at < np.floor(centre + 0.5 * ratio + 0.5))
    inside &= abs((at - centre + 0.5) / ratio) <= 0.5
    shrink[:small] = inside / inside.sum(1, keepdims=True)
    enlarge[np.arange(size), ((np.arange(size) + 0.5) * small / size).astype(int)] = 1
    return shrink, enlarge


def mirrored(index: np.ndarray | Int[Array, "..."], size: int) -> Int[Array | np.ndarray, "..."]:
    """The index of a pixel beyond the border in the image mirrored at its edge, so that the last pixel repeats."""
    phase = index % (2 * size)
    return phase + (phase >= size) * (2 * size - 1 - 2 * phase)


def folded(index: Int[Array, "..."], size: int) -> Int[Array, "..."]:
    """The index of a pixel beyond the border in the image mirrored at its last pixel, which does not repeat."""
    return (size - 1) - abs((size - 1) - index % (2 * size - 2))


def motion_kernel(radius: int | float, sigma: int | float, taps: int) -> Float[np.ndarray, " taps"]:
    """Weights of half a Gaussian: the pixel itself and 2 ⌈radius⌉ others on one side, then zeros."""
    distance = np.arange(taps)
    weights = np.exp(-0.5 * (distance / sigma) ** 2) * (distance <= 2 * math.ceil(radius))
    return (weights / weights.sum()).astype(np.float32)


def motion_blurred(image: Image, kernel: Float[Array, " taps"], degrees: Float[Array, ""]) -> Image:
    """The weighted mean of the pixels nearest to points on a ray; beyond the border, the last pixel is repeated."""
    angle = jnp.deg2rad(degrees)
    height, width, _ = image.shape

    def add(i: Int[Array, ""], total: Image) -> Image:
        rows = jnp.arange(height) + jnp.ceil(i * jnp.sin(angle) - 0.5).astype(jnp.int32)
        columns = jnp.arange(width) + jnp.ceil(i * jnp.cos(angle) - 0.5).astype(jnp.int32)
        taken = image[jnp.clip(rows, 0, height - 1)][:, jnp.clip(columns, 0, width - 1)]
        return total + kernel[i] * taken

    return jax.lax.fori_loop(0, len(kernel), add, jnp.zeros_like(image))


def interpolated(
    image: Image, rows: Float[Array, "height width"], columns: Float[Array, "height width"], *, repeat: bool
) -> Image:
    """Values between pixels, bilinearly, of the image mirrored at its border, whose last pixels may ``repeat``."""
    source = mirrored if repeat else folded
    height, width, _ = image.shape
    top, left = jnp.floor(rows).astype(jnp.int32), jnp.floor(columns).astype(jnp.int32)
    below, right = (rows - top)[..., None], (columns - left)[..., None]
    (up, down), (here, there) = [
        (source(index, size), source(index + 1, size)) for index, size in ((top, height), (left, width))
    ]
    upper = (1 - right) * image[up, here] + right * image[up, there]
    lower = (1 - right) * image[down, here] + right * image[down, there]
    return (1 - below) * upper + below * lower


def _matrix(
    size: int, source: Int[np.ndarray, "size tap"], weights: Float[np.ndarray, "..."]
) -> Float[np.ndarray, "size size"]:
    """Row i adds the pixels ``source[i]``, weighted."""
    matrix = np.zeros((size, size))
    np.add.at(matrix, (np.arange(size)[:, None], source), weights)
    return matrix.astype(np.float32)
