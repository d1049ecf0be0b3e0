"""Spatter: drops of water, whose edges catch the light, or of mud.

Both start from a blurred Gaussian noise that is cut off below a threshold. The light on water follows the distance from
the drops' edges: Canny edges, a chamfer distance, an equalised histogram, and a diagonal gradient.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from sdebnn.corruptions.blur import gaussian_matrices
from sdebnn.corruptions.geometry import gaussian_matrix, separable
from sdebnn.corruptions.pixels import AnyArray, Image, length_scale

# Mean, standard deviation, σ of the blur, threshold, and the strength of water or the σ of the edge of mud.
WATER = ((0.62, 0.1, 0.7, 0.7, 0.5), (0.65, 0.1, 0.8, 0.7, 0.5), (0.65, 0.3, 1, 0.69, 0.5))
MUD = ((0.65, 0.1, 0.7, 0.69, 0.6), (0.65, 0.1, 0.5, 0.68, 0.6))
WATER_COLOUR, MUD_COLOUR = (175, 238, 238), (63, 42, 20)
MUD_LEAST = 0.8  # thinner mud is not drawn

LOW, HIGH = 50, 150  # thresholds of the gradient at weak and strong edges
TAN_22 = 0.41421356  # of 22.5 degrees, which bounds the four directions of an edge
# Distances are whole multiples of 2⁻¹⁶, because the truncation of their means distinguishes 1 from 0.99999.
PIXEL = 2**16
FARTHEST = 20
# Steps of the chamfer distance: to the next pixel, along a diagonal, and as a knight moves.
NEXT, DIAGONAL, KNIGHT = (round(length * PIXEL) for length in (1, 1.4, 2.1969))
STEPS = {
    (0, 1): NEXT, (1, 0): NEXT, (1, 1): DIAGONAL, (1, -1): DIAGONAL,
    (1, 2): KNIGHT, (2, 1): KNIGHT, (1, -2): KNIGHT, (2, -1): KNIGHT,
}  # fmt: skip
ONES = ((1, 1, 1),) * 3
SHADING = ((-2, -1, 0), (-1, 1, 1), (0, 1, 2))
Layer = Float[Array, "height width"]
Whole = Int[Array, "height width"]


class Water(NamedTuple):
    """Mean, standard deviation and threshold of the noise and the strength of the light, and the blur of the noise."""

    numbers: Float[AnyArray, "4"]
    rows: Float[AnyArray, "height height"]
    columns: Float[AnyArray, "width width"]


class Mud(NamedTuple):
    """Mean, standard deviation and threshold of the noise, its blur, and the blur of the edges of drops."""

    numbers: Float[AnyArray, "3"]
    rows: Float[AnyArray, "height height"]
    columns: Float[AnyArray, "width width"]
    edge_rows: Float[AnyArray, "height height"]
    edge_columns: Float[AnyArray, "width width"]


def spatter_parameters(height: int, width: int, severity: int) -> Water | Mud:
    """Numbers of the severity and matrices of blurs, which scale with the image.

    A wider blur weakens the noise more, so that it starts stronger and has the published spread after the blur.
    """
    water = severity <= len(WATER)
    loc, spread, sigma, threshold, last = WATER[severity - 1] if water else MUD[severity - 1 - len(WATER)]
    spread *= _remaining(sigma) / _remaining(sigma * length_scale(height, width))
    blur = gaussian_matrices(height, width, sigma)
    if water:
        return Water(np.array([loc, spread, threshold, last], np.float32), *blur)
    return Mud(np.array([loc, spread, threshold], np.float32), *blur, *gaussian_matrices(height, width, last))


def _remaining(sigma: int | float) -> float:
    """The standard deviation of white noise after a Gaussian blur."""
    weights = gaussian_matrix(2 * math.ceil(4 * sigma) + 3, sigma)[math.ceil(4 * sigma) + 1]
    return float((weights**2).sum())


def spatter(image: Image, parameters: Water | Mud, *, key: PRNGKeyArray) -> Image:
    """Water at severities 1 to 3, and mud at 4 and 5."""
    if isinstance(parameters, Water):
        return water(image, parameters, key=key)
    return mud(image, parameters, key=key)


def water(image: Image, parameters: Water, *, key: PRNGKeyArray) -> Image:
    """Drops of pale turquoise are added; the brightest pixel has the given strength.

    The light follows distances in pixels, which do not scale: large drops in large images have brighter middles.
    """
    (loc, spread, threshold, strength), rows, columns = parameters
    drops = jnp.floor(255 * _drops(image, loc, spread, threshold, rows, columns, key=key) + 2**-10)
    light = drops * shading(distance(canny(drops)))
    light = strength * light / jnp.maximum(light.max(), 1)
    return image + light[..., None] * jnp.array(WATER_COLOUR, jnp.float32)


def mud(image: Image, parameters: Mud, *, key: PRNGKeyArray) -> Image:
    """Drops of brown cover the image."""
    (loc, spread, threshold), rows, columns, edge_rows, edge_columns = parameters
    drops = _drops(image, loc, spread, threshold, rows, columns, key=key) > threshold
    cover = separable(drops[..., None].astype(jnp.float32), edge_rows, edge_columns)
    cover = jnp.where(cover < MUD_LEAST, 0, cover)
    return (1 - cover) * image + cover * jnp.array(MUD_COLOUR, jnp.float32)


def _drops(
    image: Image,
    loc: AnyArray,
    spread: AnyArray,
    threshold: AnyArray,
    rows: AnyArray,
    columns: AnyArray,
    *,
    key: PRNGKeyArray,
) -> Layer:
    """Blurred noise, zero below the threshold."""
    noise = jax.random.normal(key, (*image.shape[:2], 1), jnp.float32) * spread + loc
    layer = separable(noise, rows, columns)[..., 0]
    return jnp.where(layer < threshold, 0, layer)


def canny(layer: Layer) -> Bool[Array, "height width"]:
    """Canny's edges: thin maxima of the gradient that are strong, or connected with strong ones by weak ones."""
    padded = jnp.pad(layer, 1, mode="edge")
    smooth_rows = padded[:-2] + 2 * padded[1:-1] + padded[2:]
    smooth_columns = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
    dx, dy = smooth_rows[:, 2:] - smooth_rows[:, :-2], smooth_columns[2:] - smooth_columns[:-2]
    size = abs(dx) + abs(dy)

    def at(down: int, right: int) -> Layer:
        return shifted(size, down, right, 0.0)

    flat, steep = abs(dy) < TAN_22 * abs(dx), abs(dy) > (2 + TAN_22) * abs(dx)
    across = (size > at(0, -1)) & (size >= at(0, 1))
    along = (size > at(-1, 0)) & (size >= at(1, 0))
    falling = (size > at(-1, -1)) & (size > at(1, 1))
    rising = (size > at(-1, 1)) & (size > at(1, -1))
    diagonal = jnp.where(dx * dy < 0, rising, falling)
    weak = (size > LOW) & jnp.where(flat, across, jnp.where(steep, along, diagonal))

    def grown(edges: Bool[Array, "height width"]) -> Bool[Array, "height width"]:
        rows = edges | shifted(edges, 1, 0, False) | shifted(edges, -1, 0, False)
        return weak & (rows | shifted(rows, 0, 1, False) | shifted(rows, 0, -1, False))

    return _fixed_point(grown, weak & (size > HIGH))


