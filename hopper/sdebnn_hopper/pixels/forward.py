"""All Euler steps in one launch:   h += dt f_h(t, h).

The state stays in registers, and the activations between layers in shared memory, where a_3 replaces a_1. The matrices
of all steps arrive piece by piece, while earlier pieces are being used.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from sdebnn_hopper.blocks import kernel_call, sync_groups
from sdebnn_hopper.pixels.assembly import Ref
from sdebnn_hopper.pixels.chip import (
    Chip,
    PixelPlan,
    prepare,
    scratch,
    tiles_from_memory,
    tiles_to_memory,
)
from sdebnn_hopper.pixels.packing import PixelRows, Stream
from sdebnn_hopper.pixels.phases import phase
from sdebnn_hopper.pixels.products import put_layer, put_state, summed
from sdebnn_hopper.pixels.shape import GROUPS, BlockShape


def plan_of(shape: BlockShape, steps: int, interpret: bool = False) -> PixelPlan:
    """The phases of a step: its four layers."""
    phases = tuple(phase(shape, layer, adjoint=False) for layer in range(4))
    return PixelPlan(shape, steps, 1 / steps, False, phases, interpret)


def forward(plan: PixelPlan, keep: bool, h0: PixelRows, weights: Stream) -> tuple[PixelRows, Any]:
    """The state after all steps and, with ``keep``, the rounded states before each step, in chunks."""
    shape, images = plan.shape, h0.shape[0]
    struct = jax.ShapeDtypeStruct
    kept = struct((plan.steps, images, shape.chunks, shape.pixels, 8), jnp.bfloat16)
    out = [struct(h0.shape, jnp.float32), *[kept] * keep]
    body, buffers = partial(_kernel, plan, keep, images), scratch(shape, 1, 1)
    how: dict[str, Any] = {"name": f"sdebnn_forward_{shape.side}", "interpret": plan.interpret, "ahead": keep}
    h1, *states = kernel_call(body, GROUPS, images, out, buffers, **how)(h0, weights)
    return h1, states[0] if keep else None


def _kernel(plan: PixelPlan, keep: bool, images: int, h0: Ref, weights: Ref, *refs: Ref) -> None:
    (h1, *states), refs = refs[: 1 + keep], refs[1 + keep :]
    chip = Chip.of(refs, weights)
    image = lax.axis_index("image")
    wide, small, state = chip.wide.at[0], chip.small, chip.narrow.at[0]
    h = tuple(tiles_from_memory(plan.shape, h0.at[image]))
    prepare(plan, chip)

    def step(s: Any, h: Any) -> Any:
        put_state(plan, state, h, *([states[0], s * images + image] if keep else []))
        sync_groups(chip.meet)
        put_layer(plan, 0, chip, s, state, wide)
        sync_groups(chip.meet)
        put_layer(plan, 1, chip, s, wide, small)
        sync_groups(chip.meet)
        put_layer(plan, 2, chip, s, small, wide)
        sync_groups(chip.meet)
        slopes = summed(plan, 3, chip, s, wide)
        return tuple(tile + plan.dt * slope for tile, slope in zip(h, slopes, strict=True))

    tiles_to_memory(plan.shape, h1.at[image], lax.fori_loop(0, plan.steps, step, h))
