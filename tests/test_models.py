import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import Push

from sdebnn import OU, SDEBNN, Adaptive, Deterministic, FixedGrid, Normal, bayesianize, prior_of
from sdebnn.baselines import HyperODEBlock, PartlyRandom
from sdebnn.nn import ODEBlock, TimeMLP, draw_keys

pytestmark = pytest.mark.usefixtures("_compiled_in_haste")
KEY = jax.random.key(0)


class Rotation(eqx.Module):
    """A user's own field: no base class, an array that is not floating point, one that is, a sub-module."""

    inner: eqx.nn.Linear
    speed: jax.Array
    order: jax.Array

    def __init__(self):
        self.inner = eqx.nn.Linear(2, 2, key=KEY)
        self.speed = jnp.array(0.5)
        self.order = jnp.array([1, 0])

    def __call__(self, t, h):
        return jnp.tanh(self.inner(h))[self.order] * self.speed


class Conv(eqx.Module):
    """A convolutional field of one image."""

    conv: eqx.nn.Conv2d

    def __call__(self, t, h):
        return jnp.tanh(self.conv(h))


def without_noise(rate):
    """A prior of next to no noise, made so that no warning is given."""
    return eqx.tree_at(lambda prior: prior.sigma, OU(rate=rate), 1e-9)


def leaves(tree):
    return jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))


@pytest.fixture(scope="module")
def model():
    return SDEBNN.paper_mlp(2, 1, widths=(8,), drift=(4,), initial=Normal, key=KEY)


def test_a_key_names_one_function(model):
    x = jax.random.normal(jax.random.key(1), (9, 2))
    call = eqx.filter_jit(lambda x, key: model(x, key=key))
    for mine, again in zip(call(x, KEY), call(x, KEY), strict=True):
        assert np.array_equal(mine, again)
    whole, _ = call(x, KEY)
    part, _ = call(x[3:5], KEY)
    np.testing.assert_allclose(whole[3:5], part, rtol=1e-5)
    assert np.all(whole != call(x, jax.random.key(2))[0])


def test_more_draws_keep_the_ones_before():
    few, many = (jax.random.key_data(draw_keys(KEY, n)) for n in (3, 7))
    assert np.array_equal(few, many[:3])


def test_without_noise_or_decay_a_block_is_eulers_method_on_the_module_itself():
    field = Rotation()
    block = bayesianize(field, prior=without_noise(rate=0.0), solver=FixedGrid(5), key=KEY)
    h0 = jnp.array([[0.4, -1.0], [1.0, 0.2]])
    expected = np.array(h0)
    for k in range(5):
        expected = expected + np.stack([field(k / 5, jnp.asarray(h)) for h in expected]) / 5
    np.testing.assert_allclose(block(h0, key=KEY)[0], expected, rtol=1e-5)


def test_all_floating_point_arrays_are_random_unless_where_picks_some():
    field = Rotation()
    assert bayesianize(field, key=KEY).weights.size == 4 + 2 + 1
    assert bayesianize(field, where=lambda f: f.inner, key=KEY).weights.size == 4 + 2
    part = bayesianize(field, where=lambda f: (f.inner.bias, f.speed), key=KEY)
    assert part.weights.size == 2 + 1
    # what is not picked is deterministic, and a parameter still
    assert any(np.array_equal(leaf, field.inner.weight) for leaf in leaves(part.field))


def test_only_what_where_picks_varies_over_depth_and_draws():
    block = bayesianize(Rotation(), where=lambda f: f.speed, prior=OU(sigma=1.0), key=KEY)
    direction = lambda key: np.diff(block.trajectory(jnp.array([[0.4, -1.0]]), key=key)[0][:2, 0], axis=0)[0]  # noqa: E731
    one, other = direction(jax.random.key(1)), direction(jax.random.key(2))
    np.testing.assert_allclose(one / np.linalg.norm(one), other / np.linalg.norm(other), rtol=1e-4)


def test_any_module_will_do_images_too():
    field = Conv(eqx.nn.Conv2d(2, 2, 3, padding=1, key=KEY))
    block = bayesianize(field, prior=without_noise(rate=0.0), drift=(2,), solver=FixedGrid(2), key=KEY)
    x = jax.random.normal(KEY, (3, 2, 5, 4))
    expected = x
    for _ in range(2):
        expected = expected + jax.vmap(lambda h: field(0.0, h))(expected) / 2
    np.testing.assert_allclose(block(x, key=KEY)[0], expected, rtol=1e-4, atol=1e-5)


def test_gradients_reach_every_parameter_once_the_drift_has_left_zero(model):
    moved = jax.tree.map(lambda leaf: leaf + 0.1 if eqx.is_inexact_array(leaf) else leaf, model)

    def loss(model):
        outputs, kl = model(jnp.ones((3, 2)) * jnp.array([[1.0], [2.0], [-1.0]]), key=KEY)
        return jnp.sum(outputs**2) + kl

    for gradient in leaves(eqx.filter_grad(loss)(moved)):
        assert np.all(np.isfinite(gradient))
        assert np.any(gradient)


def test_the_kls_of_blocks_add_up_each_with_a_key_of_its_own():
    block = bayesianize(TimeMLP(2, (3,), key=KEY), drift=(2,), initial=Normal, kl="full", key=KEY)
    model = SDEBNN((block, Deterministic(lambda h: 2 * h), block))
    kl = model(jnp.ones((1, 2)), key=KEY)[1]
    first, second = (float(block.draw(key=jax.random.fold_in(KEY, i)).kl) for i in (0, 2))
    assert abs(first - second) > 1e-3
    assert float(kl) == pytest.approx(first + second, rel=1e-5)


