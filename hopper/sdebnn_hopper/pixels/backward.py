"""The gradient of all Euler steps, from the last to the first: with g = dL/dh after a step,

    d_4 = dt g      d_l = (1 - a_l^2) (layer l + 1)' d_{l+1}      dL/dW_l = sum over positions of a_{l-1}' d_l
    dL/dh before the step = g + (layer 1)' d_1

Only the states are stored by the forward pass; the activations a_1, a_2 and a_3 of a step are recomputed, and a_1 is
computed twice if it does not fit on the chip together with a_3.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from sdebnn_hopper.blocks import kernel_call, sync_groups
from sdebnn_hopper.pixels import plain
from sdebnn_hopper.pixels.assembly import Int, Ref, Value, address, assembly, inline, pointer
from sdebnn_hopper.pixels.chip import (
    Chip,
    Lanes,
    PixelPlan,
    prepare,
    scratch,
    tiles_from_memory,
    tiles_to_memory,
    wait_for,
)
from sdebnn_hopper.pixels.correlations import put_inner, put_outer, units
from sdebnn_hopper.pixels.packing import PixelRows, Stream, classes
from sdebnn_hopper.pixels.phases import phase
from sdebnn_hopper.pixels.products import put_layer, put_state, put_sums, summed
from sdebnn_hopper.pixels.shape import GROUPS, TILE, WIDTH, BlockShape

MAX_STEPS_A_LAUNCH = 5


def plan_of(shape: BlockShape, steps: int, dt: float, interpret: bool = False) -> PixelPlan:
    """The phases of a step: a_1, a_2 and a_3, then d_3, d_2, (a_1 again,) d_1, and the change of g."""
    early = [phase(shape, layer, adjoint=False) for layer in range(3)]
    late = [phase(shape, layer, adjoint=True) for layer in (3, 2, 1, 0)]
    again = [] if shape.both_fit else early[:1]
    return PixelPlan(shape, steps, dt, True, (*early, *late[:2], *again, *late[2:]), interpret)


def backward(
    shape: BlockShape, interpret: bool, g: PixelRows, states: Any, weights: Stream
) -> tuple[PixelRows, Any, Any]:
    """The cotangents of the state before all steps and of the matrices, as sums of units and of d_4 by class."""
    steps = states.shape[0]
    size = math.ceil(steps / math.ceil(steps / MAX_STEPS_A_LAUNCH))
    found = []
    for start in reversed(range(0, steps, size)):
        now = slice(start, start + size)
        plan = plan_of(shape, states[now].shape[0], 1 / steps, interpret)
        g, *gradients = _summed(plan, g, states[now], weights[now])
        g, gradients = lax.optimization_barrier((g, gradients))  # free these units before the next launch
        found.append(gradients)
    return g, *[jnp.concatenate(each) for each in zip(*reversed(found), strict=True)]


@partial(jax.jit, static_argnums=0)
def _summed(plan: PixelPlan, g: PixelRows, states: Any, weights: Stream) -> tuple[PixelRows, Any, Any]:
    g, out, d4 = launch(plan, g, states, weights)
    each = jnp.asarray(classes(plan.shape).T[:, None, :, None])
    of_map = jnp.sum(d4.sum(1, dtype=jnp.float32)[:, None] * each, 3)  # not a product: see ``packing._map``
    return g, out.sum(1, dtype=jnp.float32), of_map.reshape(*of_map.shape[:2], -1)


def launch(plan: PixelPlan, g: PixelRows, states: Any, weights: Stream) -> tuple[PixelRows, Any, Any]:
    """Run the kernel for a few steps. Returns the cotangent before them, and for each image its units and its d_4."""
    shape, (steps, images) = plan.shape, states.shape[:2]
    struct, half = jax.ShapeDtypeStruct, jnp.bfloat16
    out = [
        struct(g.shape, jnp.float32),
        struct((steps, images, sum(units(shape)) * TILE, WIDTH), half),
        struct(states.shape, half),
    ]
    body, buffers = partial(_kernel, plan, images), scratch(shape, 2 if shape.both_fit else 1, 2)
    how: dict[str, Any] = {"name": f"sdebnn_backward_{shape.side}", "interpret": plan.interpret, "ahead": True}
    return tuple(kernel_call(body, GROUPS, images, out, buffers, **how)(g, states, weights))


def _fetch_state(plan: PixelPlan, chip: Chip, states: Ref, index: Any, needed: Any) -> None:
    """Start to copy a state to shared memory."""
    if plan.interpret:
        plain.fetch_state(chip, states, index)
        return
    shape = plan.shape
    size = 16 * shape.chunks * shape.pixels

    def part(refs: Sequence[Value], numbers: Sequence[Int], _: Any) -> None:
        lanes = Lanes()
        state, bars, memory = refs
        index, needed = numbers
        assembly(
            "{ .reg .pred p, q; .reg .b64 t; setp.eq.s32 p, $0, 0; setp.ne.and.s32 p, $1, 0, p; "
            f"@p mbarrier.arrive.expect_tx.shared::cta.b64 t, [$3], {size}; "
            "@p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
            f"[$2], [$4], {size}, [$3]; }}",
            given=[
                lanes.thread,
                needed,
                address(state),
                address(bars) + 16 * shape.ring,
                pointer(memory, index, size),
            ],
        )

    inline(part, [chip.narrow.at[0], chip.bars, states], [index, needed])


def _wait_state(plan: PixelPlan, chip: Chip, turn: Any) -> None:
    if plan.interpret:
        sync_groups(chip.meet)
        return

    def part(refs: Sequence[Value], numbers: Sequence[Int], _: Any) -> None:
        wait_for(address(refs[0]) + 16 * plan.shape.ring, numbers[0] & 1, Int(1))

    inline(part, [chip.bars], [turn])


def _kernel(plan: PixelPlan, images: int, g1: Ref, states: Ref, weights: Ref, *refs: Ref) -> None:
    (g0, out, d4), refs = refs[:3], refs[3:]
    chip, shape, steps = Chip.of(refs, weights), plan.shape, plan.steps
    image = lax.axis_index("image")
    small, h, d = chip.small, chip.narrow.at[0], chip.narrow.at[1]
    first, third = chip.wide.at[0], chip.wide.at[1 if shape.both_fit else 0]
    starts = [sum(units(shape)[:i]) for i in range(4)]
    # The phases of a plan: a1, a2, a3, d3, d2, (a1 again,) d1, g
    again = 0 if shape.both_fit else 1
    g = tuple(tiles_from_memory(shape, g1.at[image]))
    prepare(plan, chip)
    _fetch_state(plan, chip, states, (steps - 1) * images + image, jnp.int32(1))

    def step(back: Any, g: Any) -> Any:
        s = steps - 1 - back
        here = s * images + image
        unit = here * sum(units(shape))
        put_state(plan, d, tuple(tile * plan.dt for tile in g), d4, here)
        _wait_state(plan, chip, back)
        put_layer(plan, 0, chip, back, h, first)
        sync_groups(chip.meet)
        put_layer(plan, 1, chip, back, first, small)
        sync_groups(chip.meet)
        put_layer(plan, 2, chip, back, small, third)
        sync_groups(chip.meet)
        put_outer(plan, chip, out, unit + starts[3], d, third, last=True)
        sync_groups(chip.meet)
        put_layer(plan, 3, chip, back, d, third, third)
        sync_groups(chip.meet)
        put_inner(plan, chip, out, unit + starts[2], third, small, up=True)
        (sums,) = summed(plan, 4, chip, back, third)
        sync_groups(chip.meet)
        put_sums(plan, 4, chip, back, sums, small)
        if again:
            put_layer(plan, 5, chip, back, h, first)
        sync_groups(chip.meet)
        put_inner(plan, chip, out, unit + starts[1], first, small, up=False)
        if again:
            sync_groups(chip.meet)
        put_layer(plan, 5 + again, chip, back, small, third, first)
        sync_groups(chip.meet)
        put_outer(plan, chip, out, unit + starts[0], h, third, last=False)
        more = summed(plan, 6 + again, chip, back, third)
        sync_groups(chip.meet)
        _fetch_state(plan, chip, states, jnp.maximum(here - images, 0), jnp.where(s > 0, 1, 0))
        return tuple(tile + z for tile, z in zip(g, more, strict=True))

    tiles_to_memory(shape, g0.at[image], lax.fori_loop(0, steps, step, g))
