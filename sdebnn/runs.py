"""Runs of the command line: a folder with the settings, the training log, the checkpoints and the scores.

RUN/run.json            the settings, and what the net needs to know about the data, from which it is made again
RUN/metrics.jsonl       the training log             RUN/checkpoints/       the state of training
RUN/member-1/ ...       the same of the other members of a mixture
RUN/result.json         the scores of the trained model on the test part, and its bound on the training part
"""

import json
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from sdebnn.checks import check_choice, check_count, check_positive, shown
from sdebnn.contract import AbstractModel, parameter_count
from sdebnn.data import DataSet, Part, check_part, evenly_spaced_rows, held_out, load
from sdebnn.files import write_whole
from sdebnn.fingerprints import digest
from sdebnn.likelihoods import AbstractLikelihood
from sdebnn.models import SDEBNN, Ensemble, blocks
from sdebnn.prediction import evaluate
from sdebnn.presets import PRESETS, About, Preset, preset
from sdebnn.records import (
    OBJECT,
    TEXT,
    YES_OR_NO,
    Rule,
    Rules,
    broken,
    check_record,
    check_same_settings,
    number,
    one_of,
    or_none,
    read_record,
    record_bytes,
    whole,
)
from sdebnn.train import (
    Batches,
    Checkpoints,
    RunFolder,
    Validation,
    fit,
    member_folder,
    member_key,
    saved_answer,
    saved_seconds,
    saved_steps,
)

KIND = "run of sdebnn, version 4"
SEEDS = 2**32
DRAWS = 16  # of each member, to score it
BOUND_DRAWS, BOUND_ROWS = 2, 50_000  # of each member, and of the training part, for the bound
WORDS = Rule("a list of words", lambda value: isinstance(value, list) and all(map(TEXT.holds, value)))
NUMBERS = Rule("a list of numbers", lambda value: isinstance(value, list) and all(map(number().holds, value)))
SHAPE = Rule("a list of sizes", lambda value: isinstance(value, list) and all(map(whole(1).holds, value)))
RULES: Rules = {
    "data": TEXT,
    "preset": one_of(*PRESETS),
    "infer_w0": YES_OR_NO,
    "seed": whole(0, SEEDS - 1),
    "epochs": or_none(whole(1)),
    "kl_weight": number(0.0),
    "validation": number(0.0),
    "patience": or_none(whole(1)),
    "members": or_none(whole(1)),
    "fingerprint": TEXT,
    "about": OBJECT,
}
NUMBERS_ABOUT = ("center", "spread", "target_center", "target_spread")
ABOUT_RULES: Rules = {
    "name": TEXT,
    "shape": SHAPE,
    "classes": or_none(WORDS),
    "examples": whole(1),
    **dict.fromkeys(NUMBERS_ABOUT, NUMBERS),
}