def test_the_hidden_units_see_the_weights_of_the_left_end():
    block = bayesianize(Push(jnp.array([2.0])), prior=without_noise(rate=3.0), drift=(1,), solver=FixedGrid(4), key=KEY)
    h1, _ = block(jnp.zeros((1, 1)), key=KEY)
    w = 2.0 * (1 - 3.0 / 4) ** np.arange(4)  # Euler's decay; a right-end rule would miss the first and largest
    assert float(h1[0, 0]) == pytest.approx(w.sum() / 4, rel=1e-5)


def test_the_net_for_vectors_starts_from_standard_normal_weights_whatever_its_gain():
    for gain in (0.5, 3.0):
        block = SDEBNN.paper_mlp(20, 1, widths=(50,), gain=gain, key=KEY).layers[1]
        w = np.concatenate(
            [np.ravel(leaf) for leaf in jax.tree.leaves(block.weights.unravel(block.initial.mean)) if leaf.ndim > 1]
        )
        standard = np.asarray(block.initial.mean)
        assert standard[standard != 0].std() == pytest.approx(1.0, abs=0.1)
        assert np.abs(w).max() > 0.1 * gain


def test_a_model_names_the_same_function_one_draw_at_a_time_or_many(model):
    x = jax.random.normal(jax.random.key(1), (3, 2))
    keys = draw_keys(KEY, 5)
    together = jax.vmap(lambda key: model(x, key=key)[0])(keys)
    np.testing.assert_allclose(together[3], model(x, key=keys[3])[0], rtol=1e-4, atol=1e-5)


def test_the_prior_of_a_model_forgets_what_was_learned_and_costs_nothing():
    model = SDEBNN.paper_mlp(2, 1, widths=(3,), drift=(2,), prior=OU(rate=0.5, sigma=0.4), kl="full", key=KEY)
    trained = jax.tree.map(lambda leaf: leaf + 0.3 if eqx.is_inexact_array(leaf) else leaf, model)
    prior = prior_of(trained)
    assert trained(jnp.ones((1, 2)), key=KEY)[1] != 0
    assert prior(jnp.ones((1, 2)), key=KEY)[1] == 0
    assert np.array_equal(prior.layers[2].module.weight, trained.layers[2].module.weight)
    ends = jax.vmap(lambda key: prior.layers[1].draw(key=key).w[-1])(draw_keys(KEY, 200))
    # w_0 is N(0, 1), and then the OU process runs for one unit of depth
    variance = np.exp(-1.0) + 0.4**2 * (1 - np.exp(-1.0)) / (2 * 0.5)
    assert abs(float(ends.std()) - np.sqrt(variance)) < 4 * np.sqrt(variance / (2 * ends.size)) + 5e-3


def test_a_deterministic_model_ignores_the_key():
    model = Deterministic(eqx.nn.Linear(2, 1, key=KEY))
    one, other = (model(jnp.ones((3, 2)), key=jax.random.key(i)) for i in (0, 1))
    assert np.array_equal(one[0], other[0])
    assert one[1] == other[1] == 0


def test_nothing_is_drawn_twice_from_one_key():
    with jax.debug_key_reuse(True):
        model = SDEBNN.paper_mlp(2, 1, widths=(3,), drift=(2,), key=jax.random.key(4))
        model(jnp.ones((3, 2)), key=jax.random.key(5))


def blocks_of(field):
    """Every kind of block, made of one field."""
    grid = FixedGrid(2)
    random = bayesianize(field, drift=(2,), solver=grid, key=KEY)
    yield random
    yield bayesianize(field, drift=(2,), solver=Adaptive(1e-2), key=KEY)
    yield ODEBlock(field, solver=grid)
    yield HyperODEBlock(field, drift=(2,), solver=grid, key=KEY)
    yield PartlyRandom(random, 0.5)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision_inputs_are_computed_with_as_float32(dtype):
    """0 and 1 and -2 are exact in all of them: so are the outputs those of float32."""
    x = jnp.array([[0.0, 1.0], [1.0, -2.0]]).astype(dtype)
    nets = [*blocks_of(TimeMLP(2, (3,), key=KEY)), SDEBNN.paper_mlp(2, 1, widths=(3,), drift=(2,), key=KEY)]
    for net in nets:
        outputs, kl = net(x, key=KEY)
        assert outputs.dtype == kl.dtype == jnp.float32
        assert np.array_equal(outputs, net(x.astype(jnp.float32), key=KEY)[0]), type(net).__name__


def test_float32_inputs_of_a_float64_net_are_computed_with_as_float64():
    with jax.enable_x64(True):
        x = jnp.array([[0.0, 1.0], [1.0, -2.0]])
        nets = [*blocks_of(TimeMLP(2, (3,), key=KEY)), SDEBNN.paper_mlp(2, 1, widths=(3,), drift=(2,), key=KEY)]
        for net in nets:
            outputs, _ = net(x.astype(jnp.float32), key=KEY)
            assert outputs.dtype == jnp.float64
            assert np.array_equal(outputs, net(x, key=KEY)[0]), type(net).__name__
