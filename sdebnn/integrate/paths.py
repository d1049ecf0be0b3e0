"""The inputs and outputs of solvers, and the KL of one weight path from the prior.

With u = (f_q - f_p) / σ = NN_φ / σ, along a path of Q:   log dQ/dP = ½ ∫|u|² dt + ∫ u·dB   (Itô).

    KL = ½ ∫|u|² dt + ∫ v·dB + KL(q(w_0) || p(w_0)),   v = 0  (analytic),  u  (full),  u with φ constant  (stl)

∫ v·dB has mean zero only if v is evaluated at the left end of each step and the step does not look ahead.
"""

from typing import Literal, NamedTuple, Protocol, get_args, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from sdebnn.checks import check_choice, check_instance, check_key
from sdebnn.fields import FasterSteps
from sdebnn.integrate.guide import Guide, Points
from sdebnn.processes import AbstractDrift, AbstractInitialLaw, AbstractPrior, Depth, Weights

KLEstimator = Literal["analytic", "full", "stl"]
Hidden = Float[Array, "example *state"]


@runtime_checkable
class Process(Protocol):
    """The posterior of the weights, dw = (f_p + NN_φ) dt + σ dB from w_0, and how its KL is estimated.

    NN_φ is ``drift(t, w)``, which sees the weights alone, plus that of the ``guide``, if there is one.
    """

    @property
    def prior(self) -> AbstractPrior:
        """f_p and σ."""
        ...

    @property
    def drift(self) -> AbstractDrift:
        """The part of NN_φ that sees the weights alone."""
        ...

    @property
    def guide(self) -> Guide | None:
        """The part of NN_φ that sees hidden states, too."""
        ...

    @property
    def initial(self) -> AbstractInitialLaw:
        """The law of w_0."""
        ...

    @property
    def kl(self) -> KLEstimator:
        """The estimator of the KL."""
        ...


class Posterior(eqx.Module):
    """A ``Process`` without hidden units.

        process = Posterior(OU(sigma=0.2), NoDrift(), Point(jnp.ones(4)))
        path = FixedGrid(10).weights(process, key=key)
        nats = path.kl

    Solvers can draw its paths, as ``FixedGrid`` does here. ``bayesianize`` makes processes with hidden units.
    """

    prior: AbstractPrior
    drift: AbstractDrift
    initial: AbstractInitialLaw
    kl: KLEstimator = eqx.field(default="analytic", static=True)

    def __check_init__(self):
        check_instance("prior", self.prior, AbstractPrior, "a prior", "OU(sigma=0.1)")
        check_instance("drift", self.drift, AbstractDrift, "a drift", "one such as DriftNet, or an AbstractDrift")
        check_instance("initial", self.initial, AbstractInitialLaw, "a law of w_0", "Point or Normal")

    @property
    def guide(self) -> None:
        """None: there are no hidden units to see."""
        return None


@runtime_checkable
class Dynamics(Process, Protocol):
    """A ``Process`` with the hidden units dh = f_h dt that are driven by its weights, such as an ``SDEBlock``."""

    def unravel(self, w: Float[Array, "*step weight"]) -> PyTree[Array]:
        """The arrays of the field that belong to standardised weights."""
        ...

    def f_h(self, t: Depth, h: Hidden, arrays: PyTree[Array]) -> Hidden:
        """dh/dt of a batch, computed with these arrays."""
        ...

    def all_euler_steps(self, arrays: PyTree[Array], h: Hidden) -> FasterSteps | None:
        """A faster way to take all Euler steps than a loop, if the field has one; each array has the steps first."""
        ...


class Solution(NamedTuple):
    """One draw of the weights evaluated on a batch, with statistics of the solve.

    ``evaluations`` is the number of evaluations of f_h (and of NN_φ). ``finished`` is whether depth 1 was reached.
    ``roughness``, if requested, is the mean square change of the slope dh/dt from step to step, summed over depth.
    ``shadow_distance`` is the distance between the state at depth 1 and its shadow, which is reversible Heun's second
    copy of the state, in units of the state's size; it is 0 for other methods.
    """

    outputs: Float[Array, "example *output"]
    kl: Float[Array, ""]
    evaluations: Int[Array, ""] | int = 0
    finished: Bool[Array, ""] | bool = True
    roughness: Float[Array, ""] | float = 0.0
    shadow_distance: Float[Array, ""] | float = 0.0


class WeightPath(NamedTuple):
    """One draw of the weights at every grid point, including both ends, and its KL estimate in nats.

    ``stages`` are the weights with which the hidden units take each step, one set for each stage of the method.
    ``shadow_distance`` is that of ``Solution``, for the weights; None for methods without a shadow.
    """

    t: Float[Array, " time"]
    w: Float[Array, "time weight"]
    stages: tuple[Float[Array, "step weight"], ...]
    kl: Float[Array, ""]
    shadow_distance: Float[Array, ""] | None = None


