"""Textures of frost: bright, feathery crystals on a darker pane, drawn by a fixed random generator.

They stand in for the five published photographs, which are not part of this package, and have about their brightness.
A crystal is a stem with side branches at 60 degrees, which are shorter towards its tip, and short barbs along them.
"""

import functools

import numpy as np
from jaxtyping import Float

from sdebnn.corruptions.geometry import gaussian_matrix
from sdebnn.corruptions.pixels import length_scale

MARGIN = 96  # positions at which a piece may start, along each axis
SEED = 0  # of the textures, which are the same for all seeds of the corruption
CRYSTALS = (0.0045, 0.006, 0.0035, 0.005, 0.007)  # per pixel, in each texture
SHORTEST, LONGEST = 12, 40  # stems, in pixels
STEP = 0.4  # pixels between points
BRANCH_EVERY = 5  # points of the stem
BRANCH_LENGTH = 0.45  # of what remains of the stem
BARB_LENGTH = 0.7  # pixels, on average
BRANCH_INK = 0.6  # of the stem's
DARKEST, BRIGHTEST = 60.0, 264.0
TINT = (0.95, 1.0, 1.04)


@functools.lru_cache(maxsize=4)
def textures(height: int, width: int) -> Float[np.ndarray, "5 tall wide 3"]:
    """Five textures, large enough for pieces of the given size; crystals grow with the image."""
    scale = length_scale(height, width)
    return np.stack([_texture(number, height + MARGIN, width + MARGIN, scale) for number in range(len(CRYSTALS))])


def _texture(number: int, height: int, width: int, scale: float) -> Float[np.ndarray, "height width 3"]:
    """Crystals on a pane of uneven brightness. All levels of brightness have equal shares."""
    random = np.random.default_rng([SEED, number])
    ink = np.zeros((height, width))
    for _ in range(max(1, round(CRYSTALS[number] * height * width / scale**2))):
        points, weights = _crystal(random)
        start = random.uniform(size=(2, 1)) * [[height], [width]]
        rows, columns = np.floor(start + scale * points).astype(int)
        np.add.at(ink, (rows % height, columns % width), weights)
    ink = _smoothed(ink, 0.5 * scale)
    pane = _smoothed(random.normal(size=ink.shape), 6 * scale)
    level = 1 - np.exp(-(scale**2) * ink) + 0.1 * pane / pane.std()
    share = np.argsort(np.argsort(level, axis=None)).reshape(level.shape) / (level.size - 1)
    bright = DARKEST + (BRIGHTEST - DARKEST) * share
    return np.clip(bright[..., None] * TINT, 0, 255).astype(np.float32)


def _crystal(random: np.random.Generator) -> tuple[Float[np.ndarray, "2 point"], Float[np.ndarray, " point"]]:
    """Rows and columns of points on a crystal that starts at the origin, and the ink of each."""
    length = random.uniform(SHORTEST, LONGEST)
    along = np.arange(0, length, STEP)
    heading = random.uniform(0, 2 * np.pi) + random.uniform(-0.02, 0.02) * along
    stem = np.cumsum(_direction(heading), axis=1) * STEP
    points: list[np.ndarray] = [stem]
    inks: list[np.ndarray] = [np.ones(len(along))]
    nodes = np.arange(0, len(along), BRANCH_EVERY)
    outward = np.arange(0, BRANCH_LENGTH * length, STEP)
    for side in (np.pi / 3, -np.pi / 3):
        reach = BRANCH_LENGTH * (length - along[nodes]) * random.uniform(0.5, 1, len(nodes))
        branches = stem[:, nodes, None] + _direction(heading[nodes] + side)[..., None] * outward
        barbs = random.exponential(BARB_LENGTH, branches.shape[1:]) * _direction(heading[nodes])[..., None]
        points.append((branches + barbs).reshape(2, -1))
        inks.append((BRANCH_INK * (outward < reach[:, None])).ravel())
    return np.concatenate(points, axis=1), np.concatenate(inks)


def _direction(angle: Float[np.ndarray, " point"]) -> Float[np.ndarray, "2 point"]:
    """Unit vectors at angles."""
    return np.stack([np.sin(angle), np.cos(angle)])


def _smoothed(layer: Float[np.ndarray, "height width"], sigma: int | float) -> Float[np.ndarray, "height width"]:
    """A Gaussian blur."""
    rows, columns = (gaussian_matrix(size, sigma, border="reflect") for size in layer.shape)
    return rows @ layer @ columns.T
