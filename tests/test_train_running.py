"""A training run: reproducible, compiled once, on the device of its data, and stopped if it diverges."""

import logging
import os
import subprocess
import sys
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from line_fits import KEY
from small_models import Sums, linear_data

from sdebnn import (
    Batches,
    Deterministic,
    Gaussian,
    Optimizer,
    fit,
)


def test_fits_with_the_same_key_are_identical():
    x, y = linear_data(20)
    model = Deterministic(eqx.nn.Linear(2, 1, key=KEY))
    runs = [fit(model, Gaussian(0.5), x, y, key=KEY, epochs=5, batches=Batches(7), progress=False) for _ in range(2)]
    assert np.array_equal(runs[0].model.module.weight, runs[1].model.module.weight)
    assert np.array_equal(runs[0].history["elbo"], runs[1].history["elbo"])


def test_a_fit_that_diverges_returns_the_last_good_parameters_with_a_warning():
    x, y = linear_data(20)
    model = Deterministic(eqx.nn.Linear(2, 1, key=KEY))
    with pytest.warns(RuntimeWarning, match="lower learning_rate=0.02"):
        fitted = fit(
            model, Gaussian(0.5), x, y, key=KEY, epochs=300, optimizer=Optimizer(rule=optax.sgd(100.0)), progress=False
        )
    assert np.all(np.isfinite(fitted.model.module.weight))


def test_parameters_that_diverge_in_the_last_step_are_not_returned():
    x, y = linear_data(20)
    model = Deterministic(eqx.nn.Linear(2, 1, key=KEY))
    with pytest.warns(RuntimeWarning, match="1 of 1 steps were skipped"):
        fitted = fit(
            model, Gaussian(0.5), x, y, key=KEY, epochs=1, optimizer=Optimizer(rule=optax.sgd(3e38)), progress=False
        )
    assert np.array_equal(fitted.model.module.weight, model.module.weight)


def test_the_same_fit_again_compiles_nothing():
    x, y = linear_data(20)
    model = Deterministic(eqx.nn.Linear(2, 1, key=KEY))
    go = lambda: fit(model, Gaussian(0.5), x, y, key=KEY, epochs=7, progress=False)  # noqa: E731
    go()
    with jax.log_compiles(), warnings.catch_warnings(), Log("jax._src") as log:
        go()
    assert not any("Finished XLA compilation" in message for message in log)


class Log(logging.Handler):
    """The messages of a logger."""

    def __init__(self, name):
        super().__init__()
        self.logger, self.said = logging.getLogger(name), []

    def emit(self, record):
        self.said.append(record.getMessage())

    def __enter__(self):
        self.logger.addHandler(self)
        return self.said

    def __exit__(self, *_):
        self.logger.removeHandler(self)


def test_the_history_of_a_float64_model_is_float64_whatever_else_it_holds():
    with jax.enable_x64(True):
        a, b = jnp.zeros(2, jnp.float32), jnp.full(2, 1 / 3, jnp.float64)
        x = jnp.linspace(-1, 1, 8)[:, None]
        found = fit(Deterministic(Sums(a, b)), Gaussian(1.0), x, x, key=KEY, epochs=1, progress=False)
    errors = np.linspace(-1, 1, 8)  # the outcome is x (0 + 3 · 2/3), the target x
    expected = -0.5 * np.sum(errors**2) - 4 * np.log(2 * np.pi)
    np.testing.assert_allclose(found.history["elbo"][0], expected, rtol=1e-12)


def test_trained_parameters_stay_on_their_device():
    """The parameters are on the second of two devices."""
    program = (
        "import jax, jax.numpy as jnp, sdebnn\n"
        "there = jax.devices()[1]\n"
        "def put(leaf): return jax.device_put(leaf, there) if hasattr(leaf, 'devices') else leaf\n"
        "net = sdebnn.SDEBNN.paper_mlp(1, 1, widths=(2,), key=jax.random.key(0))\n"
        "net, x = jax.tree.map(put, (net, jnp.zeros((4, 1))))\n"
        "found = sdebnn.fit(net, sdebnn.Gaussian(0.1), x, x, key=jax.random.key(1), epochs=1, progress=False)\n"
        "where = {d for leaf in jax.tree.leaves(found.model) if isinstance(leaf, jax.Array) for d in leaf.devices()}\n"
        "assert where == {there}, where\n"
    )
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    subprocess.run([sys.executable, "-c", program], env=os.environ | {"XLA_FLAGS": flags}, check=True)
