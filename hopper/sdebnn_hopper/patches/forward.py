"""All Euler steps in one launch:   h += dt f_h(t, h).

The state stays in registers, and the activations between layers in shared memory. The matrix of a layer for the next
step is fetched as soon as the layer has used the current one, while the rest of the step is computed.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from sdebnn_hopper.blocks import kernel_call, sync_groups
from sdebnn_hopper.patches.matrix import TILES, Ref
from sdebnn_hopper.patches.packing import (
    FIRST,
    FOURTH,
    HEIGHTS,
    SECOND,
    THIRD,
    WIDTH,
    Matrices,
    PatchRows,
    States,
    marks,
)
from sdebnn_hopper.patches.warpgroup import (
    GROUPS,
    HEIGHT,
    PATCH_STRIDE,
    PIXELS_STRIDE,
    STATE_STRIDE,
    PatchPlan,
    Warpgroup,
)


def forward(plan: PatchPlan, keep: bool, h0: PatchRows, matrices: Matrices) -> tuple[PatchRows, States | None]:
    """The state after all steps and, with ``keep``, the rounded states before each step."""
    steps = matrices[0].shape[0]
    out = [
        jax.ShapeDtypeStruct(h0.shape, jnp.float32),
        *[jax.ShapeDtypeStruct((steps, *h0.shape), jnp.bfloat16)] * keep,
    ]
    scratch = [plgpu.SMEM((HEIGHT, width), jnp.bfloat16) for width in (PIXELS_STRIDE, PATCH_STRIDE, STATE_STRIDE)]
    scratch += [plgpu.SMEM((height, WIDTH), jnp.bfloat16, transforms=TILES) for height in HEIGHTS]
    scratch += [plgpu.Barrier(num_arrivals=GROUPS), *[plgpu.Barrier()] * 4]
    how: dict[str, Any] = {"name": "sdebnn_forward", "interpret": plan.interpret, "ahead": keep}
    run = kernel_call(partial(_kernel, plan, steps, keep), GROUPS, h0.shape[0], out, scratch, **how)
    flat = [matrix.reshape(-1, WIDTH) for matrix in matrices]
    h1, *states = run(h0, jnp.asarray(marks(plan.side), jnp.bfloat16), *flat)
    return h1, states[0] if keep else None


def _kernel(plan: PatchPlan, steps: int, keep: bool, h0: Ref, classes: Ref, *refs: Ref) -> None:
    sources, (h1, *states), refs = refs[:4], refs[4 : 5 + keep], refs[5 + keep :]
    wide, middle, narrow, *matrices = refs[:7]
    meet, *fetched = refs[7:]
    group = Warpgroup.current(plan)

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
    sync_groups(meet)
    group.put(state, h)
    sync_groups(meet)

    def step(s: Any, h: Any) -> Any:
        def done(layer: int) -> None:
            sync_groups(meet)
            fetch(layer, s + 1, s + 1 < steps)

        if keep:
            group.to_memory(states[0].at[s, group.image], h)
        between = ((FIRST, state, large), (SECOND, large, small), (THIRD, small, large))
        for layer, (table, source, out) in enumerate(between):
            plgpu.barrier_wait(fetched[layer])
            group.put_layer(table, matrices[layer], source, out, where)
            done(layer)
        plgpu.barrier_wait(fetched[3])
        (slope,) = group.per_patch(FOURTH, matrices[3], large, where)
        h = h + group.zero_outside(slope) * plan.dt
        group.put(state, h)
        done(3)
        return h

    group.to_memory(h1.at[group.image], lax.fori_loop(0, steps, step, h))
