"""Hidden dynamics of images with norms inside:   dh/dt = conv₂(gelu(norm₂(conv₁(gelu(norm₁(h))))))

The norms keep what the convolutions receive at unit size, whatever the state has grown to, so that one learning rate
suits nets of any width and depth. The norms are deterministic and trained; the convolutions are the random part.
"""

import math
from functools import partial
from typing import get_args

import equinox as eqx
import jax
from jaxtyping import PRNGKeyArray

from sdebnn.checks import check_choice, check_key
from sdebnn.convolutions.layers import Compute, ImageBatch, TimeConvLayer
from sdebnn.convolutions.norms import GroupNorm
from sdebnn.fields import AbstractLayer
from sdebnn.host_arrays import filled
from sdebnn.processes import Depth


class ResidualConv(AbstractLayer):
    """conv₂(gelu(norm₂(conv₁(gelu(norm₁(h)))))) of images, "height width channel", which does not depend on t.

        conv = ResidualConv(3, key=key)
        block = bayesianize(conv, lambda conv: conv.layers, drift=(1, 8, 1), key=key)
        hidden, kl = block(images, key=key)

    The second convolution starts at zero, and its scale is ``gain`` times that of its fan-in.
    ``compute="bfloat16"`` rounds the inputs of the convolutions, but not the state, the weights or the KL.
    """

    norms: tuple[GroupNorm, GroupNorm]
    layers: tuple[TimeConvLayer, TimeConvLayer]
    compute: Compute = eqx.field(static=True)

    def __init__(self, channels: int, *, gain: float = 2.0, compute: Compute = "float32", key: PRNGKeyArray):
        check_choice("compute", compute, get_args(Compute))
        check_key(key)
        first, second = jax.random.split(key)
        layer = partial(TimeConvLayer, channels, channels, time=False, bias_scale=0.1)
        last = jax.tree.map(lambda array: filled(array.shape), layer(gain=gain, key=second))
        self.layers = layer(gain=math.sqrt(2), key=first), last
        self.norms = GroupNorm(channels, activation=jax.nn.gelu), GroupNorm(channels, activation=jax.nn.gelu)
        self.compute = compute

    @property
    def takes_batch(self) -> bool:
        """True."""
        return True

    def __call__(self, t: Depth, h: ImageBatch) -> ImageBatch:
        out = h
        for norm, layer in zip(self.norms, self.layers, strict=True):
            out = layer(t, norm(out).astype(self.compute))
        return out.astype(h.dtype)
