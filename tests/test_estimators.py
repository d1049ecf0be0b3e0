"""The estimators for scikit-learn: what forecasts promise, and that nothing is lost."""

import os
import pickle
import subprocess
import sys
import warnings
from itertools import pairwise

import jax
import joblib
import numpy as np
import pandas
import polars
import pytest
from scipy import integrate, stats
from sklearn.base import clone
from sklearn.calibration import CalibrationDisplay
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sdebnn
from sdebnn.estimators.conformal import conformal_rank
from sdebnn.estimators.forecast import Forecast
from sdebnn.estimators.table import Encoding, Rows, Scaling

QUICK = {"members": 2, "max_iter": 200, "draws": 20}


@pytest.fixture(scope="module")
def line():
    """Noise that grows from left to right, and a second column that means nothing."""
    random = np.random.default_rng(0)
    x = random.uniform(-2, 2, (400, 2))
    return x, 3 * x[:, 0] + (0.1 + 0.4 * (x[:, 0] > 0)) * random.normal(size=400)


@pytest.fixture(scope="module")
def regressor(line):
    return sdebnn.SDEBNNRegressor(max_iter=200, members=2, random_state=0).fit(*line)


@pytest.fixture(scope="module")
def classifier():
    x, y = load_iris(return_X_y=True)
    return sdebnn.SDEBNNClassifier(**QUICK, random_state=0).fit(x, np.array(["setosa", "versicolor", "virginica"])[y])


@pytest.mark.parametrize("row", range(3))
def test_a_forecast_is_the_mixture_of_its_draws(row):
    random = np.random.default_rng(0)
    law, location, scale = stats.t(5), random.normal(size=(7, 3, 1)), random.uniform(0.1, 2, (7, 3, 1))
    forecast = Forecast(law, location, scale)

    def density(y):
        return np.mean(law.pdf((y - location[:, row, 0]) / scale[:, row, 0]) / scale[:, row, 0])

    mean = integrate.quad(lambda y: y * density(y), -np.inf, np.inf)[0]
    square = integrate.quad(lambda y: (y - mean) ** 2 * density(y), -np.inf, np.inf, limit=200)[0]
    np.testing.assert_allclose(forecast.mean()[row, 0], mean, atol=1e-6)
    np.testing.assert_allclose(forecast.std()[row, 0], np.sqrt(square), rtol=1e-5)
    np.testing.assert_allclose(forecast.log_prob(np.full((3, 1), 0.3))[row], np.log(density(0.3)))
    for level in (0.025, 0.5, 0.9):
        below = integrate.quad(density, -np.inf, forecast.quantile(level)[row, 0], limit=200)[0]
        np.testing.assert_allclose(below, level, atol=1e-7)


@pytest.mark.parametrize("law", [stats.norm(), stats.t(5), stats.laplace()])
@pytest.mark.parametrize("level", [1e-3, 0.5, 0.975])
def test_quantiles_are_found_among_far_and_narrow_draws(law, level):
    """Draws whose scales differ by a million, and leave gaps where the distribution function is flat."""
    random = np.random.default_rng(0)
    forecast = Forecast(law, 10 * random.normal(size=(32, 500, 1)), np.exp(3 * random.normal(size=(32, 500, 1))))
    found = forecast.quantile(level)
    reached = law.cdf((found - forecast.location) / forecast.scale).mean(0)
    np.testing.assert_allclose(reached, level, atol=1e-9)
    alone = Forecast(law, forecast.location[:, :3], forecast.scale[:, :3]).quantile(level)
    np.testing.assert_array_equal(alone, found[:3])  # whichever rows are beside it


