"""Theorems on the prior, the KL of paths and the ELBO, with answers in closed form."""

import math
from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PRNGKeyArray

from sdebnn.contract import draw_keys
from sdebnn.integrate import FixedGrid, KLEstimator, Posterior
from sdebnn.models import SDEBNN
from sdebnn.processes import OU, DriftNet, Normal, Point
from sdebnn.verify.known_posterior import (
    ESTIMATORS,
    METHOD_NAMES,
    PATHS,
    STANDARD_ERRORS,
    ExactDrift,
    LinearGaussian,
    OUDrift,
    Theorem,
    elbo_samples,
    gradient_samples,
    mean_and_error,
    ou_kl,
    posterior_if_w0_is_inferred,
    within,
)


def marginals(key: PRNGKeyArray) -> Iterator[Theorem]:
    """The prior's law at half depth and at full depth."""
    prior, w0, steps = OU(rate=1.0, mean=0.3, sigma=0.5), jnp.array([1.5]), 400
    no_drift = DriftNet(1, (1,), key=key)  # zero before training

    @eqx.filter_jit
    def paths(keys: Key[Array, " path"]) -> Array:
        law = Posterior(prior, no_drift, Point(w0))
        return jax.vmap(lambda key: FixedGrid(steps).weights(law, key=key).w[:, 0])(keys)

    w = np.asarray(paths(draw_keys(key, PATHS)), dtype=np.float64)
    for t, index in ((0.5, steps // 2), (1.0, steps)):
        mean, std = (float(part[0]) for part in prior.marginal(t, w0))
        at_t = w[:, index]
        yield Theorem(f"OU prior: mean at t = {t}", *within(at_t, mean))
        # The standard error of a Gaussian's standard deviation is std / sqrt(2 n).
        tolerance = STANDARD_ERRORS * std / math.sqrt(2 * PATHS)
        yield Theorem(f"OU prior: standard deviation at t = {t}", float(at_t.std(ddof=1)), std, tolerance)
    yield Theorem("the horizon is exactly 1", float(FixedGrid(steps).times()[-1]), 1.0, 0.0)


def path_kl(key: PRNGKeyArray) -> Iterator[Theorem]:
    """The KL of paths is zero between a process and itself, and has a closed form between two OU processes."""
    field_key, draw_key = jax.random.split(key)
    for kl in ESTIMATORS:
        model = SDEBNN.paper_mlp(2, 1, widths=(8,), drift=(4,), initial=Point, kl=kl, key=field_key)
        nats = float(eqx.filter_jit(model)(jnp.ones((3, 2)), key=draw_key)[1])
        yield Theorem(f"KL of the untrained posterior ({kl})", nats, 0.0, 0.0)
    prior, posterior, w0 = OU(1.0, 0.0, 0.5), OU(2.0, 0.4, 0.5), 0.8
    drift, initial = OUDrift(prior, posterior), Point(jnp.array([w0]))

    @eqx.filter_jit
    def nats_of(keys: Key[Array, " path"], kl: KLEstimator) -> Array:
        law = Posterior(prior, drift, initial, kl)
        return jax.vmap(lambda key: FixedGrid(1000).weights(law, key=key).kl)(keys)

    for kl in ESTIMATORS[:2]:
        samples = nats_of(draw_keys(draw_key, PATHS), kl)
        yield Theorem(f"KL between two OU paths ({kl})", *within(samples, ou_kl(prior, posterior, w0)))


def evidence(key: PRNGKeyArray) -> Iterator[Theorem]:
    """The ELBO equals the log evidence at the exact posterior, and is below it everywhere else."""
    problem = LinearGaussian()
    initial, keys, grid = Point(jnp.array([problem.w0])), draw_keys(key, PATHS), FixedGrid(1000)
    sample = eqx.filter_jit(elbo_samples)
    exact = problem.log_evidence()
    for kl in ESTIMATORS:
        samples = sample(problem, ExactDrift(problem), initial, kl, grid, keys)
        yield Theorem(f"ELBO = log evidence at the exact posterior ({kl})", *within(samples, exact))
    posterior, evidence_of_inferred = posterior_if_w0_is_inferred(problem)
    for kl in ESTIMATORS:
        samples = sample(problem, *posterior, kl, grid, keys)
        yield Theorem(f"ELBO = log evidence, w_0 inferred ({kl})", *within(samples, evidence_of_inferred))
    for method in METHOD_NAMES[1:]:
        for kl in ESTIMATORS:
            samples = sample(problem, ExactDrift(problem), initial, kl, FixedGrid(400, method), keys)
            yield Theorem(f"ELBO = log evidence, by {method} ({kl})", *within(samples, exact))
    for gain, offset in ((0.0, 0.0), (0.5, 0.0), (1.5, 0.0), (1.0, 0.5), (1.0, -0.5)):
        samples = sample(problem, ExactDrift(problem, gain, offset), initial, "full", grid, keys)
        mean, error = mean_and_error(samples)
        # Even four standard errors above the mean, the ELBO must not exceed the evidence.
        excess = max(0.0, mean + STANDARD_ERRORS * error - exact)
        yield Theorem(f"ELBO's excess over the evidence, drift × {gain:g} {offset:+g}", excess, 0.0, 0.0)
        if gain == 1:
            # The gap is the KL to the exact posterior: ½ ∫ (offset / σ)² dt.
            gap = 0.5 * (offset / problem.prior.sigma) ** 2
            yield Theorem(f"the bound's gap at drift {offset:+g}", exact - mean, gap, STANDARD_ERRORS * error)


def landing(key: PRNGKeyArray) -> Iterator[Theorem]:
    """Sticking the landing: at the exact posterior, the only noise in STL's gradient comes from the grid."""
    problem, keys = LinearGaussian(), draw_keys(key, 1024)
    exact = (ExactDrift(problem), Point(jnp.array([problem.w0])))

    def spread(kl: KLEstimator, steps: int) -> float:
        # Only φ: w_0 is a parameter of the model here, not of the posterior.
        return float(gradient_samples(problem, exact, kl, FixedGrid(steps), keys)[:, :2].std(0).max())

    analytic, at_400, at_1600 = spread("analytic", 400), spread("stl", 400), spread("stl", 1600)
    yield Theorem("STL's gradient noise / analytic's, 400 steps", at_400 / analytic, 0.0, 0.05)
    yield Theorem("STL's gradient noise, 1600 steps / 400 steps", at_1600 / at_400, 0.25, 0.1)
    posterior, _ = posterior_if_w0_is_inferred(problem)
    stl, analytic = (
        gradient_samples(problem, posterior, kl, FixedGrid(400), keys).std(0) for kl in ("stl", "analytic")
    )
    yield Theorem("STL's gradient noise / analytic's, w_0 inferred", float(jnp.max(stl) / jnp.max(analytic)), 0.0, 0.05)


def unbiased(key: PRNGKeyArray) -> Iterator[Theorem]:
    """Away from the optimum, the three estimators have the same mean, and so have their gradients."""
    problem, keys = LinearGaussian(), draw_keys(key, PATHS)
    parts = (ExactDrift(problem, 0.4, 0.3), Normal(jnp.array([problem.w0]), 0.3))
    values = {kl: eqx.filter_jit(elbo_samples)(problem, *parts, kl, FixedGrid(100), keys) for kl in ESTIMATORS[:2]}
    yield Theorem("the martingale's mean", *within(values["analytic"] - values["full"], 0.0))
    gradients = {kl: gradient_samples(problem, parts, kl, FixedGrid(100), keys) for kl in ESTIMATORS}
    names = ("gain", "offset", "w_0's mean", "w_0's log std")
    for kl in ESTIMATORS[1:]:
        for i, name in enumerate(names):
            difference = gradients[kl][:, i] - gradients["analytic"][:, i]
            yield Theorem(f"gradient in {name}: {kl} - analytic", *within(difference, 0.0))
