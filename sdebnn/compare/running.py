"""Runs the rows of a comparison one by one. The scores are saved, so that a stopped comparison can resume.

OUT/compare.json     the settings, and the scores of every finished row
OUT/NAME.npy         for a regression on a line: sampled predictions and functions, "kind draw point"
"""

import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from sdebnn.baselines import HMC
from sdebnn.checks import check_count, check_positive, shown
from sdebnn.compare import images, vectors
from sdebnn.compare.rows import Row
from sdebnn.contract import AbstractModel
from sdebnn.data import DataSet, Part, Standardiser, formats, held_out
from sdebnn.files import made_folder, save_array
from sdebnn.fingerprints import digest
from sdebnn.likelihoods import AbstractLikelihood, Categorical, Gaussian
from sdebnn.prediction import evaluate, predict
from sdebnn.records import (
    OBJECT,
    TEXT,
    Rule,
    Rules,
    broken,
    check_record,
    check_same_settings,
    number,
    or_none,
    read_record,
    whole,
    write_record,
)
from sdebnn.train import Validation, fit

KIND = "comparison of sdebnn, version 1"
VALIDATION_SHARE = 0.1  # of the training part, held out in every row; some rows choose a temperature on it
CURVE_DRAWS = 1000
CURVE_POINTS = 161
ROWS = Rule("a list of rows", lambda value: isinstance(value, list) and all(isinstance(row, dict) for row in value))
SCORES: Rules = {
    "name": TEXT,
    **{name: number() for name in ("nll", "kl", "kl_weight", "seconds")},
    **{name: whole() for name in ("draws", "parameters")},
    "chains": or_none(OBJECT),
}


class Standardisers(NamedTuple):
    """The standardisers of inputs and targets. All targets have the same spread, so that they share one noise."""

    x: Standardiser
    y: Standardiser


class Task(NamedTuple):
    """A data set as the rows receive it, and the rows that apply to it."""

    train: Part
    validation: Part
    test: Part
    likelihood: AbstractLikelihood
    rows: list[Row]
    standardisers: Standardisers | None
    draws_at_once: int

    @property
    def on_a_line(self) -> bool:
        """Whether the predictions can be plotted as a curve: a regression of one number on one number."""
        one = self.train.x.shape[1:] == (1,) and self.train.y.shape[1:] == (1,)
        return one and self.likelihood.has_units


def task_of(data: DataSet, seed: int, noise: float | None = None) -> Task:
    """The task of a data set, the same for all rows. ``noise`` is that of a regression; None learns it."""
    train, validation = held_out(data.train, VALIDATION_SHARE, seed=seed)
    if len(data.train.x.shape) == 4 and data.classes is not None:
        return Task(train, validation, data.test, Categorical(), images.rows(data), None, 1)
    if len(data.train.x.shape) != 2:
        raise ValueError(
            f"{data.name} has examples of shape {data.train.x.shape[1:]}: pass vectors, or images with classes."
        )
    x, y = (np.asarray(part[:], float) for part in train)
    classes = None if data.classes is None else len(data.classes)
    targets = Standardiser.identity(1)
    if not classes:
        targets = Standardiser(y.mean(0), np.repeat(Standardiser.of(y.reshape(-1, 1)).spread, y.shape[1]))
    standardisers = Standardisers(Standardiser.of(x), targets)

    def standardised(part: Part) -> Part:
        x = standardisers.x.to(np.asarray(part.x[:], float))
        y = np.asarray(part.y[:])
        if not classes:
            y = standardisers.y.to(y.astype(float)).astype(np.float32)
        return Part(x.astype(np.float32), y)

    train, validation, test = map(standardised, (train, validation, data.test))
    known = Gaussian(0.1, learn=True) if noise is None else Gaussian(noise / float(standardisers.y.spread[0]))
    likelihood = Categorical() if classes else known
    rows = vectors.rows(jnp.asarray(train.x), jnp.asarray(train.y), classes)
    return Task(train, validation, test, likelihood, rows, standardisers, 16)