def check_estimator(kl: str) -> None:
    """Refuse an unknown estimator of the KL."""
    check_choice("kl", kl, get_args(KLEstimator))


def frozen(tree: PyTree) -> PyTree:
    """The same tree with gradients stopped at its arrays."""
    arrays, rest = eqx.partition(tree, eqx.is_inexact_array)
    return eqx.combine(lax.stop_gradient(arrays), rest)


class Start(NamedTuple):
    """The state at depth 0: w_0, the hidden states that the guide sees, if there is one, and the KL of w_0."""

    w0: Weights
    seen: Points | None
    nats: Float[Array, ""]
    path_key: PRNGKeyArray


def start_of(process: Process, key: PRNGKeyArray) -> Start:
    """Draw w_0, and split off the key of the Brownian path."""
    check_estimator(process.kl)
    check_key(key)
    initial_key, path_key = jax.random.split(key)
    w0, guide = process.initial.sample(key=initial_key), process.guide
    if guide is None:
        return Start(w0, None, start_nats(process.initial, w0, process.kl), path_key)
    assert isinstance(process, Dynamics)
    law = guide.start_law(process)
    if law is None:
        return Start(w0, guide.start(), start_nats(process.initial, w0, process.kl), path_key)
    w0 = law.moved(w0)
    nats = start_nats(process.initial, w0, process.kl)
    if process.kl == "analytic" and process.initial.kl() is not None:
        return Start(w0, guide.start(), nats + law.more_kl(), path_key)
    if process.kl == "stl":
        still: Dynamics = frozen(process)
        assert still.guide is not None
        law = still.guide.start_law(still)
        assert law is not None
    return Start(w0, guide.start(), nats + law.more_log_ratio(w0), path_key)


def correction(process: Process, t: Depth, w: Weights, seen: Points | None) -> Weights:
    """NN_φ at a depth, at weights and at the hidden states that the guide sees."""
    own = process.drift(t, w)
    if process.guide is None:
        return own
    assert isinstance(process, Dynamics)
    assert seen is not None
    return own + process.guide.drift(process, t, w, seen)


def slope_of_seen(process: Process, t: Depth, w: Weights, seen: Hidden | None) -> Hidden | None:
    """dh/dt of the hidden states that the guide sees."""
    if seen is None:
        return None
    assert isinstance(process, Dynamics)
    return process.f_h(t, seen, process.unravel(w))


def with_seen(seen: Points | None, h: Hidden) -> Float[Array, "seen_and_example *state"]:
    """The hidden states that the guide sees, followed by a batch: they are carried as its first examples."""
    return h if seen is None else jnp.concatenate([seen.astype(h.dtype), h])


def seen_in(process: Process, h: Float[Array, "seen_and_example *state"]) -> Points | None:
    """The hidden states that the guide sees, as the first examples of a batch."""
    return None if process.guide is None else h[: process.guide.points.shape[0]]


def start_nats(initial: AbstractInitialLaw, w0: Weights, kl: KLEstimator) -> Float[Array, ""]:
    """The KL of w_0: in closed form for the analytic estimator if there is one, otherwise by the log density ratio."""
    closed_form = initial.kl() if kl == "analytic" else None
    if closed_form is not None:
        return closed_form
    return (frozen(initial) if kl == "stl" else initial).log_ratio(w0)


def energy(process: Process, known: Weights) -> Float[Array, ""]:
    """½ |u|² from NN_φ: the KL per unit of depth."""
    return 0.5 * jnp.sum((known / process.prior.sigma) ** 2)


def integrand(process: Process, t: Depth, w: Weights, seen: Points | None, known: Weights) -> Weights | None:
    """v of the martingale ∫ v·dB at the left end of a step, where NN_φ is ``known``; None for "analytic"."""
    if process.kl == "analytic":
        return None
    return (correction(frozen(process), t, w, seen) if process.kl == "stl" else known) / process.prior.sigma


def step_nats(
    process: Process,
    shares: tuple[float, ...],
    w: Weights,
    seen: Points | None,
    corrections: tuple[Weights, ...],
    t: Depth,
    dt: float,
    dB: Weights,
) -> Float[Array, ""]:
    """The KL of one step from (t, w, seen): the energy, from NN_φ at each stage, and the martingale."""
    energies = [share * energy(process, f) for share, f in zip(shares, corrections, strict=True)]
    nats = dt * sum(energies, start=jnp.zeros((), w.dtype))
    v = integrand(process, t, w, seen, corrections[0])
    # The term has mean zero, but near the optimum it reduces the variance of the ELBO.
    return nats if v is None else nats + jnp.sum(v * dB)
