import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from sdebnn import (
    OU,
    SDEBNN,
    Adaptive,
    Categorical,
    Deterministic,
    FixedGrid,
    Gaussian,
    Laplace,
    Normal,
    StudentT,
    bayesianize,
    evaluate,
    predict,
    refined,
    uncertainty_sources,
)
from sdebnn.contract import solutions
from sdebnn.nn import TimeMLP, draw_keys

pytestmark = pytest.mark.usefixtures("_compiled_in_haste")
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def model():
    return SDEBNN.paper_mlp(2, 3, widths=(8,), drift=(4,), initial=Normal, key=KEY)


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
    each = logits[:, np.arange(25), labels] - np.log(np.exp(logits).sum(-1))  # of every draw
    assert scores["log_likelihood"] == pytest.approx(each.mean(), rel=1e-4)
    assert set(scores) == {"nll", "log_likelihood", "kl", "evaluations", "accuracy", "ece", "brier"}


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


def test_a_single_network_covers_as_its_own_noise_does():
    """Its forecast is the likelihood's: 4 standard errors of 4,000 targets from the same law."""
    y = jax.random.normal(jax.random.key(3), (4000, 1))
    scores = evaluate(Deterministic(lambda x: 0 * x), Gaussian(1.0), jnp.ones((4000, 1)), y, draws=1, key=KEY)
    assert abs(scores["coverage_95"] - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 4000)


def test_the_kl_of_an_evaluation_is_the_mean_over_draws(x):
    noisy = SDEBNN.paper_mlp(2, 1, widths=(3,), drift=(2,), initial=Normal, kl="full", key=KEY)
    scores = evaluate(noisy, Gaussian(1.0), x, x[:, :1], draws=5, key=KEY)
    keys = draw_keys(jax.random.split(KEY)[0], 5)
    kls = [float(noisy.layers[1].draw(key=jax.random.fold_in(key, 1)).kl) for key in keys]
    assert np.std(kls) > 1e-3
    assert scores["kl"] == pytest.approx(np.mean(kls), rel=1e-4)


def test_whole_number_targets_of_a_regression_are_targets(model, x):
    y = np.ones((25, 3), dtype=int)
    assert "rmse" in evaluate(model, Gaussian(0.4), np.asarray(x), y, draws=2, key=KEY)