class Comparison:
    """A comparison in a folder: its settings, and the rows that are finished."""

    def __init__(
        self,
        data: DataSet,
        out: Path,
        *,
        only: Sequence[str] = (),
        seed: int = 0,
        epochs: int | None = None,
        batch_size: int | None = None,
        kl_weight: float | None = None,
        noise: float | None = None,
        resume: bool = False,
    ):
        for name, value in (("epochs", epochs), ("batch_size", batch_size)):
            if value is not None:
                check_count(name, value)
        if kl_weight is not None:
            check_positive("kl_weight", kl_weight, or_zero=True)
        if noise is not None:
            check_positive("noise", noise)
        self.task, self.out, self.seed = task_of(data, seed, noise), out, seed
        self.overrides: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "kl_weight": kl_weight}
        names = [row.name for row in self.task.rows]
        for name in only:
            if name not in names:
                raise ValueError(f"row={name!r} is not a row for {data.name}: choose from {', '.join(names)}.")
        self.rows = [row for row in self.task.rows if not only or row.name in only]
        self.settings = {
            "data": data.name, "examples": len(self.task.train.x), "seed": seed, "noise": noise, **self.overrides,
            "digests": [digest(array) for part in (data.train, data.test) for array in part],
        }  # fmt: skip
        self.file = out / "compare.json"
        self.done = self._finished(resume)

    def _finished(self, resume: bool) -> list[dict[str, Any]]:
        """The scores of the finished rows. Refuses those of other settings, and any unless ``resume`` is given."""
        if not self.file.exists():
            return []
        if not resume:
            raise ValueError(
                f"{self.out} holds a comparison already: add --resume to continue it, or choose another folder."
            )
        known = read_record(self.file, KIND, {"settings": OBJECT, "rows": ROWS})
        check_same_settings(self.out, known["settings"], self.settings, "use the same, or choose another folder")
        names = [row.name for row in self.task.rows]
        for row in known["rows"]:
            check_record(self.file, row, SCORES)
            if row["name"] not in names:
                raise broken(self.file, f"holds the row {shown(row['name'])}, which is not a row for these data")
        return known["rows"]

    def pending(self) -> list[Row]:
        """The rows that are asked for and not finished."""
        finished = {scores["name"] for scores in self.done}
        return [row for row in self.rows if row.name not in finished]

    def add(self, row: Row, *, progress: bool = True) -> dict[str, Any]:
        """Train a row, score it, and save the scores."""
        made_folder(self.out)
        scores = self._scored(row, progress)
        self.done.append(scores)
        write_record(self.file, KIND, {"settings": self.settings, "machine": _machine(), "rows": self.in_order()})
        return scores

    def in_order(self) -> list[dict[str, Any]]:
        """The scores of the finished rows, in the order of the table."""
        names = [row.name for row in self.task.rows]
        return sorted(self.done, key=lambda scores: names.index(scores["name"]))

    def curve(self, name: str) -> np.ndarray | None:
        """The sampled predictions and functions of a row, "kind draw point", if they were saved."""
        file = self.out / _file_name(name)
        return np.asarray(formats.mapped(file)) if file.exists() else None

    def points(self) -> np.ndarray:
        """The inputs of the curves: the range of the data, extended by its length on both sides."""
        assert self.task.standardisers is not None
        x = self.task.standardisers.x.undo(np.asarray(self.task.train.x))[:, 0]
        width = float(x.max() - x.min())
        return np.linspace(x.min() - width, x.max() + width, CURVE_POINTS)

    def _scored(self, row: Row, progress: bool) -> dict[str, Any]:
        task, began = self.task, time.perf_counter()
        training = row.training.changed(**self.overrides)
        net_key, fit_key, test_key, curve_key = jax.random.split(jax.random.key(self.seed), 4)
        fitted = fit(
            row.net(net_key), task.likelihood, *task.train, key=fit_key, progress=progress,
            validation=Validation(*task.validation, every=training.epochs), **training.options(),
        )  # fmt: skip
        scores = evaluate(
            fitted.model, fitted.likelihood, *task.test, draws=row.draws, key=test_key, draws_at_once=task.draws_at_once
        )
        seconds = time.perf_counter() - began
        if task.standardisers is not None:
            scores = task.likelihood.in_units(scores, task.standardisers.y.spread)
        if task.on_a_line:
            save_array(self.out / _file_name(row.name), self._curve(fitted.model, fitted.likelihood, curve_key))
        chains = fitted.model.diagnostics if isinstance(fitted.model, HMC) else None
        return {
            "name": row.name, **scores, "kl_weight": training.objective.kl_weight, "draws": row.draws,
            "parameters": sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(fitted.model, eqx.is_inexact_array))),
            "seconds": round(seconds, 1), "chains": None if chains is None else chains._asdict(),
        }  # fmt: skip

    def _curve(self, model: AbstractModel, likelihood: AbstractLikelihood, key: PRNGKeyArray) -> np.ndarray:
        standardisers = self.task.standardisers
        assert standardisers is not None
        x = standardisers.x.to(self.points()[:, None]).astype(np.float32)
        draw_key, noise_key = jax.random.split(key)
        samples = predict(model, x, draws=CURVE_DRAWS, key=draw_key)
        both = jnp.stack([likelihood.sample(samples, key=noise_key), likelihood.center(samples)])
        return standardisers.y.undo(np.asarray(both))[..., 0]


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower()) + ".npy"


def _machine() -> dict[str, str]:
    return {
        "device": jax.devices()[0].device_kind, "jax": jax.__version__, "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip
