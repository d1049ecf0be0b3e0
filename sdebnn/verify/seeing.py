"""A model with hidden units whose posterior is known, for drifts that see them.

The state is (x, y), and dy/dt = w_1 x + w_2, with dw = σ dB and w_0 standard normal. So y at depth 1 is linear in
∫ w dt, whose entries have the variance 1 + σ²/3, and observations Y of it at inputs x have the evidence

    N(Y; 0, (1 + σ²/3) X X' + noise² I),      with rows (x, 1) in X.

The exact posterior's drift depends on y at the present depth. A guide at the inputs has exactly this drift.

A conditioned read-out of the features x, with standard normal coefficients, has the same evidence without σ.
"""

import math
from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray

from sdebnn.contract import draw_keys
from sdebnn.integrate import FixedGrid, Guide, KLEstimator
from sdebnn.likelihoods import Gaussian
from sdebnn.models import ConditionedReadout, Deterministic, SDEBlock, bayesianize
from sdebnn.processes import OU, Depth, NoDrift, Normal
from sdebnn.verify.known_posterior import ESTIMATORS, STANDARD_ERRORS, Theorem, mean_and_error

SIGMA, NOISE = 1.0, 0.3
X, Y = np.array([-1.0, 0.2, 1.5]), np.array([0.8, 0.1, -1.1])
STEPS, PATHS = 500, 1024
ROUNDING = 1e-3  # nats
DISCRETISATION = 5.0 / STEPS  # nats; the ELBO on a grid is short by an amount proportional to the step size


class Line(eqx.Module):
    """The field of this module."""

    w: Float[Array, " 2"]

    def __call__(self, t: Depth, h: Float[Array, " 2"]) -> Float[Array, " 2"]:
        return jnp.stack([jnp.zeros_like(h[0]), self.w[0] * h[0] + self.w[1]])


def log_evidence(sigma: float, y: Float[np.ndarray, " 3"] = Y) -> float:
    """log p(y)."""
    design = np.column_stack([X, np.ones(len(X))])
    covariance = (1 + sigma**2 / 3) * design @ design.T + NOISE**2 * np.eye(len(X))
    quadratic = y @ np.linalg.solve(covariance, y)
    return float(-0.5 * (quadratic + np.linalg.slogdet(covariance)[1] + len(X) * math.log(2 * math.pi)))


def line_block(kl: KLEstimator) -> SDEBlock:
    """The block with a guide at the inputs, whose pseudo-observations are the observations."""
    points = np.column_stack([X, np.zeros(len(X))])
    guide = Guide(jnp.zeros(points.shape), 1).placed(points, Y[:, None], np.full((len(X), 1), NOISE**2))
    return bayesianize(
        Line(jnp.zeros(2)), prior=OU(rate=0.0, sigma=SIGMA), drift=NoDrift(), initial=lambda w: Normal(w, 1.0),
        guide=guide, solver=FixedGrid(STEPS), kl=kl, scale=lambda _: 1.0, key=jax.random.key(0),
    )  # fmt: skip


@eqx.filter_jit
def _elbo_samples(block: SDEBlock, keys: Key[Array, " path"]) -> Float[Array, " path"]:
    h0 = jnp.column_stack([jnp.asarray(X), jnp.zeros(len(X))]).astype(float)

    def one(key: PRNGKeyArray) -> Array:
        states, kl = block(h0, key=key)
        residuals = (jnp.asarray(Y) - states[:, 1]) / NOISE
        return jnp.sum(-0.5 * residuals**2 - math.log(NOISE) - 0.5 * math.log(2 * math.pi)) - kl

    return jax.vmap(one)(keys)


def seeing(key: PRNGKeyArray) -> Iterator[Theorem]:
    """A guide at the data reaches the log evidence, and does so on every path, since its drift is exact."""
    exact = log_evidence(SIGMA)
    for kl in ESTIMATORS:
        samples = _elbo_samples(line_block(kl), draw_keys(key, PATHS))
        mean, error = mean_and_error(samples)
        yield Theorem(
            f"a guide that sees the data reaches the log evidence ({kl})", mean, exact,
            STANDARD_ERRORS * error + DISCRETISATION,
        )  # fmt: skip
        if kl != "analytic":
            spread = float(np.std(np.asarray(samples, np.float64)))
            yield Theorem(f"on every path, up to the error of the grid ({kl})", spread, 0.0, 5 / math.sqrt(STEPS))
    model = ConditionedReadout(Deterministic(_identity), 1, scale=1.0, kl="full")
    x, y = jnp.asarray(X)[:, None].astype(float), jnp.asarray(Y - Y.mean())[:, None].astype(float)
    model = model.before_training(Gaussian(NOISE), (x, y))
    outputs, kl = jax.vmap(lambda key: model(x, key=key))(draw_keys(key, PATHS))
    bounds = jnp.sum(Gaussian(NOISE).log_prob(outputs, y), axis=1) - kl
    worst = float(jnp.max(jnp.abs(bounds - log_evidence(0.0, Y - Y.mean()))))
    yield Theorem("a read-out conditioned on the data has the log evidence on every draw", worst, 0.0, ROUNDING)


def _identity(x: Float[Array, " 1"]) -> Float[Array, " 1"]:
    return x