def test_several_targets_are_forecast_together():
    location, scale = np.array([[[0.0, 0.0]], [[3.0, 3.0]]]), np.ones((2, 1, 2))
    # Both targets come from the same draw: (0, 3) is far less likely than (3, 3).
    seen = [Forecast(stats.norm(), location, scale).log_prob(np.array([y]))[0] for y in ((3.0, 3.0), (0.0, 3.0))]
    by_hand = [
        np.log(np.mean([stats.norm.pdf(a - m) * stats.norm.pdf(b - m) for m in (0, 3)])) for a, b in ((3, 3), (0, 3))
    ]
    np.testing.assert_allclose(seen, by_hand)


def test_the_noise_of_each_row_is_found(regressor):
    x = np.array([[-1.5, 0.0], [1.5, 0.0]])
    mean, std = regressor.predict(x, return_std=True)
    np.testing.assert_allclose(mean, [-4.5, 4.5], atol=0.4)
    assert 0.05 < std[0] < 0.25 < 0.35 < std[1] < 0.8  # 0.1 and 0.5 are true


def test_quantiles_ascend_and_an_interval_is_two_of_them(regressor, line):
    x = line[0][:50]
    quantiles = regressor.predict_quantiles(x, alpha=(0.025, 0.25, 0.5, 0.975))
    assert quantiles.shape == (50, 4)
    assert all((low < high).all() for low, high in pairwise(quantiles.T))
    lower, upper = regressor.predict_interval(x, coverage=0.95)
    np.testing.assert_allclose(np.stack([lower, upper]), quantiles[:, [0, 3]].T)
    np.testing.assert_array_equal(regressor.predict_quantiles(x, alpha=0.5), quantiles[:, 2])


def test_samples_of_y_follow_the_forecast(regressor):
    x = np.array([[-1.0, 0.0], [1.0, 1.0]])
    mean, std = regressor.predict(x, return_std=True)
    samples = regressor.sample_y(x, 400, random_state=1)
    assert samples.shape == (2, 400)
    # Five standard errors of 400 samples, and of the 100 networks of the mean; heavy tails make a spread uncertain.
    np.testing.assert_allclose(samples.mean(1), mean, atol=5 * std.max() * np.sqrt(1 / 400 + 1 / 100))
    np.testing.assert_allclose(samples.std(1), std, rtol=0.35)
    np.testing.assert_array_equal(samples, regressor.sample_y(x, 400, random_state=1))
    # One sample at a time is one network at a time: another for another random state.
    far = np.array([[30.0, -30.0]])
    mean, std = regressor.predict(far, return_std=True)
    one_by_one = np.array([regressor.sample_y(far, 1, random_state=seed)[0, 0] for seed in range(60)])
    assert std[0] / 2 < one_by_one.std() < 2 * std[0]


def test_every_member_has_the_same_weight_in_a_prediction(regressor, classifier, line):
    """Three draws of two members are rounded up to four; samples of y are as many as were asked for."""
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


def test_probabilities_of_a_classifier(classifier):
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


# Nothing is lost


def same(a, b, x):
    if isinstance(a, sdebnn.SDEBNNClassifier):
        np.testing.assert_array_equal(a.predict_proba(x), b.predict_proba(x))
    np.testing.assert_array_equal(a.predict(x), b.predict(x))
    assert a.get_params() == b.get_params()


@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_saving_gives_back_the_same_predictions(kind, request, tmp_path):
    estimator = request.getfixturevalue(kind)
    x = np.random.default_rng(1).normal(size=(20, estimator.n_features_in_))
    sdebnn.save(estimator, tmp_path / "saved")
    same(estimator, sdebnn.load(tmp_path / "saved"), x)
    same(estimator, pickle.loads(pickle.dumps(estimator)), x)
    joblib.dump(estimator, tmp_path / "by_joblib")
    same(estimator, joblib.load(tmp_path / "by_joblib"), x)
    same(estimator, joblib.load(tmp_path / "by_joblib", mmap_mode="r"), x)


