"""The exact gradient of reversible Heun in memory that does not grow with its steps.

The state y = (w, h) and its shadow ŷ advance together, with slope_k = f(t_k, ŷ_k) at the nodes t_0 ... t_n:

    ŷ_{k+1} = 2 y_k - ŷ_k + dt slope_k + σ ΔB_k,     y_{k+1} = y_k + ½ dt (slope_k + slope_{k+1}) + σ ΔB_k

No state on the way is stored. The backward pass solves both equations for ŷ_k and y_k, and evaluates slope_k again,
with its pullback. If ȳ and ŷ̄ are the derivatives of the loss at step k + 1, those at step k are

    ȳ_k = ȳ + 2 ŷ̄,     ŷ̄_k = -ŷ̄ + pullback of f at ŷ_k ( dt ŷ̄ + ½ dt (ȳ + ȳ_k) ).

The noise is drawn again from the same keys.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

from sdebnn.integrate.brownian import Brownian, Noise
from sdebnn.integrate.paths import Dynamics, Hidden, correction, energy, integrand, seen_in
from sdebnn.integrate.stability import shadow_distance
from sdebnn.processes import Weights

Index = int | Int[Array, ""]


class JointState(NamedTuple):
    """The state: weights and hidden units."""

    w: Weights
    h: Hidden


class Node(NamedTuple):
    """The values at one shadow: the slopes, the KL's density ½|u|², and the integrand v of its martingale."""

    slopes: JointState
    energy: Float[Array, ""]
    v: Weights | None


class End(NamedTuple):
    """The state at depth 1, the KL of the path, the roughness, and the distance of the shadow."""

    y: JointState
    nats: Float[Array, ""]
    roughness: Float[Array, ""]
    shadow_distance: Float[Array, ""]  # without gradient


class Grid(eqx.Module):
    """The steps and their noise, which have no gradient."""

    steps: int = eqx.field(static=True)
    with_roughness: bool = eqx.field(static=True)
    examples: int = eqx.field(static=True)  # of the batch; before them are those that a guide sees
    noise: Brownian | Noise

    def kick(self, dynamics: Dynamics, k: Index, y: JointState) -> tuple[JointState, Weights]:
        """The change σ ΔB_k of the state, and ΔB_k."""
        dB = self.noise.step(k, area=False).dB if isinstance(self.noise, Brownian) else self.noise.dB[k]
        return JointState(dynamics.prior.sigma * dB, jnp.zeros_like(y.h)), dB


def _node(dynamics: Dynamics, steps: int, k: Index, shadow: JointState) -> Node:
    t = jnp.asarray(k, shadow.w.dtype) / steps
    w, seen = shadow.w, seen_in(dynamics, shadow.h)
    known = correction(dynamics, t, w, seen)
    slopes = JointState(dynamics.prior.drift(t, w) + known, dynamics.f_h(t, shadow.h, dynamics.unravel(w)))
    return Node(slopes, energy(dynamics, known), integrand(dynamics, t, w, seen, known))


def _sum(*terms: tuple[int | float | Float[Array, ""], JointState]) -> JointState:
    """Σ factor · state."""
    factors, states = zip(*terms, strict=True)
    return jax.tree.map(lambda *parts: sum(f * x for f, x in zip(factors, parts, strict=True)), *states)


def _zeros(y: JointState) -> tuple[Array, Array]:
    """The KL and the roughness at depth 0."""
    return jnp.zeros((), y.w.dtype), jnp.zeros((), y.h.dtype)


@eqx.filter_custom_vjp
def reversible_solve(given: tuple[Dynamics, JointState], grid: Grid) -> End:
    """Solve from y_0 to depth 1."""
    return _forward_solve(given, grid)[0]


