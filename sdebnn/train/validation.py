"""Scores on held-out examples during training, and the best parameters by these scores.

Every validation uses the same keys, so that scores at different steps are comparable.
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray, PyTree

from sdebnn.contract import AbstractModel, Data, draw_keys, solutions
from sdebnn.data import as_floats
from sdebnn.likelihoods import AbstractLikelihood
from sdebnn.meshes import on_mesh
from sdebnn.prediction import forecast_scores

VALIDATION_DRAWS = 4
EXAMPLES_AT_ONCE = 1000

Watch = Literal["nll", "elbo"]


class Scores(NamedTuple):
    """Scores of the averaged forecast, in nats per example; ``elbo`` charges for the KL of the training posterior."""

    nll: float
    elbo: float
    kl: float
    accuracy: float


ShouldStop = Callable[[int, Scores], bool]  # given the epoch and its scores, whether training is to stop


def validation_scores(
    model: AbstractModel,
    likelihood: AbstractLikelihood,
    data: Data,
    *,
    key: PRNGKeyArray,
    examples: int,
    draws_at_once: int | None,
    mesh: Mesh | None = None,
) -> Scores:
    """Score a model and its likelihood on held-out examples; ``examples`` is the size of the training set."""
    x, y = data
    keys = draw_keys(jax.random.fold_in(key, 0x7A11), VALIDATION_DRAWS, model)
    likelihood, y, weights = likelihood.split_weights(y)
    samples, kl, model = [], math.nan, on_mesh(model, mesh)
    for i in range(0, x.shape[0], EXAMPLES_AT_ONCE):
        rows = as_floats(jnp.asarray(x[i : i + EXAMPLES_AT_ONCE]))
        drawn = solutions(model, rows, keys, draws_at_once or VALIDATION_DRAWS, mesh)
        samples.append(drawn.outputs)
        kl = float(drawn.kl.mean())
    nll, log_likelihood, accuracy = forecast_scores(likelihood, jnp.concatenate(samples, axis=1), y, weights)
    return Scores(nll=nll, elbo=log_likelihood - kl / examples, kl=kl, accuracy=accuracy)


class Best(NamedTuple):
    """The parameters with the best validation score so far."""

    parameters: PyTree
    value: float = math.inf  # the watched score; lower is better
    step: int = 0
    waited: int = 0  # number of validations since then

    @property
    def is_known(self) -> bool:
        """Whether there was a validation, and its score was a number."""
        return self.value < math.inf

    def after(self, step: int, parameters: PyTree, scores: Scores, watch: Watch) -> "Best":
        """The best parameters after one more validation."""
        value = scores.nll if watch == "nll" else -scores.elbo
        if value < self.value:
            return Best(parameters, value, step)
        return self._replace(waited=self.waited + 1)