def test_what_was_saved_on_one_device_is_read_on_another(regressor, tmp_path):
    """Written by a process that computes on a second device; read by one that has only the first."""
    code = (
        "import jax, numpy as np, sdebnn, sys, pickle\n"
        "jax.config.update('jax_disable_most_optimizations', True)\n"
        "random = np.random.default_rng(0); x = random.normal(size=(40, 2)); y = x[:, 0]\n"
        "with jax.default_device(jax.devices()[1]):\n"
        "    model = sdebnn.SDEBNNRegressor(members=1, max_iter=20, draws=4, random_state=0).fit(x, y)\n"
        "    assert jax.tree.leaves(model.members_)[0].devices() == {jax.devices()[1]}\n"
        "    sdebnn.save(model, sys.argv[1]); pickle.dump(model, open(sys.argv[2], 'wb'))\n"
        "    np.save(sys.argv[3], np.column_stack([x, model.predict(x)]))\n"
    )
    files = [str(tmp_path / name) for name in ("saved", "pickled", "said.npy")]
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    subprocess.run([sys.executable, "-c", code, *files], check=True, env={**os.environ, "XLA_FLAGS": flags})
    x, said = np.split(np.load(files[2]), [2], axis=1)
    assert len(jax.devices()) == 1
    np.testing.assert_allclose(sdebnn.load(files[0]).predict(x), said[:, 0], rtol=1e-6)
    with open(files[1], "rb") as file:
        np.testing.assert_allclose(pickle.load(file).predict(x), said[:, 0], rtol=1e-6)


def test_a_saved_file_that_was_changed_is_refused(regressor, tmp_path, refused):
    path = tmp_path / "saved"
    sdebnn.save(regressor, path)
    whole = path.read_bytes()
    for damaged in (whole[:-5], b"x" + whole, whole[:-1] + bytes([whole[-1] ^ 1]), whole.replace(b"2", b"3", 1), b""):
        path.write_bytes(damaged)
        refused(lambda: sdebnn.load(path), "save it anew")
    refused(lambda: sdebnn.load(tmp_path / "nothing"), "is not there")
    refused(lambda: sdebnn.save(sdebnn.SDEBNNRegressor(), path), "not fitted")
    refused(lambda: sdebnn.save(StandardScaler(), path), "none of")
    refused(lambda: sdebnn.save(regressor, tmp_path / "no" / "folder"), "cannot be a file")


def test_class_weights_by_labels_are_saved(line, tmp_path):
    labels = (line[1] > 0).astype(int)
    weights = dict(zip(np.unique(labels), [1.0, 2.0], strict=True))
    model = sdebnn.SDEBNNClassifier(members=1, max_iter=20, class_weight=weights, random_state=0).fit(line[0], labels)
    sdebnn.save(model, tmp_path / "saved")
    same(model, sdebnn.load(tmp_path / "saved"), line[0])


def test_what_cannot_be_saved_leaves_the_old_file_alone(line, tmp_path, refused):
    model = sdebnn.SDEBNNRegressor(members=1, max_iter=20, random_state=0).fit(*line)
    sdebnn.save(model, tmp_path / "saved")
    before = (tmp_path / "saved").read_bytes()
    model.set_params(random_state=np.random.RandomState(0))
    refused(lambda: sdebnn.save(model, tmp_path / "saved"), "random_state")
    assert (tmp_path / "saved").read_bytes() == before


