"""A run on disk, as the command line makes it: settings in, a trained model out, and both found again later.

RUN/run.json            the settings, from which data and net are made again
RUN/metrics.jsonl       how training went            RUN/checkpoints/       where it stands
RUN/result.json         how the trained model does on the test part
"""

import json
import math
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from sdebnn.checks import check_choice, check_count, check_positive, shown
from sdebnn.data import DataSet, Part, held_out, images, tabular, toy
from sdebnn.files import write_whole
from sdebnn.fingerprints import digest
from sdebnn.models import blocks
from sdebnn.predict import evaluate
from sdebnn.presets import Preset, preset, some_rows
from sdebnn.records import (
    TEXT,
    YES_OR_NO,
    Rule,
    Rules,
    number,
    one_of,
    or_none,
    read_record,
    record_bytes,
    whole,
)
from sdebnn.train import RunFolder, fit, saved_answer, saved_seconds

IMAGES = {
    "digits": images.digits,
    "mnist": images.mnist,
    "fashion-mnist": images.fashion_mnist,
    "cifar10": images.cifar10,
}
TOYS = {
    "wave": toy.wave, "ripple": toy.ripple, "cubic": toy.cubic, "step": toy.step, "uneven": toy.uneven, "gap": toy.gap,
    "moons": toy.moons, "spirals": toy.spirals,
}  # fmt: skip
NAMES = (*IMAGES, *TOYS)
PRESETS = ("ours", "paper")
KIND = "run of sdebnn, version 2"
SEEDS = 2**32
ROWS_A_CHECK = 1000
SHAPE = Rule("a list of sizes", lambda value: isinstance(value, list) and all(map(whole(1).holds, value)))
RULES: Rules = {
    "data": TEXT,
    "preset": one_of(*PRESETS),
    "inferred": YES_OR_NO,
    "seed": whole(0, SEEDS - 1),
    "epochs": or_none(whole(1)),
    "kl_weight": number(0.0),
    "validation": number(0.0),
    "patience": or_none(whole(1)),
    "fingerprint": TEXT,
    "shape": SHAPE,
}


class Settings(NamedTuple):
    """What a run is made of. All of it is in ``run.json``."""

    data: str
    preset: str = "ours"
    inferred: bool = False
    seed: int = 0
    epochs: int | None = None
    kl_weight: float = 1.0
    validation: float = 0.1
    patience: int | None = None

    def check(self) -> None:
        """Refuse settings that cannot be."""
        check_choice("preset", self.preset, PRESETS)
        if not 0 <= self.seed < SEEDS:
            raise ValueError(f"seed={self.seed} must be a whole number from 0 to {SEEDS - 1}.")
        if not 0 <= self.validation < 1:
            raise ValueError(
                f"validation={shown(self.validation)} must be a share of the training part: a number from 0 (for none) "
                "to below 1, such as 0.1."
            )
        if self.epochs is not None:
            check_count("epochs", self.epochs)
        if self.patience is not None:
            check_count("patience", self.patience)
        check_positive("kl_weight", self.kl_weight, or_zero=True)


class Run(NamedTuple):
    """Data, a net and how to train it, made from settings."""

    settings: Settings
    data: DataSet
    preset: Preset
    model: Any

    @property
    def key(self) -> jax.Array:
        """The key of all that is random in the run, beside the net's first weights."""
        return jax.random.fold_in(jax.random.key(self.settings.seed), 1)


def load_data(name: str, seed: int = 0) -> DataSet:
    """The data set of a name; or the user's own: a folder of .npy files, or a .csv file; or UCI as uci/NAME/SPLIT."""
    if name in IMAGES:
        return IMAGES[name]()
    if name in TOYS:
        parts = toy_parts(TOYS[name], (400, 1000), seed)
        return DataSet(name, *parts, ("0", "1") if name in ("moons", "spirals") else None)
    if name.startswith("uci/"):
        _, table, split = (*name.split("/"), "0")[:3]
        if not split.isdigit():
            raise ValueError(f"data={name!r}: a UCI set is uci/NAME/SPLIT, such as uci/concrete/0.")
        return tabular.uci(table, int(split))
    path = Path(name)
    if path.is_dir():
        return tabular.arrays(path)
    if path.suffix == ".csv":
        return tabular.csv(path, seed=seed)
    raise ValueError(
        f"data={name!r} is unknown: choose one of {', '.join(NAMES)}, uci/NAME/SPLIT, a .csv file, or a "
        "folder with x_train.npy, y_train.npy, x_test.npy and y_test.npy."
    )


