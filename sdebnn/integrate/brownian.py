"""The Brownian motion that a key names, at every resolution.

It is first drawn on a base grid of equal steps: the increment ΔB of each, and its space-time Lévy area

    A = (1/dt) ∫ (B_s - B_0) ds - ½ ΔB,   independent of ΔB, normal with variance dt / 12.

Inside a step it is bridged. In units of the step, B_s = s ΔB + 6 s (1 - s) A + Z_s, where the arch Z is independent of
both and comes from a virtual Brownian tree of the step's own. So every other grid, and every adaptive solver, sees the
same path; a solver that stays on the base grid pays for no tree.
"""

import math
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sdebnn.checks import check_count

FINEST = 2**-16  # of depth: times that are closer are not told apart

Count = int | Int[Array, "*time"]


def check_base(steps: int, noise_steps: int) -> None:
    """Refuse a grid or a base finer than the trees."""
    check_count("noise_steps", noise_steps)
    if max(steps, noise_steps) > 1 / FINEST:
        raise ValueError(
            f"steps={steps} with noise_steps={noise_steps}: a bridged path is known at {round(1 / FINEST)} depths; "
            "take no more steps."
        )


class Noise(NamedTuple):
    """Brownian increments and, for the methods that need them (``None`` for the others), space-time Lévy areas."""

    dB: Float[Array, "*step weight"]
    area: Any


class Brownian(eqx.Module):
    """Brownian motion on [0, 1] by its base grid of ``steps``; each step is drawn, when asked for, from its own key."""

    steps: int = eqx.field(static=True)
    size: int = eqx.field(static=True)
    dtype: Any = eqx.field(static=True)
    key: PRNGKeyArray

    def step(self, i: Count, *, area: bool = True) -> Noise:
        """The noise of base step i."""
        increment_key, area_key, _ = self._keys(i)
        dB = jax.random.normal(increment_key, (self.size,), self.dtype) / math.sqrt(self.steps)
        if not area:
            return Noise(dB, None)
        return Noise(dB, jax.random.normal(area_key, (self.size,), self.dtype) / math.sqrt(12 * self.steps))

    def every_step(self, *, area: bool = True) -> Noise:
        """The noise of all base steps."""
        return jax.vmap(lambda i: self.step(i, area=area))(jnp.arange(self.steps))

    def tree(self, i: Count, s: float | Float[Array, ""]) -> Any:
        """A motion in units of base step i, whose arch bridges it: what it does up to the share s of the step."""
        *_, key = self._keys(i)
        shape = jax.ShapeDtypeStruct((self.size,), self.dtype)
        tree = diffrax.VirtualBrownianTree(
            0.0, 1.0, self.steps * FINEST, shape, key, levy_area=diffrax.SpaceTimeLevyArea
        )
        return tree.evaluate(s, use_levy=True)

    def _keys(self, i: Count) -> tuple[PRNGKeyArray, ...]:
        return tuple(jax.random.split(jax.random.fold_in(self.key, i), 3))


class _Since(NamedTuple):
    """B and its integral, since some time at which both are called zero."""

    value: Float[Array, "*time weight"]
    integral: Float[Array, "*time weight"]


