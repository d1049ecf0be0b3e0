"""The kernel of single pixels, for images whose sides are powers of two and wide fields.

Each image has one block of threads. Between layers a pixel is a row of 64 channels, which stays on the chip. The
matrices of all steps are streamed from the cache piece by piece, while earlier pieces are being used. See ``shape`` for
the layout of an image, ``phases`` for a layer as products, ``forward`` and ``backward`` for the two kernels.
"""

from collections.abc import Sequence
from functools import partial

import jax.numpy as jnp
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, BFloat16, Float

from sdebnn_hopper.pixels import packing
from sdebnn_hopper.pixels.packing import Images, LayerArrays, Matrices, Stream
from sdebnn_hopper.pixels.shape import SHAPES, TILE, WIDTH, BlockShape

States = BFloat16[Array, "step example chunk pixel 8"]


def width(height: int, across: int, channels: int) -> int | None:
    """The number of channels between the layers for images of this shape; None if the kernel does not support it."""
    return WIDTH if height == across and BlockShape(height, channels) in SHAPES else None


def packed(layers: Sequence[LayerArrays], side: int) -> Matrices:
    """The layers of all steps as matrices, for which the kernel computes gradients. Linear in the layers."""
    return packing.packed(layers)


def matrices_of(layers: Sequence[LayerArrays], side: int) -> Stream:
    """The layers of all steps in the form that the kernel takes."""
    return packing.stream(BlockShape(side, layers[0][0].shape[-2]), packing.packed(layers))


def _shape_of(images: Images) -> BlockShape:
    return BlockShape(images.shape[1], images.shape[-1])


def empty_states(matrices: Stream, h0: Images) -> States:
    """A placeholder for the states where no kernel runs."""
    shape = _shape_of(h0)
    return jnp.zeros((matrices.shape[0], h0.shape[0], shape.chunks, shape.pixels, 8), jnp.bfloat16)


def forward_by_kernel(
    matrices: Stream, h0: Images, *, keep: bool, interpret: bool = False
) -> tuple[Images, States | None]:
    """The state after all steps and, with ``keep``, the states before each step."""
    from sdebnn_hopper.pixels.forward import forward, plan_of

    shape = _shape_of(h0)
    run = sequential_vmap(partial(forward, plan_of(shape, matrices.shape[0], interpret), keep))
    h1, states = run(packing.rows_of(shape, h0), matrices)
    return packing.images_of(shape, h1), states


def backward_by_kernel(
    matrices: Stream, states: States, g: Images, *, interpret: bool = False
) -> tuple[Images, Matrices]:
    """The cotangents of h_0 and of ``packed``, given that of h_1."""
    from sdebnn_hopper.pixels.backward import backward

    shape = _shape_of(g)
    run = sequential_vmap(partial(backward, shape, interpret))
    g0, sums, of_map = run(packing.rows_of(shape, g), states, matrices)
    return packing.images_of(shape, g0), _gradients(shape, sums, of_map)


def _gradients(shape: BlockShape, sums: Float[Array, "step _ 64"], of_map: Float[Array, "step 16 _"]) -> Matrices:
    """The cotangents of ``packed``, given the units of the gradients and the sums of d_4 by class."""
    from sdebnn_hopper.pixels.correlations import units
    from sdebnn_hopper.pixels.plain import in_column_order

    steps, c, rows = sums.shape[0], shape.channels, 8 * shape.chunks
    tiles = in_column_order(sums).reshape(steps, -1, TILE, WIDTH)
    found: list[Array] = []
    start = 0
    for layer, count in enumerate(units(shape)):
        mine = tiles[:, start : start + count]
        start += count
        if layer in (1, 2):
            of_taps = mine[:, :9].swapaxes(2, 3) if layer == 2 else mine[:, :9]
            found += [of_taps, mine[:, 9, :9]]
        else:
            whole = mine.reshape(steps, -1, shape.halves, TILE, WIDTH).sum(2).reshape(steps, -1, WIDTH)
            of_taps = whole[:, : 9 * rows].reshape(steps, 9, rows, WIDTH)[:, :, :c]
            found += [of_taps, whole[:, 9 * rows : 9 * rows + 9] if layer == 0 else of_map[:, :9, :c]]
    return tuple(found)
