"""MC dropout (Gal & Ghahramani 2016): each draw sets random units to zero, the same ones for all examples.

W = M diag(z) / keep,   z_j ~ Bernoulli(keep),   keep = 1 - rate;   KL ≈ Σ M² / (2 keep prior_std²)
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Num, PRNGKeyArray, PyTree

from sdebnn.checks import check_positive, plain_number
from sdebnn.contract import AbstractModel, LayerLine, parameter_count
from sdebnn.fields import own_scales
from sdebnn.integrate import Solution
from sdebnn.models import as_model, picked


class MCDropout(AbstractModel):
    """Any model, or module of one example, of which each draw drops some units, in training and in predictions.

        net = baselines.MCDropout(eqx.nn.MLP(1, 1, 32, 2, key=key), rate=0.1)
        outputs, kl = net(x, key=key)  # one draw

    A unit is an input of a ``weight`` (outputs first, as in Equinox) or of a convolution's ``kernel`` (outputs last).
    ``where`` picks the parts whose inputs may be dropped, as in ``eqx.tree_at``. By default these are all parts but the
    first, whose inputs are the data. The KL is a decay of the weights, which are standardised by their fan-in.
    """

    model: AbstractModel
    axes: tuple[int | None, ...] = eqx.field(
        static=True
    )  # the axis of each array's inputs; None if they are never dropped
    scales: tuple[float, ...] = eqx.field(static=True)
    rate: float = eqx.field(static=True)
    prior_std: float = eqx.field(static=True)

    def __init__(
        self,
        model: AbstractModel | Callable[[Array], Array],
        rate: float = 0.1,
        *,
        where: Callable[[PyTree], PyTree] | None = None,
        prior_std: float = 1.0,
    ):
        rate, prior_std = plain_number(rate), plain_number(prior_std)
        if not 0 < rate < 1:
            raise ValueError(f"rate={rate!r} is the probability of dropping a unit: pass a number between 0 and 1.")
        check_positive("prior_std", prior_std)
        axes = _input_axes(model, where)
        if where is None and any(axis is not None for axis in axes):
            first = next(i for i, axis in enumerate(axes) if axis is not None)
            axes[first] = None
        if all(axis is None for axis in axes):
            name = type(model).__name__
            raise ValueError(f"{name} has no units to drop: it needs a weight after its first one, or pass where.")
        self.model, self.axes, self.scales = as_model(model), tuple(axes), own_scales(model)
        self.rate, self.prior_std = rate, prior_std

    def layer_line(self, x: Num[Array, "example *input"]) -> LayerLine:
        """The model inside."""
        return LayerLine(type(self).__name__, parameter_count(self), inside=(self.model.layer_line(x),))

    def solve(self, x: Num[Array, "example *input"], *, key: PRNGKeyArray, with_roughness: bool = False) -> Solution:
        """The solution of the model with some units dropped, with the KL added to the model's own."""
        arrays, rest = eqx.partition(self.model, eqx.is_inexact_array)
        leaves, structure = jax.tree.flatten(arrays)
        *keys, inner = jax.random.split(key, len(leaves) + 1)
        keep = 1 - self.rate
        drawn, decay = [], jnp.zeros(())
        for leaf, axis, scale, k in zip(leaves, self.axes, self.scales, keys, strict=True):
            square = jnp.sum((leaf / scale) ** 2)
            if axis is not None:
                # Stacked kernels, which have axes before their last four, have independent units.
                own = leaf.ndim - 4 if axis > 1 else 0
                units = [size if i == axis or i < own else 1 for i, size in enumerate(leaf.shape)]
                leaf, square = leaf * jax.random.bernoulli(k, keep, tuple(units)) / keep, square / keep
            drawn.append(leaf)
            decay = decay + square
        drawn_model = eqx.combine(jax.tree.unflatten(structure, drawn), rest)
        part = drawn_model.solve(x, key=inner, with_roughness=with_roughness)
        return part._replace(kl=part.kl + (0.5 * decay / self.prior_std**2).astype(part.kl.dtype))


def _input_axes(model: PyTree, where: Callable[[PyTree], PyTree] | None) -> list[int | None]:
    """The axis of the inputs of each array of a model; None if it has none or is not picked."""
    mask = jax.tree.map(eqx.is_inexact_array, model) if where is None else picked(model, where)
    axes: list[int | None] = []
    for (path, leaf), wanted in zip(jax.tree_util.tree_flatten_with_path(model)[0], jax.tree.leaves(mask), strict=True):
        if eqx.is_inexact_array(leaf):
            name = getattr(path[-1], "name", "") if path else ""
            axis = {"weight": 1, "kernel": leaf.ndim - 2}.get(name) if leaf.ndim > 1 else None
            axes.append(axis if wanted else None)
    return axes
