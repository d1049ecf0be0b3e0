"""Drifts NN_φ(t, w) that turn the prior into the posterior. Every drift of ours starts at zero, at the prior."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn.checks import check_callable, check_count, check_counts, check_key
from sdebnn.host_arrays import filled, normals
from sdebnn.processes.low_rank import EulerPath, euler_path
from sdebnn.processes.prior import AbstractPrior, Depth, Weights

GATED_INPUTS = 8  # up to this many inputs, gating the weights of a layer costs no more than gating its outputs
LOW_RANK_PAIRS = 4  # largest product of the first and last width for the low-rank recursion; more was not tried
LOW_RANK_LAYER = 2**12  # largest inner layer, in weights, for the low-rank recursion: it is kept for every step


class AbstractDrift(eqx.Module):
    """The posterior's additional drift, NN_φ(t, w). Its arrays are the variational parameters φ.

    To write your own, subclass it with a ``__call__`` that maps the depth and the weights to a vector like the weights.
    Let it start at zero, so that the posterior starts at the prior:

        class Offset(AbstractDrift):
            value: jax.Array

            def __call__(self, t, w):
                return self.value * t

        bayesianize(field, drift=Offset(jnp.zeros(20)), key=key)
    """

    @abstractmethod
    def __call__(self, t: Depth, w: Weights) -> Weights:
        """NN_φ(t, w), a vector like w."""

    def euler_path(self, prior: AbstractPrior, w0: Weights, dB: Float[Array, "step weight"]) -> EulerPath | None:
        """All Euler steps at once, if this drift has a faster recursion than one step after another; otherwise None."""
        return None

    @property
    def description(self) -> str:
        """The drift in a few words, for ``describe``."""
        return type(self).__name__


class ConcatSquash(eqx.Module):
    """A linear layer gated and shifted by depth: (W x + b) sigmoid(c t + d) + e t.

        layer = ConcatSquash(20, 8, key=key)
        out = layer(0.5, jnp.ones(20))

    It maps ``in_size`` numbers to ``out_size``. The fields are W, b, c, d and e.
    """

    weight: Float[Array, "out in"]
    bias: Float[Array, " out"]
    gate: Float[Array, " out"]
    gate_bias: Float[Array, " out"]
    shift: Float[Array, " out"]

    def __init__(self, in_size: int, out_size: int, *, key: PRNGKeyArray):
        weight, gate = jax.random.split(key)
        self.weight = jnp.asarray(1 / math.sqrt(in_size) * normals(weight, (out_size, in_size)))
        self.gate = jnp.asarray(normals(gate, (out_size,)))
        self.bias, self.gate_bias, self.shift = (filled(out_size) for _ in range(3))

    def __call__(self, t: Depth, x: Float[Array, " in"]) -> Float[Array, " out"]:
        gate = jax.nn.sigmoid(self.gate * t + self.gate_bias)
        if self.weight.shape[1] > GATED_INPUTS or self.weight.shape[0] <= GATED_INPUTS:
            return (self.weight @ x + self.bias) * gate + self.shift * t
        # One product, so that the gradient's sum over draws is one product, too: separate sums are slow on CPUs.
        gate = lax.optimization_barrier(gate)  # otherwise XLA computes the gate again for each row
        rows = jnp.concatenate([(gate[:, None] * self.weight).T, (gate * self.bias + self.shift * t)[None]])
        return jnp.append(x, jnp.ones((), x.dtype)) @ rows


class DriftNet(AbstractDrift):
    """NN_φ(t, w): a time-conditional MLP from w to w through the given widths. Its last layer starts at zero.

        drift = DriftNet(20, (1, 64, 1), key=key)
        block = bayesianize(field, drift=drift, key=key)

    ``size`` is the number of weights. ``bayesianize(field, drift=(1, 64, 1), key=key)`` makes one of the right size.
    Narrow widths such as (1, 64, 1) keep the number of parameters linear, and small, in the number of weights.
    """

    layers: tuple[ConcatSquash, ...]
    activation: Callable[[Array], Array]

    def __init__(
        self,
        size: int,
        widths: Sequence[int] = (32, 32),
        *,
        activation: Callable[[Array], Array] = jnp.tanh,
        key: PRNGKeyArray,
    ):
        check_count("size", size)
        check_counts("widths", widths)
        check_callable("activation", activation, "jnp.tanh")
        check_key(key)
        sizes = (size, *widths, size)
        keys = jax.random.split(key, len(sizes) - 1)
        layers = [ConcatSquash(m, n, key=k) for m, n, k in zip(sizes[:-1], sizes[1:], keys, strict=True)]
        # The biases and shifts are zero already, so a zero weight makes the output zero.
        layers[-1] = eqx.tree_at(lambda layer: layer.weight, layers[-1], filled((size, sizes[-2])))
        self.layers = tuple(layers)
        self.activation = activation

    def __call__(self, t: Depth, w: Weights) -> Weights:
        for layer in self.layers[:-1]:
            w = self.activation(layer(t, w))
        return self.layers[-1](t, w)

    def euler_path(self, prior: AbstractPrior, w0: Weights, dB: Float[Array, "step weight"]) -> EulerPath | None:
        """The low-rank recursion, if the first and last widths are narrow and the prior is linear; otherwise None."""
        linear = prior.linear()
        if linear is None or not self.is_low_rank():
            return None
        return euler_path(self.layers, self.activation, linear, prior.sigma, w0, dB)

    @property
    def description(self) -> str:
        """The widths and the rank: how many numbers the drift passes on at its narrowest layer."""
        widths = [layer.weight.shape[0] for layer in self.layers[:-1]]
        return f"{type(self).__name__} {tuple(widths)} of rank {min(widths)}"

    def is_low_rank(self) -> bool:
        """Whether the net reads the weights through a few numbers and writes them through a few."""
        return (
            type(self) is DriftNet  # a subclass may compute something else
            and all(type(layer) is ConcatSquash for layer in self.layers)
            and len(self.layers) > 1
            and self.layers[0].weight.shape[0] * self.layers[-1].weight.shape[1] <= LOW_RANK_PAIRS
            and all(layer.weight.size <= LOW_RANK_LAYER for layer in self.layers[1:-1])
        )


class NoDrift(AbstractDrift):
    """Zero, without parameters: the posterior is the prior.

        block = bayesianize(field, drift=NoDrift(), key=key)

    A block may have a guide besides, and then the guide alone makes the posterior.
    """

    def __call__(self, t: Depth, w: Weights) -> Weights:
        return jnp.zeros_like(w)


class LinearDrift(AbstractDrift):
    """a(t) w + b(t), elementwise: the posterior stays a Gaussian process, factorised over the weights.

        block = bayesianize(field, drift=LinearDrift(20, knots=4), key=key)

    ``size`` is the number of weights. ``a`` and ``b`` are linear in t between equally spaced ``knots``, and start at
    zero.
    """

    slope: Float[Array, "knot weight"]
    offset: Float[Array, "knot weight"]

    def __init__(self, size: int, knots: int = 8):
        check_count("size", size)
        check_count("knots", knots, least=2)
        self.slope, self.offset = filled((knots, size)), filled((knots, size))

    def __call__(self, t: Depth, w: Weights) -> Weights:
        return between_knots(self.slope, t) * w + between_knots(self.offset, t)


def between_knots(values: Float[Array, "knot *rest"], t: Depth) -> Float[Array, "*rest"]:
    """Values at depth t, linear between equally spaced knots from depth 0 to depth 1."""
    last = values.shape[0] - 1
    position = jnp.asarray(t, values.dtype) * last
    left = jnp.clip(jnp.floor(position), 0, last - 1).astype(int)
    share = position - left
    return (1 - share) * values[left] + share * values[left + 1]
