"""Cholesky factors and triangular solves, with derivatives of their own.

Differentiating through the factorisation itself takes more than twice as long. On a CPU, a batch of matrices is
factorised one after the other: batched calls of LAPACK that run at the same time wait for each other's threads, and
with two threads they wait for ever.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

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
_solvers = {
    transposed: _one_by_one(partial(solve_triangular, lower=True, trans=int(transposed)))
    for transposed in (False, True)
}


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
    half = _solvers[True](factor, _solvers[True](factor, inner).T)
    return (0.5 * (half + half.T),)


cholesky.defvjp(_cholesky_forward, _cholesky_backward)


def solve(factor: Square, b: Columns, transposed: bool = False) -> Columns:
    """L⁻¹ b, or L'⁻¹ b if ``transposed``."""
    return _solve(factor, b, transposed)


def _solve_forward(factor: Square, b: Columns, transposed: bool) -> tuple[Columns, tuple[Square, Columns]]:
    x = _solvers[transposed](factor, b)
    return x, (factor, x)


def _solve_backward(transposed: bool, saved: tuple[Square, Columns], to_x: Columns) -> tuple[Square, Columns]:
    factor, x = saved
    to_b = _solvers[not transposed](factor, to_x)
    left, right = (x, to_b) if transposed else (to_b, x)
    return -jnp.tril(jnp.outer(left, right) if x.ndim == 1 else left @ right.T), to_b


_solve: Any = jax.custom_vjp(lambda factor, b, transposed: _solvers[transposed](factor, b), nondiff_argnums=(2,))
_solve.defvjp(_solve_forward, _solve_backward)
