"""Waves: the prior over functions has the scale and the length that are asked for."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import KEY

from sdebnn import FixedGrid
from sdebnn.nn import SDEBNN, prior_of
from sdebnn.processes import OU
from sdebnn.waves import TREND, Waves

DRAWS = 4000


def prior_draws(x, **options):
    """Functions drawn from the prior, "draw point"; the weights hardly move over depth."""
    model = prior_of(
        SDEBNN.mlp(1, 1, width=16, prior=OU(rate=0.0, sigma=1e-3), solver=FixedGrid(1), key=KEY, **options)
    )
    draw = eqx.filter_jit(jax.vmap(lambda key: model(x, key=key)[0][:, 0]))
    return np.asarray(draw(jax.random.split(jax.random.key(1), DRAWS)), float)


@pytest.mark.parametrize(("length", "scale"), [(0.5, 3.0), (2.0, 0.4)])
def test_the_covariance_of_the_prior_is_a_constant_a_bell_and_a_trend_of_the_given_length_and_scale(length, scale):
    x = jnp.array([[-3.0], [0.0], [0.5], [2.0]])
    values = prior_draws(x, augment=0, length=length, scale=scale)
    distance = np.asarray(x) - np.asarray(x).T
    trend = TREND**2 * np.asarray(x) * np.asarray(x).T / length**2
    exact = scale**2 * (1 + np.exp(-0.5 * (distance / length) ** 2) + trend)
    variances = np.diag(exact)
    # The standard error of a covariance of normal numbers is at most sqrt(2 variance variance' / draws).
    assert np.all(np.abs(np.cov(values.T) - exact) < 4 * np.sqrt(2 * np.outer(variances, variances) / DRAWS))
    assert np.all(np.abs(values.mean(0)) < 4 * np.sqrt(variances / DRAWS))


def test_with_feedback_the_spread_of_a_value_depends_on_where_it_is_by_the_trend_alone():
    x = np.array([0.0, 1.0, 5.0])
    values = prior_draws(jnp.asarray(x, float)[:, None], augment=2, length=1.0, scale=1.0)
    spread = np.sqrt(values.var(0) - (TREND * x) ** 2)
    assert np.abs(spread / spread.mean() - 1).max() < 4 / np.sqrt(DRAWS)


def test_inputs_rest_while_the_others_move():
    field = Waves(2, 1, width=4, augment=3, key=KEY)
    slope = field(0.3, jnp.arange(6.0))
    assert slope.shape == (6,)
    np.testing.assert_array_equal(slope[:2], 0)
    assert np.all(np.asarray(slope[2:]) != 0)


def test_given_numbers_are_fixed_and_missing_ones_are_trained_and_start_at_the_spread_of_the_data():
    h = np.column_stack([np.array([3.0, 5.0, 7.0]), np.zeros((3, 3))])
    y = np.array([[10.0], [10.0], [40.0]])
    free = Waves(1, 1, key=KEY).suited_to(h, y)
    np.testing.assert_allclose(np.exp(free.log_length), h[:, :1].std(), rtol=1e-6)
    np.testing.assert_allclose(np.exp(free.log_scale), y.std(), rtol=1e-6)
    np.testing.assert_allclose([free.center[0], free.offset[0]], [5.0, 20.0])
    fixed = Waves(1, 1, length=2.0, scale=[3.0], key=KEY).suited_to(h, y)
    assert not any(map(eqx.is_array, jax.tree.leaves((fixed.log_length, fixed.log_scale))))
    np.testing.assert_allclose(np.exp([*fixed.log_length, *fixed.log_scale]), [2.0, 3.0])


def test_wrong_lengths_are_refused():
    with pytest.raises(ValueError, match="length holds 2 numbers: pass one, or 3"):
        Waves(3, 1, length=[1.0, 2.0], key=KEY)
    with pytest.raises(ValueError, match=r"scale=-1\.0"):
        Waves(3, 1, scale=-1.0, key=KEY)
