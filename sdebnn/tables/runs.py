"""Runs of tables: a folder that holds everything that predictions need, and no reference to the training rows.

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
from typing import Any

import jax

from sdebnn import __version__
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
from sdebnn.tables.columns import missing_cells
from sdebnn.tables.forecasts import forecast, table_outcomes, table_scores
from sdebnn.tables.kind import KIND, PARAMETERS
from sdebnn.tables.model import INPUTS_FILE, MODEL_FILE, TableModel, fit_table, load_table
from sdebnn.tables.rows import (
    OF_REGRESSIONS,
    SEEDS,
    TableSettings,
    digest_of,
    is_there,
    label,
    table_rows,
    validation_split,
)

__all__ = [
    "PARAMETERS", "TableSettings", "forecast", "open_table", "read_table_run", "result_of", "scores_on", "train_table",
]  # fmt: skip
SCORES = ("nll", "rmse", "coverage_95", "accuracy", "ece", "brier", "test_rows")
# What the settings of earlier versions lack, and what it was.
ADDED: dict[str, Any] = {"words": [], "validation": 0.0, **dict.fromkeys(PARAMETERS)}
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


def train_table(
    settings: TableSettings,
    out: Path,
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda words: None,
    progress: bool = True,
) -> dict[str, Any]:
    """Train a run on a table, and score it on the rows kept for the test. A run that is done is not repeated."""
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
    asked = {**ADDED, **facts["asked"]}
    check_same_settings(out, asked, _asked(settings), "use the same, or choose another folder")
    if is_there(settings.data) and digest_of(settings) != facts["digest"]:
        raise ValueError(f"{settings.data} has changed since {out} was trained: choose another folder.")
    return read_result(out / "result.json")


def _asked(settings: TableSettings) -> dict[str, Any]:
    """The settings as they are saved: of a file, only the name, for the folder may be sent to others."""
    return {**settings._asdict(), "data": label(settings.data), "words": sorted(settings.words)}


def _trained(
    settings: TableSettings, out: Path, lock: FolderLock, say: Callable[[str], None], progress: bool
) -> dict[str, Any]:
    where = label(settings.data)
    rows = table_rows(settings)
    (target, task, part, test), (train, held_out) = rows, validation_split(settings, rows)
    for name in OF_REGRESSIONS:
        if task == "classification" and name in settings.parameters:
            value = settings.parameters[name]
            raise ValueError(f"{name}={value} is of a regression, and {target!r} has classes: leave it out.")
    digest = digest_of(settings)
    columns = len(train.columns) - 1
    say(f"{task.capitalize()} of {target!r} from {columns} column{'s' * (columns != 1)} of {train.rows} rows.")
    for words in missing_cells(train.without(target)):
        say(words)
    if test is None and settings.test:
        say("No row is left for the test, so there will be no scores: pass more rows.")
    clock = time.perf_counter()
    model = fit_table(
        train, target, task, where=where, members=settings.members, kl_weight=settings.kl_weight,
        random_state=settings.seed, verbose=progress, **settings.parameters,
    )  # fmt: skip
    seconds = time.perf_counter() - clock
    versions = {"sdebnn": __version__, "jax": jax.__version__, "python": platform.python_version()}
    share = 0.0 if test is None else test.rows / (part.rows + test.rows)
    facts = {
        "digest": digest, "data": where, "target": target, "task": task, "seed": settings.seed, "test": round(share, 4),
        "members": settings.members, "kl_weight": settings.kl_weight, "rows": train.rows, "versions": versions,
    }  # fmt: skip
    scores = {} if test is None else table_scores(model, test, where=f"{where}, rows kept for the test")
    test_rows = scores.pop("rows", 0)
    validated = {} if held_out is None else table_scores(model, held_out, where=f"{where}, rows kept for validation")
    family = {"family": model.estimator.family_} if isinstance(model.estimator, SDEBNNRegressor) else {}
    result = {
        **scores, **facts, **family, "test_rows": test_rows, "fit_seconds": round(seconds, 2),
        "device": jax.devices()[0].device_kind,
    }  # fmt: skip
    if held_out is not None:
        result |= {"validation_nll": validated["nll"], "validation_rows": held_out.rows}
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
    if not result.get("test_rows"):
        raise ValueError(f"{out} kept no rows for the test, and has no scores: pass rows by --data.")
    return {name: result[name] for name in SCORES if name in result}


def scores_on(model: TableModel, path: Path) -> dict[str, Any]:
    """The scores of a model on the rows of another file."""
    return table_scores(model, model.read(path, with_target=True), where=path.name)
