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

    trained = model.for_training()

    def one(key: PRNGKeyArray) -> tuple[Array, ...]:
        solution = trained.solve(x, key=key, with_roughness=with_roughness)
        log_likelihood = jnp.sum(likelihood.log_prob(solution.outputs, y))
        roughness = jnp.asarray(solution.roughness, solution.outputs.dtype)
        return log_likelihood, solution.kl, roughness, _accuracy(likelihood, solution.outputs, y)

    keys = draw_keys(key, draws, trained)
    if keys.size == 1:
        terms = one(keys[0])  # without an axis of draws, which would slow convolutions down
    else:
        terms = tuple(term.mean() for term in over_draws(one, keys, draws_at_once or keys.size))
    log_likelihood, kl, roughness, accuracy = terms
    log_likelihood = log_likelihood * (examples / batch)
    return Elbo(log_likelihood - kl_weight * kl, log_likelihood, kl, roughness, accuracy)


def _accuracy(likelihood: AbstractLikelihood, outputs: Array, y: Array) -> Float[Array, ""]:
    likelihood, y, weights = likelihood.split_weights(y)
    correct = likelihood.is_correct(outputs, y)
    if correct is None:
        return jnp.full((), jnp.nan, outputs.dtype)
    return jnp.average(correct.astype(outputs.dtype), weights=weights)
