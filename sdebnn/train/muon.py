"""Muon: momentum of the kernels of convolutions, made orthogonal.

The 3×3 kernel of a convolution is a matrix of 9 · inputs by outputs. Random kernels are parts of the vector w_0 of a
block, where they are found by the shapes that the block knows.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from sdebnn.models import Ensemble, SDEBlock

# Of the polynomial a x + b x³ + c x⁵, which takes singular values between 0.001 and 1 to about 1 in five rounds.
ROUNDS, COEFFICIENTS = 5, (3.4445, -4.7750, 2.0315)
MOMENTUM = 0.9


class Kernel(NamedTuple):
    """Where a kernel is found: the number of the leaf, and the place of the first of its numbers; and its matrix."""

    leaf: int
    start: int
    rows: int
    columns: int

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return self.rows * self.columns


def orthogonalised(adam: optax.GradientTransformation) -> optax.GradientTransformation:
    """Adam, with the updates of kernels replaced by their momentum made orthogonal, of root mean square 1."""

    def update(updates: PyTree[Array], state: Any, params: PyTree[Array] | None = None) -> tuple[PyTree, Any]:
        by_adam, state = adam.update(updates, state, params)
        found = list(kernels(updates))
        leaves, structure = jax.tree.flatten(by_adam)
        gradients, momenta = jax.tree.leaves(updates), jax.tree.leaves(state.mu)
        # Kernels of one shape are processed together.
        for shape in dict.fromkeys((each.rows, each.columns) for each in found):
            group = [each for each in found if (each.rows, each.columns) == shape]
            stack = jnp.stack([
                _part(MOMENTUM * momenta[each.leaf] + (1 - MOMENTUM) * gradients[each.leaf], each) for each in group
            ])  # fmt: skip
            for each, matrix in zip(group, math.sqrt(max(shape)) * orthogonal(stack), strict=True):
                leaf = leaves[each.leaf]
                flat = leaf.ravel().at[each.start : each.start + each.size].set(matrix.ravel().astype(leaf.dtype))
                leaves[each.leaf] = flat.reshape(leaf.shape)
        return jax.tree.unflatten(structure, leaves), state

    return optax.GradientTransformation(adam.init, update)


def orthogonal(matrices: Float[Array, "matrix row column"]) -> Float[Array, "matrix row column"]:
    """Matrices with the same singular vectors, whose singular values are about 1 (0.7 to 1.2)."""
    wide = matrices.shape[-1] > matrices.shape[-2]
    x = jnp.swapaxes(matrices, -1, -2) if wide else matrices
    x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + 1e-12)
    a, b, c = COEFFICIENTS
    for _ in range(ROUNDS):
        gram = jnp.swapaxes(x, -1, -2) @ x
        x = a * x + x @ (b * gram + c * gram @ gram)
    return jnp.swapaxes(x, -1, -2) if wide else x


def kernels(like: PyTree) -> Iterator[Kernel]:
    """The kernels of convolutions in a tree of parameters, whether arrays of their own or parts of a block's w_0."""
    number = 0
    for node in jax.tree.leaves(like, is_leaf=lambda node: _is_block(node) or isinstance(node, Ensemble)):
        if isinstance(node, Ensemble):
            raise ValueError(
                "grouped_muon does not move the members of an Ensemble: pass fit a list of models instead."
            )
        if not _is_block(node):
            if node.ndim == 4:
                yield Kernel(number, 0, math.prod(node.shape[:3]), node.shape[3])
            number += 1
            continue
        places = {}  # of the numbers of w_0: in which leaf, and where
        passed = 0
        for path, leaf in jax.tree_util.tree_flatten_with_path(node)[0]:
            names = [getattr(part, "name", "") for part in path]
            if names[0] == "initial" and names[-1] in ("value", "mean"):
                places[passed] = number, passed + leaf.size
                passed += leaf.size
            number += 1
        begin = 0
        for shape in node.weights.shapes:
            size = math.prod(shape)
            for start, (leaf_number, end) in places.items():
                if len(shape) == 4 and start <= begin and begin + size <= end:
                    yield Kernel(leaf_number, begin - start, math.prod(shape[:3]), shape[3])
            begin += size


def _is_block(node: PyTree) -> bool:
    return isinstance(node, SDEBlock)


def _part(leaf: Array, kernel: Kernel) -> Float[Array, "row column"]:
    part = leaf.ravel()[kernel.start : kernel.start + kernel.size]
    return part.reshape(kernel.rows, kernel.columns)
