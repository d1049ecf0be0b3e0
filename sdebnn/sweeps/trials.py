"""The trials of a sweep in an Optuna storage, which any number of processes share.

A sweep has a fixed number of slots. The first attempt of each is a trial that waits from the start, so that no worker
has to count what the others do. A worker claims a waiting trial by making it run, which one worker alone can do. A
trial whose worker gives no sign of life is failed, and a further attempt with the same values takes its place:
``retry_of`` names the attempt that it follows. If two workers add one at the same time, only the first counts. A trial
that failed by an error of its own keeps the words of the error, and is not tried again.
"""

import contextlib
import fcntl
import threading
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import optuna
import sqlalchemy
import sqlalchemy.exc
from optuna.exceptions import ExperimentalWarning
from optuna.trial import FrozenTrial, Trial, TrialState

from sdebnn.checks import shown
from sdebnn.files import LOCK, FolderLock, made_folder
from sdebnn.sweeps.importance import importances
from sdebnn.sweeps.results import Results, write_results
from sdebnn.sweeps.settings import Sweep, from_facts
from sdebnn.sweeps.slots import ERROR, PRUNED_AT, RETRY_OF, SECONDS, Slot, slots
from sdebnn.sweeps.space import Choice, Values
from sdebnn.sweeps.training import AbstractTrainee

DATABASE, CLAIMS = "sweep.db", ".claims"
BEATS_UNTIL_STALE = 6
SECONDS_TO_WAIT = 60.0  # for a database that another process writes to


class Claim(NamedTuple):
    """A trial that this process runs."""

    slot: Slot
    trial: Trial
    values: Values