def test_a_fit_that_fails_leaves_the_last_one_as_it_was(line, monkeypatch):
    x, y = line
    model = sdebnn.SDEBNNRegressor(members=2, max_iter=20, random_state=0).fit(x, y)
    before = model.predict(x)
    with pytest.raises(ValueError, match="NaN"):
        model.fit(x, np.where(y > 1, np.nan, y))

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("sdebnn.estimators.estimator.fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(x[:, :1], y)
    np.testing.assert_array_equal(model.predict(x), before)


# What scikit-learn asks of a good neighbour


def test_it_works_where_scikit_learn_s_own_do(line, classifier):
    x, y = line
    quick = sdebnn.SDEBNNRegressor(members=1, max_iter=200, random_state=0)
    assert cross_val_score(make_pipeline(StandardScaler(), quick), x, y, cv=2).min() > 0.9
    search = GridSearchCV(quick, {"draws": [5, 10]}, cv=2).fit(x, y)
    assert search.best_score_ > 0.9
    assert clone(quick).get_params() == quick.get_params()
    iris, labels = load_iris(return_X_y=True)
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    two = labels < 2
    binary = sdebnn.SDEBNNClassifier(**QUICK, random_state=0).fit(iris[two], labels[two])
    CalibrationDisplay.from_estimator(binary, iris[two], labels[two], n_bins=3)


def test_frames_of_pandas_and_polars_are_the_same_table(line):
    x, y = line
    model = sdebnn.SDEBNNRegressor(members=1, max_iter=20, random_state=0)
    frames = pandas.DataFrame(x, columns=["a", "b"]), polars.DataFrame({"a": x[:, 0], "b": x[:, 1]})
    fits = [
        clone(model).fit(frames[0], pandas.Series(y)),
        clone(model).fit(frames[1], polars.Series(y)),
        clone(model).fit(x, y),
    ]
    for fit, frame in zip(fits, (*frames, x), strict=True):
        np.testing.assert_array_equal(fit.predict(frame), fits[0].predict(frames[0]))
    assert fits[0].feature_names_in_.tolist() == fits[1].feature_names_in_.tolist() == ["a", "b"]
    with pytest.raises(ValueError, match="feature names"):
        fits[0].predict(frames[0].rename(columns={"a": "c"}))


def test_weights_are_counts_and_order_is_nothing(line):
    x, y = line[0][:60], line[1][:60]
    model = sdebnn.SDEBNNRegressor(members=2, max_iter=20, random_state=0)
    times = np.arange(60) % 3
    counted = clone(model).fit(x, y, sample_weight=times).predict(x)
    repeated = np.random.default_rng(0).permutation(np.repeat(np.arange(60), times))
    np.testing.assert_array_equal(clone(model).fit(x[repeated], y[repeated]).predict(x), counted)


def test_warm_start_goes_on_from_the_last_fit(line):
    x, y = line
    once = sdebnn.SDEBNNRegressor(members=1, max_iter=20, random_state=0, early_stopping=False).fit(x, y)
    twice = clone(once).set_params(warm_start=True).fit(x, y)
    first = twice.loss_curve_
    np.testing.assert_array_equal(twice.predict(x), once.predict(x))
    twice.fit(x, y)
    assert twice.loss_curve_.max() < first[:5].mean()  # nothing learned is thrown away
    assert twice.loss_curve_[-5:].mean() < first[-5:].mean()
    with pytest.raises(ValueError, match="warm_start"):
        twice.set_params(width=8).fit(x, y)
    with pytest.raises(ValueError, match="spreads from those of the first fit"):
        twice.set_params(width=50).fit(x, 1e9 * y)
    with pytest.raises(ValueError, match="rows that it has not"):
        twice.set_params(conformal=True).fit(x, y)


def test_a_held_out_part_stops_training(line):
    random = np.random.default_rng(0)
    model = sdebnn.SDEBNNRegressor(members=1, max_iter=2000, random_state=0, n_iter_no_change=2)
    model.fit(line[0], random.normal(size=400))  # nothing to be learned
    assert 1 <= model.n_iter_ == len(model.loss_curve_) < 1000


def test_verbose_shows_a_bar_and_silence_is_silent(line, capfd):
    model = sdebnn.SDEBNNRegressor(members=1, max_iter=20, random_state=0)
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


def test_a_wrong_question_is_refused(regressor, classifier, line, refused):
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


# Tables at the edge


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12, 1e200])
def test_units_do_not_matter(scale, line):
    x, y = line
    model = sdebnn.SDEBNNRegressor(members=1, max_iter=20, random_state=0)
    plain, scaled = clone(model).fit(x, y), clone(model).fit(x * scale, y * scale)
    np.testing.assert_allclose(scaled.predict(x * scale), scale * plain.predict(x), rtol=1e-2, atol=1e-2 * scale)
    np.testing.assert_allclose(
        scaled.predict(x * scale, return_std=True)[1], scale * plain.predict(x, return_std=True)[1], rtol=5e-2
    )


