"""Fit any model of the contract by maximising its evidence lower bound.

    ELBO = E_Q[ log p(D | w) ] - kl_weight · KL         in nats of the whole data set of N examples

A batch of B examples estimates log p(D | w) by N/B times its own. kl_weight = 1 is the bound on the evidence; less is
a tempered ("cold") posterior. The loss is -ELBO / N: the KL is divided by the number of examples, never by B.
"""

import functools
import math
import warnings
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from sdebnn.checks import (
    as_inputs,
    check_array,
    check_callable,
    check_count,
    check_data,
    check_key,
    check_positive,
    shown,
)
from sdebnn.likelihoods import Categorical, Likelihood
from sdebnn.models import draw_keys, solve

STEPS_A_CALL = 50  # enough that a compiled call outlasts its overhead, few enough that the bar moves


class Elbo(NamedTuple):
    """The bound and its two terms, in nats of the whole data set; and, if asked for, the roughness of the solve."""

    elbo: Float[Array, ""]
    log_likelihood: Float[Array, ""]
    kl: Float[Array, ""]
    roughness: Float[Array, ""]


class Fit(NamedTuple):
    """What ``fit`` returns: the trained pair, and its history by step (the terms of ``Elbo``)."""

    model: Any
    likelihood: Any
    history: dict[str, np.ndarray]


def elbo(
    model: Any,
    likelihood: Likelihood,
    x: Array,
    y: Array,
    *,
    key: PRNGKeyArray,
    draws: int = 1,
    kl_weight: float = 1.0,
    examples: int | None = None,
    rough: bool = False,
) -> Elbo:
    """Estimate the ELBO from a batch of a data set of ``examples`` (all of it, unless told), averaged over draws.

    With ``rough``, also the roughness of the hidden units: how much their slope changes from step to step.
    """
    check_data(x, y)
    check_positive("kl_weight", kl_weight, or_zero=True)
    batch = x.shape[0]
    if examples is None:
        examples = batch
    check_count("examples", examples, least=batch)

    def one(key: PRNGKeyArray) -> tuple[Array, Array, Array]:
        solution = solve(model, x, key=key, rough=rough)
        return jnp.sum(likelihood.log_prob(solution.outputs, y)), solution.kl, solution.roughness

    log_likelihood, kl, roughness = (term.mean() for term in jax.vmap(one)(draw_keys(key, draws)))
    log_likelihood = log_likelihood * (examples / batch)
    return Elbo(log_likelihood - kl_weight * kl, log_likelihood, kl, roughness)


def fit(
    model: Any,
    likelihood: Likelihood,
    x: Array | np.ndarray,
    y: Array | np.ndarray,
    *,
    key: PRNGKeyArray,
    epochs: int = 5000,
    batch_size: int | None = None,
    draws: int = 4,
    kl_weight: float = 1.0,
    learning_rate: float = 2e-2,
    optimizer: optax.GradientTransformation | None = None,
    roughness_weight: float = 0.0,
    progress: bool = True,
) -> Fit:
    """Train the parameters of the model and of the likelihood on (x, y), examples first.

    ``batch_size=None`` takes all examples at every step. Otherwise each epoch shuffles them anew, and those that do not
    fill a last batch wait for another epoch. The optimiser is Adam with ``learning_rate`` decayed to zero along a
    cosine, unless one is given.
    ``roughness_weight`` times the roughness of the hidden units, how much their slope changes from step to step, is
    added to the loss -ELBO / N: dynamics that few steps solve well, at some cost in fit.
    If the ELBO or a parameter stops being finite, training stops with a warning and the last good parameters are
    returned.
    """
    check_key(key)
    check_count("epochs", epochs)
    check_count("draws", draws)
    check_positive("kl_weight", kl_weight, or_zero=True)
    check_positive("learning_rate", learning_rate)
    check_positive("roughness_weight", roughness_weight, or_zero=True)
    if roughness_weight and not hasattr(model, "solve"):
        raise ValueError(f"roughness_weight={roughness_weight}: {type(model).__name__} solves nothing; leave it at 0.")
    if optimizer is not None and not isinstance(optimizer, optax.GradientTransformation):
        raise ValueError(f"optimizer={shown(optimizer)} is not one of Optax: pass one such as optax.adam(1e-3).")
    x, y = as_data(model, likelihood, x, y, key=key)
    examples = x.shape[0]
    if batch_size is None:
        batch_size = examples
    check_count("batch_size", batch_size)
    batch_size = min(batch_size, examples)

    steps_an_epoch = examples // batch_size
    optimizer = optimizer or _adam(learning_rate, epochs * steps_an_epoch)
    parameters, rest = eqx.partition((model, likelihood), eqx.is_inexact_array)
    state = (parameters, optimizer.init(parameters))
    job = _Job(optimizer, batch_size, draws, kl_weight, roughness_weight)
    history: list[Elbo] = []
    with _bar(progress, kl_weight, examples) as bar:
        task = bar.add_task("fit", total=epochs, elbo=math.nan, kl=math.nan)
        chunk = min(epochs, math.ceil(STEPS_A_CALL / steps_an_epoch))
        for start in range(0, epochs, chunk):
            # The last chunk may run short: a mask would cost compute, a second compilation costs time once.
            these = jnp.arange(start, min(start + chunk, epochs))
            new_state, record, good = _epochs(job, state, rest, x, y, key, these)
            record = jax.tree.map(np.asarray, record)
            if not good:
                warnings.warn(
                    f"the ELBO or a parameter stopped being finite between epochs {start} and {start + len(these)}, "
                    f"the last ELBO {record.elbo[-1]}: stopped with the parameters of epoch {start}; lower "
                    f"learning_rate={learning_rate}, standardise the data, or give an adaptive solver more max_steps.",
                    RuntimeWarning,
                    stacklevel=2,
                )
                break
            state = new_state
            history.append(record)
            bar.update(task, completed=start + len(these), elbo=record.elbo[-1], kl=record.kl[-1])
    model, likelihood = eqx.combine(state[0], rest)
    columns = {name: np.concatenate([getattr(record, name) for record in history] or [[]]) for name in Elbo._fields}
    return Fit(model, likelihood, columns)


