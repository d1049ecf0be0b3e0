"""The exact gradient of reversible Heun in memory that does not grow with its steps.

The state y = (w, h) and its shadow ŷ advance together, with slope_k = f(t_k, ŷ_k) at the nodes t_0 ... t_n:

    ŷ_{k+1} = 2 y_k - ŷ_k + dt slope_k + σ ΔB_k,     y_{k+1} = y_k + ½ dt (slope_k + slope_{k+1}) + σ ΔB_k

Nothing of the way is kept. Backward, the two lines are solved for ŷ_k and y_k, and slope_k is evaluated once more, with
its pullback. With ȳ and ŷ̄ the loss's derivatives at step k + 1, those at step k are

    ȳ_k = ȳ + 2 ŷ̄,     ŷ̄_k = -ŷ̄ + pullback of f at ŷ_k ( dt ŷ̄ + ½ dt (ȳ + ȳ_k) ).

The noise is drawn again from the keys that named it.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from sdebnn.integrate.brownian import Brownian, Noise
from sdebnn.integrate.paths import Dynamics, Hidden, energy, integrand
from sdebnn.integrate.stability import stray
from sdebnn.processes import Weights


class Both(NamedTuple):
    """The state: weights and hidden units."""

    w: Weights
    h: Hidden


class Node(NamedTuple):
    """What is evaluated at a shadow: the slopes, the KL's density ½|u|², and the integrand v of its martingale."""

    slopes: Both
    energy: Float[Array, ""]
    v: Weights | None


class End(NamedTuple):
    """The state at depth 1, the KL of the path, and the roughness."""

    y: Both
    nats: Float[Array, ""]
    roughness: Float[Array, ""]
    stray: Float[Array, ""]  # of the shadow, which no gradient flows to


class Grid(eqx.Module):
    """The steps and their noise: what no gradient flows to."""

    steps: int = eqx.field(static=True)
    rough: bool = eqx.field(static=True)
    noise: Brownian | Noise

    def kick(self, dynamics: Dynamics, k: Any, y: Both) -> tuple[Both, Weights]:
        """σ ΔB_k as a change of the state, and ΔB_k."""
        dB = self.noise.step(k, area=False).dB if isinstance(self.noise, Brownian) else self.noise.dB[k]
        return Both(dynamics.prior.sigma * dB, jnp.zeros_like(y.h)), dB


def _node(dynamics: Dynamics, steps: int, k: Any, shadow: Both) -> Node:
    t = jnp.asarray(k, shadow.w.dtype) / steps
    correction = dynamics.drift(t, shadow.w)
    slopes = Both(dynamics.prior.drift(t, shadow.w) + correction, dynamics.f_h(t, shadow.h, dynamics.unravel(shadow.w)))
    return Node(slopes, energy(dynamics, correction), integrand(dynamics, t, shadow.w, correction))


def _sum(*terms: tuple[Any, Both]) -> Both:
    """Σ factor · state."""
    factors, states = zip(*terms, strict=True)
    return jax.tree.map(lambda *parts: sum(f * x for f, x in zip(factors, parts, strict=True)), *states)


def _zeros(y: Both) -> tuple[Array, Array]:
    """Of the KL and of the roughness."""
    return jnp.zeros((), y.w.dtype), jnp.zeros((), y.h.dtype)


@eqx.filter_custom_vjp
def reversible_solve(given: tuple[Dynamics, Both], grid: Grid) -> End:
    """Solve from y_0 to depth 1."""
    return _forward_solve(given, grid)[0]


