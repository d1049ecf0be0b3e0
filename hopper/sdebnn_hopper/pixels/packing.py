"""The inputs of the fused kernels: the state as rows of pixels, and the convolution kernels as pieces of matrices.

A piece is fetched at once: 64 rows of 128 bytes, or 96 for the widest state. In shared memory, wgmma expects column j
of row i, 16 bytes each, at j ^ (i mod 8), and the pieces are stored in this order. The matrices of a layer, one for
each tap, have a row

    for each channel of its source        (the first three layers)
    for each channel of its output        (the last)

and a column for each of the other 64. After the taps comes the contribution of time and bias, which depends only on the
border: on whether a pixel is in the first, an inner or the last line, and likewise for its column. That makes nine
classes. (In the output of the layer that doubles the side: the first line, an odd line, another even line.)
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, BFloat16, Float

from sdebnn.convolutions.kernels import Images, LayerArrays
from sdebnn.convolutions.operations import Move, squeeze, taps, unsqueeze
from sdebnn_hopper.pixels.phases import pieces, places
from sdebnn_hopper.pixels.shape import CLASSES, ROW_BYTES, TILE, WIDTH, BlockShape

PixelRows = Float[Array, "example pixel column"]
Stream = BFloat16[Array, "step piece number"]
Matrices = tuple[Float[Array, "step 9 ..."], ...]  # for each layer: its taps, (rows, 64) each, then its map


def rows_of(shape: BlockShape, images: Images) -> PixelRows:
    """The pixels of images in the order of the state's tiles, padded with channels of zeros."""
    count, c, n = images.shape[0], shape.channels, shape.small
    if shape.by_lines:
        ordered = images.reshape(count, 2, 4, 4, n, 2, c).transpose(0, 1, 5, 3, 2, 4, 6)
    else:
        ordered = jax.vmap(squeeze)(images).reshape(count, n, n, 4, c).transpose(0, 3, 1, 2, 4)
    return jnp.pad(ordered.reshape(count, shape.pixels, c), ((0, 0), (0, 0), (0, shape.columns - c)))


def images_of(shape: BlockShape, rows: PixelRows) -> Images:
    """The inverse of ``rows_of``."""
    count, c, n = rows.shape[0], shape.channels, shape.small
    if shape.by_lines:
        ordered = rows[..., :c].reshape(count, 2, 2, 4, 4, n, c).transpose(0, 1, 4, 3, 5, 2, 6)
        return ordered.reshape(count, shape.side, shape.side, c)
    patches = rows[..., :c].reshape(count, 4, n, n, c).transpose(0, 2, 3, 1, 4)
    return jax.vmap(unsqueeze)(patches.reshape(count, n, n, 4 * c))


def classes(shape: BlockShape) -> Float[np.ndarray, "pixel 16"]:
    """The one-hot classes of the pixels of an image, in the order of its rows."""
    at = np.arange(shape.side)
    kind = np.where(at == 0, 0, np.where(at == shape.side - 1, 2, 1))
    image = np.eye(CLASSES, dtype=np.float32)[3 * kind[:, None] + kind]
    n = shape.small
    return image.reshape(n, 2, n, 2, CLASSES).transpose(1, 3, 0, 2, 4).reshape(-1, CLASSES)


def _map(time: Float[Array, "step 3 3 out"], bias: Float[Array, "step out"], move: Move) -> Float[Array, "step 9 out"]:
    """The contribution of time and bias to each class of pixels, at t = 0, 1/steps, 2/steps and so on."""
    steps = bias.shape[0]
    side = 6 if move == "down" else 3  # the first nine output pixels of such an image have all classes
    met = jnp.asarray(taps(side, side, move)[:3, :3].reshape(9, 9), bias.dtype)
    # A sum and not a matrix product, because XLA tries dozens of algorithms for each product, even for a small one.
    of_time = jnp.sum(met[:, :, None] * time.reshape(steps, 1, 9, -1), 2)
    t = jnp.arange(steps, dtype=bias.dtype) / steps
    return bias[:, None] + t[:, None, None] * of_time


def packed(layers: Sequence[LayerArrays]) -> Matrices:
    """The taps (step, 9, rows, 64) and the maps (step, 9, out) of the four layers. Linear in the layers."""
    out = []
    for layer, (move, (kernel, time, bias)) in enumerate(zip(("same", "down", "up", "same"), layers, strict=True)):
        flipped = kernel[:, ::-1, ::-1] if move == "up" else kernel
        of_taps = flipped.reshape(kernel.shape[0], 9, *kernel.shape[3:])
        out += [of_taps.swapaxes(2, 3) if layer == 3 else of_taps, _map(time, bias, move)]
    return tuple(out)


def stream(shape: BlockShape, matrices: Matrices) -> Stream:
    """All pieces of all steps, in the order of shared memory."""
    parts = []
    for layer, (of_taps, of_map) in enumerate(zip(matrices[::2], matrices[1::2], strict=True)):
        steps = of_taps.shape[0]
        height, each = (TILE, 1) if layer in (1, 2) else (shape.height, shape.taps_of_slot)
        rows, size = shape.slot // ROW_BYTES, pieces(shape, layer)
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
