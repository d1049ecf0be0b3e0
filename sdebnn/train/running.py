"""One training run: calls of the compiled steps, and what happens between them.

Between calls the run records metrics, validates, saves checkpoints and reacts to signals. At the end it returns
parameters whose ELBO was computed and found good.
"""

import math
import signal
import time
import warnings
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import PRNGKeyArray, PyTree

from sdebnn import hosts
from sdebnn.contract import AbstractModel
from sdebnn.likelihoods import AbstractLikelihood
from sdebnn.train.batches import BatchSource, StepBatches, Streamed
from sdebnn.train.checkpoints import RunFolder
from sdebnn.train.fallback import GoodParameters, is_good, what_went_wrong
from sdebnn.train.loop import Job, StepRecord, Steps, TrainState, kl_weight_at
from sdebnn.train.monitor import estimator_noise
from sdebnn.train.objective import Elbo
from sdebnn.train.progress import Display
from sdebnn.train.resuming import Checkpointer
from sdebnn.train.signals import deferred_signals
from sdebnn.train.validation import Best, ShouldStop, Watch, validation_scores

# A call of the compiled program is kept below about this many seconds, so that signals are noticed.
SECONDS_A_CALL = 5.0
# Seconds for which the other processes of a run are waited for, before it is known how long such things take.
SECONDS_TO_COMPILE, SECONDS_TO_BEGIN = 1800.0, 300.0


class RunSpec(NamedTuple):
    """How a run proceeds, apart from what is compiled."""

    job: Job
    total: int  # steps
    validate_every: int  # epochs
    validation: tuple[Any, Any] | None
    watch: Watch
    patience: int | None
    at_start: bool  # whether to validate before the first step
    monitor: int | None
    save_every: float  # seconds
    settings: dict[str, Any]
    configuration: dict[str, dict[str, str]]  # what model, likelihood, optimiser and augmentation are made of
    should_stop: ShouldStop | None = None


