"""Temperature scaling against an independent search for the best temperature."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import optimize, special
from small_models import KEY, QUIET, say_nothing

from sdebnn import Categorical, Ensemble, Objective, Optimizer, Validation, elbo, fit, predict
from sdebnn.baselines import LastLayerLaplace, TemperatureScaled

pytestmark = pytest.mark.usefixtures("_compiled_in_haste")


def softmax_nll(logits, labels, temperature):
    log_p = special.log_softmax(np.asarray(logits, float) / temperature, axis=-1)
    picked = log_p[..., np.arange(len(labels)), np.asarray(labels)]
    return -np.mean(special.logsumexp(picked, axis=0) - np.log(len(picked)) if picked.ndim > 1 else picked)


def best_temperature(logits, labels):
    return optimize.minimize_scalar(lambda t: softmax_nll(logits, labels, t), bounds=(0.1, 15), method="bounded").x


def test_the_temperature_of_an_overconfident_classifier_is_recovered():
    z = 2 * jax.random.normal(KEY, (2000, 3))
    labels = jax.random.categorical(jax.random.key(1), z)
    loud = eqx.tree_at(lambda m: m.weight, eqx.nn.Linear(3, 3, use_bias=False, key=KEY), 3 * jnp.eye(3))
    how = {"epochs": 1, "objective": Objective(draws=1), "optimizer": Optimizer(rule=optax.sgd(0.0)), **QUIET}
    fitted = fit(
        TemperatureScaled(loud), Categorical(), z[:5], labels[:5], validation=Validation(z, labels), **how
    ).model
    found = float(jnp.exp(fitted.log_temperature))
    assert found == pytest.approx(best_temperature(3 * z, labels), rel=1e-3)
    # the standard error of T is 1 / √curvature of the log-likelihood of 2000 labels
    step = 0.05
    ends = [2000 * softmax_nll(3 * z, labels, 3 + s * step) for s in (-1, 0, 1)]
    error = 1 / np.sqrt((ends[0] - 2 * ends[1] + ends[2]) / step**2)
    assert abs(found - 3) < 4 * error < 1
    outputs = predict(fitted, z, draws=1, key=KEY)[0]
    np.testing.assert_allclose(outputs, 3 * z / found, rtol=1e-4, atol=1e-5)
    assert np.array_equal(outputs.argmax(-1), z.argmax(-1))


def test_the_temperature_suits_the_averaged_probabilities_and_does_not_affect_the_elbo():
    z = jax.random.normal(KEY, (400, 2))
    labels = jax.random.categorical(jax.random.key(1), z)
    gains = [jnp.diag(jnp.array(d)) for d in ([4.0, 1.0], [1.0, 5.0])]
    base = eqx.nn.Linear(2, 2, use_bias=False, key=KEY)
    both = Ensemble([eqx.tree_at(lambda m: m.weight, base, gain) for gain in gains])
    scaled = TemperatureScaled(both, draws=2)
    found = scaled.after_training(Categorical(), (z, labels), validation=(z, labels), key=KEY, say=say_nothing)
    logits = np.stack([z @ gain for gain in gains])
    best = best_temperature(logits, labels)
    assert float(jnp.exp(found.log_temperature)) == pytest.approx(best, rel=1e-3)
    assert abs(best - best_temperature(logits.mean(0), labels)) > 0.05  # averaging logits would choose another
    # the ELBO does not depend on the temperature
    bounds = [float(elbo(model, Categorical(), z, labels, key=KEY, draws=2).elbo) for model in (both, found)]
    assert bounds[0] == bounds[1]


def test_the_temperature_is_chosen_after_the_wrapped_model_has_learned():
    x = jax.random.normal(KEY, (60, 2))
    labels = (x[:, 0] > 0).astype(int)
    inner = LastLayerLaplace(lambda x: x, 2, 2, prior_std=3.0, key=KEY)
    how = {"epochs": 20, "objective": Objective(draws=1), **QUIET}
    fitted = fit(
        TemperatureScaled(inner, draws=4), Categorical(), x, labels, validation=Validation(x, labels), **how
    ).model
    assert fitted.model.factor is not None  # without it all draws would be equal
