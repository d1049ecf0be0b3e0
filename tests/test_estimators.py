"""The estimators for scikit-learn: what their forecasts promise, and how they behave beside scikit-learn's own."""

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from estimator_data import SHORT
from scipy import stats
from sklearn.base import clone
from sklearn.calibration import CalibrationDisplay
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sdebnn


def test_the_noise_may_differ_between_rows(regressor):
    x = np.array([[-1.5, 0.0], [1.5, 0.0]])
    mean, std = regressor.predict(x, return_std=True)
    np.testing.assert_allclose(mean, [-4.5, 4.5], atol=0.4)
    assert 0.05 < std[0] < 0.25 < 0.35 < std[1] < 0.8  # the true values are 0.1 and 0.5


def test_quantiles_ascend_and_an_interval_consists_of_two_of_them(regressor, line):
    x = line[0][:50]
    quantiles = regressor.predict_quantiles(x, alpha=(0.025, 0.25, 0.5, 0.975))
    assert quantiles.shape == (50, 4)
    assert all((low < high).all() for low, high in pairwise(quantiles.T))
    lower, upper = regressor.predict_interval(x, coverage=0.95)
    np.testing.assert_allclose(np.stack([lower, upper]), quantiles[:, [0, 3]].T)
    np.testing.assert_array_equal(regressor.predict_quantiles(x, alpha=0.5), quantiles[:, 2])


def test_a_forecast_holds_what_the_other_methods_return_and_splits_the_uncertainty(regressor, classifier, refused):
    x = np.array([[-1.5, 0.0], [1.5, 0.0], [30.0, -30.0]])
    mean, std, (reducible, noise), interval = regressor.forecast(x, coverage=0.8)
    np.testing.assert_array_equal([mean, std], regressor.predict(x, return_std=True))
    np.testing.assert_array_equal(interval, regressor.predict_interval(x, 0.8))
    np.testing.assert_allclose(np.hypot(reducible, noise), std)
    assert 0.05 < noise[0] < 0.25 < 0.35 < noise[1] < 0.8  # the true values are 0.1 and 0.5
    assert reducible[2] > 20 * reducible[:2].max()  # far from the rows of the fit
    proba, (reducible, noise) = classifier.forecast(load_iris().data)
    np.testing.assert_allclose(proba, classifier.predict_proba(load_iris().data))
    np.testing.assert_allclose(reducible + noise, stats.entropy(proba, axis=1), atol=1e-9)
    assert (reducible >= 0).all()
    refused(lambda: regressor.forecast(x, coverage=1.0), "coverage")


def test_outcomes_have_the_scores_of_the_forecast(regressor, classifier, line):
    x, y = (part[:60] for part in line)
    found, forecast = regressor.outcomes(x, y), regressor.forecast(x)
    np.testing.assert_allclose(found.mean.mean(0)[:, 0], forecast.mean)
    np.testing.assert_allclose(found.mean.std(0)[:, 0], forecast.uncertainty.reducible)
    np.testing.assert_allclose(np.sqrt(found.variance.mean(0))[:, 0], forecast.uncertainty.noise)
    np.testing.assert_allclose(found.log_prob, regressor.log_prob(x, y))
    x, y = load_iris(return_X_y=True)
    found = classifier.outcomes(x, classifier.classes_[y])
    np.testing.assert_allclose(found.probs, classifier.predict_proba(x))
    np.testing.assert_array_equal(found.labels, y)


def test_samples_of_y_follow_the_forecast(regressor):
    x = np.array([[-1.0, 0.0], [1.0, 1.0]])
    mean, std = regressor.predict(x, return_std=True)
    samples = regressor.sample_y(x, 400, random_state=1)
    assert samples.shape == (2, 400)
    # Five standard errors of 400 samples and of the 100 networks in the mean; heavy tails make the spread uncertain.
    np.testing.assert_allclose(samples.mean(1), mean, atol=5 * std.max() * np.sqrt(1 / 400 + 1 / 100))
    np.testing.assert_allclose(samples.std(1), std, rtol=0.35)
    np.testing.assert_array_equal(samples, regressor.sample_y(x, 400, random_state=1))
    # Each call with one sample uses one network, and another random state another network.
    far = np.array([[30.0, -30.0]])
    mean, std = regressor.predict(far, return_std=True)
    one_by_one = np.array([regressor.sample_y(far, 1, random_state=seed)[0, 0] for seed in range(60)])
    assert std[0] / 2 < one_by_one.std() < 2 * std[0]


