"""Nets for images that several tables and figures of the paper show.

A net is named by its settings. It is trained once, and kept under runs/nets of the repository, so that a figure that
needs the net itself finds it there if a table has trained it. What was measured is in the results of the table.
"""

import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax import Array
from reproduction import Found, Scale, Settings

import sdebnn
from sdebnn import metrics
from sdebnn.compare import Row, task_of
from sdebnn.contract import AbstractModel
from sdebnn.data import DataSet, Part, load
from sdebnn.files import made_folder, write_whole
from sdebnn.likelihoods import AbstractLikelihood
from sdebnn.models import map_blocks
from sdebnn.presets import About, preset
from sdebnn.train import Checkpoints, Recipe

KEPT = Path(__file__).resolve().parent.parent / "runs" / "nets"
OURS = "ours"
PAPER_KL = 1e-3  # the weight of the KL in the paper
EPOCHS = {"digits": 3, "mnist": 20, "cifar10": 20}
TRAIN, TEST = {"digits": 400}, {"digits": 200}  # examples, of sets that are not used whole
# The rows of `sdebnn compare` whose KL charges for something.
CHARGED = ("MFVI", "SDE-BNN")
Change = Callable[[Row, DataSet, Settings], Row]


class Course(NamedTuple):
    """How a training went: its seconds in all, and in an epoch once it was compiled; epoch, seconds and loss by row."""

    seconds: float
    seconds_an_epoch: float
    curve: list[list[float]]


class Trained(NamedTuple):
    """A net, what scores it, and how its training went."""

    fit: sdebnn.Fit
    likelihood: AbstractLikelihood
    validation: Part  # to choose by; not trained on
    test: Part
    draws: int
    course: Course

    def scores(self, part: Part, seed: int) -> dict[str, float]:
        """The scores of a part."""
        key = jax.random.key(seed)
        return sdebnn.evaluate(self.fit.model, self.likelihood, *part, draws=self.draws, key=key, draws_at_once=1)

    def samples(self, x: Array, seed: int) -> np.ndarray:
        """Draws of the probabilities of the classes, "draw example class"."""
        key = jax.random.key(seed)
        logits = sdebnn.predict(self.fit.model, x, draws=self.draws, key=key, draws_at_once=1)
        return np.asarray(self.likelihood.center(logits))


def net(data: str, row: str, seed: int, *, kl_weight: float | None = None, **others: Any) -> Settings:
    """The settings of a net: a row of ``sdebnn compare``, or "ours".

    Without a ``kl_weight``, it is trained with that of the row. ``steps=`` changes the grid of its blocks.
    """
    epochs = None if row == OURS else EPOCHS[data] * (3 if row == "HMC" else 1)
    settings = {"data": data, "row": row, "seed": seed, "epochs": epochs, **others}
    return settings if kl_weight is None else {**settings, "kl_weight": kl_weight}


def data_sets(scale: Scale) -> dict[str, int]:
    """The sets of images, and the number of seeds on each."""
    return {"mnist": 3, "cifar10": 1} if scale == "full" else {"digits": 1}


def is_charged(row: str) -> bool:
    """Whether the KL of a row depends on what it learns."""
    return row.startswith(CHARGED)


