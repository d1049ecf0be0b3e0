"""Members that are trained side by side are those that ``fit`` trains one after the other."""

from concurrent.futures import CancelledError

import equinox as eqx
import jax
import numpy as np
import pytest

import sdebnn
from sdebnn.estimators import estimator
from sdebnn.estimators.workers import Workers


@pytest.mark.slow
@pytest.mark.parametrize("early_stopping", [True, False])
def test_the_members_are_those_of_fit(early_stopping, line, monkeypatch):
    """Up to rounding errors, which 40 steps amplify little."""
    model = sdebnn.SDEBNNRegressor(
        family="ensemble", members=2, max_iter=40, early_stopping=early_stopping, random_state=0
    )
    quick = sdebnn.SDEBNNRegressor(**model.get_params()).fit(*line)
    monkeypatch.setattr(estimator, "trained", lambda *_, **__: None)
    model.fit(*line)
    assert quick.n_iter_ == model.n_iter_ == 40
    np.testing.assert_allclose(quick.loss_curve_, model.loss_curve_, rtol=1e-3, atol=1e-3)
    for a, b in zip(*(jax.tree.leaves(eqx.filter(m.ensemble_, eqx.is_array)) for m in (quick, model)), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-3)
    np.testing.assert_allclose(quick.predict(line[0]), model.predict(line[0]), atol=1e-2)


def test_both_ways_stop_at_the_same_step(line, monkeypatch):
    """Targets that cannot be learned are predicted worse after every step, whatever the rounding errors."""
    noise = np.random.default_rng(0).normal(size=400)
    model = sdebnn.SDEBNNRegressor(
        family="ensemble", members=1, max_iter=400, n_iter_no_change=2, learning_rate=0.1, random_state=0
    )
    quick = sdebnn.SDEBNNRegressor(**model.get_params()).fit(line[0], noise)
    monkeypatch.setattr(estimator, "trained", lambda *_, **__: None)
    assert quick.n_iter_ == model.fit(line[0], noise).n_iter_ < 400


def test_training_that_explodes_is_left_to_fit_and_its_warnings(line):
    model = sdebnn.SDEBNNRegressor(
        family="ensemble", members=1, max_iter=20, early_stopping=False, learning_rate=1e12, random_state=0
    )
    with pytest.warns(RuntimeWarning, match="lower learning_rate"):
        model.fit(*line)


def test_an_exception_ends_the_tasks_of_all_workers():
    def endless(check):
        while True:
            check()

    with pytest.raises(KeyboardInterrupt), Workers(2) as workers:
        tasks = [workers.start(endless) for _ in range(3)]
        raise KeyboardInterrupt
    for task in tasks[:2]:
        assert isinstance(task.exception(), CancelledError)
    assert tasks[2].cancelled()


def test_workers_compute_in_the_precision_of_their_caller():
    for double in (False, True):
        with jax.enable_x64(double), Workers(1) as workers:
            assert workers.start(lambda _: jax.config.jax_enable_x64).result() is double
