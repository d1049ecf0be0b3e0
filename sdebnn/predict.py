"""Predict with any model of the contract: samples are one array, "draw example output".

p(y | x, D) = E_Q[ p(y | x, w) ],   estimated by the mean over draws of w
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Key, PRNGKeyArray

from sdebnn import metrics
from sdebnn.checks import as_inputs, check_callable, check_count, check_key
from sdebnn.likelihoods import Categorical, Likelihood
from sdebnn.models import draw_keys
from sdebnn.train import as_data

DRAWS_AT_ONCE = 16  # wide enough to fill a processor, narrow enough to bound memory


def predict(
    model: Any, x: Array | np.ndarray, *, draws: int = 100, key: PRNGKeyArray, batch_size: int = 1000
) -> Float[Array, "draw example *output"]:
    """The outputs of ``draws`` functions from the posterior: ``samples[i]`` is one function, the same for every x.

    They are the likelihood's parameters (means, logits): ``likelihood.center`` and ``likelihood.sample`` turn them
    into predictions of y.
    """
    return _samples(model, x, draws, key, batch_size)[0]


def evaluate(
    model: Any,
    likelihood: Likelihood,
    x: Array | np.ndarray,
    y: Array | np.ndarray,
    *,
    draws: int = 100,
    key: PRNGKeyArray,
    batch_size: int = 1000,
) -> dict[str, float]:
    """Score the averaged forecast on (x, y): ``nll`` and ``kl`` in nats, beside what suits the likelihood.

    Under ``Categorical``: ``accuracy``, ``ece``, ``brier``. Otherwise ``rmse``, ``coverage_95``.
    """
    check_key(key)
    x, y = as_data(model, likelihood, x, y, key=key)
    draw_key, noise_key = jax.random.split(key)
    samples, kl = _samples(model, x, draws, draw_key, batch_size)
    scores = {"nll": metrics.nll(likelihood.log_prob(samples, y)), "kl": kl.mean()}
    centers = likelihood.center(samples)
    if isinstance(likelihood, Categorical):
        for metric in (metrics.accuracy, metrics.ece, metrics.brier):
            scores[metric.__name__] = metric(centers, y)
    else:
        scores["rmse"] = metrics.rmse(centers, y)
        scores["coverage_95"] = metrics.coverage(likelihood.sample(samples, key=noise_key), y)
    return {name: float(value) for name, value in scores.items()}


def _samples(
    model: Any, x: Array | np.ndarray, draws: int, key: PRNGKeyArray, batch_size: int
) -> tuple[Float[Array, "draw example *output"], Float[Array, " draw"]]:
    """Outputs and KLs of the draws, a batch of examples at a time."""
    check_callable("model", model, "SDEBNN.mlp(1, 1, key=key)")
    check_count("batch_size", batch_size)
    x = as_inputs("x", x)
    keys = draw_keys(key, draws)
    parts = [_batch(model, x[i : i + batch_size], keys) for i in range(0, x.shape[0], batch_size)]
    return jnp.concatenate([samples for samples, _ in parts], axis=1), parts[0][1]


@eqx.filter_jit
def _batch(model: Any, x: Array, keys: Key[Array, " draw"]) -> tuple[Array, Array]:
    return lax.map(lambda key: model(x, key=key), keys, batch_size=DRAWS_AT_ONCE)
