"""Muon: the kernels that it finds, and what it makes of their momentum."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdebnn import our_net
from sdebnn.models import blocks
from sdebnn.train import grouped_muon
from sdebnn.train.muon import COEFFICIENTS, ROUNDS, kernels, orthogonal

KEY = jax.random.key(0)


@pytest.mark.parametrize("shape", [(36, 4), (4, 36), (72, 8)])
def test_singular_vectors_stay_and_singular_values_become_about_one(shape):
    matrices = np.random.default_rng(0).normal(size=(3, *shape))
    found = np.asarray(orthogonal(jnp.asarray(matrices)), np.float64)
    for matrix, ours in zip(matrices, found, strict=True):
        left, values, right = np.linalg.svd(matrix / np.linalg.norm(matrix), full_matrices=False)
        for _ in range(ROUNDS):
            values = COEFFICIENTS[0] * values + COEFFICIENTS[1] * values**3 + COEFFICIENTS[2] * values**5
        assert np.all((values > 0.6) & (values < 1.3))
        np.testing.assert_allclose(ours, left @ np.diag(values) @ right, atol=2e-4)


def test_a_matrix_of_zeros_stays_zero():
    np.testing.assert_array_equal(orthogonal(jnp.zeros((1, 6, 3))), 0)


@pytest.mark.parametrize("inferred", [(), (1,), (0, 1)])
def test_every_kernel_is_found_whatever_the_law_of_its_start(inferred):
    net = our_net((8, 8, 1), 3, channels=(4, 8), infer_w0_of=inferred, compute="float32", key=KEY)
    leaves = jax.tree.leaves(eqx.filter(net, eqx.is_inexact_array))
    found = list(kernels(eqx.filter(net, eqx.is_inexact_array)))
    # The stem, the strided convolution, and two in each of four blocks.
    shapes = [(72, 4), *[(36, 4)] * 4, (36, 8), *[(72, 8)] * 4]
    assert sorted((each.rows, each.columns) for each in found) == sorted(shapes)
    for each in found:
        assert each.start + each.size <= leaves[each.leaf].size
    first = blocks(net)[0]
    values = np.concatenate([
        np.ravel(leaves[each.leaf])[each.start : each.start + each.size]
        for each in found if (each.rows, each.columns) == (36, 4)
    ])  # fmt: skip
    kernel = np.ravel(first.unravel(first.initial.sample(key=KEY)).layers[0].kernel) / first.weights.scales[0]
    if 0 not in inferred:  # a law that is inferred draws other values than its means
        np.testing.assert_allclose(values[:144], kernel, rtol=1e-5)


def test_kernels_move_along_their_orthogonal_momentum_and_other_arrays_as_adam_moves_them():
    net = our_net((8, 8, 1), 3, channels=(4,), blocks=1, drift=(1, 4, 1), compute="float32", key=KEY)
    parameters = eqx.filter(net, eqx.is_inexact_array)
    gradient = jax.tree.map(lambda leaf: jax.random.normal(KEY, leaf.shape), parameters)
    moves = []
    for optimizer in (grouped_muon(1.0, 1, orthogonal=True), grouped_muon(1.0, 1, orthogonal=False)):
        state = optimizer.init(parameters)
        for _ in range(2):  # the first step of the warm-up has the rate 0
            updates, state = optimizer.update(gradient, state, parameters)
        moves.append(jax.tree.leaves(updates))
    with_muon, with_adam = moves
    in_kernels = {each.leaf: [] for each in kernels(parameters)}
    for each in kernels(parameters):
        in_kernels[each.leaf].append(each)
    for number, (ours, adam, leaf, slope) in enumerate(
        zip(with_muon, with_adam, *map(jax.tree.leaves, (parameters, gradient)), strict=True)
    ):
        outside = np.ones(leaf.size, bool)
        for each in in_kernels.get(number, []):
            part = slice(each.start, each.start + each.size)
            outside[part] = False
            left, _, right = np.linalg.svd(np.ravel(slope)[part].reshape(each.rows, each.columns), full_matrices=False)
            direction = (left @ right).ravel()
            step = -np.ravel(ours)[part] - 0.05 * np.ravel(leaf)[part]  # without the decay of the weights
            assert step @ direction / np.linalg.norm(step) / np.linalg.norm(direction) > 0.95
        # The bound on the root mean square is that of a whole array, of kernels and biases.
        np.testing.assert_allclose(np.ravel(ours)[outside], np.ravel(adam)[outside], rtol=0.25, atol=1e-6)
