"""Many training steps in one compiled call, which takes the training state and returns the next one.

The number of steps is an argument of the compiled program. A run that was stopped anywhere therefore resumes through
the same program, and reaches the same numbers, bit for bit.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from sdebnn.data import as_floats
from sdebnn.meshes import DATA, Share, gathered, kept_stored, on_mesh, stored, total
from sdebnn.processes import AbstractPrior
from sdebnn.programs import Compiled, compiled
from sdebnn.train.batches import StepBatches, epoch_keys
from sdebnn.train.objective import Elbo, Parts, elbo_parts
from sdebnn.train.stacks import stacked, unstacked
from sdebnn.train.xla_options import compiler_options

KL_WARMUP_START = 1e-3  # the share of the KL weight with which the warm-up starts


class TrainState(NamedTuple):
    """Everything that changes during training. Whatever is random is derived from the key and the step number."""

    parameters: PyTree
    optimizer: PyTree
    ema: PyTree | None  # the moving average of the parameters, or None
    step: Int[Array, ""]
    skipped: Int[Array, ""]  # number of steps that were skipped because a number was not finite
    in_a_row: Int[Array, ""]  # how many of them directly precede this state


class Job(NamedTuple):
    """What stays the same during a fit and is compiled into the program."""

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
    steps_a_call: int  # the largest number of steps in one call
    mesh: Mesh | None = None  # the devices that share each step; None for one

    @property
    def scale(self) -> float:
        """How much larger the data set is than a part of a batch."""
        return self.examples * self.accumulate / self.batch_size

    @property
    def steps_an_epoch(self) -> int:
        """The number of batches in an epoch."""
        return self.examples // self.batch_size


class StepRecord(NamedTuple):
    """What is recorded of one step; after a call, of each of its steps."""

    terms: Elbo
    gradient_norm: Float[Array, ""]
    skipped: Array


class Call(NamedTuple):
    """The arguments of ``advance`` whose memory is not reused for its results."""

    job: Job
    like: PyTree  # shapes and types of the parameters
    rest: PyTree  # the parts of the model and the likelihood that are not trained
    batches: StepBatches
    key: PRNGKeyArray
    stop: Int[Array, ""]  # train up to this step
    total: Int[Array, ""]  # number of steps in the whole run


class Steps:
    """The compiled training steps of one run, with the state that they have reached.

    States go in and come out as ordinary trees of NumPy arrays. On the device, the state is kept in stacks
    (``stacks.py``) from call to call; unstacking it there would add a kernel for each array to the program.
    """

    def __init__(self, job: Job, parameters: PyTree, rest: PyTree, key: PRNGKeyArray, total: int):
        self.job, self.total = job, total
        self.rest, self.key = on_mesh((rest, key), job.mesh)
        self.like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), parameters)
        self._state = stored(start(parameters, job), job.mesh)

    def run(self, batches: StepBatches, stop: int) -> StepRecord:
        """Train up to step ``stop``, or until too many steps in a row were skipped."""
        self._state, record = program()(self._call(batches, stop), self._state)
        return record

    def tried(self, state: TrainState, batches: StepBatches, stop: int) -> StepRecord:
        """The record of a run from another state. The state that was reached stays as it is."""
        return program()(self._call(batches, stop), self._on_device(state))[1]

    def state(self) -> TrainState:
        """A copy of the state."""
        return self._on_host(self._state)

    def parameters(self) -> tuple[PyTree, PyTree | None]:
        """A copy of the parameters, and of their moving average."""
        return self._on_host((self._state.parameters, self._state.ema))

    def snapshot(self) -> Callable[[], tuple[PyTree, PyTree | None]]:
        """A function that returns the present parameters and their moving average, whatever steps are run meanwhile.

        Until it is called, the copy stays on the device.
        """
        kept = _copy((self._state.parameters, self._state.ema))
        return lambda: self._on_host(kept)

    def set_state(self, state: TrainState) -> None:
        """Continue from another state."""
        self._state = self._on_device(state)

    def counters(self) -> tuple[int, int, int]:
        """The step, and how many steps were skipped: in all, and directly before this step."""
        return int(self._state.step), int(self._state.skipped), int(self._state.in_a_row)

    def _call(self, batches: StepBatches, stop: int) -> Call:
        stop_at, total = on_mesh(tuple(jnp.asarray(number, jnp.int32) for number in (stop, self.total)), self.job.mesh)
        return Call(self.job, self.like, self.rest, batches, self.key, stop_at, total)

    def _on_host(self, tree: PyTree) -> PyTree:
        # Copied, because the next call reuses the device's memory, which NumPy may share.
        return unstacked(jax.tree.map(np.array, jax.device_get(gathered(tree, self.job.mesh))), self.like)

    def _on_device(self, state: TrainState) -> TrainState:
        if self.job.mesh is not None:
            return stored(jax.tree.map(np.array, stacked(state, self.like)), self.job.mesh)

        def put(array: ArrayLike, there: Array) -> Array:
            return jax.device_put(np.array(array), there.sharding) if there.committed else jnp.asarray(np.array(array))

        return jax.tree.map(put, stacked(state, self.like), self._state)


@compiled
def _copy(tree: PyTree) -> PyTree:
    return jax.tree.map(jnp.copy, tree)


@compiled  # one program, instead of one for every shape
def start(parameters: PyTree, job: Job) -> TrainState:
    """The state before the first step, in stacks. It shares no memory with ``parameters``."""
    own = jax.tree.map(jnp.copy, parameters)
    ema = None if job.ema is None else jax.tree.map(jnp.copy, parameters)
    zero = jnp.zeros((), jnp.int32)
    return stacked(TrainState(own, job.optimizer.init(own), ema, zero, zero + 0, zero + 0), parameters)


@cache
def program() -> Compiled[..., tuple[TrainState, StepRecord]]:
    """``advance``, compiled, reusing the memory of the given state. Created on first use, not on import."""
    how: dict[str, Any] = {"donate": "all-except-first", "compiler_options": compiler_options()}
    return compiled(advance, **how)


def advance(call: Call, state: TrainState) -> tuple[TrainState, StepRecord]:
    """Train from ``state.step`` to ``stop``, or until too many steps in a row were skipped; the state is in stacks."""
    job, batches = call.job, call.batches
    begin = state.step

    def going(carry: tuple[TrainState, StepRecord]) -> Array:
        return (carry[0].step < call.stop) & (carry[0].in_a_row < job.max_skipped)

    def body(carry: tuple[TrainState, StepRecord]) -> tuple[TrainState, StepRecord]:
        state, records = carry
        x, y = batches.at(state.step)
        epoch, number = state.step // job.steps_an_epoch, state.step % job.steps_an_epoch
        key = jax.random.fold_in(epoch_keys(call.key, epoch)[1], number)
        new, record = _step(call, state, x, y, key)
        at = state.step - begin
        return new, jax.tree.map(lambda column, value: column.at[at].set(value), records, record)

    types = [jnp.finfo(leaf.dtype).dtype for leaf in jax.tree.leaves(call.like)]  # for complex numbers, of their parts
    column = jnp.zeros(job.steps_a_call, jnp.result_type(jnp.float32, *types))
    records = StepRecord(Elbo(*(column for _ in Elbo._fields)), column, jnp.zeros(job.steps_a_call, bool))
    return lax.while_loop(going, body, (state, records))


def _step(call: Call, state: TrainState, x: Array, y: Array, key: PRNGKeyArray) -> tuple[TrainState, StepRecord]:
    """One step of the optimiser. If any number is not finite, only the counters change."""
    job = call.job
    gradient, terms = _gradient(call, state, x, y, key)
    norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient)))
    parameters, optimizer = _moved(call, state, gradient)
    finite = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(parameters)]
    good = jnp.all(jnp.stack([jnp.isfinite(terms.elbo), jnp.isfinite(norm), *finite]))
    ema = None
    if job.ema is not None:
        # The decay is small at first, so that the initial parameters are soon forgotten.
        decay = jnp.minimum(job.ema, (1 + state.step) / (10 + state.step))
        ema = jax.tree.map(lambda old, new: (decay * old + (1 - decay) * new).astype(old.dtype), state.ema, parameters)
    new, old = (parameters, optimizer, ema), (state.parameters, state.optimizer, state.ema)
    parameters, optimizer, ema = jax.tree.map(lambda new, old: jnp.where(good, new, old), new, old)
    skipped, in_a_row = state.skipped + ~good, jnp.where(good, 0, state.in_a_row + 1)
    new = TrainState(parameters, optimizer, ema, state.step + 1, skipped, in_a_row)
    return kept_stored(new, job.mesh), StepRecord(terms, norm, ~good)


def _moved(call: Call, state: TrainState, gradient: PyTree) -> tuple[PyTree, PyTree]:
    """The parameters and the optimiser's state after an update. The optimiser itself is given ordinary trees."""
    now = unstacked(state.parameters, call.like)
    gradient, optimizer = unstacked((gradient, state.optimizer), call.like)
    updates, optimizer = call.job.optimizer.update(gradient, optimizer, now)
    # An update may be one number for a whole array.
    updates = jax.tree.map(lambda update, leaf: jnp.broadcast_to(update, leaf.shape), updates, now)
    parameters = optax.apply_updates(state.parameters, stacked(updates, call.like))
    return _constrained(call, parameters), stacked(optimizer, call.like)


