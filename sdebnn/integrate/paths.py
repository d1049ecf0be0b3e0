"""What a solver is given and what it returns; the KL of one weight path from the prior.

With u = (f_q - f_p) / σ = NN_φ / σ, along a path of Q:   log dQ/dP = ½ ∫|u|² dt + ∫ u·dB   (Itô).

    KL = ½ ∫|u|² dt + ∫ v·dB + KL(q(w_0) || p(w_0)),   v = 0  (analytic),  u  (full),  u with φ constant  (stl)

∫ v·dB has mean zero if, and only if, v is taken at the left end of each step and the step does not look ahead.
"""

from typing import Literal, NamedTuple, Protocol, get_args, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from sdebnn.checks import check_choice, check_key, shown
from sdebnn.processes import OU, Depth, Drift, Law, Weights

Estimator = Literal["analytic", "full", "stl"]
Hidden = Float[Array, "example *state"]


@runtime_checkable
class Process(Protocol):
    """The posterior of the weights, dw = (f_p + NN_φ) dt + σ dB from w_0, and how its KL is estimated."""

    prior: OU
    drift: Drift
    initial: Law
    kl: Estimator


class Posterior(eqx.Module):
    """A ``Process`` by itself, with no hidden units to carry."""

    prior: OU
    drift: Drift
    initial: Law
    kl: Estimator = eqx.field(default="analytic", static=True)


@runtime_checkable
class Dynamics(Process, Protocol):
    """All that is solved: the weights, and the hidden units dh = f_h dt through them. An ``SDEBlock`` is one."""

    def unravel(self, w: Float[Array, "*step weight"]) -> PyTree[Array]:
        """The arrays of the field that standardised weights stand for."""
        ...

    def f_h(self, t: Depth, h: Hidden, random: PyTree[Array]) -> Hidden:
        """dh/dt of a batch, with these arrays in place."""
        ...


class Solution(NamedTuple):
    """One draw of the weights, evaluated on a batch; and what that took.

    ``evaluations`` counts those of f_h (as many as of NN_φ); ``finished`` is whether depth 1 was reached;
    ``roughness``, if asked for, is how much the slope dh/dt changes from step to step: the mean square, summed over
    depth; ``stray`` is how far the shadow of reversible Heun is from the state at depth 1, in units of the state's
    size, and 0 for other methods.
    """

    outputs: Float[Array, "..."]
    kl: Float[Array, ""]
    evaluations: Int[Array, ""]
    finished: Bool[Array, ""]
    roughness: Float[Array, ""]
    stray: Float[Array, ""] | float = 0.0


class WeightPath(NamedTuple):
    """One draw of the weights at every grid point, both ends included, and its KL estimate in nats.

    ``stages`` are the weights that carry the hidden units through each step, one set for each stage of the method.
    """

    t: Float[Array, " time"]
    w: Float[Array, "time weight"]
    stages: tuple[Float[Array, "step weight"], ...]
    kl: Float[Array, ""]


def check_estimator(kl: str, drift: Drift) -> None:
    """Refuse an estimator that is unknown, or that cannot be what it says for this drift."""
    check_choice("kl", kl, get_args(Estimator))
    if kl == "stl" and not isinstance(drift, eqx.Module):
        raise ValueError(
            f"kl='stl' holds the drift's parameters constant, and cannot see those of drift={shown(drift)}: "
            "write it as an Equinox module whose arrays they are, or use kl='analytic'."
        )


def frozen(tree: PyTree) -> PyTree:
    """The same tree, through whose arrays no gradient flows."""
    arrays, rest = eqx.partition(tree, eqx.is_inexact_array)
    return eqx.combine(lax.stop_gradient(arrays), rest)


def start_of(process: Process, key: PRNGKeyArray) -> tuple[Weights, PRNGKeyArray]:
    """w_0, and the key that names the Brownian path."""
    check_estimator(process.kl, process.drift)
    check_key(key)
    initial_key, path_key = jax.random.split(key)
    return process.initial.sample(key=initial_key), path_key


def start_nats(initial: Law, w0: Weights, kl: Estimator) -> Float[Array, ""]:
    """The start's part of the KL: in closed form, or the log density ratio at w_0 that goes with the martingale."""
    if kl == "analytic":
        return initial.kl()
    return (frozen(initial) if kl == "stl" else initial).log_ratio(w0)


def energy(process: Process, correction: Weights) -> Float[Array, ""]:
    """½ |u|², from NN_φ: what the KL gains per unit of depth."""
    return 0.5 * jnp.sum((correction / process.prior.sigma) ** 2)


def integrand(process: Process, t: Depth, w: Weights, correction: Weights) -> Weights | None:
    """v of the martingale ∫ v·dB, at the left end of a step where NN_φ is ``correction``; none if analytic."""
    if process.kl == "analytic":
        return None
    return (frozen(process.drift)(t, w) if process.kl == "stl" else correction) / process.prior.sigma


def step_nats(
    process: Process,
    shares: tuple[float, ...],
    w: Weights,
    corrections: tuple[Weights, ...],
    t: Depth,
    dt: float,
    dB: Weights,
) -> Float[Array, ""]:
    """What one step from (t, w) adds to the KL: the energy over its stages, NN_φ at each, and the martingale."""
    energies = [share * energy(process, f) for share, f in zip(shares, corrections, strict=True)]
    nats = dt * sum(energies, start=jnp.zeros((), w.dtype))
    v = integrand(process, t, w, corrections[0])
    # Zero mean, yet kept: path by path it cancels the likelihood's noise.
    return nats if v is None else nats + jnp.sum(v * dB)
