"""What the fused kernels take: the state as rows of pixels, and the kernels of all steps as pieces of matrices.

A piece is fetched at once: 64 rows of 128 bytes, or 96 of the widest state. In shared memory wgmma wants column j of
row i, 16 bytes each, at j ^ (i mod 8), and so they lie here. The matrices of a layer, one for each tap, have a row

    for each channel of its source        (the first three layers)
    for each channel of its outcome       (the last)

and a column for each of the other 64. After the taps comes what time and bias add, which depends on the border alone:
on whether a pixel is in the first, an inner or the last line, and likewise column. That makes nine classes. (In the
outcome of the layer that doubles the side: the first line, an odd, another even.)
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, BFloat16, Float

from sdebnn.convolutions.fused.pixels.phases import pieces, places
from sdebnn.convolutions.fused.pixels.shape import CLASSES, ROW, TILE, WIDTH, Shape
from sdebnn.convolutions.operations import Move, squeeze, taps, unsqueeze

Layer = tuple[Float[Array, "step 3 3 _ _"], Float[Array, "step 3 3 _"], Float[Array, "step _"]]  # kernel, time, bias
Images = Float[Array, "example height width channel"]
Rows = Float[Array, "example pixel column"]
Stream = BFloat16[Array, "step piece number"]
Matrices = tuple[Float[Array, "step 9 ..."], ...]  # of each layer: its taps, (rows, 64) each, then its map


def rows_of(shape: Shape, images: Images) -> Rows:
    """The pixels of images, in the order in which tiles of the state have them, and channels of zeros."""
    count, c, n = images.shape[0], shape.channels, shape.small
    if shape.by_lines:
        ordered = images.reshape(count, 2, 4, 4, n, 2, c).transpose(0, 1, 5, 3, 2, 4, 6)
    else:
        ordered = jax.vmap(squeeze)(images).reshape(count, n, n, 4, c).transpose(0, 3, 1, 2, 4)
    return jnp.pad(ordered.reshape(count, shape.pixels, c), ((0, 0), (0, 0), (0, shape.columns - c)))


def images_of(shape: Shape, rows: Rows) -> Images:
    """The inverse of ``rows_of``."""
    count, c, n = rows.shape[0], shape.channels, shape.small
    if shape.by_lines:
        ordered = rows[..., :c].reshape(count, 2, 2, 4, 4, n, c).transpose(0, 1, 4, 3, 5, 2, 6)
        return ordered.reshape(count, shape.side, shape.side, c)
    patches = rows[..., :c].reshape(count, 4, n, n, c).transpose(0, 2, 3, 1, 4)
    return jax.vmap(unsqueeze)(patches.reshape(count, n, n, 4 * c))


def classes(shape: Shape) -> Float[np.ndarray, "pixel 16"]:
    """One-hot, of the pixels of an image, in the order of its rows."""
    at = np.arange(shape.side)
    kind = np.where(at == 0, 0, np.where(at == shape.side - 1, 2, 1))
    image = np.eye(CLASSES, dtype=np.float32)[3 * kind[:, None] + kind]
    n = shape.small
    return image.reshape(n, 2, n, 2, CLASSES).transpose(1, 3, 0, 2, 4).reshape(-1, CLASSES)


def _map(time: Float[Array, "step 3 3 out"], bias: Float[Array, "step out"], move: Move) -> Float[Array, "step 9 out"]:
    """What time and bias add to each class of pixels, at t = 0, 1/steps, 2/steps and so on."""
    steps = bias.shape[0]
    side = 6 if move == "down" else 3  # an image that has one pixel of every class, first
    met = jnp.asarray(taps(side, side, move)[:3, :3].reshape(9, 9), bias.dtype)
    # A sum, not a product: of those XLA tries dozens before it settles for one, even where there is little to multiply.
    of_time = jnp.sum(met[:, :, None] * time.reshape(steps, 1, 9, -1), 2)
    t = jnp.arange(steps, dtype=bias.dtype) / steps
    return bias[:, None] + t[:, None, None] * of_time


def packed(layers: Sequence[Layer]) -> Matrices:
    """The four layers' taps (step, 9, rows, 64), and their maps (step, 9, out) of every step. Linear in the layers."""
    out = []
    for layer, (move, (kernel, time, bias)) in enumerate(zip(("same", "down", "up", "same"), layers, strict=True)):
        turned = kernel[:, ::-1, ::-1] if move == "up" else kernel
        of_taps = turned.reshape(kernel.shape[0], 9, *kernel.shape[3:])
        out += [of_taps.swapaxes(2, 3) if layer == 3 else of_taps, _map(time, bias, move)]
    return tuple(out)


def stream(shape: Shape, matrices: Matrices) -> Stream:
    """All pieces of all steps, in shared memory's order."""
    parts = []
    for layer, (of_taps, of_map) in enumerate(zip(matrices[::2], matrices[1::2], strict=True)):
        steps = of_taps.shape[0]
        height, each = (TILE, 1) if layer in (1, 2) else (shape.height, shape.taps_of_slot)
        rows, size = shape.slot // ROW, pieces(shape, layer)
        more = (max(size * each - 9, 0), height - of_taps.shape[2])
        block = jnp.pad(of_taps, ((0, 0), (0, more[0]), (0, more[1]), (0, 0))).reshape(steps, -1, each * height, WIDTH)
        block = jnp.pad(block, ((0, 0), (0, size - block.shape[1]), (0, rows - each * height), (0, 0)))
        if layer == 3:
            of_map = jnp.pad(of_map.swapaxes(1, 2), ((0, 0), (0, 0), (0, WIDTH - 9)))
        place = places(shape, layer)[-1]
        parts.append(block.at[:, place.piece, place.row : place.row + of_map.shape[1]].set(of_map))
    whole = jnp.concatenate(parts, 1).astype(jnp.bfloat16)
    blocks = whole.reshape(*whole.shape[:2], -1, 8, 8, 8)
    shuffled = jnp.stack([blocks[..., i, np.arange(8) ^ i, :] for i in range(8)], -3)
    return shuffled.reshape(*whole.shape[:2], -1)
