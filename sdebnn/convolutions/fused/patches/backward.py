"""The gradient of all Euler steps, from the last to the first: with g = dL/dh after a step,

    d_4 = dt g      d_l = (1 - a_l^2) (layer l + 1)' d_{l+1}      dL/dW_l = sum over positions of a_{l-1}' d_l
    dL/dh before the step = g + (layer 1)' d_1

Of the forward pass only the states are known; a step's a_1, a_2 and a_3 are computed again. The sums over positions are
one image's, in bfloat16, and added up by XLA. A launch takes a few steps, so that few of them stand in memory together.
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

from sdebnn.convolutions.fused.blocks import launched, together
from sdebnn.convolutions.fused.patches.gradients import MARKS, Buffers, put_first, put_fourth, put_second, put_third
from sdebnn.convolutions.fused.patches.matrix import TILES, Ref
from sdebnn.convolutions.fused.patches.packing import (
    FIRST,
    FOURTH,
    HEIGHTS,
    SECOND,
    STATE,
    THIRD,
    WIDTH,
    Matrices,
    Matrix,
    Rows,
    States,
    marks,
)
from sdebnn.convolutions.fused.patches.warpgroup import (
    GROUPS,
    GUARD,
    HEIGHT,
    MIDDLE,
    NARROW,
    WIDE,
    Plan,
    Warpgroup,
)

STEPS = 5  # at most, of one launch
# Rows of the gradients that one image writes: those of the matrices, but the last map's, which is a sum of d_4 alone.
PARTIAL = (*HEIGHTS[:3], 16 * STATE)


def backward(plan: Plan, g: Rows, states: States, matrices: Matrices) -> tuple[Rows, tuple[Matrix, ...]]:
    """From the cotangent of the state after all steps to those of the state before, and of the matrices."""
    steps = states.shape[0]
    size = math.ceil(steps / math.ceil(steps / STEPS))  # of equal launches, where it can be: compiled once
    found = []
    for start in reversed(range(0, steps, size)):
        now = slice(start, start + size)
        g, gradients = _launch(plan, g, states[now], tuple(matrix[now] for matrix in matrices))
        g, gradients = lax.optimization_barrier((g, gradients))  # the next launch's partial sums come after these' sum
        found.append(gradients)
    return g, tuple(jnp.concatenate(each) for each in zip(*reversed(found), strict=True))


@partial(jax.jit, static_argnums=0)
def _launch(plan: Plan, g: Rows, states: States, matrices: Matrices) -> tuple[Rows, tuple[Matrix, ...]]:
    """The same, of a few steps."""
    steps, images = states.shape[:2]
    struct, half = jax.ShapeDtypeStruct, jnp.bfloat16
    partial_sums = [struct((steps, images, height, WIDTH), half) for height in PARTIAL]
    out = [struct(g.shape, jnp.float32), *partial_sums, struct(states.shape, half)]
    how = {"name": "sdebnn_backward", "interpret": plan.interpret, "ahead": True}
    run = launched(partial(_kernel, plan, steps), GROUPS, images, out, _scratch(), **how)
    classes = jnp.asarray(marks(plan.side), half)
    g, *sums, d4 = run(g, states, classes, *[matrix.reshape(-1, WIDTH) for matrix in matrices])
    *most, last = (each.sum(1, dtype=jnp.float32) for each in sums)
    of_map = jnp.sum(d4.sum(1, dtype=jnp.float32)[..., None] * classes[:, None], 1)  # no product: see ``packing``
    last = jnp.concatenate([last, jnp.pad(of_map, ((0, 0), (0, 0), (0, WIDTH - STATE)))], 1)
    return g, (*most, last)


def _scratch() -> list[Any]:
    """What a block has on the chip: as good as all there is, 226 of 227 KiB."""
    half = jnp.bfloat16
    # Pairs, as each buffer begins at a whole kilobyte.
    wide, middle, narrow = (plgpu.SMEM((2, HEIGHT, width), half) for width in (WIDE, MIDDLE, NARROW))
    matrix, first, second = (
        plgpu.SMEM((height, WIDTH), half, transforms=TILES) for height in (max(HEIGHTS), *HEIGHTS[:2])
    )
    # The first two layers' matrices, for a_1 and a_2, lie where a_3 will: between its rows of zeros.
    before = math.ceil(2 * WIDE * (HEIGHT + GUARD) / 1024) * 1024
    assert before + 2 * WIDTH * sum(HEIGHTS[:2]) <= 2 * WIDE * (2 * HEIGHT - GUARD)
    shared = plgpu.RefUnion(wide, (plgpu.SMEM((before // 2,), half), first, second))
    return [shared, middle, narrow, matrix, plgpu.Barrier(num_arrivals=GROUPS), *[plgpu.Barrier()] * 3]


class Fetcher(NamedTuple):
    """Who brings matrices on the chip: for a_1 and a_2 each to a place of its own, all others to the same."""

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
        """Fetch what computes a_1, a_2 and a_3."""
        for layer in range(3):
            self.fetch(layer, step, layer)

    def fetched(self, place: int = 2) -> Ref:
        plgpu.barrier_wait(self.barriers[place])
        return self.places[place]


def _kernel(plan: Plan, steps: int, g1: Ref, states: Ref, classes: Ref, *refs: Ref) -> None:
    sources, (g0, *outs, d4), scratch = refs[:4], refs[4:10], refs[10:]
    (wide, (_, *early)), middle, narrow, matrix, meet, *fetched = scratch
    group = Warpgroup.here(plan)
    whole = Buffers(*[pair.at[i] for pair in (wide, middle, narrow) for i in range(2)])
    part = Buffers(*[group.part(buffer) for buffer in whole])
    matrices = Fetcher(group, sources, (*early, matrix), fetched)

    def state(step: Any) -> Any:
        return group.from_memory(states.at[step, group.image])

    group.clear(whole)
    where = group.from_memory(classes)
    g = group.from_memory(g1.at[group.image])
    plgpu.commit_smem()  # the zeros are written before anything is fetched to where they are
    together(meet)
    matrices.begin(steps - 1)
    group.put(part.h, state(steps - 1))
    group.put(part.h, group.from_memory(classes, STATE - MARKS, 8), STATE)
    group.put(part.d4, g * plan.dt)
    together(meet)

    def step(back: Any, g: Any) -> Any:
        s = steps - 1 - back
        group.to_memory(d4.at[s, group.image], g * plan.dt)
        _put_activations(group, part, matrices, where, meet)
        _put_cotangents(group, whole, part, matrices, [out.at[s, group.image] for out in outs], s, meet)
        before = jnp.maximum(s - 1, 0)
        h = state(before)  # it takes a while to come
        (z,) = group.gathered(FIRST.adjoint, matrices.fetched(), part.a3)
        g = g + group.inside(z)
        plgpu.commit_smem()
        together(meet)

        @pl.when(s > 0)
        def _() -> None:
            matrices.begin(before)

        group.put(part.h, h)
        group.put(part.d4, g * plan.dt)
        together(meet)
        return g

    group.to_memory(g0.at[group.image], lax.fori_loop(0, steps, step, g))


def _put_activations(group: Warpgroup, part: Buffers, matrices: Fetcher, where: Any, meet: Ref) -> None:
    """Write a_1, a_2 and a_3."""
    between = ((FIRST, part.h, part.a1), (SECOND, part.a1, part.a2), (THIRD, part.a2, part.a3))
    for layer, (table, source, out) in enumerate(between):
        group.put_layer(table, matrices.fetched(layer), source, out, where)
        together(meet)


def _put_cotangents(
    group: Warpgroup, whole: Buffers, part: Buffers, matrices: Fetcher, outs: Sequence[Ref], s: Any, meet: Ref
) -> None:
    """Write d_3, d_2 and d_1, and the gradients of the matrices; those that pull d_1 back are on their way then."""

    def slope(z: Any, a: Any) -> Any:
        a = a.astype(jnp.float32)
        return group.inside(z - z * a * a)

    matrices.fetch(3, s)
    put_fourth(group, whole, outs[3])
    # All of them before the first is written: they go where the a_3 are that others may still read.
    d3 = [
        slope(z, group.load(part.a3, 0, WIDTH, WIDTH * parity)).astype(jnp.bfloat16)
        for parity, z in enumerate(group.spread(FOURTH.adjoint, matrices.fetched(), part.d4))
    ]
    together(meet)
    matrices.fetch(2, s)
    for parity, d in enumerate(d3):
        group.put(part.a3, d, WIDTH * parity)
    together(meet)
    put_third(group, whole, outs[2])
    (z,) = group.gathered(THIRD.adjoint, matrices.fetched(), part.a3)
    group.put(part.d2, slope(z, group.load(part.a2, 0)))
    together(meet)
    matrices.fetch(1, s)
    put_second(group, whole, outs[1])
    for parity, z in enumerate(group.spread(SECOND.adjoint, matrices.fetched(), part.d2)):
        group.put(part.a3, slope(z, group.load(part.a1, 0, WIDTH, WIDTH * parity)), WIDTH * parity)
    together(meet)
    matrices.fetch(0, s)
    put_first(group, whole, outs[0])
