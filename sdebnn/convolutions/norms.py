"""Group normalisation of images, "height width channel":

    z = (x - mean) inverse,    inverse = 1 / sqrt(variance + 1e-5),    output = activation(scale z + shift)

With y the gradient of the output and g = y activation'(scale z + shift), where sums are over pixels and images and
means are within groups, the gradients are

    shift: sum g    scale: sum g z    x: inverse (scale g - mean(scale g) - z mean(scale g z))

They are written by hand because this takes fewer passes over the images: of the forward pass, only x and two numbers
for each group are stored.
"""

import math
from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from sdebnn.checks import check_callable, check_count
from sdebnn.convolutions.layers import ImageBatch
from sdebnn.fields import AbstractLayer
from sdebnn.host_arrays import filled

Channels = Float[Array, " channel"]
Each = Float[Array, "*batch 1 1 channel"]  # a number for each channel of each image
Kept = tuple[ImageBatch, Channels, Channels, Each, Each]
Activation = Callable[[Array], Array]


class GroupNorm(AbstractLayer):
    """Zero mean and unit variance within groups of channels, then a learned scale and shift, then an activation.

        norm = GroupNorm(8, activation=jax.nn.gelu)
        out = norm(jnp.ones((2, 4, 4, 8)))

    It maps images, "example height width channel". The number of groups is the greatest common divisor of ``channels``
    and ``groups``. The ``activation`` is elementwise and has no parameters. Only reverse-mode differentiation is
    supported.
    """

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

    @property
    def takes_batch(self) -> bool:
        """True."""
        return True

    def __call__(self, x: ImageBatch) -> ImageBatch:
        return _normed(x, self.scale, self.shift, self.groups, self.activation)


def _output(
    x: ImageBatch, scale: Channels, shift: Channels, groups: int, activation: Activation
) -> tuple[ImageBatch, Kept]:
    mean = _in_groups(x.mean((-3, -2)), groups)
    inverse = lax.rsqrt(_in_groups(jnp.square(x - mean).mean((-3, -2)), groups) + 1e-5)
    return activation((x - mean) * inverse * scale + shift), (x, scale, shift, mean, inverse)


def _gradient(groups: int, activation: Activation, kept: Kept, y: ImageBatch) -> tuple[ImageBatch, Channels, Channels]:
    x, *others = kept
    # Without the barrier, XLA would store z from the forward pass instead of recomputing it.
    scale, shift, mean, inverse = lax.optimization_barrier(others)
    z = (x - mean) * inverse
    g = jax.vjp(activation, z * scale + shift)[1](y)[0]
    sums = lax.optimization_barrier(((g * z).sum((-3, -2)), g.sum((-3, -2))))  # otherwise they are computed twice
    of_gz, of_g = (_in_groups(scale * each / (x.shape[-3] * x.shape[-2]), groups) for each in sums)
    of_x = inverse * (scale * g - of_g - z * of_gz)
    of_scale, of_shift = (each.sum(tuple(range(each.ndim - 1))) for each in sums)
    return of_x.astype(x.dtype), of_scale.astype(scale.dtype), of_shift.astype(shift.dtype)


def _in_groups(each: Float[Array, "*batch channel"], groups: int) -> Each:
    """Each number replaced by the mean over the group of its channel."""
    grouped = each.reshape(*each.shape[:-1], groups, each.shape[-1] // groups)
    means = jnp.broadcast_to(grouped.mean(-1, keepdims=True), grouped.shape)
    return means.reshape(*each.shape[:-1], 1, 1, each.shape[-1])


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _normed(x: ImageBatch, scale: Channels, shift: Channels, groups: int, activation: Activation) -> ImageBatch:
    return _output(x, scale, shift, groups, activation)[0]


_normed.defvjp(_output, _gradient)
