"""One step of a fixed grid: for the weights under noise, and for the hidden units through known weights.

dw = f(t, w) dt + σ dB with constant σ, so that Itô and Stratonovich agree;   dh = f_h(t, h, w) dt
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Generic, Literal, NamedTuple, TypeVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from sdebnn.checks import check_choice, shown
from sdebnn.integrate.brownian import Noise
from sdebnn.integrate.guide import Points
from sdebnn.integrate.paths import Dynamics, Hidden, Process, correction, slope_of_seen
from sdebnn.integrate.stability import check_contraction, shadow_distance
from sdebnn.processes import AbstractPrior, Depth, Weights

MethodName = Literal["euler", "heun", "ralston3", "reversible_heun"]
VectorField = Callable[[Depth, Hidden, PyTree[Array]], Hidden]
W = TypeVar("W")
H = TypeVar("H")


class Stages(NamedTuple):
    """The weights at each stage of a step, NN_φ there, and what a guide sees at the first stage.

        stages = Stages((jnp.ones(4),), (jnp.zeros(4),))

    These are of a method with one stage, such as Euler's.
    """

    weights: tuple[Weights, ...]
    corrections: tuple[Weights, ...]
    seen: Points | None = None


def _along(y: Array, dt: float, weights: tuple[float, ...], slopes: list[Array]) -> Array:
    """y + dt Σ weight · slope."""
    terms = [weight * slope for weight, slope in zip(weights, slopes, strict=True) if weight]
    return y + dt * sum(terms[1:], start=terms[0]) if terms else y


class AbstractMethod(eqx.Module, Generic[W, H]):
    """One step of a fixed grid. W is the state it carries for the weights, H that for the hidden units.

    The hidden units take each step with the weights at its stages, so the whole weight path can be drawn first. To
    write an explicit Runge-Kutta method, give ``RungeKutta`` its tableau:

        midpoint = RungeKutta(
            order=1.0, shares=(0.0, 1.0), c=(0.0, 0.5), a=((), (0.5,)),
            alpha=(0.0, 0.5), beta=(0.0, 0.0),
        )
        solver = FixedGrid(20, midpoint)

    For any other method, subclass this class, with fields that are static, and ``FixedGrid`` accepts it. ``order`` is
    the strong order of convergence, and ``shares`` the weight of each stage in the step, for the KL.
    """

    order: eqx.AbstractVar[float]  # strong order of convergence
    shares: eqx.AbstractVar[tuple[float, ...]]  # weight of each stage in the step, for the KL

    @abstractmethod
    def evaluations(self, steps: int) -> int:
        """The number of evaluations of f_h in ``steps`` steps."""

    @abstractmethod
    def weights_start(self, process: Process, w0: Weights) -> W:
        """The state at w_0; if ``carries_seen``, with the hidden states that a guide sees."""

    @abstractmethod
    def weights_step(self, process: Process, state: W, t: Depth, dt: float, noise: Noise) -> tuple[W, Stages]:
        """The state after a step from depth t, and the step's stages."""

    @abstractmethod
    def weights_of(self, state: W) -> Weights:
        """The weights in the state."""

    @abstractmethod
    def hidden_start(self, f_h: VectorField, h0: Hidden, first: PyTree[Array]) -> tuple[H, Hidden]:
        """The state at h_0, and the slope there with the first stage's arrays."""

    @abstractmethod
    def hidden_step(
        self, f_h: VectorField, state: H, t: Depth, dt: float, stages: tuple[PyTree[Array], ...]
    ) -> tuple[H, Hidden]:
        """The state after a step with the arrays of its stages, and a slope within the step."""

    @abstractmethod
    def hidden_of(self, state: H) -> Hidden:
        """The hidden units in the state."""

    @property
    def needs_area(self) -> bool:
        """Whether a step uses the space-time Lévy area of the noise."""
        return False

    @property
    def carries_seen(self) -> bool:
        """Whether the state of the weights contains the hidden states that a guide sees, and NN_φ its drift.

        ``integrate.paths.correction`` computes NN_φ. A method without this refuses a process with a guide.
        """
        return False

    @property
    def is_euler(self) -> bool:
        """Whether this is Euler's method, for which drifts and fields may have faster implementations."""
        return False

    @property
    def is_reversible(self) -> bool:
        """Whether ``reversible_solve`` undoes the steps of this method."""
        return False

    def check_prior(self, prior: AbstractPrior, steps: int) -> None:
        """Raise a ValueError for a prior under which the method is unstable."""

    def weights_shadow_distance(self, state: W) -> Float[Array, ""] | None:
        """The ``Solution.shadow_distance`` of a state of the weights; None for a method without a shadow."""
        return None

    def hidden_shadow_distance(self, state: H) -> Float[Array, ""] | None:
        """The ``Solution.shadow_distance`` of a state of the hidden units; None for a method without a shadow."""
        return None


class Seeing(NamedTuple):
    """The weights, and the hidden states that a guide sees."""

    w: Weights
    seen: Points | None


