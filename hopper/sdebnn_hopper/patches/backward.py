"""The gradient of all Euler steps, from the last to the first: with g = dL/dh after a step,

    d_4 = dt g      d_l = (1 - a_l^2) (layer l + 1)' d_{l+1}      dL/dW_l = sum over positions of a_{l-1}' d_l
    dL/dh before the step = g + (layer 1)' d_1

Only the states are stored by the forward pass; the activations a_1, a_2 and a_3 of a step are recomputed. The kernel
writes the sums over the positions of each image, in bfloat16, and XLA adds them up over the images. A launch takes a
few steps, so that the sums of few steps are in memory at the same time.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from sdebnn_hopper.blocks import kernel_call, sync_groups
from sdebnn_hopper.patches.gradients import MARKS, Buffers, put_first, put_fourth, put_second, put_third
from sdebnn_hopper.patches.matrix import TILES, Ref
from sdebnn_hopper.patches.packing import (
    FIRST,
    FOURTH,
    HEIGHTS,
    SECOND,
    STATE,
    THIRD,
    WIDTH,
    Matrices,
    Matrix,
    PatchRows,
    States,
    marks,
)
from sdebnn_hopper.patches.warpgroup import (
    GROUPS,
    GUARD,
    HEIGHT,
    PATCH_STRIDE,
    PIXELS_STRIDE,
    STATE_STRIDE,
    PatchPlan,
    Warpgroup,
)

MAX_STEPS_A_LAUNCH = 5
# Rows of the gradients that the kernel writes for one image: those of the matrices without the last map, whose gradient
# is a sum of d_4.
PARTIAL_HEIGHTS = (*HEIGHTS[:3], 16 * STATE)


def backward(plan: PatchPlan, g: PatchRows, states: States, matrices: Matrices) -> tuple[PatchRows, tuple[Matrix, ...]]:
    """The cotangents of the state before all steps and of the matrices, given that of the state after all steps."""
    steps = states.shape[0]
    size = math.ceil(steps / math.ceil(steps / MAX_STEPS_A_LAUNCH))  # equal launches if possible: compiled once
    found = []
    for start in reversed(range(0, steps, size)):
        now = slice(start, start + size)
        g, gradients = _launch(plan, g, states[now], tuple(matrix[now] for matrix in matrices))
        g, gradients = lax.optimization_barrier((g, gradients))  # free these sums before the next launch
        found.append(gradients)
    return g, tuple(jnp.concatenate(each) for each in zip(*reversed(found), strict=True))


@partial(jax.jit, static_argnums=0)
def _launch(plan: PatchPlan, g: PatchRows, states: States, matrices: Matrices) -> tuple[PatchRows, tuple[Matrix, ...]]:
    """The same for the steps of one launch."""
    steps, images = states.shape[:2]
    struct, half = jax.ShapeDtypeStruct, jnp.bfloat16
    partial_sums = [struct((steps, images, height, WIDTH), half) for height in PARTIAL_HEIGHTS]
    out = [struct(g.shape, jnp.float32), *partial_sums, struct(states.shape, half)]
    how: dict[str, Any] = {"name": "sdebnn_backward", "interpret": plan.interpret, "ahead": True}
    run = kernel_call(partial(_kernel, plan, steps), GROUPS, images, out, _scratch(), **how)
    classes = jnp.asarray(marks(plan.side), half)
    g, *sums, d4 = run(g, states, classes, *[matrix.reshape(-1, WIDTH) for matrix in matrices])
    *most, last = (each.sum(1, dtype=jnp.float32) for each in sums)
    of_map = jnp.sum(d4.sum(1, dtype=jnp.float32)[..., None] * classes[:, None], 1)  # see ``packing._maps``
    last = jnp.concatenate([last, jnp.pad(of_map, ((0, 0), (0, 0), (0, WIDTH - STATE)))], 1)
    return g, (*most, last)


def _scratch() -> list[Any]:
    """The shared memory of a block: 226 of the 227 KiB that it may use."""
    half = jnp.bfloat16
    # In pairs, because each buffer begins at a multiple of 1 KiB.
    wide, middle, narrow = (
        plgpu.SMEM((2, HEIGHT, width), half) for width in (PIXELS_STRIDE, PATCH_STRIDE, STATE_STRIDE)
    )
    matrix, first, second = (
        plgpu.SMEM((height, WIDTH), half, transforms=TILES) for height in (max(HEIGHTS), *HEIGHTS[:2])
    )
    # The matrices of the first two layers, for a_1 and a_2, use the memory of a_3, between its rows of zeros.
    before = math.ceil(2 * PIXELS_STRIDE * (HEIGHT + GUARD) / 1024) * 1024
    assert before + 2 * WIDTH * sum(HEIGHTS[:2]) <= 2 * PIXELS_STRIDE * (2 * HEIGHT - GUARD)
    shared = plgpu.RefUnion(wide, (plgpu.SMEM((before // 2,), half), first, second))
    return [shared, middle, narrow, matrix, plgpu.Barrier(num_arrivals=GROUPS), *[plgpu.Barrier()] * 3]


class Fetcher(NamedTuple):
    """Fetches matrices to shared memory: those for a_1 and a_2 to places of their own, all others to one place."""

    group: Warpgroup
    sources: Sequence[Ref]
    places: Sequence[Ref]
    barriers: Sequence[Ref]

    def fetch(self, layer: int, step: Any, place: int = 2) -> None:
        @pl.when(self.group.number == 0)
        def _() -> None:
            height = HEIGHTS[layer]
            target = self.places[place].at[pl.ds(0, height)] if place == 2 else self.places[place]
            source = self.sources[layer].at[pl.ds(step * height, height)]
            plgpu.copy_gmem_to_smem(source, target, self.barriers[place])

    def begin(self, step: Any) -> None:
        """Fetch the matrices for a_1, a_2 and a_3."""
        for layer in range(3):
            self.fetch(layer, step, layer)

    def fetched(self, place: int = 2) -> Ref:
        plgpu.barrier_wait(self.barriers[place])
        return self.places[place]


def _kernel(plan: PatchPlan, steps: int, g1: Ref, states: Ref, classes: Ref, *refs: Ref) -> None:
    sources, (g0, *outs, d4), scratch = refs[:4], refs[4:10], refs[10:]
    (wide, (_, *early)), middle, narrow, matrix, meet, *fetched = scratch
    group = Warpgroup.current(plan)
    whole = Buffers(*[pair.at[i] for pair in (wide, middle, narrow) for i in range(2)])
    part = Buffers(*[group.part(buffer) for buffer in whole])
    matrices = Fetcher(group, sources, (*early, matrix), fetched)

    def state(step: Any) -> Any:
        return group.from_memory(states.at[step, group.image])

    group.clear(whole)
    where = group.from_memory(classes)
    g = group.from_memory(g1.at[group.image])
    plgpu.commit_smem()  # the zeros must be written before matrices are fetched to the same memory
    sync_groups(meet)
    matrices.begin(steps - 1)
    group.put(part.h, state(steps - 1))
    group.put(part.h, group.from_memory(classes, STATE - MARKS, 8), STATE)
    group.put(part.d4, g * plan.dt)
    sync_groups(meet)

    def step(back: Any, g: Any) -> Any:
        s = steps - 1 - back
        group.to_memory(d4.at[s, group.image], g * plan.dt)
        _put_activations(group, part, matrices, where, meet)
        _put_cotangents(group, whole, part, matrices, [out.at[s, group.image] for out in outs], s, meet)
        before = jnp.maximum(s - 1, 0)
        h = state(before)  # loaded early, because global memory is slow
        (z,) = group.per_patch(FIRST.adjoint, matrices.fetched(), part.a3)
        g = g + group.zero_outside(z)
        plgpu.commit_smem()
        sync_groups(meet)

        @pl.when(s > 0)
        def _() -> None:
            matrices.begin(before)

        group.put(part.h, h)
        group.put(part.d4, g * plan.dt)
        sync_groups(meet)
        return g

    group.to_memory(g0.at[group.image], lax.fori_loop(0, steps, step, g))


def _put_activations(group: Warpgroup, part: Buffers, matrices: Fetcher, where: Any, meet: Ref) -> None:
    """Write a_1, a_2 and a_3."""
    between = ((FIRST, part.h, part.a1), (SECOND, part.a1, part.a2), (THIRD, part.a2, part.a3))
    for layer, (table, source, out) in enumerate(between):
        group.put_layer(table, matrices.fetched(layer), source, out, where)
        sync_groups(meet)


def _put_cotangents(
    group: Warpgroup, whole: Buffers, part: Buffers, matrices: Fetcher, outs: Sequence[Ref], s: Any, meet: Ref
) -> None:
    """Write d_3, d_2, d_1 and the gradients of the matrices, and start to fetch the matrix that pulls d_1 back."""

    def slope(z: Any, a: Any) -> Any:
        a = a.astype(jnp.float32)
        return group.zero_outside(z - z * a * a)

    matrices.fetch(3, s)
    put_fourth(group, whole, outs[3])
    # All are computed before the first is written, because they overwrite a_3, which other groups may still read.
    d3 = [
        slope(z, group.load(part.a3, 0, WIDTH, WIDTH * parity)).astype(jnp.bfloat16)
        for parity, z in enumerate(group.per_pixel(FOURTH.adjoint, matrices.fetched(), part.d4))
    ]
    sync_groups(meet)
    matrices.fetch(2, s)
    for parity, d in enumerate(d3):
        group.put(part.a3, d, WIDTH * parity)
    sync_groups(meet)
    put_third(group, whole, outs[2])
    (z,) = group.per_patch(THIRD.adjoint, matrices.fetched(), part.a3)
    group.put(part.d2, slope(z, group.load(part.a2, 0)))
    sync_groups(meet)
    matrices.fetch(1, s)
    put_second(group, whole, outs[1])
    for parity, z in enumerate(group.per_pixel(SECOND.adjoint, matrices.fetched(), part.d2)):
        group.put(part.a3, slope(z, group.load(part.a1, 0, WIDTH, WIDTH * parity)), WIDTH * parity)
    sync_groups(meet)
    matrices.fetch(0, s)
    put_first(group, whole, outs[0])
