"""A worker of a sweep: it claims one trial after the other, trains it, and records its score.

SWEEP/sweep.json     what was asked             SWEEP/sweep.db         the trials, unless they are on a server
SWEEP/trials.json    what came of it            SWEEP/trials/0007/     the run of a trial, as ``sdebnn train`` makes it
"""

import contextlib
import importlib
import math
import signal
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from sdebnn.checks import check_count
from sdebnn.sweeps.results import Results
from sdebnn.sweeps.settings import Sweep, is_sweep, read_sweep, write_sweep
from sdebnn.sweeps.training import AbstractTrainee
from sdebnn.train import Scores

if TYPE_CHECKING:
    from sdebnn.sweeps.trials import Claim, Trials

TRIALS, HEARTBEAT = 24, 10
WARMUP_SHARE = 0.25  # of the epochs of a trial, in which none is stopped
Say = Callable[[str], None]


def work(
    sweep: Sweep,
    trainee: AbstractTrainee,
    out: Path,
    *,
    trials: int | None = None,
    storage: str | None = None,
    heartbeat: int = HEARTBEAT,
    say: Say = lambda words: None,
) -> Results:
    """Work on a sweep until each of its trials is done, beside any number of processes that do the same.

    A sweep that exists goes on; more ``trials`` than it has are added to it. ``storage`` is the URL of a database, by
    default a file in the folder. Every ``heartbeat`` seconds a worker gives a sign of life; one that gave none for six
    times as long counts as dead, and its trial is taken over.
    """
    check_count("heartbeat", heartbeat)
    if trials is not None:
        check_count("trials", trials)
    trainee.check(sweep.space)
    with _opened(out, storage, heartbeat, sweep) as shared, _ended_by_signals():
        from optuna.exceptions import StorageInternalError

        try:
            shared.begin(sweep, TRIALS if trials is None and not shared.has_begun else trials)
            if not is_sweep(out):
                write_sweep(out, sweep, shared.shown_url)
            return _worked(shared, sweep, trainee, say)
        except StorageInternalError:
            raise ValueError("the storage of the sweep does not answer: run the command again when it does.") from None


def _worked(shared: "Trials", sweep: Sweep, trainee: AbstractTrainee, say: Say) -> Results:
    """Run trials until all are done, here or elsewhere."""
    while True:
        claim = shared.claim(sweep, trainee)
        if claim is not None:
            _run(shared, claim, sweep, trainee, say)
        elif all(slot.is_done for slot in shared.slots()):
            return shared.results()
        else:
            time.sleep(shared.heartbeat / 4)  # others are at work; they may be killed


def results_so_far(out: Path, storage: str | None = None) -> Results:
    """What came of a sweep so far, from its storage."""
    sweep, _ = read_sweep(out)
    with _opened(out, storage, HEARTBEAT, sweep) as shared:
        return shared.results()


def _opened(out: Path, storage: str | None, heartbeat: int, sweep: Sweep) -> "Trials":
    """The trials in a storage, if the folder is that of this sweep or of none."""
    try:
        found = importlib.import_module("sdebnn.sweeps.trials")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("optuna", "sqlalchemy", "sklearn"):
            raise
        raise ValueError("a sweep needs Optuna: pip install 'sdebnn[sweep]'.") from None
    if (out / "run.json").exists():
        raise ValueError(f"{out} holds a run: choose another folder for the sweep.")
    shown_url = None if storage is None else found.without_password(storage)
    if is_sweep(out):
        saved, known = read_sweep(out)
        sweep.check_same(str(out), saved)
        if known != shown_url:
            remedy = f"pass --storage {known}" if known else "leave --storage out"
            raise ValueError(f"{out} is a sweep with another storage: {remedy}, or choose another folder.")
    return found.Trials(out, storage, shown_url, heartbeat)


def _run(shared: "Trials", claim: "Claim", sweep: Sweep, trainee: AbstractTrainee, say: Say) -> None:
    """Run a trial to its end, and record how it ended. If the process is to stop, the trial is left to others."""
    from optuna.exceptions import OptunaError, StorageInternalError

    epochs, clock, words = trainee.epochs(claim.values), time.perf_counter(), f"Trial {claim.slot.number}"

    def should_stop(epoch: int, scores: Scores) -> bool:
        assert epochs is not None
        return shared.is_poor(claim, epoch, scores.nll, math.ceil(WARMUP_SHARE * epochs))

    # Curves over different epochs have different schedules, and are not compared.
    hook = should_stop if sweep.prune and epochs is not None and "epochs" not in sweep.space else None
    try:
        with shared.alive(claim):
            try:
                nll = trainee.train(claim.values, shared.place(claim.slot), hook)
                error = None if math.isfinite(nll) else f"its validation NLL is {nll}"
            except (OptunaError, MemoryError, OSError):
                raise
            except Exception as raised:
                nll, error = math.nan, f"{type(raised).__name__}: {' '.join(str(raised).split())}"[:500]
            shared.finish(claim, time.perf_counter() - clock, nll, error)
    except StorageInternalError:
        raise
    except OptunaError:
        say(f"{words} was taken over by another worker.")
        return
    except (KeyboardInterrupt, SystemExit, MemoryError, OSError):  # of this process or machine, not of the trial
        shared.release(claim)
        say(f"{words} was stopped: run the command again to go on.")
        raise
    say(f"{words}: {_told(shared.results(with_importances=False), claim.slot.number)}")


def _told(found: Results, number: int) -> str:
    """How a trial ended, and how far the sweep is."""
    row, best = found.rows[number], found.best
    ended = {"complete": "validation NLL", "pruned": "stopped at a validation NLL of"}.get(row.state)
    score = f"{ended} {row.score:.4f}" if ended and row.score is not None else f"failed ({row.error})"
    done = sum(row.state in ("complete", "pruned", "failed") for row in found.rows)
    lead = "" if best is None else f"; the best is {best.score:.4f} of trial {best.number}"
    return f"{score}; {done} of {len(found.rows)} are done{lead}"


@contextlib.contextmanager
def _ended_by_signals() -> Generator[None]:
    """SIGTERM and SIGHUP raise ``SystemExit`` meanwhile, so that the trial is left to others."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    heard = {number: handler for number, handler in before.items() if handler == signal.SIG_DFL}
    for number in heard:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in heard.items():
            signal.signal(number, handler)
