"""Arrays of equal size stored as the rows of one array, so that an optimiser runs few operations instead of many.

A model has many small arrays of few different sizes. Adam, norms, finite checks and copies treat every number alike, so
they can work on stacks: one operation for each size instead of one for each array, and far fewer kernels to compile.
Everywhere else parameters are ordinary trees; only ``by_stacks`` and the compiled loop (``loop.py``) use stacks.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

MIN_SIZE_STORED_ALONE = 2**21  # numbers; stacking an array this large would cost a copy and save little


class Stacks(eqx.Module):
    """The arrays of a tree in stacks of shape "array number", or "1 ..." for an array that is stored alone."""

    rows: dict[str, Any]


class Slot(NamedTuple):
    """Where an array of a tree is stored: the name of its stack, and whether it is stored alone; and its path."""

    stack: str
    alone: bool
    path: tuple[Any, ...]


def _slots(like: PyTree) -> list[Slot]:
    """The slots of a tree's arrays, in the order of its leaves; arrays of one stack follow each other as rows."""
    slots = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(like)[0]:
        alone = leaf.size >= MIN_SIZE_STORED_ALONE
        name = jax.tree_util.keystr(path) if alone else f"{leaf.dtype.name}[{leaf.size}]"
        slots.append(Slot(name, alone, path))
    return slots


def stacked(tree: PyTree, like: PyTree) -> PyTree:
    """``tree`` with every part that looks like ``like`` replaced by its ``Stacks``.

    A part looks like ``like`` if it has the same structure and arrays of the same shapes: the parameters themselves,
    their average, their gradient, Adam's moments.
    """

    def part(node: PyTree) -> PyTree:
        return _stacks_of(node, like) if looks_like(node) else node

    structure, shapes = jax.tree.structure(like), [leaf.shape for leaf in jax.tree.leaves(like)]

    def looks_like(node: PyTree) -> bool:
        if jax.tree.structure(node) != structure:
            return False
        leaves = jax.tree.leaves(node)
        same = [np.shape(leaf) for leaf in leaves] == shapes
        return same and all(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves)  # a counter is no parameter

    return jax.tree.map(part, tree, is_leaf=looks_like)


def unstacked(tree: PyTree, like: PyTree) -> PyTree:
    """The inverse of ``stacked``: every ``Stacks`` in ``tree`` replaced by a tree that looks like ``like``."""

    def part(node: PyTree) -> PyTree:
        return _tree_of(node, like) if isinstance(node, Stacks) else node

    return jax.tree.map(part, tree, is_leaf=lambda node: isinstance(node, Stacks))


def _stacks_of(tree: PyTree, like: PyTree) -> Stacks:
    parts: dict[str, list[Any]] = {}
    for slot, leaf in zip(_slots(like), jax.tree.leaves(tree), strict=True):
        parts.setdefault(slot.stack, []).append(leaf if slot.alone else leaf.ravel())
    numpy_or_jax = {name: np if isinstance(rows[0], np.ndarray) else jnp for name, rows in parts.items()}
    return Stacks({name: numpy_or_jax[name].stack(rows) for name, rows in parts.items()})


def _tree_of(stacks: Stacks, like: PyTree) -> PyTree:
    rows = {name: iter(s if isinstance(s, np.ndarray) else jnp.unstack(s)) for name, s in stacks.rows.items()}
    leaves, structure = jax.tree.flatten(like)
    arrays = [next(rows[slot.stack]).reshape(leaf.shape) for slot, leaf in zip(_slots(like), leaves, strict=True)]
    return jax.tree.unflatten(structure, arrays)


def by_row(rule: Callable[[tuple[Any, ...]], float], like: PyTree) -> Stacks:
    """One number for each array, as stacks of shape "array 1" that broadcast: the rule's value for the array's path."""
    parts: dict[str, list[float]] = {}
    for slot in _slots(like):
        parts.setdefault(slot.stack, []).append(rule(slot.path))
    return Stacks({name: np.array(numbers)[:, None] for name, numbers in parts.items()})


def by_stacks(make: Callable[[PyTree], optax.GradientTransformation]) -> optax.GradientTransformation:
    """An optimiser that works on stacks inside; its state, like its updates, is made of ordinary trees.

    ``make(like)`` returns the optimiser of the stacks of a tree that looks like ``like``. Many optimisers ignore the
    argument, since they treat every number alike, as Adam does. Use ``by_row`` for factors that differ by array.
    """

    def init(params: PyTree[Array]) -> PyTree:
        return unstacked(make(params).init(stacked(params, params)), params)

    def update(updates: PyTree[Array], state: PyTree, params: PyTree[Array] | None = None) -> tuple[PyTree, PyTree]:
        gradient, state, params = stacked((updates, state, params), updates)
        new: PyTree
        new, state = make(updates).update(gradient, state, params)
        return unstacked((new, state), updates)

    return optax.GradientTransformation(init, update)
