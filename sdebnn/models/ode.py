"""Continuous depth without uncertainty:   h_1 = h_0 + ∫ f_h(t, h_t, w) dt,   with one trained w for every depth."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num, PRNGKeyArray, PyTree

from sdebnn.checks import as_inputs, as_precise, shown
from sdebnn.contract import AbstractModel
from sdebnn.fields import AbstractLayer, Standardised, over_batch
from sdebnn.integrate import FixedGrid, Hidden, Solution
from sdebnn.models.block import check_field
from sdebnn.models.weights import taken_apart
from sdebnn.processes import Depth, Weights


class ODEBlock(AbstractModel):
    """A field (t, h) -> dh/dt of one example, solved on a grid: an ``SDEBlock`` without noise or drift.

    Its weights are standardised as those of an ``SDEBlock`` are, so that one learning rate suits both.
    """

    field: PyTree
    weights: Standardised
    value: Weights
    solver: FixedGrid

    def __init__(self, module: Callable[..., Array], *, solver: FixedGrid = FixedGrid()):
        self.field, self.weights, self.value = taken_apart(module)
        self.solver = check_grid(solver)

    @property
    def has_dynamics(self) -> bool:
        """True."""
        return True

    def solve(self, x: Num[Array, "example *input"], *, key: PRNGKeyArray, with_roughness: bool = False) -> Solution:
        """The hidden states at depth 1, which do not depend on the key; the KL is 0."""
        path = jnp.broadcast_to(self.value, (self.solver.steps, *self.value.shape))
        return carried(self, self.solver, (path,) * self.solver.stages, x, with_roughness)


def check_grid(solver: object) -> FixedGrid:
    """The solver, if it is a grid."""
    if not isinstance(solver, FixedGrid):
        found = f"{type(solver).__name__}()" if isinstance(solver, eqx.Module) else shown(solver)
        raise ValueError(f"solver={found}, but a deterministic block is solved on a grid: use FixedGrid(20).")
    return solver


@runtime_checkable
class FieldAndWeights(Protocol):
    """A block that keeps the deterministic part of its field apart from its weights."""

    @property
    def field(self) -> PyTree:
        """The field without its weights."""
        ...

    @property
    def weights(self) -> Standardised:
        """How the weights are standardised."""
        ...


def carried(
    block: FieldAndWeights,
    solver: FixedGrid,
    stages: tuple[Float[Array, "step weight"], ...],
    x: Num[Array, "example *input"],
    with_roughness: bool,
) -> Solution:
    """Carry a batch through a block's field along a known path of its weights. The KL is 0."""
    h = as_precise(as_inputs("h", x), stages[0])

    def f_h(t: Depth, h: Hidden, arrays: PyTree[Array]) -> Hidden:
        return over_batch(eqx.combine(arrays, block.field), t)(h)

    def all_euler_steps(arrays: PyTree[Array], h: Hidden, *, keep: bool, unroll: int) -> Hidden | None:
        field = eqx.combine(arrays, block.field)
        return field.all_euler_steps(h, keep=keep, unroll=unroll) if isinstance(field, AbstractLayer) else None

    arrays = tuple(map(block.weights.unravel, stages))
    check_field(f_h, h, jax.tree.map(lambda leaf: leaf[0], arrays[0]))
    outputs, roughness, shadow_distance = solver.hidden(
        f_h, arrays, h, with_roughness=with_roughness, all_euler_steps=all_euler_steps
    )
    zero = jnp.zeros((), h.dtype)
    return Solution(outputs, zero, jnp.asarray(solver.evaluations), jnp.asarray(True), roughness, shadow_distance)
