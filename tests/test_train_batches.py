"""How examples are divided into batches."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from line_fits import KEY, STILL
from small_models import linear_data

from sdebnn import (
    Batches,
    Deterministic,
    Gaussian,
    Objective,
    elbo,
    fit,
)


def test_examples_that_do_not_fill_a_batch_change_from_epoch_to_epoch():
    x, y = jnp.arange(10.0)[:, None], jnp.zeros((10, 1))
    model = Deterministic(eqx.nn.Linear(1, 1, use_bias=False, key=KEY))
    still = {"key": KEY, "epochs": 30, "objective": Objective(draws=1), "optimizer": STILL, "progress": False}
    batches = fit(model, Gaussian(1.0), x, y, batches=Batches(7), **still).history["log_likelihood"]
    whole = fit(model, Gaussian(1.0), x, y, **still).history["log_likelihood"]
    assert len(np.unique(whole)) == 1
    assert len(np.unique(batches)) > 10  # seven of ten, others each time


def test_the_elbo_of_batches_averages_to_that_of_all_the_data():
    x, y = linear_data(40)
    model = Deterministic(eqx.nn.Linear(2, 1, key=KEY))
    whole = elbo(model, Gaussian(0.5), x, y, key=KEY).elbo
    parts = [elbo(model, Gaussian(0.5), x[i : i + 8], y[i : i + 8], key=KEY, examples=40).elbo for i in range(0, 40, 8)]
    assert np.mean(parts) == pytest.approx(float(whole), rel=1e-5)


def test_an_epoch_takes_every_example_once():
    x, y = jnp.arange(12.0)[:, None], jnp.zeros((12, 1))
    # Each step adds the sum of its batch's gradient: over an epoch at rate zero, that of all examples.
    fitted = fit(
        Deterministic(eqx.nn.Linear(1, 1, use_bias=False, key=KEY)), Gaussian(1.0), x, y,
        key=KEY, epochs=2, batches=Batches(4), objective=Objective(draws=1), optimizer=STILL, progress=False,
    )  # fmt: skip
    weight = float(fitted.model.module.weight[0, 0])
    whole = float(np.sum(-0.5 * (weight * np.arange(12.0)) ** 2 - 0.5 * np.log(2 * np.pi)))
    by_epoch = fitted.history["log_likelihood"].reshape(2, 3).mean(1)
    np.testing.assert_allclose(by_epoch, whole, rtol=1e-5)
    assert not np.allclose(*fitted.history["log_likelihood"].reshape(2, 3))  # in another order each time
