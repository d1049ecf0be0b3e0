"""One step of a fixed grid: for the weights under noise, and for the hidden units through known weights.

dw = f(t, w) dt + σ dB with constant σ, so that Itô and Stratonovich agree;   dh = f_h(t, h, w) dt
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from sdebnn.integrate.brownian import Noise
from sdebnn.integrate.paths import Hidden, Process
from sdebnn.processes import Depth, Weights

MethodName = Literal["euler", "heun", "sra1", "reversible_heun"]
Field = Callable[[Depth, Hidden, PyTree[Array]], Hidden]


class Stages(NamedTuple):
    """The weights at each stage of a step, and NN_φ there."""

    weights: tuple[Weights, ...]
    corrections: tuple[Weights, ...]


class RungeKutta(NamedTuple):
    """A method of one or two stages, per step of length dt:

    y_0 = y,   y_1 = y + c dt f(t, y) + σ (a ΔB + b A),   y ← y + dt Σ share_i f(t + c_i dt, y_i) + σ ΔB,

    where A is the step's space-time Lévy area.
    """

    order: float  # strong, since the noise is additive
    shares: tuple[float, ...]
    c: float = 0.0
    a: float = 0.0
    b: float = 0.0

    @property
    def needs_area(self) -> bool:
        """Whether a step uses the Lévy area."""
        return bool(self.b)

    def evaluations(self, steps: int) -> int:
        """Of f_h, in so many steps."""
        return len(self.shares) * steps

    def weights_start(self, process: Process, w0: Weights) -> Any:
        """The state is w itself."""
        return w0

    def weights_step(self, process: Process, w: Weights, t: Depth, dt: float, noise: Noise) -> tuple[Weights, Stages]:
        """Advance the weights; the stages carry the hidden units through the same step."""
        prior, drift = process.prior, process.drift
        corrections = [drift(t, w)]
        slopes = [prior.drift(t, w) + corrections[0]]
        weights = [w]
        if self.c:
            push = self.a * noise.dB if noise.area is None else self.a * noise.dB + self.b * noise.area
            weights.append(w + self.c * dt * slopes[0] + prior.sigma * push)
            corrections.append(drift(t + self.c * dt, weights[1]))
            slopes.append(prior.drift(t + self.c * dt, weights[1]) + corrections[1])
        slope = sum(share * slope for share, slope in zip(self.shares, slopes, strict=True))
        return w + slope * dt + prior.sigma * noise.dB, Stages(tuple(weights), tuple(corrections))

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
        slope = first = f_h(t, h, stages[0])
        if self.c:
            second = f_h(t + self.c * dt, h + first * (self.c * dt), stages[1])
            slope = self.shares[0] * first + self.shares[1] * second
        return h + slope * dt, first

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

METHODS: dict[str, Method] = {
    "euler": RungeKutta(1.0, shares=(1.0,)),  # Euler-Maruyama
    "heun": RungeKutta(1.0, shares=(0.5, 0.5), c=1.0, a=1.0),  # stochastic Heun: order 2 in the drift
    "sra1": RungeKutta(1.5, shares=(1 / 3, 2 / 3), c=0.75, a=0.75, b=1.5),  # Rößler's SRA1
    "reversible_heun": ReversibleHeun(),
}
