"""The prior process of the weights:   dw = f_p(t, w) dt + σ dB."""

import warnings
from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sdebnn.checks import check_parameter, check_positive, plain_number

SMALLEST_USUAL_SIGMA = 1e-4  # below this, the KL keeps the weights from moving
SERIES_TERMS = 20  # enough for float64 accuracy up to an argument of 1

Depth = float | Float[Array, ""]
Weights = Float[Array, " weight"]


class AbstractPrior(eqx.Module):
    """A prior over weight paths, dw = drift(t, w) dt + sigma dB, with one constant sigma for all weights.

    To write your own, subclass it with a field ``sigma`` and a method ``drift``. Array fields are trained, Python
    numbers are fixed:

        class Pullback(AbstractPrior):
            strength: float = 1.0
            sigma: float = 0.2

            def drift(self, t, w):
                return -self.strength * jnp.tanh(w)

        block = bayesianize(field, prior=Pullback(strength=0.5), key=key)

    ``t`` is the depth, from 0 to 1, and ``w`` the vector of all standardised weights.
    """

    sigma: eqx.AbstractVar[float]

    @abstractmethod
    def drift(self, t: Depth, w: Weights) -> Weights:
        """f_p(t, w), the slope of the weights at depth t without noise: a vector like w."""

    def linear(self) -> tuple[float | Float[Array, "..."], float | Float[Array, "..."]] | None:
        """(rate, mean) if f_p(t, w) = rate (mean - w) with one rate for all weights, otherwise None.

        Solvers use it where a linear prior allows a faster recursion.
        """
        return None

    def contraction(self) -> float | None:
        """The rate at which f_p contracts, if it is a known number; None if it is unknown or trained.

        Methods that are unstable under contraction refuse a prior with too large a rate.
        """
        return None

    def constrained(self) -> "AbstractPrior":
        """The nearest valid prior. ``fit`` calls this after every update, which may leave the valid range."""
        return self


def _number_or_array(value: Any) -> Any:
    """Convert NumPy scalars to Python numbers (fixed) and NumPy arrays to JAX arrays (trained)."""
    value = plain_number(value)
    numbers = isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.floating)
    return jnp.asarray(value) if numbers else value


class OU(AbstractPrior):
    """Ornstein-Uhlenbeck prior, f_p(t, w) = rate (mean - w): each weight is pulled to a mean, and pushed by noise.

        prior = OU(rate=1.0, sigma=0.2)
        trained = OU(rate=jnp.array(1.0), sigma=0.2)
        mean, std = prior.marginal(0.5, jnp.ones(4))

    ``sigma`` is the diffusion: the size of the noise. It is fixed; usual values are 0.01 to 1. ``rate`` and ``mean``
    are trained if given as arrays and fixed if given as numbers. A NumPy scalar counts as a number, a JAX array without
    axes as an array.
    """

    rate: float | Float[Array, "..."] = eqx.field(default=1.0, converter=_number_or_array)
    mean: float | Float[Array, "..."] = eqx.field(default=0.0, converter=_number_or_array)
    sigma: float = eqx.field(default=0.1, converter=plain_number)

    def __check_init__(self):
        check_positive("sigma", self.sigma)
        if self.sigma < SMALLEST_USUAL_SIGMA:
            warnings.warn(
                f"sigma={self.sigma:g} leaves the weights next to no freedom: moving one of them by 0.1 over the depth "
                f"costs {0.5 * (0.1 / self.sigma) ** 2:.1g} nats. Usual values are 0.01 to 1; for weights without "
                "noise, use ODEBlock.",
                stacklevel=3,
            )
        check_parameter("rate", self.rate, least=0.0)
        check_parameter("mean", self.mean)

    def drift(self, t: Depth, w: Weights) -> Weights:
        """f_p(t, w)."""
        return self.rate * (self.mean - w)

    def linear(self) -> tuple[float | Float[Array, "..."], float | Float[Array, "..."]] | None:
        """``rate`` and ``mean``, unless each weight has its own rate."""
        return (self.rate, self.mean) if jnp.ndim(self.rate) == 0 else None

    def contraction(self) -> float | None:
        """``rate``, unless it is trained."""
        return None if isinstance(self.rate, jax.Array) else self.rate

    def constrained(self) -> "OU":
        """The same prior with a trained ``rate`` clipped at 0: a negative rate would let the weights explode."""
        if not isinstance(self.rate, jax.Array):
            return self
        return eqx.tree_at(lambda prior: prior.rate, self, jnp.maximum(self.rate, 0))

    def marginal(self, t: Depth, w0: Float[Array, "*w"]) -> tuple[Float[Array, "*w"], Float[Array, "*w"]]:
        """Mean and standard deviation of w_t given w_0, in closed form."""
        rate = jnp.asarray(self.rate, w0.dtype)
        mean = self.mean + (w0 - self.mean) * jnp.exp(-rate * t)
        # The variance is σ² (1 - exp(-2 rate t)) / (2 rate), with the limit σ² t (Brownian motion) at rate 0.
        std = self.sigma * jnp.sqrt(t) * jnp.sqrt(_mean_decay(2 * rate * t))
        return mean, jnp.broadcast_to(std, mean.shape)


def _mean_decay(z: Float[Array, "..."]) -> Float[Array, "..."]:
    """(1 - exp(-z)) / z, the mean of exp(-s) over s from 0 to z, smooth at 0 with smooth derivatives."""
    small = jnp.abs(z) < 1
    # 1 - z/2 (1 - z/3 (1 - ...)): near 0 the quotient itself would lose all digits.
    near, far = jnp.where(small, z, 0.0), jnp.where(small, 1.0, z)
    series = jnp.ones_like(z)
    for k in range(SERIES_TERMS, 1, -1):
        series = 1 - near / k * series
    return jnp.where(small, series, -jnp.expm1(-far) / far)
