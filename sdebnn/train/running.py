"""One run: what it has reached, and how it goes on, is told of, kept, and stopped."""

import contextlib
import math
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from sdebnn.checks import shown
from sdebnn.train.folder import RunFolder
from sdebnn.train.loop import Call, Job, Record, TrainState, compiled, kl_weight_at, start
from sdebnn.train.monitor import estimator_noise
from sdebnn.train.objective import Elbo
from sdebnn.train.progress import Display
from sdebnn.train.source import Source
from sdebnn.train.stacks import Stacks, stacked, unstacked
from sdebnn.train.validation import validation_scores

SECONDS_A_CALL = 5.0  # after which a call returns, so that Ctrl-C is heard; an epoch that is shorter is one call

Watch = Literal["nll", "elbo"]


class Plan(NamedTuple):
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


class Running:
    """One run: what it has reached, and how it goes on."""

    def __init__(
        self,
        plan: Plan,
        parameters: PyTree,
        rest: PyTree,
        key: PRNGKeyArray,
        source: Source,
        place: RunFolder | None,
        display: Display,
    ):
        self.plan, self.rest, self.key, self.source, self.place, self.display = plan, rest, key, source, place, display
        self.like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), parameters)
        self.devices = jax.tree.map(lambda leaf: leaf.sharding if leaf.committed else None, parameters)
        self.state = start(parameters, plan.job)
        self.best = jax.device_get(parameters) if plan.validation is not None else None
        self.best_value, self.best_step, self.waited = math.inf, 0, 0
        self.history = {name: np.full(plan.total, np.nan) for name in Elbo._fields}
        self.step, self.seconds, self.stopped = 0, 0.0, False

    def go_on_from(self, place: RunFolder, resume: bool) -> None:
        """Take up what the folder holds."""
        steps = place.steps()
        if not steps:
            place.rewind(0)
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
        self.key = jax.random.wrap_key_data(tree.pop("key"))
        for name in ("parameters", "ema"):
            tree[name] = None if tree[name] is None else stacked(tree[name], self.like)
        self.state = TrainState(**jax.tree.map(jnp.asarray, tree))
        self.step, self.seconds = saved["step"], saved["seconds"]
        self.best_value = math.inf if saved["best_value"] is None else saved["best_value"]
        self.best_step, self.waited, self.stopped = saved["best_step"], saved["waited"], saved["stopped"]
        place.rewind(self.step)
        self.display.resumed(self.step)

    def train(self) -> PyTree:
        """Run to the end; the parameters that are then the answer."""
        began, saved_at, pace = time.perf_counter() - self.seconds, time.perf_counter(), math.inf
        with listening(self.place is not None) as heard:
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
            if heard:
                self._leave(heard[0])
        if skipped := int(self.state.skipped):
            what = (
                f"{skipped} of {self.step} steps were skipped, for their ELBO, gradient or parameters were not finite"
            )
            if self.gave_up:
                what += f", the last {self.plan.job.max_skipped} in a row: stopped with the last good parameters"
            warnings.warn(
                f"{what}; lower learning_rate={self.plan.settings['learning_rate']}, standardise the data, or give an "
                "adaptive solver more max_steps.",
                RuntimeWarning,
                stacklevel=3,
            )
        return self._placed(self.best if self._which() == "best" else self._now())

    @property
    def gave_up(self) -> bool:
        """Whether too many steps in a row were not finite."""
        return int(self.state.in_a_row) >= self.plan.job.max_skipped

    def _advance(self, stop: int) -> Record:
        stop = max(stop, self.step)
        try:
            batches = self.source.batches(self.step, stop)
        except ValueError:  # rows that cannot be trained on: what was learned before them is kept
            if self.place is not None:
                self._save(last=False)
            raise
        total = jnp.asarray(self.plan.total, jnp.int32)
        call = Call(self.plan.job, self.like, self.rest, batches, self.key, jnp.asarray(stop, jnp.int32), total)
        before = self.step
        self.state, record = compiled()(call, self.state)
        self.step = int(self.state.step)  # waits for the device
        return jax.tree.map(lambda column: np.asarray(column)[: self.step - before], record)

    def _stop(self, wish: int) -> int:
        """Where the next call ends: after the steps wished for, but at no epoch's or validation's end too late."""
        job = self.plan.job
        steps_an_epoch = job.examples // job.batch_size
        ends = [self.step + min(wish, self.source.at_most), self.plan.total]
        for epochs in (self.plan.validate_every if self.plan.validation else None, self.plan.monitor):
            if epochs is not None:
                every = epochs * steps_an_epoch
                ends.append((self.step // every + 1) * every)
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
        self.stopped = self.stopped or self.gave_up
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
        now = self._now()
        scores = validation_scores(
            self._with(now), *plan.validation, key=self.key, examples=plan.job.examples,
            draws_at_once=plan.job.draws_at_once,
        )  # fmt: skip
        value = scores.nll if plan.watch == "nll" else -scores.elbo
        if value < self.best_value:
            self.best, self.best_value, self.best_step, self.waited = now, value, self.step, 0
        else:
            self.waited += 1
            if plan.patience is not None and self.waited >= plan.patience:
                self.stopped = True
                self.display.say(f"No better validation {plan.watch} since step {self.best_step}: stopped.")
        return {f"validation_{name}": number for name, number in scores._asdict().items()}

    def _measure_noise(self) -> dict[str, float]:
        job = self.plan.job
        rows = self.source.sample(job.batch_size // job.accumulate)
        model, likelihood = self._with(self._on_host(self.state.parameters))
        weight = float(kl_weight_at(job, self.state.step, jnp.asarray(self.plan.total)))
        noise = estimator_noise(model, likelihood, *rows, key=self.key, kl_weight=weight, examples=job.examples)
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
        """The parameters as they are now, or their average, as NumPy has them."""
        return self._on_host(self.state.parameters if self.state.ema is None else self.state.ema)

    def _placed(self, parameters: PyTree) -> PyTree:
        """Parameters as NumPy has them, on the devices that they were on at first."""
        return jax.tree.map(jax.device_put, parameters, self.devices)

    def _with(self, parameters: PyTree) -> Any:
        """The model and the likelihood with parameters as NumPy has them."""
        return eqx.combine(self._placed(parameters), self.rest)

    def _on_host(self, stacks: Stacks | None) -> PyTree:
        """The tree of what is stacked on the device: no program need be compiled to take it apart here."""
        return None if stacks is None else unstacked(jax.device_get(stacks), self.like)

    def _tree(self) -> PyTree:
        """What a checkpoint holds, as NumPy has it."""
        state, key = jax.device_get((self.state, jax.random.key_data(self.key)))
        trees = {"parameters": self._on_host(state.parameters), "ema": self._on_host(state.ema)}
        return {**state._asdict(), **trees, "best": self.best, "history": self.history, "key": key}

    def _save(self, last: bool) -> None:
        """Write a checkpoint. If that fails, training goes on from memory, unless it is over."""
        assert self.place is not None
        facts = {
            "step": self.step, "seconds": self.seconds, "stopped": self.stopped, "waited": self.waited,
            "best_value": self.best_value if math.isfinite(self.best_value) else None, "best_step": self.best_step,
            "answer": self._which(), "settings": self.plan.settings,
            "versions": {"jax": jax.__version__, "numpy": np.__version__},
        }  # fmt: skip
        try:
            self.place.save(self.step, self._tree(), facts)
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
def listening(wanted: bool) -> Iterator[list[int]]:
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


def _mean(column: Any) -> float:
    return float(np.mean(column)) if np.size(column) else math.nan
