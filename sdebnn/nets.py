"""Nets for images: the paper's net, and our net, whose hidden states suit the matrix units of a GPU.

Both take bytes, "example height width channel", and return the logits of the classes. Any block may be deterministic
(an ODE), so that only a part of the net is random. w_0 is a point or inferred, and the head is deterministic or
mean-field. The net for vectors is ``SDEBNN.mlp``.
"""

from collections.abc import Callable, Sequence
from functools import partial
from numbers import Real

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import PRNGKeyArray

from sdebnn.checks import check_count, check_counts, check_key, check_positive, plain_number, shown
from sdebnn.contract import AbstractModel
from sdebnn.convolutions import Compute, Conv, GroupNorm, Pixels, ResidualConv, TimeConv, pooled, squeeze
from sdebnn.data import RandomView
from sdebnn.devices import platform
from sdebnn.fields import Readout
from sdebnn.integrate import FixedGrid, KLEstimator
from sdebnn.models import SDEBNN, Deterministic, MeanField, ODEBlock, Views, bayesianize
from sdebnn.processes import OU, AbstractDrift, AbstractInitialLaw, AbstractPrior, Independent, Normal, Point, Weights

Shape = Sequence[int]  # height, width, channels


def paper_net(
    shape: Shape,
    classes: int,
    *,
    blocks: Sequence[int] = (1,),
    width: int = 32,
    augment: int = 2,
    drift: Sequence[int] = (1, 64, 1),
    prior: AbstractPrior = OU(sigma=0.1),
    initial: Callable[[Weights], AbstractInitialLaw] = Point,
    solver: FixedGrid | None = None,
    kl: KLEstimator = "analytic",
    deterministic: Sequence[int] = (),
    block: Callable[[TimeConv, PRNGKeyArray], AbstractModel] | None = None,
    mean_field_head: bool = False,
    mean: Sequence[float] = (0.5,),
    std: Sequence[float] = (0.25,),
    compute: Compute = "float32",
    key: PRNGKeyArray,
) -> SDEBNN:
    """The paper's net for images: blocks of ``TimeConv``, and an invertible squeeze between scales.

        net = paper_net((28, 28, 1), classes=10, key=key)
        logits, kl = paper_net((8, 8, 3), 3, width=8, key=key)(images, key=key)

    ``shape`` is (height, width, channels) of the images, whose pixels are from 0 to 255. The outputs are the logits of
    ``classes`` classes.

    - ``blocks``: the number of blocks at each scale: ``(1,)`` for the MNIST net, ``(2, 2, 2)`` for the CIFAR-10 net.
    - ``width``: the number of channels inside a field. ``augment`` is the number of zero channels that are appended.
    - ``prior``, ``drift``, ``initial``, ``solver`` and ``kl`` are those of ``bayesianize``. The default solver is
      ``FixedGrid(20)``, with options that suit the device.
    - ``deterministic``: the indices, from 0, of blocks that are ODEs.
    - ``block``: a function of a field and a key that makes the other blocks, instead of ``bayesianize``.
    - ``mean_field_head``: whether the last linear layer is random, too, by ``MeanField``.
    - ``mean`` and ``std`` standardise the pixels, as fractions of 255.
    - ``compute``: the type to which the inputs of convolutions are rounded, "float32" or "bfloat16".
    """
    solver = solver or euler(20, sum(blocks))
    channels = _checked(shape, classes, blocks, deterministic, key) + augment
    check_count("augment", augment, least=0)
    least = 2 ** len(blocks)  # every squeeze halves the image, and so does every field
    if shape[0] % least or shape[1] % least:
        raise ValueError(
            f"blocks={tuple(blocks)} needs images whose sides are multiples of {least}, and these are {shape[0]} by "
            f"{shape[1]}: pad them, or use fewer scales."
        )
    head_key, *keys = jax.random.split(key, 1 + sum(blocks))
    layers: list[AbstractModel] = [Deterministic(_pixels(shape, mean, std, augment))]
    height, across = shape[:2]
    for scale, count in enumerate(blocks):
        if scale:
            layers.append(Deterministic(squeeze))
            height, across, channels = height // 2, across // 2, 4 * channels
        for _ in range(count):
            field_key, drift_key = jax.random.split(keys.pop(0))
            field = TimeConv(channels, (width,) * 3, compute=compute, key=field_key)
            if sum(blocks) - len(keys) - 1 in deterministic:
                layers.append(ODEBlock(field, solver=solver))
            elif block is not None:
                layers.append(block(field, drift_key))
            else:
                layers.append(
                    bayesianize(field, prior=prior, drift=drift, initial=initial, solver=solver, kl=kl, key=drift_key)
                )
    return SDEBNN(
        (*layers, Deterministic(jnp.ravel), _head(height * across * channels, classes, mean_field_head, head_key))
    )


