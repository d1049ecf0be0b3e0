"""A run: its nets, made from the settings, and where their training is kept.

A run that is given more epochs after its end is trained again from where it was, as a second stage, in a folder of its
own; a third one goes on from the second.
"""

from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax

from sdebnn.contract import AbstractModel
from sdebnn.likelihoods import AbstractLikelihood
from sdebnn.models import SDEBNN, Ensemble
from sdebnn.presets import About, Preset, preset
from sdebnn.runs.settings import Settings, read_about, read_settings, read_stages
from sdebnn.train import member_folder, member_key, saved_answer, saved_best, saved_steps

Trained = tuple[AbstractModel, AbstractLikelihood]


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
    def trained_apart(self) -> tuple[AbstractModel, ...]:
        """The models that are trained one after the other: the nets, or all of them as one model."""
        return self.nets if self.in_turn else (self.model,)

    def key(self, stage: int = 0) -> jax.Array:
        """The key of the training of a stage. The key of the net's initial weights is another one."""
        key = jax.random.fold_in(jax.random.key(self.settings.seed), 1)
        return key if stage == 0 else jax.random.fold_in(key, stage)

    def folders(self, out: Path, stage: int = 0) -> list[Path]:
        """The folders with the checkpoints of a stage, one for each model that is trained apart."""
        return [member_folder(stage_folder(out, stage), number) for number in range(len(self.trained_apart))]


def stage_folder(out: Path, stage: int) -> Path:
    """The folder of a stage of a run."""
    return out if stage == 0 else out / f"more-{stage}"


def make(settings: Settings, about: About) -> Run:
    """The untrained nets of a run."""
    row = preset(settings.preset, about, infer_w0=settings.infer_w0)
    key = jax.random.fold_in(jax.random.key(settings.seed), 0)
    members = row.members if settings.members is None else settings.members
    return Run(settings, about, row, tuple(row.net(member_key(key, number)) for number in range(members)))


def trained(run: Run, out: Path, stages: int, *, best: bool = False) -> list[Trained]:
    """Each model that is trained apart, with its likelihood, as its last checkpoint in some stages left it.

    With ``best``, those with the best validation score of all stages. Models of which there is no checkpoint yet are
    left out.
    """
    found = []
    for number, model in enumerate(run.trained_apart):
        folders = [run.folders(out, stage)[number] for stage in range(stages)]
        kept = [folder for folder in folders if saved_steps(folder)]
        if not kept and number:
            break
        parameters, rest = eqx.partition((model, run.preset.likelihood), eqx.is_inexact_array)
        folder = kept[-1] if kept else folders[0]
        if best:
            folder = min(kept, key=saved_best, default=folder)
        found.append(eqx.combine(saved_answer(folder, parameters, best=best), rest))
    return found


def open_run(out: Path, *, best: bool = False) -> tuple[Run, AbstractModel, AbstractLikelihood]:
    """A run that was trained, at least in part, with the model and the likelihood of its last checkpoint.

    The data are not read. With ``best``, they are those with the best validation score so far. Members of which there
    is no checkpoint yet are left out.
    """
    run = make(read_settings(out), read_about(out))
    models, likelihoods = zip(*trained(run, out, len(read_stages(out)), best=best), strict=True)
    return run, models[0] if len(models) == 1 else Ensemble(models), likelihoods[0]
