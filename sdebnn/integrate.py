"""Path-space variational inference on a grid: the weight path and its KL first, then the hidden units through it.

With u = (f_q - f_p) / σ = NN_φ / σ, along a path of Q:   log dQ/dP = ½ ∫|u|² dt + ∫ u·dB   (Itô).

    KL = ½ ∫|u|² dt + ∫ v·dB + KL(q(w_0) || p(w_0)),   v = 0  (analytic),  u  (full),  u with φ constant  (stl)

∫ v·dB has mean zero if, and only if, v is taken at the left end of each step. The weights do not depend on the
hidden units, so the whole path is drawn before the first of them moves: the loop over depth that touches the batch
holds nothing else.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from sdebnn.checks import check_choice, check_count
from sdebnn.processes import OU, Depth, Drift, Normal, Point, Weights

Estimator = Literal["analytic", "full", "stl"]
Method = Literal["euler"]
Hidden = Float[Array, "example *state"]


class WeightPath(NamedTuple):
    """One draw of the weights at every grid point, both ends included, and its KL estimate in nats."""

    t: Float[Array, " time"]
    w: Float[Array, "time weight"]
    kl: Float[Array, ""]


def frozen(tree: PyTree) -> PyTree:
    """The same tree, through whose arrays no gradient flows."""
    arrays, rest = eqx.partition(tree, eqx.is_inexact_array)
    return eqx.combine(lax.stop_gradient(arrays), rest)


class FixedGrid(eqx.Module):
    """Equal steps over depth [0, 1] by ``method``: "euler", of strong order 1 here, since the noise is additive.

    ``checkpoint`` keeps only the hidden state of each step for the backward pass and recomputes the rest.
    ``unroll`` steps of the loop over the hidden units are compiled as one: faster to run, slower to compile.
    """

    steps: int = eqx.field(default=20, static=True)
    method: Method = eqx.field(default="euler", static=True)
    checkpoint: bool = eqx.field(default=True, static=True)
    unroll: int = eqx.field(default=5, static=True)

    def __check_init__(self):
        check_count("steps", self.steps)
        check_count("unroll", self.unroll)
        check_choice("method", self.method, get_args(Method))

    def weights(
        self, prior: OU, drift: Drift, initial: Point | Normal, *, kl: Estimator, key: PRNGKeyArray
    ) -> WeightPath:
        """Draw w from the posterior dw = (f_p + NN_φ) dt + σ dB, and estimate its KL from the prior."""
        initial_key, path_key = jax.random.split(key)
        w0 = initial.sample(key=initial_key)
        dB = jax.random.normal(path_key, (self.steps, *w0.shape), w0.dtype) / math.sqrt(self.steps)
        w, correction = self.drive(prior, drift, w0, dB)
        t = self.times(w0.dtype)
        u = correction / prior.sigma
        nats = 0.5 * jnp.sum(u**2) / self.steps
        if kl == "analytic":
            nats += initial.kl()
        else:
            # Zero mean, yet kept: path by path it cancels the likelihood's noise.
            v = jax.vmap(frozen(drift))(t[:-1], w[:-1]) / prior.sigma if kl == "stl" else u
            law = frozen(initial) if kl == "stl" else initial
            nats += jnp.sum(v * dB) + law.log_ratio(w0)
        return WeightPath(t, w, nats)

    def times(self, dtype: Any = float) -> Float[Array, " time"]:
        """The grid, from exactly 0 to exactly 1."""
        return jnp.arange(self.steps + 1, dtype=dtype) / self.steps

    def drive(
        self, prior: OU, drift: Drift, w0: Weights, dB: Float[Array, "step weight"]
    ) -> tuple[Float[Array, "time weight"], Float[Array, "step weight"]]:
        """The posterior's path from w_0 under given Brownian increments, and NN_φ at the left end of each step."""
        dt = 1 / self.steps

        def euler(w: Weights, now: tuple[Depth, Weights]) -> tuple[Weights, tuple[Weights, Weights]]:
            t, dB = now
            correction = drift(t, w)
            return w + (prior.drift(t, w) + correction) * dt + prior.sigma * dB, (w, correction)

        w1, (w, correction) = lax.scan(euler, w0, (self.times(w0.dtype)[:-1], dB))
        return jnp.concatenate([w, w1[None]]), correction

    def hidden(
        self,
        f_h: Callable[[Depth, Hidden, PyTree[Array]], Hidden],
        weights: PyTree[Array],
        h0: Hidden,
        *,
        every: bool = False,
    ) -> Float[Array, "..."]:
        """Carry a batch through known weights, dh = f_h(t, h, w_t) dt, to h_1; or ``every`` state from h_0 to h_1.

        ``weights`` has one leading entry for each step: w at its left end.
        """
        dt = 1 / self.steps

        def euler(h: Hidden, now: tuple[Depth, PyTree[Array]]) -> tuple[Hidden, Any]:
            t, w = now
            return h + f_h(t, h, w) * dt, h if every else None

        step = jax.checkpoint(euler) if self.checkpoint else euler
        h1, h = lax.scan(step, h0, (self.times(h0.dtype)[:-1], weights), unroll=self.unroll)
        return jnp.concatenate([h, h1[None]]) if every else h1
