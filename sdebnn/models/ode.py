"""Continuous depth without uncertainty:   h_1 = h_0 + ∫ f_h(t, h_t, w) dt,   with one trained w for every depth."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Num, PRNGKeyArray, PyTree

from sdebnn.checks import as_inputs, as_precise, shown
from sdebnn.contract import LayerLine
from sdebnn.fields import Standardised
from sdebnn.integrate import FixedGrid, Solution
from sdebnn.models.field_block import AbstractFieldBlock
from sdebnn.models.weights import taken_apart
from sdebnn.processes import Weights


class ODEBlock(AbstractFieldBlock):
    """A field (t, h) -> dh/dt of one example, solved on a grid: an ``SDEBlock`` without noise or drift.

        block = ODEBlock(field, solver=FixedGrid(10))
        hidden, kl = block(jnp.ones((5, 4)), key=key)

    Its weights are standardised as those of an ``SDEBlock`` are, so that one learning rate suits both.
    """

    field: PyTree
    weights: Standardised
    value: Weights
    solver: FixedGrid

    def __init__(self, module: Callable[..., Array], *, solver: FixedGrid = FixedGrid()):
        self.field, self.weights, self.value = taken_apart(module)
        self.solver = check_grid(solver)

    def layer_line(self, x: Num[Array, "example *input"]) -> LayerLine:
        """State and solver, and how the hidden units are solved."""
        h = as_precise(as_inputs("h", x), self.value)
        execution = self.hidden_execution(self.solver, self.value, h)
        return self.line(h, 0, self.solver.description, execution=execution)

    def solve(self, x: Num[Array, "example *input"], *, key: PRNGKeyArray, with_roughness: bool = False) -> Solution:
        """The hidden states at depth 1, which do not depend on the key; the KL is 0."""
        path = jnp.broadcast_to(self.value, (self.solver.steps, *self.value.shape))
        return self.carried(self.solver, (path,) * self.solver.stages, x, with_roughness)


def check_grid(solver: object) -> FixedGrid:
    """The solver, if it is a grid."""
    if not isinstance(solver, FixedGrid):
        found = f"{type(solver).__name__}()" if isinstance(solver, eqx.Module) else shown(solver)
        raise ValueError(f"solver={found}, but a deterministic block is solved on a grid: use FixedGrid(20).")
    return solver
