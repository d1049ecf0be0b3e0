"""What a trial trains: a run, by the code of ``sdebnn train``, and its score on examples held out from it.

The score is the NLL on the validation part, in nats per example. The test part is never used to choose.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sdebnn import runs
from sdebnn.data import evenly_spaced_rows, held_out, load
from sdebnn.fingerprints import digest
from sdebnn.presets import About, preset
from sdebnn.runs.changing import changed
from sdebnn.sweeps.space import NET_TYPES, TABLE_TYPES, Space, Value, Values
from sdebnn.train import ShouldStop


class AbstractTrainee(ABC):
    """What the trials of a sweep train, each with values of its own for the parameters of a space."""

    types: dict[str, type]  # of the parameters that can be swept

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The settings that all trials share, as JSON."""

    @abstractmethod
    def digest(self) -> str:
        """A digest of the data."""

    @abstractmethod
    def check(self, space: Space) -> None:
        """Refuse a space with values that the data, the preset or the estimator cannot have."""

    @abstractmethod
    def applies(self, name: str, values: Values) -> bool:
        """Whether a parameter means anything, given those that come before it in the space."""

    @abstractmethod
    def epochs(self, values: Values) -> int | None:
        """The epochs of a trial; None if it is trained in one go."""

    @abstractmethod
    def train(self, values: Values, folder: Path, should_stop: ShouldStop | None) -> float:
        """Train a run, or resume it, and return its validation NLL."""


def trainee(settings: dict[str, Any], *, of_table: bool) -> "AbstractTrainee":
    """What a sweep with these settings trains."""
    if not of_table:
        return Nets(runs.Settings(**settings))
    rows = importlib.import_module("sdebnn.tables.rows")
    return Tables(rows.TableSettings(**{**settings, "words": tuple(settings["words"])}))


class Nets(AbstractTrainee):
    """Nets of a preset, on images or vectors."""

    types = NET_TYPES

    def __init__(self, settings: runs.Settings):
        self._settings = settings
        settings.check()
        if not settings.validation:
            raise ValueError("validation=0.0 leaves nothing to compare trials by: pass a share, such as 0.1.")
        self._data = load(settings.data, seed=settings.seed, test=settings.test, size=settings.size)
        self._about = About.of(self._data)
        self._preset = preset(settings.preset, self._about, infer_w0=settings.infer_w0, mixing=settings.mixing)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that all trials share, as JSON."""
        return self._settings._asdict()

    def digest(self) -> str:
        """A digest of some of the rows."""
        parts = (self._data.train, self._data.test)
        return " ".join(digest(np.asarray(a[evenly_spaced_rows(len(a))]))[:16] for part in parts for a in part)

    def check(self, space: Space) -> None:
        """Make the settings and the preset of each extreme value."""
        can_infer = True in space["infer_w0"].extremes if "infer_w0" in space else self._settings.infer_w0
        if "prior_variance" in space and not can_infer:
            raise ValueError("prior_variance is of w_0, which is a point here: add --infer-w0, or leave it out.")
        _check_each(space, self._check_one)

    def _check_one(self, name: str, value: Value) -> None:
        infer_w0 = {"infer_w0": True} if name == "prior_variance" else {}
        settings = self._settings._replace(**{name: value}, **infer_w0)
        settings.check()
        row = preset(settings.preset, self._about, infer_w0=settings.infer_w0, mixing=settings.mixing)
        changed(row, settings)

    def applies(self, name: str, values: Values) -> bool:
        """The prior of w_0 applies only if w_0 is inferred."""
        return name != "prior_variance" or bool(values.get("infer_w0", self._settings.infer_w0))

    def epochs(self, values: Values) -> int:
        """Those that are swept, asked for, or of the preset."""
        return int(values.get("epochs", self._settings.epochs or self._preset.training.epochs))

    def train(self, values: Values, folder: Path, should_stop: ShouldStop | None) -> float:
        """Train the net, and score the model that the run keeps, which may be a mixture, on the validation part."""
        settings = self._settings._replace(**values)
        runs.train(settings, folder, resume=True, progress=False, should_stop=should_stop)
        run, model, likelihood = runs.open_run(folder)
        _, part = held_out(self._data.train, settings.validation, seed=settings.seed, name="validation")
        return float(runs.score(run, part, model, likelihood, None).scores["nll"])


class Tables(AbstractTrainee):
    """The estimators, on tables with named columns. They need scikit-learn."""

    types = TABLE_TYPES

    def __init__(self, settings: Any):  # of sdebnn.tables, whose import needs scikit-learn
        self._runs, self._rows = (importlib.import_module(f"sdebnn.tables.{name}") for name in ("runs", "rows"))
        self._settings = settings
        settings.check()
        if not settings.validation:
            raise ValueError("validation=0.0 leaves nothing to compare trials by: pass a share, such as 0.2.")
        rows = self._rows.table_rows(settings)
        self._rows.validation_split(settings, rows)
        self._task = rows.task

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that all trials share, as JSON."""
        return {**self._settings._asdict(), "words": sorted(self._settings.words)}

    def digest(self) -> str:
        """A digest of the rows."""
        return self._rows.digest_of(self._settings)

    def check(self, space: Space) -> None:
        """Refuse values that the settings refuse, and parameters that the task has not."""
        for name in self._rows.OF_REGRESSIONS:
            if name in space and self._task == "classification":
                raise ValueError(f"{name} is of a regression, and this table has classes: leave it out.")
        _check_each(space, lambda name, value: self._settings._replace(**{name: value}).check())

    def applies(self, name: str, values: Values) -> bool:
        """All parameters apply."""
        return True

    def epochs(self, values: Values) -> None:
        """An estimator is trained in one go."""

    def train(self, values: Values, folder: Path, should_stop: ShouldStop | None) -> float:
        """Fit the estimator to the rows that are not held out, and score it on the others."""
        settings = self._settings._replace(**values)
        if not (folder / "run.json").exists():  # of a worker that was killed while it wrote the files
            for name in self._runs.FILES:
                (folder / name).unlink(missing_ok=True)
        return float(self._runs.train_table(settings, folder, resume=True, progress=False)["validation_nll"])


def _check_each(space: Space, check: Callable[[str, Value], None]) -> None:
    """Check all extreme values of a space."""
    for name, part in space.items():
        for value in part.extremes:
            check(name, value)
