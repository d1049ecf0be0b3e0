"""Estimators on tables of unusual units, shapes and contents."""

import warnings

import numpy as np
import pandas
import polars
import pytest
import sklearn
from estimator_data import SHORT
from scipy import sparse
from sklearn.base import clone

import sdebnn

EACH_FAMILY = pytest.mark.parametrize("family", ["ensemble", "gp"])


def test_frames_of_pandas_and_polars_give_the_same_fit(line):
    x, y = line
    sklearn_version = tuple(map(int, sklearn.__version__.split(".")[:2]))
    model = sdebnn.SDEBNNRegressor(**SHORT)
    frames = pandas.DataFrame(x, columns=["a", "b"]), polars.DataFrame({"a": x[:, 0], "b": x[:, 1]})
    fits = [
        clone(model).fit(frames[0], pandas.Series(y)),
        clone(model).fit(frames[1], polars.Series(y)),
        clone(model).fit(x, y),
    ]
    for fit, frame in zip(fits, (*frames, x), strict=True):
        np.testing.assert_array_equal(fit.predict(frame), fits[0].predict(frames[0]))
    assert fits[0].feature_names_in_.tolist() == ["a", "b"]
    if sklearn_version >= (1, 9) or hasattr(polars.DataFrame, "__dataframe__"):  # older ones cannot read polars 2
        assert fits[1].feature_names_in_.tolist() == ["a", "b"]
    with pytest.raises(ValueError, match="feature names"):
        fits[0].predict(frames[0].rename(columns={"a": "c"}))


@EACH_FAMILY
def test_weights_are_counts_and_the_order_of_rows_does_not_matter(family, line):
    x, y = line[0][:60], line[1][:60]
    model = sdebnn.SDEBNNRegressor(family=family, members=2, max_iter=20, random_state=0)
    times = np.arange(60) % 3
    counted = clone(model).fit(x, y, sample_weight=times).predict(x)
    repeated = np.random.default_rng(0).permutation(np.repeat(np.arange(60), times))
    np.testing.assert_array_equal(clone(model).fit(x[repeated], y[repeated]).predict(x), counted)


@EACH_FAMILY
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12, 1e200])
def test_units_do_not_matter(scale, family, line):
    x, y = line
    model = sdebnn.SDEBNNRegressor(family=family, **SHORT)
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


@EACH_FAMILY
@pytest.mark.parametrize("value", [5.0, 0.0, -1e12, 1e-12])
def test_a_constant_target_is_predicted_exactly(value, family, line):
    model = sdebnn.SDEBNNRegressor(family=family, **SHORT).fit(line[0], np.full(400, value))
    mean, std = model.predict(line[0], return_std=True)
    np.testing.assert_allclose(mean, value, rtol=1e-5, atol=1e-5 * (value == 0))
    assert (std > 0).all()


@EACH_FAMILY
def test_a_constant_feature_does_not_affect_predictions(family, line):
    x, y = line
    model = sdebnn.SDEBNNRegressor(family=family, **SHORT)
    beside = np.column_stack([x, np.full(400, 7.0)])
    fitted = model.fit(beside, y)
    other = beside.copy()
    other[:, 2] = -3.0
    np.testing.assert_array_equal(fitted.predict(beside), fitted.predict(other))


def test_a_class_of_one_row_is_never_held_out():
    random = np.random.default_rng(0)
    x = np.vstack([random.normal(size=(60, 2)), [[9.0, 9.0]]])
    y = np.append(random.integers(0, 2, 60), 2)
    for seed in range(2):
        model = sdebnn.SDEBNNClassifier(members=1, max_iter=200, random_state=seed, n_iter_no_change=50)
        assert model.fit(x, y).predict_proba([[9.0, 9.0]])[0, 2] > 0.3


@pytest.mark.parametrize("class_weight", [{0: -1.0, 1: 1.0}, {0: 0.0, 1: 1.0}, {0: 0.0, 1: 0.0}])
def test_class_weights_that_leave_fewer_than_two_classes_are_refused(class_weight, line):
    with pytest.raises(ValueError, match="class"):
        sdebnn.SDEBNNClassifier(class_weight=class_weight).fit(line[0], (line[1] > 0).astype(int))


@EACH_FAMILY
def test_one_row_is_enough_for_regression(family):
    model = sdebnn.SDEBNNRegressor(family=family, **SHORT).fit([[1.0]], [3.0])
    mean, std = model.predict([[1.0]], return_std=True)
    assert abs(mean[0] - 3) < 1
    assert std[0] > 1e-3  # one row carries little information


def test_one_class_is_refused():
    with pytest.raises(ValueError, match="one class"):
        sdebnn.SDEBNNClassifier().fit([[1.0], [2.0]], ["a", "a"])
    with pytest.raises(ValueError, match="one class"):
        sdebnn.SDEBNNClassifier().fit([[1.0], [2.0]], ["a", "b"], sample_weight=[1, 0])


def test_invalid_tables_are_refused_with_the_messages_of_scikit_learn(line):
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


@pytest.mark.slow
def test_several_targets_may_have_different_units(line):
    x, y = line
    targets = np.column_stack([y, -1e6 * y, x[:, 1]])
    model = sdebnn.SDEBNNRegressor(members=1, max_iter=200, random_state=0).fit(x, targets)
    assert model.score(x, targets) > 0.9
    assert model.predict(x).shape == (400, 3)
    assert model.predict_quantiles(x, (0.1, 0.9)).shape == (400, 3, 2)
    assert model.sample_y(x[:5], 7).shape == (5, 3, 7)
    assert model.log_prob(x, targets).shape == (400,)
    column = clone(model).set_params(max_iter=20).fit(x, y[:, None])
    assert column.predict(x).shape == (400, 1)


@pytest.mark.slow
def test_a_table_of_many_columns_is_learned():
    x = np.random.default_rng(0).normal(size=(600, 150))
    y = x.sum(1) > 0
    model = sdebnn.SDEBNNClassifier(members=1, max_iter=200, random_state=0).fit(x[:400], y[:400])
    assert model.score(x[400:], y[400:]) > 0.65  # chance gives 0.5 with a standard error of 0.035


def test_only_columns_on_another_scale_cause_a_warning(regressor, line):
    X, _ = line
    many = np.resize(X, (60, X.shape[1])) if len(X) < 60 else X[:60]
    with pytest.warns(UserWarning, match="unlike the training data"):
        regressor.predict(1000 * many + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        regressor.predict(many)
        regressor.predict(np.repeat(many[:1], 60, axis=0))  # one row, many times
        regressor.predict(1000 * many[:5])  # too few rows to judge
