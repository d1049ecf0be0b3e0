"""One step of a fixed grid: for the weights under noise, and for the hidden units through known weights.

dw = f(t, w) dt + σ dB with constant σ, so that Itô and Stratonovich agree;   dh = f_h(t, h, w) dt
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from sdebnn.integrate.brownian import Noise
from sdebnn.integrate.paths import Hidden, Process
from sdebnn.processes import Depth, Weights

MethodName = Literal["euler", "heun", "ralston3", "reversible_heun"]
Field = Callable[[Depth, Hidden, PyTree[Array]], Hidden]


class Stages(NamedTuple):
    """The weights at each stage of a step, and NN_φ there."""

    weights: tuple[Weights, ...]
    corrections: tuple[Weights, ...]


def _along(y: Array, dt: float, weights: tuple[float, ...], slopes: list[Array]) -> Array:
    """y + dt Σ weight · slope."""
    terms = [weight * slope for weight, slope in zip(weights, slopes, strict=True) if weight]
    return y + dt * sum(terms[1:], start=terms[0]) if terms else y


class RungeKutta(NamedTuple):
    """An explicit method of a few stages, per step of length dt:

    y_i = y + dt Σ_j a_ij f(t + c_j dt, y_j) + σ (α_i ΔB + β_i A),     y ← y + dt Σ_i share_i f(t + c_i dt, y_i) + σ ΔB

    where A is the step's space-time Lévy area. The noise is additive: the strong order is 1 if the shares add up to 1,
    and 1.5 if also Σ share c = Σ share α = ½, Σ share β = 1 and Σ share (α² + β² / 12) = ½ (Rößler 2010).
    """

    order: float  # strong
    shares: tuple[float, ...]
    c: tuple[float, ...]
    a: tuple[tuple[float, ...], ...]
    alpha: tuple[float, ...]
    beta: tuple[float, ...]

    @property
    def needs_area(self) -> bool:
        """Whether a step uses the Lévy area."""
        return any(self.beta)

    def evaluations(self, steps: int) -> int:
        """Of f_h, in so many steps."""
        return len(self.shares) * steps

    def weights_start(self, process: Process, w0: Weights) -> Any:
        """The state is w itself."""
        return w0

    def weights_step(self, process: Process, w: Weights, t: Depth, dt: float, noise: Noise) -> tuple[Weights, Stages]:
        """Advance the weights; the stages carry the hidden units through the same step."""
        prior = process.prior
        weights, corrections, slopes = [], [], []
        for c, row, alpha, beta in zip(self.c, self.a, self.alpha, self.beta, strict=True):
            w_i = _along(w, dt, row, slopes)
            if alpha:
                w_i = w_i + prior.sigma * alpha * noise.dB
            if beta:
                w_i = w_i + prior.sigma * beta * noise.area
            weights.append(w_i)
            corrections.append(process.drift(t + c * dt, w_i))
            slopes.append(prior.drift(t + c * dt, w_i) + corrections[-1])
        after = _along(w, dt, self.shares, slopes) + prior.sigma * noise.dB
        return after, Stages(tuple(weights), tuple(corrections))

    def weights_of(self, w: Weights) -> Weights:
        """w, out of the state."""
        return w

    def hidden_start(self, f_h: Field, h0: Hidden, first: PyTree[Array]) -> tuple[Any, Hidden]:
        """The state is h itself; beside it, the slope at depth 0."""
        return h0, f_h(0.0, h0, first)

    def hidden_step(
        self, f_h: Field, h: Hidden, t: Depth, dt: float, stages: tuple[PyTree[Array], ...]
    ) -> tuple[Hidden, Hidden]:
        """Advance the hidden units through the stages' weights; beside them, a slope of the step."""
        slopes: list[Hidden] = []
        for c, row, random in zip(self.c, self.a, stages, strict=True):
            slopes.append(f_h(t + c * dt, _along(h, dt, row, slopes), random))
        return _along(h, dt, self.shares, slopes), slopes[0]

    def hidden_of(self, h: Hidden) -> Hidden:
        """h, out of the state."""
        return h


