"""Scores on held-out examples, early stopping, and the records of metrics."""

import json

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from line_fits import HOW, KEY, LINE, ONE_DRAW, SGD, X, Y, weights
from small_models import Belief

from sdebnn import (
    Batches,
    Categorical,
    Checkpoints,
    Deterministic,
    Gaussian,
    Optimizer,
    Validation,
    fit,
)
from sdebnn.train import saved_answer


def test_early_stopping_returns_the_best_parameters_that_it_saw():
    x, y = X[:12], Y[:12]
    held = (X[12:], -Y[12:])  # the opposite is true there: each step makes it worse
    fitted = fit(
        LINE, Gaussian(1.0), x, y, epochs=50, batches=Batches(6), optimizer=Optimizer(rule=SGD),
        validation=Validation(*held, patience=3), **HOW,
    )  # fmt: skip
    first = fit(LINE, Gaussian(1.0), x, y, epochs=1, batches=Batches(6), optimizer=Optimizer(rule=SGD), **HOW)
    np.testing.assert_array_equal(weights(fitted), weights(first))
    assert np.isfinite(fitted.history["elbo"]).sum() == 4 * 2  # the best, then three in vain


def test_what_training_starts_from_may_be_the_best(tmp_path, capsys):
    held = (X[12:], -Y[12:])  # the opposite is true there: each step makes it worse
    how = {"epochs": 50, "batches": Batches(6), "optimizer": Optimizer(rule=SGD), **HOW, "progress": True}
    validation = Validation(*held, patience=3, at_start=True)
    fitted = fit(
        LINE, Gaussian(1.0), X[:12], Y[:12], validation=validation, checkpoints=Checkpoints(tmp_path), **how
    )  # fmt: skip
    np.testing.assert_array_equal(weights(fitted), LINE.module.weight)
    assert np.isfinite(fitted.history["elbo"]).sum() == 3 * 2
    assert "Before this training, the validation nll is" in capsys.readouterr().err
    like = eqx.filter((LINE, Gaussian(1.0)), eqx.is_inexact_array)
    for best in (False, True):
        assert eqx.tree_equal(saved_answer(tmp_path, like, best=best), like)


def test_the_watched_elbo_charges_for_the_kl_and_the_nll_does_not(tmp_path):
    x, y = jnp.zeros((10, 1)), jnp.zeros((10, 1))
    for watch in ("nll", "elbo"):
        fit(
            Belief(jnp.array(3.0)), Gaussian(1.0), x, y, epochs=50, validation=Validation(x, y, watch=watch),
            checkpoints=Checkpoints(tmp_path / watch), **HOW,
        )  # fmt: skip
        row = json.loads((tmp_path / watch / "metrics.jsonl").read_text().splitlines()[-1])
        assert row["validation_kl"] > 0
        assert row["validation_elbo"] < -row["validation_nll"]


def test_the_metrics_of_a_run_are_lines_of_json_with_all_that_a_bar_shows(tmp_path, capsys):
    labels = (Y[:, 0] > 0).astype(int)
    model = Deterministic(eqx.nn.Linear(2, 2, key=KEY))
    fit(
        model, Categorical(), X[:16], labels[:16], validation=Validation(X[16:], labels[16:]), objective=ONE_DRAW,
        batches=Batches(8), checkpoints=Checkpoints(tmp_path, tensorboard=True), key=KEY, epochs=3,
    )  # fmt: skip
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows][-1] == 6
    assert {"epoch", "seconds", "loss", "elbo", "kl", "accuracy", "gradient_norm", "skipped"} <= set(rows[0])
    assert 0 <= rows[-1]["validation_accuracy"] <= 1
    assert rows[-1]["loss"] == pytest.approx(-rows[-1]["elbo"] / 16)
    assert list((tmp_path / "tensorboard").glob("events.*"))
    said = capsys.readouterr().err
    for words in ("effective temperature 1", "loss", "KL", "accuracy", "left"):
        assert words in said
