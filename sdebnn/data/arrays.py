"""Arrays as ``fit`` and ``evaluate`` take them: on the device if they fit into the memory limit, checked in any case.

Inputs may also be memory maps or a ``RowSource``, whose rows are read when they are needed.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike, DTypeLike

from sdebnn.checks import check_array, check_data
from sdebnn.data.rows import Inputs, RowSource


def batch_dtype(dtype: DTypeLike) -> np.dtype:
    """The floating-point type in which a model receives a batch of this type; half precision is used for storage."""
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    return jnp.promote_types(dtype, jnp.float32) if jnp.issubdtype(dtype, jnp.inexact) else jnp.result_type(float)


def as_floats(x: Array) -> Float[Array, "..."]:
    """A batch as the model takes it: integers such as bytes are converted to floats, on the device."""
    return x.astype(batch_dtype(x.dtype))


def is_lazy(x: object) -> bool:
    """Whether rows are read when they are asked for: true of a memory map, and of everything that is not an array."""
    return isinstance(x, np.memmap) or not isinstance(x, np.ndarray | jax.Array)


def is_resident(x: object) -> bool:
    """Whether the examples are on the device."""
    return isinstance(x, jax.Array)


def as_arrays(x: object, y: object, *, limit: int = 2**31) -> tuple[Inputs, Array]:
    """Inputs and targets as arrays on the device, checked: finite, and as many inputs as targets.

    Integers such as bytes are converted when a batch is taken. Inputs of more than ``limit`` bytes stay where they are,
    and their rows are checked when they are read.
    """
    inputs, given = _row_source(x), y if isinstance(y, jax.Array | Sequence) else np.asarray(y)
    if not is_resident(inputs) and math.prod(inputs.shape) * np.dtype(inputs.dtype).itemsize > limit:
        check_array("y", given)
        _check_shapes(inputs.shape, np.shape(given))
    else:
        rows = inputs if isinstance(inputs, jax.Array) else np.asarray(inputs[:])
        check_data(rows, given)
        inputs = _on_device("x", rows)
    return inputs, _on_device("y", given)


def _row_source(x: object) -> Inputs:
    """x itself, if it has a shape, a type and rows; otherwise as an array, if it can be converted."""
    if isinstance(x, np.ndarray | jax.Array | RowSource):
        return x
    check_array("x", x, least_ndim=2)
    return np.asarray(x)


def _check_shapes(x: tuple[int, ...], y: tuple[int, ...]) -> None:
    if len(x) < 2 or 0 in x or x[0] != y[0]:
        raise ValueError(
            f"x has shape {x} and y has shape {y}: pass the same number of examples, and an x of at least 2 axes."
        )


def _on_device(name: str, array: ArrayLike) -> Array:
    with np.errstate(over="ignore"):
        converted = jnp.asarray(array)
    if converted is not array and jnp.issubdtype(converted.dtype, jnp.inexact):
        check_array(name, converted)  # a number that is finite in float64 may overflow in float32
    return converted
