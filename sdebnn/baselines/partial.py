"""Blocks that are random up to some depth, and deterministic beyond it:   dw = f_q(t, w) dt + σ 1[t < until] dB.

    KL = ½ ∫_0^until |u|² dt + KL(q(w_0) || p(w_0))

Beyond ``until``, the weights follow the drift without noise, as in a ``HyperODEBlock``, and the KL does not grow. For a
net that is random only in some layers, use ``bayesianize(module, where=...)``, or combine ``ODEBlock`` and
``SDEBlock``.
"""

import equinox as eqx
import jax
from jaxtyping import Array, Num, PRNGKeyArray

from sdebnn.checks import as_inputs, as_precise, plain_number
from sdebnn.contract import AbstractModel, LayerLine
from sdebnn.integrate import FixedGrid, Solution, WeightPath
from sdebnn.models import SDEBlock


class PartlyRandom(AbstractModel):
    """A block of ``bayesianize``, on a grid, whose noise and KL end at the depth ``until``.

        block = bayesianize(field, solver=FixedGrid(4), key=key)
        block = baselines.PartlyRandom(block, until=0.5)
        head = Deterministic(eqx.nn.Linear(4, 1, key=key))
        net = SDEBNN((Deterministic(nn.Augment(1, 3)), block, head))

    Beyond that depth, the weights follow their drift without noise.
    """

    block: SDEBlock
    until: float = eqx.field(static=True, converter=plain_number)

    def __check_init__(self):
        grid = self._grid()
        if isinstance(self.until, bool) or not isinstance(self.until, float | int) or not 0 < self.until <= 1:
            raise ValueError(f"until={self.until!r} is not a depth: pass a number above 0 and at most 1.")
        if not round(self.until * grid.steps):
            raise ValueError(f"until={self.until!r} is less than half a step of a grid of {grid.steps}: pass more.")

    def _grid(self) -> FixedGrid:
        if not isinstance(self.block, SDEBlock) or not isinstance(self.block.solver, FixedGrid):
            found = getattr(self.block, "solver", self.block)
            raise ValueError(
                f"PartlyRandom needs a block with a grid, and got {type(found).__name__}: use FixedGrid(20), and "
                "predict with steps= instead of rtol=."
            )
        return self.block.solver

    def draw(self, *, key: PRNGKeyArray) -> WeightPath:
        """The path of standardised weights that the key names, and its KL."""
        return self._grid().weights(self.block, key=key, until=float(self.until))

    def layer_line(self, x: Num[Array, "example *input"]) -> LayerLine:
        """The line of the block, whose weights are drawn first at any number of them."""
        block, grid = self.block, self._grid()
        w = block.initial.sample(key=jax.random.key(0))
        hidden = block.hidden_execution(grid, w, as_precise(as_inputs("h", x), w))
        inner = block.layer_line(x)
        return inner._replace(
            name=f"{type(self).__name__}, {inner.name}",
            facts=(*inner.facts, f"random until depth {self.until:g}"),
            execution=f"two loops: {grid.plan.words_for_weights(block)}; {hidden}",
        )

    @property
    def has_dynamics(self) -> bool:
        """True."""
        return True

    def solve(self, x: Num[Array, "example *input"], *, key: PRNGKeyArray, with_roughness: bool = False) -> Solution:
        """The hidden states at depth 1, the KL, the number of evaluations and, if asked for, the roughness."""
        path = self.draw(key=key)
        return self.block.carried(self._grid(), path.stages, x, with_roughness)._replace(kl=path.kl)
