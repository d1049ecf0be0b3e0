"""A field whose prior is a random smooth function of the inputs, of a chosen scale and length."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn.checks import check_count, check_counts, check_key, check_positive, plain_number
from sdebnn.fields import AbstractLayer
from sdebnn.host_arrays import filled, normals
from sdebnn.processes import Depth

TREND = 0.25  # standard deviation of the trend's slope, in units of scale / length


class WaveWeights(eqx.Module):
    """The arrays of ``Waves`` that are random, standardised."""

    inputs: Float[Array, "width in"]
    states: Float[Array, "width augment"]
    depth: Float[Array, " width"]
    phase: Float[Array, " width"]
    inner: Float[Array, "augment width"]
    inner_bias: Float[Array, " augment"]
    outer: Float[Array, "out width"]
    outer_bias: Float[Array, " out"]
    trend: Float[Array, "out in"]


class Waves(AbstractLayer):
    """A field whose draws look like random smooth functions of a chosen scale and length.

    The state is h = (x, z, y): the inputs, which stay as they are, ``augment`` numbers that act on themselves, and the
    outputs, all of which start at 0:

        v = (x - center) / length,      φ = √(2 / width) sin(A v + E z / √augment + f t + π a)
        z' = C φ + c,      y' = offset + scale · (B φ + b + G v / (4 √inputs))

    With standard normal weights, y at depth 1 is a smooth function of size ``scale`` around ``offset``, which changes
    over distances of about ``length``, plus a weak trend, a slope of about scale / (4 length). Beyond the data, a
    posterior returns to the prior, and its spread grows with the distance. ``length`` (one number, or one for each
    input) and ``scale`` (one number, or one for each output) are fixed if they are given, and are trained if they are
    None. ``center`` and ``offset`` are constants, which ``fit`` sets to the means of the data.
    """

    weights: WaveWeights
    log_length: Float[Array, " in"] | tuple[float, ...]
    log_scale: Float[Array, " out"] | tuple[float, ...]
    center: Float[Array, " in"]
    offset: Float[Array, " out"]

    def __init__(
        self,
        in_size: int,
        out_size: int,
        width: int = 32,
        augment: int = 2,
        *,
        length: float | Sequence[float] | None = None,
        scale: float | Sequence[float] | None = None,
        key: PRNGKeyArray,
    ):
        check_counts("sizes", (in_size, out_size, width))
        check_count("augment", augment, least=0)
        check_key(key)
        keys = iter(jax.random.split(key, len(dataclasses.fields(WaveWeights))))

        def drawn(*shape: int) -> Array:
            return jnp.asarray(normals(next(keys), shape))

        self.weights = WaveWeights(
            drawn(width, in_size), drawn(width, augment), drawn(width), drawn(width), drawn(augment, width),
            drawn(augment), drawn(out_size, width), drawn(out_size), drawn(out_size, in_size),
        )  # fmt: skip
        self.log_length = _logarithms("length", length, in_size)
        self.log_scale = _logarithms("scale", scale, out_size)
        self.center, self.offset = filled(in_size), filled(out_size)

    @property
    def scales(self) -> "Waves":
        """1: the weights are standardised."""
        return jax.tree.map(lambda leaf: 1.0 if eqx.is_inexact_array(leaf) else leaf, self)

    @property
    def linear_arrays(self) -> Callable[[Any], Any]:
        """B, b and G."""
        return lambda field: (field.weights.outer, field.weights.outer_bias, field.weights.trend)

    def suited_to(self, h: Float[np.ndarray, "example state"], outputs: Float[np.ndarray, "example output"]) -> "Waves":
        """Center and offset are the means of the data. Length and scale start at their spreads if they are trained."""
        x = h[:, : self.center.size]
        found = {"center": x.mean(0), "offset": outputs.mean(0)}
        for name, columns in (("log_length", x), ("log_scale", outputs)):
            if isinstance(getattr(self, name), jax.Array):
                std = columns.std(0)
                found[name] = np.log(np.where(std > 0, std, 1.0))
        values = tuple(jnp.asarray(value, self.center.dtype) for value in found.values())
        return eqx.tree_at(lambda field: tuple(getattr(field, name) for name in found), self, values)

    def __call__(self, t: Depth, h: Float[Array, " state"]) -> Float[Array, " state"]:
        w = self.weights
        (width, in_size), augment = w.inputs.shape, w.states.shape[1]
        x, z = h[:in_size], h[in_size : in_size + augment]
        length, scale = (jnp.exp(jnp.asarray(log, h.dtype)) for log in (self.log_length, self.log_scale))
        x_scaled = (x - lax.stop_gradient(self.center)) / length
        angle = w.inputs @ x_scaled + t * w.depth + math.pi * w.phase
        if augment:
            angle = angle + w.states @ z / math.sqrt(augment)
        wave = math.sqrt(2 / width) * jnp.sin(angle)
        inner = w.inner @ wave + w.inner_bias
        outer = lax.stop_gradient(self.offset) + scale * (
            w.outer @ wave + w.outer_bias + TREND / math.sqrt(in_size) * w.trend @ x_scaled
        )
        return jnp.concatenate([jnp.zeros_like(x), inner, outer])


def _logarithms(name: str, values: float | Sequence[float] | None, size: int) -> Float[Array, " n"] | tuple[float, ...]:
    """Logarithms of given numbers, which are not trained; zeros, which are, without any."""
    if values is None:
        return filled(size)
    given = [plain_number(value) for value in np.atleast_1d(np.asarray(values)).tolist()]
    if len(given) not in (1, size):
        raise ValueError(f"{name} holds {len(given)} numbers: pass one, or {size}.")
    for value in given:
        check_positive(name, value)
    return tuple(math.log(value) for value in (given * size if len(given) == 1 else given))
