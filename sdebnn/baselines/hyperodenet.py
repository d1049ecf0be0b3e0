"""Continuous depth whose weights move, without uncertainty:   dw = NN_φ(t, w) dt,   dh = f_h(t, h, w_t) dt."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn.baselines.odenet import carried, on_grid
from sdebnn.baselines.weights import taken_apart
from sdebnn.checks import check_counts
from sdebnn.fields import Standardised
from sdebnn.integrate import FixedGrid, Hidden, Posterior, Solution
from sdebnn.processes import OU, DriftNet, Point, Weights


class HyperODEBlock(eqx.Module):
    """A field whose weights start at a trained w_0 and follow a learned drift over depth: an ``SDEBlock``'s skeleton.

    ``drift`` gives the widths of the net that moves them, which starts at zero: then this is an ``ODEBlock``.
    """

    field: Any
    weights: Standardised
    value: Weights
    drift: DriftNet
    solver: FixedGrid

    def __init__(
        self, module: Any, *, drift: Sequence[int] = (32, 32), solver: FixedGrid = FixedGrid(), key: PRNGKeyArray
    ):
        check_counts("drift", drift)
        self.field, self.weights, self.value = taken_apart(module)
        self.drift = DriftNet(self.weights.size, drift, key=key)
        self.solver = on_grid(solver)

    def path(self) -> tuple[Float[Array, "time weight"], tuple[Float[Array, "step weight"], ...]]:
        """The weights at every grid point, and those that carry the hidden units through each step."""
        process = Posterior(OU(rate=0.0), self.drift, Point(self.value))
        noise = self.solver.noise(self.weights.size, self.value.dtype, key=jax.random.key(0))
        w, stages = self.solver.drive(process, self.value, jax.tree.map(jnp.zeros_like, noise))
        return w, stages.weights

    def __call__(self, h: Hidden, *, key: PRNGKeyArray) -> tuple[Hidden, Float[Array, ""]]:
        return self.solve(h, key=key)[:2]

    def solve(self, h: Hidden, *, key: PRNGKeyArray, rough: bool = False) -> Solution:
        """The hidden states at depth 1; whatever the key, and with no KL."""
        return carried(self, self.path()[1], h, rough)