class Trials:
    """The trials of a sweep, in a storage that other processes use, too."""

    def __init__(self, folder: Path, url: str | None, shown_url: str | None, heartbeat: int):
        self.folder, self.shown_url, self.heartbeat = made_folder(folder), shown_url, heartbeat
        name = "sweep" if url is None else folder.resolve().name  # of several on one server
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        url = f"sqlite:///{(folder / DATABASE).resolve()}" if url is None else url
        arguments = {"connect_args": {"timeout": SECONDS_TO_WAIT}} if url.startswith("sqlite") else {}
        with self._alone(), _quiet():
            try:
                self.storage = optuna.storages.RDBStorage(url, engine_kwargs=arguments, heartbeat_interval=heartbeat)
            except ImportError as error:
                missing = getattr(error.__cause__, "name", None) or "its driver"
                raise ValueError(f"storage={shown(shown_url or url)} needs {missing}: install it by pip.") from None
            except (sqlalchemy.exc.SQLAlchemyError, RuntimeError) as error:
                words = str(getattr(error, "orig", None) or error).splitlines()[0]
                raise ValueError(f"storage={shown(shown_url or url)} cannot be opened ({words}): check it.") from None
            self.study = optuna.create_study(storage=self.storage, study_name=name, load_if_exists=True)

    def __enter__(self) -> "Trials":
        return self

    def __exit__(self, *_: object) -> None:
        self.storage.remove_session()
        self.storage.engine.dispose()

    @contextlib.contextmanager
    def _alone(self) -> Generator[None]:
        """Meanwhile no other process with this folder claims a trial. SQLite would let two claim the same one."""
        with open(self.folder / CLAIMS, "a") as file:
            with contextlib.suppress(OSError):  # a file system without locks, where only a server is safe
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @property
    def has_begun(self) -> bool:
        """Whether it is known how many trials there are."""
        return "trials" in self.study.user_attrs

    def begin(self, sweep: Sweep, wanted: int | None) -> None:
        """Add trials until there are as many as wanted. Refuse if the storage holds another sweep of this name."""
        with self._alone():
            known = self.study.user_attrs.get("sweep")
            if known is None:
                self.study.set_user_attr("sweep", sweep.facts())
                known = self.study.user_attrs["sweep"]
            sweep.check_same(str(self.folder), from_facts(known))
            if self.heartbeat > int(self.study.user_attrs.get("heartbeat", 0)):
                self.study.set_user_attr("heartbeat", self.heartbeat)
            before = int(self.study.user_attrs.get("trials", 0))
            if wanted is not None and wanted > before:
                self.study.set_user_attr("trials", wanted)
            for _ in range(self._wanted() - len(slots(self.study.get_trials(deepcopy=False)))):
                self.study.enqueue_trial({})

    def _wanted(self) -> int:
        return int(self.study.user_attrs["trials"])

    def slots(self) -> list[Slot]:
        """All places of the sweep."""
        return slots(self.study.get_trials(deepcopy=False))[: self._wanted()]

    def place(self, slot: Slot) -> Path:
        """The folder of the run of a slot."""
        return self.folder / "trials" / f"{slot.number:04d}"

    # Claiming

    def claim(self, sweep: Sweep, trainee: AbstractTrainee) -> Claim | None:
        """A trial that this process is to run; None if all are done, or run elsewhere."""
        with self._alone(), _quiet():
            # The slowest of the workers decides how long a silence is taken for death.
            self.storage.grace_period = BEATS_UNTIL_STALE * int(self.study.user_attrs["heartbeat"])
            optuna.storages.fail_stale_trials(self.study)
            for slot in self.slots():
                if slot.is_lost:
                    self._add_attempt(slot.last)
            for slot in self.slots():
                if slot.last.state == TrialState.WAITING and _is_free(self.place(slot)) and self._start(slot.last):
                    return self._claimed(slot, sweep, trainee)
        return None

    def _add_attempt(self, lost: FrozenTrial) -> None:
        """Add a waiting trial with the values, the validations and the marks of one that was lost."""
        self.study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.WAITING,
                params=lost.params,
                distributions=lost.distributions,
                intermediate_values=lost.intermediate_values,
                user_attrs={**lost.user_attrs, RETRY_OF: lost.number},
            )
        )

    def _start(self, waiting: FrozenTrial) -> bool:
        """Make a waiting trial run, unless another process did."""
        number = self._id(waiting)
        self.storage.record_heartbeat(number)  # first, so that it is never running without a sign of life
        try:
            return self.storage.set_trial_state_values(number, TrialState.RUNNING)
        except optuna.exceptions.UpdateFinishedTrialError:
            return False

    def _id(self, trial: FrozenTrial | Trial) -> int:
        study = self.storage.get_study_id_from_name(self.study.study_name)
        return self.storage.get_trial_id_from_study_id_trial_number(study, trial.number)

    def _claimed(self, slot: Slot, sweep: Sweep, trainee: AbstractTrainee) -> Claim:
        # A seed for each slot: the values depend on it, and on the trials that were done before.
        own = int(np.random.SeedSequence([sweep.settings["seed"], slot.number]).generate_state(1)[0])
        self.study.sampler = optuna.samplers.TPESampler(seed=own, constant_liar=True)
        trial, values = Trial(self.study, self._id(slot.last)), {}
        for name, part in sorted(sweep.space.items(), key=lambda item: item[0] != "infer_w0"):
            if not trainee.applies(name, values):
                continue
            if isinstance(part, Choice):
                values[name] = trial.suggest_categorical(name, part.values)
            elif trainee.types[name] is int:
                values[name] = trial.suggest_int(name, int(part.low), int(part.high), log=part.log)
            else:
                values[name] = trial.suggest_float(name, part.low, part.high, log=part.log)
        return Claim(slot, trial, values)

    # While a trial runs

    @contextlib.contextmanager
    def alive(self, claim: Claim) -> Generator[None]:
        """Give a sign of life now and then, from a thread."""
        number, ended = self._id(claim.trial), threading.Event()

        def beat() -> None:
            while not ended.wait(self.heartbeat):
                with contextlib.suppress(optuna.exceptions.OptunaError, sqlalchemy.exc.SQLAlchemyError):
                    self.storage.record_heartbeat(number)  # one that is missed does no harm

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def is_poor(self, claim: Claim, epoch: int, nll: float, warmup: int) -> bool:
        """Record a validation, and tell whether it is above the median of others at this epoch, after ``warmup``."""
        trial, known = claim.trial, self.storage.get_trial(self._id(claim.trial))
        if PRUNED_AT in known.user_attrs:  # before its worker was killed, or in another member of a mixture
            return True
        if epoch <= max(known.intermediate_values, default=-1):  # another member, or repeated after a resume
            return False
        trial.report(nll, epoch)
        self.study.pruner = optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=warmup + 1)
        poor = bool(trial.should_prune())  # Optuna returns a NumPy scalar
        if poor:
            trial.set_user_attr(PRUNED_AT, epoch)
        return poor

    def finish(self, claim: Claim, seconds: float, score: float, error: str | None) -> None:
        """Record how a trial ended: with a score, by an error of its own, or as pruned if it was marked so."""
        claim.trial.set_user_attr(SECONDS, round(seconds, 2))
        if error is not None:
            claim.trial.set_user_attr(ERROR, error)
            self.study.tell(claim.trial, state=TrialState.FAIL)
        elif PRUNED_AT in claim.trial.user_attrs:
            self.study.tell(claim.trial, state=TrialState.PRUNED)
        else:
            self.study.tell(claim.trial, score)

    def release(self, claim: Claim) -> None:
        """Leave a trial to whoever goes on with it."""
        with contextlib.suppress(optuna.exceptions.OptunaError, ValueError):
            self.study.tell(claim.trial, state=TrialState.FAIL)

    def results(self, *, with_importances: bool = True) -> Results:
        """What has come of the sweep so far, which is also written into its folder."""
        with self._alone():  # so that the last to write knows what the others did
            rows = tuple(slot.row() for slot in self.slots())
            space = from_facts(self.study.user_attrs["sweep"]).space
            found = Results(rows, importances(rows, space) if with_importances else {})
            write_results(self.folder, found)
        return found


def without_password(url: str) -> str:
    """The URL of a storage as it may be shown and kept."""
    try:
        return sqlalchemy.engine.make_url(url).render_as_string(hide_password=True)
    except sqlalchemy.exc.ArgumentError:
        return url


def _is_free(folder: Path) -> bool:
    """Whether no living process trains in a folder: one that was taken for dead may still do so."""
    if not (folder / LOCK).exists():
        return True
    try:
        with FolderLock(folder):
            return True
    except ValueError:
        return False


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Without Optuna's warnings that heartbeats and the sampling for several workers may change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield
