"""When reversible Heun is stable, and how far its shadow moves away from the state when it is not.

On dy = -a y dt + σ dB with steps dt and r = a dt, one step maps the state y and its shadow ŷ to

    (y, ŷ) ← [[1 - r, r²/2], [2, -(1 + r)]] (y, ŷ) + (1 - r/2, 1) σ ΔB,     eigenvalues -r ± √(1 + r²), product -1.

One of them follows y. The other, -(r + √(1 + r²)), belongs to the distance ŷ - y, and its size exceeds 1 for every
contraction a > 0. Over depth 1 it multiplies that distance by exp(asinh(r) / dt), which tends to exp(a): more steps
reduce what the distance starts from, but not its growth.
"""

import warnings

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Float

from sdebnn.processes import AbstractPrior

MAX_SHADOW_SPREAD = 1.0  # in standard deviations of the weights; above it, more than half of the shadow is error
MAX_SHADOW_DISTANCE = 0.5  # in units of the state: a stable solve stays well below it
REMEDY = "use method='heun' or 'ralston3' with gradient='checkpoint'"


def shadow_spread(rate: float, steps: int) -> float:
    """Standard deviation of ŷ - y at depth 1, in units of that of y, under an OU process of this rate.

    A unit kick moves ŷ - y by c_j = α p^j + β q^j after j more steps, p and q being the eigenvalues. So the variance of
    ŷ - y is Σ c_j² dt.
    """
    r = rate / steps
    root = np.sqrt(1 + r**2)
    p, q = -r - root, root - r
    first, second = r / 2, -r / 2 - r**2
    alpha = (second - first * q) / (p - q)
    j = np.arange(steps)
    with np.errstate(over="ignore", under="ignore"):  # a distance that overflows becomes infinite and is refused
        distance = np.sqrt(np.mean((alpha * p**j + (first - alpha) * q**j) ** 2))
    return float(distance / np.sqrt(-np.expm1(-2 * rate) / (2 * rate) if rate else 1.0))


def check_contraction(prior: AbstractPrior, steps: int, remedy: str = REMEDY) -> None:
    """Refuse reversible Heun for a prior under which the shadow is farther from the weights than their own spread.

    The drift and the field are evaluated at the shadow, whose variation would be mostly error.
    """
    rate = prior.contraction()
    if rate is None:  # unknown or trained: only a solve shows whether it is stable
        return
    spread = shadow_spread(rate, steps)
    if spread > MAX_SHADOW_SPREAD:
        raise ValueError(
            f"rate={rate:g} makes reversible Heun unstable: after {steps} steps its shadow is {spread:.3g} standard "
            f"deviations away from the weights; {remedy}."
        )


def shadow_distance(state: Float[Array, "*state"], shadow: Float[Array, "*state"]) -> Float[Array, ""]:
    """The distance between the state at depth 1 and its shadow, in units of the state's size (root mean squares)."""
    size = jnp.sqrt(jnp.mean(state**2))
    apart = jnp.sqrt(jnp.mean((shadow - state) ** 2))
    # If both are zero, the distance is 0; an infinite state gives NaN or infinity, which is never stable.
    return lax.stop_gradient(jnp.where(apart == 0, 0.0, apart / jnp.where(size == 0, jnp.finfo(size.dtype).tiny, size)))


def warn_if_unstable(found: Float[Array, "..."]) -> None:
    """Warn if a solve by reversible Heun was unstable. Traced values are not known yet and are not checked."""
    if isinstance(found, Tracer):
        return
    worst = float(np.max(np.asarray(found)))
    if not worst <= MAX_SHADOW_DISTANCE:
        warnings.warn(
            f"reversible Heun is unstable here: at depth 1 its shadow is {worst:.3g} times the state's size away from "
            f"the state, since the drift or the field contracts; {REMEDY}.",
            RuntimeWarning,
            stacklevel=3,
        )
