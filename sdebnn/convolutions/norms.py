"""Images, "height width channel", standardised within a few groups of their channels."""

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

Images = Float[Array, "*batch height width channel"]
Channels = Float[Array, " channel"]
Each = Float[Array, "*batch 1 1 channel"]  # a number for each channel of each image
Kept = tuple[Images, Channels, Channels, Each, Each]
Activation = Callable[[Array], Array]


def as_it_is(x: Array) -> Array:
    """No activation."""
    return x


class GroupNorm(eqx.Module):
    """Zero mean and unit variance within each of a few groups of channels, a learned scale and shift, an activation.

    The activation is a function of each number by itself, with no parameters.
    """

    batched: ClassVar[bool] = True
    scale: Float[Array, " channel"]
    shift: Float[Array, " channel"]
    groups: int = eqx.field(static=True)
    activation: Activation = eqx.field(static=True)

    def __init__(self, channels: int, *, groups: int = 8, activation: Activation = as_it_is):
        check_count("channels", channels)
        check_count("groups", groups)
        check_callable("activation", activation, "jax.nn.gelu")
        self.scale, self.shift = jnp.ones(channels), jnp.zeros(channels)
        self.groups, self.activation = math.gcd(channels, groups), activation

    def __call__(self, x: Images) -> Images:
        return _normed(x, self.scale, self.shift, self.groups, self.activation)


def _outcome(x: Images, scale: Channels, shift: Channels, groups: int, activation: Activation) -> tuple[Images, Kept]:
    mean = _in_groups(x.mean((-3, -2)), groups)
    inverse = lax.rsqrt(_in_groups(jnp.square(x - mean).mean((-3, -2)), groups) + 1e-5)
    return activation((x - mean) * inverse * scale + shift), (x, scale, shift, mean, inverse)


def _gradient(groups: int, activation: Activation, kept: Kept, y: Images) -> tuple[Images, Channels, Channels]:
    """In few passes over images. With z = (x - mean) inverse, and g = y times the slope of the activation, it is

    x: inverse (scale g - mean(scale g) - z mean(scale g z))    scale: sum g z    shift: sum g
    """
    x, *others = kept
    # Behind a barrier, or XLA would see that this was computed in the forward pass, and keep it from there.
    scale, shift, mean, inverse = lax.optimization_barrier(others)
    z = (x - mean) * inverse
    g = jax.vjp(activation, z * scale + shift)[1](y)[0]
    sums = lax.optimization_barrier(((g * z).sum((-3, -2)), g.sum((-3, -2))))  # or they would be taken twice
    of_gz, of_g = (_in_groups(scale * each / (x.shape[-3] * x.shape[-2]), groups) for each in sums)
    of_x = inverse * (scale * g - of_g - z * of_gz)
    of_scale, of_shift = (each.sum(tuple(range(each.ndim - 1))).astype(scale.dtype) for each in sums)
    return of_x.astype(x.dtype), of_scale, of_shift


def _in_groups(each: Float[Array, "*batch channel"], groups: int) -> Each:
    """Instead of a number for each channel, the mean of its group's."""
    grouped = each.reshape(*each.shape[:-1], groups, -1)
    means = jnp.broadcast_to(grouped.mean(-1, keepdims=True), grouped.shape)
    return means.reshape(*each.shape[:-1], 1, 1, each.shape[-1])


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _normed(x: Images, scale: Channels, shift: Channels, groups: int, activation: Activation) -> Images:
    return _outcome(x, scale, shift, groups, activation)[0]


_normed.defvjp(_outcome, _gradient)
