"""Random up to some depth, and deterministic from there on:   dw = f_q(t, w) dt + σ 1[t < until] dB.

    KL = ½ ∫_0^until |u|² dt + KL(q(w_0) || p(w_0))

Beyond ``until`` the drift moves the weights without noise, as in a ``HyperODEBlock``: nothing charges for it. A net
that is random in some layers only needs nothing of its own: ``bayesianize(module, where=...)``, or ``ODEBlock``s
beside ``SDEBlock``s.
"""

import equinox as eqx
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn.baselines.odenet import carried
from sdebnn.checks import plain_number
from sdebnn.integrate import FixedGrid, Hidden, Solution, WeightPath
from sdebnn.models import SDEBlock


class PartlyRandom(eqx.Module):
    """A block of ``bayesianize``, on a grid, whose noise and KL end at the depth ``until``."""

    block: SDEBlock
    until: float = eqx.field(static=True, converter=plain_number)

    def __check_init__(self):
        grid = self._grid()
        if isinstance(self.until, bool) or not isinstance(self.until, float | int) or not 0 < self.until <= 1:
            raise ValueError(f"until={self.until!r} is a depth: pass a number above 0, at most 1.")
        if not round(self.until * grid.steps):
            raise ValueError(f"until={self.until!r} is less than half of one of {grid.steps} steps: pass more.")

    def _grid(self) -> FixedGrid:
        if not isinstance(self.block, SDEBlock) or not isinstance(self.block.solver, FixedGrid):
            found = getattr(self.block, "solver", self.block)
            raise ValueError(
                f"what is random up to a depth is solved on a grid; got {type(found).__name__}: use FixedGrid(20), "
                "predict with steps= instead of rtol=."
            )
        return self.block.solver

    def draw(self, *, key: PRNGKeyArray) -> WeightPath:
        """The path of standardised weights that the key names, and its KL."""
        return self._grid().weights(self.block, key=key, until=float(self.until))

    def __call__(self, h: Hidden, *, key: PRNGKeyArray) -> tuple[Hidden, Float[Array, ""]]:
        return self.solve(h, key=key)[:2]

    def solve(self, h: Hidden, *, key: PRNGKeyArray, rough: bool = False) -> Solution:
        """The hidden states at depth 1 and the KL; the evaluations that took and, if asked, the roughness."""
        path = self.draw(key=key)
        return carried(self.block, path.stages, h, rough)._replace(kl=path.kl)
