"""The kernel of single pixels, for images whose sides are powers of two and wide fields.

One image is one block of threads. What lies between layers is a row of 64 channels for each pixel, and stays on the
chip; the kernels of all steps come from the cache, piece by piece, while those before them are computed with. See
``shape`` for how an image lies, ``phases`` for a layer as products, ``forward`` and ``backward`` for the two kernels.
"""

from collections.abc import Sequence
from functools import partial

import jax.numpy as jnp
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, BFloat16, Float

from sdebnn.convolutions.fused.pixels import packing
from sdebnn.convolutions.fused.pixels.packing import Images, Layer, Matrices, Stream
from sdebnn.convolutions.fused.pixels.shape import SHAPES, TILE, WIDTH, Shape

States = BFloat16[Array, "step example chunk pixel 8"]


def width(height: int, across: int, channels: int) -> int | None:
    """The channels between the layers, for images of this shape; None, if they are not the kernel's."""
    return WIDTH if height == across and Shape(height, channels) in SHAPES else None


def packed(layers: Sequence[Layer], side: int) -> Matrices:
    """The layers of all steps, arranged; what the gradients are those of. Linear in the layers."""
    return packing.packed(layers)


def matrices_of(layers: Sequence[Layer], side: int) -> Stream:
    """The layers of all steps as the kernel takes them."""
    return packing.stream(Shape(side, layers[0][0].shape[-2]), packing.packed(layers))


def _shape_of(images: Images) -> Shape:
    return Shape(images.shape[1], images.shape[-1])


def no_states(matrices: Stream, h0: Images) -> States:
    """What stands for the states where no kernel runs."""
    shape = _shape_of(h0)
    return jnp.zeros((matrices.shape[0], h0.shape[0], shape.chunks, shape.pixels, 8), jnp.bfloat16)


def forward_by_kernel(
    matrices: Stream, h0: Images, *, keep: bool, interpret: bool = False
) -> tuple[Images, States | None]:
    """The state after all steps, and if they are to be kept the states before each."""
    from sdebnn.convolutions.fused.pixels.forward import forward, plan_of

    shape = _shape_of(h0)
    run = sequential_vmap(partial(forward, plan_of(shape, matrices.shape[0], interpret), keep))
    h1, states = run(packing.rows_of(shape, h0), matrices)
    return packing.images_of(shape, h1), states


def backward_by_kernel(
    matrices: Stream, states: States, g: Images, *, interpret: bool = False
) -> tuple[Images, Matrices]:
    """The cotangents of h_0 and of ``packed``, from that of h_1."""
    from sdebnn.convolutions.fused.pixels.backward import backward

    shape = _shape_of(g)
    run = sequential_vmap(partial(backward, shape, interpret))
    g0, sums, of_map = run(packing.rows_of(shape, g), states, matrices)
    return packing.images_of(shape, g0), _gradients(shape, sums, of_map)


def _gradients(shape: Shape, sums: Float[Array, "step _ 64"], of_map: Float[Array, "step 16 _"]) -> Matrices:
    """The cotangents of ``packed``, from units of the gradients and from sums of d_4 by class."""
    from sdebnn.convolutions.fused.pixels.correlations import units
    from sdebnn.convolutions.fused.pixels.plain import unmixed

    steps, c, rows = sums.shape[0], shape.channels, 8 * shape.chunks
    tiles = unmixed(sums).reshape(steps, -1, TILE, WIDTH)
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
