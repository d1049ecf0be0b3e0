"""The structure of a model as JSON. In place of the values of its arrays, it has their types and shapes.

parts     as ``encoding`` describes
arrays    for each array, by its place in the model: its type and its sizes

What is made from an outline has a ``jax.ShapeDtypeStruct`` in the place of each array, so that no memory is allocated
for them. The values come from elsewhere, such as a checkpoint, whose arrays must have these types and shapes.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sdebnn.artifacts.decoding import Decoder
from sdebnn.artifacts.encoding import DTYPES, MAX_PARTS, Parts, encoded, first_line, is_too_large
from sdebnn.artifacts.names import Names
from sdebnn.checks import shown

MAX_AXES, MAX_NUMBERS = 16, 2**40  # of one array
PARAMETERS = {str(dtype): jnp.dtype(dtype) for dtype in DTYPES if jnp.issubdtype(dtype, jnp.inexact)}


def outline(thing: Any) -> dict[str, Any]:
    """The structure of a model, or of a dict with models, as JSON. Its arrays must be of real or complex numbers."""
    parts = Parts({}, {})
    words = encoded(thing, "outline", parts)
    arrays = {where: [str(array.dtype), list(array.shape)] for where, array in parts.arrays.items()}
    wrong = next((where for where, (dtype, _) in arrays.items() if dtype not in PARAMETERS), None)
    if wrong is not None:
        raise ValueError(f"{wrong} holds {arrays[wrong][0]}, which is no parameter: make it a static field.")
    return {"parts": words, "arrays": arrays}


def from_outline(words: dict[str, Any]) -> Any:
    """What ``outline`` described, without the values of its arrays; a ValueError in one line if that is nothing."""
    if set(words) != {"parts", "arrays"} or not isinstance(words["arrays"], dict):
        raise ValueError("is no outline of a model")
    if is_too_large(words):
        raise ValueError(f"has more than {MAX_PARTS} parts")
    names = Names(())
    shapes = {where: _shape(where, described) for where, described in words["arrays"].items()}

    def made(arrays: dict[str, Any]) -> Any:
        decoder = _OutlineDecoder(arrays, names, {})
        found = decoder.part(words["parts"], "outline")
        if decoder.arrays:
            raise ValueError(f"has an array {shown(min(decoder.arrays))} that belongs to no part")
        return found

    try:
        return eqx.filter_eval_shape(made, shapes)
    except ValueError as error:
        raise ValueError(first_line(error)) from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None


class _OutlineDecoder(Decoder):
    """A decoder whose arrays are being traced, and have no values."""

    def _array(self, kind: str, where: str) -> Any:
        if kind not in ("jax", "jax, weak"):
            raise ValueError(f"has an array of the kind {shown(kind)} in {where}")
        return self._stored(where)

    def _key(self, implementation: str, where: str) -> Any:
        raise ValueError(f"has a random key in {where}")


def _shape(where: str, described: Any) -> jax.ShapeDtypeStruct:
    """The type and the shape of an array."""
    match described:
        case [str(dtype), list(sizes)] if dtype in PARAMETERS and len(sizes) <= MAX_AXES and _are_sizes(sizes):
            return jax.ShapeDtypeStruct(tuple(sizes), PARAMETERS[dtype])
        case _:
            raise ValueError(f"has {where}={shown(described)}, which is no type and shape")


def _are_sizes(sizes: list[Any]) -> bool:
    whole = all(type(size) is int and 0 <= size <= np.iinfo(np.int32).max for size in sizes)
    return whole and math.prod(sizes) <= MAX_NUMBERS