def _forward_solve(given: tuple[Dynamics, JointState], grid: Grid) -> tuple[End, JointState]:
    dynamics, y0 = given
    dt = 1 / grid.steps

    def step(k: Index, carry: tuple) -> tuple:
        y, shadow, node, nats, roughness = carry
        kick, dB = grid.kick(dynamics, k, y)
        shadow = _sum((2, y), (-1, shadow), (dt, node.slopes), (1, kick))
        after = _node(dynamics, grid.steps, k + 1, shadow)
        y = _sum((1, y), (0.5 * dt, node.slopes), (0.5 * dt, after.slopes), (1, kick))
        nats = nats + 0.5 * dt * (node.energy + after.energy)
        if node.v is not None:
            nats = nats + jnp.sum(node.v * dB)
        if grid.with_roughness:
            roughness = roughness + jnp.mean((after.slopes.h - node.slopes.h)[-grid.examples :] ** 2)
        return y, shadow, after, nats, roughness

    start = (y0, y0, _node(dynamics, grid.steps, 0, y0), *_zeros(y0))
    y, shadow, _, nats, roughness = lax.fori_loop(0, grid.steps, step, start)
    distance = jnp.maximum(shadow_distance(y.w, shadow.w).astype(y.h.dtype), shadow_distance(y.h, shadow.h))
    return End(y, nats, roughness, distance), shadow


@reversible_solve.def_fwd
def _forward(
    perturbed: PyTree[bool], given: tuple[Dynamics, JointState], grid: Grid
) -> tuple[End, tuple[JointState, JointState]]:
    end, shadow = _forward_solve(given, grid)
    return end, (end.y, shadow)


@reversible_solve.def_bwd
def _backward(
    ends: tuple[JointState, JointState],
    to_end: End,
    perturbed: PyTree[bool],
    given: tuple[Dynamics, JointState],
    grid: Grid,
) -> tuple:
    dynamics, _ = given
    parameters, rest = eqx.partition(dynamics, eqx.is_inexact_array)
    y_n, shadow_n = ends
    n, dt = grid.steps, 1 / grid.steps
    nothing = jax.tree.map(jnp.zeros_like, y_n)
    # Equinox passes None for outputs that the loss does not use.
    to_y, to_nats, to_roughness, _ = jax.tree.map(
        lambda x, g: jnp.zeros_like(x) if g is None else g, End(y_n, *_zeros(y_n), to_end.shadow_distance), to_end
    )

    def at_node(j: Int[Array, ""], carry: tuple) -> tuple:
        k = n - j
        inner, outer = (k < n).astype(y_n.w.dtype), (k > 0).astype(y_n.w.dtype)  # 0 at the last node, 0 at the first
        half, shadow, to_y, to_shadow, to_slopes, dB, slope_after, to_parameters = carry
        node, pull = jax.vjp(lambda p, s: _node(eqx.combine(p, rest), n, k, s), parameters, shadow)
        y = _sum((1, half), (-0.5 * dt * inner, node.slopes))
        kick, dB_before = grid.kick(dynamics, k - 1, y)
        shadow_before = _sum((2, y), (-1, shadow), (-dt, node.slopes), (-1, kick))

        to_slopes = _sum((1, to_slopes), (0.5 * dt * outer, to_y))
        if grid.with_roughness:
            slope_before = _node(dynamics, n, k - 1, shadow_before).slopes.h
            slope = node.slopes.h
            bend = inner * (slope - slope_after) + outer * (slope - slope_before)
            in_batch = jnp.arange(len(slope)) >= len(slope) - grid.examples
            bend = jnp.where(in_batch.reshape(-1, *(1,) * (slope.ndim - 1)), bend, 0)
            size = grid.examples * math.prod(slope.shape[1:])
            to_slopes = to_slopes._replace(h=to_slopes.h + 2 * to_roughness / size * bend)
            slope_after = slope
        to_v = None if node.v is None else to_nats * inner * dB
        more, pulled = pull(Node(to_slopes, to_nats * 0.5 * dt * (inner + outer), to_v))
        to_shadow = _sum((1, to_shadow), (1, pulled))

        half = _sum((1, y), (-0.5 * dt, node.slopes), (-1, kick))
        to_slopes = _sum((dt, to_shadow), (0.5 * dt, to_y))
        to_y = _sum((1, to_y), (2 * outer, to_shadow), (1 - outer, to_shadow))  # at depth 0, y is its own shadow
        to_parameters = jax.tree.map(jnp.add, to_parameters, more)
        return half, shadow_before, to_y, _sum((-1, to_shadow)), to_slopes, dB_before, slope_after, to_parameters

    zeros = jax.tree.map(jnp.zeros_like, parameters)
    start = (y_n, shadow_n, to_y, nothing, nothing, nothing.w, nothing.h if grid.with_roughness else None, zeros)
    _, _, to_start, _, _, _, _, to_parameters = lax.fori_loop(0, n + 1, at_node, start)
    return to_parameters, to_start
