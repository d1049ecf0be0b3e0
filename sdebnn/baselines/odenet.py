"""Continuous depth without uncertainty:   h_1 = h_0 + ∫ f_h(t, h_t, w) dt,   one trained w for every depth."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from sdebnn.baselines.weights import taken_apart
from sdebnn.checks import as_inputs, as_precise, shown
from sdebnn.fields import Standardised
from sdebnn.integrate import FixedGrid, Hidden, Solution, Solver
from sdebnn.models import all_steps, check_field, over_batch
from sdebnn.processes import Depth, Weights


class ODEBlock(eqx.Module):
    """A field (t, h) -> dh/dt of one example, solved on a grid: what an ``SDEBlock`` is without noise or drift.

    Its weights are standardised as those of an ``SDEBlock`` are, so that one learning rate suits both.
    """

    field: Any
    weights: Standardised
    value: Weights
    solver: FixedGrid

    def __init__(self, module: Any, *, solver: Solver = FixedGrid()):
        self.field, self.weights, self.value = taken_apart(module)
        self.solver = on_grid(solver)

    def __call__(self, h: Hidden, *, key: PRNGKeyArray) -> tuple[Hidden, Float[Array, ""]]:
        return self.solve(h, key=key)[:2]

    def solve(self, h: Hidden, *, key: PRNGKeyArray, rough: bool = False) -> Solution:
        """The hidden states at depth 1; whatever the key, and with no KL."""
        path = jnp.broadcast_to(self.value, (self.solver.steps, *self.value.shape))
        return carried(self, (path,) * self.solver.stages, h, rough)


def on_grid(solver: Any) -> FixedGrid:
    """A solver, unless it is not a grid."""
    if not isinstance(solver, FixedGrid):
        found = f"{type(solver).__name__}()" if isinstance(solver, eqx.Module) else shown(solver)
        raise ValueError(f"solver={found}, but a deterministic block is solved on a grid: use FixedGrid(20).")
    return solver


def carried(block: Any, stages: tuple[Float[Array, "step weight"], ...], h: Hidden, rough: bool) -> Solution:
    """A batch through a block's field along a known path of its weights; without KL."""
    solver: FixedGrid = block.solver
    h = as_precise(as_inputs("h", h), stages[0])

    def f_h(t: Depth, h: Hidden, arrays: PyTree[Array]) -> Hidden:
        return over_batch(eqx.combine(arrays, block.field), t)(h)

    arrays = tuple(map(block.weights.unravel, stages))
    check_field(f_h, h, jax.tree.map(lambda leaf: leaf[0], arrays[0]))

    def euler(arrays: PyTree[Array], h: Hidden, *, keep: bool, unroll: int) -> Hidden | None:
        return all_steps(eqx.combine(arrays, block.field), h, keep=keep, unroll=unroll)

    outputs, roughness, stray = solver.hidden(f_h, arrays, h, rough=rough, euler=euler)
    zero = jnp.zeros((), h.dtype)
    return Solution(outputs, zero, jnp.asarray(solver.evaluations), jnp.asarray(True), roughness, stray)
