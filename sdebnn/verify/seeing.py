"""A model with hidden units whose posterior is known, for drifts that see them.

The state is (x, y), and dy/dt = w_1 x + w_2, with dw = σ dB and w_0 standard normal. So y at depth 1 is linear in
∫ w dt, whose entries have the variance 1 + σ²/3, and observations Y of it at inputs x have the evidence

    N(Y; 0, (1 + σ²/3) X X' + noise² I),      with rows (x, 1) in X.

The exact posterior's drift depends on y at the present depth. A guide at the inputs has exactly this drift.
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
from sdebnn.models import SDEBlock, bayesianize
from sdebnn.processes import OU, Depth, NoDrift, Normal
from sdebnn.verify.known_posterior import ESTIMATORS, STANDARD_ERRORS, Theorem, mean_and_error

SIGMA, NOISE = 1.0, 0.3
X, Y = np.array([-1.0, 0.2, 1.5]), np.array([0.8, 0.1, -1.1])
STEPS, PATHS = 500, 1024
DISCRETISATION = 5.0 / STEPS  # nats; the ELBO on a grid is short by an amount proportional to the step size


class Line(eqx.Module):
    """The field of this module."""

    w: Float[Array, " 2"]

    def __call__(self, t: Depth, h: Float[Array, " 2"]) -> Float[Array, " 2"]:
        return jnp.stack([jnp.zeros_like(h[0]), self.w[0] * h[0] + self.w[1]])


def log_evidence() -> float:
    """log p(Y)."""
    design = np.column_stack([X, np.ones(len(X))])
    covariance = (1 + SIGMA**2 / 3) * design @ design.T + NOISE**2 * np.eye(len(X))
    quadratic = Y @ np.linalg.solve(covariance, Y)
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
    exact = log_evidence()
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
