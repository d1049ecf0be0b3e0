"""Runs of tables: a folder that holds everything that predictions need, and no reference to the training file.

RUN/run.json           the settings, and the versions that made it
RUN/model.safetensors, RUN/inputs.safetensors    the estimator, and the columns that it takes (``model.py``)
RUN/result.json        its scores on the rows that were kept for the test
RUN/outcomes.safetensors    its forecasts of these rows, beside what came true
"""

import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from sdebnn import __version__
from sdebnn.checks import check_count, check_positive, shown
from sdebnn.columns import NAMES
from sdebnn.data.storage import file_md5
from sdebnn.estimators import SDEBNNRegressor
from sdebnn.files import FolderLock, write_whole
from sdebnn.outcomes import OUTCOMES_FILE, save_outcomes
from sdebnn.records import (
    OBJECT,
    TEXT,
    Rules,
    check_same_settings,
    number,
    one_of,
    read_record,
    read_result,
    record_bytes,
    whole,
)
from sdebnn.tables.forecasts import forecast, table_outcomes, table_scores
from sdebnn.tables.frame import Frame, read_frame
from sdebnn.tables.kind import KIND
from sdebnn.tables.model import (
    INPUTS_FILE,
    MODEL_FILE,
    TableModel,
    fit_table,
    known_rows,
    load_table,
    targets_of,
    task_of,
)

__all__ = [
    "TableSettings", "forecast", "open_table", "read_table_run", "result_of", "scores_on", "train_table",
]  # fmt: skip
SEEDS = 2**31
SCORES = ("nll", "rmse", "coverage_95", "accuracy", "ece", "brier", "test_rows")
FILES = ("run.json", "result.json", MODEL_FILE, INPUTS_FILE, OUTCOMES_FILE)
RULES: Rules = {
    "digest": TEXT,
    "data": TEXT,
    "target": TEXT,
    "task": one_of("regression", "classification"),
    "seed": whole(0, SEEDS - 1),
    "test": number(0.0),
    "members": whole(1),
    "kl_weight": number(0.0),
    "rows": whole(1),
    "versions": OBJECT,
    "asked": OBJECT,
}


class TableSettings(NamedTuple):
    """What is asked of a run of a table. ``target=None`` is the last column, ``task=None`` is inferred from it."""

    data: str
    target: str | None = None
    task: str | None = None
    seed: int = 0
    test: float = 0.1
    members: int = 5
    kl_weight: float = 1.0

    def check(self) -> None:
        """Refuse values that are not allowed."""
        if not 0 <= self.seed < SEEDS:
            raise ValueError(f"seed={self.seed} must be a whole number from 0 to {SEEDS - 1}.")
        if not 0 <= self.test < 1:
            raise ValueError(f"test={shown(self.test)} must be a share of the rows: 0 for none, or less than 1.")
        check_count("members", self.members)
        check_positive("kl_weight", self.kl_weight, or_zero=True)


def split(frame: Frame, share: float, seed: int) -> tuple[Frame, Frame | None]:
    """The rows to train on, and those for the test, in the order of the file."""
    count = round(share * frame.rows)
    if not share or not 0 < count < frame.rows:
        return frame, None
    order = np.random.default_rng(seed).permutation(frame.rows)
    return frame.at(np.sort(order[count:])), frame.at(np.sort(order[:count]))


def train_table(
    settings: TableSettings,
    out: Path,
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda words: None,
    progress: bool = True,
) -> dict[str, Any]:
    """Train a run on a file, and score it on the rows kept for the test. A run that is done is not repeated."""
    settings.check()
    with FolderLock(out) as lock:
        if (out / "run.json").exists():
            return _finished(settings, out, resume)
        strange = [name for name in FILES if (out / name).exists()]
        if strange:
            raise ValueError(f"{out} holds {strange[0]}, but no run.json: choose another folder.")
        try:
            return _trained(settings, out, lock, say, progress)
        except BaseException:
            for name in FILES:
                (out / name).unlink(missing_ok=True)
            lock.abandon()
            raise


