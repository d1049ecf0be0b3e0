"""Euler's steps of weights whose drift sees them through a few numbers only.

A narrow ``DriftNet`` begins with z = W w, of as many numbers as its first width. Between steps the weights change by

    w_{i+1} = d w_i + dt G_i V a_i + c_i,      d = 1 - rate dt,      a_i = what its last layer, V, is given

with gates G_i and all of c_i, noise included, known beforehand. So z, and with it every a_i, follows a recursion of its
own, whose matrices are made for all steps at once:

    z_{i+1} = d z_i + dt (W G_i V) a_i + W c_i

What is left to do step by step are a few small products, and one multiplication and one addition of all weights.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from sdebnn.integrate.paths import Process
from sdebnn.processes import OU, ConcatSquash, DriftNet, Weights

PAIRS = 4  # of numbers that a drift takes from all weights and gives to all: more of them were not tried
SMALL = 2**12  # weights of a layer between: they are kept for every step
UNROLL = 4  # steps compiled as one: more are no faster, and all 20 become one kernel, which takes half a minute


def is_narrow(process: Process) -> bool:
    """Whether the drift takes a few numbers from the weights and gives a few, and the prior pulls all weights alike."""
    net, prior = process.drift, process.prior
    return (
        isinstance(net, DriftNet)
        and type(net) is DriftNet  # another may do more than its layers
        and all(type(layer) is ConcatSquash for layer in net.layers)
        and len(net.layers) > 1
        and net.layers[0].weight.shape[0] * net.layers[-1].weight.shape[1] <= PAIRS
        and all(layer.weight.size <= SMALL for layer in net.layers[1:-1])
        and type(prior) is OU
        and jnp.ndim(prior.rate) == 0
    )


def narrow_path(
    process: Any, w0: Weights, dB: Float[Array, "step weight"]
) -> tuple[Float[Array, "time weight"], Float[Array, "step weight"]]:
    """The weights at both ends of every step, and NN_φ at its beginning, for a process that ``is_narrow``."""
    first, *middle, last = process.drift.layers
    activation, prior = process.drift.activation, process.prior
    w0, dB = lax.optimization_barrier((w0, dB))  # or whatever uses them would draw them again
    steps = dB.shape[0]
    dt = 1 / steps
    t = jnp.arange(steps, dtype=w0.dtype)[:, None] / steps
    decay = 1 - dt * jnp.asarray(prior.rate, w0.dtype)

    gates, shifts = zip(*(_at_all_times(layer, t) for layer in process.drift.layers), strict=True)
    known = dt * (prior.rate * prior.mean + shifts[-1]) + prior.sigma * dB
    through = first.weight[:, None] * last.weight.T
    matrices = dt * jnp.sum(through * gates[-1][:, None, None], -1)
    kicks = jnp.sum(first.weight * known[:, None], -1)
    layers = [
        (gate[:, :, None] * layer.weight, shift)
        for layer, gate, shift in zip(middle, gates[1:-1], shifts[1:-1], strict=True)
    ]

    def step(z: Array, now: Any) -> tuple[Array, Array]:
        gate, shift, layers, matrix, kick = now
        a = activation(gate * z + shift)
        for weight, shift in layers:
            a = activation(jnp.sum(weight * a, 1) + shift)
        return decay * z + jnp.sum(matrix * a, 1) + kick, a

    z0 = jnp.sum(first.weight * w0, -1)
    _, a = lax.scan(step, z0, (gates[0], shifts[0], layers, matrices, kicks), unroll=UNROLL)
    columns = [a[:, j, None] * last.weight[:, j] for j in range(a.shape[1])]
    moved = gates[-1] * sum(columns[1:], start=columns[0])
    return _decayed_sums(decay, w0, known + dt * moved), moved + shifts[-1]


def _at_all_times(layer: ConcatSquash, t: Float[Array, "step 1"]) -> tuple[Array, Array]:
    """What a layer multiplies W x with at every step, and what it adds."""
    gate = jax.nn.sigmoid(layer.gate * t + layer.gate_bias)
    return gate, gate * layer.bias + layer.shift * t


def _decayed_sums(
    decay: Float[Array, ""], w0: Weights, kicks: Float[Array, "step weight"]
) -> Float[Array, "time weight"]:
    """w_{i+1} = decay w_i + kick_i, from w_0 on."""

    def step(w: Weights, kick: Weights) -> tuple[Weights, Weights]:
        return decay * w + kick, w

    end, w = lax.scan(step, w0, kicks, unroll=UNROLL)
    return jnp.concatenate([w, end[None]])
