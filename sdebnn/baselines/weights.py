"""A model as a function of one vector: its weights, standardised by their fan-in."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from sdebnn.checks import check_object
from sdebnn.fields import Standardised, own_scales
from sdebnn.models import as_model, blocks
from sdebnn.processes import Weights


class Weighted(eqx.Module):
    """All of a model but its weights. Called with a vector of these, it is the model again."""

    rest: Any
    weights: Standardised

    @staticmethod
    def of(model: Any) -> tuple["Weighted", Weights]:
        """A model, or a module of one example, taken apart; and the weights it has now."""
        rest, weights, w = taken_apart(as_model(model))
        return Weighted(rest, weights), w

    def __call__(self, w: Weights) -> Any:
        return eqx.combine(self.weights.unravel(w), self.rest)


def taken_apart(module: Any) -> tuple[Any, Standardised, Weights]:
    """A module without its weights, how these are standardised, and what they are now."""
    check_object(module)
    arrays, rest = eqx.partition(module, eqx.is_inexact_array)
    if not jax.tree.leaves(arrays):
        name = type(getattr(module, "module", module)).__name__
        raise ValueError(f"{name} holds no floating-point array: there are no weights to learn.")
    weights = Standardised(arrays, own_scales(module))
    return rest, weights, weights.ravel(arrays)


def check_deterministic(name: str, model: Any) -> None:
    """Refuse a model with random weights of its own, where only its parameters are to be uncertain."""
    if blocks(model):
        raise ValueError(
            f"{name} takes a model without randomness of its own; this one holds an SDEBlock: use ODEBlock instead."
        )


class Held(eqx.Module):
    """Numbers that belong to a model but are not trained: kept as bits, which no gradient and no optimiser reaches."""

    bits: Int[Array, "..."]

    def __init__(self, value: Float[Array, "..."]):
        self.bits = lax.bitcast_convert_type(value, jnp.int64 if value.dtype == jnp.float64 else jnp.int32)

    @property
    def value(self) -> Float[Array, "..."]:
        """The numbers."""
        return lax.bitcast_convert_type(self.bits, jnp.float64 if self.bits.dtype == jnp.int64 else jnp.float32)
