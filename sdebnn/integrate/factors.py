"""Triangular factors of positive definite matrices, and solves by them, with derivatives of their own.

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
_triangle = _one_by_one(partial(jnp.linalg.qr, mode="r"))
SHIFT = 10.0  # of the first of three factorisations on a GPU, in units of rounding errors
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


@jax.custom_vjp
def gram_factor(a: Float[Array, "m n"]) -> Square:
    """The lower triangular L with L L' = I + a' a, by a QR decomposition of a above I.

    It is as precise as if a' a had been computed with twice the digits.
    """
    if platform() != "cpu":
        return gram_factor_by_products(a)
    upper = _triangle(jnp.concatenate([a, jnp.eye(a.shape[1], dtype=a.dtype)]))
    return (jnp.sign(jnp.diagonal(upper))[:, None] * upper).T


def gram_factor_by_products(a: Float[Array, "m n"]) -> Square:
    """The same by shifted CholeskyQR3 (Fukaya et al. 2020): a GPU multiplies faster than it reflects.

    The first factor is that of a slightly larger matrix. Each further one corrects what is left of q' q besides I.
    """
    factor = eye = jnp.eye(a.shape[1], dtype=a.dtype)
    q = jnp.concatenate([a, eye])
    for shift in (SHIFT * jnp.finfo(a.dtype).eps, 0.0, 0.0):
        gram = q.T @ q
        step = _cholesky(gram + shift * jnp.trace(gram) * eye)
        q, factor = _solvers[False](step, q.T).T, factor @ step
    return factor


def _gram_forward(a: Float[Array, "m n"]) -> tuple[Square, tuple[Float[Array, "m n"], Square]]:
    factor = gram_factor(a)
    return factor, (a, factor)


def _gram_backward(saved: tuple[Float[Array, "m n"], Square], to_factor: Square) -> tuple[Float[Array, "m n"]]:
    a, factor = saved
    (to_gram,) = _cholesky_backward(factor, to_factor)
    return (2 * a @ to_gram,)


gram_factor.defvjp(_gram_forward, _gram_backward)


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
