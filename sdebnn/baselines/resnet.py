"""ResNet32 with pre-activation and without batch norm:   h <- h + conv(tanh(conv(tanh(h)))),   5 blocks at 3 scales."""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn.checks import check_callable, check_count, check_counts, check_key
from sdebnn.convolutions import TimeConvLayer
from sdebnn.fields import AbstractLayer
from sdebnn.host_arrays import filled, host_stack

ImageArray = Float[Array, "*lead height width channel"]


class Residual(eqx.Module):
    """The identity plus two convolutions. The first may halve the image and add channels; the second starts at zero."""

    first: TimeConvLayer
    second: TimeConvLayer

    def __init__(self, in_channels: int, channels: int, *, halve: bool, key: PRNGKeyArray):
        one, two = jax.random.split(key)
        self.first = TimeConvLayer(in_channels, channels, move="down" if halve else "same", time=False, key=one)
        last = TimeConvLayer(channels, channels, time=False, key=two)
        # Each block starts as the identity. Otherwise thirty random layers without batch norm would hide the image.
        self.second = eqx.tree_at(lambda layer: layer.kernel, last, filled(last.kernel.shape))

    def __call__(self, h: ImageArray, activation: Callable[[Array], Array]) -> Float[Array, "..."]:
        change = self.second(0.0, activation(self.first(0.0, activation(h))))
        if self.first.move == "down":
            h = h[..., ::2, ::2, :]
        more = change.shape[-1] - h.shape[-1]
        return jnp.pad(h, [(0, 0)] * (h.ndim - 1) + [(0, more)]) + change


class ResNet(AbstractLayer):
    """A net from images to logits with 6 ``blocks`` + 2 layers, which are 32 for 5 blocks at each of three widths.

        resnet = baselines.ResNet(3, 3, widths=(4, 8), blocks=2, key=key)
        logits = predict(Deterministic(resnet), images, draws=1, key=key)

    ``widths`` are the channels at each scale. Between scales the image is halved, and the identity is subsampled and
    padded with zero channels. The head is linear in the mean of each channel. With ``classes=None`` there is no head,
    and the net returns these means.
    """

    stem: TimeConvLayer
    heads: tuple[Residual, ...]  # the first block of each scale
    tails: tuple[Residual, ...]  # the other blocks, stacked, so that one loop runs them and they are compiled once
    head: eqx.nn.Linear | None
    activation: Callable[[Array], Array]

    def __init__(
        self,
        in_channels: int,
        classes: int | None,
        *,
        widths: Sequence[int] = (16, 32, 64),
        blocks: int = 5,
        activation: Callable[[Array], Array] = jnp.tanh,
        key: PRNGKeyArray,
    ):
        check_count("in_channels", in_channels)
        if classes is not None:
            check_count("classes", classes, least=2)
        check_counts("widths", widths)
        if not widths:
            raise ValueError("widths=() has no layer: pass the channels at each scale, such as (16, 32, 64).")
        check_count("blocks", blocks, least=2)
        check_callable("activation", activation, "jnp.tanh")
        check_key(key)
        stem_key, head_key, *keys = jax.random.split(key, 2 + 2 * len(widths))
        self.stem = TimeConvLayer(in_channels, widths[0], time=False, key=stem_key)
        before = (widths[0], *widths[:-1])
        self.heads = tuple(
            Residual(m, n, halve=i > 0, key=k)
            for i, (m, n, k) in enumerate(zip(before, widths, keys[: len(widths)], strict=True))
        )

        def tail(width: int, key: PRNGKeyArray) -> Residual:
            made = [Residual(width, width, halve=False, key=k) for k in jax.random.split(key, blocks - 1)]
            return jax.tree.map(lambda *arrays: host_stack(arrays), *made)

        self.tails = tuple(tail(n, k) for n, k in zip(widths, keys[len(widths) :], strict=True))
        self.head = None if classes is None else eqx.nn.Linear(widths[-1], classes, key=head_key)
        self.activation = activation

    @property
    def takes_batch(self) -> bool:
        """True."""
        return True

    def features(self, x: ImageArray) -> Float[Array, "*lead feature"]:
        """The inputs of the head: the mean of each channel over the pixels."""
        h = self.stem(0.0, x)
        for first, others in zip(self.heads, self.tails, strict=True):
            h = first(h, self.activation)
            arrays, rest = eqx.partition(others, eqx.is_inexact_array)

            def step(h: Array, arrays: Residual, rest: Residual = rest) -> tuple[Array, None]:
                return eqx.combine(arrays, rest)(h, self.activation), None

            h, _ = lax.scan(step, h, arrays)
        return self.activation(h).mean((-3, -2))

    def __call__(self, x: ImageArray) -> Float[Array, "*lead outcome"]:
        features = self.features(x)
        if self.head is None:
            return features
        return features @ self.head.weight.T + self.head.bias  # pyright: ignore[reportOperatorIssue]