class _Pair(NamedTuple):
    """y, its shadow, and what was evaluated at the shadow: NN_φ for the weights, the slope for the hidden units."""

    y: Float[Array, "..."]
    shadow: Float[Array, "..."]
    known: Float[Array, "..."]


class ReversibleHeun(NamedTuple):
    """Kidger et al.'s reversible Heun: one evaluation a step, and each step can be undone without solving anything.

    ŷ ← 2 y - ŷ + dt f(t, ŷ) + σ ΔB,   then   y ← y + ½ dt (f(t, ŷ_before) + f(t + dt, ŷ_after)) + σ ΔB
    """

    order: float = 1.0
    shares: tuple[float, ...] = (0.5, 0.5)
    needs_area: bool = False

    def evaluations(self, steps: int) -> int:
        """Of f_h: one at the start, one a step."""
        return steps + 1

    def weights_start(self, process: Process, w0: Weights) -> Any:
        """The state: both copies at w_0."""
        return _Pair(w0, w0, process.drift(jnp.zeros((), w0.dtype), w0))

    def weights_step(self, process: Process, state: _Pair, t: Depth, dt: float, noise: Noise) -> tuple[_Pair, Stages]:
        """Advance the weights; both shadows, before and after, carry the hidden units."""
        w, shadow, known = state
        prior = process.prior
        kick = prior.sigma * noise.dB
        slope = prior.drift(t, shadow) + known
        after = 2 * w - shadow + slope * dt + kick
        new = process.drift(t + dt, after)
        w = w + 0.5 * (slope + prior.drift(t + dt, after) + new) * dt + kick
        return _Pair(w, after, new), Stages((shadow, after), (known, new))

    def weights_of(self, state: _Pair) -> Weights:
        """w, out of the state."""
        return state.y

    def hidden_start(self, f_h: Field, h0: Hidden, first: PyTree[Array]) -> tuple[Any, Hidden]:
        """The state: both copies at h_0; beside it, the slope there."""
        slope = f_h(jnp.zeros((), h0.dtype), h0, first)
        return _Pair(h0, h0, slope), slope

    def hidden_step(
        self, f_h: Field, state: _Pair, t: Depth, dt: float, stages: tuple[PyTree[Array], ...]
    ) -> tuple[_Pair, Hidden]:
        """Advance the hidden units through the weights after the step; beside them, the slope there."""
        h, shadow, slope = state
        after = 2 * h - shadow + slope * dt
        new = f_h(t + dt, after, stages[1])
        return _Pair(h + 0.5 * (slope + new) * dt, after, new), new

    def hidden_of(self, state: _Pair) -> Hidden:
        """h, out of the state."""
        return state.y


Method = RungeKutta | ReversibleHeun

# The two roots of 28 β_3² - 72 β_3 + 27 = 0, with β_2 = 3 - 4/3 β_3, give order 1.5; this one errs less.
_BETA_3 = (18 - 3 * math.sqrt(15)) / 14

METHODS: dict[str, Method] = {
    # Euler-Maruyama
    "euler": RungeKutta(1.0, shares=(1.0,), c=(0.0,), a=((),), alpha=(0.0,), beta=(0.0,)),
    # stochastic Heun: order 2 in the drift
    "heun": RungeKutta(1.0, (0.5, 0.5), c=(0.0, 1.0), a=((), (1.0,)), alpha=(0.0, 1.0), beta=(0.0, 0.0)),
    # Ralston's method of order 3 in the drift, with noise in its stages that makes the strong order 1.5
    "ralston3": RungeKutta(
        1.5,
        shares=(2 / 9, 1 / 3, 4 / 9),
        c=(0.0, 0.5, 0.75),
        a=((), (0.5,), (0.0, 0.75)),
        alpha=(0.0, 0.5, 0.75),
        beta=(0.0, 3 - 4 / 3 * _BETA_3, _BETA_3),
    ),
    "reversible_heun": ReversibleHeun(),
}
