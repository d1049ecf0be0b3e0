"""A tree of arrays, the small ones of one shape as one array: an optimiser moves many of them, and compiles few."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

SMALL = 2**14  # numbers: more of them are not worth copying

Stacks = dict[str, Float[Array, "array ..."]]


def _places(like: PyTree) -> list[tuple[str, int]]:
    """The stack that each array of a tree belongs to, and which array it is, by name: fields may change their order."""
    leaves = jax.tree_util.tree_flatten_with_path(like)[0]
    named = [(jax.tree_util.keystr(path), i, leaf) for i, (path, leaf) in enumerate(leaves)]
    return [
        (f"{leaf.dtype.name}{leaf.shape}" if leaf.size <= SMALL else name, i)
        for name, i, leaf in sorted(named, key=lambda each: each[:2])
    ]


def stacked(tree: PyTree[Array], like: PyTree) -> Stacks:
    """The arrays of a tree, in the stacks of one that it looks like."""
    leaves, parts = jax.tree.leaves(tree), {}
    for stack, i in _places(like):
        parts.setdefault(stack, []).append(leaves[i])
    return {stack: jnp.stack(arrays) for stack, arrays in parts.items()}


def unstacked(stacks: Stacks, like: PyTree) -> PyTree[Array]:
    """The tree that looks like another, out of its stacks."""
    parts = {stack: iter(jnp.unstack(arrays)) for stack, arrays in stacks.items()}
    leaves: dict[int, Array] = {i: next(parts[stack]) for stack, i in _places(like)}
    return jax.tree.unflatten(jax.tree.structure(like), [leaves[i] for i in range(len(leaves))])


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