def test_every_member_has_the_same_weight_in_a_prediction(regressor, classifier, line):
    """Three draws of two members are rounded up to four; the number of samples of y is not rounded."""
    for model, method, x in (
        (regressor, "predict", line[0][:5]),
        (classifier, "predict_proba", load_iris().data[::40]),
    ):
        predicted = []
        for draws in (3, 4):
            other = clone(model)
            vars(other).update({**vars(model), "draws": draws})
            predicted.append(getattr(other, method)(x))
        np.testing.assert_array_equal(*predicted)
        assert [model.sample_y(x, n).shape for n in (1, 3)] == [(len(x), 1), (len(x), 3)]


def test_the_log_density_integrates_to_one(regressor):
    grid = np.linspace(-10, 10, 4001)
    x = np.tile([[0.5, 0.0]], (len(grid), 1))
    np.testing.assert_allclose(np.trapezoid(np.exp(regressor.log_prob(x, grid)), grid), 1, atol=1e-3)


def test_labels_spreads_and_samples_follow_the_probabilities(classifier):
    x, y = load_iris(return_X_y=True)
    assert classifier.score(x, classifier.classes_[y]) > 0.93
    proba, std = classifier.predict_proba(x, return_std=True)
    np.testing.assert_allclose(proba.sum(1), 1)
    assert (std > 0).all()
    labels, spread = classifier.predict(x, return_std=True)
    np.testing.assert_array_equal(labels, classifier.classes_[proba.argmax(1)])
    np.testing.assert_array_equal(spread, std[np.arange(150), proba.argmax(1)])
    np.testing.assert_allclose(classifier.log_prob(x, labels), np.log(proba.max(1)))
    samples = classifier.sample_y(x[:1], 2000, random_state=0)
    assert set(samples.ravel()) <= set(classifier.classes_)
    share = np.mean(samples == classifier.classes_[0])
    np.testing.assert_allclose(share, proba[0, 0], atol=0.05)


def test_a_set_of_classes_is_the_smallest_that_reaches_its_coverage(classifier):
    x = load_iris().data
    proba, chosen = classifier.predict_proba(x), classifier.predict_set(x, coverage=0.9)
    for p, c in zip(proba, chosen, strict=True):
        assert p[c].sum() >= 0.9
        assert p[c].sum() - p[c].min() < 0.9


@pytest.mark.slow
def test_pipelines_searches_and_displays_of_scikit_learn_accept_the_estimators(line, classifier):
    x, y = line
    quick = sdebnn.SDEBNNRegressor(**SHORT)
    search = GridSearchCV(make_pipeline(StandardScaler(), quick), {"sdebnnregressor__draws": [5, 10]}, cv=2).fit(x, y)
    assert search.best_score_ > 0.9
    assert clone(quick).get_params() == quick.get_params()
    iris, labels = load_iris(return_X_y=True)
    pytest.importorskip("matplotlib").use("agg")
    two = labels < 2
    binary = sdebnn.SDEBNNClassifier(**SHORT).fit(iris[two], labels[two])
    CalibrationDisplay.from_estimator(binary, iris[two], labels[two], n_bins=3)


@pytest.mark.slow
def test_warm_start_continues_from_the_last_fit(line):
    x, y = line
    once = sdebnn.SDEBNNRegressor(**SHORT, early_stopping=False).fit(x, y)
    twice = clone(once).set_params(warm_start=True).fit(x, y)
    first = twice.loss_curve_
    np.testing.assert_array_equal(twice.predict(x), once.predict(x))
    twice.fit(x, y)
    assert twice.loss_curve_.max() < first[:5].mean()  # the second fit starts where the first one ended
    assert twice.loss_curve_[-5:].mean() < first[-5:].mean()
    with pytest.raises(ValueError, match="warm_start"):
        twice.set_params(width=8).fit(x, y)
    with pytest.raises(ValueError, match="standard deviations from those of the first fit"):
        twice.set_params(width=50).fit(x, 1e9 * y)
    with pytest.raises(ValueError, match="rows that it has not seen"):
        twice.set_params(conformal=True).fit(x, y)


def test_early_stopping_ends_training_if_nothing_can_be_learned(line):
    random = np.random.default_rng(0)
    model = sdebnn.SDEBNNRegressor(members=1, max_iter=2000, random_state=0, n_iter_no_change=2)
    model.fit(line[0], random.normal(size=400))  # pure noise
    assert 1 <= model.n_iter_ == len(model.loss_curve_) < 1000