def _finished(settings: TableSettings, out: Path, resume: bool) -> dict[str, Any]:
    if not resume:
        raise ValueError(f"{out} holds a run already: add --resume to see its result, or choose another folder.")
    facts = read_table_run(out)
    check_same_settings(out, facts["asked"], _asked(settings), "use the same, or choose another folder")
    if Path(settings.data).exists() and file_md5(Path(settings.data)) != facts["digest"]:
        raise ValueError(f"{settings.data} has changed since {out} was trained: choose another folder.")
    return read_result(out / "result.json")


def _with_all_classes(train: Frame, test: Frame, target: str) -> tuple[Frame, Frame | None]:
    """The two parts, with test rows of classes that training would not see moved to the training rows."""
    there, here = (targets_of(part.columns[target], "classification") for part in (test, train))
    unseen = ~np.isin(there, here)
    moved = {name: np.concatenate([column, test.columns[name][unseen]]) for name, column in train.columns.items()}
    return Frame(moved), None if unseen.all() else test.at(~unseen)


def _asked(settings: TableSettings) -> dict[str, Any]:
    """The settings as they are saved: with the name of the file alone, for the folder may be sent to others."""
    return {**settings._asdict(), "data": Path(settings.data).name}


def _trained(
    settings: TableSettings, out: Path, lock: FolderLock, say: Callable[[str], None], progress: bool
) -> dict[str, Any]:
    where = Path(settings.data).name
    frame, digest = read_frame(settings.data), file_md5(Path(settings.data))
    target = list(frame.columns)[-1] if settings.target is None else settings.target
    frame = known_rows(frame, target, where=where)
    if target in NAMES or target.startswith("p("):
        raise ValueError(f"the target is called {target!r}, as a column of forecasts is: rename it in {where}.")
    task = task_of(target, frame.columns[target], settings.task)
    train, test = split(frame, settings.test, settings.seed)
    if task == "classification" and test is not None:
        train, test = _with_all_classes(train, test, target)
    say(f"{task.capitalize()} of {target!r} from {len(frame.columns) - 1} columns of {train.rows} rows.")
    if test is None and settings.test:
        say("No row is left for the test, so there will be no scores: pass more rows.")
    clock = time.perf_counter()
    model = fit_table(
        train, target, task, where=where, members=settings.members, kl_weight=settings.kl_weight,
        random_state=settings.seed, verbose=progress,
    )  # fmt: skip
    seconds = time.perf_counter() - clock
    versions = {"sdebnn": __version__, "jax": jax.__version__, "python": platform.python_version()}
    facts = {
        "digest": digest, "data": where, "target": target, "task": task, "seed": settings.seed, "test": settings.test,
        "members": settings.members, "kl_weight": settings.kl_weight, "rows": train.rows, "versions": versions,
    }  # fmt: skip
    scores = {} if test is None else table_scores(model, test, where=where)
    test_rows = scores.pop("rows", 0)
    family = {"family": model.estimator.family_} if isinstance(model.estimator, SDEBNNRegressor) else {}
    result = {
        **scores, **facts, **family, "test_rows": test_rows, "fit_seconds": round(seconds, 2),
        "device": jax.devices()[0].device_kind,
    }  # fmt: skip
    lock.hold()  # the folder may have been deleted meanwhile
    model.save(out)
    if test is not None:
        save_outcomes(out, table_outcomes(model, test, where=where))
    write_whole(out / "result.json", (json.dumps(result, indent=1) + "\n").encode())
    # Last, because a folder with it holds a whole run.
    write_whole(out / "run.json", record_bytes(KIND, {**facts, "asked": _asked(settings)}))
    return result


def read_table_run(out: Path) -> dict[str, Any]:
    """The facts about a run."""
    return read_record(out / "run.json", KIND, RULES)


def open_table(out: Path) -> TableModel:
    """The model of a run."""
    read_table_run(out)
    return load_table(out)


def result_of(out: Path) -> dict[str, Any]:
    """The scores of a run on the rows that were kept for the test."""
    result = read_result(out / "result.json")
    return {name: result[name] for name in SCORES if name in result}


def scores_on(model: TableModel, path: Path) -> dict[str, Any]:
    """The scores of a model on the rows of another file."""
    return table_scores(model, model.read(path, with_target=True), where=path.name)
