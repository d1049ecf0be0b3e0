"""Processes that are observed themselves: models without hidden units, for the figures about paths."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn.integrate import FixedGrid, Posterior, Solution
from sdebnn.nn import AbstractModel
from sdebnn.processes import AbstractDrift, AbstractInitialLaw
from sdebnn.processes.drift import between_knots


class Known(AbstractInitialLaw):
    """w_0 is known, and not trained."""

    value: float = eqx.field(static=True)

    def sample(self, *, key: PRNGKeyArray) -> Array:
        return jnp.full(1, self.value)

    def log_ratio(self, w0: Array) -> Array:
        return jnp.zeros(())

    def kl(self) -> Array:
        return jnp.zeros(())

    def prior(self) -> "Known":
        return self

    @property
    def is_inferred(self) -> bool:
        return False


class Shift(AbstractDrift):
    """A drift b(t) of the depth alone, linear between knots: mean-field, since the increments stay independent."""

    offset: Float[Array, "knot weight"]

    def __call__(self, t, w):
        return between_knots(self.offset, t)


class ObservedPath(AbstractModel):
    """The outputs at "inputs" t are the path at these depths, which must be on the grid."""

    posterior: Posterior
    grid: FixedGrid = eqx.field(static=True)

    def solve(self, x, *, key, with_roughness=False) -> Solution:
        path = self.grid.weights(self.posterior, key=key)
        places = jnp.round(x[:, 0] * self.grid.steps).astype(int)
        return Solution(path.w[places], path.kl)
