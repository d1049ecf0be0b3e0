"""Arrays as ``fit`` and ``evaluate`` take them: on the device if they fit into the memory limit, checked in any case.

Inputs may also be memory maps or a ``RowSource``, whose rows are read when they are needed.
"""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from numpy.typing import ArrayLike, DTypeLike

from sdebnn.checks import (
    check_array,
    check_callable,
    check_data,
    check_key,
    check_object,
    shown,
)
from sdebnn.data.dataset import Inputs, RowSource
from sdebnn.likelihoods import AbstractLikelihood


def as_floats(x: Array) -> Float[Array, "..."]:
    """A batch as the model takes it: integers such as bytes are converted to floats, on the device."""
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return x.astype(float)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))  # half precision is used for storage only


def is_lazy(x: object) -> bool:
    """Whether rows are read when they are asked for: true of a memory map, and of everything that is not an array."""
    return isinstance(x, np.memmap) or not isinstance(x, np.ndarray | jax.Array)


def is_resident(x: object) -> bool:
    """Whether the examples are on the device."""
    return isinstance(x, jax.Array)


def as_data(
    model: Callable[..., tuple[Array, Array]],
    likelihood: AbstractLikelihood,
    x: object,
    y: object,
    *,
    key: PRNGKeyArray,
    limit: int = 2**31,
) -> tuple[Inputs, Array]:
    """The inputs and targets as they are used for training, checked against the model and the likelihood.

    Integers such as bytes are converted when a batch is taken. Inputs of more than ``limit`` bytes stay where they are,
    and their rows are checked when they are read. Nothing is compiled.
    """
    check_key(key)
    check_callable("model", model, "SDEBNN.mlp(1, 1, key=key)")
    check_object(model)
    if not isinstance(likelihood, AbstractLikelihood):
        raise ValueError(f"likelihood={shown(likelihood)} is not a likelihood: pass an object such as Gaussian(0.1).")
    inputs, given = _row_source(x), y if isinstance(y, jax.Array | Sequence) else np.asarray(y)
    if not is_resident(inputs) and math.prod(inputs.shape) * np.dtype(inputs.dtype).itemsize > limit:
        check_array("y", given)
        _check_shapes(inputs.shape, np.shape(given))
    else:
        rows = inputs if isinstance(inputs, jax.Array) else np.asarray(inputs[:])
        check_data(rows, given)
        inputs = _on_device("x", rows)
    targets = _on_device("y", given)
    targets = likelihood.cast_targets(targets, jnp.promote_types(_floating(inputs.dtype), jnp.float32))
    _check_targets(model, likelihood, inputs, targets, key)
    return inputs, targets


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


def _floating(dtype: DTypeLike) -> DTypeLike:
    """The floating-point type in which the model receives a batch of this type."""
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    return jnp.promote_types(dtype, jnp.float32) if jnp.issubdtype(dtype, jnp.inexact) else jnp.result_type(float)


def _on_device(name: str, array: ArrayLike) -> Array:
    with np.errstate(over="ignore"):
        converted = jnp.asarray(array)
    if converted is not array and jnp.issubdtype(converted.dtype, jnp.inexact):
        check_array(name, converted)  # a number that is finite in float64 may overflow in float32
    return converted


def _check_targets(
    model: Callable[..., tuple[Array, Array]], likelihood: AbstractLikelihood, x: Inputs, y: Array, key: PRNGKeyArray
) -> None:
    """Refuse targets that do not suit the likelihood and the outputs of the model."""
    row = jax.ShapeDtypeStruct((1, *x.shape[1:]), _floating(x.dtype))
    outputs, _ = jax.eval_shape(lambda x, key: model(as_floats(x), key=key), row, key)
    if len(outputs.shape) != 2:
        raise ValueError(
            f"the model maps an example to outputs of shape {outputs.shape[1:]}, where a vector is needed: add a head "
            "such as Deterministic(eqx.nn.Linear(size, outputs, key=key)), after flattening if there are more axes."
        )
    shape = jax.ShapeDtypeStruct((y.shape[0], *outputs.shape[1:]), outputs.dtype)
    jax.eval_shape(likelihood.log_prob, shape, y)
    likelihood.check_targets(y, outputs.shape[-1])