class Settings(NamedTuple):
    """The settings of a run, which are saved in ``run.json``."""

    data: str
    preset: str = "ours"
    infer_w0: bool = False
    seed: int = 0
    epochs: int | None = None
    kl_weight: float = 1.0
    validation: float = 0.1
    patience: int | None = None
    members: int | None = None  # None: as many as the preset has

    def check(self) -> None:
        """Refuse values that are not allowed."""
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
        for name in ("patience", "members"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        check_positive("kl_weight", self.kl_weight, or_zero=True)


class Run(NamedTuple):
    """The untrained nets, one for each member, and their preset, made from settings and what the data are like."""

    settings: Settings
    about: About
    preset: Preset
    nets: tuple[SDEBNN, ...]

    @property
    def model(self) -> SDEBNN | Ensemble:
        """The net, or a mixture of the nets."""
        return self.nets[0] if len(self.nets) == 1 else Ensemble(self.nets)

    @property
    def in_turn(self) -> bool:
        """Whether there are several nets, and they are trained one after the other."""
        return len(self.nets) > 1 and self.preset.in_turn

    @property
    def key(self) -> jax.Array:
        """The key of training. The key of the net's initial weights is another one."""
        return jax.random.fold_in(jax.random.key(self.settings.seed), 1)


def make(settings: Settings, about: About) -> Run:
    """The untrained nets of a run."""
    row = preset(settings.preset, about, infer_w0=settings.infer_w0)
    key = jax.random.fold_in(jax.random.key(settings.seed), 0)
    members = row.members if settings.members is None else settings.members
    return Run(settings, about, row, tuple(row.net(member_key(key, number)) for number in range(members)))


def train(
    settings: Settings,
    out: Path,
    *,
    resume: bool = False,
    draws: int | None = None,
    monitor: int | None = None,
    save_every: float = 60.0,
    memory_limit: int = 2**31,
    tensorboard: bool = False,
    progress: bool = True,
) -> dict[str, Any]:
    """Train a run in a folder, or resume it, and score the trained model on the test part."""
    if draws is not None:
        check_count("draws", draws)
    settings.check()
    with RunFolder(out, tensorboard=tensorboard) as place:  # locks the folder before anything in it is read
        known = _known(settings, place, resume)
        data = load(settings.data, seed=settings.seed)
        run = make(settings, About.of(data))
        if known:
            remedy = "the data have changed; restore them, or train another run"
            check_same_settings(out, _read(out), {"fingerprint": _fingerprint(data)}, remedy)
            place.remember("run.json")
        # Before hours of training, and before rows are held out, which would change the row numbers in errors.
        check_part("the training part", data.train, memory_limit)
        check_part("the test part", data.test)
        recipe = run.preset.training.changed(epochs=settings.epochs, kl_weight=settings.kl_weight)
        part, validation = data.train, None
        if settings.validation:
            part, rest = held_out(part, settings.validation, seed=settings.seed, name="validation")
            validation = Validation(rest.x, rest.y, patience=settings.patience)
        elif settings.patience is not None:
            raise ValueError(f"patience={settings.patience} needs a validation set: pass a validation share above 0.")
        objective = replace(recipe.objective, monitor_every=monitor)
        batches = replace(_fitting(recipe.batches, len(part.x)), memory_limit=memory_limit)
        if not known:
            facts = {"fingerprint": _fingerprint(data), "about": run.about._asdict()}
            place.write("run.json", record_bytes(KIND, {**settings._asdict(), **facts}))
        fitted = fit(
            list(run.nets) if run.in_turn else run.model, run.preset.likelihood, part.x, part.y,
            key=run.key, validation=validation, progress=progress,
            checkpoints=Checkpoints(place, resume, save_every, tensorboard=tensorboard),
            **recipe._replace(objective=objective, batches=batches).options(),
        )  # fmt: skip
        draws = DRAWS * len(run.nets) if draws is None else draws
        place.hold()  # the folder may have been deleted meanwhile
        result = {
            **score(run, data.test, fitted.model, fitted.likelihood, draws),
            "elbo": _bound(run, fitted.model, fitted.likelihood, part),
            "settings": settings._asdict(),
            "draws": draws,
            "members": len(run.nets),
            "examples": len(part.x),
            "parameters": parameter_count(fitted.model),
            "random_weights": sum(block.weights.size for net in run.nets for block in blocks(net)),
            "fit_seconds": round(sum(saved_seconds(each) for each in _folders(run, out) if saved_steps(each)), 2),
            "device": jax.devices()[0].device_kind,
            "versions": {"jax": jax.__version__, "python": platform.python_version()},
        }
        place.hold()  # scoring may take long, and the folder may have been deleted meanwhile
        write_whole(out / "result.json", (json.dumps(result, indent=1) + "\n").encode())
    return result


def _fitting(batches: Batches, examples: int) -> Batches:
    """The batches of a preset, made smaller if the data set has fewer examples than one batch."""
    accumulate = min(batches.accumulate, examples)
    size = min(batches.size or examples, examples) // accumulate * accumulate
    return replace(batches, size=size, accumulate=accumulate)


def _folders(run: Run, out: Path) -> list[Path]:
    """The folders with the checkpoints of a run."""
    return [member_folder(out, number) for number in range(len(run.nets) if run.in_turn else 1)]


def _bound(run: Run, model: AbstractModel, likelihood: AbstractLikelihood, part: Part) -> float:
    """The ELBO on the training part in nats, from some of its rows. That of a mixture is the mean over its members."""
    rows = evenly_spaced_rows(len(part.x), BOUND_ROWS)
    scores = evaluate(
        model, likelihood, part.x[rows], part.y[rows], draws=BOUND_DRAWS * len(run.nets),
        key=jax.random.fold_in(jax.random.key(run.settings.seed), 3), draws_at_once=run.preset.draws_at_once,
    )  # fmt: skip
    return len(part.x) * scores["log_likelihood"] - scores["kl"]


def score(
    run: Run,
    part: Part,
    model: AbstractModel,
    likelihood: AbstractLikelihood,
    draws: int | None,
    steps: int | None = None,
) -> dict[str, float]:
    """The scores of a trained model on a part of the data. The draws depend only on the run's seed."""
    draws = DRAWS * len(run.nets) if draws is None else draws
    return evaluate(
        model, likelihood, *part, draws=draws, key=jax.random.fold_in(jax.random.key(run.settings.seed), 2),
        draws_at_once=run.preset.draws_at_once, steps=steps,
    )  # fmt: skip


def open_run(out: Path, *, best: bool = False) -> tuple[Run, SDEBNN | Ensemble, AbstractLikelihood]:
    """A run that was trained, at least in part, with the model and the likelihood of its last checkpoint.

    The data are not read. With ``best``, they are those with the best validation score so far. Members of which there
    is no checkpoint yet are left out.
    """
    run = make(read_settings(out), read_about(out))
    trained = [folder for folder in _folders(run, out) if folder == out or saved_steps(folder)]
    pairs = []
    for folder, model in zip(trained, run.nets if run.in_turn else (run.model,), strict=False):
        parameters, rest = eqx.partition((model, run.preset.likelihood), eqx.is_inexact_array)
        pairs.append(eqx.combine(saved_answer(folder, parameters, best=best), rest))
    models, likelihoods = zip(*pairs, strict=True)
    return run, models[0] if len(models) == 1 else Ensemble(models), likelihoods[0]


def read_settings(out: Path) -> Settings:
    """The settings of a run."""
    facts = _read(out)
    return Settings(**{name: facts[name] for name in Settings._fields})


def read_about(out: Path) -> About:
    """What the net of a run knows about its data."""
    facts = _read(out)["about"]
    about = About(
        facts["name"], tuple(facts["shape"]), None if facts["classes"] is None else tuple(facts["classes"]),
        facts["examples"], *(tuple(facts[name]) for name in NUMBERS_ABOUT),
    )  # fmt: skip
    columns = about.shape[-1] if about.shape else 0
    if len(about.shape) not in (1, 3) or not len(about.center) == len(about.spread) == columns:
        raise broken(out / "run.json", "does not describe the data of a net")
    return about


def scored_part(out: Path, settings: Settings) -> Part:
    """The test part of the data of a run, if it is still the one that the run was trained with."""
    data = load(settings.data, seed=settings.seed, parts=("test",))
    now, before = _part_fingerprint(data.test), _read(out)["fingerprint"].split()[2:]
    if now.split() != before:
        raise ValueError(f"the test part of {settings.data} has changed since {out} was trained: restore it.")
    return data.test


def check_inputs(out: Path, name: str, x: np.ndarray) -> None:
    """Refuse inputs whose shape is not that of the training data. This makes no net."""
    shape = read_about(out).shape
    if x.shape[1:] != shape:
        raise ValueError(
            f"{name} has examples of shape {x.shape[1:]}, the run was trained on {shape}: pass an array of shape "
            f"(examples, {', '.join(map(str, shape))})."
        )


def _read(out: Path) -> dict[str, Any]:
    file = out / "run.json"
    if not file.exists():
        raise ValueError(f"{out} is not a run: there is no {file.name} in it; make one with sdebnn train.")
    facts = read_record(file, KIND, RULES)
    check_record(file, facts["about"], ABOUT_RULES)
    return facts


def _fingerprint(data: DataSet) -> str:
    """A digest of the training rows by which the net is standardised, and of as many test rows."""
    return f"{_part_fingerprint(data.train)} {_part_fingerprint(data.test)}"


def _part_fingerprint(part: Part) -> str:
    return " ".join(digest(np.asarray(a[evenly_spaced_rows(len(a))]))[:16] for a in part)


def _known(settings: Settings, place: RunFolder, resume: bool) -> bool:
    """Whether the folder holds this run already; an error if it holds another, or if this one is not to be resumed."""
    out = place.path
    if not (out / "run.json").exists():
        if place.steps():
            raise ValueError(
                f"{out} holds checkpoints, but no run.json with their settings: restore it, or choose another folder."
            )
        return False
    if not resume:
        raise ValueError(f"{out} holds a run already: add --resume to go on with it, or choose another folder.")
    check_same_settings(out, _read(out), settings._asdict(), "use the same, or choose another folder")
    return True