def trained(settings: Settings, change: Change | None = None) -> Trained:
    """The net with these settings, trained now or before. A training that was stopped goes on.

    ``change`` is what the settings say of the row besides.
    """
    data = small_data(settings["data"], TRAIN.get(settings["data"]), TEST.get(settings["data"]))
    task = task_of(data, settings["seed"])
    row = _ours(data) if settings["row"] == OURS else next(row for row in task.rows if row.name == settings["row"])
    row = row if change is None else change(row, data, settings)
    file = made_folder(KEPT) / f"{_name(settings)}.safetensors"
    about = file.with_suffix(".json")
    if not about.exists():
        net_key, fit_key = jax.random.split(jax.random.key(settings["seed"]))
        start = row.net(net_key)
        if "steps" in settings:
            start = map_blocks(lambda block: block.with_solver(block.solver.with_steps(settings["steps"])), start)
        training = row.training.changed(epochs=settings["epochs"], kl_weight=settings.get("kl_weight"))
        fit, course = course_of(
            start, task.likelihood, task.train, training, fit_key, Checkpoints(file.with_suffix(""), resume=True)
        )
        sdebnn.save(fit, file, inputs=np.asarray(task.train.x[:1]))
        write_whole(about, (json.dumps({"settings": settings, "course": course}) + "\n").encode())
        shutil.rmtree(file.with_suffix(""))
    course = Course(*json.loads(about.read_text())["course"])
    modules = () if change is None else (change.__module__,)  # it may have made fields of its own
    return Trained(sdebnn.load(file, modules=modules), task.likelihood, task.validation, task.test, row.draws, course)


def course_of(
    model: AbstractModel, likelihood: AbstractLikelihood, train: Part, training: Recipe, key: Array,
    checkpoints: Checkpoints,
) -> tuple[sdebnn.Fit, Course]:  # fmt: skip
    """A net that is trained, and how that went."""
    began = time.perf_counter()
    fit = sdebnn.fit(model, likelihood, *train, key=key, progress=False, checkpoints=checkpoints, **training.options())
    rows = [json.loads(line) for line in (checkpoints.path / "metrics.jsonl").read_text().splitlines()]
    curve = [[row["epoch"], row["seconds"], row["loss"]] for row in rows]
    (first, began_at, _), (last, ended_at, _) = curve[0], curve[-1]
    an_epoch = (ended_at - began_at) / (last - first) if last > first else math.nan
    return fit, Course(max(time.perf_counter() - began, ended_at), an_epoch, curve[:: max(1, len(curve) // 100)])


def measured(settings: Settings, change: Change | None = None) -> Found:
    """The scores of a net on the test part, and how its training ended."""
    found, seed = trained(settings, change), settings["seed"]
    scores, validation = (found.scores(part, seed) for part in (found.test, found.validation))
    history = found.fit.history
    last = max(1, len(history["elbo"]) // 10)
    return {
        **{name: scores[name] for name in ("accuracy", "ece", "brier", "nll", "kl")}, "seconds": found.course.seconds,
        "seconds_an_epoch": found.course.seconds_an_epoch,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(found.fit.model, eqx.is_inexact_array))),
        "training": {name: float(np.mean(history[name][-last:])) for name in ("accuracy", "elbo", "kl")},
        "validation": {name: validation[name] for name in ("accuracy", "nll")},
    }  # fmt: skip


def class_scores(probs: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Accuracy, calibration error, Brier score and NLL of draws of probabilities, "draw example class"."""
    taken = np.take_along_axis(probs, np.asarray(labels)[None, :, None].astype(int), axis=-1)[..., 0]
    found = {
        "accuracy": metrics.accuracy(probs, labels), "ece": metrics.ece(probs, labels),
        "brier": metrics.brier(probs, labels), "nll": -np.log(np.maximum(taken.mean(0), 1e-12)).mean(),
    }  # fmt: skip
    return {name: float(value) for name, value in found.items()}


def small_data(name: str, train: int | None, test: int | None = None) -> DataSet:
    """A data set with its first examples alone; None for all of them."""
    data = load(name)
    parts = ((data.train, train), (data.test, test))
    return DataSet(data.name, *(Part(part.x[:count], part.y[:count]) for part, count in parts), data.classes)


def _ours(data: DataSet) -> Row:
    """One net of the preset "ours", and how it is trained."""
    found = preset("ours", About.of(data))
    return Row(OURS, found.net, found.training, 16)


def _name(settings: Settings) -> str:
    digest = hashlib.sha256(json.dumps([settings, sdebnn.__version__]).encode()).hexdigest()[:12]
    words = "".join(letter if letter.isalnum() else "-" for letter in settings["row"].lower())
    return f"{settings['data']}-{words}-seed{settings['seed']}-{digest}"
