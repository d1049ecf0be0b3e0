"""Training of one member by a few calls of one compiled program.

``sdebnn.train.fit`` calls the device once for each epoch, and other programs for each validation. Between these calls
it can save, resume and skip single steps. On a small table the calls take longer than the steps. Here one call runs
all epochs up to a validation, and the validation itself. The steps, their keys and their batches are those of ``fit``,
so the results are the same up to rounding.

Calls from several threads run side by side, since JAX releases the lock of the interpreter during a call.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from sdebnn.contract import AbstractModel, draw_keys, over_draws
from sdebnn.devices import platform
from sdebnn.likelihoods import AbstractLikelihood
from sdebnn.metrics import nll
from sdebnn.programs import Compiled, compiled
from sdebnn.train.batches import epoch_keys
from sdebnn.train.fallback import is_good
from sdebnn.train.objective import elbo
from sdebnn.train.optimizers import optimizer_of
from sdebnn.train.options import Optimizer
from sdebnn.train.progress import Display
from sdebnn.train.validation import VALIDATION_DRAWS, Best, Scores
from sdebnn.train.xla_options import compiler_options

UNITS = 1000  # of a progress bar for each member
_COMPILING = threading.Lock()  # threads that start together would all compile the same program

Rows = tuple[Float[Array | np.ndarray, "_ input"], Float[Array | np.ndarray, "_ column"]]  # inputs and targets


class Schedule(NamedTuple):
    """How a member is trained, as ``fit`` would be told by its options."""

    optimizer: Optimizer
    ema: float
    batch_size: int
    kl_weight: float
    epochs: int
    validate_every: int  # epochs
    patience: int

    def rule(self, examples: int) -> optax.GradientTransformation:
        """The optimiser, for so many examples. It is the same object for the same numbers."""
        options, steps = self.optimizer, self.epochs * (examples // self.batch_size)
        return optimizer_of(options.rule, options.learning_rate, steps, options.clip)


class Trained(NamedTuple):
    """A trained member, and the ELBO at each step."""

    model: AbstractModel
    elbos: Float[np.ndarray, " step"]


class _State(NamedTuple):
    """What changes during training; all parameters are one vector."""

    parameters: Float[Array, " parameter"]
    average: Float[Array, " parameter"]
    optimizer: PyTree


class _Record(NamedTuple):
    """What a call returns besides the state: the ELBO of each step, and numbers at its end."""

    elbo: Float[Array, " step"]
    last_elbo: Float[Array, ""]
    last_kl: Float[Array, ""]
    nll: Float[Array, ""]  # of the held-out rows


class _Call(NamedTuple):
    """The arguments of ``_round`` that stay the same during training."""

    schedule: Schedule
    like: PyTree  # shapes and types of the parameters
    rest: PyTree  # the parts of the model that are not trained
    likelihood: AbstractLikelihood
    data: Rows
    held_out: Rows | None
    seed: np.uint32
    member: np.uint32


def trained(
    check: Callable[[], None],
    model: AbstractModel,
    likelihood: AbstractLikelihood,
    data: Rows,
    held_out: Rows | None,
    schedule: Schedule,
    *,
    seed: int,
    index: int,
    bar: "MembersBar",
) -> Trained | None:
    """Train a member; None if a number was not finite or the ELBO exploded, which ``fit`` knows how to handle.

    ``check`` is called between calls of the device, and may raise an exception to end the training.
    """
    call, state = _begun(model, likelihood, data, held_out, schedule, seed, index)
    examples, every = data[0].shape[0], schedule.validate_every
    steps, best, elbos = examples // schedule.batch_size, Best(state.average), np.zeros(0)
    for first in range(0, schedule.epochs, every):
        check()
        epochs = min(every, schedule.epochs - first)
        state, record = _program(platform())(call, state, np.int32(first), np.int32(epochs))
        new = np.asarray(record.elbo, float)[: epochs * steps]
        elbos = np.concatenate([elbos, new])
        if not all(is_good(each, elbos[0], examples) for each in new):
            return None
        scores = Scores(nll=float(record.nll), elbo=np.nan, kl=np.nan, accuracy=np.nan)
        if held_out is None:
            best = best._replace(parameters=state.average)
        elif epochs == every:
            best = best.after(len(elbos), state.average, scores, "nll")
        stops = best.waited >= schedule.patience
        share = 1.0 if stops else (first + epochs) / schedule.epochs
        bar.update(index, share, _row(record, examples, scores if best.step else None))
        if stops:
            break
    found = np.asarray(best.parameters)
    if (held_out is not None and not best.step) or not np.isfinite(found).all():
        return None
    return Trained(eqx.combine(jax.tree.map(jnp.asarray, _tree(found, call.like)), call.rest), elbos)


class MembersBar:
    """One progress bar for all members, which may be trained side by side. One that stops early is done."""

    def __init__(self, show: bool, members: int, kl_weight: float, examples: int):
        self._display = Display(show, members * UNITS, kl_weight, 0.0, examples)
        self._done, self._lock = [0.0] * members, threading.Lock()

    def __enter__(self) -> "MembersBar":
        self._display.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._display.__exit__()

    def update(self, index: int, share: float, row: dict[str, float]) -> None:
        """Show that a share of the training of a member is done, and its numbers."""
        with self._lock:
            self._done[index] = share
            self._display.update(int(UNITS * sum(self._done)), row)


def _begun(
    model: AbstractModel,
    likelihood: AbstractLikelihood,
    data: Rows,
    held_out: Rows | None,
    schedule: Schedule,
    seed: int,
    index: int,
) -> tuple[_Call, _State]:
    """The arguments of the first call; the program is compiled."""
    parameters, rest = eqx.partition(model, eqx.is_inexact_array)
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), parameters)
    call = _Call(schedule, like, rest, likelihood, data, held_out, np.uint32(seed), np.uint32(index))
    with _COMPILING:
        state = _start(call, _vector(jax.tree.map(np.asarray, parameters)))
        _program(platform())(call, state, np.int32(0), np.int32(0))  # no steps
    return call, state


def _row(record: _Record, examples: int, scores: Scores | None) -> dict[str, float]:
    """What the progress display shows."""
    row = {"loss": -float(record.last_elbo) / examples, "kl": float(record.last_kl), "accuracy": np.nan, "skipped": 0}
    held_out = {} if scores is None else {"validation_nll": scores.nll, "validation_accuracy": scores.accuracy}
    return row | held_out


def options_on(platform: str) -> dict[str, Any] | None:
    """Compiler options: on a CPU, LLVM takes a third less time, and the programs are as fast."""
    return {"xla_backend_optimization_level": 1} if platform == "cpu" else compiler_options()


@compiled
def _start(call: _Call, parameters: Float[Array, " parameter"]) -> _State:
    return _State(parameters, parameters, call.schedule.rule(call.data[0].shape[0]).init(parameters))


@functools.cache
def _program(platform: str) -> Compiled[..., tuple[_State, _Record]]:
    """``_round``, compiled."""
    return compiled(_round, compiler_options=options_on(platform))


def _round(call: _Call, state: _State, first: Int[Array, ""], epochs: Int[Array, ""]) -> tuple[_State, _Record]:
    """Train for some epochs, and predict the held-out rows."""
    schedule, (x, y) = call.schedule, call.data
    steps = x.shape[0] // schedule.batch_size
    key = jax.random.fold_in(jax.random.key(call.seed), call.member)
    columns = jnp.zeros((2, schedule.validate_every * steps), state.parameters.dtype)  # ELBO and KL

    def epoch(number: Array, carry: tuple[_State, Array]) -> tuple[_State, Array]:
        order_key, draws_key = epoch_keys(key, number)
        order = jax.random.permutation(order_key, x.shape[0])[: steps * schedule.batch_size].reshape(steps, -1)
        keys = jax.vmap(lambda i: _draw_key(jax.random.fold_in(draws_key, i)))(jnp.arange(steps))

        def step(i: Array, carry: tuple[_State, Array]) -> tuple[_State, Array]:
            state, columns = carry
            state, terms = _step(call, state, x[order[i]], y[order[i]], keys[i], number * steps + i)
            return state, columns.at[:, (number - first) * steps + i].set(terms)

        return lax.fori_loop(0, steps, step, carry)

    state, columns = lax.fori_loop(first, first + epochs, epoch, (state, columns))
    last_elbo, last_kl = columns[:, epochs * steps - 1]
    return state, _Record(columns[0], last_elbo, last_kl, _nll(call, state.average, key))


def _draw_key(key: PRNGKeyArray) -> PRNGKeyArray:
    """The key of the draw of a step, which ``fit`` derives from the key of the step."""
    return jax.random.fold_in(jax.random.split(key)[0], 0)


def _step(
    call: _Call, state: _State, x: Array, y: Array, key: PRNGKeyArray, number: Int[Array, ""]
) -> tuple[_State, Float[Array, "2"]]:
    """One step of the optimiser, and the ELBO and the KL before it."""
    schedule, examples = call.schedule, call.data[0].shape[0]

    def loss(parameters: PyTree) -> tuple[Array, Array]:
        model = eqx.combine(parameters, call.rest)
        terms = elbo(
            model, call.likelihood, x, y, key=key, draws=1, kl_weight=schedule.kl_weight, examples=examples
        )  # fmt: skip
        return -terms.elbo / examples, jnp.stack([terms.elbo, terms.kl])

    gradient, terms = jax.grad(loss, has_aux=True)(_tree(state.parameters, call.like))
    updates, optimizer = schedule.rule(examples).update(_vector(gradient), state.optimizer, state.parameters)
    parameters = cast(Array, optax.apply_updates(state.parameters, updates))
    # The decay is small at first, so that the initial parameters are soon forgotten.
    decay = jnp.minimum(schedule.ema, (1 + number) / (10 + number))
    average = (decay * state.average + (1 - decay) * parameters).astype(parameters.dtype)
    return _State(parameters, average, optimizer), terms


def _nll(call: _Call, parameters: Float[Array, " parameter"], key: PRNGKeyArray) -> Float[Array, ""]:
    """The NLL of the averaged forecast of the held-out rows; 0 if there are none."""
    if call.held_out is None:
        return jnp.zeros((), parameters.dtype)
    model, (x, columns) = eqx.combine(_tree(parameters, call.like), call.rest), call.held_out
    keys = draw_keys(jax.random.fold_in(key, 0x7A11), VALIDATION_DRAWS, model)
    likelihood, y, weights = call.likelihood.split_weights(jnp.asarray(columns))
    samples = over_draws(lambda key: model.solve(jnp.asarray(x), key=key).outputs, keys, VALIDATION_DRAWS)
    return nll(likelihood.log_prob(samples, y), weights)


def _vector(tree: PyTree) -> Any:
    """All arrays of a tree as one vector."""
    leaves = jax.tree.leaves(tree)
    on = np if all(isinstance(leaf, np.ndarray) for leaf in leaves) else jnp
    return on.concatenate([leaf.ravel() for leaf in leaves])


def _tree(vector: Any, like: PyTree) -> PyTree:
    """The inverse of ``_vector``: arrays of the shapes of ``like``."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([leaf.size for leaf in leaves])
    parts = [vector[end - leaf.size : end].reshape(leaf.shape) for leaf, end in zip(leaves, ends, strict=True)]
    return jax.tree.unflatten(structure, parts)