def toy_parts(problem: Callable[..., Any], sizes: tuple[int, int], seed: int) -> tuple[Part, Part]:
    """So many examples of a problem to train on, and so many to judge by."""
    train, test = jax.random.split(jax.random.fold_in(jax.random.key(seed), 3))
    return Part(*map(np.asarray, problem(sizes[0], key=train))), Part(*map(np.asarray, problem(sizes[1], key=test)))


def make(settings: Settings) -> Run:
    """The data and the untrained net of a run."""
    settings.check()
    data = load_data(settings.data, settings.seed)
    row = preset(settings.preset, data, inferred=settings.inferred)
    return Run(settings, data, row, row.net(jax.random.fold_in(jax.random.key(settings.seed), 0)))


def train(
    settings: Settings,
    out: Path,
    *,
    resume: bool = False,
    draws: int = 16,
    monitor: int | None = None,
    save_every: float = 60.0,
    memory_limit: int = 2**31,
    tensorboard: bool = False,
    progress: bool = True,
) -> dict[str, Any]:
    """Train a run in a folder, to the end or on from where it was stopped, and score it on the test part."""
    check_count("draws", draws)
    settings.check()
    with RunFolder(out, tensorboard=tensorboard) as place:  # locked before anything in it is read
        known = _known(settings, place, resume)
        run = make(settings)
        if known:
            _check_same(run.data, out)
            place.remember("run.json")
        # Now, and before rows are held out: after hours of training would be late, and rows would have other numbers.
        _check_part("the training part", run.data.train, memory_limit)
        _check_part("the test part", run.data.test, None)
        row = {**run.preset.training, "kl_weight": settings.kl_weight, "patience": settings.patience}
        if settings.epochs is not None:
            row["epochs"] = settings.epochs
        part, validation = run.data.train, None
        if settings.validation:
            part, validation = held_out(part, settings.validation, seed=settings.seed, name="validation")
        # A set that is smaller than the preset's batch is one batch, of as many parts as go into it.
        row["accumulate"] = min(row.get("accumulate", 1), len(part.x))
        row["batch_size"] = min(row["batch_size"], len(part.x)) // row["accumulate"] * row["accumulate"]
        if not known:
            facts = {"fingerprint": _fingerprint(run.data), "shape": list(run.data.train.x.shape[1:])}
            place.write("run.json", record_bytes(KIND, {**settings._asdict(), **facts}))
        fitted = fit(
            run.model, run.preset.likelihood, part.x, part.y,
            key=run.key, validation=validation, folder=place, resume=resume, monitor=monitor, save_every=save_every,
            memory_limit=memory_limit, progress=progress, **row,
        )  # fmt: skip
        seconds = saved_seconds(out)
        result = {
            **score(run, fitted.model, fitted.likelihood, draws),
            "settings": settings._asdict(),
            "draws": draws,
            "examples": len(part.x),
            "parameters": sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(fitted.model, eqx.is_inexact_array))),
            "random_weights": sum(block.weights.size for block in blocks(fitted.model)),
            "fit_seconds": seconds,
            "device": jax.devices()[0].device_kind,
            "versions": {"jax": jax.__version__, "python": platform.python_version()},
        }
        place.hold()  # scoring may take long, and the folder be deleted meanwhile
        write_whole(out / "result.json", (json.dumps(result, indent=1) + "\n").encode())
    return result


