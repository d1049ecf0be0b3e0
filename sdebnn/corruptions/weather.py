"""Snow, frost and fog."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn.corruptions.frost_textures import MARGIN, textures
from sdebnn.corruptions.geometry import enlarging_matrix, motion_blurred, motion_kernel, separable, zoom_matrix
from sdebnn.corruptions.pixels import Image, grey, length_scale

# Mean and standard deviation of the flakes, their magnification and threshold, radius and σ of the blur, and the
# weight of the image.
SNOW = (
    (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
    (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
    (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
    (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
    (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
)
FROST = ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))  # weights of the image and of the frost
FOG = ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))  # strength, decay


def snow_parameters(height: int, width: int, severity: int) -> tuple[np.ndarray, ...]:
    """Numbers of the severity, two magnifications of the flakes, and the weights of their blur.

    Flakes are drawn for an image whose shorter side has at most 32 pixels, and then magnified to this one.
    """
    loc, spread, zoom, threshold, radius, sigma, mix = SNOW[severity - 1]
    scale = length_scale(height, width)
    taps = 2 * math.ceil(scale * max(row[4] for row in SNOW)) + 1
    numbers = np.array([loc, spread, threshold, mix], np.float32)
    small = [round(size / scale) for size in (height, width)]
    zooms = (zoom_matrix(size, zoom) for size in small)
    magnify = (enlarging_matrix(size, part) for size, part in zip((height, width), small, strict=True))
    return numbers, *zooms, *magnify, motion_kernel(scale * radius, scale * sigma, taps)


def snow(image: Image, parameters: tuple[Array, Array, Array, Array, Array, Array], *, key: PRNGKeyArray) -> Image:
    """Bright flakes, blurred in the direction of their fall, and the same turned by 180 degrees, over a paler image."""
    (loc, spread, threshold, mix), zoom_rows, zoom_columns, rows, columns, kernel = parameters
    layer_key, angle_key = jax.random.split(key)
    size = (len(zoom_rows), len(zoom_columns), 1)
    flakes = separable(loc + spread * jax.random.normal(layer_key, size, jnp.float32), zoom_rows, zoom_columns)
    flakes = jnp.floor(255 * jnp.clip(jnp.where(flakes < threshold, 0, flakes), 0, 1))
    flakes = separable(flakes, rows, columns)
    degrees = jax.random.uniform(angle_key, (), jnp.float32, minval=-135, maxval=-45)
    flakes = jnp.round(motion_blurred(flakes, kernel, degrees))
    paler = jnp.maximum(image, 1.5 * grey(image) + 127.5)
    return mix * image + (1 - mix) * paler + flakes + flakes[::-1, ::-1]


def frost_parameters(height: int, width: int, severity: int) -> tuple[np.ndarray, np.ndarray]:
    """The weights of the image and the frost, and the textures."""
    return np.array(FROST[severity - 1], np.float32), textures(height, width)


def frost(image: Image, parameters: tuple[Array, Array], *, key: PRNGKeyArray) -> Image:
    """A weighted sum with a random piece of one of five textures."""
    (weight, frost_weight), layers = parameters
    which_key, start_key = jax.random.split(key)
    which = jax.random.randint(which_key, (), 0, len(layers), jnp.int32)
    row, column = jax.random.randint(start_key, (2,), 0, MARGIN, jnp.int32)
    piece = jax.lax.dynamic_slice(layers, (which, row, column, jnp.int32(0)), (1, *image.shape))[0]
    return weight * image + frost_weight * piece


def fog(image: Image, parameters: Float[Array, "2"], *, key: PRNGKeyArray) -> Image:
    """Adds a plasma and scales so that the brightest value of the image remains possible."""
    strength, decay = parameters
    height, width, _ = image.shape
    brightest = image.max()
    haze = plasma(max(height, width), decay, key=key)[:height, :width, None]
    return (image + 255 * strength * haze) * brightest / jnp.maximum(brightest + 255 * strength, 1)


def plasma(size: int, decay: Float[Array, ""], *, key: PRNGKeyArray) -> Float[Array, "side side"]:
    """A periodic random surface between 0 and 1 by the diamond-square algorithm, its side a power of two.

    Each halving of the grid fills its new points with means of their four neighbours and noise that is decay² times
    weaker than before: first the centres of squares, then the middles of edges.
    """
    points, amplitude = jnp.zeros((1, 1), jnp.float32), 1.0
    halvings = math.ceil(math.log2(size))
    noises = jax.random.uniform(key, (4**halvings - 1,), jnp.float32, minval=-1)  # one draw compiles faster than many
    for i in range(halvings):
        side = 2**i
        noise = amplitude * noises[side**2 - 1 : 4 * side**2 - 1].reshape(3, side, side)
        right, below = jnp.roll(points, -1, 1), jnp.roll(points, -1, 0)
        centres = (points + right + below + jnp.roll(right, -1, 0)) / 4 + noise[0]
        tops = (points + right + centres + jnp.roll(centres, 1, 0)) / 4 + noise[1]
        lefts = (points + below + centres + jnp.roll(centres, 1, 1)) / 4 + noise[2]
        # Interleave: (points, tops) in even rows and (lefts, centres) in odd ones.
        rows = [jnp.stack(pair, -1).reshape(side, 2 * side) for pair in ((points, tops), (lefts, centres))]
        points = jnp.stack(rows, 1).reshape(2 * side, 2 * side)
        amplitude /= decay**2
    points -= points.min()
    return points / points.max()
