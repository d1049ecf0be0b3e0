"""A fixed grid over depth: the weight path and its KL first, then the hidden units through it.

The weights do not depend on the hidden units, so the whole path is drawn before the first of them moves: the loop over
depth that touches the batch holds nothing else. Only where the path is too long for a processor's cache do both advance
together.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from sdebnn.checks import check_choice, check_count
from sdebnn.integrate.brownian import Brownian, BrownianPath, Noise, check_base
from sdebnn.integrate.methods import METHODS, Field, Method, MethodName, Stages
from sdebnn.integrate.narrow import is_narrow, narrow_path
from sdebnn.integrate.paths import Dynamics, Hidden, Process, Solution, WeightPath, start_nats, start_of, step_nats
from sdebnn.integrate.reversible import Both, Grid, reversible_solve
from sdebnn.integrate.stability import check_contraction, stray, warn_if_stray
from sdebnn.processes import Depth, Weights

Gradient = Literal["backprop", "checkpoint", "reversible"]
AllSteps = Callable[..., Hidden | None]
MANY = 2**13  # weights, from which on a path of them no longer stays in a processor's cache


class FixedGrid(eqx.Module):
    """Equal steps over depth [0, 1].

    ``method``: "euler", "heun", "ralston3" or "reversible_heun", of strong order 1, 1, 1.5 and 1. The last is unstable
    where drift or field contract: it refuses a prior of too large a ``rate``, and warns of a solve that went unstable.
    ``gradient`` changes memory and time, never the numbers: "backprop" keeps all of the forward pass, "checkpoint" the
    hidden state of each step, "reversible" (with "reversible_heun" alone) nothing: its memory does not grow with steps.
    ``unroll`` steps of the loop over the hidden units are compiled as one (unless told, four on a processor, five
    elsewhere), and on a GPU of that over the weights (four, where a drift is narrow): faster to run, slower to compile.
    ``at_once`` examples (all, unless told) go through the depth together: few of them stay in a processor's cache.
    ``noise_steps`` is the grid on which a key's Brownian path is first drawn, and bridged from there to this one;
    ``None``: this grid itself.
    """

    steps: int = eqx.field(default=20, static=True)
    method: MethodName = eqx.field(default="euler", static=True)
    gradient: Gradient = eqx.field(default="checkpoint", static=True)
    unroll: int | None = eqx.field(default=None, static=True)
    noise_steps: int | None = eqx.field(default=None, static=True)
    at_once: int | None = eqx.field(default=None, static=True)

    def __check_init__(self):
        check_count("steps", self.steps)
        for name, count in (("at_once", self.at_once), ("unroll", self.unroll)):
            if count is not None:
                check_count(name, count)
        check_choice("method", self.method, get_args(MethodName))
        check_choice("gradient", self.gradient, get_args(Gradient))
        if self.gradient == "reversible" and self.method != "reversible_heun":
            raise ValueError(
                f"gradient='reversible' undoes each step, which method={self.method!r} does not allow: "
                "use method='reversible_heun', or gradient='checkpoint'."
            )
        if self.noise_steps is not None:
            check_base(self.steps, self.noise_steps)

    @property
    def base(self) -> int:
        """The steps of the grid on which a key's Brownian path is first drawn."""
        return self.noise_steps or self.steps

    @property
    def _unrolled(self) -> int:
        """How many steps are compiled as one."""
        return self.unroll or (4 if jax.default_backend() == "cpu" else 5)

    @property
    def stages(self) -> int:
        """How many sets of weights carry the hidden units through one step."""
        return len(self._method.shares)

    @property
    def evaluations(self) -> int:
        """How often one solve evaluates the field."""
        return self._method.evaluations(self.steps)

    def check_kl(self, kl: str) -> None:
        """Every estimator is right here: the martingale is summed at the left end of each step."""

    def check_process(self, process: Process) -> None:
        """Refuse a prior for which the method is known to be unstable."""
        if self.method == "reversible_heun":
            check_contraction(process.prior, self.steps)

    def times(self, dtype: Any = float) -> Float[Array, " time"]:
        """The grid, from exactly 0 to exactly 1."""
        return jnp.arange(self.steps + 1, dtype=dtype) / self.steps

    def noise(self, size: int, dtype: Any, *, key: PRNGKeyArray) -> Noise:
        """The key's Brownian path on this grid."""
        brownian = Brownian(self.base, size, dtype, key)
        if self.base != self.steps:
            return BrownianPath(brownian).grid(self.steps)
        return brownian.every_step(area=self._method.needs_area)

    def weights(self, process: Process, *, key: PRNGKeyArray, until: float = 1.0) -> WeightPath:
        """Draw w from the posterior, and estimate its KL from the prior; noise and KL may end before the depth does."""
        self.check_process(process)
        w0, path_key = start_of(process, key)
        noise = self.noise(w0.shape[0], w0.dtype, key=path_key)
        t = self.times(w0.dtype)
        random = jnp.arange(self.steps) < round(until * self.steps)
        if until < 1:
            noise = jax.tree.map(lambda each: jnp.where(random[:, None], each, 0), noise)
        w, stages = self.drive(process, w0, noise)
        if self.method == "reversible_heun":
            warn_if_stray(stray(w[-1], stages.weights[1][-1]))

        def nats(t: Depth, w: Weights, corrections: tuple[Weights, ...], dB: Weights) -> Array:
            return step_nats(process, self._method.shares, w, corrections, t, 1 / self.steps, dB)

        every = jax.vmap(nats)(t[:-1], stages.weights[0], stages.corrections, noise.dB)
        kl = jnp.sum(every if until == 1 else jnp.where(random, every, 0))
        return WeightPath(t, w, stages.weights, kl + start_nats(process.initial, w0, process.kl))

    def drive(self, process: Process, w0: Weights, noise: Noise) -> tuple[Float[Array, "time weight"], Stages]:
        """The posterior's path from w_0 under given noise, and the stages of every step."""
        method = self._method
        if self.method == "euler" and jax.default_backend() == "gpu" and is_narrow(process):
            w, corrections = narrow_path(process, w0, noise.dB)
            return w, Stages((w[:-1],), (corrections,))

        def step(state: PyTree[Array], now: tuple[Depth, Noise]) -> tuple[PyTree[Array], tuple[Weights, Stages]]:
            t, noise = now
            after, stages = method.weights_step(process, state, t, 1 / self.steps, noise)
            return after, (method.weights_of(state), stages)

        start = method.weights_start(process, w0)
        # On a GPU a loop costs more than what is in it. On a processor a longer one is slower, but where the hidden
        # units have none, neither have the weights.
        unroll = self._unrolled if jax.default_backend() == "gpu" or self._unrolled >= self.steps else 1
        if unroll > 1:  # or every step would draw its noise itself, and the drawing be compiled for each
            noise = lax.optimization_barrier(noise)
        end, (w, stages) = lax.scan(step, start, (self.times(w0.dtype)[:-1], noise), unroll=unroll)
        return jnp.concatenate([w, method.weights_of(end)[None]]), stages

    def hidden(
        self,
        f_h: Field,
        stages: Sequence[PyTree[Array]],
        h0: Hidden,
        *,
        every: bool = False,
        rough: bool = False,
        euler: AllSteps | None = None,
    ) -> tuple[Float[Array, "..."], Float[Array, ""], Float[Array, ""]]:
        """Carry a batch through known weights to h_1, or to ``every`` state from h_0 on.

        Beside it the roughness, if asked, and how far the shadow has strayed, if the method has one.

        ``stages`` are those of a ``WeightPath``, or trees of arrays made of them, steps first. ``at_once`` examples go
        together: all of them if they do not divide, or if ``every`` state counts. ``euler`` returns h_1 after all steps
        of that method, where there is a faster way to take them, or None.
        """
        if every or self.at_once is None or h0.shape[0] % self.at_once or h0.shape[0] == self.at_once:
            return self._hidden(f_h, stages, h0, every, rough, euler)
        parts = h0.reshape(-1, self.at_once, *h0.shape[1:])
        outputs, roughness, strays = lax.map(lambda h: self._hidden(f_h, stages, h, every, rough, euler), parts)
        return outputs.reshape(h0.shape), roughness.mean(), strays.max()

    def _hidden(
        self,
        f_h: Field,
        stages: Sequence[PyTree[Array]],
        h0: Hidden,
        every: bool,
        rough: bool,
        euler: AllSteps | None,
    ) -> tuple[Float[Array, "..."], Float[Array, ""], Float[Array, ""]]:
        if euler is not None and self.method == "euler" and not every and not rough:
            h1 = euler(stages[0], h0, keep=self.gradient == "backprop", unroll=self._unrolled)
            if h1 is not None:
                return h1, jnp.zeros((), h0.dtype), jnp.zeros((), h0.dtype)

        def step(carry: tuple, now: tuple[Depth, Sequence[PyTree[Array]]]) -> tuple[tuple, Any]:
            state = self._method.hidden_of(carry[0]) if every else None
            return self._advance(f_h, carry, *now), state

        carry = self._start(f_h, h0, jax.tree.map(lambda leaf: leaf[0], stages[0]), rough)
        each = (self.times(h0.dtype)[:-1], stages)
        (end, _, roughness), states = lax.scan(self._kept(step), carry, each, unroll=self._unrolled)
        h1 = self._method.hidden_of(end)
        return jnp.concatenate([states, h1[None]]) if every else h1, roughness, self._stray(end, h0.dtype)

    def _stray(self, state: Any, dtype: Any) -> Float[Array, ""]:
        """How far the shadow in a state of the method has strayed; 0 for a method without one."""
        return stray(state.y, state.shadow) if self.method == "reversible_heun" else jnp.zeros((), dtype)

    def _start(self, f_h: Field, h0: Hidden, first: PyTree[Array], rough: bool) -> tuple:
        """What goes from step to step of the hidden units: the method's state and, if asked, a slope and roughness."""
        state, slope = self._method.hidden_start(f_h, h0, first)
        return state, slope if rough else None, jnp.zeros((), h0.dtype)

    def _advance(self, f_h: Field, carry: tuple, t: Depth, stages: Sequence[PyTree[Array]]) -> tuple:
        state, before, total = carry
        after, slope = self._method.hidden_step(f_h, state, t, 1 / self.steps, tuple(stages))
        if before is not None:
            before, total = slope, total + jnp.mean((slope - before) ** 2)
        return after, before, total

    def _kept(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """A step of a loop, of which the backward pass keeps all, or its beginning."""
        return step if self.gradient == "backprop" else jax.checkpoint(step)

    def solve(
        self, dynamics: Dynamics, h0: Hidden, *, key: PRNGKeyArray, every: bool = False, rough: bool = False
    ) -> Solution:
        """One draw of the weights, and a batch through it: to h_1, or to ``every`` state of the grid."""
        self.check_process(dynamics)
        if self.gradient == "reversible" and not every:
            outputs, kl, roughness, strayed = self._reversible(dynamics, h0, key, rough)
        elif self._together_is_faster(dynamics, every):
            outputs, kl, roughness, strayed = self._together(dynamics, h0, key, rough)
        else:
            path = self.weights(dynamics, key=key)
            # Every step's arrays at once, outside the loop over depth.
            random = tuple(dynamics.unravel(w) for w in path.stages)
            euler = getattr(dynamics, "euler", None)
            outputs, roughness, strayed = self.hidden(dynamics.f_h, random, h0, every=every, rough=rough, euler=euler)
            kl = path.kl
            if self.method == "reversible_heun":
                strayed = jnp.maximum(strayed, stray(path.w[-1], path.stages[1][-1]).astype(h0.dtype))
        return Solution(outputs, kl, jnp.asarray(self.evaluations), jnp.asarray(True), roughness, strayed)

    def _together_is_faster(self, dynamics: Dynamics, every: bool) -> bool:
        """Whether moving a path of all weights to memory and back costs more than weights first gains."""
        if every or self.at_once is not None or self.base != self.steps or self.gradient == "backprop":
            return False
        w0 = jax.eval_shape(lambda key: dynamics.initial.sample(key=key), jax.random.key(0))
        return w0.size >= MANY and jax.default_backend() == "cpu"

    def _together(
        self, dynamics: Dynamics, h0: Hidden, key: PRNGKeyArray, rough: bool
    ) -> tuple[Hidden, Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
        """Weights and hidden units in one loop, each step's noise drawn when it comes: the same numbers."""
        method, dt = self._method, 1 / self.steps
        w0, path_key = start_of(dynamics, key)
        brownian = Brownian(self.steps, w0.shape[0], w0.dtype, path_key)

        def step(carry: tuple[PyTree[Array], tuple], now: tuple[Depth, Int[Array, ""]]) -> tuple[Any, Float[Array, ""]]:
            w, h = carry
            t, i = now
            noise = brownian.step(i, area=method.needs_area)
            w, stages = method.weights_step(dynamics, w, t, dt, noise)
            nats = step_nats(dynamics, method.shares, stages.weights[0], stages.corrections, t, dt, noise.dB)
            h = self._advance(dynamics.f_h, h, t, [dynamics.unravel(each) for each in stages.weights])
            return (w, h), nats

        start = (method.weights_start(dynamics, w0), self._start(dynamics.f_h, h0, dynamics.unravel(w0), rough))
        each = (self.times(w0.dtype)[:-1], jnp.arange(self.steps))
        (w, (end, _, roughness)), nats = lax.scan(self._kept(step), start, each)
        strayed = jnp.maximum(self._stray(w, h0.dtype).astype(h0.dtype), self._stray(end, h0.dtype))
        kl = jnp.sum(nats) + start_nats(dynamics.initial, w0, dynamics.kl)
        return method.hidden_of(end), kl, roughness, strayed

    def _reversible(
        self, dynamics: Dynamics, h0: Hidden, key: PRNGKeyArray, rough: bool
    ) -> tuple[Hidden, Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
        w0, path_key = start_of(dynamics, key)
        noise = Brownian(self.steps, w0.shape[0], w0.dtype, path_key)
        if self.base != self.steps:
            noise = self.noise(w0.shape[0], w0.dtype, key=path_key)
        end = reversible_solve((dynamics, Both(w0, h0)), Grid(self.steps, rough, noise))
        return end.y.h, end.nats + start_nats(dynamics.initial, w0, dynamics.kl), end.roughness, end.stray

    @property
    def _method(self) -> Method:
        return METHODS[self.method]
