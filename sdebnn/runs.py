"""A run on disk, as the command line makes it: settings in, a trained model out, and both found again later.

RUN/run.json            the settings, from which data and net are made again
RUN/metrics.jsonl       how training went            RUN/checkpoints/       where it stands
RUN/result.json         how the trained model does on the test part
"""

import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from sdebnn.checks import check_array, check_choice, check_count, check_positive, shown
from sdebnn.data import DataSet, Part, held_out, images, tabular, toy
from sdebnn.files import fingerprint, read_facts, write_facts, write_whole
from sdebnn.models import blocks
from sdebnn.predict import evaluate
from sdebnn.presets import Preset, preset, some_rows
from sdebnn.train import fit, saved_answer, saved_seconds, saved_steps

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
KIND = "run of sdebnn, version 1"
ROWS_A_CHECK = 1000


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
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed={self.seed} must be a whole number from 0 to {2**32 - 1}.")
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
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: choose a folder for the run.")
    known = _known(settings, out, resume)
    run = make(settings)
    if known:
        _check_same(run.data, out)
    _check_part(run.data.test)  # now: after hours of training would be late
    row = {**run.preset.training, "kl_weight": settings.kl_weight, "patience": settings.patience}
    if settings.epochs is not None:
        row["epochs"] = settings.epochs
    part, validation = run.data.train, None
    if settings.validation:
        part, validation = held_out(part, settings.validation, seed=settings.seed)
    # A set that is smaller than the preset's batch is one batch, of as many parts as go into it.
    row["accumulate"] = min(row.get("accumulate", 1), len(part.x))
    row["batch_size"] = min(row["batch_size"], len(part.x)) // row["accumulate"] * row["accumulate"]
    if not known:
        out.mkdir(parents=True, exist_ok=True)
        write_facts(out / "run.json", KIND, {**settings._asdict(), "fingerprint": _fingerprint(run.data)})
    try:
        fitted = fit(
            run.model, run.preset.likelihood, part.x, part.y,
            key=run.key, validation=validation, folder=out, resume=resume, monitor=monitor, save_every=save_every,
            memory_limit=memory_limit, tensorboard=tensorboard, progress=progress, **row,
        )  # fmt: skip
    except ValueError:
        if not known and not saved_steps(out):  # it cannot be trained so: the folder is free for another try
            (out / "run.json").unlink()
        raise
    scores = score(run, fitted.model, fitted.likelihood, draws)
    result = {
        **scores,
        "settings": settings._asdict(),
        "draws": draws,
        "examples": len(part.x),
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(fitted.model, eqx.is_inexact_array))),
        "random_weights": sum(block.weights.size for block in blocks(fitted.model)),
        "fit_seconds": saved_seconds(out),
        "device": jax.devices()[0].device_kind,
        "versions": {"jax": jax.__version__, "python": platform.python_version()},
    }
    write_whole(out / "result.json", (json.dumps(result, indent=1) + "\n").encode())
    return result


def _check_part(part: Part) -> None:
    """Refuse a part that holds what is not finite, some rows at a time: it may be larger than memory."""
    for i in range(0, len(part.x), ROWS_A_CHECK):
        for name, rows in (("the test part's x", part.x), ("the test part's y", part.y)):
            check_array(name, np.asarray(rows[i : i + ROWS_A_CHECK]))


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
    file = out / "run.json"
    if not file.exists():
        raise ValueError(f"{out} is not a run: there is no {file.name} in it; make one with sdebnn train.")
    facts = read_facts(file, KIND)
    return Settings(**{name: facts[name] for name in Settings._fields})


def _fingerprint(data: DataSet) -> str:
    """Of the rows by which a net is standardised, and of as many to be judged by."""
    return fingerprint(*(array[some_rows(len(array))] for part in (data.train, data.test) for array in part))


def _check_same(data: DataSet, out: Path) -> None:
    """Refuse data that are not those a run was made with: the net would not be the one that was trained."""
    if read_facts(out / "run.json", KIND)["fingerprint"] != _fingerprint(data):
        raise ValueError(f"the data of {out} have changed since it was made: bring them back, or train another run.")


def _known(settings: Settings, out: Path, resume: bool) -> bool:
    """Whether the folder holds this run already; refused, if it holds another, or is not to be resumed."""
    if not (out / "run.json").exists():
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
