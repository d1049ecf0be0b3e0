"""The exact-answer suite: what this machine computes, beside what mathematics says.

The yardstick is a model whose posterior is known. Prior dw = rate (mean - w) dt + σ dB from a known w_0, one
observation y = w_1 + noise. With τ = 1 - t left to go, w_1 given w_t is N(m, v), and the posterior's drift is

    f_q - f_p = σ² d/dw log p(y | w_t) = σ² exp(-rate τ) (y - m) / (v + noise²).

There the ELBO is the log evidence log N(y; m_0, v_0 + noise²), path by path, and STL's gradient vanishes.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray

from sdebnn.fields import TimeMLP
from sdebnn.integrate import Estimator, FixedGrid, Method, Noise
from sdebnn.likelihoods import Gaussian
from sdebnn.models import SDEBNN, Deterministic, bayesianize, draw_keys
from sdebnn.processes import OU, Depth, DriftNet, Normal, Point, Weights
from sdebnn.train import elbo

ESTIMATORS: tuple[Estimator, ...] = get_args(Estimator)
METHODS: tuple[Method, ...] = get_args(Method)
ORDERS = {"euler": 1.0, "heun": 1.0, "sra1": 1.5}
PATHS = 4096
STANDARD_ERRORS = 4


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
    """The model above: everything about it is known in closed form."""

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


class PosteriorDrift(eqx.Module):
    """The exact posterior's drift; gain 1 and offset 0 are its parameters at the optimum."""

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


class OUDrift(eqx.Module):
    """The drift that turns one OU process into another: f_q - f_p, linear in w."""

    prior: OU
    posterior: OU

    def __call__(self, t: Depth, w: Weights) -> Weights:
        return self.posterior.drift(t, w) - self.prior.drift(t, w)


def log_normal(y: float, mean: Array, variance: Array | float) -> Array:
    """log N(y; mean, variance)."""
    return -0.5 * (y - mean) ** 2 / variance - 0.5 * jnp.log(2 * math.pi * variance)


def ou_kl(prior: OU, posterior: OU, w0: float) -> float:
    """KL between two OU paths of one σ from one w_0:  1/(2σ²) ∫ E_q[(a w + b)²] dt, in closed form."""
    rate, mean, sigma = posterior.rate, posterior.mean, posterior.sigma
    a, b = prior.rate - rate, rate * mean - prior.rate * prior.mean
    c0, c1 = a * mean + b, a * (w0 - mean)  # a E[w_t] + b = c0 + c1 exp(-rate t)
    e1 = -math.expm1(-rate) / rate  # ∫ exp(-rate t) dt
    e2 = -math.expm1(-2 * rate) / (2 * rate)  # ∫ exp(-2 rate t) dt
    spread = a**2 * sigma**2 * (1 - e2) / (2 * rate)
    return float((c0**2 + 2 * c0 * c1 * e1 + c1**2 * e2 + spread) / (2 * sigma**2))


def elbo_samples(
    problem: LinearGaussian,
    drift: Callable[[Depth, Weights], Weights],
    initial: Point | Normal,
    kl: Estimator,
    grid: FixedGrid,
    keys: Key[Array, " path"],
) -> Float[Array, " path"]:
    """One ELBO estimate for each key."""

    def one(key: PRNGKeyArray) -> Array:
        path = grid.weights(problem.prior, drift, initial, kl=kl, key=key)
        return jnp.sum(problem.log_likelihood(path.w[-1])) - path.kl

    return jax.vmap(one)(keys)


@eqx.filter_jit
def gradient_samples(
    problem: LinearGaussian,
    parts: tuple[Callable[[Depth, Weights], Weights], Point | Normal],
    kl: Estimator,
    grid: FixedGrid,
    keys: Key[Array, " path"],
) -> Float[Array, "path parameter"]:
    """The ELBO's gradient in the parameters of (drift, initial law), one estimate for each key."""
    parameters, rest = eqx.partition(parts, eqx.is_inexact_array)

    def value(parameters: tuple, key: PRNGKeyArray) -> Array:
        drift, initial = eqx.combine(parameters, rest)
        return elbo_samples(problem, drift, initial, kl, grid, key[None])[0]

    gradients = jax.vmap(jax.grad(value), in_axes=(None, 0))(parameters, keys)
    return jnp.concatenate([leaf.reshape(len(keys), -1) for leaf in jax.tree.leaves(gradients)], axis=1)


