"""MC dropout (Gal & Ghahramani 2016): a draw switches units off, for all examples alike.

W = M diag(z) / keep,   z_j ~ Bernoulli(keep),   keep = 1 - rate;   KL ≈ Σ M² / (2 keep prior_std²),   their estimate
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn.checks import check_positive, plain_number
from sdebnn.contract import solve
from sdebnn.fields import own_scales
from sdebnn.integrate import Solution
from sdebnn.models import as_model, picked


class MCDropout(eqx.Module):
    """Any model, or module of one example, some of whose units are switched off in every draw; in predictions too.

    A unit is an input of a ``weight`` (outputs first, as in Equinox) or of a convolution's ``kernel`` (outputs last).
    ``where`` picks the parts whose inputs may be switched off, as in ``eqx.tree_at``; without it all but the first,
    whose inputs are the data. The KL is a decay of the weights, standardised by their fan-in.
    """

    model: Any
    axes: tuple[int | None, ...] = eqx.field(static=True)  # of each array: that of its inputs, if they are switched off
    scales: tuple[float, ...] = eqx.field(static=True)
    rate: float = eqx.field(static=True)
    prior_std: float = eqx.field(static=True)

    def __init__(
        self, model: Any, rate: float = 0.1, *, where: Callable[[Any], Any] | None = None, prior_std: float = 1.0
    ):
        rate, prior_std = plain_number(rate), plain_number(prior_std)
        if not 0 < rate < 1:
            raise ValueError(f"rate={rate!r} is the share of units switched off: pass a number between 0 and 1.")
        check_positive("prior_std", prior_std)
        axes = _input_axes(model, where)
        if where is None and any(axis is not None for axis in axes):
            first = next(i for i, axis in enumerate(axes) if axis is not None)
            axes[first] = None
        if all(axis is None for axis in axes):
            name = type(model).__name__
            raise ValueError(f"{name} has no units to switch off: it needs a weight beside its first, or pass where.")
        self.model, self.axes, self.scales = as_model(model), tuple(axes), own_scales(model)
        self.rate, self.prior_std = rate, prior_std

    def __call__(
        self, x: Float[Array, "example *input"], *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "example *output"], Float[Array, ""]]:
        return self.solve(x, key=key)[:2]

    def solve(self, x: Float[Array, "example *input"], *, key: PRNGKeyArray, rough: bool = False) -> Solution:
        """The solution of the model with some units switched off, the KL added to its own."""
        arrays, rest = eqx.partition(self.model, eqx.is_inexact_array)
        leaves, structure = jax.tree.flatten(arrays)
        *keys, inner = jax.random.split(key, len(leaves) + 1)
        keep = 1 - self.rate
        drawn, decay = [], jnp.zeros(())
        for leaf, axis, scale, k in zip(leaves, self.axes, self.scales, keys, strict=True):
            square = jnp.sum((leaf / scale) ** 2)
            if axis is not None:
                # Of stacked kernels, which have axes before their four, each has units of its own.
                own = leaf.ndim - 4 if axis > 1 else 0
                units = [size if i == axis or i < own else 1 for i, size in enumerate(leaf.shape)]
                leaf, square = leaf * jax.random.bernoulli(k, keep, tuple(units)) / keep, square / keep
            drawn.append(leaf)
            decay = decay + square
        part = solve(eqx.combine(jax.tree.unflatten(structure, drawn), rest), x, key=inner, rough=rough)
        return part._replace(kl=part.kl + (0.5 * decay / self.prior_std**2).astype(part.kl.dtype))


def _input_axes(model: Any, where: Callable[[Any], Any] | None) -> list[int | None]:
    """Of each array of a model the axis of its inputs, if it has one and is picked."""
    mask = jax.tree.map(eqx.is_inexact_array, model) if where is None else picked(model, where)
    axes: list[int | None] = []
    for (path, leaf), wanted in zip(jax.tree_util.tree_flatten_with_path(model)[0], jax.tree.leaves(mask), strict=True):
        if eqx.is_inexact_array(leaf):
            name = getattr(path[-1], "name", "") if path else ""
            axis = {"weight": 1, "kernel": leaf.ndim - 2}.get(name) if leaf.ndim > 1 else None
            axes.append(axis if wanted else None)
    return axes
