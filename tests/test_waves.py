"""Waves: the prior over functions has the scale and the length that are asked for."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from small_models import KEY

from sdebnn import FixedGrid
from sdebnn.nn import SDEBNN, prior_of
from sdebnn.processes import OU
from sdebnn.waves import TREND, Waves, sine, wide_net_covariance

DRAWS = 4000


def prior_draws(x, **options):
    """Functions drawn from the prior, "draw point"; the weights hardly move over depth."""
    model = prior_of(
        SDEBNN.mlp(1, 1, width=64, prior=OU(rate=0.0, sigma=1e-3), solver=FixedGrid(1), key=KEY, **options)
    )
    draw = eqx.filter_jit(jax.vmap(lambda key: model(x, key=key)[0][:, 0]))
    return np.asarray(draw(jax.random.split(jax.random.key(1), DRAWS)), float)


def covariance(v):
    """A constant, bells whose logarithmic lengths are normal with the standard deviation 0.7, and a trend."""

    def bell(distance):
        return quad(lambda g: stats.norm.pdf(g) * np.exp(-0.5 * distance**2 * np.exp(2 * 0.7 * g)), -8, 8)[0]

    return 1 + np.vectorize(bell)(v - v.T) + (v / 4) * v.T / 4


def test_the_covariance_of_wide_nets_is_the_integral_over_the_waves_lengths():
    v = np.array([[-1.5], [0.0], [0.1], [0.7]])
    np.testing.assert_allclose(wide_net_covariance(v, v), covariance(v), atol=0.01)  # by 64 rates


@pytest.mark.parametrize(("length", "scale"), [(0.5, 3.0), (2.0, 0.4)])
def test_the_covariance_of_the_prior_is_a_constant_bells_and_a_trend_of_the_given_length_and_scale(length, scale):
    x = jnp.array([[-3.0], [0.0], [0.5], [2.0]])
    values = prior_draws(x, augment=0, length=length, scale=scale)
    exact = scale**2 * covariance(np.asarray(x, float) / length)
    variances = np.diag(exact)
    # The standard error of a covariance of normal numbers is at most sqrt(2 variance variance' / draws).
    assert np.all(np.abs(np.cov(values.T) - exact) < 4 * np.sqrt(2 * np.outer(variances, variances) / DRAWS))
    assert np.all(np.abs(values.mean(0)) < 4 * np.sqrt(variances / DRAWS))


def test_with_feedback_the_spread_of_a_value_depends_on_where_it_is_by_the_trend_alone():
    x = np.array([0.0, 1.0, 5.0])
    values = prior_draws(jnp.asarray(x, float)[:, None], augment=2, length=1.0, scale=1.0)
    spread = np.sqrt(values.var(0) - (TREND * x) ** 2)
    assert np.abs(spread / spread.mean() - 1).max() < 4 / np.sqrt(DRAWS)


def test_inferred_lengths_and_scales_have_the_spread_of_the_prior():
    model = prior_of(SDEBNN.mlp(1, 1, width=4, prior=OU(rate=0.0, sigma=1e-3), solver=FixedGrid(1), key=KEY))
    keys = jax.random.split(jax.random.key(2), DRAWS)
    log_length = jax.vmap(lambda key: model.body.layers[1].draw(key=key).w[0, -1])(keys)
    log_scale = jax.vmap(lambda key: model.amplitude.sample(key=key)[0])(keys)
    for logs in (log_length, log_scale):
        assert abs(np.mean(logs)) < 4 / np.sqrt(DRAWS)
        assert abs(np.std(logs) - 1) < 4 / np.sqrt(2 * DRAWS)


def test_inputs_rest_while_the_others_move():
    field = Waves(2, width=4, augment=3, key=KEY)
    slope = field(0.3, 1 + jnp.arange(11.0))
    assert slope.shape == (field.state_size,) == (11,)
    np.testing.assert_array_equal(slope[:2], 0)
    assert np.all(np.asarray(slope[2:]) != 0)


def test_of_several_inputs_every_second_wave_depends_on_one_alone():
    field = Waves(2, width=8, augment=0, length=1.0, key=KEY)
    slopes = jax.jacfwd(lambda x: field(0.0, jnp.concatenate([x, jnp.zeros(10)]))[2:10])(jnp.array([0.3, -0.2]))
    depends = np.abs(np.asarray(slopes)) > 1e-7
    np.testing.assert_array_equal(depends[::2], True)
    np.testing.assert_array_equal(depends[1::2], [[True, False], [False, True], [True, False], [False, True]])


def test_given_lengths_are_fixed_and_missing_ones_have_the_spread_of_the_data_as_median():
    h = np.column_stack([np.array([3.0, 5.0, 7.0]), np.zeros((3, 3))])
    free = Waves(1, key=KEY).suited_to(h)
    np.testing.assert_allclose(np.exp(free.log_length), h[:, :1].std(), rtol=1e-6)
    np.testing.assert_allclose(free.center, [5.0])
    fixed = Waves(1, length=2.0, key=KEY).suited_to(h)
    assert fixed.weights.length.size == 0
    np.testing.assert_allclose(np.exp(fixed.log_length), [2.0])


@pytest.mark.parametrize("factor", [0.2, 2.0])
def test_training_starts_at_a_length_that_suits_the_targets(factor):
    """The targets are a draw of the Gaussian process of that length to which the prior tends."""
    x = np.linspace(-1.7, 1.7, 60)[:, None]  # of spread 1
    y = np.linalg.cholesky(covariance(x / factor) + 1e-6 * np.eye(60)) @ np.random.RandomState(0).randn(60, 1)
    field = Waves(1, key=KEY).suited_to(x)
    start = field.likely_weights(x, y, np.full((60, 1), 1e-2))
    assert abs(float(start.weights.length[0]) - np.log(factor)) < 0.7
    assert not np.asarray(start.weights.inputs).any()


def test_the_sine_is_that_of_numpy_and_its_slope_the_cosine():
    angle = np.linspace(-40, 40, 20001)
    np.testing.assert_allclose(sine(jnp.asarray(angle)), np.sin(angle), atol=5e-6)
    np.testing.assert_allclose(jax.vmap(jax.grad(sine))(jnp.asarray(angle)), np.cos(angle), atol=5e-6)


def test_wrong_lengths_are_refused():
    with pytest.raises(ValueError, match="length holds 2 numbers: pass one, or 3"):
        Waves(3, length=[1.0, 2.0], key=KEY)
    with pytest.raises(ValueError, match=r"scale=-1\.0"):
        SDEBNN.mlp(3, 1, scale=-1.0, key=KEY)
