"""The kernel of 2 x 2 patches, for small images and narrow fields, all of whose matrices stay on the chip.

See ``packing`` for how an image lies and for a layer as products, ``forward`` and ``backward`` for the two kernels.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax.custom_batching import sequential_vmap

from sdebnn.convolutions.fused.patches import packing
from sdebnn.convolutions.fused.patches.packing import (
    CHANNELS,
    LINES,
    POSITIONS,
    STATE,
    WIDTH,
    Images,
    Layer,
    Matrices,
    Matrix,
    States,
)


def width(height: int, across: int, channels: int) -> int | None:
    """The channels between the layers, for images of this shape; None, if they are not the kernel's."""
    fit = height == across and height in range(4, 2 * LINES + 1, 2) and channels == CHANNELS
    return WIDTH if fit else None


def packed(layers: Sequence[Layer], side: int) -> tuple[Matrix, ...]:
    """The layers of all steps, arranged; what the gradients are those of. Linear in the layers."""
    return packing.packed(layers)


def matrices_of(layers: Sequence[Layer], side: int) -> Matrices:
    """The layers of all steps as the kernel takes them."""
    return tuple(matrix.astype(jnp.bfloat16) for matrix in packing.packed(layers))


def no_states(matrices: Matrices, h0: Images) -> States:
    """What stands for the states where nobody kept them."""
    return jnp.zeros((matrices[0].shape[0], h0.shape[0], POSITIONS, STATE), jnp.bfloat16)


def forward_by_kernel(matrices: Matrices, h0: Images, *, keep: bool, interpret: bool = False) -> tuple[Images, Any]:
    """The state after all steps, and if they are to be kept the states before each, as rows."""
    from sdebnn.convolutions.fused.patches.forward import Plan, forward

    side = h0.shape[1]
    plan = Plan(side, 1 / matrices[0].shape[0], interpret)
    # Of several draws of the weights, one after the other.
    run = sequential_vmap(partial(forward, plan, keep))
    h1, states = run(packing.marked(packing.rows_of(h0), side), matrices)
    return packing.images_of(h1, side), states


def backward_by_kernel(
    matrices: Matrices, states: States, g: Images, *, interpret: bool = False
) -> tuple[Images, tuple[Matrix, ...]]:
    """The cotangents of h_0 and of ``packed``, from that of h_1."""
    from sdebnn.convolutions.fused.patches.backward import Plan, backward

    side = g.shape[1]
    plan = Plan(side, 1 / matrices[0].shape[0], interpret)
    g0, gradients = sequential_vmap(partial(backward, plan))(packing.rows_of(g), states, matrices)
    return packing.images_of(g0, side), gradients
