"""Images, "height width channel", standardised within a few groups of their channels:

    z = (x - mean) inverse,    inverse = 1 / sqrt(variance + 1e-5),    outcome = activation(scale z + shift)

With y the gradient of the outcome and g = y activation'(scale z + shift), sums over pixels and images and means within
groups, the gradients are

    shift: sum g    scale: sum g z    x: inverse (scale g - mean(scale g) - z mean(scale g z))

By hand, for they take few passes over images: what is kept of the forward pass is x, and two numbers for each group.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from sdebnn.checks import check_callable, check_count
from sdebnn.convolutions.layers import Images
from sdebnn.starts import filled

Channels = Float[Array, " channel"]
Each = Float[Array, "*batch 1 1 channel"]  # a number for each channel of each image
Kept = tuple[Images, Channels, Channels, Each, Each]
Activation = Callable[[Array], Array]


class GroupNorm(eqx.Module):
    """Zero mean and unit variance within each of a few groups of channels, a learned scale and shift, an activation.

    The activation is a function of each number by itself, without parameters. Differentiable in reverse mode alone.
    """

    batched: ClassVar[bool] = True
    scale: Channels
    shift: Channels
    activation: Activation
    groups: int = eqx.field(static=True)

    def __init__(self, channels: int, *, groups: int = 8, activation: Activation = jax.nn.identity):
        check_count("channels", channels)
        check_count("groups", groups)
        check_callable("activation", activation, "jax.nn.gelu")
        if any(map(eqx.is_array, jax.tree.leaves(activation))):
            raise ValueError(f"activation={activation} has parameters, which would not be trained: pass a function.")
        self.scale, self.shift = filled(channels, 1.0), filled(channels)
        self.groups, self.activation = math.gcd(channels, groups), activation

    def __call__(self, x: Images) -> Images:
        return _normed(x, self.scale, self.shift, self.groups, self.activation)


def _outcome(x: Images, scale: Channels, shift: Channels, groups: int, activation: Activation) -> tuple[Images, Kept]:
    mean = _in_groups(x.mean((-3, -2)), groups)
    inverse = lax.rsqrt(_in_groups(jnp.square(x - mean).mean((-3, -2)), groups) + 1e-5)
    return activation((x - mean) * inverse * scale + shift), (x, scale, shift, mean, inverse)


def _gradient(groups: int, activation: Activation, kept: Kept, y: Images) -> tuple[Images, Channels, Channels]:
    x, *others = kept
    # Behind a barrier, or XLA would see that this was computed in the forward pass, and keep it from there.
    scale, shift, mean, inverse = lax.optimization_barrier(others)
    z = (x - mean) * inverse
    g = jax.vjp(activation, z * scale + shift)[1](y)[0]
    sums = lax.optimization_barrier(((g * z).sum((-3, -2)), g.sum((-3, -2))))  # or they would be taken twice
    of_gz, of_g = (_in_groups(scale * each / (x.shape[-3] * x.shape[-2]), groups) for each in sums)
    of_x = inverse * (scale * g - of_g - z * of_gz)
    of_scale, of_shift = (each.sum(tuple(range(each.ndim - 1))) for each in sums)
    return of_x.astype(x.dtype), of_scale.astype(scale.dtype), of_shift.astype(shift.dtype)


def _in_groups(each: Float[Array, "*batch channel"], groups: int) -> Each:
    """Instead of a number for each channel, the mean of its group's."""
    grouped = each.reshape(*each.shape[:-1], groups, each.shape[-1] // groups)
    means = jnp.broadcast_to(grouped.mean(-1, keepdims=True), grouped.shape)
    return means.reshape(*each.shape[:-1], 1, 1, each.shape[-1])


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _normed(x: Images, scale: Channels, shift: Channels, groups: int, activation: Activation) -> Images:
    return _outcome(x, scale, shift, groups, activation)[0]


_normed.defvjp(_outcome, _gradient)