class BrownianPath(diffrax.AbstractBrownianPath):
    """The same Brownian motion between any two times, in diffrax's form."""

    base: Brownian
    starts: _Since  # since depth 0, at the start of each base step
    bends: tuple[Array, Array]  # what turns each step's tree into its bridge: ΔB and A, less the tree's own
    t0: Any = 0.0
    t1: Any = 1.0
    levy_area: Any = eqx.field(default=diffrax.SpaceTimeLevyArea, static=True)

    def __init__(self, base: Brownian):
        dB, area = base.every_step()
        dt, root = 1 / base.steps, math.sqrt(base.steps)
        value = jnp.cumsum(dB, axis=0) - dB
        inside = dt * (value + 0.5 * dB + area)
        ends = lax.map(lambda i: base.tree(i, 1.0), jnp.arange(base.steps))
        self.base = base
        self.starts = _Since(value, jnp.cumsum(inside, axis=0) - inside)
        self.bends = (root * dB - ends.W, root * area - ends.H)

    def evaluate(self, t0: Any, t1: Any = None, left: bool = True, use_levy: bool = False) -> Any:
        """B_{t1} - B_{t0}; with ``use_levy``, diffrax's record of it and its space-time Lévy area."""
        if t1 is None:
            t0, t1 = jnp.zeros_like(t0), t0
        last = self.base.steps - 1
        before = jnp.clip(jnp.floor(t0 * self.base.steps).astype(int), 0, last)
        # Not before the base step of t0, so that a step of length 0 from a base point has exactly zero noise.
        after = jnp.clip(jnp.ceil(t1 * self.base.steps).astype(int) - 1, before, last)
        s0, s1 = t0 * self.base.steps - before, t1 * self.base.steps - after
        # Both ends in one query: the tree is what takes long to compile.
        both = jax.vmap(self._inside)(jnp.stack([before, after]), jnp.stack([s0, s1]))
        here, there = (jax.tree.map(lambda x, i=i: x[i], both) for i in (0, 1))
        noise = self._between(before, s0, here, after, s1, there)
        if not use_levy:
            return noise.dB
        return diffrax.SpaceTimeLevyArea(dt=jnp.asarray(t1 - t0, self.base.dtype), W=noise.dB, H=noise.area)

    def grid(self, steps: int) -> Noise:
        """The noise on a grid of so many equal steps."""
        base = self.base.steps
        points = jnp.arange(steps + 1) * base  # in units of 1 / (base steps), so that no time is rounded
        before, after = points[:-1] // steps, (points[1:] - 1) // steps
        s0, s1 = (
            (point - i * steps).astype(self.base.dtype) / steps
            for point, i in ((points[:-1], before), (points[1:], after))
        )
        ends = lax.map(lambda point: self._inside(*point), (after, s1))
        # Each step starts where the last one ended, unless that was the end of a base step: then from zero.
        here = jax.tree.map(lambda x: jnp.where((s0 == 0)[:, None], 0.0, jnp.roll(x, 1, axis=0)), ends)
        return jax.vmap(self._between)(before, s0, here, after, s1, ends)

    def _between(self, i0: Count, s0: Array, here: _Since, i1: Count, s1: Array, there: _Since) -> Noise:
        """From the share s_0 of base step i_0 to the share s_1 of base step i_1."""
        dt = 1 / self.base.steps
        gap = jax.tree.map(lambda x: x[i1] - x[i0], self.starts)
        # All since the start of base step i_0: within one base step the rest is exactly zero.
        value = gap.value + there.value
        integral = gap.integral - (i1 - i0) * dt * self.starts.value[i0] + s1 * dt * gap.value + there.integral
        length = (i1 - i0 + s1 - s0) * dt
        dB = value - here.value
        # Draws that have finished go on, while others have not, with steps of length 0. Their result is discarded, but
        # 0 / 0 would make the gradient of every draw NaN: so the division itself must be safe.
        empty = length <= 0
        mean = (integral - here.integral) / jnp.where(empty, 1, length)
        return Noise(dB, jnp.where(empty, 0, mean - here.value - 0.5 * dB))

    def _inside(self, i: Count, s: Float[Array, ""]) -> _Since:
        """From the start of base step i to the share s of it."""
        levy = self.base.tree(i, s)
        slope, curve = (bend[i] for bend in self.bends)
        value = levy.W + s * slope + 6 * s * (1 - s) * curve
        integral = s * (levy.H + 0.5 * levy.W) + 0.5 * s**2 * slope + s**2 * (3 - 2 * s) * curve
        dt = 1 / self.base.steps
        return _Since(math.sqrt(dt) * value, dt * math.sqrt(dt) * integral)
