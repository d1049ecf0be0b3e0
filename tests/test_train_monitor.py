"""The noise of the three gradient estimators, measured in training."""

import json

import equinox as eqx
import jax.numpy as jnp
import pytest
from line_fits import KEY, LINE, STILL, X, Y
from small_models import Push

from sdebnn import (
    OU,
    Checkpoints,
    FixedGrid,
    Gaussian,
    Normal,
    Objective,
    bayesianize,
    fit,
)
from sdebnn.processes import LinearDrift, NoDrift
from sdebnn.train import estimator_noise


def test_the_monitor_finds_stl_paying_at_the_exact_posterior_and_not_far_from_it():
    # Weights that stay where they start: y = w_0 + noise of 0.5, w_0 ~ N(0, 1), whose posterior is normal.
    x, y, precision = jnp.zeros((1, 1)), jnp.array([[1.5]]), 1 + 1 / 0.5**2
    block = bayesianize(
        Push(jnp.array([y[0, 0] / 0.5**2 / precision])), prior=OU(rate=0.0, sigma=1e-3), drift=LinearDrift(1, knots=2),
        solver=FixedGrid(2), initial=lambda w: Normal(w, precision**-0.5), key=KEY,
    )  # fmt: skip
    held = eqx.tree_at(lambda b: b.drift, block, NoDrift())
    near = estimator_noise(held, Gaussian(0.5), x, y, key=KEY)
    assert near is not None
    assert near.stl < 0.01 * near.analytic
    assert near.stl < 0.01 * near.full
    assert "stl pays" in near.verdict()
    sharp = eqx.tree_at(lambda b: b.initial, held, Normal(jnp.zeros(1), 1e-3))
    far = estimator_noise(sharp, Gaussian(0.5), x, y, key=KEY)
    assert far is not None
    assert far.stl > far.analytic
    assert "stl costs" in far.verdict()
    assert estimator_noise(LINE, Gaussian(1.0), X, Y, key=KEY) is None


def test_the_monitor_measures_when_told_and_under_the_weight_of_the_kl(tmp_path):
    block = bayesianize(
        Push(jnp.ones(1)), drift=LinearDrift(1, knots=2), solver=FixedGrid(2), initial=lambda w: Normal(w, 0.5), key=KEY
    )
    x, y = jnp.zeros((3, 1)), jnp.zeros((3, 1))
    fit(
        block,
        Gaussian(1.0),
        x,
        y,
        epochs=60,
        objective=Objective(draws=1, monitor_every=20),
        checkpoints=Checkpoints(tmp_path),
        optimizer=STILL,
        key=KEY,
        progress=False,
    )
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "noise_stl" in row] == [20, 40, 60]
    heavy, light = (estimator_noise(block, Gaussian(1.0), x, y, key=KEY, kl_weight=weight) for weight in (100.0, 0.0))
    assert heavy is not None
    assert light is not None
    assert heavy.full > 100 * light.full == pytest.approx(100 * light.stl)
