"""Hidden dynamics dh/dt = f_h(t, h) of images, "height width channel", by convolutions.

    layer(t, h) = kernel * (h, t) + bias      t is an additional channel, constant over the image and zero outside it

Because of the border, the contribution of t is a map over the pixels. It is computed as a map and added, so that the
state keeps its number of channels.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn.checks import (
    check_callable,
    check_choice,
    check_count,
    check_counts,
    check_key,
    check_positive,
    plain_number,
)
from sdebnn.convolutions import kernels, squeezed
from sdebnn.convolutions.operations import Move, add_to_each, conv, conv_transpose, taps
from sdebnn.fields import AbstractLayer, FasterSteps
from sdebnn.host_arrays import filled, normals
from sdebnn.processes import Depth

ImageBatch = Float[Array, "*batch height width channel"]
OutputImages = Float[Array, "*batch _ _ out"]
Compute = Literal["float32", "bfloat16"]
# Elementwise activations, which allow the channels to be rearranged.
ELEMENTWISE = (
    jnp.tanh,
    jax.nn.tanh,
    jax.nn.relu,
    jax.nn.gelu,
    jax.nn.silu,
    jax.nn.softplus,
    jax.nn.sigmoid,
    jax.nn.elu,
)


def convolve(images: ImageBatch, kernel: Float[Array, "3 3 in out"], move: Move = "same") -> OutputImages:
    """Zero-padded convolution of stride 1 ("same") or 2 ("down"), or the transpose of one of stride 2 ("up")."""
    if move == "up":
        return conv_transpose(images, kernel)
    return conv(images, kernel, 2 if move == "down" else 1)


class TimeConvLayer(AbstractLayer):
    """A 3×3 convolution of (h, t), or of h if ``time`` is False. Standardised weights are scaled by their fan-in.

        layer = TimeConvLayer(3, 8, move="down", key=key)
        smaller = layer(0.5, images)

    ``in_channels`` and ``out_channels`` are the channels of the images, "example height width channel". ``move`` is
    "same" (stride 1), "down" (stride 2) or "up", the transpose of "down". ``gain`` multiplies the scale of the kernel,
    and ``bias_scale`` is that of the bias.
    """

    kernel: Float[Array, "3 3 in out"]
    time: Float[Array, "3 3 out"] | None
    bias: Float[Array, " out"]
    move: Move = eqx.field(static=True)
    gain: float = eqx.field(static=True)
    bias_scale: float = eqx.field(static=True)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        move: Move = "same",
        time: bool = True,
        gain: float = 1.0,
        bias_scale: float = 1.0,
        key: PRNGKeyArray,
    ):
        check_counts("channels", (in_channels, out_channels))
        check_choice("move", move, get_args(Move))
        gain, bias_scale = plain_number(gain), plain_number(bias_scale)
        check_positive("gain", gain)
        check_positive("bias_scale", bias_scale)
        check_key(key)
        fan_in = 9 * (in_channels + time)
        kernel = gain / math.sqrt(fan_in) * normals(key, (3, 3, in_channels + time, out_channels))
        self.kernel = jnp.asarray(kernel[:, :, :in_channels])
        self.time = jnp.asarray(kernel[:, :, -1]) if time else None
        self.bias = filled(out_channels)
        self.move, self.gain, self.bias_scale = move, gain, bias_scale

    @property
    def takes_batch(self) -> bool:
        """True."""
        return True

    @property
    def scales(self) -> "TimeConvLayer":
        """The scale of each array relative to its standardised weights."""
        scale = self.gain / math.sqrt(9 * (self.kernel.shape[-2] + (self.time is not None)))
        numbers = (scale, self.bias_scale) if self.time is None else (scale, scale, self.bias_scale)
        return jax.tree.unflatten(jax.tree.structure(self), numbers)

    def __call__(self, t: Depth, h: ImageBatch) -> OutputImages:
        # Without the barrier, XLA would let cuDNN add the bias and the map, by slower algorithms.
        out = lax.optimization_barrier(convolve(h, self.kernel.astype(h.dtype), self.move))
        if self.time is None:
            return add_to_each(out, self.bias)
        height, width = h.shape[-3:-1]
        met = jnp.asarray(taps(height, width, self.move), self.time.dtype)
        of_time = t * jnp.tensordot(met, self.time, 2)
        return add_to_each(out, self.bias + of_time)


class TimeConv(AbstractLayer):
    """Convolutions from (h, t) to dh/dt with an activation between them; by default the paper's four.

        conv = TimeConv(3, (8, 8, 8), key=key)
        slope = conv(0.5, images)
        block = bayesianize(conv, drift=(1, 8, 1), key=key)

    - ``channels``: the channels of h, "example height width channel". ``widths`` are those between the layers.
    - ``moves``: what each layer does to the size of the image: as many "down" as "up", so that dh/dt has the shape of
      h.
    - ``time``: whether the layers see t.
    - ``gains``: the scale of each layer, or of all. ``bias_scale`` is that of the biases.
    - ``zero_last_layer``: whether the last layer starts at zero.
    - ``compute="bfloat16"`` rounds the inputs of the layers, but not the state, the weights or the KL.
    """

    layers: tuple[TimeConvLayer, ...]
    activation: Callable[[Array], Array]
    compute: Compute = eqx.field(static=True)

    def __init__(
        self,
        channels: int,
        widths: Sequence[int] = (32, 32, 32),
        moves: Sequence[Move] = ("same", "down", "up", "same"),
        *,
        activation: Callable[[Array], Array] = jnp.tanh,
        time: bool = True,
        gains: Sequence[float] | float = 1.0,
        bias_scale: float = 1.0,
        zero_last_layer: bool = False,
        compute: Compute = "float32",
        key: PRNGKeyArray,
    ):
        check_count("channels", channels)
        check_counts("widths", widths)
        check_callable("activation", activation, "jnp.tanh")
        check_choice("compute", compute, get_args(Compute))
        check_key(key)
        sizes = (channels, *widths, channels)
        count = len(sizes) - 1
        gains = plain_number(gains)
        strengths = tuple(gains) if isinstance(gains, Sequence | np.ndarray) else (gains,) * count
        if not len(moves) == len(strengths) == count:
            raise ValueError(
                f"widths={tuple(widths)} make {count} layers; got {len(moves)} moves and {len(strengths)} gains: "
                "pass one for each layer."
            )
        if list(moves).count("down") != list(moves).count("up"):
            raise ValueError(
                f"moves={tuple(moves)} change the image's size, but dh/dt must have the shape of h: pair down and up."
            )
        keys = jax.random.split(key, count)
        self.layers = tuple(
            TimeConvLayer(m, n, move=move, time=time, gain=gain, bias_scale=bias_scale, key=k)
            for m, n, move, gain, k in zip(sizes[:-1], sizes[1:], moves, strengths, keys, strict=True)
        )
        if zero_last_layer:
            last = jax.tree.map(lambda array: filled(array.shape), self.layers[-1])
            self.layers = (*self.layers[:-1], last)
        self.activation = activation
        self.compute = compute

    @property
    def takes_batch(self) -> bool:
        """True."""
        return True

    def __call__(self, t: Depth, h: ImageBatch) -> ImageBatch:
        out = h.astype(self.compute)
        for layer in self.layers[:-1]:
            out = self.activation(layer(t, out))
        return self.layers[-1](t, out).astype(h.dtype)

    def all_euler_steps(self, h: ImageBatch) -> FasterSteps | None:
        """All Euler steps by installed kernels, or on images packed into patches; None if neither applies."""
        known = type(self) is TimeConv and all(type(layer) is TimeConvLayer for layer in self.layers)
        elementwise = any(self.activation is each for each in ELEMENTWISE)
        if not known or not elementwise:
            return None
        layers = tuple((layer.kernel, layer.time, layer.bias) for layer in self.layers)
        moves = [layer.move for layer in self.layers]
        if not squeezed.fits(layers, h, moves):
            return None
        steps = kernels.EulerSteps(layers, h, self.activation, self.compute)
        chosen = kernels.choice(steps)

        def take(*, keep: bool, unroll: int) -> ImageBatch:
            plain = partial(
                squeezed.euler_over_patches, activation=self.activation, compute=self.compute, keep=keep, unroll=unroll
            )
            return chosen.euler(steps, plain)

        how = "packed matrices of 2 x 2 patches," if chosen.kernels is None else "kernels of"
        return FasterSteps(f"{how} {chosen.reason}", take)


class Conv(AbstractLayer):
    """A deterministic 3×3 convolution, standardised like the random ones, so that one learning rate suits both.

        first = Deterministic(Conv(3, 8, stride=2, compute="float32", key=key))
        features, kl = first(images, key=key)

    ``stride`` is 1 or 2. ``compute`` is the type to which inputs are rounded, "float32" or "bfloat16".
    """

    kernel: Float[Array, "3 3 in out"]
    stride: int = eqx.field(static=True)
    compute: Compute = eqx.field(static=True)

    def __init__(self, in_channels: int, out_channels: int, *, stride: int = 1, compute: Compute, key: PRNGKeyArray):
        check_counts("channels", (in_channels, out_channels))
        self.kernel = jnp.asarray(normals(key, (3, 3, in_channels, out_channels)))
        self.stride, self.compute = stride, compute

    @property
    def takes_batch(self) -> bool:
        """True."""
        return True

    @property
    def scales(self) -> "Conv":
        """1, because the array itself is standardised."""
        return jax.tree.map(lambda _: 1.0, self)

    def __call__(self, x: ImageBatch) -> OutputImages:
        scale = math.sqrt(2 / math.prod(self.kernel.shape[:3]))
        kernel = (scale * self.kernel).astype(self.compute)
        return convolve(x.astype(self.compute), kernel, "down" if self.stride == 2 else "same").astype(x.dtype)


def _plain_numbers(values: Any) -> tuple[Any, ...]:
    return tuple(map(plain_number, values))


class Pixels(eqx.Module):
    """An image of bytes, 0 to 255, as the state of a net: standardised, with ``zeros`` additional channels of zeros.

        start = Pixels((8, 8, 3), mean=(0.5,) * 3, std=(0.25,) * 3, zeros=2)
        state = start(255 * images[0])

    ``shape`` is (height, width, channels). ``mean`` and ``std`` have one number for each channel, as fractions of 255.
    """

    shape: tuple[int, int, int] = eqx.field(static=True, converter=_plain_numbers)
    mean: tuple[float, ...] = eqx.field(static=True, converter=_plain_numbers)
    std: tuple[float, ...] = eqx.field(static=True, converter=_plain_numbers)
    zeros: int = eqx.field(default=0, static=True, converter=plain_number)

    def __call__(self, x: Float[Array, "height width channel"]) -> Float[Array, "height width more"]:
        if x.shape != self.shape:
            raise ValueError(
                f"an example has shape {x.shape}, this model takes {self.shape}: pass images of bytes, 0 to 255, of "
                f"shape (examples, {', '.join(map(str, self.shape))})."
            )
        x = (x / 255 - jnp.asarray(self.mean, x.dtype)) / jnp.asarray(self.std, x.dtype)
        return jnp.pad(x, ((0, 0), (0, 0), (0, self.zeros)))


def pooled(x: Float[Array, "height width channel"]) -> Float[Array, " channel"]:
    """The mean over the pixels of each channel of one image.

        last = Deterministic(pooled)
        means, kl = last(images, key=key)

    Inside a net, ``Deterministic`` makes it a layer of a batch.
    """
    return x.mean((0, 1))