def _check_part(name: str, part: Part, limit: int | None) -> None:
    """Refuse a part that holds what is not finite, some rows at a time: it may be larger than memory.

    Inputs of more than ``limit`` bytes are not read: training looks at their rows when it takes them.
    """
    size = math.prod(part.x.shape) * np.dtype(part.x.dtype).itemsize
    for of, column in (("x", part.x), ("y", part.y)):
        if of == "x" and limit is not None and size > limit:
            continue
        for i in range(0, len(column), ROWS_A_CHECK):
            rows = np.asarray(column[i : i + ROWS_A_CHECK])
            if np.issubdtype(rows.dtype, np.inexact) and not np.isfinite(rows).all():
                first = np.argwhere(~np.isfinite(rows))[0]
                at = (i + int(first[0]), *map(int, first[1:]))
                value = rows[tuple(first)]
                raise ValueError(f"{name}'s {of} holds {value} at index {at}: remove or impute such values.")


def score(run: Run, model: Any, likelihood: Any, draws: int, steps: int | None = None) -> dict[str, float]:
    """The scores of a trained model on the test part: always with the same draws."""
    return evaluate(
        model, likelihood, *run.data.test, draws=draws, key=jax.random.fold_in(jax.random.key(run.settings.seed), 2),
        draws_at_once=run.preset.draws_at_once, steps=steps,
    )  # fmt: skip


def open_run(out: Path, *, best: bool = False) -> tuple[Run, Any, Any]:
    """A run that was trained, at least in part: its settings and data, and the model and likelihood it has reached.

    With ``best``, those that did best in validation so far.
    """
    run = make(read_settings(out))
    _check_same(run.data, out)
    parameters, rest = eqx.partition((run.model, run.preset.likelihood), eqx.is_inexact_array)
    model, likelihood = eqx.combine(saved_answer(out, parameters, best=best), rest)
    return run, model, likelihood


def read_settings(out: Path) -> Settings:
    """The settings of a run."""
    facts = _read(out)
    return Settings(**{name: facts[name] for name in Settings._fields})


def check_inputs(out: Path, name: str, x: np.ndarray) -> None:
    """Refuse inputs that are not like those a run was trained on, before its data and net are made."""
    shape = tuple(_read(out)["shape"])
    if x.shape[1:] != shape:
        raise ValueError(
            f"{name} has examples of shape {x.shape[1:]}, the run was trained on {shape}: pass an array of shape "
            f"(examples, {', '.join(map(str, shape))})."
        )


def _read(out: Path) -> dict[str, Any]:
    file = out / "run.json"
    if not file.exists():
        raise ValueError(f"{out} is not a run: there is no {file.name} in it; make one with sdebnn train.")
    return read_record(file, KIND, RULES)


def _fingerprint(data: DataSet) -> str:
    """Of the rows by which a net is standardised, and of as many to be judged by."""
    return " ".join(digest(np.asarray(a[some_rows(len(a))]))[:16] for part in (data.train, data.test) for a in part)


def _check_same(data: DataSet, out: Path) -> None:
    """Refuse data that are not those a run was made with: the net would not be the one that was trained."""
    if _read(out)["fingerprint"] != _fingerprint(data):
        raise ValueError(f"the data of {out} have changed since it was made: bring them back, or train another run.")


def _known(settings: Settings, place: RunFolder, resume: bool) -> bool:
    """Whether the folder holds this run already; refused, if it holds another, or is not to be resumed."""
    out = place.path
    if not (out / "run.json").exists():
        if place.steps():
            raise ValueError(
                f"{out} holds checkpoints and no run.json that says what they are of: bring it back, or choose another "
                "folder."
            )
        return False
    if not resume:
        raise ValueError(f"{out} holds a run already: add --resume to go on with it, or choose another folder.")
    there = read_settings(out)
    for name, value in settings._asdict().items():
        if getattr(there, name) != value:
            raise ValueError(
                f"{out} was made with {name}={shown(getattr(there, name))}, this command has {shown(value)}: use the "
                "same, or choose another folder."
            )
    return True
