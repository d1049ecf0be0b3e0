"""Fit any model of the contract: the loop around the compiled steps, which loses nothing.

Training is a function of the key, the data and the settings. A run that is stopped, or killed, goes on from its last
checkpoint to the same parameters, bit for bit, as one that never was.
"""

import contextlib
import functools
import math
import signal
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray, PyTree

from sdebnn.checks import check_callable, check_choice, check_count, check_key, check_positive, shown
from sdebnn.likelihoods import Likelihood
from sdebnn.train.folder import RunFolder
from sdebnn.train.loop import Call, Job, Record, TrainState, advance, start
from sdebnn.train.monitor import estimator_noise
from sdebnn.train.objective import Elbo, as_data
from sdebnn.train.progress import Display
from sdebnn.train.source import Source, source_of
from sdebnn.train.validation import validation_scores

STEPS_A_CALL = 50  # of all examples each: enough to outlast the call's overhead, few enough that the bar moves
SECONDS_A_CALL = 5.0  # after which a call returns, so that Ctrl-C is heard; an epoch that is shorter is one call

Watch = Literal["nll", "elbo"]
Optimizer = optax.GradientTransformation | Callable[[int], optax.GradientTransformation]


class Fit(NamedTuple):
    """What ``fit`` returns: the trained pair, and its history by step (the terms of ``Elbo``; NaN where not run)."""

    model: Any
    likelihood: Any
    history: dict[str, np.ndarray]