def euler(steps: int, blocks: int = 1) -> FixedGrid:
    """A grid of Euler steps with the execution options that suit this machine.

    A CPU computes 16 images at a time, which fit into its cache. On a GPU, the loop over the steps of a single block is
    unrolled, and the gradient keeps all states instead of recomputing them.
    """
    if platform() == "cpu":
        return FixedGrid(steps, unroll=1, at_once=16)
    return FixedGrid(steps, gradient="backprop", unroll=steps if blocks == 1 else 5)


def our_net(
    shape: Shape,
    classes: int,
    *,
    channels: Sequence[int] = (64, 128, 256),
    blocks: int = 2,
    stem_stride: int = 1,
    gain: float = 2.0,
    drift: AbstractDrift | Sequence[int] = (1, 64, 1),
    prior: AbstractPrior = OU(sigma=0.2),
    infer_w0_of: Sequence[int] = (),
    solver: FixedGrid = FixedGrid(2, gradient="backprop", unroll=2),
    kl: KLEstimator = "analytic",
    deterministic: Sequence[int] = (),
    mean_field_head: bool = False,
    views: RandomView | None = None,
    mean: Sequence[float] = (0.5,),
    std: Sequence[float] = (0.25,),
    compute: Compute = "bfloat16",
    key: PRNGKeyArray,
) -> SDEBNN:
    """Our net for images: a convolution, blocks at each number of channels, and strided convolutions between them.

        net = our_net((32, 32, 3), classes=10, channels=(16, 32), blocks=1, key=key)
        views = sdebnn.data.RandomView(2)
        seen = our_net((32, 32, 3), 10, channels=(16,), views=views, key=key)

    ``shape`` is (height, width, channels) of the images, whose pixels are from 0 to 255. The outputs are the logits of
    ``classes`` classes. Each field is a ``ResidualConv``; its norms, and all that is outside the blocks, are
    deterministic.

    - ``channels``: the number of channels at each scale. There are ``blocks`` blocks at each.
    - ``stem_stride``: the stride of the first convolution; 2 halves the images.
    - ``gain``: the scale of the last convolution of a field, as a multiple of that of its fan-in.
    - ``prior``, ``drift``, ``solver`` and ``kl`` are those of ``bayesianize``.
    - ``infer_w0_of``: the indices, 0 or 1, of the convolutions of each field whose w_0 is inferred; the scale of its
      prior is learned for each array. The w_0 of the other convolutions is a point.
    - ``deterministic``: the indices, from 0, of blocks that are ODEs.
    - ``mean_field_head``: whether the last linear layer is random, too, by ``MeanField``.
    - ``views``: every draw sees the images in its own way (``Views``).
    - ``mean`` and ``std`` standardise the pixels, as fractions of 255.
    - ``compute``: the type to which the inputs of convolutions are rounded, "float32" or "bfloat16".
    """
    check_counts("channels", channels)
    check_count("blocks", blocks)
    in_channels = _checked(shape, classes, (blocks,) * len(channels), deterministic, key)
    if not set(infer_w0_of) <= {0, 1}:
        raise ValueError(
            f"infer_w0_of={tuple(infer_w0_of)} must hold indices of the two convolutions of a field: pass (), (1,) or "
            "(0, 1)."
        )
    stem_key, head_key, *keys = jax.random.split(key, 2 + len(channels) * (1 + blocks))
    zeros = -in_channels % 8  # the matrix units of a GPU take eight channels at a time
    layers: list[AbstractModel] = [] if views is None else [Views(views)]
    stem = Conv(in_channels + zeros, channels[0], stride=stem_stride, compute=compute, key=stem_key)
    layers.extend(Deterministic(part) for part in (_pixels(shape, mean, std, zeros), stem))
    number = 0
    for stage, width in enumerate(channels):
        down_key = keys.pop(0)
        if stage:
            before = channels[stage - 1]
            down = [_norm(before), Conv(before, width, stride=2, compute=compute, key=down_key)]
            layers.extend(Deterministic(part) for part in down)
        for _ in range(blocks):
            field_key, drift_key = jax.random.split(keys.pop(0))
            field = ResidualConv(width, gain=gain, compute=compute, key=field_key)
            if number in deterministic:
                layers.append(ODEBlock(field, solver=solver))
            else:
                law = partial(_by_layer, field, frozenset(infer_w0_of)) if infer_w0_of else Point
                block = partial(bayesianize, field, lambda field: field.layers, prior=prior, drift=drift, initial=law)
                layers.append(block(solver=solver, kl=kl, key=drift_key))
            number += 1
    layers.extend(Deterministic(part) for part in (_norm(channels[-1]), pooled))
    return SDEBNN((*layers, _head(channels[-1], classes, mean_field_head, head_key)))


