"""All Euler steps in one launch:   h += dt f_h(t, h).

The state stays in registers, and what lies between layers in shared memory. A step's matrices are fetched while the
step before still computes, each as soon as its layer is done with the last.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from sdebnn.convolutions.fused.blocks import launched, together
from sdebnn.convolutions.fused.patches.matrix import TILES, Ref
from sdebnn.convolutions.fused.patches.packing import (
    FIRST,
    FOURTH,
    HEIGHTS,
    SECOND,
    THIRD,
    WIDTH,
    Matrices,
    Rows,
    States,
    marks,
)
from sdebnn.convolutions.fused.patches.warpgroup import (
    GROUPS,
    HEIGHT,
    MIDDLE,
    NARROW,
    WIDE,
    Plan,
    Warpgroup,
)


def forward(plan: Plan, keep: bool, h0: Rows, matrices: Matrices) -> tuple[Rows, States | None]:
    """The state after all steps, and if they are to be kept the states before each, rounded."""
    steps = matrices[0].shape[0]
    out = [
        jax.ShapeDtypeStruct(h0.shape, jnp.float32),
        *[jax.ShapeDtypeStruct((steps, *h0.shape), jnp.bfloat16)] * keep,
    ]
    scratch = [plgpu.SMEM((HEIGHT, width), jnp.bfloat16) for width in (WIDE, MIDDLE, NARROW)]
    scratch += [plgpu.SMEM((height, WIDTH), jnp.bfloat16, transforms=TILES) for height in HEIGHTS]
    scratch += [plgpu.Barrier(num_arrivals=GROUPS), *[plgpu.Barrier()] * 4]
    how = {"name": "sdebnn_forward", "interpret": plan.interpret, "ahead": keep}
    run = launched(partial(_kernel, plan, steps, keep), GROUPS, h0.shape[0], out, scratch, **how)
    flat = [matrix.reshape(-1, WIDTH) for matrix in matrices]
    h1, *states = run(h0, jnp.asarray(marks(plan.side), jnp.bfloat16), *flat)
    return h1, states[0] if keep else None


def _kernel(plan: Plan, steps: int, keep: bool, h0: Ref, classes: Ref, *refs: Ref) -> None:
    sources, (h1, *states), refs = refs[:4], refs[4 : 5 + keep], refs[5 + keep :]
    wide, middle, narrow, *matrices = refs[:7]
    meet, *fetched = refs[7:]
    group = Warpgroup.here(plan)

    def fetch(layer: int, step: Any, needed: Any = True) -> None:
        @pl.when((group.number == 0) & needed)
        def _() -> None:
            rows = pl.ds(step * HEIGHTS[layer], HEIGHTS[layer])
            plgpu.copy_gmem_to_smem(sources[layer].at[rows], matrices[layer], fetched[layer])

    for layer in range(4):
        fetch(layer, 0)
    group.clear((wide, middle, narrow))
    where = group.from_memory(classes)
    h = group.from_memory(h0.at[group.image])
    large, small, state = (group.part(buffer) for buffer in (wide, middle, narrow))
    together(meet)
    group.put(state, h)
    together(meet)

    def step(s: Any, h: Any) -> Any:
        def done(layer: int) -> None:
            together(meet)
            fetch(layer, s + 1, s + 1 < steps)

        if keep:
            group.to_memory(states[0].at[s, group.image], h)
        between = ((FIRST, state, large), (SECOND, large, small), (THIRD, small, large))
        for layer, (table, source, out) in enumerate(between):
            plgpu.barrier_wait(fetched[layer])
            group.put_layer(table, matrices[layer], source, out, where)
            done(layer)
        plgpu.barrier_wait(fetched[3])
        (slope,) = group.gathered(FOURTH, matrices[3], large, where)
        h = h + group.inside(slope) * plan.dt
        group.put(state, h)
        done(3)
        return h

    group.to_memory(h1.at[group.image], lax.fori_loop(0, steps, step, h))
