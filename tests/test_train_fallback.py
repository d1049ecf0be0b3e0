"""Steps and parameters that are not good are skipped, and the last good parameters are returned."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from line_fits import HOW, KEY, LINE, SGD, X, Y, weights

from sdebnn import (
    Batches,
    Checkpoints,
    Gaussian,
    Optimizer,
    elbo,
    fit,
)
from sdebnn.integrate import Solution
from sdebnn.nn import AbstractModel
from sdebnn.train import RunFolder, saved_answer, saved_steps


class Trap(AbstractModel):
    """Not finite where the batch holds a 13: a bad example among good ones."""

    weight: jax.Array

    def solve(self, x, *, key, with_roughness=False):
        bad = jnp.where(jnp.any(x == 13), jnp.nan, 0.0)
        return Solution(self.weight * x + bad, jnp.zeros(()))


def test_a_step_that_is_not_finite_is_skipped_and_counted_and_never_reaches_the_parameters(tmp_path):
    x = jnp.arange(20.0)[:, None]  # one batch of five holds the 13, in every epoch
    with pytest.warns(RuntimeWarning, match="6 of 24 steps were skipped"):
        fitted = fit(
            Trap(jnp.array(0.0)), Gaussian(10.0), x, x, epochs=6, batches=Batches(5),
            optimizer=Optimizer(rule=optax.adam(1e-2), ema=0.9), checkpoints=Checkpoints(tmp_path), **HOW,
        )  # fmt: skip
    assert np.isfinite(fitted.model.weight)
    assert fitted.model.weight > 0
    assert np.isnan(fitted.history["elbo"]).sum() == 6
    row = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["skipped"] == 6


def test_after_so_many_skipped_steps_in_a_row_the_run_stops_where_it_was_last_good():
    x = jnp.full((4, 1), 13.0)
    with pytest.warns(RuntimeWarning, match="the last 7 in a row"):
        fitted = fit(
            Trap(jnp.array(0.5)), Gaussian(1.0), x, x, epochs=100, optimizer=Optimizer(max_skipped=7, rule=SGD), **HOW
        )
    assert fitted.model.weight == 0.5
    assert np.isnan(fitted.history["elbo"]).all()


def test_parameters_that_were_never_tried_are_not_announced_as_good(tmp_path):
    # One step at a rate of 1e6: the parameters are finite, and useless. The last ones of a good ELBO are the first.
    with pytest.warns(RuntimeWarning, match="the parameters of step 0, the last with a good ELBO, are returned"):
        fitted = fit(
            LINE,
            Gaussian(0.1),
            X,
            Y,
            epochs=1,
            optimizer=Optimizer(rule=optax.sgd(1e6)),
            checkpoints=Checkpoints(tmp_path),
            **HOW,
        )
    assert np.array_equal(weights(fitted), LINE.module.weight)
    saved = saved_answer(tmp_path, eqx.filter((LINE, Gaussian(0.1)), eqx.is_inexact_array))
    assert np.array_equal(saved[0].module.weight, LINE.module.weight)


class Cliff(AbstractModel):
    """Falls off where the weight passes 0.3: finite parameters whose ELBO is not."""

    weight: jax.Array

    def solve(self, x, *, key, with_roughness=False):
        return Solution(self.weight * x * jnp.where(self.weight > 0.3, jnp.inf, 1.0), jnp.zeros(()))


def test_a_run_that_falls_off_a_cliff_returns_and_keeps_what_was_before(tmp_path, monkeypatch):
    x = jnp.ones((4, 1))
    how = {
        **HOW, "optimizer": Optimizer(rule=optax.sgd(0.06), max_skipped=3),
        "checkpoints": Checkpoints(tmp_path, keep=1, every=0.0),
    }  # fmt: skip
    monkeypatch.setattr("sdebnn.train.running.SECONDS_A_CALL", 0.0)  # a call for every step, and a checkpoint
    with pytest.warns(RuntimeWarning, match="3 of .* steps were skipped"):
        fitted = fit(Cliff(jnp.array(0.0)), Gaussian(1.0), x, x, epochs=50, **how)
    assert 0 < fitted.model.weight <= 0.3
    best = float(np.nanmax(np.where(np.isfinite(fitted.history["elbo"]), fitted.history["elbo"], np.nan)))
    assert float(elbo(fitted.model, Gaussian(1.0), x, x, key=KEY).elbo) == pytest.approx(best, rel=1e-6)
    saved = saved_answer(tmp_path, eqx.filter((Cliff(jnp.array(0.0)), Gaussian(1.0)), eqx.is_inexact_array))
    assert saved[0].weight == fitted.model.weight


def test_rotation_keeps_the_last_good_checkpoint(tmp_path):
    with RunFolder(tmp_path, keep=2) as place:
        facts = {"seconds": 0.0, "stopped": False, "waited": 0, "best_value": None, "best_step": 0,
                 "answer": "parameters", "settings": {}, "configuration": {}, "versions": {}}  # fmt: skip
        for step in range(1, 8):
            place.save(step, {"a": np.zeros(1)}, {**facts, "step": step, "good": step == 3})
    assert saved_steps(tmp_path) == [3, 6, 7]


def test_a_resume_does_not_take_exploded_parameters_for_good_ones(tmp_path, monkeypatch):
    monkeypatch.setattr("sdebnn.train.running.SECONDS_A_CALL", 0.0)
    rate = optax.sgd(lambda step: jnp.where(step < 5, 1e-3, 1e6))
    how = {**HOW, "optimizer": Optimizer(rule=rate), "epochs": 12}
    log = RunFolder.log

    def stop(self, row):
        log(self, row)
        if row["step"] == 7:
            raise RuntimeError

    monkeypatch.setattr(RunFolder, "log", stop)
    with pytest.raises(RuntimeError):
        fit(LINE, Gaussian(1.0), X, Y, checkpoints=Checkpoints(tmp_path, every=0.0), **how)
    monkeypatch.setattr(RunFolder, "log", log)
    with pytest.warns(RuntimeWarning, match="the parameters of step 5"):
        fitted = fit(LINE, Gaussian(1.0), X, Y, checkpoints=Checkpoints(tmp_path, resume=True, every=0.0), **how)
    assert np.abs(weights(fitted)).max() < 10
    with RunFolder(tmp_path) as place:
        assert place.is_good(saved_steps(tmp_path)[-1])


def test_an_average_that_holds_what_exploded_is_not_returned():
    rate = optax.sgd(lambda step: jnp.where(step == 20, -1e6, 0.0))  # one step far away, and none back
    back = optax.chain(rate, optax.stateless(lambda updates, now: jax.tree.map(
        lambda u, p: jnp.where(jnp.abs(p) > 1e3, -p, u), updates, now)))  # fmt: skip
    with pytest.warns(RuntimeWarning, match="the last with a good ELBO"):
        fitted = fit(LINE, Gaussian(1.0), X, Y, epochs=40, optimizer=Optimizer(rule=back, ema=0.9999), **HOW)
    assert np.abs(weights(fitted)).max() < 10
