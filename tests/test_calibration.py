"""Temperatures: what they do to a likelihood, and the search for the best one."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import optimize, special, stats
from small_models import KEY, QUIET

from sdebnn import Categorical, Gaussian, Laplace, Objective, Optimizer, StudentT, Validation, Weighted, fit, predict
from sdebnn.baselines import TemperatureScaled
from sdebnn.calibration import HeldOut, calibrated


@pytest.mark.parametrize("likelihood", [Gaussian(None), Laplace(None), StudentT(5.0, None), Weighted(Gaussian(None))])
@pytest.mark.parametrize("temperature", [0.05, 1.0, 20.0])
def test_a_temperature_multiplies_the_scale_and_keeps_the_location(likelihood, temperature):
    outputs = jnp.array([[0.3, -1.0, -12.0, 4.0], [2.0, 0.0, 0.5, 30.0]])
    tempered = likelihood.tempered(outputs, temperature)
    np.testing.assert_array_equal(likelihood.center(tempered), likelihood.center(outputs))
    ratio = np.sqrt(likelihood.variance(tempered) / likelihood.variance(outputs))
    expected = np.where(np.asarray(outputs[:, 2:]) < -10, np.maximum(temperature, 0.14), temperature)
    # the scale of the first row's first target is 7e-6, near the smallest one of 1e-6
    np.testing.assert_allclose(ratio, expected, rtol=0.02)
    np.testing.assert_allclose(ratio[1], temperature, rtol=1e-4)


def test_a_temperature_divides_logits():
    logits = jnp.array([[1.0, -2.0, 0.5]])
    np.testing.assert_allclose(Categorical().tempered(logits, 4.0), logits / 4)


def test_a_likelihood_of_fixed_scale_cannot_be_tempered(refused):
    refused(lambda: Gaussian(0.1).tempered(jnp.zeros((1, 2)), 2.0), "Gaussian has no temperature")


def forecasts(examples, draws=7):
    """Outputs of draws, and targets that have three times as much noise as the outputs say."""
    location = jax.random.normal(KEY, (draws, examples, 1))
    raw = jnp.log(jnp.expm1(jax.random.uniform(jax.random.key(1), (draws, examples, 1), minval=0.5, maxval=1.5)))
    y = location[0] + 3 * jax.random.normal(jax.random.key(2), (examples, 1))
    return jnp.concatenate([location, raw], axis=-1), y


def independent_search(parts, prior_std):
    """The best temperature by SciPy's densities in float64."""

    def loss(log_temperature):
        total = 0.5 * (log_temperature / prior_std) ** 2
        for outputs, y, weights in parts:
            location, raw = np.split(np.asarray(outputs, float), 2, axis=-1)
            scale = np.exp(log_temperature) * np.log1p(np.exp(raw))
            each = stats.norm.logpdf(np.asarray(y, float), location, scale)[..., 0]
            total -= weights @ (special.logsumexp(each, axis=0) - np.log(len(each)))
        return total

    return np.exp(optimize.minimize_scalar(loss, bounds=(-2, 2), method="bounded").x)


@pytest.mark.parametrize("prior_std", [None, 0.2])
def test_the_best_temperature_agrees_with_an_independent_search(prior_std):
    first, second = forecasts(300), forecasts(40, draws=3)
    parts = [HeldOut(*first, np.linspace(0, 2, 300)), HeldOut(*second, np.ones(40))]
    found = calibrated(Gaussian(None), parts, prior_std=prior_std)
    assert found.temperature == pytest.approx(independent_search(parts, prior_std or np.inf), rel=1e-3)
    assert found.nll < found.nll_before


def test_a_prior_keeps_the_temperature_of_few_examples_near_one():
    parts = [HeldOut(*forecasts(3), np.ones(3))]
    alone, with_prior = (calibrated(Gaussian(None), parts, prior_std=std).temperature for std in (None, 0.2))
    assert abs(np.log(with_prior)) < 0.5 * abs(np.log(alone))


def test_the_temperature_is_searched_within_its_limits():
    outputs, _ = forecasts(50)
    exact = HeldOut(outputs[:1], outputs[0, :, :1], np.ones(50))  # targets without any noise
    assert calibrated(Gaussian(None), [exact], largest=4.0).temperature == pytest.approx(1 / 4, rel=1e-3)


def test_a_regression_can_be_calibrated_after_training():
    x = jax.random.normal(KEY, (400, 2))
    y = x[:, :1] + 3 * jax.nn.softplus(0.0) * jax.random.normal(jax.random.key(1), (400, 1))
    net = eqx.nn.Linear(2, 2, use_bias=False, key=KEY)
    net = eqx.tree_at(lambda m: m.weight, net, jnp.array([[1.0, 0.0], [0.0, 0.0]]))  # location x_0, scale softplus(0)
    model = fit(
        TemperatureScaled(net), Gaussian(None), x, y, epochs=1, objective=Objective(draws=1),
        optimizer=Optimizer(rule=optax.sgd(0.0)), validation=Validation(x, y), **QUIET,
    ).model  # fmt: skip
    temperature = float(jnp.exp(model.log_temperature))
    assert abs(temperature - 3) < 4 * 3 / np.sqrt(2 * 400)  # the standard error of a scale is 1 / √(2n) of it
    outputs = predict(model, x, draws=1, key=KEY)[0]
    np.testing.assert_allclose(Gaussian(None).scale(outputs), temperature * np.log(2), rtol=1e-4)
    np.testing.assert_allclose(Gaussian(None).center(outputs), x[:, :1], rtol=1e-5)
