"""Euler steps of weights whose drift reads and writes them through a few numbers only.

A narrow ``DriftNet`` begins with z = W w, which has as many entries as its first width. Under a linear prior the
weights change in each step by

    w_{i+1} = d w_i + dt G_i V a_i + c_i,      d = 1 - rate dt,      a_i = the input of the last layer, V

where the gates G_i and all of c_i, noise included, are known beforehand. So z, and with it every a_i, follows its own
recursion, whose matrices are computed for all steps at once:

    z_{i+1} = d z_i + dt (W G_i V) a_i + W c_i

Only a few small products, and one multiplication and one addition of all weights, remain to be done step by step.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from sdebnn.processes.prior import Weights

STEPS_PER_ITERATION = 4  # loop unrolling; more is no faster, and all 20 become one kernel that takes half a minute


class EulerPath(NamedTuple):
    """The weights at both ends of every Euler step, and NN_φ at the beginning of each."""

    w: Float[Array, "time weight"]
    corrections: Float[Array, "step weight"]


@runtime_checkable
class GatedLinear(Protocol):
    """The arrays of a ``ConcatSquash`` layer."""

    weight: Float[Array, "out in"]
    bias: Float[Array, " out"]
    gate: Float[Array, " out"]
    gate_bias: Float[Array, " out"]
    shift: Float[Array, " out"]


def euler_path(
    layers: Sequence[GatedLinear],
    activation: Callable[[Array], Array],
    linear: tuple[float | Float[Array, "..."], float | Float[Array, "..."]],
    sigma: float,
    w0: Weights,
    dB: Float[Array, "step weight"],
) -> EulerPath:
    """All Euler steps of dw = (rate (mean - w) + NN_φ) dt + σ dB, where (rate, mean) is ``linear``."""
    first, *middle, last = layers
    rate, mean = linear
    w0, dB = lax.optimization_barrier((w0, dB))  # otherwise XLA draws them again for each use
    steps = dB.shape[0]
    dt = 1 / steps
    t = jnp.arange(steps, dtype=w0.dtype)[:, None] / steps
    decay = 1 - dt * jnp.asarray(rate, w0.dtype)

    gates, shifts = zip(*(_at_all_times(layer, t) for layer in layers), strict=True)
    known = dt * (rate * mean + shifts[-1]) + sigma * dB
    through = first.weight[:, None] * last.weight.T
    matrices = dt * jnp.sum(through * gates[-1][:, None, None], -1)
    kicks = jnp.sum(first.weight * known[:, None], -1)
    inner = [
        (gate[:, :, None] * layer.weight, shift)
        for layer, gate, shift in zip(middle, gates[1:-1], shifts[1:-1], strict=True)
    ]
    inputs = (gates[0], shifts[0], inner, matrices, kicks)

    def step(z: Array, now: tuple[Array, Array, list[tuple[Array, Array]], Array, Array]) -> tuple[Array, Array]:
        gate, shift, inner, matrix, kick = now
        a = activation(gate * z + shift)
        for weight, shift in inner:
            a = activation(jnp.sum(weight * a, 1) + shift)
        return decay * z + jnp.sum(matrix * a, 1) + kick, a

    z0 = jnp.sum(first.weight * w0, -1)
    _, a = lax.scan(step, z0, inputs, unroll=STEPS_PER_ITERATION)
    columns = [a[:, j, None] * last.weight[:, j] for j in range(a.shape[1])]
    moved = gates[-1] * sum(columns[1:], start=columns[0])
    return EulerPath(_decayed_sums(decay, w0, known + dt * moved), moved + shifts[-1])


def _at_all_times(layer: GatedLinear, t: Float[Array, "step 1"]) -> tuple[Array, Array]:
    """The factor that a layer applies to W x at every step, and the term that it adds."""
    gate = jax.nn.sigmoid(layer.gate * t + layer.gate_bias)
    return gate, gate * layer.bias + layer.shift * t


def _decayed_sums(
    decay: Float[Array, ""], w0: Weights, kicks: Float[Array, "step weight"]
) -> Float[Array, "time weight"]:
    """w_{i+1} = decay w_i + kick_i, from w_0 on."""

    def step(w: Weights, kick: Weights) -> tuple[Weights, Weights]:
        return decay * w + kick, w

    end, w = lax.scan(step, w0, kicks, unroll=STEPS_PER_ITERATION)
    return jnp.concatenate([w, end[None]])
