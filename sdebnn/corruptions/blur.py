"""Blurs: out of focus, through rough glass, of a moving or zooming camera, and Gaussian."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sdebnn.corruptions.geometry import gaussian_matrix, motion_blurred, motion_kernel, separable, zoom_matrix
from sdebnn.corruptions.pixels import Image, length_scale, truncated

DEFOCUS = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))  # radius, σ of the smoothing of the disk
GLASS = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))  # σ, passes
MOTION = ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))  # radius, σ
ZOOM = (1.06, 1.11, 1.16, 1.21, 1.26)
ZOOM_STEP = 0.01
GAUSSIAN_SIGMA = (0.4, 0.6, 0.7, 0.8, 1)

Matrices = tuple[Float[np.ndarray, "height height"], Float[np.ndarray, "width width"]]


def gaussian_matrices(height: int, width: int, sigma: int | float) -> Matrices:
    """A Gaussian blur of σ pixels, scaled with the image."""
    sigma *= length_scale(height, width)
    return gaussian_matrix(height, sigma), gaussian_matrix(width, sigma)


def gaussian_blur(image: Image, matrices: tuple[Array, Array], *, key: PRNGKeyArray) -> Image:
    """A Gaussian blur; beyond the border, the last pixel is repeated."""
    return separable(image, *matrices)


def disk_kernel(height: int, width: int, severity: int) -> Float[np.ndarray, "side side"]:
    """A uniform disk, smoothed by a Gaussian of 3 x 3 pixels; radius, σ and these 3 pixels scale with the image."""
    scale = length_scale(height, width)
    radius, sigma = (scale * length for length in DEFOCUS[severity - 1])
    reach = math.ceil(scale)
    half = math.floor(scale * max(r for r, _ in DEFOCUS)) + reach
    y, x = np.mgrid[-half : half + 1, -half : half + 1]
    disk = (x**2 + y**2 <= radius**2).astype(float)
    offset = np.arange(2 * half + 1)
    offset = offset[:, None] - offset
    smooth = np.exp(-0.5 * (offset / sigma) ** 2) * (abs(offset) <= reach)
    smooth /= smooth[half].sum()
    return (smooth @ disk @ smooth / disk.sum()).astype(np.float32)


def defocus_blur(image: Image, kernel: Float[Array, "side side"], *, key: PRNGKeyArray) -> Image:
    """The mean over a disk around each pixel; the image is mirrored at its last pixels."""
    half = len(kernel) // 2
    padded = jnp.pad(image, ((half, half), (half, half), (0, 0)), mode="reflect").transpose(2, 0, 1)[:, None]
    blurred = jax.lax.conv(padded, kernel[None, None], (1, 1), "VALID", precision="highest")
    return blurred[:, 0].transpose(1, 2, 0)


def glass_parameters(height: int, width: int, severity: int) -> tuple[Matrices, Int[np.ndarray, ""]]:
    """The blur before and after the displacements, and the number of passes, both scaled with the image."""
    sigma, passes = GLASS[severity - 1]
    count = round(passes * length_scale(height, width))
    return gaussian_matrices(height, width, sigma), np.asarray(count, np.int32)


def glass_blur(image: Image, parameters: tuple[tuple[Array, Array], Array], *, key: PRNGKeyArray) -> Image:
    """In each pass, each pixel becomes itself or one of its neighbours above and to the left; blurred before and after.

    The published loop runs from the last pixel to the first and copies from pixels that it has not changed yet, so
    that a pass is one gather. It leaves the first two rows and columns unchanged.
    """
    matrices, passes = parameters
    height, width, _ = image.shape
    row, column = jnp.arange(height)[:, None], jnp.arange(width)
    moves = (row >= 2) & (column >= 2)

    def displaced(i: Int[Array, ""], pixels: Image) -> Image:
        down, right = moves * jax.random.bernoulli(jax.random.fold_in(key, i), jnp.float32(0.5), (2, height, width))
        return pixels[row - down, column - right]

    pixels = truncated(separable(image, *matrices))
    return separable(jax.lax.fori_loop(0, passes, displaced, pixels), *matrices)


def motion_parameters(height: int, width: int, severity: int) -> Float[np.ndarray, " taps"]:
    """The weights along the ray; radius and σ scale with the image."""
    scale = length_scale(height, width)
    taps = 2 * math.ceil(scale * max(radius for radius, _ in MOTION)) + 1
    radius, sigma = MOTION[severity - 1]
    return motion_kernel(scale * radius, scale * sigma, taps)


def motion_blur(image: Image, kernel: Float[Array, " taps"], *, key: PRNGKeyArray) -> Image:
    """A blur to one side, at an angle uniform in ±45 degrees; values are rounded, as in the published arrays."""
    degrees = jax.random.uniform(key, (), jnp.float32, minval=-45, maxval=45)
    return jnp.round(motion_blurred(image, kernel, degrees))


def zoom_factors(severity: int) -> Float[np.ndarray, " factor"]:
    """1, 1.01, ... up to that of the severity, which rounding includes or not, as in the published arrays."""
    return np.arange(1, ZOOM[severity - 1], ZOOM_STEP)


def zoom_matrices(height: int, width: int, severity: int) -> tuple[Array | np.ndarray, ...]:
    """The matrices of all factors, and how many of them the severity has."""
    factors = zoom_factors(len(ZOOM))
    rows, columns = (np.stack([zoom_matrix(size, factor) for factor in factors]) for size in (height, width))
    return rows, columns, np.asarray(len(zoom_factors(severity)), np.int32)


def zoom_blur(image: Image, matrices: tuple[Array, Array, Array], *, key: PRNGKeyArray) -> Image:
    """The mean of the image and its magnifications."""
    rows, columns, count = matrices
    total = jax.lax.fori_loop(0, count, lambda i, total: total + separable(image, rows[i], columns[i]), image)
    return total / (count + 1)
