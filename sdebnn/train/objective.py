"""The evidence lower bound of any model of the contract.

    ELBO = E_Q[ log p(D | w) ] - kl_weight · KL         in nats, for the whole data set of N examples

A batch of B examples estimates log p(D | w) by N/B times its own log-likelihood. With kl_weight = 1 this is the bound
on the log evidence; a smaller weight gives a tempered ("cold") posterior. The loss is -ELBO / N: the KL is divided by
the number of examples N, never by B.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn.checks import check_count, check_data, check_positive
from sdebnn.contract import AbstractModel, draw_keys, over_draws
from sdebnn.likelihoods import AbstractLikelihood
from sdebnn.meshes import Share


class Elbo(NamedTuple):
    """The bound and its two terms, in nats for the whole data set; the roughness of the solution; the accuracy.

    The roughness is 0 unless requested. The accuracy is that of single draws, and NaN if there are no classes. With the
    estimators "full" and "stl" the KL of a few draws can be negative: each contains a term whose mean is zero, and only
    the mean over draws is a KL.
    """

    elbo: Float[Array, ""]
    log_likelihood: Float[Array, ""]
    kl: Float[Array, ""]
    roughness: Float[Array, ""]
    accuracy: Float[Array, ""]


class Parts(NamedTuple):
    """What the ELBO of a batch is made of. The parts of several devices, each of its share, add up to those of all."""

    log_likelihood: Float[Array, ""]  # of the batch, not yet of the data set
    kl: Float[Array, ""]
    roughness: Float[Array, ""]
    correct: Float[Array, ""]  # the weight of the examples that single draws classify rightly
    weight: Float[Array, ""]  # of all examples

    def elbo(self, scale: float, kl_weight: float | Float[Array, ""]) -> Elbo:
        """The bound, for a data set that is ``scale`` times as large as the batch."""
        log_likelihood = self.log_likelihood * scale
        bound = log_likelihood - kl_weight * self.kl
        return Elbo(bound, log_likelihood, self.kl, self.roughness, self.correct / self.weight)


def elbo(
    model: AbstractModel,
    likelihood: AbstractLikelihood,
    x: Array,
    y: Array,
    *,
    key: PRNGKeyArray,
    draws: int = 1,
    draws_at_once: int | None = None,
    kl_weight: float | Float[Array, ""] = 1.0,
    examples: int | None = None,
    with_roughness: bool = False,
) -> Elbo:
    """Estimate the ELBO from a batch, averaged over draws of the weights.

        compiled = eqx.filter_jit(elbo)
        bound = compiled(model, likelihood, x, y, key=key, draws=8)
        print(float(bound.elbo), float(bound.kl))

    ``x`` and ``y`` are the inputs and targets of the batch, examples first. The ``key`` names the draws. The KL is
    multiplied by ``kl_weight``; 1 gives the ELBO. The result is an ``Elbo``, in nats for the whole data set.
    ``examples`` is the size of the whole data set (default: the batch is all of it). ``draws_at_once`` draws are
    computed in parallel (default: all); 1 suits convolutions, which are slow when vectorised over draws. With
    ``with_roughness``, the roughness of the hidden units is computed too: how much their slope changes between steps.
    """
    check_data(x, y)
    if not isinstance(kl_weight, jax.Array):
        check_positive("kl_weight", kl_weight, or_zero=True)
    batch = x.shape[0]
    if examples is None:
        examples = batch
    check_count("examples", examples, least=batch)
    found = elbo_parts(
        model, likelihood, x, y, key=key, draws=draws, draws_at_once=draws_at_once, with_roughness=with_roughness
    )
    return found.elbo(examples / batch, kl_weight)


def elbo_parts(
    model: AbstractModel,
    likelihood: AbstractLikelihood,
    x: Array,
    y: Array,
    *,
    key: PRNGKeyArray,
    draws: int,
    draws_at_once: int | None,
    with_roughness: bool,
    share: Share | None = None,
) -> Parts:
    """The parts of the ELBO of a batch. If there is a ``share``, x and y are its examples, and it has some draws."""
    trained = model.for_training()

    def one(key: PRNGKeyArray) -> Parts:
        solution = trained.solve(x, key=key, with_roughness=with_roughness)
        log_likelihood = jnp.sum(likelihood.log_prob(solution.outputs, y))
        roughness = jnp.asarray(solution.roughness, solution.outputs.dtype)
        return Parts(log_likelihood, solution.kl, roughness, *_correct(likelihood, solution.outputs, y))

    keys = draw_keys(key, draws, trained)
    if share is not None:
        keys = share.of_keys(keys)
    if keys.size == 1:
        found = one(keys[0])  # without an axis of draws, which would slow convolutions down
    else:
        found = Parts(*(part.mean() for part in over_draws(one, keys, draws_at_once or keys.size)))
    if share is None:
        return found
    # Every device has the same KL and nearly the same roughness, whatever its examples are.
    log_likelihood, kl, roughness, correct, weight = found
    n, m = share.draws, share.parts
    return Parts(log_likelihood / n, kl / m, roughness / m, correct / n, weight / n)


def _correct(likelihood: AbstractLikelihood, outputs: Array, y: Array) -> tuple[Array, Array]:
    """The weight of the examples that are classified rightly, and of all; NaN if there are no classes."""
    likelihood, y, weights = likelihood.split_weights(y)
    correct = likelihood.is_correct(outputs, y)
    if correct is None:
        return jnp.full((), jnp.nan, outputs.dtype), jnp.ones((), outputs.dtype)
    weights = jnp.ones(correct.shape, outputs.dtype) if weights is None else weights.astype(outputs.dtype)
    return jnp.sum(correct * weights), jnp.sum(weights)
