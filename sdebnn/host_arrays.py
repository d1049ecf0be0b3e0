"""Initial arrays of nets, made on the host, because a device would compile a program for each of their shapes."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

MIN_BITS = 12  # at least 2**12 numbers are drawn, so that all smaller arrays share one program
COARSE_BITS = 20  # up to 2**20 numbers, the count is rounded up to a power of 16; above, to a power of 4


def normals(key: PRNGKeyArray, shape: Sequence[int]) -> Float[np.ndarray | Array, "..."]:
    """The numbers of ``jax.random.normal(key, shape)``, as a NumPy array unless JAX is tracing.

    Each number depends only on its index. So the array is cut from a longer one, whose length is a power of 16 or 4,
    and nets of all sizes share a few programs.
    """
    size = math.prod(shape)
    bits = max(MIN_BITS, (size - 1).bit_length())
    bits += -bits % (4 if bits <= COARSE_BITS else 2)
    drawn = jax.random.normal(key, (1 << bits,))
    if isinstance(drawn, Tracer):  # inside a traced function, even if the key is concrete
        return jax.random.normal(key, shape)
    return np.asarray(drawn)[:size].reshape(shape)


def filled(shape: int | Sequence[int], value: float = 0.0, dtype: DTypeLike | None = None) -> Float[Array, "..."]:
    """``jnp.full(shape, value, dtype)``."""
    return jnp.asarray(np.full(shape, value, jnp.result_type(float) if dtype is None else dtype))


def joined(arrays: Sequence[Array], scales: Sequence[float]) -> Float[Array, " number"]:
    """Arrays divided by their scales and concatenated to one vector."""
    on, dtype = _library(arrays), jnp.result_type(*arrays)  # NumPy does not know the result type of all pairs
    parts = [(1 / scale * on.ravel(array)).astype(dtype) for array, scale in zip(arrays, scales, strict=True)]
    return jnp.asarray(on.concatenate(parts))


def host_stack(arrays: Sequence[Array]) -> Float[Array, "..."]:
    """``jnp.stack(arrays)``."""
    return jnp.asarray(_library(arrays).stack(arrays))


def _library(arrays: Sequence[Array]) -> Any:
    """``jax.numpy`` if JAX is tracing one of the arrays, otherwise NumPy."""
    return jnp if any(isinstance(array, Tracer) for array in arrays) else np
