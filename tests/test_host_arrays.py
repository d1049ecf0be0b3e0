"""What nets start as, beside JAX's own functions for it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdebnn.host_arrays import filled, host_stack, joined, normals
from sdebnn.processes import DriftNet


@pytest.mark.parametrize("shape", [(), (1,), (4,), (5, 13), (3, 3, 2, 4), (4, 256), (17, 241), (0, 3)])
def test_normals_are_what_jax_draws(shape):
    key = jax.random.key(5)
    expected = jax.random.normal(key, shape)
    inside = jax.jit(lambda: jnp.asarray(normals(key, shape)))  # of a key that is known outside
    for drawn in (normals(key, shape), jax.jit(lambda key: normals(key, shape))(key), inside()):
        assert drawn.dtype == expected.dtype
        np.testing.assert_array_equal(drawn, expected)


@pytest.mark.parametrize("types", [("float32",), ("bfloat16",), ("float32", "bfloat16"), ("float16", "bfloat16")])
def test_arrays_are_joined_as_jax_would(types):
    arrays = [jnp.arange(1, 7, dtype=dtype).reshape(2, 3) for dtype in types]
    scales = [0.25, 3.0][: len(arrays)]
    expected = jnp.concatenate([array.ravel() / scale for array, scale in zip(arrays, scales, strict=True)])
    for outcome in (joined(arrays, scales), jax.jit(lambda arrays: joined(arrays, scales))(arrays)):
        assert isinstance(outcome, jax.Array)
        assert outcome.dtype == expected.dtype
        two_roundings = 2 * jnp.finfo(types[-1]).eps  # times the inverse of a scale, where JAX divides
        np.testing.assert_allclose(np.asarray(outcome, float), np.asarray(expected, float), rtol=two_roundings)


def test_arrays_are_filled_and_stacked_as_jax_would():
    for dtype in (None, "bfloat16"):
        expected = jnp.full((2, 3), -1.5, dtype)
        outcome = filled((2, 3), -1.5, dtype)
        assert outcome.dtype == expected.dtype
        assert not outcome.weak_type
        np.testing.assert_array_equal(outcome, expected)
        for both in (host_stack([outcome, outcome]), jax.jit(lambda a: host_stack([a, a]))(outcome)):
            assert both.dtype == expected.dtype
            np.testing.assert_array_equal(both, jnp.stack([expected, expected]))


def test_a_drift_starts_as_normals_over_the_root_of_its_inputs_and_a_last_layer_of_zeros():
    key = jax.random.key(3)
    keys = [jax.random.split(each) for each in jax.random.split(key, 2)]
    first = jax.random.normal(keys[0][0], (4, 30)) / np.sqrt(30)
    for net in (DriftNet(30, (4,), key=key), eqx.filter_jit(lambda key: DriftNet(30, (4,), key=key))(key)):
        np.testing.assert_allclose(net.layers[0].weight, first, rtol=3e-7)  # two roundings
        np.testing.assert_array_equal(net.layers[0].gate, jax.random.normal(keys[0][1], (4,)))
        np.testing.assert_array_equal(net.layers[1].weight, np.zeros((30, 4)))
        np.testing.assert_array_equal(net.layers[1].gate, jax.random.normal(keys[1][1], (30,)))
