"""Many training steps in one compiled call: the state goes in and comes out, and of the rest only the records.

The number of steps is an argument of the program, not a part of it: a run that was stopped anywhere goes on through the
same program, and so to the same numbers, bit for bit.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray, PyTree

from sdebnn.processes import OU
from sdebnn.programs import compiled
from sdebnn.train.graphs import compiler_options
from sdebnn.train.objective import Elbo, as_floats, elbo
from sdebnn.train.stacks import Stacks, stacked, unstacked

KL_FLOOR = 1e-3  # of the KL weight, where its warm-up starts


class TrainState(NamedTuple):
    """All that changes over training. What is not here is named by the key and the step."""

    parameters: Stacks
    optimizer: PyTree
    ema: Stacks | None  # None, if none is kept
    step: Int[Array, ""]
    skipped: Int[Array, ""]  # steps whose numbers were not finite, in all
    in_a_row: Int[Array, ""]  # and just now


class Job(NamedTuple):
    """What stays the same over a fit, and is compiled in."""

    optimizer: optax.GradientTransformation
    examples: int
    batch_size: int
    accumulate: int
    draws: int
    draws_at_once: int | None
    kl_weight: float
    kl_warmup: float
    roughness_weight: float
    ema: float | None
    augment: Callable[..., Array] | None
    max_skipped: int
    records: int  # how many steps one call may run


class Batches(NamedTuple):
    """Where the batches of a call come from: rows of x and y, those of each step, and the first of these steps."""

    x: Array
    y: Array
    order: Int[Array, "step row"] | None  # None: every step takes all rows
    first: Int[Array, ""]  # the step of the run that takes the first row of ``order``


class Record(NamedTuple):
    """What one step says of itself."""

    terms: Elbo
    gradient_norm: Float[Array, ""]
    skipped: Array


@compiled  # one program, instead of one for every shape
def start(parameters: PyTree, job: Job) -> TrainState:
    """The state before the first step; its arrays are its own, for every call consumes them."""
    parameters = jax.tree.map(jnp.copy, parameters)
    stacks = stacked(parameters, parameters)
    ema = None if job.ema is None else jax.tree.map(jnp.copy, stacks)
    zero = jnp.zeros((), jnp.int32)
    return TrainState(stacks, job.optimizer.init(parameters), ema, zero, zero + 0, zero + 0)


def epoch_keys(key: PRNGKeyArray, epoch: Int[Array, ""] | int) -> Key[Array, "2"]:
    """The keys of an epoch: of the order of its examples, and of its draws."""
    return jax.random.split(jax.random.fold_in(key, epoch))


@compiled
def epoch_order(key: PRNGKeyArray, epoch: Int[Array, ""], examples: int, batch: int) -> Int[Array, "step row"]:
    """Which examples each step of an epoch takes; those that fill no batch wait for another epoch."""
    steps = examples // batch
    order = jax.random.permutation(epoch_keys(key, epoch)[0], examples)
    return order[: steps * batch].reshape(steps, batch)


class Call(NamedTuple):
    """The arguments of ``advance`` that it does not consume."""

    job: Job
    like: PyTree  # shapes: the tree that the parameters are, when they are not in stacks
    rest: PyTree  # of the model and the likelihood: all that is not trained
    batches: Batches
    key: PRNGKeyArray
    stop: Int[Array, ""]  # the step before which to stop
    total: Int[Array, ""]  # the steps of the whole run


@cache
def program() -> Any:
    """``advance`` as a program, which consumes the state it is given; made when first asked for, not on import."""
    how: dict[str, Any] = {"donate": "all-except-first", "compiler_options": compiler_options()}
    return compiled(advance, **how)


def advance(call: Call, state: TrainState) -> tuple[TrainState, Record]:
    """Train from ``state.step`` up to ``stop``, or until too many steps in a row were skipped; one record a step."""
    job, batches = call.job, call.batches
    begin = state.step
    steps_an_epoch = job.examples // job.batch_size

    def going(carry: tuple[TrainState, Record]) -> Array:
        return (carry[0].step < call.stop) & (carry[0].in_a_row < job.max_skipped)

    def body(carry: tuple[TrainState, Record]) -> tuple[TrainState, Record]:
        state, records = carry
        rows = None if batches.order is None else batches.order[state.step - batches.first]
        x, y = (batches.x, batches.y) if rows is None else (batches.x[rows], batches.y[rows])
        epoch, number = state.step // steps_an_epoch, state.step % steps_an_epoch
        key = jax.random.fold_in(epoch_keys(call.key, epoch)[1], number)
        new, record = _step(call, state, x, y, key)
        at = state.step - begin
        return new, jax.tree.map(lambda column, value: column.at[at].set(value), records, record)

    types = [jnp.finfo(stack.dtype).dtype for stack in state.parameters.values()]  # of a complex number, its parts'
    column = jnp.zeros(job.records, jnp.result_type(jnp.float32, *types))
    records = Record(Elbo(*(column for _ in Elbo._fields)), column, jnp.zeros(job.records, bool))
    return lax.while_loop(going, body, (state, records))


def _step(call: Call, state: TrainState, x: Array, y: Array, key: PRNGKeyArray) -> tuple[TrainState, Record]:
    """One step of the optimiser; if any number is not finite, only the counters move."""
    job, like, now = call.job, call.like, unstacked(state.parameters, call.like)
    gradient, terms = _gradient(call, state, x, y, key)
    norm = jnp.sqrt(sum(jnp.sum(stack**2) for stack in gradient.values()))
    updates, optimizer = job.optimizer.update(unstacked(gradient, like), state.optimizer, now)
    updates = jax.tree.map(lambda update, leaf: jnp.broadcast_to(update, leaf.shape), updates, now)  # a number may do
    moved: Any = optax.apply_updates(state.parameters, stacked(updates, like))
    parameters = _constrained(call, moved)
    finite = [jnp.all(jnp.isfinite(stack)) for stack in jax.tree.leaves(parameters)]
    good = jnp.all(jnp.stack([jnp.isfinite(terms.elbo), jnp.isfinite(norm), *finite]))
    ema = None
    if job.ema is not None:
        # Short at first: the start is soon forgotten.
        decay = jnp.minimum(job.ema, (1 + state.step) / (10 + state.step))
        ema = jax.tree.map(lambda old, new: (decay * old + (1 - decay) * new).astype(old.dtype), state.ema, parameters)
    new, old = (parameters, optimizer, ema), (state.parameters, state.optimizer, state.ema)
    parameters, optimizer, ema = jax.tree.map(lambda new, old: jnp.where(good, new, old), new, old)
    skipped, in_a_row = state.skipped + ~good, jnp.where(good, 0, state.in_a_row + 1)
    return TrainState(parameters, optimizer, ema, state.step + 1, skipped, in_a_row), Record(terms, norm, ~good)


def _constrained(call: Call, stacks: Stacks) -> Stacks:
    """The parameters with those of priors brought back to where they may be."""

    def is_prior(node: Any) -> bool:
        return isinstance(node, OU)

    parts = eqx.combine(unstacked(stacks, call.like), call.rest)
    if not any(is_prior(node) and eqx.is_array(node.rate) for node in jax.tree.leaves(parts, is_leaf=is_prior)):
        return stacks
    parts = jax.tree.map(lambda node: node.constrained() if is_prior(node) else node, parts, is_leaf=is_prior)
    return stacked(eqx.filter(parts, eqx.is_inexact_array), call.like)


def _gradient(call: Call, state: TrainState, x: Array, y: Array, key: PRNGKeyArray) -> tuple[Stacks, Elbo]:
    """The gradient of the loss, and the terms of the bound; in parts, if accumulated, each with draws of its own."""
    job, like = call.job, call.like
    kl_weight = kl_weight_at(job, state.step, call.total)
    draw_key, augment_key = jax.random.split(key)
    if job.augment is not None:
        x = job.augment(x, key=augment_key)

    def loss(parameters: PyTree, x: Array, y: Array, key: PRNGKeyArray) -> tuple[Array, Elbo]:
        model, likelihood = eqx.combine(parameters, call.rest)
        terms = elbo(
            model, likelihood, as_floats(x), y, key=key, draws=job.draws, draws_at_once=job.draws_at_once,
            kl_weight=kl_weight, examples=job.examples, rough=job.roughness_weight > 0,
        )  # fmt: skip
        return -terms.elbo / job.examples + job.roughness_weight * terms.roughness, terms

    def part(index: Array | int, x: Array, y: Array) -> tuple[Stacks, Elbo]:
        parameters, part_key = unstacked(state.parameters, like), jax.random.fold_in(draw_key, index)
        gradient, terms = jax.grad(loss, has_aux=True)(parameters, x, y, part_key)
        return stacked(gradient, like), terms

    if job.accumulate == 1:
        return part(0, x, y)

    def add(sums: tuple[Stacks, Elbo], piece: tuple[Array, Array, Array]) -> tuple[tuple[Stacks, Elbo], None]:
        return jax.tree.map(lambda a, b: a + b / job.accumulate, sums, part(*piece)), None

    pieces = jax.tree.map(lambda a: a.reshape(job.accumulate, -1, *a.shape[1:]), (x, y))
    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(part, 0, pieces[0][0], pieces[1][0]))
    return lax.scan(add, zero, (jnp.arange(job.accumulate), *pieces))[0]


def kl_weight_at(job: Job, step: Int[Array, ""], total: Int[Array, ""]) -> float | Float[Array, ""]:
    """The weight of the KL at a step: geometrically up to its value over the first ``kl_warmup`` of the run."""
    if not job.kl_warmup:
        return job.kl_weight
    share = jnp.minimum(1.0, (step + 1) / jnp.maximum(1.0, job.kl_warmup * total))
    return job.kl_weight * KL_FLOOR ** (1 - share)
