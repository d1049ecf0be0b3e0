"""A fixed grid over depth: first the weight path and its KL, then the hidden units along it.

The weights do not depend on the hidden units. So the whole path is drawn first, and the loop over depth that carries
the batch contains nothing else. ``execution.py`` says where another order is faster.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeVar, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from sdebnn.checks import check_choice, check_count
from sdebnn.devices import platform
from sdebnn.integrate.brownian import Brownian, Noise, check_base, noise_on_grid
from sdebnn.integrate.execution import AllEulerSteps, Plan, execution_on
from sdebnn.integrate.guide import Points
from sdebnn.integrate.methods import METHODS, AbstractMethod, MethodName, Stages, VectorField, as_method, method_name
from sdebnn.integrate.paths import (
    Dynamics,
    Hidden,
    KLEstimator,
    Process,
    Solution,
    WeightPath,
    start_of,
    step_nats,
    with_seen,
)
from sdebnn.integrate.reversible import Grid, JointState, reversible_solve
from sdebnn.integrate.solver import AbstractSolver
from sdebnn.integrate.stability import warn_if_unstable
from sdebnn.processes import Depth, Weights

GradientName = Literal["backprop", "checkpoint", "reversible"]
State = TypeVar("State")


class Carried(NamedTuple):
    """A batch carried through known weights; the fields are those of ``Solution``."""

    outputs: Float[Array, "..."]
    roughness: Float[Array, ""]
    shadow_distance: Float[Array, ""]


class FixedGrid(AbstractSolver):
    """Equal steps over depth [0, 1].

        block = bayesianize(field, solver=FixedGrid(7, "ralston3"), key=key)
        long = FixedGrid(1000, "reversible_heun", "reversible")

    - ``steps``: the number of steps.
    - ``method``: "euler", "heun", "ralston3" or "reversible_heun", of strong order 1, 1, 1.5 and 1, or an
      ``AbstractMethod`` of your own. "reversible_heun" is unstable if the drift or the field contracts: it refuses a
      prior with too large a ``rate``, and warns of a solve that became unstable.
    - ``gradient`` changes memory and time, but not the numbers: "backprop" stores the whole forward pass, "checkpoint"
      the hidden state of each step, "reversible" (only with "reversible_heun") nothing, so that memory does not grow
      with the number of steps.
    - ``unroll``: how many steps of a loop are compiled as one, which is faster to run and slower to compile. With
      ``None``, the number depends on the platform; ``sdebnn info`` prints these choices, and ``describe`` prints what
      they mean for a model.
    - ``noise_steps``: the number of equal steps on which a key's Brownian path is first drawn; this grid then
      interpolates it. With ``None``, it is drawn on this grid.
    - ``at_once``: how many examples (``None``: all) are carried through the depth together: a few fit a CPU's cache.
    """

    steps: int = eqx.field(default=20, static=True)
    method: AbstractMethod | MethodName = eqx.field(default="euler", static=True, converter=as_method)
    gradient: GradientName = eqx.field(default="checkpoint", static=True)
    unroll: int | None = eqx.field(default=None, static=True)
    noise_steps: int | None = eqx.field(default=None, static=True)
    at_once: int | None = eqx.field(default=None, static=True)

    def __check_init__(self):
        check_count("steps", self.steps)
        for name, count in (("at_once", self.at_once), ("unroll", self.unroll)):
            if count is not None:
                check_count(name, count)
        check_choice("gradient", self.gradient, get_args(GradientName))
        if self.gradient == "reversible" and not self._method.is_reversible:
            raise ValueError(
                f"gradient='reversible' undoes each step, which method={method_name(self._method)!r} does not allow: "
                "use method='reversible_heun', or gradient='checkpoint'."
            )
        if self.noise_steps is not None:
            check_base(self.steps, self.noise_steps)

    @property
    def base(self) -> int:
        """The number of steps of the grid on which a key's Brownian path is first drawn."""
        return self.noise_steps or self.steps

    @property
    def estimators(self) -> tuple[KLEstimator, ...]:
        """All of them, because the martingale is evaluated at the left end of each step."""
        return get_args(KLEstimator)

    @property
    def grid_steps(self) -> int:
        """The number of steps."""
        return self.steps

    @property
    def stages(self) -> int:
        """The number of sets of weights with which the hidden units take one step."""
        return len(self._method.shares)

    @property
    def evaluations(self) -> int:
        """The number of evaluations of the field in one solve."""
        return self._method.evaluations(self.steps)

    def with_steps(self, steps: int) -> "FixedGrid":
        """The same method with this number of steps, and the same Brownian paths."""
        if steps == self.steps:
            return self
        return FixedGrid(steps, self.method, self.gradient, self.unroll, self.base, self.at_once)

    def tighter(self) -> "tuple[FixedGrid, float]":
        """The grid with twice the steps. An error proportional to dt^p is 1 / (1 - 2^-p) times the difference."""
        return self.with_steps(2 * self.steps), 1 / (1 - 2**-self._method.order)

    def check_process(self, process: Process) -> None:
        """Refuse a prior under which the method is unstable, and a guide that the method does not carry."""
        self._method.check_prior(process.prior, self.steps)
        if process.guide is not None and not self._method.carries_seen:
            raise ValueError(
                f"method={method_name(self._method)} does not carry the hidden states that a guide sees: use one of "
                f"{', '.join(METHODS)}, or guide=None."
            )

    def times(self, dtype: DTypeLike = float) -> Float[Array, " time"]:
        """The grid, from exactly 0 to exactly 1."""
        return jnp.arange(self.steps + 1, dtype=dtype) / self.steps

    def noise(self, size: int, dtype: DTypeLike, *, key: PRNGKeyArray) -> Noise:
        """The key's Brownian path on this grid."""
        brownian = Brownian(self.base, size, dtype, key)
        if self.base != self.steps:
            return noise_on_grid(brownian, self.steps)
        return brownian.every_step(area=self._method.needs_area)

    def weights(self, process: Process, *, key: PRNGKeyArray, until: float = 1.0) -> WeightPath:
        """Draw a path of the weights from the posterior, and estimate its KL; noise and KL end at depth ``until``."""
        self.check_process(process)
        w0, _, start_nats, path_key = start_of(process, key)
        noise = self.noise(w0.shape[0], w0.dtype, key=path_key)
        t = self.times(w0.dtype)
        random = jnp.arange(self.steps) < round(until * self.steps)
        if until < 1:
            noise = jax.tree.map(lambda each: jnp.where(random[:, None], each, 0), noise)
        w, stages, distance = self.drive(process, w0, noise)
        if distance is not None:
            warn_if_unstable(distance)

        def nats(t: Depth, w: Weights, seen: Points | None, corrections: tuple[Weights, ...], dB: Weights) -> Array:
            return step_nats(process, self._method.shares, w, seen, corrections, t, 1 / self.steps, dB)

        every = jax.vmap(nats)(t[:-1], stages.weights[0], stages.seen, stages.corrections, noise.dB)
        kl = jnp.sum(every if until == 1 else jnp.where(random, every, 0))
        return WeightPath(t, w, stages.weights, kl + start_nats, distance)

    def drive(
        self, process: Process, w0: Weights, noise: Noise
    ) -> tuple[Float[Array, "time weight"], Stages, Float[Array, ""] | None]:
        """The posterior's path from w_0 under given noise, the stages of every step, and the shadow's distance."""
        method = self._method
        path = self.plan.faster_path(process, w0, noise.dB)
        if path is not None:
            return path.w, Stages((path.w[:-1],), (path.corrections,)), None

        def step(state: PyTree[Array], now: tuple[Depth, Noise]) -> tuple[PyTree[Array], tuple[Weights, Stages]]:
            t, noise = now
            after, stages = method.weights_step(process, state, t, 1 / self.steps, noise)
            return after, (method.weights_of(state), stages)

        start = method.weights_start(process, w0)
        unroll = self.plan.unroll_weights
        if unroll > 1:  # otherwise XLA would compile the drawing of the noise again for each step
            noise = lax.optimization_barrier(noise)
        end, (w, stages) = lax.scan(step, start, (self.times(w0.dtype)[:-1], noise), unroll=unroll)
        return jnp.concatenate([w, method.weights_of(end)[None]]), stages, method.weights_shadow_distance(end)

    def hidden(
        self,
        f_h: VectorField,
        stages: Sequence[PyTree[Array]],
        h0: Hidden,
        *,
        every: bool = False,
        with_roughness: bool = False,
        all_euler_steps: AllEulerSteps | None = None,
    ) -> Carried:
        """Carry a batch through known weights to h_1; with ``every``, return all states from h_0 on.

        ``stages`` are those of a ``WeightPath``, or trees of arrays made from them, with the steps as first axis.
        ``all_euler_steps`` returns a faster way to take all Euler steps if there is one, otherwise None.
        """
        together = self.plan.examples_together(h0.shape[0])
        if every or together == h0.shape[0]:
            return self._hidden(f_h, stages, h0, every, with_roughness, all_euler_steps)
        parts = h0.reshape(-1, together, *h0.shape[1:])
        carried = lax.map(lambda h: self._hidden(f_h, stages, h, every, with_roughness, all_euler_steps), parts)
        return Carried(carried.outputs.reshape(h0.shape), carried.roughness.mean(), carried.shadow_distance.max())

    def _hidden(
        self,
        f_h: VectorField,
        stages: Sequence[PyTree[Array]],
        h0: Hidden,
        every: bool,
        with_roughness: bool,
        all_euler_steps: AllEulerSteps | None,
    ) -> Carried:
        method, plan, zero = self._method, self.plan, jnp.zeros((), h0.dtype)
        faster = None if every or with_roughness else plan.faster_steps(all_euler_steps, stages[0], h0)
        if faster is not None:
            return Carried(faster.take(keep=self.gradient == "backprop", unroll=plan.unroll), zero, zero)

        def step(
            carry: "_HiddenCarry", now: tuple[Depth, Sequence[PyTree[Array]]]
        ) -> "tuple[_HiddenCarry, Hidden | None]":
            state = method.hidden_of(carry.state) if every else None
            return self._advance(f_h, carry, *now), state

        carry = self._start(f_h, h0, jax.tree.map(lambda leaf: leaf[0], stages[0]), with_roughness)
        each = (self.times(h0.dtype)[:-1], stages)
        end, states = lax.scan(self._recomputed(step), carry, each, unroll=plan.unroll)
        h1, distance = method.hidden_of(end.state), method.hidden_shadow_distance(end.state)
        outputs = h1 if states is None else jnp.concatenate([states, h1[None]])
        return Carried(outputs, end.roughness, zero if distance is None else distance)

    def _start(self, f_h: VectorField, h0: Hidden, first: PyTree[Array], with_roughness: bool) -> "_HiddenCarry":
        state, slope = self._method.hidden_start(f_h, h0, first)
        return _HiddenCarry(state, slope if with_roughness else None, jnp.zeros((), h0.dtype))

    def _advance(
        self, f_h: VectorField, carry: "_HiddenCarry", t: Depth, stages: Sequence[PyTree[Array]]
    ) -> "_HiddenCarry":
        state, slope = self._method.hidden_step(f_h, carry.state, t, 1 / self.steps, tuple(stages))
        if carry.slope is None:
            return carry._replace(state=state)
        return _HiddenCarry(state, slope, carry.roughness + jnp.mean((slope - carry.slope) ** 2))

    def _recomputed(self, step: Callable[..., State]) -> Callable[..., State]:
        """A step of a loop. The backward pass recomputes it from its start, unless the forward pass is stored."""
        return step if self.gradient == "backprop" else jax.checkpoint(step)

    def solve(
        self, dynamics: Dynamics, h0: Hidden, *, key: PRNGKeyArray, every: bool = False, with_roughness: bool = False
    ) -> Solution:
        """Draw the weights and carry a batch through them to h_1; with ``every``, return the state at every depth."""
        self.check_process(dynamics)
        loops = self.plan.loops(dynamics.initial, every).kind
        if loops == "reversible":
            carried, kl = self._reversible(dynamics, h0, key, with_roughness)
        elif loops == "one":
            carried, kl = self._one_loop(dynamics, h0, key, with_roughness)
        else:
            path = self.weights(dynamics, key=key)
            # The arrays of all steps are made at once, outside the loop over depth.
            random = tuple(dynamics.unravel(w) for w in path.stages)
            carried, kl = self.hidden(
                dynamics.f_h, random, h0, every=every, with_roughness=with_roughness,
                all_euler_steps=dynamics.all_euler_steps,
            ), path.kl  # fmt: skip
            carried = carried._replace(shadow_distance=_larger(path.shadow_distance, carried.shadow_distance))
        return Solution(carried.outputs, kl, jnp.asarray(self.evaluations), jnp.asarray(True), *carried[1:])

    def _one_loop(
        self, dynamics: Dynamics, h0: Hidden, key: PRNGKeyArray, with_roughness: bool
    ) -> tuple[Carried, Float[Array, ""]]:
        """Weights and hidden units in one loop, with the noise of each step drawn in it. The numbers are the same."""
        method, dt = self._method, 1 / self.steps
        w0, _, start_nats, path_key = start_of(dynamics, key)
        brownian = Brownian(self.steps, w0.shape[0], w0.dtype, path_key)

        def step(
            carry: "tuple[PyTree[Array], _HiddenCarry]", now: tuple[Depth, Int[Array, ""]]
        ) -> "tuple[tuple[PyTree[Array], _HiddenCarry], Float[Array, '']]":
            w, h = carry
            t, i = now
            noise = brownian.step(i, area=method.needs_area)
            w, stages = method.weights_step(dynamics, w, t, dt, noise)
            nats = step_nats(
                dynamics, method.shares, stages.weights[0], stages.seen, stages.corrections, t, dt, noise.dB
            )  # fmt: skip
            h = self._advance(dynamics.f_h, h, t, [dynamics.unravel(each) for each in stages.weights])
            return (w, h), nats

        start = (
            method.weights_start(dynamics, w0),
            self._start(dynamics.f_h, h0, dynamics.unravel(w0), with_roughness),
        )
        each = (self.times(w0.dtype)[:-1], jnp.arange(self.steps))
        (w, end), nats = lax.scan(self._recomputed(step), start, each)
        zero = jnp.zeros((), h0.dtype)
        distance = _larger(method.weights_shadow_distance(w), _larger(method.hidden_shadow_distance(end.state), zero))
        kl = jnp.sum(nats) + start_nats
        return Carried(method.hidden_of(end.state), end.roughness, distance), kl

    def _reversible(
        self, dynamics: Dynamics, h0: Hidden, key: PRNGKeyArray, with_roughness: bool
    ) -> tuple[Carried, Float[Array, ""]]:
        w0, seen, start_nats, path_key = start_of(dynamics, key)
        noise = Brownian(self.steps, w0.shape[0], w0.dtype, path_key)
        if self.base != self.steps:
            noise = self.noise(w0.shape[0], w0.dtype, key=path_key)
        joint = JointState(w0, with_seen(seen, h0))
        end = reversible_solve((dynamics, joint), Grid(self.steps, with_roughness, h0.shape[0], noise))
        return Carried(end.y.h[-h0.shape[0] :], end.roughness, end.shadow_distance), end.nats + start_nats

    @property
    def _method(self) -> AbstractMethod:
        return as_method(self.method)

    @property
    def plan(self) -> Plan:
        """How solves are executed on the platform in use."""
        noise_steps = None if self.base == self.steps else self.base
        return Plan(
            execution_on(platform()), self.steps, self._method.is_euler, self.gradient, self.unroll, self.at_once,
            noise_steps,
        )  # fmt: skip

    @property
    def description(self) -> str:
        """The number of steps and the method."""
        return f"{self.steps} steps of {method_name(self._method)}"

    def execution(self, dynamics: Dynamics, h0: Hidden) -> str:
        """How a solve is executed on the platform in use, and why."""
        return self.plan.words(dynamics, h0)


class _HiddenCarry(NamedTuple):
    """The carry of the loop over the hidden units: the method's state and, for the roughness, the last slope."""

    state: PyTree[Array]
    slope: Hidden | None
    roughness: Float[Array, ""]


def _larger(a: Float[Array, ""] | None, b: Float[Array, ""]) -> Float[Array, ""]:
    return b if a is None else jnp.maximum(a.astype(b.dtype), b)