def _forward_solve(given: tuple[Dynamics, Both], grid: Grid) -> tuple[End, Both]:
    dynamics, y0 = given
    dt = 1 / grid.steps

    def step(k: Any, carry: tuple) -> tuple:
        y, shadow, node, nats, roughness = carry
        kick, dB = grid.kick(dynamics, k, y)
        shadow = _sum((2, y), (-1, shadow), (dt, node.slopes), (1, kick))
        after = _node(dynamics, grid.steps, k + 1, shadow)
        y = _sum((1, y), (0.5 * dt, node.slopes), (0.5 * dt, after.slopes), (1, kick))
        nats = nats + 0.5 * dt * (node.energy + after.energy)
        if node.v is not None:
            nats = nats + jnp.sum(node.v * dB)
        if grid.rough:
            roughness = roughness + jnp.mean((after.slopes.h - node.slopes.h) ** 2)
        return y, shadow, after, nats, roughness

    start = (y0, y0, _node(dynamics, grid.steps, 0, y0), *_zeros(y0))
    y, shadow, _, nats, roughness = lax.fori_loop(0, grid.steps, step, start)
    strayed = jnp.maximum(stray(y.w, shadow.w).astype(y.h.dtype), stray(y.h, shadow.h))
    return End(y, nats, roughness, strayed), shadow


@reversible_solve.def_fwd
def _forward(perturbed: Any, given: tuple[Dynamics, Both], grid: Grid) -> tuple[End, tuple[Both, Both]]:
    end, shadow = _forward_solve(given, grid)
    return end, (end.y, shadow)


@reversible_solve.def_bwd
def _backward(ends: tuple[Both, Both], to_end: End, perturbed: Any, given: tuple[Dynamics, Both], grid: Grid) -> tuple:
    dynamics, _ = given
    parameters, rest = eqx.partition(dynamics, eqx.is_inexact_array)
    y_n, shadow_n = ends
    n, dt = grid.steps, 1 / grid.steps
    nothing = jax.tree.map(jnp.zeros_like, y_n)
    # Equinox says None where the loss does not look.
    to_y, to_nats, to_roughness, _ = jax.tree.map(
        lambda x, g: jnp.zeros_like(x) if g is None else g, End(y_n, *_zeros(y_n), to_end.stray), to_end
    )

    def at_node(j: Any, carry: tuple) -> tuple:
        k = n - j
        inner, outer = (k < n).astype(y_n.w.dtype), (k > 0).astype(y_n.w.dtype)  # 0 at the last node, 0 at the first
        half, shadow, to_y, to_shadow, to_slopes, dB, slope_after, to_parameters = carry
        node, pull = jax.vjp(lambda p, s: _node(eqx.combine(p, rest), n, k, s), parameters, shadow)
        y = _sum((1, half), (-0.5 * dt * inner, node.slopes))
        kick, dB_before = grid.kick(dynamics, k - 1, y)
        shadow_before = _sum((2, y), (-1, shadow), (-dt, node.slopes), (-1, kick))

        to_slopes = _sum((1, to_slopes), (0.5 * dt * outer, to_y))
        if grid.rough:
            slope_before = _node(dynamics, n, k - 1, shadow_before).slopes.h
            slope = node.slopes.h
            bend = inner * (slope - slope_after) + outer * (slope - slope_before)
            to_slopes = to_slopes._replace(h=to_slopes.h + 2 * to_roughness / slope.size * bend)
            slope_after = slope
        to_v = None if node.v is None else to_nats * inner * dB
        more, pulled = pull(Node(to_slopes, to_nats * 0.5 * dt * (inner + outer), to_v))
        to_shadow = _sum((1, to_shadow), (1, pulled))

        half = _sum((1, y), (-0.5 * dt, node.slopes), (-1, kick))
        to_slopes = _sum((dt, to_shadow), (0.5 * dt, to_y))
        to_y = _sum((1, to_y), (2 * outer, to_shadow), (1 - outer, to_shadow))  # at depth 0, y and its shadow are one
        to_parameters = jax.tree.map(jnp.add, to_parameters, more)
        return half, shadow_before, to_y, _sum((-1, to_shadow)), to_slopes, dB_before, slope_after, to_parameters

    zeros = jax.tree.map(jnp.zeros_like, parameters)
    start = (y_n, shadow_n, to_y, nothing, nothing, nothing.w, nothing.h if grid.rough else None, zeros)
    _, _, to_start, _, _, _, _, to_parameters = lax.fori_loop(0, n + 1, at_node, start)
    return to_parameters, to_start