@pytest.mark.parametrize("value", [1.7e308, -1.7e308])
def test_numbers_that_would_overflow_are_refused(value, line, refused):
    x, y = line[0].copy(), line[1].copy()
    y[3] = value
    refused(lambda: sdebnn.SDEBNNRegressor(members=1, max_iter=20).fit(x, y), r"y holds -?1.7e\+308.*divide")
    x[3, 1] = value
    for model, targets in ((sdebnn.SDEBNNRegressor(), line[1]), (sdebnn.SDEBNNClassifier(), line[1] > 0)):
        refused(lambda model=model, targets=targets: model.fit(x, targets), r"X holds -?1.7e\+308.*divide")


def test_a_large_offset_is_no_constant():
    column = 1.7e9 + np.random.default_rng(0).normal(size=(10_000, 1))
    np.testing.assert_allclose(Scaling.of(column, np.ones(10_000), constant=1e-6).spread, column.std(), rtol=1e-6)


@pytest.mark.parametrize("value", [5.0, 0.0, -1e12, 1e-12])
def test_a_constant_target_is_predicted_as_it_is(value, line):
    model = sdebnn.SDEBNNRegressor(members=1, max_iter=20, random_state=0).fit(line[0], np.full(400, value))
    mean, std = model.predict(line[0], return_std=True)
    np.testing.assert_allclose(mean, value, rtol=1e-5, atol=1e-5 * (value == 0))
    assert (std > 0).all()


def test_a_constant_feature_says_nothing(line):
    x, y = line
    model = sdebnn.SDEBNNRegressor(members=1, max_iter=20, random_state=0)
    beside = np.column_stack([x, np.full(400, 7.0)])
    fitted = model.fit(beside, y)
    other = beside.copy()
    other[:, 2] = -3.0
    np.testing.assert_array_equal(fitted.predict(beside), fitted.predict(other))


def test_a_class_of_one_row_is_learned_from_whichever_rows_are_held_out():
    random = np.random.default_rng(0)
    x = np.vstack([random.normal(size=(60, 2)), [[9.0, 9.0]]])
    y = np.append(random.integers(0, 2, 60), 2)
    for seed in range(4):
        model = sdebnn.SDEBNNClassifier(members=1, max_iter=200, random_state=seed, n_iter_no_change=50)
        assert model.fit(x, y).predict_proba([[9.0, 9.0]])[0, 2] > 0.3


def test_few_rows_held_out_do_not_move_the_calibration_far():
    random = np.random.default_rng(0)
    x = random.normal(size=(8, 2))
    for seed in range(3):
        model = sdebnn.SDEBNNClassifier(members=1, max_iter=200, random_state=seed).fit(x, np.arange(8) % 2)
        assert 0.6 < model.calibration_ < 1.7


@pytest.mark.parametrize("class_weight", [{0: -1.0, 1: 1.0}, {0: 0.0, 1: 1.0}, {0: 0.0, 1: 0.0}])
def test_class_weights_that_leave_no_two_classes_are_refused(class_weight, line):
    with pytest.raises(ValueError, match="class"):
        sdebnn.SDEBNNClassifier(class_weight=class_weight).fit(line[0], (line[1] > 0).astype(int))