def distance(edges: Bool[Array, "height width"]) -> Whole:
    """The chamfer distance from the nearest edge in units of 2⁻¹⁶ pixels, at most ``FARTHEST`` pixels."""
    farthest = FARTHEST * PIXEL

    def nearer(distances: Whole) -> Whole:
        ways = [
            shifted(distances, sign * down, sign * right, farthest) + step
            for (down, right), step in STEPS.items()
            for sign in (1, -1)
        ]
        return functools.reduce(jnp.minimum, ways, distances)

    return _fixed_point(nearer, jnp.where(edges, 0, farthest).astype(jnp.int32))


def shading(distances: Whole) -> Layer:
    """Light from one corner on the surface of the equalised distances."""
    level = _weighted(distances, ONES) // (9 * PIXEL)
    lit = jnp.clip(_weighted(equalised(level, FARTHEST + 1), SHADING), 0, 255)
    return ((_weighted(lit, ONES) + 4) // 9).astype(jnp.float32)


def equalised(level: Whole, levels: int) -> Whole:
    """Each level becomes its rank from 0 to 255 among the pixels above the lowest level; one level alone stays."""
    at_most = (level.ravel() <= jnp.arange(levels)[:, None]).sum(1)
    lowest = at_most[level.min()]
    others = level.size - lowest
    rank = jnp.round((at_most - lowest) * (255 / jnp.maximum(others, 1)))
    return jnp.where(others > 0, rank.astype(jnp.int32)[level], level)


def shifted(layer: Array, down: int, right: int, outside: int | float | bool) -> Array:
    """The pixels ``down`` and ``right`` of each, or ``outside`` beyond the border."""
    height, width = layer.shape
    reach = max(abs(down), abs(right))
    padded = jnp.pad(layer, reach, constant_values=outside)
    return padded[reach + down : reach + down + height, reach + right : reach + right + width]


def _weighted(layer: Whole, kernel: tuple[tuple[int, ...], ...]) -> Whole:
    """A weighted sum of the 3 x 3 pixels around each; the layer is mirrored at its last pixels."""
    height, width = layer.shape
    padded = jnp.pad(layer, 1, mode="reflect")
    parts = [kernel[i][j] * padded[i : i + height, j : j + width] for i in range(3) for j in range(3)]
    return functools.reduce(jnp.add, parts)


def _fixed_point(step: Callable[[Array], Array], start: Array) -> Array:
    """Repeat until nothing changes."""

    def again(state: tuple[Array, Array]) -> tuple[Array, Array]:
        new = step(state[0])
        return new, jnp.any(new != state[0])

    return jax.lax.while_loop(lambda state: state[1], again, (start, jnp.array(True)))[0]
