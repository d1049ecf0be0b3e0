"""Arrays of equal shape, stacked for the optimiser, give the same training as separate ones."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from line_fits import KEY
from small_models import Sums, linear_data

from sdebnn import (
    Batches,
    Deterministic,
    Gaussian,
    Optimizer,
    fit,
)
from sdebnn.train import loop, stacks
from sdebnn.train.stacks import Stacks, by_row, by_stacks, stacked, unstacked


def several():
    """Arrays of equal shape, of equal size only, of another dtype, of another size, and a None."""
    keys = iter(jax.random.split(KEY, 6))
    small = [jax.random.normal(next(keys), (3, 2)) for _ in range(3)]
    return {
        "a": small[0],
        "b": (small[1], None, small[2].astype(jnp.bfloat16)),
        "c": jnp.ones(7),
        "d": 2.0 * small[2].reshape(6),
    }


def test_unstacking_is_the_inverse_of_stacking():
    tree = several()
    found = stacked(tree, tree)
    assert sorted(stack.shape for stack in found.rows.values()) == [(1, 6), (1, 7), (3, 6)]
    assert_same_trees(unstacked(found, tree), tree)


def assert_same_trees(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_only_the_parts_of_a_tree_that_look_like_the_parameters_are_stacked():
    tree = several()
    state = optax.adam(1e-2).init(tree)
    found = stacked(state, tree)
    assert isinstance(found[0].mu, Stacks)
    assert isinstance(found[0].nu, Stacks)
    assert found[0].count is state[0].count
    assert_same_trees(unstacked(found, tree), state)
    one = jnp.zeros(())
    assert isinstance(stacked(one, one), Stacks)
    assert not isinstance(stacked(jnp.zeros((), int), one), Stacks)  # a counter is not a parameter


OPTIMIZERS = (optax.adamw(1e-2), optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2)))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimiser_on_stacks_takes_the_same_steps_with_a_state_of_the_same_structure(optimizer):
    tree, ends = several(), []
    for each in (optimizer, by_stacks(lambda _: optimizer)):
        now, state = tree, each.init(tree)
        for step in range(3):
            gradient = jax.tree.map(lambda leaf, step=step: jnp.cos(leaf + step).astype(leaf.dtype), now)
            updates, state = each.update(gradient, state, now)
            now = optax.apply_updates(now, updates)
        ends.append((now, state))
    assert jax.tree.structure(ends[0]) == jax.tree.structure(ends[1])
    for ours, theirs in zip(*map(jax.tree.leaves, ends), strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(np.float32(ours), np.float32(theirs), rtol=1e-5)


def test_training_without_stacks_reaches_the_same_parameters(monkeypatch):
    x, y = linear_data(20)
    how = {"key": KEY, "epochs": 5, "batches": Batches(7), "progress": False}

    def trained(max_skipped):  # which makes no difference here, except that the program is compiled again
        optimizer = Optimizer(ema=0.9, clip=1.0, max_skipped=max_skipped)
        model = Deterministic(eqx.nn.MLP(2, 1, 3, 2, key=KEY))
        fitted = fit(model, Gaussian(0.5), x, y, optimizer=optimizer, **how)
        return jax.tree.leaves(eqx.filter(fitted.model, eqx.is_inexact_array))

    with_stacks = trained(10)
    for name in ("stacked", "unstacked"):
        monkeypatch.setattr(loop, name, lambda tree, like: tree)
    for ours, plain in zip(with_stacks, trained(11), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-7)


def test_an_update_may_be_one_number_for_an_array():
    def mean(updates, state, params=None):
        return jax.tree.map(lambda leaf: -1e-4 * jnp.mean(leaf), updates), state

    optimizer = optax.GradientTransformation(lambda _: optax.EmptyState(), mean)
    x = jnp.linspace(-1, 1, 8)[:, None]
    how = {"key": KEY, "epochs": 1, "progress": False, "optimizer": Optimizer(rule=optimizer)}
    model = fit(Deterministic(Sums(jnp.zeros((3, 2)), jnp.zeros((3, 2)))), Gaussian(1.0), x, x, **how).model.module
    assert float(jnp.ptp(model.a)) == float(jnp.ptp(model.b)) == 0.0
    np.testing.assert_allclose(model.b, 3 * model.a, rtol=1e-5)


@pytest.mark.parametrize("convert", [lambda tree: tree, jax.device_get], ids=["jax", "numpy"])
def test_a_large_array_is_stored_alone_in_its_own_shape(monkeypatch, convert):
    monkeypatch.setattr(stacks, "MIN_SIZE_STORED_ALONE", 6)
    tree = {"a": jnp.ones((3, 2)), "b": jnp.zeros((3, 2)), "c": jnp.ones(5), "d": jnp.zeros(5)}
    found = convert(stacked(tree, tree))
    assert sorted(stack.shape for stack in found.rows.values()) == [(1, 3, 2), (1, 3, 2), (2, 5)]
    assert_same_trees(unstacked(found, tree), tree)


def test_by_row_gives_each_array_the_number_of_its_path():
    tree = {"b": jnp.zeros((2, 1)), "a": jnp.zeros(2), "c": jnp.zeros(3)}
    rows = by_row(lambda path: {"a": 1.0, "b": 2.0, "c": 3.0}[path[0].key], tree)
    of_rows = jax.tree.map(lambda stack, numbers: stack + numbers, stacked(tree, tree), rows)
    again = unstacked(of_rows, tree)
    assert {name: float(jnp.mean(again[name])) for name in again} == {"a": 1.0, "b": 2.0, "c": 3.0}