def test_one_row_one_column_one_class():
    model = sdebnn.SDEBNNRegressor(members=1, max_iter=20, random_state=0).fit([[1.0]], [3.0])
    mean, std = model.predict([[1.0]], return_std=True)
    assert abs(mean[0] - 3) < 1
    assert std[0] > 1e-3  # one row says little
    with pytest.raises(ValueError, match="one class"):
        sdebnn.SDEBNNClassifier().fit([[1.0], [2.0]], ["a", "a"])
    with pytest.raises(ValueError, match="one class"):
        sdebnn.SDEBNNClassifier().fit([[1.0], [2.0]], ["a", "b"], sample_weight=[1, 0])


def test_what_is_no_table_of_numbers_is_refused_in_scikit_learn_s_words(line):
    from scipy import sparse

    x, y = line
    model = sdebnn.SDEBNNRegressor(members=1, max_iter=20)
    with pytest.raises(ValueError, match="Input X contains NaN"):
        model.fit(np.where(x > 1, np.nan, x), y)
    with pytest.raises(TypeError, match="Sparse data was passed"):
        model.fit(sparse.csr_matrix(x), y)
    with pytest.raises(ValueError, match="could not convert string to float"):
        model.fit([["a"], ["b"]], [1.0, 2.0])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(x, y[:-1])
    with pytest.raises(ValueError, match=r"[Nn]egative"):
        model.fit(x, y, sample_weight=-np.ones(400))


def test_several_targets_of_different_units(line):
    x, y = line
    targets = np.column_stack([y, -1e6 * y, x[:, 1]])
    model = sdebnn.SDEBNNRegressor(members=1, max_iter=200, random_state=0).fit(x, targets)
    assert model.score(x, targets) > 0.9
    assert model.predict(x).shape == (400, 3)
    assert model.predict_quantiles(x, (0.1, 0.9)).shape == (400, 3, 2)
    assert model.sample_y(x[:5], 7).shape == (5, 3, 7)
    assert model.log_prob(x, targets).shape == (400,)
    column = clone(model).fit(x, y[:, None])
    assert column.predict(x).shape == (400, 1)


def test_a_table_of_many_columns():
    x = np.random.default_rng(0).normal(size=(600, 150))
    y = x.sum(1) > 0
    model = sdebnn.SDEBNNClassifier(members=1, max_iter=200, random_state=0).fit(x[:400], y[:400])
    assert model.score(x[400:], y[400:]) > 0.65  # 0.5 by chance, give or take 0.035


# Conformal


def test_the_conformal_rank_covers_exactly_as_counted():
    """The k-th of n exchangeable scores is not exceeded by another with probability k / (n + 1)."""
    random = np.random.default_rng(0)
    for n, coverage in ((19, 0.95), (20, 0.9), (9, 0.5)):
        scores = np.sort(random.exponential(size=(20_000, n)), axis=1)
        seen = np.mean(random.exponential(size=20_000) <= conformal_rank(scores, coverage))
        exact = np.ceil((n + 1) * coverage - 1e-9) / (n + 1)
        assert exact >= coverage - 1e-9
        np.testing.assert_allclose(seen, exact, atol=4 * np.sqrt(exact * (1 - exact) / 20_000))


def test_conformal_intervals_cover_what_the_model_gets_wrong():
    """A net that has learned next to nothing covers all the same: on average over fits, as promised."""
    random = np.random.default_rng(0)
    covered = []
    for seed in range(5):
        x = random.normal(size=(1300, 2))
        y = np.exp(x[:, 0]) * (1 + random.exponential(size=1300))
        model = sdebnn.SDEBNNRegressor(
            members=1, max_iter=20, conformal=True, calibration_fraction=0.5, random_state=seed, draws=10
        ).fit(x[:300], y[:300])
        lower, upper = model.predict_interval(x[300:], coverage=0.9)
        covered.append(np.mean((lower <= y[300:]) & (y[300:] <= upper)))
    # 150 held-out rows: the coverage of one fit is Beta(136, 15), mean 0.9007, standard deviation 0.024.
    assert abs(np.mean(covered) - 0.9007) < 3.5 * 0.024 / np.sqrt(5)