def test_the_dial_at_the_trained_steps_is_the_model_itself(model, x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same = predict(model, x, draws=3, steps=20, key=KEY)
    assert np.array_equal(same, predict(model, x, draws=3, key=KEY))


def test_other_steps_are_solved_with_a_word_about_training_and_counted(model, x):
    with pytest.warns(UserWarning, match="trained on a grid of 20 steps"):
        fine, evaluations = predict(model, x, draws=3, steps=640, key=KEY, return_evaluations=True)
    assert evaluations.tolist() == [640] * 3
    with pytest.warns(UserWarning, match="rtol=0.001"):
        adapted, evaluations = predict(model, x, draws=3, rtol=1e-3, key=KEY, return_evaluations=True)
    assert evaluations.shape == (3,)
    assert np.all((evaluations > 4) & (evaluations < 640))
    coarse = predict(model, x, draws=3, key=KEY)
    # One Brownian path: the tolerance's draws are those of the fine grid, far nearer than the trained grid's.
    assert np.abs(adapted - fine).max() < 0.2 * np.abs(coarse - fine).max()
    with pytest.warns(UserWarning, match="steps=10"):
        assert evaluate(model, Categorical(), x, jnp.arange(25) % 3, draws=2, steps=10, key=KEY)["evaluations"] == 10


def test_a_model_trained_with_stl_can_be_solved_to_a_tolerance(x):
    model = SDEBNN.paper_mlp(2, 1, widths=(4,), drift=(2,), kl="stl", key=KEY)
    with pytest.warns(UserWarning, match="rtol=0.01"):
        scores = evaluate(model, Gaussian(1.0), x, x[:, :1], draws=2, rtol=1e-2, key=KEY)
    assert np.isfinite(scores["nll"])
    assert refined(model, steps=40).layers[1].kl == "stl"
    assert refined(model, rtol=1e-2).layers[1].kl == "analytic"


@pytest.mark.slow
def test_a_model_of_adaptive_steps_has_the_same_dial(x):
    model = SDEBNN.paper_mlp(2, 1, widths=(4,), drift=(2,), solver=Adaptive(1e-2), key=KEY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it was not trained on a grid: nothing to say
        coarse, fine = (predict(model, x[:5], draws=2, rtol=rtol, key=KEY) for rtol in (1e-2, 1e-4))
        grid = predict(model, x[:5], draws=2, steps=320, key=KEY)
    assert np.abs(fine - grid).max() < 2e-3 < np.abs(coarse - grid).max()
    assert isinstance(refined(model, steps=320).layers[1].solver, FixedGrid)


def test_the_dial_keeps_the_ratio_of_the_tolerances():
    """A tenth of rtol is a tenth of atol too, also where atol was chosen far below it."""
    finer = refined(SDEBNN.paper_mlp(2, 1, widths=(4,), drift=(2,), solver=Adaptive(1e-2, 1e-5), key=KEY), rtol=1e-3)
    assert finer.layers[1].solver.atol == pytest.approx(1e-6)


class Decay(eqx.Module):
    """dh/dt = -rate h, whatever the depth: h_1 = exp(-rate) h_0, and (1 - rate/n)^n h_0 by Euler."""

    rate: jax.Array

    def __call__(self, t, h):
        return -self.rate * h


def test_the_uncertainty_sources_of_a_known_solution_is_its_error():
    still = bayesianize(Decay(jnp.array([1.0])), prior=OU(rate=0.0), drift=(1,), scale=lambda _: 1.0, key=KEY)
    still = eqx.tree_at(lambda block: block.prior.sigma, still, 1e-9)
    spread = uncertainty_sources(still, Gaussian(0.3), jnp.array([[1.0], [2.0]]), draws=4, key=KEY)
    error = np.exp(-1) - (1 - 1 / 20) ** 20
    np.testing.assert_allclose(spread.solver[:, 0], [error, 2 * error], rtol=0.05)
    np.testing.assert_allclose(spread.noise, 0.3, rtol=1e-6)
    np.testing.assert_allclose(spread.weights, 0.0, atol=1e-6)


class Push(eqx.Module):
    """dh/dt = w: h_1 = h_0 + ∫ w dt."""

    weight: jax.Array

    def __call__(self, t, h):
        return self.weight + 0 * h


def test_the_weights_share_of_a_prediction_is_the_spread_of_their_integral():
    """w = σ B: ∫ w dt has variance σ²/3; step doubling sees σ dt/2 of it less at each refinement, and little else."""
    sigma, draws = 0.8, 2000
    block = bayesianize(Push(jnp.zeros(1)), prior=OU(rate=0.0, sigma=sigma), drift=(1,), scale=lambda _: 1.0, key=KEY)
    spread = uncertainty_sources(block, Laplace(0.5), jnp.zeros((1, 1)), draws=draws, key=KEY)
    assert float(spread.weights[0, 0]) == pytest.approx(sigma / np.sqrt(3), rel=4 / np.sqrt(2 * draws) + 0.03)
    assert float(spread.noise[0, 0]) == pytest.approx(0.5 * np.sqrt(2), rel=1e-5)
    # Euler's ∫ is Σ w_k dt; against the path's own integral it is off by a normal of variance σ² dt² / 3.
    assert float(spread.solver[0, 0]) == pytest.approx(sigma / 20 / np.sqrt(3), rel=0.25)


def test_the_uncertainty_sources_of_classes_and_heavy_tails_and_deterministic_nets(model, x):
    spread = uncertainty_sources(model, Categorical(), x, draws=8, key=KEY)
    probs = np.asarray(jax.nn.softmax(predict(model, x, draws=8, key=KEY)), dtype=float)
    np.testing.assert_allclose(spread.noise, np.sqrt((probs * (1 - probs)).mean(0)), rtol=0.05)
    assert spread.weights.shape == spread.solver.shape == (25, 3)
    assert np.all(np.isinf(uncertainty_sources(model, StudentT(2.0), x, draws=2, key=KEY).noise))
    net = Deterministic(lambda x: jnp.sin(x))
    assert np.all(np.asarray(uncertainty_sources(net, Gaussian(1.0), x, draws=2, key=KEY).solver) == 0)


def test_draws_that_blow_up_are_refused_with_what_to_change():
    wild = bayesianize(TimeMLP(1, (4,), activation=lambda h: h**3, gain=50.0, key=KEY), prior=OU(sigma=5.0), key=KEY)
    with pytest.raises(ValueError, match="not finite: take more steps"):
        wild(jnp.ones((2, 1)), key=KEY)
    with pytest.raises(ValueError, match="of 3 draws are not finite: take more steps"):
        predict(wild, jnp.ones((2, 1)), draws=3, key=KEY)


def test_steps_exhausted_are_refused_with_what_to_change(x):
    short = SDEBNN.paper_mlp(2, 1, widths=(4,), drift=(2,), solver=Adaptive(1e-3, max_steps=3), key=KEY)
    with pytest.raises(ValueError, match=r"2 of 2 draws did not reach depth 1.*raise max_steps"):
        predict(short, x, draws=2, key=KEY)


def test_a_device_that_runs_out_of_memory_gets_fewer_examples_at_once(monkeypatch):
    """The device is replaced by one that has room for three examples; the real solutions are computed."""
    model = SDEBNN.paper_mlp(1, 1, widths=(3,), drift=(2,), solver=FixedGrid(2), key=jax.random.key(0))
    x, real, seen = jnp.linspace(-1, 1, 10)[:, None], solutions, []

    def small(model, x, keys, at_once, mesh=None):
        seen.append(len(x))
        if len(x) > 3:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 byte.")
        return real(model, x, keys, at_once, mesh)

    whole = predict(model, x, draws=4, key=jax.random.key(1))
    monkeypatch.setattr("sdebnn.prediction.solutions", small)
    with pytest.warns(UserWarning, match="out of memory with") as caught:
        again = predict(model, x, draws=4, key=jax.random.key(1))
    np.testing.assert_allclose(again, whole, atol=1e-6)
    assert seen == [10, 5, 2, 2, 2, 2, 2]
    assert ["goes on with 5" in str(each.message) for each in caught] == [True, False]
    monkeypatch.setattr("sdebnn.prediction.solutions", lambda *_: small(model, x, None, 1))
    with (
        warnings.catch_warnings(action="ignore"),
        pytest.raises(ValueError, match="too little memory for one example with draws_at_once=16: lower it"),
    ):
        predict(model, x, draws=4, key=jax.random.key(1))
