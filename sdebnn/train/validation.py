"""How a model in training does on held-out examples; with the same draws each time, so that like meets like."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Key, PRNGKeyArray

from sdebnn import metrics
from sdebnn.likelihoods import Categorical
from sdebnn.models import draw_keys, solve
from sdebnn.train.objective import as_floats

DRAWS = 4
ROWS = 1000  # at once


class Scores(NamedTuple):
    """Of the averaged forecast, in nats per example; ``elbo`` beside the KL of the training set's posterior."""

    nll: float
    elbo: float
    kl: float
    accuracy: float


def validation_scores(
    pair: tuple[Any, Any], x: Any, y: Array, *, key: PRNGKeyArray, examples: int, draws_at_once: int | None
) -> Scores:
    """Score a model and its likelihood on held-out examples, a thousand at a time."""
    keys = draw_keys(jax.random.fold_in(key, 0x7A11), DRAWS)
    parts = []
    for i in range(0, x.shape[0], ROWS):
        rows = jnp.asarray(x[i : i + ROWS])
        parts.append(jax.tree.map(np.asarray, _draws(pair, rows, y[i : i + ROWS], keys, draws_at_once or DRAWS)))
    log_probs = np.concatenate([part[0] for part in parts], axis=1)
    right = np.concatenate([part[1] for part in parts])
    kl = float(parts[0][2].mean())
    return Scores(
        nll=float(metrics.nll(log_probs)), elbo=float(log_probs.mean()) - kl / examples, kl=kl, accuracy=right.mean()
    )


@eqx.filter_jit
def _draws(
    pair: tuple[Any, Any], x: Array, y: Array, keys: Key[Array, " draw"], at_once: int
) -> tuple[Array, Array, Array]:
    """log p(y | x, w) by draw and example, whether the averaged forecast is right, and the KL by draw."""
    model, likelihood = pair

    def one(key: PRNGKeyArray) -> tuple[Array, Array, Array]:
        solution = solve(model, as_floats(x), key=key)
        return likelihood.log_prob(solution.outputs, y), likelihood.center(solution.outputs), solution.kl

    # One draw at a time by a loop of Python's: in one of JAX's, a processor would crawl through convolutions.
    log_probs, centers, kl = (
        jax.tree.map(lambda *each: jnp.stack(each), *[one(key) for key in keys])
        if at_once == 1
        else lax.map(one, keys, batch_size=at_once)
    )
    if isinstance(likelihood, Categorical):
        right = (jnp.argmax(centers.mean(0), axis=-1) == y).astype(float)
    else:
        right = jnp.full(x.shape[0], jnp.nan)
    return log_probs, right, kl