def _constrained(call: Call, parameters: PyTree) -> PyTree:
    """The parameters, with those of priors moved back into their allowed range."""

    def is_trained_prior(node: PyTree) -> bool:
        return isinstance(node, AbstractPrior) and any(map(eqx.is_inexact_array, jax.tree.leaves(node)))

    parts = eqx.combine(unstacked(parameters, call.like), call.rest)
    if not any(map(is_trained_prior, jax.tree.leaves(parts, is_leaf=is_trained_prior))):
        return parameters
    parts = jax.tree.map(
        lambda node: node.constrained() if is_trained_prior(node) else node, parts, is_leaf=is_trained_prior
    )
    return stacked(eqx.filter(parts, eqx.is_inexact_array), call.like)


def _gradient(call: Call, state: TrainState, x: Array, y: Array, key: PRNGKeyArray) -> tuple[PyTree, Elbo]:
    """The gradient of the loss, in stacks, and the terms of the bound.

    With ``accumulate``, the batch is processed in parts, each with its own draws.
    """
    job = call.job
    kl_weight = kl_weight_at(job, state.step, call.total)
    draw_key, augment_key = jax.random.split(key)
    if job.augment is not None:
        x = job.augment(x, key=augment_key)
    x, y = (a.reshape(job.accumulate, -1, *a.shape[1:]) for a in (x, y))
    trained, rest = state.parameters, eqx.filter(call.rest, eqx.is_array)
    if job.mesh is None:
        gradient, found = _of_parts(call, trained, rest, x, y, draw_key, kl_weight)
    else:
        # The shares of all devices are added once, outside of the loops over depth and over the parts of a batch.
        everywhere, divided = PartitionSpec(), PartitionSpec(None, DATA)
        gradient, found = jax.shard_map(
            lambda *arrays: total(_of_parts(call, *arrays)), mesh=job.mesh,
            in_specs=(everywhere, everywhere, divided, divided, everywhere, everywhere), out_specs=everywhere,
            check_vma=False,
        )(trained, rest, x, y, draw_key, kl_weight)  # fmt: skip
    return gradient, found.elbo(job.scale, kl_weight)


