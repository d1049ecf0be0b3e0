"""A line without noise, and the options of short fits to it, which the tests of training share."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from sdebnn import Deterministic, Objective, Optimizer

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (24, 2))
Y = X @ jnp.array([[1.0], [-2.0]]) + 0.5
LINE = Deterministic(eqx.nn.Linear(2, 1, key=KEY))
ONE_DRAW = Objective(draws=1)
HOW = {"key": KEY, "objective": ONE_DRAW, "progress": False}
SGD = optax.sgd(1e-2)
STILL = Optimizer(rule=optax.sgd(0.0))  # the parameters do not move


def weights(fitted):
    """The matrix of a fitted line."""
    return np.asarray(fitted.model.module.weight)
