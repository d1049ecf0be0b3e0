import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from sdebnn import SDEBNN, Categorical, Deterministic, Gaussian, Normal, draw_keys, evaluate, predict

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def model():
    return SDEBNN.mlp(2, 3, widths=(8,), drift=(4,), initial=Normal, key=KEY)


@pytest.fixture(scope="module")
def x():
    return jax.random.normal(jax.random.key(1), (25, 2))


def test_each_sample_is_the_function_its_key_names(model, x):
    samples = predict(model, x, draws=20, key=KEY)
    for i in (0, 19):  # one in the first group of draws, one in the last
        outputs, _ = eqx.filter_jit(model)(x, key=draw_keys(KEY, 20)[i])
        np.testing.assert_allclose(samples[i], outputs, rtol=1e-4, atol=1e-5)


def test_the_batch_size_is_invisible_and_numpy_will_do(model, x):
    whole = predict(model, np.asarray(x), draws=3, key=KEY)
    parts = predict(model, x, draws=3, key=KEY, batch_size=10)
    np.testing.assert_allclose(whole, parts, rtol=1e-4, atol=1e-5)


def test_evaluation_of_a_classifier_scores_the_averaged_probabilities(model, x):
    labels = jnp.arange(25) % 3
    scores = evaluate(model, Categorical(), x, labels, draws=40, key=KEY)
    logits = np.asarray(predict(model, x, draws=40, key=jax.random.split(KEY)[0]), dtype=float)
    probs = (np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)).mean(0)
    assert scores["nll"] == pytest.approx(-np.log(probs[np.arange(25), labels]).mean(), rel=1e-3)
    assert scores["accuracy"] == pytest.approx((probs.argmax(-1) == np.asarray(labels)).mean())
    assert set(scores) == {"nll", "kl", "accuracy", "ece", "brier"}


def test_evaluation_of_a_regression_scores_the_mixture_over_draws(model, x):
    y = jnp.tile(jnp.array([0.3, -0.2, 0.1]), (25, 1))
    scores = evaluate(model, Gaussian(0.4), x, y, draws=40, key=KEY)
    outputs = np.asarray(predict(model, x, draws=40, key=jax.random.split(KEY)[0]), dtype=float)
    density = np.exp(stats.norm.logpdf(np.asarray(y), outputs, 0.4).sum(-1)).mean(0)
    assert scores["nll"] == pytest.approx(-np.log(density).mean(), rel=1e-3)
    assert scores["rmse"] == pytest.approx(np.sqrt(((outputs.mean(0) - y) ** 2).mean()), rel=1e-3)


def test_coverage_is_of_targets_not_of_their_centers():
    model = Deterministic(lambda x: 0 * x)
    x = jnp.ones((4, 1))
    inside, outside = (
        evaluate(model, Gaussian(1.0), x, jnp.full((4, 1), y), draws=2000, key=KEY)["coverage_95"] for y in (1.5, 2.4)
    )  # on either side of 1.96
    assert (inside, outside) == (1.0, 0.0)


def test_the_kl_of_an_evaluation_is_the_mean_over_draws(x):
    noisy = SDEBNN.mlp(2, 1, widths=(3,), drift=(2,), initial=Normal, kl="full", key=KEY)
    scores = evaluate(noisy, Gaussian(1.0), x, x[:, :1], draws=5, key=KEY)
    keys = draw_keys(jax.random.split(KEY)[0], 5)
    kls = [float(noisy.layers[1].draw(key=jax.random.fold_in(key, 1)).kl) for key in keys]
    assert np.std(kls) > 1e-3
    assert scores["kl"] == pytest.approx(np.mean(kls), rel=1e-4)


def test_whole_number_targets_of_a_regression_are_targets(model, x):
    y = np.ones((25, 3), dtype=int)
    assert "rmse" in evaluate(model, Gaussian(0.4), np.asarray(x), y, draws=2, key=KEY)
