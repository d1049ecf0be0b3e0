"""Nets for images: the paper's, and ours, whose states fill a GPU's matrix units.

Both take bytes, "example height width channel", and give the logits of the classes. Any block may be deterministic (an
ODE), so that a net is random in part; w_0 is a point, or inferred; the head is deterministic, or mean-field.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from numbers import Real
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import PRNGKeyArray

from sdebnn.baselines import MeanField, ODEBlock
from sdebnn.checks import check_count, check_counts, check_key, check_positive, plain_number, shown
from sdebnn.convolutions import Compute, Conv, GroupNorm, Pixels, TimeConv, pooled, squeeze
from sdebnn.fields import Readout
from sdebnn.integrate import Estimator, FixedGrid, Solver
from sdebnn.models import SDEBNN, Deterministic, bayesianize
from sdebnn.processes import OU, Independent, Law, Normal, Point, Weights

Shape = Sequence[int]  # height, width, channels


def paper_net(
    shape: Shape,
    classes: int,
    *,
    blocks: Sequence[int] = (1,),
    width: int = 32,
    augment: int = 2,
    drift: Sequence[int] = (1, 64, 1),
    prior: OU = OU(sigma=0.1),
    initial: Callable[[Weights], Law] = Point,
    solver: Solver | None = None,
    kl: Estimator = "analytic",
    deterministic: Sequence[int] = (),
    block: Callable[[TimeConv, PRNGKeyArray], Any] | None = None,
    mean_field_head: bool = False,
    mean: Sequence[float] = (0.5,),
    std: Sequence[float] = (0.25,),
    compute: Compute = "float32",
    key: PRNGKeyArray,
) -> SDEBNN:
    """The paper's net: ``augment`` zero channels, blocks of ``TimeConv``, an invertible squeeze between scales.

    ``blocks=(1,)`` is its MNIST net, ``(2, 2, 2)`` its CIFAR-10 net: so many blocks at each scale. ``deterministic``
    numbers the blocks, from 0, that are ODEs; ``block`` makes the others of a field and a key, if they are not to be
    those of ``bayesianize`` with the arguments given here. ``mean`` and ``std`` standardise the pixels, as shares of
    255. Without a ``solver``, 20 steps of Euler's, in the form that suits this machine.
    """
    solver = solver or euler(20, sum(blocks))
    channels = _checked(shape, classes, blocks, deterministic, key) + augment
    check_count("augment", augment, least=0)
    least = 2 ** len(blocks)  # every squeeze halves the image, and so do the fields inside
    if shape[0] % least or shape[1] % least:
        raise ValueError(
            f"blocks={tuple(blocks)} need images whose sides are multiples of {least}; these are {shape[0]} by "
            f"{shape[1]}: pad them, or take fewer scales."
        )
    head_key, *keys = jax.random.split(key, 1 + sum(blocks))
    layers: list[Any] = [Deterministic(_pixels(shape, mean, std, augment))]
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
    """So many steps of Euler's, in the form that suits this machine.

    On a processor few images at a time, which then stay in its cache; on a GPU no loop for a single block, and no step
    computed twice.
    """
    if jax.default_backend() == "cpu":
        return FixedGrid(steps, unroll=1, at_once=16)
    return FixedGrid(steps, gradient="backprop", unroll=steps if blocks == 1 else 5)


def our_net(
    shape: Shape,
    classes: int,
    *,
    channels: Sequence[int] = (64, 128, 256),
    blocks: int = 1,
    stem_stride: int = 1,
    gain: float = 8.0,
    drift: Sequence[int] = (1, 64, 1),
    prior: OU = OU(sigma=0.2),
    inferred: Sequence[int] = (),
    solver: Solver = FixedGrid(8, gradient="backprop", unroll=8),
    kl: Estimator = "analytic",
    deterministic: Sequence[int] = (),
    mean_field_head: bool = False,
    mean: Sequence[float] = (0.5,),
    std: Sequence[float] = (0.25,),
    compute: Compute = "bfloat16",
    key: PRNGKeyArray,
) -> SDEBNN:
    """Our net: a deterministic stem, ``blocks`` of two convolutions at each width, strided convolutions between.

    Each field is conv(gelu(conv(h))), the last convolution from zero and ``gain`` times as strong as its fan-in asks.
    ``inferred`` numbers the convolutions, 0 and 1, of every field whose w_0 is inferred, its prior's scale by empirical
    Bayes for each array; the w_0 of the others is a point.
    """
    check_counts("channels", channels)
    check_count("blocks", blocks)
    in_channels = _checked(shape, classes, (blocks,) * len(channels), deterministic, key)
    if not set(inferred) <= {0, 1}:
        raise ValueError(
            f"inferred={tuple(inferred)} numbers the two convolutions of a field: pass (), (1,) or (0, 1)."
        )
    stem_key, head_key, *keys = jax.random.split(key, 2 + len(channels) * (1 + blocks))
    zeros = -in_channels % 8  # a GPU's matrix units take eight channels at a time
    first, second = jax.random.split(stem_key)
    stem = [
        _pixels(shape, mean, std, zeros),
        Conv(in_channels + zeros, channels[0], stride=stem_stride, compute=compute, key=first),
        _norm(channels[0]),
        Conv(channels[0], channels[0], compute=compute, key=second),
    ]
    layers: list[Any] = [Deterministic(part) for part in stem]
    number = 0
    for stage, width in enumerate(channels):
        down_key = keys.pop(0)
        if stage:
            before = channels[stage - 1]
            down = [_norm(before), Conv(before, width, stride=2, compute=compute, key=down_key)]
            layers.extend(Deterministic(part) for part in down)
        for _ in range(blocks):
            field_key, drift_key = jax.random.split(keys.pop(0))
            field = TimeConv(
                width, (width,), ("same", "same"), activation=jax.nn.gelu, time=False, gains=(math.sqrt(2), gain),
                bias_scale=0.1, still=True, compute=compute, key=field_key,
            )  # fmt: skip
            if number in deterministic:
                layers.append(ODEBlock(field, solver=solver))
            else:
                law = partial(_by_layer, field, frozenset(inferred)) if inferred else Point
                layers.append(
                    bayesianize(field, prior=prior, drift=drift, initial=law, solver=solver, kl=kl, key=drift_key)
                )
            number += 1
    layers.extend(Deterministic(part) for part in (_norm(channels[-1]), pooled))
    return SDEBNN((*layers, _head(channels[-1], classes, mean_field_head, head_key)))


def _checked(shape: Shape, classes: int, blocks: Sequence[int], deterministic: Sequence[int], key: PRNGKeyArray) -> int:
    """The channels of an image, once the arguments make sense."""
    if len(shape) != 3:
        raise ValueError(f"shape={shape} must be (height, width, channels), such as (28, 28, 1).")
    check_counts("shape", shape)
    check_count("classes", classes, least=2)
    check_counts("blocks", blocks)
    check_key(key)
    if not set(deterministic) <= set(range(sum(blocks))):
        raise ValueError(
            f"deterministic={tuple(deterministic)} numbers blocks that are not there: there are {sum(blocks)}, from 0."
        )
    return shape[2]


def _pixels(shape: Shape, mean: Sequence[float], std: Sequence[float], zeros: int) -> Pixels:
    height, width, channels = shape
    mean, std = _of_channels("mean", mean, channels), _of_channels("std", std, channels)
    for number, value in enumerate(std):
        check_positive(f"std[{number}]", value)
    return Pixels((height, width, channels), mean, std, zeros)


def _of_channels(name: str, values: Any, channels: int) -> tuple[float, ...]:
    """One number for each channel, if one or so many were given."""
    many = isinstance(values, Sequence | np.ndarray) and not isinstance(values, str) and np.ndim(values) == 1
    each = tuple(map(plain_number, values if many else (values,)))
    if len(each) not in (1, channels) or not all(isinstance(value, Real) for value in each):
        raise ValueError(
            f"{name}={shown(values)} must hold one number, or one for each of {channels} "
            f"channel{'s' * (channels > 1)}, as shares of 255."
        )
    return each * channels if len(each) == 1 else each


def _norm(channels: int) -> GroupNorm:
    return GroupNorm(channels, activation=jax.nn.gelu)


def _head(size: int, classes: int, mean_field: bool, key: PRNGKeyArray) -> Any:
    if not mean_field:
        return Deterministic(Readout(size, classes, key=key))
    return MeanField(eqx.nn.Linear(size, classes, key=key))


def _by_layer(field: TimeConv, inferred: frozenset[int], w0: Weights) -> Independent:
    """Each array of a field by itself: a point, or inferred."""
    sizes = [(number, leaf.size) for number, layer in enumerate(field.layers) for leaf in jax.tree.leaves(layer)]
    parts = zip(sizes, lax.split(w0, [size for _, size in sizes]), strict=True)
    return Independent(
        tuple(Normal(part, 0.1, prior_std=None) if number in inferred else Point(part) for (number, _), part in parts)
    )
