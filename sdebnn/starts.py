"""What the arrays of a net start as, made on the host: a device would compile a program for every shape of them."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PRNGKeyArray

LEAST = 12  # bits: fewer numbers than 4096 are drawn as so many, by one program
MANY = 20  # bits: from a million on, no more than four times as many are drawn as are wanted


def normals(key: PRNGKeyArray, shape: Sequence[int]) -> Float[np.ndarray | Array, "..."]:
    """The numbers of ``jax.random.normal(key, shape)``: NumPy's, unless JAX is tracing.

    One depends on its place, not on how many there are: these are the first of a power of 16, later of 4, so that nets
    of all sizes share a few programs.
    """
    size = math.prod(shape)
    bits = max(LEAST, (size - 1).bit_length())
    bits += -bits % (4 if bits <= MANY else 2)
    drawn = jax.random.normal(key, (1 << bits,))
    if isinstance(drawn, Tracer):  # even of a key that is known, inside a traced function
        return jax.random.normal(key, shape)
    return np.asarray(drawn)[:size].reshape(shape)


def filled(shape: int | Sequence[int], value: float = 0.0, dtype: Any = None) -> Float[Array, "..."]:
    """``jnp.full(shape, value, dtype)``."""
    return jnp.asarray(np.full(shape, value, jnp.result_type(float) if dtype is None else dtype))


def joined(arrays: Sequence[Array], scales: Sequence[float]) -> Float[Array, " number"]:
    """Arrays divided by their scales, one after the other as a vector."""
    on, dtype = _library(arrays), jnp.result_type(*arrays)  # which NumPy does not know of all pairs
    parts = [(1 / scale * on.ravel(array)).astype(dtype) for array, scale in zip(arrays, scales, strict=True)]
    return jnp.asarray(on.concatenate(parts))


def stacked(arrays: Sequence[Array]) -> Float[Array, "..."]:
    """``jnp.stack(arrays)``."""
    return jnp.asarray(_library(arrays).stack(arrays))


def _library(arrays: Sequence[Array]) -> Any:
    """NumPy; or JAX's of that name, if it is tracing one of the arrays."""
    return jnp if any(isinstance(array, Tracer) for array in arrays) else np
