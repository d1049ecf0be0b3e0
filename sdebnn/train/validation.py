"""How a model in training does on held-out examples; with the same draws each time, so that like meets like."""

import math
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
        rows = jnp.asarray(x[i : i + ROWS]), y[i : i + ROWS]
        if draws_at_once == 1:  # one program, called again: its convolutions are in no loop, and have no further axis
            part = jax.tree.map(lambda *each: np.stack(each), *[_draw(pair, *rows, key) for key in keys])
        else:
            part = jax.tree.map(np.asarray, _draws(pair, *rows, keys, draws_at_once or DRAWS))
        parts.append(part)
    log_probs, centers = (np.concatenate([part[i] for part in parts], axis=1) for i in (0, 1))
    accuracy = math.nan
    if isinstance(pair[1], Categorical):
        accuracy = float((centers.mean(0).argmax(-1) == np.asarray(y)).mean())
    kl = float(parts[0][2].mean())
    return Scores(
        nll=float(metrics.nll(log_probs)), elbo=float(log_probs.mean()) - kl / examples, kl=kl, accuracy=accuracy
    )


@eqx.filter_jit
def _draw(pair: tuple[Any, Any], x: Array, y: Array, key: PRNGKeyArray) -> tuple[Array, Array, Array]:
    """log p(y | x, w) by example, the forecast's center, and the KL, of one draw."""
    model, likelihood = pair
    solution = solve(model, as_floats(x), key=key)
    return likelihood.log_prob(solution.outputs, y), likelihood.center(solution.outputs), solution.kl


@eqx.filter_jit
def _draws(
    pair: tuple[Any, Any], x: Array, y: Array, keys: Key[Array, " draw"], at_once: int
) -> tuple[Array, Array, Array]:
    """The same of every draw, so many of them side by side."""
    return lax.map(lambda key: _draw(pair, x, y, key), keys, batch_size=at_once)
