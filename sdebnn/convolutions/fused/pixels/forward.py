"""All Euler steps in one launch:   h += dt f_h(t, h).

The state stays in registers, and what lies between layers in shared memory: a_3 where a_1 was. The matrices of all
steps come piece by piece, while those before are computed with.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from sdebnn.convolutions.fused.blocks import launched, together
from sdebnn.convolutions.fused.pixels.assembly import Ref
from sdebnn.convolutions.fused.pixels.chip import (
    Chip,
    Plan,
    prepare,
    scratch,
    tiles_from_memory,
    tiles_to_memory,
)
from sdebnn.convolutions.fused.pixels.packing import Rows, Stream
from sdebnn.convolutions.fused.pixels.phases import phase
from sdebnn.convolutions.fused.pixels.products import put_layer, put_state, summed
from sdebnn.convolutions.fused.pixels.shape import GROUPS, Shape


def plan_of(shape: Shape, steps: int, interpret: bool = False) -> Plan:
    """The phases of a step: its four layers."""
    phases = tuple(phase(shape, layer, adjoint=False) for layer in range(4))
    return Plan(shape, steps, 1 / steps, False, phases, interpret)


def forward(plan: Plan, keep: bool, h0: Rows, weights: Stream) -> tuple[Rows, Any]:
    """The state after all steps, and if they are to be kept the states before each, rounded, chunk by chunk."""
    shape, images = plan.shape, h0.shape[0]
    struct = jax.ShapeDtypeStruct
    kept = struct((plan.steps, images, shape.chunks, shape.pixels, 8), jnp.bfloat16)
    out = [struct(h0.shape, jnp.float32), *[kept] * keep]
    body, buffers = partial(_kernel, plan, keep, images), scratch(shape, 1, 1)
    how = {"name": f"sdebnn_forward_{shape.side}", "interpret": plan.interpret, "ahead": keep}
    h1, *states = launched(body, GROUPS, images, out, buffers, **how)(h0, weights)
    return h1, states[0] if keep else None


def _kernel(plan: Plan, keep: bool, images: int, h0: Ref, weights: Ref, *refs: Ref) -> None:
    (h1, *states), refs = refs[: 1 + keep], refs[1 + keep :]
    chip = Chip.of(refs, weights)
    image = lax.axis_index("image")
    wide, small, state = chip.wide.at[0], chip.small, chip.narrow.at[0]
    h = tuple(tiles_from_memory(plan.shape, h0.at[image]))
    prepare(plan, chip)

    def step(s: Any, h: Any) -> Any:
        put_state(plan, state, h, *([states[0], s * images + image] if keep else []))
        together(chip.meet)
        put_layer(plan, 0, chip, s, state, wide)
        together(chip.meet)
        put_layer(plan, 1, chip, s, wide, small)
        together(chip.meet)
        put_layer(plan, 2, chip, s, small, wide)
        together(chip.meet)
        slopes = summed(plan, 3, chip, s, wide)
        return tuple(tile + plan.dt * slope for tile, slope in zip(h, slopes, strict=True))

    tiles_to_memory(plan.shape, h1.at[image], lax.fori_loop(0, plan.steps, step, h))