def _mean(samples: Array | np.ndarray) -> tuple[float, float]:
    """Mean and standard error, in double precision."""
    values = np.asarray(samples, dtype=np.float64)
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))


def marginals(key: PRNGKeyArray) -> Iterator[Theorem]:
    """The prior's law at half depth and at full depth."""
    prior, w0, steps = OU(rate=1.0, mean=0.3, sigma=0.5), jnp.array([1.5]), 400
    nothing = DriftNet(1, (1,), key=key)

    @eqx.filter_jit
    def paths(keys: Key[Array, " path"]) -> Array:
        one = lambda key: FixedGrid(steps).weights(prior, nothing, Point(w0), kl="analytic", key=key).w[:, 0]  # noqa: E731
        return jax.vmap(one)(keys)

    w = np.asarray(paths(draw_keys(key, PATHS)), dtype=np.float64)
    for t, index in ((0.5, steps // 2), (1.0, steps)):
        mean, std = (float(part[0]) for part in prior.marginal(t, w0))
        at_t = w[:, index]
        yield Theorem(f"OU prior: mean at t = {t}", *_within(at_t, mean))
        # The standard error of a Gaussian's standard deviation is std / sqrt(2 n).
        tolerance = STANDARD_ERRORS * std / math.sqrt(2 * PATHS)
        yield Theorem(f"OU prior: standard deviation at t = {t}", float(at_t.std(ddof=1)), std, tolerance)
    yield Theorem("the horizon is exactly 1", float(FixedGrid(steps).times()[-1]), 1.0, 0.0)


def _within(samples: Array | np.ndarray, exact: float) -> tuple[float, float, float]:
    mean, error = _mean(samples)
    return mean, exact, STANDARD_ERRORS * error


def path_kl(key: PRNGKeyArray) -> Iterator[Theorem]:
    """The KL of paths: none between a process and itself, the closed form between two OU processes."""
    field_key, draw_key = jax.random.split(key)
    for kl in ESTIMATORS:
        model = SDEBNN.mlp(2, 1, widths=(8,), drift=(4,), initial=Point, kl=kl, key=field_key)
        nats = float(eqx.filter_jit(model)(jnp.ones((3, 2)), key=draw_key)[1])
        yield Theorem(f"KL of the untrained posterior ({kl})", nats, 0.0, 0.0)
    prior, posterior, w0 = OU(1.0, 0.0, 0.5), OU(2.0, 0.4, 0.5), 0.8
    drift, initial = OUDrift(prior, posterior), Point(jnp.array([w0]))

    @eqx.filter_jit
    def nats_of(keys: Key[Array, " path"], kl: Estimator) -> Array:
        return jax.vmap(lambda key: FixedGrid(1000).weights(prior, drift, initial, kl=kl, key=key).kl)(keys)

    for kl in ESTIMATORS[:2]:
        samples = nats_of(draw_keys(draw_key, PATHS), kl)
        yield Theorem(f"KL between two OU paths ({kl})", *_within(samples, ou_kl(prior, posterior, w0)))


def evidence(key: PRNGKeyArray) -> Iterator[Theorem]:
    """The bound is tight at the exact posterior, and a bound everywhere else."""
    problem = LinearGaussian()
    initial, keys, grid = Point(jnp.array([problem.w0])), draw_keys(key, PATHS), FixedGrid(1000)
    sample = eqx.filter_jit(elbo_samples)
    exact = problem.log_evidence()
    for kl in ESTIMATORS:
        samples = sample(problem, PosteriorDrift(problem), initial, kl, grid, keys)
        yield Theorem(f"ELBO = log evidence at the exact posterior ({kl})", *_within(samples, exact))
    posterior, inferred = infer_w0(problem)
    for kl in ESTIMATORS:
        samples = sample(problem, *posterior, kl, grid, keys)
        yield Theorem(f"ELBO = log evidence, w_0 inferred ({kl})", *_within(samples, inferred))
    for method in METHODS[1:]:
        for kl in ESTIMATORS:
            samples = sample(problem, PosteriorDrift(problem), initial, kl, FixedGrid(400, method), keys)
            yield Theorem(f"ELBO = log evidence, by {method} ({kl})", *_within(samples, exact))
    for gain, offset in ((0.0, 0.0), (0.5, 0.0), (1.5, 0.0), (1.0, 0.5), (1.0, -0.5)):
        samples = sample(problem, PosteriorDrift(problem, gain, offset), initial, "full", grid, keys)
        mean, error = _mean(samples)
        # Below it for certain: even four standard errors up, nothing is left above.
        excess = max(0.0, mean + STANDARD_ERRORS * error - exact)
        yield Theorem(f"ELBO's excess over the evidence, drift × {gain:g} {offset:+g}", excess, 0.0, 0.0)
        if gain == 1:
            # The gap is the KL to the exact posterior: ½ ∫ (offset / σ)² dt.
            gap = 0.5 * (offset / problem.prior.sigma) ** 2
            yield Theorem(f"the bound's gap at drift {offset:+g}", exact - mean, gap, STANDARD_ERRORS * error)


def landing(key: PRNGKeyArray) -> Iterator[Theorem]:
    """Sticking the landing: at the exact posterior STL's gradient has no noise but the grid's."""
    problem, keys = LinearGaussian(), draw_keys(key, 1024)
    exact = (PosteriorDrift(problem), Point(jnp.array([problem.w0])))

    def spread(kl: Estimator, steps: int) -> float:
        # φ alone: w_0 is not a parameter of the posterior here, and its gradient is the model's own
        return float(gradient_samples(problem, exact, kl, FixedGrid(steps), keys)[:, :2].std(0).max())

    analytic, at_400, at_1600 = spread("analytic", 400), spread("stl", 400), spread("stl", 1600)
    yield Theorem("STL's gradient noise / analytic's, 400 steps", at_400 / analytic, 0.0, 0.05)
    yield Theorem("STL's gradient noise, 1600 steps / 400 steps", at_1600 / at_400, 0.25, 0.1)
    posterior, _ = infer_w0(problem)
    stl, analytic = (
        gradient_samples(problem, posterior, kl, FixedGrid(400), keys).std(0) for kl in ("stl", "analytic")
    )
    yield Theorem("STL's gradient noise / analytic's, w_0 inferred", float(jnp.max(stl) / jnp.max(analytic)), 0.0, 0.05)


def infer_w0(problem: LinearGaussian) -> tuple[tuple[PosteriorDrift, Normal], float]:
    """With prior N(0, 1) on w_0 instead: the exact posterior, conjugate and so Normal, and the log evidence."""
    mean, variance = (float(part) for part in problem.ahead(0.0, jnp.zeros(())))
    slope = math.exp(-problem.prior.rate)  # y given w_0 is N(mean + slope w_0, variance)
    precision = 1 + slope**2 / variance
    center = slope * (problem.y - mean) / variance / precision
    evidence = float(log_normal(problem.y, jnp.asarray(mean), variance + slope**2))
    return (PosteriorDrift(problem), Normal(jnp.array([center]), precision**-0.5)), evidence


def unbiased(key: PRNGKeyArray) -> Iterator[Theorem]:
    """Away from the optimum the three estimators have one mean, in value and in gradient."""
    problem, keys = LinearGaussian(), draw_keys(key, PATHS)
    parts = (PosteriorDrift(problem, 0.4, 0.3), Normal(jnp.array([problem.w0]), 0.3))
    values = {kl: eqx.filter_jit(elbo_samples)(problem, *parts, kl, FixedGrid(100), keys) for kl in ESTIMATORS[:2]}
    yield Theorem("the martingale's mean", *_within(values["analytic"] - values["full"], 0.0))
    gradients = {kl: gradient_samples(problem, parts, kl, FixedGrid(100), keys) for kl in ESTIMATORS}
    names = ("gain", "offset", "w_0's mean", "w_0's log std")
    for kl in ESTIMATORS[1:]:
        for i, name in enumerate(names):
            difference = gradients[kl][:, i] - gradients["analytic"][:, i]
            yield Theorem(f"gradient in {name}: {kl} - analytic", *_within(difference, 0.0))


def coarser(dB: Float[Array, "fine weight"], area: Float[Array, "fine weight"], steps: int) -> Noise:
    """The same Brownian path seen on fewer steps: increments add up, areas follow from the path between."""
    dB, area = (part.reshape(steps, -1, part.shape[-1]) for part in (dB, area))
    before = jnp.cumsum(dB, axis=1) - dB
    total = dB.sum(1)
    return Noise(total, jnp.mean(before + 0.5 * dB + area, axis=1) - 0.5 * total)


def strong_order(key: PRNGKeyArray) -> Iterator[Theorem]:
    """The error on (w, h) against a much finer grid under the same Brownian path, in float64."""
    finest, counts, paths = 2048, (16, 32, 64, 128), 128
    prior = OU(sigma=1.0)

    def ends(noise: Noise, method: Method) -> Array:
        grid = FixedGrid(len(noise.dB), method)
        w, stages, _ = grid.drive(prior, lambda t, w: jnp.sin(2 * w + t), jnp.ones(2), noise)
        h1 = grid.hidden(lambda t, h, w: jnp.tanh(h * w[0] + w[1]), stages, jnp.ones((1, 1)))
        return jnp.append(w[-1], h1)

    with jax.enable_x64(True):
        dB, area = jax.random.normal(key, (2, paths, finest, 2)) / math.sqrt(finest)
        area = area / math.sqrt(12)
        reference = jax.jit(jax.vmap(partial(ends, method="sra1")))(Noise(dB, area))
        for method in METHODS:
            errors = [
                jax.jit(jax.vmap(partial(ends, method=method)))(jax.vmap(partial(coarser, steps=n))(dB, area))
                - reference
                for n in counts
            ]
            for name, of in (("w", slice(0, 2)), ("h", slice(2, 3))):
                means = [float(jnp.sqrt(jnp.mean(error[:, of] ** 2))) for error in errors]
                order = -np.polyfit(np.log(counts), np.log(means), 1)[0]
                yield Theorem(f"strong order of {method} on {name}", float(order), ORDERS[method], 0.2)


def gradients(key: PRNGKeyArray) -> Iterator[Theorem]:
    """Reverse mode against central differences, in float64, along a random direction of all parameters."""
    with jax.enable_x64(True):
        model_key, direction_key, draw_key = jax.random.split(key, 3)
        x = jnp.linspace(-1.0, 1.0, 5)[:, None]
        for kl in ESTIMATORS[:2]:
            model = SDEBNN.mlp(1, 1, widths=(4,), drift=(3,), initial=Normal, kl=kl, key=model_key)
            parameters, rest = eqx.partition((model, Gaussian(0.3, learn=True)), eqx.is_inexact_array)
            leaves, structure = jax.tree.flatten(parameters)
            keys = jax.random.split(direction_key, len(leaves))
            direction = [jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)]

            def along(step: Array, leaves=leaves, direction=direction, structure=structure, rest=rest) -> Array:
                # Off the start, where the drift is zero and half the gradient with it.
                moved = [p + (0.1 + step) * d for p, d in zip(leaves, direction, strict=True)]
                model, likelihood = eqx.combine(jax.tree.unflatten(structure, moved), rest)
                return elbo(model, likelihood, x, jnp.sin(x), key=draw_key, draws=2).elbo

            both = jax.jit(jax.value_and_grad(along))
            step = 1e-5
            difference = (both(step)[0] - both(-step)[0]) / (2 * step)
            yield Theorem(f"gradient / finite difference ({kl})", float(both(0.0)[1] / difference), 1.0, 1e-6)


def naming(key: PRNGKeyArray) -> Iterator[Theorem]:
    """A key names one function, bit for bit."""
    field_key, drift_key, head_key, input_key, one, other = jax.random.split(key, 6)
    block = bayesianize(TimeMLP(2, (8,), key=field_key), initial=Normal, key=drift_key)
    model = SDEBNN((block, Deterministic(eqx.nn.Linear(2, 1, key=head_key))))
    x = jax.random.normal(input_key, (7, 2))
    call = eqx.filter_jit(lambda model, x, key: model(x, key=key)[0])
    first, again, different = call(model, x, one), call(model, x, one), call(model, x, other)
    yield Theorem("outputs that differ when a key is used again", float(jnp.sum(first != again)), 0.0, 0.0)
    yield Theorem("outputs that agree under another key", float(jnp.sum(first == different)), 0.0, 0.0)


SUITE = (marginals, path_kl, evidence, landing, unbiased, strong_order, gradients, naming)


def theorems(key: PRNGKeyArray) -> Iterator[Theorem]:
    """Every theorem in turn, measured here and now."""
    for i, group in enumerate(SUITE):
        yield from group(jax.random.fold_in(key, i))
