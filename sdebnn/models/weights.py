"""A model as a function of one vector: its weights, standardised by their fan-in."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

from sdebnn.checks import check_object
from sdebnn.contract import AbstractModel
from sdebnn.fields import Standardised, own_scales
from sdebnn.models.block import blocks
from sdebnn.processes import Weights


class WeightFunction(eqx.Module):
    """A function from a vector of weights to the model that has these weights."""

    rest: PyTree
    weights: Standardised

    @staticmethod
    def of(model: AbstractModel) -> tuple["WeightFunction", Weights]:
        """The function of a model, and the weights that the model has now."""
        rest, weights, w = taken_apart(model)
        return WeightFunction(rest, weights), w

    def __call__(self, w: Weights) -> AbstractModel:
        return eqx.combine(self.weights.unravel(w), self.rest)


def taken_apart(module: PyTree) -> tuple[PyTree, Standardised, Weights]:
    """A module without its weights, how these are standardised, and their present values."""
    check_object(module)
    arrays, rest = eqx.partition(module, eqx.is_inexact_array)
    if not jax.tree.leaves(arrays):
        name = type(getattr(module, "module", module)).__name__
        raise ValueError(f"{name} holds no floating-point array: there are no weights to learn.")
    weights = Standardised(arrays, own_scales(module))
    return rest, weights, weights.ravel(arrays)


def check_deterministic(name: str, model: AbstractModel) -> None:
    """Refuse a model that has random weights of its own."""
    if blocks(model):
        raise ValueError(
            f"{name} takes a model without randomness of its own; this one holds an SDEBlock: use ODEBlock instead."
        )


class Frozen(eqx.Module):
    """Numbers that belong to a model but are not trained. They are stored as bits, which have no gradient."""

    bits: Int[Array, "..."]

    def __init__(self, value: Float[Array, "..."]):
        self.bits = lax.bitcast_convert_type(value, jnp.int64 if value.dtype == jnp.float64 else jnp.int32)

    @property
    def value(self) -> Float[Array, "..."]:
        """The numbers."""
        return lax.bitcast_convert_type(self.bits, jnp.float64 if self.bits.dtype == jnp.int64 else jnp.float32)
