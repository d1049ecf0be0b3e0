"""A tree of arrays, the small ones of one shape as one array: an optimiser moves many of them, and compiles few."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

SMALL = 2**14  # numbers: more of them are not worth copying

Stacks = dict[str, Float[Array, "array ..."]]


def _names(like: PyTree[Array]) -> list[str]:
    """The stack that each array belongs to, by type and shape; a large one is a stack by itself."""
    leaves = enumerate(jax.tree.leaves(like))
    return [f"{leaf.dtype.name}{leaf.shape}" if leaf.size <= SMALL else f"array {i}" for i, leaf in leaves]


def stacked(tree: PyTree[Array], like: PyTree[Array]) -> Stacks:
    """The arrays of a tree, in the stacks of one that it looks like."""
    parts: dict[str, list[Array]] = {}
    for name, leaf in zip(_names(like), jax.tree.leaves(tree), strict=True):
        parts.setdefault(name, []).append(leaf)
    return {name: jnp.stack(leaves) for name, leaves in parts.items()}


def unstacked(stacks: Stacks, like: PyTree[Array]) -> PyTree[Array]:
    """The tree that looks like another, out of its stacks."""
    parts: dict[str, Iterator[Array]] = {name: iter(jnp.unstack(stack)) for name, stack in stacks.items()}
    return jax.tree.unflatten(jax.tree.structure(like), [next(parts[name]) for name in _names(like)])


def by_stacks(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """An optimiser to which it makes no difference which array a number belongs to, such as Adam, on stacks."""

    def init(params: PyTree[Array]) -> Any:
        return optimizer.init(stacked(params, params))

    def update(updates: PyTree[Array], state: Any, params: PyTree[Array] | None = None) -> tuple[Any, Any]:
        now = None if params is None else stacked(params, updates)
        new: Any
        new, state = optimizer.update(stacked(updates, updates), state, now)
        return unstacked(new, updates), state

    return optax.GradientTransformation(init, update)