def _of_parts(
    call: Call, trained: PyTree, rest: PyTree, x: Array, y: Array, key: PRNGKeyArray, kl_weight: float | Array
) -> tuple[PyTree, Parts]:
    """The gradient of the loss, in stacks, and the parts of the bound; on a mesh, of the share of this device.

    x and y have an axis in front, of the parts in which the batch is processed.
    """
    job = call.job
    fixed = eqx.combine(rest, eqx.filter(call.rest, eqx.is_array, inverse=True))
    share = None if job.mesh is None else Share.here(job.mesh)

    def loss(parameters: PyTree, x: Array, y: Array, key: PRNGKeyArray) -> tuple[Array, Parts]:
        model, likelihood = eqx.combine(parameters, fixed)
        found = elbo_parts(
            model, likelihood, as_floats(x), y, key=key, draws=job.draws, draws_at_once=job.draws_at_once,
            with_roughness=job.roughness_weight > 0, share=share,
        )  # fmt: skip
        terms = found.elbo(job.scale, kl_weight)
        return -terms.elbo / job.examples + job.roughness_weight * terms.roughness, found

    def part(index: Array | int, x: Array, y: Array) -> tuple[PyTree, Parts]:
        parameters, part_key = unstacked(trained, call.like), jax.random.fold_in(key, index)
        gradient, found = jax.grad(loss, has_aux=True)(parameters, x, y, part_key)
        return stacked(gradient, call.like), found

    if job.accumulate == 1:
        return part(0, x[0], y[0])

    def add(sums: tuple[PyTree, Parts], piece: tuple[Array, Array, Array]) -> tuple[tuple[PyTree, Parts], None]:
        return jax.tree.map(lambda a, b: a + b / job.accumulate, sums, part(*piece)), None

    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(part, 0, x[0], y[0]))
    return lax.scan(add, zero, (jnp.arange(job.accumulate), x, y))[0]


def kl_weight_at(job: Job, step: Int[Array, ""] | int, total: Int[Array, ""] | int) -> float | Float[Array, ""]:
    """The KL weight at a step: it rises geometrically to its full value over the first ``kl_warmup`` of the run."""
    if not job.kl_warmup:
        return job.kl_weight
    share = jnp.minimum(1.0, (step + 1) / jnp.maximum(1.0, job.kl_warmup * total))
    return job.kl_weight * KL_WARMUP_START ** (1 - share)
