"""A tree of arrays, those of one size as the rows of one: an optimiser moves many of them, and compiles few.

A large array is a stack by itself, in its own shape: it would have to be copied.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PyTree

LARGE = 2**21  # numbers

Stacks = dict[str, Any]  # of arrays "array number", of JAX's or of NumPy's; "1 ..." of a large array


class Place(NamedTuple):
    """Of an array in a tree: the stack whose next row it is, or which it is alone; its number as a leaf; its path."""

    stack: str
    alone: bool
    leaf: int
    path: tuple[Any, ...]


def _places(like: PyTree) -> list[Place]:
    """Rows in the order of the arrays' names: the fields of a module may change theirs."""
    leaves = jax.tree_util.tree_flatten_with_path(like)[0]
    places = []
    for i, (path, leaf) in enumerate(leaves):
        alone = leaf.size >= LARGE
        places.append(Place(jax.tree_util.keystr(path) if alone else f"{leaf.dtype.name}[{leaf.size}]", alone, i, path))
    return sorted(places, key=lambda place: jax.tree_util.keystr(place.path))


def stacked(tree: PyTree, like: PyTree) -> Stacks:
    """The arrays of a tree, in the stacks of one that it looks like."""
    leaves, parts = jax.tree.leaves(tree), {}
    for place in _places(like):
        leaf = leaves[place.leaf]
        parts.setdefault(place.stack, []).append(leaf if place.alone else leaf.ravel())
    return {stack: (np if isinstance(rows[0], np.ndarray) else jnp).stack(rows) for stack, rows in parts.items()}


def unstacked(stacks: Stacks, like: PyTree) -> PyTree:
    """The tree that looks like another, out of its stacks."""
    shapes = [leaf.shape for leaf in jax.tree.leaves(like)]
    parts = {stack: iter(rows if isinstance(rows, np.ndarray) else jnp.unstack(rows)) for stack, rows in stacks.items()}
    leaves = {place.leaf: next(parts[place.stack]).reshape(shapes[place.leaf]) for place in _places(like)}
    return jax.tree.unflatten(jax.tree.structure(like), [leaves[i] for i in range(len(leaves))])


def by_row(rule: Callable[[Any], float], like: PyTree) -> dict[str, Float[np.ndarray, "array 1"]]:
    """A number for every array in the stacks, to multiply them with: what a rule says of its path."""
    parts: dict[str, list[float]] = {}
    for place in _places(like):
        parts.setdefault(place.stack, []).append(rule(place.path))
    return {stack: np.array(numbers)[:, None] for stack, numbers in parts.items()}


def by_stacks(make: Callable[[PyTree], optax.GradientTransformation]) -> optax.GradientTransformation:
    """An optimiser of stacks, made for a tree that looks like the parameters: what differs by array does so ``by_row``.

    Many need not know: to Adam it makes no difference which array a number belongs to.
    """

    def init(params: PyTree[Array]) -> Any:
        return make(params).init(stacked(params, params))

    def update(updates: PyTree[Array], state: Any, params: PyTree[Array] | None = None) -> tuple[Any, Any]:
        now = None if params is None else stacked(params, updates)
        new: Any
        new, state = make(updates).update(stacked(updates, updates), state, now)
        return unstacked(new, updates), state

    return optax.GradientTransformation(init, update)
