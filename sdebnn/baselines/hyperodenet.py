"""HyperODEnet: deterministic weights that change over depth.   dw = NN_φ(t, w) dt,   dh = f_h(t, h, w_t) dt."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num, PRNGKeyArray, PyTree

from sdebnn.checks import as_inputs, as_precise, check_counts
from sdebnn.contract import LayerLine
from sdebnn.fields import Standardised
from sdebnn.integrate import FixedGrid, Posterior, Solution
from sdebnn.models import AbstractFieldBlock, check_grid, taken_apart
from sdebnn.processes import OU, DriftNet, Point, Weights


class HyperODEBlock(AbstractFieldBlock):
    """A field whose weights start at a trained w_0 and follow a learned drift, as an ``SDEBlock`` without noise.

        block = baselines.HyperODEBlock(field, drift=(8,), solver=FixedGrid(4), key=key)
        head = Deterministic(eqx.nn.Linear(4, 1, key=key))
        net = SDEBNN((Deterministic(nn.Augment(1, 3)), block, head))

    ``drift`` gives the widths of the drift's net. The drift starts at zero, where the block equals an ``ODEBlock``.
    """

    field: PyTree
    weights: Standardised
    value: Weights
    drift: DriftNet
    solver: FixedGrid

    def __init__(
        self,
        module: Callable[..., Array],
        *,
        drift: Sequence[int] = (32, 32),
        solver: FixedGrid = FixedGrid(),
        key: PRNGKeyArray,
    ):
        check_counts("drift", drift)
        self.field, self.weights, self.value = taken_apart(module)
        self.drift = DriftNet(self.weights.size, drift, key=key)
        self.solver = check_grid(solver)

    def path(self) -> tuple[Float[Array, "time weight"], tuple[Float[Array, "step weight"], ...]]:
        """The weights at every grid point, and the weights that the hidden units use in each step."""
        process = self._process()
        noise = self.solver.noise(self.weights.size, self.value.dtype, key=jax.random.key(0))
        w, stages, _ = self.solver.drive(process, self.value, jax.tree.map(jnp.zeros_like, noise))
        return w, stages.weights

    def _process(self) -> Posterior:
        return Posterior(OU(rate=0.0), self.drift, Point(self.value))

    def layer_line(self, x: Num[Array, "example *input"]) -> LayerLine:
        """State, drift and solver, and how weights and hidden units are solved."""
        h = as_precise(as_inputs("h", x), self.value)
        weights = self.solver.plan.words_for_weights(self._process())
        execution = f"two loops: {weights}; {self.hidden_execution(self.solver, self.value, h)}"
        return self.line(h, 0, f"drift {self.drift.description}", self.solver.description, execution=execution)

    def solve(self, x: Num[Array, "example *input"], *, key: PRNGKeyArray, with_roughness: bool = False) -> Solution:
        """The hidden states at depth 1, which do not depend on the key; the KL is 0."""
        return self.carried(self.solver, self.path()[1], x, with_roughness)