def test_conformal_sets_of_classes_cover():
    random = np.random.default_rng(0)
    x = random.normal(size=(1300, 2))
    y = (x[:, 0] + random.normal(size=1300) > 0).astype(int)
    model = sdebnn.SDEBNNClassifier(
        members=1, max_iter=20, conformal=True, calibration_fraction=0.5, random_state=0, draws=10
    ).fit(x[:300], y[:300])
    chosen = model.predict_set(x[300:], coverage=0.9)
    seen = chosen[np.arange(1000), y[300:]].mean()
    assert abs(seen - 0.9007) < 3.5 * np.hypot(0.024, 0.0095)


def test_too_few_rows_for_a_coverage_is_said(line, refused):
    x, y = line
    model = sdebnn.SDEBNNRegressor(members=1, max_iter=20, conformal=True, random_state=0).fit(x[:40], y[:40])
    refused(lambda: model.predict_interval(x, coverage=0.95), "takes 19 held-out rows, there are 8")


# Rooms below


def test_padding_and_merging_keep_every_weighted_sum():
    random = np.random.default_rng(0)
    x = random.integers(0, 3, (50, 2)).astype(float)
    rows = Rows(x, x[:, :1] ** 2, random.integers(0, 4, 50).astype(float))
    whole = (rows.weight[:, None] * np.hstack([rows.x, rows.y])).sum(0)
    for changed in (rows.distinct(), rows.padded(256), rows.distinct().padded(64)):
        np.testing.assert_allclose((changed.weight[:, None] * np.hstack([changed.x, changed.y])).sum(0), whole)
        assert np.isclose(changed.weight.sum(), rows.weight.sum())
    assert len(rows.padded(256).x) == 256
    assert len(rows.distinct().x) <= 9
    train, held_out = rows.distinct().parted(0.3, 0)
    assert len(train.x) + len(held_out.x) == len(rows.distinct().x)


def test_each_number_holds_other_rows_out():
    rows = Rows(np.arange(20.0)[:, None], np.zeros((20, 1)), np.ones(20))
    held_out = [set(rows.parted(0.2, 3, number)[1].x[:, 0]) for number in range(5)]
    assert set.union(*held_out) == set(range(20))


def test_a_standardised_column_has_mean_zero_and_spread_one():
    random = np.random.default_rng(0)
    columns, weight = random.normal(3, 2, (100, 2)) * [1e-200, 1e200], random.uniform(0, 2, 100)
    z = Scaling.of(columns, weight, constant=1.0).to(columns)
    np.testing.assert_allclose(np.average(z, axis=0, weights=weight), 0, atol=1e-12)
    np.testing.assert_allclose(np.average(z**2, axis=0, weights=weight), 1)


def test_the_bins_of_a_column_add_up_to_its_place_among_the_knots():
    x = np.random.default_rng(0).normal(size=(2000, 1))
    encoding = Encoding.of(x, np.ones(2000), 16)
    through = encoding.through(encoding.columns.to(x)).sum(1)
    knots = encoding.knots[0][np.isfinite(encoding.knots[0])]
    places = np.interp(encoding.columns.to(x)[:, 0], knots, np.arange(len(knots)))
    np.testing.assert_allclose(through, places, atol=1e-9)


def test_it_learns_in_double_precision_too(line, tmp_path):
    """Under jax_enable_x64."""
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


def test_columns_on_another_scale_are_warned_of_and_alike_ones_are_not(regressor, line):
    X, _ = line
    many = np.resize(X, (60, X.shape[1])) if len(X) < 60 else X[:60]
    with pytest.warns(UserWarning, match="unlike the training data"):
        regressor.predict(1000 * many + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        regressor.predict(many)
        regressor.predict(np.repeat(many[:1], 60, axis=0))  # one row, many times
        regressor.predict(1000 * many[:5])  # too few to say
