"""The Brownian motion of a key, which is the same at every resolution.

It is first drawn on a base grid of equal steps: the increment ΔB of each step, and its space-time Lévy area

    A = (1/dt) ∫ (B_s - B_0) ds - ½ ΔB,   independent of ΔB, normal with variance dt / 12.

Inside a step, the path is a bridge. In units of the step, B_s = s ΔB + 6 s (1 - s) A + Z_s, where the Brownian arch Z
is independent of both and is drawn by a virtual Brownian tree, one for each step. So all grids and all adaptive solvers
see the same path, and a solver on the base grid needs no tree.
"""

import math
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sdebnn.checks import check_count

TREE_RESOLUTION = 2**-16  # in units of depth: the tree does not distinguish times that are closer

Count = int | Int[Array, "*time"]


def check_base(steps: int, noise_steps: int) -> None:
    """Refuse a grid, or a base grid, that is finer than the resolution of the trees."""
    check_count("noise_steps", noise_steps)
    if max(steps, noise_steps) > 1 / TREE_RESOLUTION:
        raise ValueError(
            f"steps={steps} with noise_steps={noise_steps} is finer than the {round(1 / TREE_RESOLUTION)} depths at "
            "which a Brownian path is known: take fewer steps."
        )


class Noise(NamedTuple):
    """Brownian increments, and the space-time Lévy areas for methods that use them, otherwise None."""

    dB: Float[Array, "*step weight"]
    area: Float[Array, "*step weight"] | None


class Brownian(eqx.Module):
    """Brownian motion on a base grid of [0, 1] with ``steps`` equal steps. Each step is drawn from its own key.

        motion = Brownian(10, 4, jnp.float32, key)
        increments = motion.every_step().dB

    ``size`` is the number of independent motions, ``dtype`` their type.
    """

    steps: int = eqx.field(static=True)
    size: int = eqx.field(static=True)
    dtype: DTypeLike = eqx.field(static=True)
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

    def tree(self, i: Count, s: float | Float[Array, ""]) -> diffrax.SpaceTimeLevyArea:
        """The virtual Brownian tree of base step i from the start of the step to the fraction s, in units of the step.

        Only its arch is used.
        """
        *_, key = self._keys(i)
        shape = jax.ShapeDtypeStruct((self.size,), self.dtype)
        tree = diffrax.VirtualBrownianTree(
            0.0, 1.0, self.steps * TREE_RESOLUTION, shape, key, levy_area=diffrax.SpaceTimeLevyArea
        )
        levy = tree.evaluate(s, use_levy=True)
        assert isinstance(levy, diffrax.SpaceTimeLevyArea)
        return levy

    def _keys(self, i: Count) -> tuple[PRNGKeyArray, ...]:
        return tuple(jax.random.split(jax.random.fold_in(self.key, i), 3))


class _Increments(NamedTuple):
    """The increments of B and of its integral since a time of reference."""

    value: Float[Array, "*time weight"]
    integral: Float[Array, "*time weight"]