def test_only_verbose_fits_print(line, capfd):
    model = sdebnn.SDEBNNRegressor(**SHORT)
    model.fit(*line)
    assert capfd.readouterr() == ("", "")
    model.set_params(verbose=1).fit(*line)
    assert "KL weight" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "value"),
    [("members", 0), ("width", 1.5), ("sigma", -1.0), ("noise", "cauchy"), ("max_iter", None), ("draws", 0),
     ("validation_fraction", 1.0), ("learning_rate", np.nan)],
)  # fmt: skip
def test_a_wrong_parameter_is_refused_by_fit(name, value, line, refused):
    refused(lambda: sdebnn.SDEBNNRegressor(**{name: value}).fit(*line), name)


def test_wrong_arguments_of_predictions_are_refused(regressor, classifier, line, refused):
    x, y = line
    for level in (0.0, 1.0, 1.5):
        refused(lambda level=level: regressor.predict_interval(x, coverage=level), "coverage")
    refused(lambda: regressor.predict_quantiles(x, alpha=(0.1, 2.0)), "alpha")
    refused(lambda: regressor.sample_y(x, 0), "n_samples")
    refused(lambda: classifier.log_prob(load_iris().data[:1], ["rose"]), "rose")
    with pytest.raises(ValueError, match="targets"):
        regressor.log_prob(x, np.stack([y, y], 1))
    with pytest.raises(NotFittedError):
        sdebnn.SDEBNNRegressor().predict(x)


def test_few_held_out_rows_change_the_calibration_little():
    random = np.random.default_rng(0)
    x = random.normal(size=(8, 2))
    for seed in range(3):
        model = sdebnn.SDEBNNClassifier(members=1, max_iter=200, random_state=seed).fit(x, np.arange(8) % 2)
        assert 0.6 < model.temperature_ < 1.7


@pytest.mark.slow
def test_conformal_intervals_cover_even_if_the_model_has_learned_little():
    random = np.random.default_rng(0)
    covered = []
    for seed in range(5):
        x = random.normal(size=(1300, 2))
        y = np.exp(x[:, 0]) * (1 + random.exponential(size=1300))
        model = sdebnn.SDEBNNRegressor(
            family="ensemble", members=1, max_iter=20, conformal=True, calibration_fraction=0.5, random_state=seed,
            draws=10,
        ).fit(x[:300], y[:300])  # fmt: skip
        lower, upper = model.predict_interval(x[300:], coverage=0.9)
        np.testing.assert_array_equal(model.forecast(x[300:], coverage=0.9).interval, (lower, upper))
        covered.append(np.mean((lower <= y[300:]) & (y[300:] <= upper)))
    # 150 held-out rows: the coverage of one fit is Beta(136, 15), mean 0.9007, standard deviation 0.024.
    assert abs(np.mean(covered) - 0.9007) < 3.5 * 0.024 / np.sqrt(5)


def test_conformal_sets_have_the_promised_coverage():
    random = np.random.default_rng(0)
    x = random.normal(size=(1300, 2))
    y = (x[:, 0] + random.normal(size=1300) > 0).astype(int)
    model = sdebnn.SDEBNNClassifier(
        members=1, max_iter=20, conformal=True, calibration_fraction=0.5, random_state=0, draws=10
    ).fit(x[:300], y[:300])
    chosen = model.predict_set(x[300:], coverage=0.9)
    seen = chosen[np.arange(1000), y[300:]].mean()
    assert abs(seen - 0.9007) < 3.5 * np.hypot(0.024, 0.0095)


def test_a_coverage_that_needs_more_held_out_rows_is_refused(line, refused):
    x, y = line
    model = sdebnn.SDEBNNRegressor(members=1, max_iter=20, conformal=True, random_state=0).fit(x[:40], y[:40])
    refused(lambda: model.predict_interval(x, coverage=0.95), "needs 19 held-out rows, and there are 8")


@pytest.mark.slow
def test_the_estimators_work_in_double_precision(line, tmp_path):
    code = (
        "import jax, sys, numpy as np; jax.config.update('jax_enable_x64', True); import sdebnn\n"
        "jax.config.update('jax_disable_most_optimizations', True)\n"
        "x, y = np.load(sys.argv[1]), np.load(sys.argv[2])\n"
        "model = sdebnn.SDEBNNRegressor(members=1, max_iter=20, random_state=0).fit(x, y)\n"
        "assert model.score(x, y) > 0.9, model.score(x, y)\n"
    )
    files = [str(tmp_path / name) for name in ("x.npy", "y.npy")]
    for file, array in zip(files, line, strict=True):
        np.save(file, array)
    subprocess.run([sys.executable, "-c", code, *files], check=True)