class TrainingRun:
    """A run in progress. Parameters are kept as trees of NumPy arrays, except inside ``Steps``."""

    def __init__(
        self,
        spec: RunSpec,
        parameters: PyTree,
        rest: PyTree,
        key: PRNGKeyArray,
        source: BatchSource,
        folder: RunFolder | None,
        display: Display,
    ):
        self.spec, self.rest, self.key, self.source, self.display = spec, rest, key, source, display
        # Every process of a run has one, and the first alone reads and writes.
        self.checkpointer = None if folder is None else Checkpointer(folder, spec.settings, spec.configuration)
        self.watchdog = hosts.Watchdog()
        self.devices = jax.tree.map(lambda leaf: leaf.sharding if leaf.committed else None, parameters)
        self.steps = Steps(spec.job, parameters, rest, key, spec.total)
        self.step, self.skipped, self.skipped_in_a_row = 0, 0, 0
        self.seconds, self.stopped = 0.0, False
        self.history = {name: np.full(spec.total, np.nan) for name in Elbo._fields}
        self.best = Best(jax.device_get(parameters) if spec.validation is not None else None)
        self.good: GoodParameters | None = self._candidate()
        self.fell_back = False

    # Saving and resuming

    def resume_if_saved(self, resume: bool, data: tuple[Any, Any]) -> None:
        """Continue from the last checkpoint in the folder, if there is one."""
        checkpointer = self.checkpointer
        if checkpointer is None:
            return
        if not isinstance(data[0], jax.Array):
            self.display.say("Reading all rows once, to compute a digest of the data.")
        parts = {"data": data, "validation": self.spec.validation}
        saved = hosts.from_first(lambda: checkpointer.resumable(resume, parts))
        if saved is not None:
            self._restore(checkpointer, saved)
        checkpointer.folder.rewind(self.step)

    def _restore(self, checkpointer: Checkpointer, saved: dict[str, Any]) -> None:
        like = self._tree()
        tree = checkpointer.tree_at(saved["step"], like)
        self.history = tree["history"]
        self.steps.set_state(TrainState(**{name: tree[name] for name in TrainState._fields}))
        self.step, self.skipped, self.skipped_in_a_row = self.steps.counters()
        self.seconds, self.stopped = saved["seconds"], saved["stopped"]
        value = math.inf if saved["best_value"] is None else saved["best_value"]
        self.best = Best(tree["best"], value, saved["best_step"], saved["waited"])
        if saved["good"]:
            self.good = self._candidate()
        else:
            found = checkpointer.last_good(like)
            self.good = None
            if found is not None:
                parameters = found[1]["parameters"], found[1]["ema"]
                self.good = GoodParameters(found[0], lambda: parameters)
        self.display.resumed(self.step)

    def _tree(self) -> PyTree:
        """The arrays of a checkpoint."""
        others = {"best": self.best.parameters, "history": self.history, "key": jax.random.key_data(self.key)}
        return {**self.steps.state()._asdict(), **jax.device_get(others)}

    def _save(self, *, final: bool, good: bool) -> None:
        assert self.checkpointer is not None
        facts = {
            "step": self.step, "seconds": self.seconds, "stopped": self.stopped, "waited": self.best.waited,
            "best_value": self.best.value if math.isfinite(self.best.value) else None, "best_step": self.best.step,
            "answer": self._answer(), "good": good,
        }  # fmt: skip
        with self.watchdog.phase("saving", SECONDS_TO_BEGIN):
            self.checkpointer.save(self._tree(), facts, final=final)
            hosts.wait_for_all("saved")

    def _is_saved(self) -> bool:
        checkpointer = self.checkpointer
        return checkpointer is None or hosts.from_first(lambda: checkpointer.folder.steps()[-1:]) == [self.step]

    def _leave(self, number: int) -> None:
        """End the process as the deferred signal would have."""
        assert self.checkpointer is not None
        self.display.say(f"Saved step {self.step} in {self.checkpointer.folder.path}: resume the run to continue.")
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    # The loop

    def train(self) -> PyTree:
        """Train to the end, and return the resulting parameters."""
        began, saved_at, wanted = time.perf_counter() - self.seconds, time.perf_counter(), 1
        with deferred_signals(self.checkpointer is not None) as signals, self.watchdog:
            unfinished = self.step < self.spec.total and not self.stopped
            if unfinished:
                with self.watchdog.phase("compiling", SECONDS_TO_COMPILE):
                    self._advance(self.step)  # runs no step, but compiles the program
                if self.spec.at_start and not self.step:
                    score = self._validate()[f"validation_{self.spec.watch}"]
                    self.display.say(f"Before this training, the validation {self.spec.watch} is {score:.4f}.")
            while self.step < self.spec.total and not self.stopped:
                clock, candidate = time.perf_counter(), self._candidate()
                with self.watchdog.phase("steps", SECONDS_TO_BEGIN):
                    before, record = self.step, self._advance(self._next_stop(wanted))
                pace = (time.perf_counter() - clock) / max(1, self.step - before)
                self.seconds = time.perf_counter() - began
                if record.terms.elbo.size and self._is_good(record.terms.elbo[0]):
                    self.good = candidate
                self._report(before, record)
                due = self.checkpointer is not None and time.perf_counter() - saved_at >= self.spec.save_every
                wanted, due, received = self._agreed(max(1, int(SECONDS_A_CALL / max(pace, 1e-9))), due, signals)
                if received or due:
                    self._save(final=bool(received), good=self._last_is_good())
                    saved_at = time.perf_counter()
                if received:
                    self._leave(received)
            if unfinished:
                self._fall_back_if_bad()
            if not self._is_saved():
                self._save(final=True, good=not self.fell_back or self.good is not None)
            *_, received = self._agreed(1, False, signals)
            if received:
                self._leave(received)
        self._warn()
        return self._placed(self.best.parameters if self._answer() == "best" else self._current())

    def _agreed(self, wanted: int, due: bool, signals: list[int]) -> tuple[int, bool, int]:
        """What all processes do next: the steps of the next call, whether to save, and a signal that one received.

        The first process also says whether training stops.
        """
        if hosts.count() == 1:
            return wanted, due, signals[0] if signals else 0
        with self.watchdog.phase("agreeing", hosts.STUCK_AFTER):
            said = hosts.from_all([min(wanted, 2**31 - 1), due, self.stopped, signals[0] if signals else 0])
        self.stopped = bool(said[0, 2])
        return int(said[0, 0]), bool(said[0, 1]), int(said[:, 3].max())

    def _advance(self, stop: int) -> StepRecord:
        before, stop = self.step, max(stop, self.step)
        record = self.steps.run(self._batches(stop), stop)
        self.step, self.skipped, self.skipped_in_a_row = self.steps.counters()  # waits for the device
        return jax.tree.map(lambda column: np.asarray(column)[: self.step - before], record)

    def _batches(self, stop: int) -> StepBatches:
        try:
            return self.source.batches(self.step, stop)
        except (ValueError, OSError):  # these rows cannot be trained on: save what was learned before them
            if self.checkpointer is not None and self.step and hosts.count() == 1:  # others are not here to agree
                self._save(final=False, good=False)
            raise

    def _next_stop(self, wanted: int) -> int:
        """The step at which the next call ends: at the latest where an epoch, a validation or a measurement is due."""
        job = self.spec.job
        ends = [self.step + wanted, self.source.latest_stop(self.step), self.spec.total]
        intervals = [self.spec.validate_every if self.spec.validation else None, self.spec.monitor]
        if job.batch_size < job.examples:
            intervals.append(1)
        for epochs in intervals:
            if epochs is not None:
                steps = epochs * job.steps_an_epoch
                ends.append((self.step // steps + 1) * steps)
        return min(*ends, self.step + job.steps_a_call)

    def _report(self, before: int, record: StepRecord) -> None:
        """Add the records to the history and the metrics, and validate or measure if it is time."""
        job, spec = self.spec.job, self.spec
        for name, column in record.terms._asdict().items():
            self.history[name][before : self.step] = column
        finite = ~record.skipped
        terms = {name: _mean(column[finite]) for name, column in record.terms._asdict().items()}
        row: dict[str, Any] = {
            "step": self.step, "epoch": self.step / job.steps_an_epoch, "seconds": round(self.seconds, 3),
            "loss": -terms["elbo"] / job.examples, **terms, "gradient_norm": _mean(record.gradient_norm[finite]),
            "skipped": self.skipped,
        }  # fmt: skip
        if isinstance(self.source, Streamed):
            row["waited_for_data"] = round(self.source.waited, 3)
        if spec.validation is not None and self.step % (job.steps_an_epoch * spec.validate_every) == 0:
            row.update(self._validate())
        if spec.monitor is not None and self.step % (job.steps_an_epoch * spec.monitor) == 0:
            row.update(self._measure_noise())
        self.display.update(self.step, row)
        self.stopped = self.stopped or self._gave_up()
        if self.checkpointer is not None:
            folder = self.checkpointer.folder
            try:
                folder.log(row)
            except OSError as error:
                warnings.warn(f"could not write {folder.metrics}: {error.strerror}; training continues.", stacklevel=4)

    def _validate(self) -> dict[str, float]:
        spec, parameters = self.spec, self._current()
        assert spec.validation is not None
        with self.watchdog.phase("validating", SECONDS_TO_COMPILE):
            scores = validation_scores(
                *self._pair(parameters), spec.validation, key=self.key, examples=spec.job.examples,
                draws_at_once=spec.job.draws_at_once, mesh=spec.job.mesh,
            )  # fmt: skip
        self.best = self.best.after(self.step, parameters, scores, spec.watch)
        if spec.patience is not None and self.best.waited >= spec.patience:
            self.stopped = True
            self.display.say(f"Stopped early: validation {spec.watch} has not improved since step {self.best.step}.")
        if spec.should_stop is not None and spec.should_stop(self.step // spec.job.steps_an_epoch, scores):
            self.stopped = True
        return {f"validation_{name}": number for name, number in scores._asdict().items()}

    def _measure_noise(self) -> dict[str, float]:
        job = self.spec.job
        rows = self.source.sample(job.batch_size // job.accumulate)
        model, likelihood = self._pair(self.steps.parameters()[0])
        weight = float(kl_weight_at(job, self.step, self.spec.total))
        noise = estimator_noise(model, likelihood, *rows, key=self.key, kl_weight=weight, examples=job.examples)
        if noise is None:
            return {}
        self.display.say(noise.verdict())
        return {f"noise_{name}": number for name, number in noise.variances().items()}

    # What is good, and what is returned

    def _fall_back_if_bad(self) -> None:
        """If the ELBO of the last parameters is bad, replace them by the last good ones."""
        if self._last_is_good():
            return
        self.fell_back = True
        if self.good is None:
            return
        parameters, ema = self.good.read()
        self.steps.set_state(self.steps.state()._replace(parameters=parameters, ema=ema))
        if self.checkpointer is not None and self._is_saved():
            self._save(final=True, good=True)  # replaces the checkpoint of the bad parameters

    def _last_is_good(self) -> bool:
        """Whether the ELBO of the current parameters, and of their average, is good.

        The last step is run once more with each of them, and its result is discarded.
        """
        if not self.step:
            return True
        with self.watchdog.phase("checking", SECONDS_TO_BEGIN):
            return self._elbo_is_good()

    def _elbo_is_good(self) -> bool:
        state, before = self.steps.state(), np.int32(self.step - 1)
        batches = self.source.batches(self.step - 1, self.step)
        for parameters in (state.parameters, state.ema):
            if parameters is not None:
                again = state._replace(parameters=parameters, step=before, in_a_row=np.int32(0))
                record = self.steps.tried(again, batches, self.step)
                if not self._is_good(np.asarray(record.terms.elbo)[0]):
                    return False
        self.good = GoodParameters(self.step, lambda: (state.parameters, state.ema))
        return True

    def _is_good(self, elbo: ArrayLike) -> bool:
        return is_good(elbo, self.history["elbo"][0], self.spec.job.examples)

    def _candidate(self) -> GoodParameters:
        """The current parameters. The first ELBO of the next call shows whether they are good."""
        return GoodParameters(self.step, self.steps.snapshot())

    def _gave_up(self) -> bool:
        """Whether too many steps in a row were skipped."""
        return self.skipped_in_a_row >= self.spec.job.max_skipped

    def _warn(self) -> None:
        limit = self.spec.job.max_skipped if self._gave_up() else None
        fell_back = self.fell_back and self._answer() != "best"
        words = what_went_wrong(self.step, self.skipped, limit, self.good, fell_back)
        if words:
            warnings.warn(
                f"{words}; lower learning_rate={self.spec.settings['learning_rate']}, standardise the data, or give an "
                "adaptive solver more max_steps.",
                RuntimeWarning,
                stacklevel=4,
            )

    def _answer(self) -> str:
        """Which parameters ``fit`` returns if the run ends here: "best", "ema" or "parameters"."""
        if self.spec.patience is not None and self.best.is_known:
            return "best"
        return "parameters" if self.spec.job.ema is None else "ema"

    def _current(self) -> PyTree:
        """The average of the parameters if there is one, else the parameters."""
        parameters, ema = self.steps.parameters()
        return parameters if ema is None else ema

    def _placed(self, parameters: PyTree) -> PyTree:
        """Parameters on the devices on which they were given."""
        return jax.tree.map(jax.device_put, parameters, self.devices)

    def _pair(self, parameters: PyTree) -> tuple[AbstractModel, AbstractLikelihood]:
        """The model and the likelihood with these parameters."""
        return eqx.combine(self._placed(parameters), self.rest)


def _mean(column: ArrayLike) -> float:
    return float(np.mean(column)) if np.size(column) else math.nan