class RungeKutta(AbstractMethod[Seeing, Hidden]):
    """An explicit Runge-Kutta method. A step of length dt computes

    y_i = y + dt Σ_j a_ij f(t + c_j dt, y_j) + σ (α_i ΔB + β_i A),     y ← y + dt Σ_i share_i f(t + c_i dt, y_i) + σ ΔB

    where A is the step's space-time Lévy area. The noise is additive: the strong order is 1 if the shares add up to 1,
    and 1.5 if also Σ share c = Σ share α = ½, Σ share β = 1 and Σ share (α² + β² / 12) = ½ (Rößler 2010).

        heun = RungeKutta(
            order=1.0, shares=(0.5, 0.5), c=(0.0, 1.0), a=((), (1.0,)),
            alpha=(0.0, 1.0), beta=(0.0, 0.0),
        )
        solver = FixedGrid(20, heun)

    ``order`` is the strong order. The other arguments have one entry for each stage i.
    """

    order: float = eqx.field(static=True)
    shares: tuple[float, ...] = eqx.field(static=True)
    c: tuple[float, ...] = eqx.field(static=True)
    a: tuple[tuple[float, ...], ...] = eqx.field(static=True)
    alpha: tuple[float, ...] = eqx.field(static=True)
    beta: tuple[float, ...] = eqx.field(static=True)

    def __check_init__(self):
        lengths = {len(part) for part in (self.shares, self.c, self.a, self.alpha, self.beta)}
        if len(lengths) > 1 or any(len(row) != i for i, row in enumerate(self.a)):
            raise ValueError(
                f"shares={self.shares}, c={self.c}, a={self.a}, alpha={self.alpha}, beta={self.beta} are not an "
                "explicit tableau: give each one entry per stage, and row i of a exactly i entries."
            )

    @property
    def needs_area(self) -> bool:
        """Whether a step uses the Lévy area."""
        return any(self.beta)

    @property
    def is_euler(self) -> bool:
        """Whether there is a single stage, at the start of the step."""
        return self.shares == (1.0,) and self.c == (0.0,) and not any(self.alpha + self.beta)

    def evaluations(self, steps: int) -> int:
        """One for each stage of each step."""
        return len(self.shares) * steps

    @property
    def carries_seen(self) -> bool:
        """True."""
        return True

    def weights_start(self, process: Process, w0: Weights) -> Seeing:
        """w_0 and what a guide sees there."""
        return Seeing(w0, None if process.guide is None else process.guide.start())

    def weights_step(self, process: Process, state: Seeing, t: Depth, dt: float, noise: Noise) -> tuple[Seeing, Stages]:
        """The weights after a step, and its stages."""
        (w, seen), prior = state, process.prior
        weights, corrections, slopes, slopes_of_seen = [], [], [], []
        for c, row, alpha, beta in zip(self.c, self.a, self.alpha, self.beta, strict=True):
            w_i = _along(w, dt, row, slopes)
            if alpha:
                w_i = w_i + prior.sigma * alpha * noise.dB
            if beta:
                assert noise.area is not None
                w_i = w_i + prior.sigma * beta * noise.area
            seen_i = None if seen is None else _along(seen, dt, row, slopes_of_seen)
            weights.append(w_i)
            corrections.append(correction(process, t + c * dt, w_i, seen_i))
            slopes.append(prior.drift(t + c * dt, w_i) + corrections[-1])
            slopes_of_seen.append(slope_of_seen(process, t + c * dt, w_i, seen_i))
        after = _along(w, dt, self.shares, slopes) + prior.sigma * noise.dB
        seen_after = None if seen is None else _along(seen, dt, self.shares, slopes_of_seen)
        return Seeing(after, seen_after), Stages(tuple(weights), tuple(corrections), seen)

    def weights_of(self, state: Seeing) -> Weights:
        """The weights."""
        return state.w

    def hidden_start(self, f_h: VectorField, h0: Hidden, first: PyTree[Array]) -> tuple[Hidden, Hidden]:
        """h_0 itself, and the slope at depth 0."""
        return h0, f_h(0.0, h0, first)

    def hidden_step(
        self, f_h: VectorField, state: Hidden, t: Depth, dt: float, stages: tuple[PyTree[Array], ...]
    ) -> tuple[Hidden, Hidden]:
        """The hidden units after a step, and the slope of its first stage."""
        slopes: list[Hidden] = []
        for c, row, random in zip(self.c, self.a, stages, strict=True):
            slopes.append(f_h(t + c * dt, _along(state, dt, row, slopes), random))
        return _along(state, dt, self.shares, slopes), slopes[0]

    def hidden_of(self, state: Hidden) -> Hidden:
        """The state itself."""
        return state


class Pair(NamedTuple):
    """y, its shadow ŷ, and what was evaluated at the shadow: NN_φ for the weights, the slope for the hidden units."""

    y: Float[Array, "..."]
    shadow: Float[Array, "..."]
    known: Float[Array, "..."]
    seen: "Pair | None" = None  # with the weights: the hidden states that a guide sees