def _checked(shape: Shape, classes: int, blocks: Sequence[int], deterministic: Sequence[int], key: PRNGKeyArray) -> int:
    """The number of channels of an image, if the arguments are valid."""
    if len(shape) != 3:
        raise ValueError(f"shape={shape} must be (height, width, channels), such as (28, 28, 1).")
    check_counts("shape", shape)
    check_count("classes", classes, least=2)
    check_counts("blocks", blocks)
    check_key(key)
    if not set(deterministic) <= set(range(sum(blocks))):
        raise ValueError(
            f"deterministic={tuple(deterministic)} must hold indices of blocks: there are {sum(blocks)}, from 0 on."
        )
    return shape[2]


def _pixels(shape: Shape, mean: Sequence[float], std: Sequence[float], zeros: int) -> Pixels:
    height, width, channels = shape
    mean, std = _of_channels("mean", mean, channels), _of_channels("std", std, channels)
    for number, value in enumerate(std):
        check_positive(f"std[{number}]", value)
    return Pixels((height, width, channels), mean, std, zeros)


def _of_channels(name: str, values: float | Sequence[float] | np.ndarray, channels: int) -> tuple[float, ...]:
    """One number for each channel, given as one number for all or one for each."""
    given = values if isinstance(values, Sequence | np.ndarray) and np.ndim(values) == 1 else (values,)
    each = tuple(map(plain_number, given))
    if len(each) not in (1, channels) or not all(isinstance(value, Real) for value in each):
        raise ValueError(
            f"{name}={shown(values)} must hold one number, or one for each of {channels} "
            f"channel{'s' * (channels > 1)}, as fractions of 255."
        )
    return each * channels if len(each) == 1 else each


def _norm(channels: int) -> GroupNorm:
    return GroupNorm(channels, activation=jax.nn.gelu)


def _head(size: int, classes: int, mean_field: bool, key: PRNGKeyArray) -> AbstractModel:
    if not mean_field:
        return Deterministic(Readout(size, classes, key=key))
    return MeanField(eqx.nn.Linear(size, classes, key=key))


def _by_layer(field: ResidualConv, inferred: frozenset[int], w0: Weights) -> Independent:
    """Independent laws of w_0 for each array of a field: inferred in the given layers, points in the others."""
    sizes = [(number, leaf.size) for number, layer in enumerate(field.layers) for leaf in jax.tree.leaves(layer)]
    parts = zip(sizes, lax.split(w0, [size for _, size in sizes]), strict=True)
    return Independent(
        tuple(Normal(part, 0.1, prior_std=None) if number in inferred else Point(part) for (number, _), part in parts)
    )