class BrownianPath(diffrax.AbstractBrownianPath):
    """The same Brownian motion between any two times, as a path of diffrax.

        path = BrownianPath(Brownian(10, 4, jnp.float32, key))
        increment = path.evaluate(0.25, 0.5)

    ``Adaptive`` gives it to the solvers of diffrax.
    """

    base: Brownian
    starts: _Increments  # from depth 0 to the start of each base step
    # ΔB and A of each step minus those of its tree: adding them turns the tree into the bridge.
    corrections: tuple[Array, Array]
    t0: Any = 0.0
    t1: Any = 1.0
    levy_area: Any = eqx.field(default=diffrax.SpaceTimeLevyArea, static=True)

    def __init__(self, base: Brownian, ends: diffrax.SpaceTimeLevyArea | None = None):
        """``ends`` are the values of all trees at the ends of their steps, if they are known."""
        dB, area = base.every_step()
        assert area is not None
        dt, root = 1 / base.steps, math.sqrt(base.steps)
        value = jnp.cumsum(dB, axis=0) - dB
        inside = dt * (value + 0.5 * dB + area)
        known = lax.map(lambda i: base.tree(i, 1.0), jnp.arange(base.steps)) if ends is None else ends
        self.base = base
        self.starts = _Increments(value, jnp.cumsum(inside, axis=0) - inside)
        self.corrections = (root * dB - known.W, root * area - known.H)

    def evaluate(
        self, t0: Any, t1: Any = None, left: bool = True, use_levy: bool = False
    ) -> Float[Array, " weight"] | diffrax.SpaceTimeLevyArea:
        """B_{t1} - B_{t0}; with ``use_levy``, as diffrax's record of the increment and the space-time Lévy area."""
        if t1 is None:
            t0, t1 = jnp.zeros_like(t0), t0
        last = self.base.steps - 1
        before = jnp.clip(jnp.floor(t0 * self.base.steps).astype(int), 0, last)
        # At least the base step of t0, so that a step of length 0 from a base point has exactly zero noise.
        after = jnp.clip(jnp.ceil(t1 * self.base.steps).astype(int) - 1, before, last)
        s0, s1 = t0 * self.base.steps - before, t1 * self.base.steps - after
        # Both ends in one query, because the tree takes long to compile.
        steps, fractions = jnp.stack([before, after]), jnp.stack([s0, s1])
        both = jax.vmap(self.bridge)(steps, fractions, jax.vmap(self.base.tree)(steps, fractions))
        here, there = (jax.tree.map(lambda x, i=i: x[i], both) for i in (0, 1))
        noise = self.between(before, s0, here, after, s1, there)
        if not use_levy:
            return noise.dB
        return diffrax.SpaceTimeLevyArea(dt=jnp.asarray(t1 - t0, self.base.dtype), W=noise.dB, H=noise.area)

    def between(self, i0: Count, s0: Array, here: _Increments, i1: Count, s1: Array, there: _Increments) -> Noise:
        """The noise from the fraction s_0 of base step i_0 to the fraction s_1 of base step i_1."""
        dt = 1 / self.base.steps
        gap = jax.tree.map(lambda x: x[i1] - x[i0], self.starts)
        # Measured from the start of base step i_0, so that the gap is exactly zero within one base step.
        value = gap.value + there.value
        integral = gap.integral - (i1 - i0) * dt * self.starts.value[i0] + s1 * dt * gap.value + there.integral
        length = (i1 - i0 + s1 - s0) * dt
        dB = value - here.value
        # Draws that have finished take steps of length 0 until all have finished. The result is discarded, but 0 / 0
        # would make the gradient of every draw NaN, so the division itself must be safe.
        empty = length <= 0
        mean = (integral - here.integral) / jnp.where(empty, 1, length)
        return Noise(dB, jnp.where(empty, 0, mean - here.value - 0.5 * dB))

    def bridge(self, i: Count, s: Float[Array, ""], levy: diffrax.SpaceTimeLevyArea) -> _Increments:
        """The increments from the start of base step i to the fraction s of it, by its tree there."""
        slope, curve = (each[i] for each in self.corrections)
        value = levy.W + s * slope + 6 * s * (1 - s) * curve
        integral = s * (levy.H + 0.5 * levy.W) + 0.5 * s**2 * slope + s**2 * (3 - 2 * s) * curve
        dt = 1 / self.base.steps
        return _Increments(math.sqrt(dt) * value, dt * math.sqrt(dt) * integral)


def noise_on_grid(base: Brownian, steps: int) -> Noise:
    """The noise of the same Brownian motion on a grid of ``steps`` equal steps.

        motion = Brownian(10, 4, jnp.float32, key)
        finer = noise_on_grid(motion, 20)

    The result has increments and Lévy areas, "step weight". ``steps`` may be any number, finer or coarser.
    """
    points = jnp.arange(steps + 1) * base.steps  # in units of 1 / (base steps), so that no time is rounded
    before, after = points[:-1] // steps, (points[1:] - 1) // steps
    s0, s1 = (
        (point - i * steps).astype(base.dtype) / steps for point, i in ((points[:-1], before), (points[1:], after))
    )
    # One query for the ends of the base steps and the points of the grid, because the tree takes long to compile.
    asked = jnp.append(jnp.arange(base.steps), after), jnp.append(jnp.ones(base.steps, base.dtype), s1)
    levy = lax.map(lambda point: base.tree(*point), asked)
    path = BrownianPath(base, jax.tree.map(lambda x: x[: base.steps], levy))
    ends = jax.vmap(path.bridge)(after, s1, jax.tree.map(lambda x: x[base.steps :], levy))
    # Each step starts where the last one ended, or from zero if it starts with a base step.
    here = jax.tree.map(lambda x: jnp.where((s0 == 0)[:, None], 0.0, jnp.roll(x, 1, axis=0)), ends)
    return jax.vmap(path.between)(before, s0, here, after, s1, ends)