class ReversibleHeun(AbstractMethod[Pair, Pair]):
    """The reversible Heun method of Kidger et al., with one evaluation a step. Each step can be undone exactly.

    ŷ ← 2 y - ŷ + dt f(t, ŷ) + σ ΔB,   then   y ← y + ½ dt (f(t, ŷ_before) + f(t + dt, ŷ_after)) + σ ΔB

        solver = FixedGrid(100, ReversibleHeun(), "reversible")
    """

    order: float = eqx.field(default=1.0, static=True)
    shares: tuple[float, ...] = eqx.field(default=(0.5, 0.5), static=True)

    @property
    def is_reversible(self) -> bool:
        """True."""
        return True

    def check_prior(self, prior: AbstractPrior, steps: int) -> None:
        """Refuse a prior that contracts too strongly."""
        check_contraction(prior, steps)

    def evaluations(self, steps: int) -> int:
        """One at the start, and one for each step."""
        return steps + 1

    @property
    def carries_seen(self) -> bool:
        """True."""
        return True

    def weights_start(self, process: Process, w0: Weights) -> Pair:
        """Both copies at w_0."""
        zero, seen = jnp.zeros((), w0.dtype), None if process.guide is None else process.guide.start()
        slope = slope_of_seen(process, zero, w0, seen)
        pair = None if seen is None or slope is None else Pair(seen, seen, slope)
        return Pair(w0, w0, correction(process, zero, w0, seen), pair)

    def weights_step(self, process: Process, state: Pair, t: Depth, dt: float, noise: Noise) -> tuple[Pair, Stages]:
        """The pair after a step; the shadows before and after it are its stages."""
        w, shadow, known, seen = state
        prior, now, then = process.prior, None if seen is None else seen.shadow, None
        kick = prior.sigma * noise.dB
        slope = prior.drift(t, shadow) + known
        after = 2 * w - shadow + slope * dt + kick
        if seen is not None:
            assert isinstance(process, Dynamics)
            seen, _ = self.hidden_step(process.f_h, seen, t, dt, (None, process.unravel(after)))
            then = seen.shadow
        new = correction(process, t + dt, after, then)
        w = w + 0.5 * (slope + prior.drift(t + dt, after) + new) * dt + kick
        return Pair(w, after, new, seen), Stages((shadow, after), (known, new), now)

    def weights_of(self, state: Pair) -> Weights:
        """The first copy."""
        return state.y

    def hidden_start(self, f_h: VectorField, h0: Hidden, first: PyTree[Array]) -> tuple[Pair, Hidden]:
        """Both copies at h_0, and the slope there."""
        slope = f_h(jnp.zeros((), h0.dtype), h0, first)
        return Pair(h0, h0, slope), slope

    def hidden_step(
        self, f_h: VectorField, state: Pair, t: Depth, dt: float, stages: tuple[PyTree[Array], ...]
    ) -> tuple[Pair, Hidden]:
        """The pair after a step with the weights at its end, and the slope there."""
        h, shadow, slope, _ = state
        after = 2 * h - shadow + slope * dt
        new = f_h(t + dt, after, stages[1])
        return Pair(h + 0.5 * (slope + new) * dt, after, new), new

    def hidden_of(self, state: Pair) -> Hidden:
        """The first copy."""
        return state.y

    def weights_shadow_distance(self, state: Pair) -> Float[Array, ""] | None:
        """The distance between both copies."""
        return shadow_distance(state.y, state.shadow)

    def hidden_shadow_distance(self, state: Pair) -> Float[Array, ""] | None:
        """The distance between both copies."""
        return shadow_distance(state.y, state.shadow)


# Both roots of 28 β_3² - 72 β_3 + 27 = 0, with β_2 = 3 - 4/3 β_3, give order 1.5; this one has the smaller error.
_BETA_3 = (18 - 3 * math.sqrt(15)) / 14

METHODS: dict[str, RungeKutta | ReversibleHeun] = {
    # Euler-Maruyama
    "euler": RungeKutta(1.0, shares=(1.0,), c=(0.0,), a=((),), alpha=(0.0,), beta=(0.0,)),
    # stochastic Heun: order 2 in the drift
    "heun": RungeKutta(1.0, (0.5, 0.5), c=(0.0, 1.0), a=((), (1.0,)), alpha=(0.0, 1.0), beta=(0.0, 0.0)),
    # Ralston's method: order 3 in the drift; the noise in its stages makes the strong order 1.5
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


def method_name(method: AbstractMethod) -> str:
    """The name of a method of ``METHODS``; the name of the class of any other."""
    return next((name for name, known in METHODS.items() if known == method), type(method).__name__)


def as_method(method: object) -> AbstractMethod:
    """The method, given as an object or by its name."""
    if isinstance(method, AbstractMethod):
        return method
    if not isinstance(method, str):
        raise ValueError(f"method={shown(method)} is not a method: pass a name such as 'euler', or an AbstractMethod.")
    check_choice("method", method, tuple(METHODS))
    return METHODS[method]
