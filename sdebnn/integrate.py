"""Path-space variational inference on a grid: the weight path and its KL first, then the hidden units through it.

With u = (f_q - f_p) / σ = NN_φ / σ, along a path of Q:   log dQ/dP = ½ ∫|u|² dt + ∫ u·dB   (Itô).

    KL = ½ ∫|u|² dt + ∫ v·dB + KL(q(w_0) || p(w_0)),   v = 0  (analytic),  u  (full),  u with φ constant  (stl)

∫ v·dB has mean zero if, and only if, v is taken at the left end of each step; so it is, whatever the method. The
weights do not depend on the hidden units, so the whole path is drawn before the first of them moves: the loop over
depth that touches the batch holds nothing else.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from sdebnn.checks import check_choice, check_count, check_key, shown
from sdebnn.processes import OU, Depth, Drift, Normal, Point, Weights

Estimator = Literal["analytic", "full", "stl"]
Method = Literal["euler", "heun", "sra1"]
Hidden = Float[Array, "example *state"]


class Tableau(NamedTuple):
    """A method of one or two stages for dy = f(t, y) dt + σ dB with constant σ, per step of length dt:

    y_0 = y,   y_1 = y + c dt f(t, y) + σ (a ΔB + b A),   y ← y + dt Σ share_i f(t + c_i dt, y_i) + σ ΔB,

    where A is the space-time Lévy area of the step, (1/dt) ∫ (B_s - B_0) ds - ½ ΔB, normal with variance dt / 12.
    """

    shares: tuple[float, ...]
    c: float = 0.0
    a: float = 0.0
    b: float = 0.0


TABLEAUS: dict[str, Tableau] = {
    "euler": Tableau(shares=(1.0,)),  # Euler-Maruyama: strong order 1, since the noise is additive
    "heun": Tableau(shares=(0.5, 0.5), c=1.0, a=1.0),  # stochastic Heun: strong order 1, order 2 in the drift
    "sra1": Tableau(shares=(1 / 3, 2 / 3), c=0.75, a=0.75, b=1.5),  # Rößler's SRA1: strong order 1.5
}


class WeightPath(NamedTuple):
    """One draw of the weights at every grid point, both ends included, and its KL estimate in nats.

    ``stages`` are the weights that carry the hidden units through each step, one set for each stage of the method.
    """

    t: Float[Array, " time"]
    w: Float[Array, "time weight"]
    stages: tuple[Float[Array, "step weight"], ...]
    kl: Float[Array, ""]


class Noise(NamedTuple):
    """Brownian increments of every step and, for the methods that need it, their space-time Lévy areas."""

    dB: Float[Array, "step weight"]
    area: Float[Array, "step weight"] | None


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


class FixedGrid(eqx.Module):
    """Equal steps over depth [0, 1] by ``method``: "euler", "heun", or "sra1", of strong order 1, 1 and 1.5.

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

    def times(self, dtype: Any = float) -> Float[Array, " time"]:
        """The grid, from exactly 0 to exactly 1."""
        return jnp.arange(self.steps + 1, dtype=dtype) / self.steps

    def noise(self, size: int, dtype: Any, *, key: PRNGKeyArray) -> Noise:
        """Drawn exactly, for every step and weight."""
        increment_key, area_key = jax.random.split(key)
        dB = jax.random.normal(increment_key, (self.steps, size), dtype) / math.sqrt(self.steps)
        if not TABLEAUS[self.method].b:
            return Noise(dB, None)
        return Noise(dB, jax.random.normal(area_key, (self.steps, size), dtype) / math.sqrt(12 * self.steps))

    def weights(
        self, prior: OU, drift: Drift, initial: Point | Normal, *, kl: Estimator, key: PRNGKeyArray
    ) -> WeightPath:
        """Draw w from the posterior dw = (f_p + NN_φ) dt + σ dB, and estimate its KL from the prior."""
        check_estimator(kl, drift)
        check_key(key)
        initial_key, path_key = jax.random.split(key)
        w0 = initial.sample(key=initial_key)
        noise = self.noise(w0.shape[0], w0.dtype, key=path_key)
        w, stages, corrections = self.drive(prior, drift, w0, noise)
        t = self.times(w0.dtype)
        u = [correction / prior.sigma for correction in corrections]
        shares = TABLEAUS[self.method].shares
        nats = sum(0.5 * share * jnp.sum(u_i**2) for share, u_i in zip(shares, u, strict=True)) / self.steps
        if kl == "analytic":
            nats += initial.kl()
        else:
            # Zero mean, yet kept: path by path it cancels the likelihood's noise.
            v = jax.vmap(frozen(drift))(t[:-1], w[:-1]) / prior.sigma if kl == "stl" else u[0]
            law = frozen(initial) if kl == "stl" else initial
            nats += jnp.sum(v * noise.dB) + law.log_ratio(w0)
        return WeightPath(t, w, stages, nats)

    def drive(
        self, prior: OU, drift: Drift, w0: Weights, noise: Noise
    ) -> tuple[Float[Array, "time weight"], tuple[Array, ...], tuple[Array, ...]]:
        """The posterior's path from w_0 under given noise; the weights at each stage of every step, and NN_φ there."""
        tableau, dt = TABLEAUS[self.method], 1 / self.steps

        def step(w: Weights, now: tuple[Depth, Noise]) -> tuple[Weights, tuple[tuple, tuple]]:
            t, (dB, area) = now
            corrections = [drift(t, w)]
            slopes = [prior.drift(t, w) + corrections[0]]
            stages = [w]
            if tableau.c:
                push = tableau.a * dB if area is None else tableau.a * dB + tableau.b * area
                stages.append(w + tableau.c * dt * slopes[0] + prior.sigma * push)
                corrections.append(drift(t + tableau.c * dt, stages[1]))
                slopes.append(prior.drift(t + tableau.c * dt, stages[1]) + corrections[1])
            slope = sum(share * slope for share, slope in zip(tableau.shares, slopes, strict=True))
            return w + slope * dt + prior.sigma * dB, (tuple(stages), tuple(corrections))

        w1, (stages, corrections) = lax.scan(step, w0, (self.times(w0.dtype)[:-1], noise))
        return jnp.concatenate([stages[0], w1[None]]), stages, corrections

    def hidden(
        self,
        f_h: Callable[[Depth, Hidden, PyTree[Array]], Hidden],
        stages: Sequence[PyTree[Array]],
        h0: Hidden,
        *,
        every: bool = False,
    ) -> Float[Array, "..."]:
        """Carry a batch through known weights, dh = f_h(t, h, w_t) dt, to h_1; or ``every`` state from h_0 to h_1.

        ``stages`` are those of a ``WeightPath``, or trees of arrays made of them, steps first.
        """
        tableau, dt = TABLEAUS[self.method], 1 / self.steps

        def step(h: Hidden, now: tuple[Depth, Sequence[PyTree[Array]]]) -> tuple[Hidden, Any]:
            t, w = now
            slope = first = f_h(t, h, w[0])
            if tableau.c:
                second = f_h(t + tableau.c * dt, h + first * (tableau.c * dt), w[1])
                slope = tableau.shares[0] * first + tableau.shares[1] * second
            return h + slope * dt, h if every else None

        body = jax.checkpoint(step) if self.checkpoint else step
        h1, h = lax.scan(body, h0, (self.times(h0.dtype)[:-1], stages), unroll=self.unroll)
        return jnp.concatenate([h, h1[None]]) if every else h1
