"""How a model in training does on held-out examples; with the same draws each time, so that like meets like."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from sdebnn import metrics
from sdebnn.contract import draw_keys, solutions
from sdebnn.likelihoods import Categorical, parted
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
    model, likelihood = pair
    keys = draw_keys(jax.random.fold_in(key, 0x7A11), DRAWS, model)
    likelihood, y, weights = parted(likelihood, y)
    log_probs, right, kl = [], [], math.nan
    for i in range(0, x.shape[0], ROWS):
        drawn = solutions(model, as_floats(jnp.asarray(x[i : i + ROWS])), keys, draws_at_once or DRAWS)
        log_probs.append(np.asarray(likelihood.log_prob(drawn.outputs, y[i : i + ROWS])))
        kl = float(drawn.kl.mean())
        if isinstance(likelihood, Categorical):
            classes = np.asarray(likelihood.center(drawn.outputs)).mean(0).argmax(-1)
            right.append(classes == np.asarray(y[i : i + ROWS]))
    each = np.concatenate(log_probs, axis=1)
    fit = float(np.average(each.mean(0), weights=weights))
    accuracy = float(np.average(np.concatenate(right), weights=weights)) if right else math.nan
    return Scores(nll=float(metrics.nll(each, weights)), elbo=fit - kl / examples, kl=kl, accuracy=accuracy)
