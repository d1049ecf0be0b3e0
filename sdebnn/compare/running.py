"""Run the rows of a table one by one, and keep what is done: a comparison that was stopped goes on.

OUT/compare.json     the settings, and the scores of every row that is done
OUT/NAME.npy         of a regression on a line: predictions and functions drawn, "what draw point"
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

from sdebnn.checks import check_count, check_positive, shown
from sdebnn.compare import images, vectors
from sdebnn.compare.rows import Row
from sdebnn.data import DataSet, Part, formats, held_out
from sdebnn.files import save_array
from sdebnn.fingerprints import digest
from sdebnn.likelihoods import Categorical, Gaussian, Likelihood
from sdebnn.predict import evaluate, predict
from sdebnn.records import (
    OBJECT,
    TEXT,
    Rule,
    Rules,
    broken,
    check_record,
    number,
    or_none,
    read_record,
    whole,
    write_record,
)
from sdebnn.train import fit

KIND = "comparison of sdebnn, version 1"
VALIDATION = 0.1  # of the training part: held out from all rows alike, for those that choose a temperature on it
CURVE_DRAWS = 1000
POINTS = 161
ROWS = Rule("a list of rows", lambda value: isinstance(value, list) and all(isinstance(row, dict) for row in value))
SCORES: Rules = {
    "name": TEXT,
    **{name: number() for name in ("nll", "kl", "kl_weight", "seconds")},
    **{name: whole() for name in ("draws", "parameters")},
    "chains": or_none(OBJECT),
}


class Scale(NamedTuple):
    """How vectors were standardised: inputs one by one, targets by one number."""

    x_shift: np.ndarray
    x_scale: np.ndarray
    y_shift: np.ndarray
    y_scale: float


class Task(NamedTuple):
    """A data set as the rows see it, and the rows that apply."""

    train: Part
    validation: Part
    test: Part
    likelihood: Likelihood
    rows: list[Row]
    scale: Scale | None
    draws_at_once: int

    @property
    def on_a_line(self) -> bool:
        """Whether the predictions can be drawn: a regression of one number on one."""
        one = self.train.x.shape[1:] == (1,) and self.train.y.shape[1:] == (1,)
        return one and not isinstance(self.likelihood, Categorical)


def task_of(data: DataSet, seed: int, noise: float | None = None) -> Task:
    """A data set made ready for all rows alike; the noise of a regression is known, or learned."""
    train, validation = held_out(data.train, VALIDATION, seed=seed)
    if len(data.train.x.shape) == 4 and data.classes is not None:
        return Task(train, validation, data.test, Categorical(), images.rows(data), None, 1)
    if len(data.train.x.shape) != 2:
        raise ValueError(f"{data.name} has examples of shape {data.train.x.shape[1:]}: pass vectors, or images.")
    x, y = (np.asarray(part[:], float) for part in train)
    classes = None if data.classes is None else len(data.classes)
    spread = x.std(0)
    shift, unit = (np.zeros(1), 1.0) if classes else (y.mean(0), float(y.std()) or 1.0)
    scale = Scale(x.mean(0), np.where(spread > 0, spread, 1.0), shift, unit)

    def standardised(part: Part) -> Part:
        x = (np.asarray(part.x[:], float) - scale.x_shift) / scale.x_scale
        y = np.asarray(part.y[:]) if classes else (np.asarray(part.y[:], float) - scale.y_shift) / scale.y_scale
        return Part(x.astype(np.float32), y if classes else y.astype(np.float32))

    train, validation, test = map(standardised, (train, validation, data.test))
    known = Gaussian(0.1, learn=True) if noise is None else Gaussian(noise / scale.y_scale)
    likelihood = Categorical() if classes else known
    rows = vectors.rows(jnp.asarray(train.x), jnp.asarray(train.y), classes)
    return Task(train, validation, test, likelihood, rows, scale, 16)


class Comparison:
    """A table in a folder: what it is made of, and the rows it has so far."""

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
        self.told = {"epochs": epochs, "batch_size": batch_size, "kl_weight": kl_weight}
        names = [row.name for row in self.task.rows]
        for name in only:
            if name not in names:
                raise ValueError(f"row={name!r} is not one for {data.name}: choose from {', '.join(names)}.")
        self.rows = [row for row in self.task.rows if not only or row.name in only]
        self.settings = {
            "data": data.name, "examples": len(self.task.train.x), "seed": seed, "noise": noise, **self.told,
            "digests": [digest(array) for part in (data.train, data.test) for array in part],
        }  # fmt: skip
        self.file = out / "compare.json"
        self.done = self._known(resume)

    def _known(self, resume: bool) -> list[dict[str, Any]]:
        """The rows that are done already; refused, if they are of another table, or not to be gone on with."""
        if not self.file.exists():
            return []
        if not resume:
            raise ValueError(f"{self.out} holds a comparison already: add --resume to go on, or choose another folder.")
        known = read_record(self.file, KIND, {"settings": OBJECT, "rows": ROWS})
        settings = known["settings"]
        for name, value in self.settings.items():
            if settings.get(name) != value:
                raise ValueError(
                    f"{self.out} was made with {name}={shown(settings.get(name))}, this command has {shown(value)}: "
                    "use the same, or choose another folder."
                )
        names = [row.name for row in self.task.rows]
        for row in known["rows"]:
            check_record(self.file, row, SCORES)
            if row["name"] not in names:
                raise broken(self.file, f"holds the row {shown(row['name'])}, which is not one for these data")
        return known["rows"]

    def pending(self) -> list[Row]:
        """The rows that are wanted and not done."""
        there = {scores["name"] for scores in self.done}
        return [row for row in self.rows if row.name not in there]

    def add(self, row: Row, *, progress: bool = True) -> dict[str, Any]:
        """Train a row and score it; written down before it is told."""
        self.out.mkdir(parents=True, exist_ok=True)
        scores = self._scored(row, progress)
        self.done.append(scores)
        write_record(self.file, KIND, {"settings": self.settings, "machine": _machine(), "rows": self.in_order()})
        return scores

    def in_order(self) -> list[dict[str, Any]]:
        """The rows that are done, in the order of the table."""
        names = [row.name for row in self.task.rows]
        return sorted(self.done, key=lambda scores: names.index(scores["name"]))

    def curve(self, name: str) -> np.ndarray | None:
        """Of a row, if it was drawn: predictions, and functions: "what draw point"."""
        file = self.out / _file_name(name)
        return np.asarray(formats.mapped(file)) if file.exists() else None

    def points(self) -> np.ndarray:
        """Where curves are drawn: over the data, and as far again on both sides."""
        assert self.task.scale is not None
        x = np.asarray(self.task.train.x)[:, 0] * self.task.scale.x_scale[0] + self.task.scale.x_shift[0]
        width = float(x.max() - x.min())
        return np.linspace(x.min() - width, x.max() + width, POINTS)

    def _scored(self, row: Row, progress: bool) -> dict[str, Any]:
        task, began = self.task, time.perf_counter()
        training = {**row.training, **{name: value for name, value in self.told.items() if value is not None}}
        net_key, fit_key, test_key, curve_key = jax.random.split(jax.random.key(self.seed), 4)
        fitted = fit(
            row.net(net_key), task.likelihood, *task.train, key=fit_key, validation=task.validation,
            validate_every=training["epochs"], progress=progress, **training,
        )  # fmt: skip
        scores = evaluate(
            fitted.model, fitted.likelihood, *task.test, draws=row.draws, key=test_key, draws_at_once=task.draws_at_once
        )
        seconds = time.perf_counter() - began
        if task.scale is not None and not isinstance(task.likelihood, Categorical):
            scores["rmse"] *= task.scale.y_scale
            scores["nll"] += task.train.y.shape[1] * float(np.log(task.scale.y_scale))
        if task.on_a_line:
            save_array(self.out / _file_name(row.name), self._curve(fitted.model, fitted.likelihood, curve_key))
        chains = getattr(fitted.model, "diagnostics", None)
        return {
            "name": row.name, **scores, "kl_weight": training.get("kl_weight", 1.0), "draws": row.draws,
            "parameters": sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(fitted.model, eqx.is_inexact_array))),
            "seconds": round(seconds, 1), "chains": None if chains is None else chains._asdict(),
        }  # fmt: skip

    def _curve(self, model: Any, likelihood: Any, key: jax.Array) -> np.ndarray:
        scale = self.task.scale
        assert scale is not None
        x = ((self.points() - scale.x_shift) / scale.x_scale)[:, None].astype(np.float32)
        draw_key, noise_key = jax.random.split(key)
        samples = predict(model, x, draws=CURVE_DRAWS, key=draw_key)
        both = jnp.stack([likelihood.sample(samples, key=noise_key), likelihood.center(samples)])[..., 0]
        return np.asarray(both) * scale.y_scale + scale.y_shift[0]


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower()) + ".npy"


def _machine() -> dict[str, str]:
    return {
        "device": jax.devices()[0].device_kind, "jax": jax.__version__, "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip
