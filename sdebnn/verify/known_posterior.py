"""A model whose posterior is known in closed form, against which the theorems are measured.

The prior is dw = rate (mean - w) dt + σ dB from a known w_0, with one observation y = w_1 + noise. With τ = 1 - t the
remaining depth, w_1 given w_t is N(m, v), and the posterior's drift is

    f_q - f_p = σ² d/dw log p(y | w_t) = σ² exp(-rate τ) (y - m) / (v + noise²).

There the ELBO equals the log evidence log N(y; m_0, v_0 + noise²) on every path, and STL's gradient vanishes.
"""

import math
from typing import NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray

from sdebnn.integrate import AbstractSolver, KLEstimator, MethodName, Posterior
from sdebnn.processes import OU, AbstractDrift, AbstractInitialLaw, Depth, Normal, Weights

ESTIMATORS: tuple[KLEstimator, ...] = get_args(KLEstimator)
METHOD_NAMES: tuple[MethodName, ...] = get_args(MethodName)
PATHS = 4096  # sampled for each theorem
STANDARD_ERRORS = 4  # tolerance of a theorem about a mean


class Theorem(NamedTuple):
    """A statement that holds if ``measured`` is within ``tolerance`` of ``exact``."""

    name: str
    measured: float
    exact: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether it held here. NaN never passes."""
        return abs(self.measured - self.exact) <= self.tolerance


class LinearGaussian(NamedTuple):
    """The model of this module."""

    prior: OU = OU(rate=1.0, mean=0.2, sigma=0.7)
    w0: float = 0.5
    y: float = 1.4
    noise: float = 0.4

    def ahead(self, t: Depth, w: Array) -> tuple[Array, Array]:
        """Mean and variance of y given w_t."""
        mean, std = self.prior.marginal(1 - t, w)
        return mean, std**2 + self.noise**2

    def log_evidence(self) -> float:
        """log p(y), w_0 known."""
        mean, variance = self.ahead(0.0, jnp.asarray(self.w0))
        return float(log_normal(self.y, mean, variance))

    def log_likelihood(self, w1: Array) -> Array:
        """log p(y | w_1)."""
        return log_normal(self.y, w1, self.noise**2)


class ExactDrift(AbstractDrift):
    """The exact posterior's drift at gain 1 and offset 0; these two are its parameters."""

    gain: Float[Array, ""]
    offset: Float[Array, ""]
    problem: LinearGaussian = eqx.field(static=True)

    def __init__(self, problem: LinearGaussian, gain: float = 1.0, offset: float = 0.0):
        self.problem, self.gain, self.offset = problem, jnp.asarray(gain), jnp.asarray(offset)

    def __call__(self, t: Depth, w: Weights) -> Weights:
        prior = self.problem.prior
        mean, variance = self.problem.ahead(t, w)
        pull = jnp.exp(-prior.rate * (1 - t)) * (self.problem.y - mean) / variance
        return self.gain * prior.sigma**2 * pull + self.offset


class OUDrift(AbstractDrift):
    """The drift f_q - f_p that turns one OU process into another; it is linear in w."""

    prior: OU
    posterior: OU

    def __call__(self, t: Depth, w: Weights) -> Weights:
        return self.posterior.drift(t, w) - self.prior.drift(t, w)


def log_normal(y: float, mean: Array, variance: Array | float) -> Array:
    """log N(y; mean, variance)."""
    return -0.5 * (y - mean) ** 2 / variance - 0.5 * jnp.log(2 * math.pi * variance)


def ou_kl(prior: OU, posterior: OU, w0: float) -> float:
    """KL between two OU processes with the same σ and w_0:  1/(2σ²) ∫ E_q[(a w + b)²] dt, in closed form."""
    rate, mean, sigma = posterior.rate, posterior.mean, posterior.sigma
    a, b = prior.rate - rate, rate * mean - prior.rate * prior.mean
    c0, c1 = a * mean + b, a * (w0 - mean)  # a E[w_t] + b = c0 + c1 exp(-rate t)
    e1 = -math.expm1(-rate) / rate  # ∫ exp(-rate t) dt
    e2 = -math.expm1(-2 * rate) / (2 * rate)  # ∫ exp(-2 rate t) dt
    spread = a**2 * sigma**2 * (1 - e2) / (2 * rate)
    return float((c0**2 + 2 * c0 * c1 * e1 + c1**2 * e2 + spread) / (2 * sigma**2))


def elbo_samples(
    problem: LinearGaussian,
    drift: AbstractDrift,
    initial: AbstractInitialLaw,
    kl: KLEstimator,
    solver: AbstractSolver,
    keys: Key[Array, " path"],
) -> Float[Array, " path"]:
    """One ELBO estimate for each key."""

    def one(key: PRNGKeyArray) -> Array:
        path = solver.weights(Posterior(problem.prior, drift, initial, kl), key=key)
        return jnp.sum(problem.log_likelihood(path.w[-1])) - path.kl

    return jax.vmap(one)(keys)


@eqx.filter_jit
def gradient_samples(
    problem: LinearGaussian,
    parts: tuple[AbstractDrift, AbstractInitialLaw],
    kl: KLEstimator,
    solver: AbstractSolver,
    keys: Key[Array, " path"],
) -> Float[Array, "path parameter"]:
    """The ELBO's gradient in the parameters of (drift, initial law), one estimate for each key."""
    parameters, rest = eqx.partition(parts, eqx.is_inexact_array)

    def value(parameters: tuple, key: PRNGKeyArray) -> Array:
        drift, initial = eqx.combine(parameters, rest)
        return elbo_samples(problem, drift, initial, kl, solver, key[None])[0]

    gradients = jax.vmap(jax.grad(value), in_axes=(None, 0))(parameters, keys)
    return jnp.concatenate([leaf.reshape(len(keys), -1) for leaf in jax.tree.leaves(gradients)], axis=1)


def mean_and_error(samples: Array | np.ndarray) -> tuple[float, float]:
    """Mean and standard error, in double precision."""
    values = np.asarray(samples, dtype=np.float64)
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))


def within(samples: Array | np.ndarray, exact: float) -> tuple[float, float, float]:
    """Mean, exact value and tolerance of a theorem about a mean."""
    mean, error = mean_and_error(samples)
    return mean, exact, STANDARD_ERRORS * error


def posterior_if_w0_is_inferred(problem: LinearGaussian) -> tuple[tuple[ExactDrift, Normal], float]:
    """The exact posterior, which is Normal, and the log evidence, if w_0 is not known but has the prior N(0, 1)."""
    mean, variance = (float(part) for part in problem.ahead(0.0, jnp.zeros(())))
    slope = math.exp(-problem.prior.rate)  # y given w_0 is N(mean + slope w_0, variance)
    precision = 1 + slope**2 / variance
    center = slope * (problem.y - mean) / variance / precision
    evidence = float(log_normal(problem.y, jnp.asarray(mean), variance + slope**2))
    return (ExactDrift(problem), Normal(jnp.array([center]), precision**-0.5)), evidence
