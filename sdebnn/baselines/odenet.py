"""Continuous depth without uncertainty:   h_1 = h_0 + ∫ f_h(t, h_t, w) dt,   one trained w for every depth."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from sdebnn.fields import Standardised
from sdebnn.integrate import FixedGrid, Hidden, Solution
from sdebnn.models import over_batch
from sdebnn.processes import Depth, Weights


class ODEBlock(eqx.Module):
    """A field (t, h) -> dh/dt of one example, solved on a grid: what an ``SDEBlock`` is without noise or drift.

    Its weights are standardised as those of an ``SDEBlock`` are, so that one learning rate suits both.
    """

    field: Any
    weights: Standardised
    value: Weights
    solver: FixedGrid

    def __init__(self, module: Any, *, solver: FixedGrid = FixedGrid()):
        arrays, self.field = eqx.partition(module, eqx.is_inexact_array)
        scales = getattr(module, "scales", None)
        numbers = () if scales is None else tuple(leaf for leaf in jax.tree.leaves(scales) if isinstance(leaf, float))
        self.weights = Standardised(arrays, numbers) if numbers else Standardised(arrays)
        self.value = self.weights.ravel(arrays)
        self.solver = solver

    def __call__(self, h: Hidden, *, key: PRNGKeyArray) -> tuple[Hidden, Float[Array, ""]]:
        return self.solve(h, key=key)[:2]

    def solve(self, h: Hidden, *, key: PRNGKeyArray, rough: bool = False) -> Solution:
        """The hidden states at depth 1; whatever the key, and with no KL."""
        steps = self.solver.steps
        arrays = self.weights.unravel(jnp.broadcast_to(self.value, (steps, *self.value.shape)))
        stages = tuple(arrays for _ in range(self.solver.stages))

        def f_h(t: Depth, h: Hidden, arrays: PyTree[Array]) -> Hidden:
            return over_batch(eqx.combine(arrays, self.field), t)(h)

        outputs, roughness = self.solver.hidden(f_h, stages, h, rough=rough)
        return Solution(
            outputs, jnp.zeros((), h.dtype), jnp.asarray(self.solver.evaluations), jnp.asarray(True), roughness
        )
