"""The kernel of 2 x 2 patches, for small images and narrow fields, whose matrices all fit on the chip.

See ``packing`` for the layout of images and for layers as products, ``forward`` and ``backward`` for the two kernels.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax.custom_batching import sequential_vmap

from sdebnn_hopper.patches import packing
from sdebnn_hopper.patches.packing import (
    CHANNELS,
    LINES,
    POSITIONS,
    STATE,
    WIDTH,
    Images,
    LayerArrays,
    Matrices,
    Matrix,
    States,
)


def width(height: int, across: int, channels: int) -> int | None:
    """The number of channels between the layers for images of this shape; None if the kernel does not support it."""
    fit = height == across and height in range(4, 2 * LINES + 1, 2) and channels == CHANNELS
    return WIDTH if fit else None


def packed(layers: Sequence[LayerArrays], side: int) -> tuple[Matrix, ...]:
    """The layers of all steps as matrices, for which the kernel computes gradients. Linear in the layers."""
    return packing.packed(layers)


def matrices_of(layers: Sequence[LayerArrays], side: int) -> Matrices:
    """The layers of all steps in the form that the kernel takes."""
    return tuple(matrix.astype(jnp.bfloat16) for matrix in packing.packed(layers))


def empty_states(matrices: Matrices, h0: Images) -> States:
    """A placeholder for the states where no kernel runs."""
    return jnp.zeros((matrices[0].shape[0], h0.shape[0], POSITIONS, STATE), jnp.bfloat16)


def forward_by_kernel(matrices: Matrices, h0: Images, *, keep: bool, interpret: bool = False) -> tuple[Images, Any]:
    """The state after all steps and, with ``keep``, the states before each step, as rows."""
    from sdebnn_hopper.patches.forward import PatchPlan, forward

    side = h0.shape[1]
    plan = PatchPlan(side, 1 / matrices[0].shape[0], interpret)
    # Several draws of the weights run one after the other.
    run = sequential_vmap(partial(forward, plan, keep))
    h1, states = run(packing.marked(packing.rows_of(h0), side), matrices)
    return packing.images_of(h1, side), states


def backward_by_kernel(
    matrices: Matrices, states: States, g: Images, *, interpret: bool = False
) -> tuple[Images, tuple[Matrix, ...]]:
    """The cotangents of h_0 and of ``packed``, given that of h_1."""
    from sdebnn_hopper.patches.backward import PatchPlan, backward

    side = g.shape[1]
    plan = PatchPlan(side, 1 / matrices[0].shape[0], interpret)
    g0, gradients = sequential_vmap(partial(backward, plan))(packing.rows_of(g), states, matrices)
    return packing.images_of(g0, side), gradients
