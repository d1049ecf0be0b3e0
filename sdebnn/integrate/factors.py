"""Cholesky factors and triangular solves, with derivatives of their own.

Differentiating through the factorisation itself takes more than twice as long. On a CPU, a batch of matrices is
factorised one after the other: batched calls of LAPACK that run at the same time wait for each other's threads, and
with two threads they wait for ever.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from sdebnn.devices import platform

Square = Float[Array, "n n"]
Columns = Float[Array, "n *columns"]


def _one_by_one(function: Callable[..., Array]) -> Callable[..., Array]:
    """The function, which under ``vmap`` on a CPU is evaluated in a loop."""
    mapped = custom_vmap(function)

    @mapped.def_vmap
    def over_batch(size: int, batched: list[bool], *arguments: Array) -> tuple[Array, bool]:
        if platform() != "cpu":
            return jax.vmap(function, [0 if each else None for each in batched])(*arguments), True
        whole = [
            a if each else jnp.broadcast_to(a, (size, *a.shape)) for a, each in zip(arguments, batched, strict=True)
        ]
        return lax.map(lambda each: mapped(*each), tuple(whole)), True

    return mapped


_cholesky = _one_by_one(jnp.linalg.cholesky)
_forward = _one_by_one(lambda factor, b: solve_triangular(factor, b, lower=True))
_backward = _one_by_one(lambda factor, b: solve_triangular(factor, b, lower=True, trans=1))


@jax.custom_vjp
def cholesky(matrix: Square) -> Square:
    """The lower triangular L with L L' = matrix, which is symmetric and positive definite."""
    return _cholesky(matrix)


def _cholesky_forward(matrix: Square) -> tuple[Square, Square]:
    factor = _cholesky(matrix)
    return factor, factor


def _cholesky_backward(factor: Square, to_factor: Square) -> tuple[Square]:
    inner = jnp.tril(factor.T @ to_factor)
    inner = inner - 0.5 * jnp.diag(jnp.diagonal(inner))
    half = _backward(factor, _backward(factor, inner).T)
    return (0.5 * (half + half.T),)


cholesky.defvjp(_cholesky_forward, _cholesky_backward)


@jax.custom_vjp
def solve_lower(factor: Square, b: Columns) -> Columns:
    """L⁻¹ b."""
    return _forward(factor, b)


def _lower_forward(factor: Square, b: Columns) -> tuple[Columns, tuple[Square, Columns]]:
    x = _forward(factor, b)
    return x, (factor, x)


def _lower_backward(saved: tuple[Square, Columns], to_x: Columns) -> tuple[Square, Columns]:
    factor, x = saved
    to_b = _backward(factor, to_x)
    return -jnp.tril(_outer(to_b, x)), to_b


solve_lower.defvjp(_lower_forward, _lower_backward)


@jax.custom_vjp
def solve_upper(factor: Square, b: Columns) -> Columns:
    """L'⁻¹ b."""
    return _backward(factor, b)


def _upper_forward(factor: Square, b: Columns) -> tuple[Columns, tuple[Square, Columns]]:
    x = _backward(factor, b)
    return x, (factor, x)


def _upper_backward(saved: tuple[Square, Columns], to_x: Columns) -> tuple[Square, Columns]:
    factor, x = saved
    to_b = _forward(factor, to_x)
    return -jnp.tril(_outer(x, to_b)), to_b


solve_upper.defvjp(_upper_forward, _upper_backward)


def _outer(a: Columns, b: Columns) -> Square:
    return jnp.outer(a, b) if a.ndim == 1 else a @ b.T
