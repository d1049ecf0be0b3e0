"""Fitted estimators survive saving, pickling, other devices and failed fits."""

import os
import pickle
import subprocess
import sys

import jax
import joblib
import numpy as np
import pytest
from estimator_data import SHORT
from sklearn.preprocessing import StandardScaler

import sdebnn


def assert_same(a, b, x):
    if isinstance(a, sdebnn.SDEBNNClassifier):
        np.testing.assert_array_equal(a.predict_proba(x), b.predict_proba(x))
    np.testing.assert_array_equal(a.predict(x), b.predict(x))
    assert a.get_params() == b.get_params()


@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_a_saved_estimator_gives_the_same_predictions(kind, request, tmp_path):
    estimator = request.getfixturevalue(kind)
    x = np.random.default_rng(1).normal(size=(20, estimator.n_features_in_))
    sdebnn.save(estimator, tmp_path / "saved")
    assert_same(estimator, sdebnn.load(tmp_path / "saved"), x)
    assert_same(estimator, pickle.loads(pickle.dumps(estimator)), x)
    joblib.dump(estimator, tmp_path / "by_joblib")
    assert_same(estimator, joblib.load(tmp_path / "by_joblib"), x)
    assert_same(estimator, joblib.load(tmp_path / "by_joblib", mmap_mode="r"), x)


@pytest.mark.slow
def test_an_estimator_saved_on_one_device_loads_on_another(regressor, tmp_path):
    """A process that computes on a second device writes; a process that has only the first device reads."""
    code = (
        "import jax, numpy as np, sdebnn, sys, pickle\n"
        "jax.config.update('jax_disable_most_optimizations', True)\n"
        "random = np.random.default_rng(0); x = random.normal(size=(40, 2)); y = x[:, 0]\n"
        "with jax.default_device(jax.devices()[1]):\n"
        "    model = sdebnn.SDEBNNRegressor(members=1, max_iter=20, draws=4, random_state=0).fit(x, y)\n"
        "    assert jax.tree.leaves(model.ensemble_)[0].devices() == {jax.devices()[1]}\n"
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


@pytest.mark.usefixtures("_as_a_user")
def test_a_saved_file_that_was_changed_is_refused(regressor, tmp_path, refused):
    path = tmp_path / "saved"
    sdebnn.save(regressor, path)
    whole = path.read_bytes()
    for damaged in (whole[:-5], b"x" + whole, whole[:-1] + bytes([whole[-1] ^ 1]), whole.replace(b"2", b"3", 1), b""):
        path.write_bytes(damaged)
        refused(lambda: sdebnn.load(path), "save it again")
    refused(lambda: sdebnn.load(tmp_path / "nothing"), "is not there")
    refused(lambda: sdebnn.save(sdebnn.SDEBNNRegressor(), path), "not fitted")
    refused(lambda: sdebnn.save(StandardScaler(), path), "none of")
    refused(lambda: sdebnn.save(regressor, tmp_path / "no" / "folder"), "cannot be a file")
    refused(lambda: sdebnn.save(regressor, path, inputs=np.ones((2, 2))), "of no use with an estimator")
    path.write_bytes(whole)
    refused(lambda: sdebnn.load(path, modules=["os"]), "holds an estimator: leave out modules")


def test_a_file_of_another_version_is_refused(regressor, tmp_path, monkeypatch, refused):
    with monkeypatch.context() as patch:
        patch.setattr("sdebnn.artifacts.estimators.KIND", "estimator of sdebnn, version 2")
        sdebnn.save(regressor, tmp_path / "saved")
    refused(lambda: sdebnn.load(tmp_path / "saved"), "not of the kind 'estimator of sdebnn, version 3'")


@pytest.mark.slow
def test_class_weights_by_labels_are_saved(line, tmp_path):
    labels = (line[1] > 0).astype(int)
    weights = dict(zip(np.unique(labels), [1.0, 2.0], strict=True))
    model = sdebnn.SDEBNNClassifier(**SHORT, draws=10, class_weight=weights).fit(line[0], labels)
    sdebnn.save(model, tmp_path / "saved")
    assert_same(model, sdebnn.load(tmp_path / "saved"), line[0])


def test_a_failed_save_keeps_the_old_file(line, tmp_path, refused):
    model = sdebnn.SDEBNNRegressor(**SHORT).fit(*line)
    sdebnn.save(model, tmp_path / "saved")
    before = (tmp_path / "saved").read_bytes()
    model.set_params(random_state=np.random.RandomState(0))
    refused(lambda: sdebnn.save(model, tmp_path / "saved"), "random_state")
    assert (tmp_path / "saved").read_bytes() == before


def test_a_failed_fit_keeps_the_last_one(line, monkeypatch):
    x, y = line
    model = sdebnn.SDEBNNRegressor(members=2, max_iter=20, random_state=0).fit(x, y)
    before = model.predict(x)
    with pytest.raises(ValueError, match="NaN"):
        model.fit(x, np.where(y > 1, np.nan, y))

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("sdebnn.estimators.estimator.trained", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(x[:, :1], y)
    np.testing.assert_array_equal(model.predict(x), before)
