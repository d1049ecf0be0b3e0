"""One run: what it has reached, and how it goes on, is told of, kept, and stopped."""

import contextlib
import errno
import math
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from sdebnn.checks import shown
from sdebnn.fingerprints import difference
from sdebnn.train.folder import RunFolder
from sdebnn.train.loop import Call, Job, Record, TrainState, kl_weight_at, program, start
from sdebnn.train.monitor import estimator_noise
from sdebnn.train.objective import Elbo
from sdebnn.train.progress import Display
from sdebnn.train.source import Source
from sdebnn.train.stacks import Stacks, stacked, unstacked
from sdebnn.train.validation import validation_scores

EXPLODED = 1e3  # how many times a negative ELBO exceeds the first one, or a nat an example, when parameters are useless
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
    configuration: dict[str, dict[str, str]]  # what model, likelihood, optimiser and augmentation are made of


class Good(NamedTuple):
    """Parameters, and their average, whose ELBO was measured: finite, and not exploded."""

    step: int
    parameters: PyTree
    ema: PyTree


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
        self.good: Good | None = self._as_good()
        self.untried = False

    def go_on_from(self, place: RunFolder, resume: bool, data: tuple[Any, Any]) -> None:
        """Take up what the folder holds."""
        steps = place.steps()
        if not steps:
            self._recognise(place, data)
            place.keep_digests()
            place.rewind(0)
            return
        if not resume:
            raise ValueError(
                f"{place.path} holds a run already, at step {steps[-1]}: resume it (resume=True, --resume), or choose "
                "another folder."
            )
        saved = place.facts(steps[-1])
        self._check_same(place, saved)
        self._recognise(place, data)  # last, since it may take long
        self._check_same(place, saved)
        place.keep_digests()
        tree, _ = place.load(steps[-1], self._tree())
        self.best, self.history = tree.pop("best"), tree.pop("history")
        self.key = jax.random.wrap_key_data(tree.pop("key"))
        for name in ("parameters", "ema"):
            tree[name] = None if tree[name] is None else stacked(tree[name], self.like)
        self.state = TrainState(**jax.tree.map(jnp.asarray, tree))
        self.step, self.seconds = saved["step"], saved["seconds"]
        self.best_value = math.inf if saved["best_value"] is None else saved["best_value"]
        self.best_step, self.waited, self.stopped = saved["best_step"], saved["waited"], saved["stopped"]
        self.good = self._as_good() if saved["good"] else self._good_on_disk(place, steps)
        place.rewind(self.step)
        self.display.resumed(self.step)

    def _recognise(self, place: RunFolder, data: tuple[Any, Any]) -> None:
        """Add digests of all data to the settings that a resume compares."""
        if not isinstance(data[0], jax.Array):
            self.display.say("Reading all rows once, so that the run knows its data again.")
        self.plan.settings.update(place.digests(data=data, validation=self.plan.validation))

    def _good_on_disk(self, place: RunFolder, steps: list[int]) -> Good | None:
        """The last checkpoint that is known to be good, if any is."""
        for step in reversed(steps):
            if place.is_good(step):
                tree, _ = place.load(step, self._tree())
                return Good(step, tree["parameters"], tree["ema"])
        return None

    def _check_same(self, place: RunFolder, saved: dict[str, Any]) -> None:
        """Refuse to go on with a run that was another; warn where the numbers may differ in their last digits."""
        versions, before = _versions(), saved["versions"]
        settings, configuration = saved["settings"], saved["configuration"]
        found = [(name, settings.get(name), value) for name, value in self.plan.settings.items()]
        found.append(("sdebnn", before.get("sdebnn"), versions["sdebnn"]))
        differing = [(name, shown(was), shown(now)) for name, was, now in found if was != now]
        for name, now in self.plan.configuration.items():
            other = difference(configuration.get(name) or {}, now, code=before.get("python") == versions["python"])
            if other is not None:
                differing.append((f"{name}.{other[0]}".rstrip("."), *other[1:]))
        if differing:
            name, was, now = differing[0]
            raise ValueError(
                f"{place.path} was trained with {name}={was}, this run has {now}: use the same, or choose another "
                "folder."
            )
        for name in ("jax", "optax", "equinox", "diffrax", "device"):
            if before.get(name) != versions[name]:
                warnings.warn(
                    f"{place.path} was trained with {name}={before.get(name)} and goes on with {versions[name]}: its "
                    "numbers will differ in their last digits from those of a run that was never stopped.",
                    stacklevel=4,
                )

    def train(self) -> PyTree:
        """Run to the end; the parameters that are then the answer."""
        began, saved_at, pace = time.perf_counter() - self.seconds, time.perf_counter(), math.inf
        with listening(self.place is not None) as heard:
            going = self.step < self.plan.total and not self.stopped
            if going:
                self._advance(self.step)  # no step: only compiled
            while self.step < self.plan.total and not self.stopped:
                wish = 1 if pace == math.inf else max(1, int(SECONDS_A_CALL / max(pace, 1e-9)))
                clock, candidate = time.perf_counter(), self._as_good()
                before, record = self.step, self._advance(self._stop(wish))
                pace = (time.perf_counter() - clock) / max(1, self.step - before)
                self.seconds = time.perf_counter() - began
                if record.terms.elbo.size and self._is_fine(record.terms.elbo[0]):
                    self.good = candidate
                self._told(before, record)
                if heard or (self.place is not None and time.perf_counter() - saved_at >= self.plan.save_every):
                    self._save(last=bool(heard), good=self._try())
                    saved_at = time.perf_counter()
                if heard:
                    self._leave(heard[0])
            if going:
                self._settle()
            if self.place is not None and self.place.steps()[-1:] != [self.step]:
                self._save(last=True, good=not self.untried or self.good is not None)
            if heard:
                self._leave(heard[0])
        self._warn()
        return self._placed(self.best if self._which() == "best" else self._now())

    def _settle(self) -> None:
        """End with parameters that were tried: the last ones, or those of the last good ELBO if theirs is not."""
        if self._try():
            return
        self.untried = True
        if self.good is None:
            return
        ema = None if self.good.ema is None else stacked(self.good.ema, self.like)
        state = self.state._replace(parameters=stacked(self.good.parameters, self.like), ema=ema)
        self.state = jax.tree.map(jnp.asarray, state)
        if self.place is not None and self.place.steps()[-1:] == [self.step]:
            self._save(last=True, good=True)  # in the place of one that holds what was given up

    def _try(self) -> bool:
        """Whether the ELBO of the parameters as they are now, and of their average, is good.

        The last step is run once more with each of them, and its outcome discarded.
        """
        if not self.step:
            return True
        kept, candidate, step = jax.tree.map(_copied, self.state), self._as_good(), self.step
        fine = True
        for parameters in (kept.parameters, kept.ema):
            if parameters is not None:
                zero, before = jnp.zeros((), jnp.int32), jnp.asarray(step - 1, jnp.int32)
                state = jax.tree.map(_copied, kept._replace(parameters=parameters))
                self.state, self.step = state._replace(in_a_row=zero, step=before), step - 1
                try:
                    record = self._advance(step)
                finally:
                    self.state, self.step = kept, step
                fine = fine and self._is_fine(record.terms.elbo[0])
        if fine:
            self.good = candidate
        return fine

    def _is_fine(self, elbo: Any) -> bool:
        """Whether an ELBO is finite, and not absurdly far below the first one."""
        first = self.history["elbo"][0]
        scale = max(abs(first) if math.isfinite(first) else 0.0, self.plan.job.examples)
        return bool(np.isfinite(elbo) and -elbo <= EXPLODED * scale)

    def _as_good(self) -> Good:
        """The parameters as they are now, in memory of their own: the device's will be consumed."""
        parameters, ema = jax.tree.map(np.array, (self.state.parameters, self.state.ema))
        return Good(self.step, unstacked(parameters, self.like), None if ema is None else unstacked(ema, self.like))

    def _warn(self) -> None:
        """Say what went wrong on the way."""
        words, skipped = [], int(self.state.skipped)
        if skipped:
            more = f", the last {self.plan.job.max_skipped} in a row, and training stopped" if self.gave_up else ""
            words.append(
                f"{skipped} of {self.step} steps were skipped, for their ELBO, gradient or parameters were not finite"
                + more
            )
        if self.untried and self._which() != "best":
            kept = "no good ones are known" if self.good is None else (
                f"returned are those of step {self.good.step}, the last ones with a good ELBO"
            )  # fmt: skip
            words.append(f"the ELBO of the last parameters is not finite or has exploded: {kept}")
        if words:
            warnings.warn(
                f"{'; '.join(words)}; lower learning_rate={self.plan.settings['learning_rate']}, standardise the data, "
                "or give an adaptive solver more max_steps.",
                RuntimeWarning,
                stacklevel=4,
            )

    @property
    def gave_up(self) -> bool:
        """Whether too many steps in a row were not finite."""
        return int(self.state.in_a_row) >= self.plan.job.max_skipped

    def _advance(self, stop: int) -> Record:
        stop = max(stop, self.step)
        try:
            batches = self.source.batches(self.step, stop)
        except ValueError:  # rows that cannot be trained on: what was learned before them is kept
            if self.place is not None and self.step:
                self._save(last=False, good=False)
            raise
        total = jnp.asarray(self.plan.total, jnp.int32)
        call = Call(self.plan.job, self.like, self.rest, batches, self.key, jnp.asarray(stop, jnp.int32), total)
        before = self.step
        self.state, record = program()(call, self.state)
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

    def _save(self, last: bool, good: bool) -> None:
        """Write a checkpoint. If that fails, training goes on from memory, unless it is over."""
        assert self.place is not None
        facts = {
            "step": self.step, "seconds": self.seconds, "stopped": self.stopped, "waited": self.waited,
            "best_value": self.best_value if math.isfinite(self.best_value) else None, "best_step": self.best_step,
            "answer": self._which(), "good": good, "settings": self.plan.settings,
            "configuration": self.plan.configuration, "versions": _versions(),
        }  # fmt: skip
        try:
            self.place.save(self.step, self._tree(), facts)
        except OSError as error:
            steps = self.place.steps()
            kept = f"the checkpoint of step {steps[-1]} is whole" if steps else "there is no earlier one"
            words = f"could not save step {self.step} in {self.place.checkpoints}: {error.strerror}; {kept}"
            if last:
                full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
                raise OSError(f"{words}. {'Make room' if full else 'Put that right'}, then resume.") from None
            warnings.warn(f"{words}, and training goes on.", stacklevel=4)

    def _leave(self, number: int) -> None:
        assert self.place is not None
        self.display.say(f"Saved step {self.step} in {self.place.path}: resume it to go on.")
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)


@contextlib.contextmanager
def listening(wanted: bool) -> Iterator[list[int]]:
    """Collect Ctrl-C, SIGTERM and SIGHUP: the first signal is deferred, the second terminates the process.

    A signal that is ignored, as SIGHUP is under nohup, stays ignored.
    """
    heard: list[int] = []
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield heard
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}

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


def _versions() -> dict[str, str]:
    from sdebnn import __version__

    return {
        "sdebnn": __version__, **{name: version(name) for name in ("jax", "optax", "equinox", "diffrax", "numpy")},
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}", "device": jax.devices()[0].device_kind,
    }  # fmt: skip


def _copied(leaf: Any) -> Any:
    """The same array in other memory; copied on the host, so that no program need be compiled for its shape."""
    copy = np.array(leaf)
    return jax.device_put(copy, leaf.sharding) if leaf.committed else jnp.asarray(copy)


def _mean(column: Any) -> float:
    return float(np.mean(column)) if np.size(column) else math.nan