@functools.cache
def _adam(learning_rate: float, steps: int) -> optax.GradientTransformation:
    """One object for the same numbers, so that a second fit finds the first one's program."""
    return optax.adam(optax.cosine_decay_schedule(learning_rate, steps))


class _Job(NamedTuple):
    """What stays the same over a fit."""

    optimizer: optax.GradientTransformation
    batch_size: int
    draws: int
    kl_weight: float
    roughness_weight: float


@eqx.filter_jit
def _epochs(
    job: _Job, state: PyTree, rest: PyTree, x: Array, y: Array, key: PRNGKeyArray, epochs: Array
) -> tuple[PyTree, Elbo, Array]:
    """Several epochs in one compiled call: the new state, the record of every step, and whether all is finite."""
    examples = x.shape[0]
    steps = examples // job.batch_size

    def loss(parameters: PyTree, x: Array, y: Array, key: PRNGKeyArray) -> tuple[Array, Elbo]:
        model, likelihood = eqx.combine(parameters, rest)
        terms = elbo(
            model, likelihood, x, y, key=key, draws=job.draws, kl_weight=job.kl_weight, examples=examples,
            rough=job.roughness_weight > 0,
        )  # fmt: skip
        return -terms.elbo / examples + job.roughness_weight * terms.roughness, terms

    def step(state: PyTree, batch: tuple[Array, Array, PRNGKeyArray]) -> tuple[PyTree, Elbo]:
        parameters, optimizer_state = state
        gradient, record = jax.grad(loss, has_aux=True)(parameters, *batch)
        updates, optimizer_state = job.optimizer.update(gradient, optimizer_state, parameters)
        return (optax.apply_updates(parameters, updates), optimizer_state), record

    def epoch(state: PyTree, number: Array) -> tuple[PyTree, Elbo]:
        order_key, draw_key = jax.random.split(jax.random.fold_in(key, number))
        if job.batch_size < examples:
            order = jax.random.permutation(order_key, examples)[: steps * job.batch_size].reshape(steps, -1)
            batches = x[order], y[order], jax.random.split(draw_key, steps)
            return lax.scan(step, state, batches)
        state, record = step(state, (x, y, draw_key))
        return state, jax.tree.map(lambda term: term[None], record)

    state, record = lax.scan(epoch, state, epochs)
    finite = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves((state[0], record.elbo))]
    return state, jax.tree.map(jnp.ravel, record), jnp.all(jnp.stack(finite))


def as_data(model: Any, likelihood: Likelihood, x: Any, y: Any, *, key: PRNGKeyArray) -> tuple[Array, Array]:
    """The data as arrays of JAX, once they are known to suit the model and the likelihood; nothing is compiled."""
    check_callable("model", model, "SDEBNN.mlp(1, 1, key=key)")
    if not isinstance(likelihood, Likelihood) or isinstance(likelihood, type):
        raise ValueError(f"likelihood={shown(likelihood)} is not one: pass an object such as Gaussian(0.1).")
    check_data(x, y)
    x = as_inputs("x", x)
    with np.errstate(over="ignore"):
        y = jnp.asarray(y)
    check_array("y", y)
    if not isinstance(likelihood, Categorical):
        y = y.astype(x.dtype)
    outputs, _ = jax.eval_shape(lambda x, key: model(x, key=key), x, key)
    likelihood.log_prob(jnp.zeros(outputs.shape, outputs.dtype), y)  # on real labels, so that it can refuse them
    return x, y


def _bar(show: bool, kl_weight: float, examples: int) -> Progress:
    console = Console(stderr=True)
    if show:
        meaning = "the ELBO" if kl_weight == 1 else "a tempered posterior"
        console.print(f"KL weight {kl_weight:g} ({meaning}), {examples} examples", highlight=False)
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%  ELBO {task.fields[elbo]:9.2f}  KL {task.fields[kl]:7.2f} nats"),
        TimeRemainingColumn(),
        console=console,
        disable=not show,
    )
