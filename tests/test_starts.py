"""What nets start as, beside JAX's own functions for it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sdebnn
from sdebnn.data import DataSet, Part
from sdebnn.presets import preset
from sdebnn.starts import filled, joined, normals, stacked


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
        # A number times the inverse of another is theirs to two roundings.
        np.testing.assert_allclose(
            *(np.asarray(a, float) for a in (outcome, expected)), rtol=2 * jnp.finfo(types[-1]).eps
        )


def test_arrays_are_filled_and_stacked_as_jax_would():
    for dtype in (None, "bfloat16"):
        expected = jnp.full((2, 3), -1.5, dtype)
        outcome = filled((2, 3), -1.5, dtype)
        assert outcome.dtype == expected.dtype
        assert not outcome.weak_type
        np.testing.assert_array_equal(outcome, expected)
        for both in (stacked([outcome, outcome]), jax.jit(lambda a: stacked([a, a]))(outcome)):
            assert both.dtype == expected.dtype
            np.testing.assert_array_equal(both, jnp.stack([expected, expected]))


def images(size: int) -> DataSet:
    """A few random images of that size, in colour."""
    part = Part(np.random.default_rng(0).integers(0, 256, (4, size, size, 3), dtype=np.uint8), np.arange(4))
    return DataSet("random", part, part, tuple("abcd"))


@pytest.mark.parametrize("make", [
    lambda key: preset("paper", images(32)).net(key),
    lambda key: preset("ours", images(32), inferred=True).net(key),
    lambda key: sdebnn.SDEBNN.mlp(5, 1, key=key),
    lambda key: sdebnn.baselines.ResNet(3, 10, key=key),
], ids=["paper", "ours", "mlp", "resnet"])  # fmt: skip
def test_a_net_is_made_by_few_programs(make):
    """Each takes a fiftieth of a second to compile, or a tenth; nets of the first two kinds took 85 and 111 of them."""
    key = jax.random.key(0)
    jax.clear_caches()
    programs = []

    def compiled(event: str, seconds: float, *, fun_name: str = "", **_: object) -> None:
        if event.endswith("backend_compile_duration"):
            programs.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(compiled)
    try:
        make(key)
    finally:
        jax.monitoring.unregister_event_duration_listener(compiled)
    assert programs, "JAX no longer says what it compiles"
    programs = [name for name in programs if "stage" not in name]  # it copies from the host, on a processor
    assert len(programs) <= 14, programs


def test_a_net_is_the_same_if_it_is_traced():
    def make(key: jax.Array) -> list[jax.Array]:
        net = sdebnn.SDEBNN.mlp(5, 1, widths=(8,), initial=sdebnn.Point, key=key)
        return [leaf for leaf in jax.tree.leaves(net) if isinstance(leaf, jax.Array)]

    key = jax.random.key(3)
    for made, traced in zip(make(key), jax.jit(make)(key), strict=True):
        assert made.dtype == traced.dtype
        assert made.weak_type == traced.weak_type
        np.testing.assert_allclose(made, traced, rtol=3e-7)