def fit(
    model: Any,
    likelihood: Likelihood,
    x: Array | np.ndarray,
    y: Array | np.ndarray,
    *,
    key: PRNGKeyArray,
    epochs: int = 5000,
    batch_size: int | None = None,
    accumulate: int = 1,
    draws: int = 4,
    draws_at_once: int | None = None,
    kl_weight: float = 1.0,
    kl_warmup: float = 0.0,
    learning_rate: float = 2e-2,
    optimizer: Optimizer | None = None,
    clip: float | None = None,
    ema: float | None = None,
    augment: Callable[..., Array] | None = None,
    roughness_weight: float = 0.0,
    validation: tuple[Any, Any] | None = None,
    validate_every: int | None = None,
    watch: Watch = "nll",
    patience: int | None = None,
    monitor: int | None = None,
    max_skipped: int = 10,
    memory_limit: int = 2**31,
    folder: str | Path | None = None,
    resume: bool = False,
    save_every: float = 60.0,
    keep: int = 2,
    tensorboard: bool = False,
    progress: bool = True,
) -> Fit:
    """Train the parameters of the model and of the likelihood on (x, y), examples first.

    **Batches.** ``batch_size=None`` takes all examples at every step. Otherwise each epoch shuffles them anew, and
    those that do not fill a last batch wait for another epoch. ``accumulate`` splits each batch into so many parts,
    computed in turn, each with draws of its own. ``augment(x, key=key)`` changes each batch, on the device. Data beyond
    ``memory_limit`` bytes, such as a memory map, are read as they are needed.

    **Objective.** ``draws`` of the weights a step, ``draws_at_once`` of them side by side (all, unless told; 1 suits
    convolutions). ``kl_weight`` 1 is the ELBO; it is reached from a thousandth over the first ``kl_warmup`` of the run.
    ``roughness_weight`` times the roughness of the hidden units is added to the loss -ELBO / N: dynamics that few steps
    solve well, at some cost in fit.

    **Optimiser.** Adam with ``learning_rate`` decayed to zero along a cosine; or any of Optax, or a function that makes
    one from the number of steps. ``clip`` bounds the gradient's norm; ``ema`` averages the parameters, and the average
    is what is validated and returned.

    **Validation.** Every ``validate_every`` epochs. With ``patience``, training stops after so many validations in a
    row without a better ``watch``, and the best parameters are returned. ``monitor`` measures, every so many epochs,
    how noisy the gradient would be under each estimator of the KL, and says whether "stl" pays.

    **Nothing is lost.** A step whose numbers are not finite is skipped and counted; after ``max_skipped`` in a row
    training stops with a warning and the last good parameters. With a ``folder`` there are checkpoints, every
    ``save_every`` seconds and at the end, the last ``keep`` of them kept, and ``metrics.jsonl``; Ctrl-C and SIGTERM
    save first; ``resume=True`` goes on from the last one, to the same numbers as if nothing had happened.
    """
    check_key(key)
    for name, value in (("epochs", epochs), ("draws", draws), ("accumulate", accumulate), ("keep", keep)):
        check_count(name, value)
    for name, value in (("max_skipped", max_skipped), ("memory_limit", memory_limit)):
        check_count(name, value)
    for name, value in (
        ("batch_size", batch_size), ("draws_at_once", draws_at_once), ("validate_every", validate_every),
        ("patience", patience), ("monitor", monitor),
    ):  # fmt: skip
        if value is not None:
            check_count(name, value)
    check_positive("kl_weight", kl_weight, or_zero=True)
    check_positive("kl_warmup", kl_warmup, or_zero=True)
    check_positive("learning_rate", learning_rate)
    check_positive("roughness_weight", roughness_weight, or_zero=True)
    check_positive("save_every", save_every, or_zero=True)
    if kl_warmup > 1:
        raise ValueError(f"kl_warmup={kl_warmup} is a share of the run: pass a number from 0 to 1.")
    if clip is not None:
        check_positive("clip", clip)
    if ema is not None and not 0 < ema < 1:
        raise ValueError(f"ema={shown(ema)} must be between 0 and 1, such as 0.998; None keeps no average.")
    if augment is not None:
        check_callable("augment", augment, "sdebnn.data.augment's")
    check_choice("watch", watch, get_args(Watch))
    if patience is not None and validation is None:
        raise ValueError(f"patience={patience} watches the validation set: pass validation=(x, y).")
    if folder is None and (resume or tensorboard):
        raise ValueError("resume and tensorboard need a folder: pass folder='run'.")
    if roughness_weight and not hasattr(model, "solve"):
        raise ValueError(f"roughness_weight={roughness_weight}: {type(model).__name__} solves nothing; leave it at 0.")
    x, y = as_data(model, likelihood, x, y, key=key, limit=memory_limit)
    if validation is not None:
        validation = as_data(model, likelihood, *validation, key=key, limit=memory_limit)
    examples = x.shape[0]
    batch_size = examples if batch_size is None else min(batch_size, examples)
    if batch_size % accumulate:
        raise ValueError(f"accumulate={accumulate} does not divide the batch of {batch_size}: choose one that does.")

    steps_an_epoch = examples // batch_size
    total = epochs * steps_an_epoch
    optimizer = _optimizer(optimizer, learning_rate, total, clip)
    records = STEPS_A_CALL if batch_size == examples else steps_an_epoch
    job = Job(
        optimizer, examples, batch_size, accumulate, draws, draws_at_once, kl_weight, kl_warmup, roughness_weight, ema,
        augment, max_skipped, records,
    )  # fmt: skip
    settings = {
        "epochs": epochs, "batch_size": batch_size, "accumulate": accumulate, "draws": draws, "kl_weight": kl_weight,
        "kl_warmup": kl_warmup, "learning_rate": learning_rate, "clip": clip, "ema": ema,
        "roughness_weight": roughness_weight, "watch": watch, "patience": patience,
        "validation": validation is not None, "examples": examples, "data": _fingerprint(x, y), "key": jax.random.key_data(key).tolist(),
    }  # fmt: skip
    plan = _Plan(
        job, total, validate_every or math.ceil(records / steps_an_epoch), validation, watch, patience, monitor,
        save_every, settings,
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        place = None
        if folder is not None:
            place = stack.enter_context(RunFolder(Path(folder), keep=keep, tensorboard=tensorboard))
        display = stack.enter_context(Display(progress, total, kl_weight, kl_warmup, examples, validation is not None))
        parameters, rest = eqx.partition((model, likelihood), eqx.is_inexact_array)
        source = source_of(x, y, key, job, memory_limit)
        run = _Run(plan, parameters, rest, key, source, place, display)
        if place is not None:
            run.go_on_from(place, resume)
        parameters = run.train()
    model, likelihood = eqx.combine(parameters, rest)
    return Fit(model, likelihood, run.history)


class _Plan(NamedTuple):
    """How a run goes, beside what is compiled."""

    job: Job
    total: int
    validate_every: int  # epochs
    validation: tuple[Any, Any] | None
    watch: Watch
    patience: int | None
    monitor: int | None
    save_every: float  # seconds
    settings: dict[str, Any]


class _Run:
    """One run: what it has reached, and how it goes on."""

    def __init__(
        self,
        plan: _Plan,
        parameters: PyTree,
        rest: PyTree,
        key: PRNGKeyArray,
        source: Source,
        place: RunFolder | None,
        display: Display,
    ):
        self.plan, self.rest, self.key, self.source, self.place, self.display = plan, rest, key, source, place, display
        self.state = start(parameters, plan.job)
        self.best = parameters if plan.validation is not None else None
        self.best_value, self.best_step, self.waited = math.inf, 0, 0
        self.history = {name: np.full(plan.total, np.nan) for name in Elbo._fields}
        self.step, self.seconds, self.stopped = 0, 0.0, False
        self.last: dict[str, float] = {}

    def go_on_from(self, place: RunFolder, resume: bool) -> None:
        """Take up what the folder holds."""
        steps = place.steps()
        if not steps:
            return
        if not resume:
            raise ValueError(
                f"{place.path} holds a run already, at step {steps[-1]}: resume it (resume=True, --resume), or choose "
                "another folder."
            )
        saved = place.facts(steps[-1])
        for name, value in self.plan.settings.items():
            if saved["settings"].get(name) != value:
                raise ValueError(
                    f"{place.path} was trained with {name}={shown(saved['settings'].get(name))}, this run has "
                    f"{shown(value)}: use the same, or choose another folder."
                )
        tree, _ = place.load(steps[-1], self._tree())
        self.best, self.history = tree.pop("best"), tree.pop("history")
        self.state = TrainState(**jax.tree.map(jnp.asarray, tree))
        self.step, self.seconds = saved["step"], saved["seconds"]
        self.best_value = math.inf if saved["best_value"] is None else saved["best_value"]
        self.best_step, self.waited, self.stopped = saved["best_step"], saved["waited"], saved["stopped"]
        place.rewind(self.step)
        self.display.resumed(self.step)

    def train(self) -> PyTree:
        """Run to the end; the parameters that are then the answer."""
        began, saved_at, pace = time.perf_counter() - self.seconds, time.perf_counter(), math.inf
        with _listening(self.place is not None) as heard:
            if self.step < self.plan.total and not self.stopped:
                self._advance(self.step)  # no step: only compiled
            while self.step < self.plan.total and not self.stopped:
                wish = 1 if pace == math.inf else max(1, int(SECONDS_A_CALL / max(pace, 1e-9)))
                clock = time.perf_counter()
                before, record = self.step, self._advance(self._stop(wish))
                pace = (time.perf_counter() - clock) / max(1, self.step - before)
                self.seconds = time.perf_counter() - began
                self._told(before, record)
                if heard or (self.place is not None and time.perf_counter() - saved_at >= self.plan.save_every):
                    self._save(last=bool(heard))
                    saved_at = time.perf_counter()
                if heard:
                    self._leave(heard[0])
            if self.place is not None and self.place.steps()[-1:] != [self.step]:
                self._save(last=True)
        skipped = int(self.state.skipped)
        if skipped and not self.stopped:
            warnings.warn(
                f"{skipped} of {self.step} steps were skipped, for their ELBO, gradient or parameters were not finite.",
                RuntimeWarning,
                stacklevel=3,
            )
        return self.best if self._which() == "best" else self._now()

    def _advance(self, stop: int) -> Record:
        stop = max(stop, self.step)
        call = Call(
            self.plan.job, self.rest, self.source.batches(self.step, stop), self.key, jnp.asarray(stop, jnp.int32),
            jnp.asarray(self.plan.total, jnp.int32),
        )  # fmt: skip
        before = self.step
        self.state, record = advance(call, self.state)
        self.step = int(self.state.step)  # waits for the device
        return jax.tree.map(lambda column: np.asarray(column)[: self.step - before], record)

    def _stop(self, wish: int) -> int:
        """Where the next call ends: after the steps wished for, but at no epoch's or validation's end too late."""
        job = self.plan.job
        steps_an_epoch = job.examples // job.batch_size
        every = (
            steps_an_epoch * self.plan.validate_every if self.plan.validation or self.plan.monitor else self.plan.total
        )
        ends = [self.step + min(wish, self.source.at_most), self.plan.total, (self.step // every + 1) * every]
        if job.batch_size < job.examples:
            ends.append((self.step // steps_an_epoch + 1) * steps_an_epoch)
        return min(*ends, self.step + job.records)

    def _told(self, before: int, record: Record) -> None:
        """Keep what the steps said, validate if it is time, and say it."""
        job, plan = self.plan.job, self.plan
        for name, column in record.terms._asdict().items():
            self.history[name][before : self.step] = column
        good = ~record.skipped
        terms = {name: _mean(column[good]) for name, column in record.terms._asdict().items()}
        steps_an_epoch = job.examples // job.batch_size
        row: dict[str, Any] = {
            "step": self.step, "epoch": self.step / steps_an_epoch, "seconds": round(self.seconds, 3),
            "loss": -terms["elbo"] / job.examples, **terms, "gradient_norm": _mean(record.gradient_norm[good]),
            "skipped": int(self.state.skipped),
        }  # fmt: skip
        if plan.validation is not None and self.step % (steps_an_epoch * plan.validate_every) == 0:
            row.update(self._validate())
        if plan.monitor is not None and self.step % (steps_an_epoch * plan.monitor) == 0:
            row.update(self._measure_noise())
        self.display.update(self.step, row)
        if int(self.state.in_a_row) >= job.max_skipped:
            self.stopped = True
            warnings.warn(
                f"the ELBO, its gradient or a parameter was not finite in {job.max_skipped} steps in a row, up to step "
                f"{self.step}: stopped with the last good parameters; lower "
                f"learning_rate={plan.settings['learning_rate']}, standardise the data, or give an adaptive solver "
                "more max_steps.",
                RuntimeWarning,
                stacklevel=4,
            )
        if self.place is not None:
            try:
                self.place.log(row)
            except OSError as error:
                warnings.warn(
                    f"could not write {self.place.metrics}: {error.strerror}; training goes on.", stacklevel=4
                )

    def _validate(self) -> dict[str, float]:
        plan = self.plan
        assert plan.validation is not None
        scores = validation_scores(
            eqx.combine(self._now(), self.rest), *plan.validation, key=self.key, examples=plan.job.examples,
            draws_at_once=plan.job.draws_at_once,
        )  # fmt: skip
        value = scores.nll if plan.watch == "nll" else -scores.elbo
        if value < self.best_value:
            self.best, self.best_value, self.best_step, self.waited = (
                jax.device_get(self._now()),
                value,
                self.step,
                0,
            )
        else:
            self.waited += 1
            if plan.patience is not None and self.waited >= plan.patience:
                self.stopped = True
                self.display.say(f"No better validation {plan.watch} since step {self.best_step}: stopped.")
        return {f"validation_{name}": number for name, number in scores._asdict().items()}

    def _measure_noise(self) -> dict[str, float]:
        job = self.plan.job
        rows = self.source.sample(job.batch_size // job.accumulate)
        model, likelihood = eqx.combine(self.state.parameters, self.rest)
        noise = estimator_noise(model, likelihood, *rows, key=self.key, examples=job.examples)
        if noise is None:
            return {}
        self.display.say(noise.verdict())
        return {f"noise_{name}": number for name, number in noise.variances().items()}

    def _which(self) -> str:
        """The name of the parameters that are the answer, if the run ends here."""
        if self.plan.patience is not None and self.best_step:
            return "best"
        return "parameters" if self.state.ema is None else "ema"

    def _now(self) -> PyTree:
        return self.state.parameters if self.state.ema is None else self.state.ema

    def _tree(self) -> PyTree:
        return {**self.state._asdict(), "best": self.best, "history": self.history}

    def _save(self, last: bool) -> None:
        """Write a checkpoint. If that fails, training goes on from memory, unless it is over."""
        assert self.place is not None
        facts = {
            "step": self.step, "seconds": self.seconds, "stopped": self.stopped, "waited": self.waited,
            "best_value": self.best_value if math.isfinite(self.best_value) else None, "best_step": self.best_step,
            "answer": self._which(), "settings": self.plan.settings, "versions": {"jax": jax.__version__, "numpy": np.__version__},
        }  # fmt: skip
        try:
            self.place.save(self.step, jax.device_get(self._tree()), facts)
        except OSError as error:
            steps = self.place.steps()
            kept = f"the checkpoint of step {steps[-1]} is whole" if steps else "there is no earlier one"
            words = f"could not save step {self.step} in {self.place.checkpoints}: {error.strerror}; {kept}"
            if last:
                raise OSError(f"{words}. Make room, then resume.") from None
            warnings.warn(f"{words}, and training goes on.", stacklevel=4)

    def _leave(self, number: int) -> None:
        assert self.place is not None
        self.display.say(f"Saved step {self.step} in {self.place.path}: resume it to go on.")
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)


@contextlib.contextmanager
def _listening(wanted: bool) -> Iterator[list[int]]:
    """Collect Ctrl-C and SIGTERM instead of dying of the first; the second is as deadly as ever."""
    heard: list[int] = []
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield heard
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def hear(number: int, _: object) -> None:
        heard.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in before:
        signal.signal(number, hear)
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _optimizer(given: Any, learning_rate: float, steps: int, clip: float | None) -> optax.GradientTransformation:
    if given is None:
        return _adam(learning_rate, steps, clip)
    if not isinstance(given, optax.GradientTransformation) and callable(given):
        given = given(steps)
    if not isinstance(given, optax.GradientTransformation):
        raise ValueError(f"optimizer={shown(given)} is not one of Optax: pass one such as optax.adam(1e-3).")
    return given if clip is None else optax.chain(optax.clip_by_global_norm(clip), given)


@functools.cache
def _adam(learning_rate: float, steps: int, clip: float | None) -> optax.GradientTransformation:
    """One object for the same numbers, so that a second fit finds the first one's program."""
    adam = optax.adam(optax.cosine_decay_schedule(learning_rate, steps))
    return adam if clip is None else optax.chain(optax.clip_by_global_norm(clip), adam)


def _fingerprint(x: Any, y: Array) -> str:
    """A few bytes that tell one data set from another."""
    digest = zlib.crc32(f"{x.shape} {y.shape} {x.dtype}".encode())
    for part in (x[: min(1000, x.shape[0])], y):
        digest = zlib.crc32(np.ascontiguousarray(np.asarray(part)), digest)
    return f"{digest:08x}"


def _mean(column: np.ndarray) -> float:
    return float(column.mean()) if column.size else math.nan
