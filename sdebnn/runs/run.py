"""A run: its nets, and where their training is kept.

The nets of a new run are made from its preset. ``run.json`` keeps an outline of them, and of how they are trained, from
which the run is opened, so that it does not depend on the presets of the version that opens it.

A run that is given more epochs after its end is trained again from where it was, as a second stage, in a folder of its
own; a third one goes on from the second.
"""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from sdebnn.artifacts.encoding import first_line
from sdebnn.artifacts.models import output_shape
from sdebnn.artifacts.outlines import from_outline, outline
from sdebnn.contract import AbstractModel, check_model
from sdebnn.devices import platform
from sdebnn.likelihoods import AbstractLikelihood
from sdebnn.models import Ensemble
from sdebnn.presets import About, preset
from sdebnn.records import YES_OR_NO, Rule, broken, whole
from sdebnn.runs.changing import changed
from sdebnn.runs.settings import Settings, about_of, read_run, settings_of
from sdebnn.train import Recipe, member_folder, member_key, saved_answer, saved_best, saved_steps

Trained = tuple[AbstractModel, AbstractLikelihood]
MAX_MEMBERS = 10_000
OUTLINED = {
    "likelihood": Rule("a likelihood", lambda value: isinstance(value, AbstractLikelihood)),
    "training": Rule("a recipe", lambda value: isinstance(value, Recipe)),
    "draws_at_once": whole(1),
    "members": whole(1, MAX_MEMBERS),
    "in_turn": YES_OR_NO,
}


class Run(NamedTuple):
    """The untrained nets of a run, one for each member, with what is needed to train them and to predict.

    The arrays of nets that were opened from their outline are ``jax.ShapeDtypeStruct``.
    """

    settings: Settings
    about: About
    nets: tuple[AbstractModel, ...]
    likelihood: AbstractLikelihood
    training: Recipe
    draws_at_once: int  # in prediction
    in_turn: bool  # whether there are several nets, and they are trained one after the other

    @property
    def is_outlined(self) -> bool:
        """Whether the nets lack the values of their arrays."""
        return any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(self.nets[0]))

    @property
    def model(self) -> AbstractModel:
        """The net, or a mixture of the nets."""
        if len(self.nets) == 1:
            return self.nets[0]
        return eqx.filter_eval_shape(Ensemble, self.nets) if self.is_outlined else Ensemble(self.nets)

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
    """The untrained nets of a new run."""
    row = changed(preset(settings.preset, about, infer_w0=settings.infer_w0, mixing=settings.mixing), settings)
    key = jax.random.fold_in(jax.random.key(settings.seed), 0)
    members = row.members if settings.members is None else settings.members
    nets = tuple(row.net(member_key(key, number)) for number in range(members))
    return Run(settings, about, nets, row.likelihood, row.training, row.draws_at_once, members > 1 and row.in_turn)


def outline_of(run: Run) -> dict[str, Any]:
    """The nets of a run and how they are trained, as JSON. All members have the same outline."""
    # The limit is given anew to each training.
    batches = dataclasses.replace(run.training.batches, memory_limit=1)
    return outline({
        "net": run.nets[0], "likelihood": run.likelihood, "training": run.training._replace(batches=batches),
        "draws_at_once": run.draws_at_once, "members": len(run.nets), "in_turn": run.in_turn,
    })  # fmt: skip


def outlined_run(out: Path) -> Run:
    """The run in a folder, its nets without values. Those of a run that keeps no outline are made from the preset."""
    facts = read_run(out)
    settings, about = settings_of(facts), about_of(out, facts)
    if facts.get("net") is None:  # the run was made before outlines were kept
        return make(settings, about)
    try:
        found = from_outline(_computed_here(facts["net"]))
        if not isinstance(found, dict) or set(found) != {"net", *OUTLINED}:
            raise ValueError("is no outline of a run")
        check_model(found["net"])
        for name, rule in OUTLINED.items():
            if not rule.holds(found[name]):
                raise ValueError(f"has no {rule.words} as {name}")
        _check_recipe(found["training"])
    except ValueError as error:
        raise broken(out / "run.json", f"has in net an outline that {str(error).rstrip('.')}") from None
    nets = (found.pop("net"),) * found.pop("members")
    return Run(settings, about, nets, **found)


def _computed_here(words: Any) -> Any:
    """An outline, computing in float32 instead of bfloat16 on a CPU, where bfloat16 is slower."""
    if isinstance(words, list):
        return [_computed_here(part) for part in words]
    if not isinstance(words, dict):
        return words
    found = {name: _computed_here(part) for name, part in words.items()}
    return {**found, "compute": "float32"} if (found.get("compute"), platform()) == ("bfloat16", "cpu") else found


def _check_recipe(recipe: Recipe) -> None:
    """Refuse options that ``fit`` would refuse: objects that are made from files do not check themselves."""
    for options in (recipe.objective, recipe.batches, recipe.optimizer):
        dataclasses.replace(options)


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
        parameters, rest = eqx.partition((model, run.likelihood), _is_parameter)
        folder = kept[-1] if kept else folders[0]
        if best:
            folder = min(kept, key=saved_best, default=folder)
        found.append(eqx.combine(saved_answer(folder, parameters, best=best), rest))
    return found


def _is_parameter(leaf: Any) -> bool:
    """Whether a leaf is an array of real or complex numbers, with values or without."""
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct) and jnp.issubdtype(leaf.dtype, jnp.inexact)


def open_run(out: Path, *, best: bool = False) -> tuple[Run, AbstractModel, AbstractLikelihood]:
    """A run that was trained, at least in part, with the model and the likelihood of its last checkpoint.

    The data are not read. With ``best``, they are those with the best validation score so far. Members of which there
    is no checkpoint yet are left out.
    """
    run = outlined_run(out)
    models, likelihoods = zip(*trained(run, out, len(read_run(out)["stages"]), best=best), strict=True)
    model = models[0] if len(models) == 1 else Ensemble(models)
    if run.is_outlined:
        _check_outputs(out, run.about, model)
    return run, model, likelihoods[0]


def _check_outputs(out: Path, about: About, model: AbstractModel) -> None:
    """Refuse a net that does not map the examples of a run to as many outputs as it has classes or targets."""
    row = jax.ShapeDtypeStruct((1, *about.shape), jnp.uint8 if about.are_images else jnp.float32)
    wanted = (1, len(about.target_center) if about.classes is None else len(about.classes))
    try:
        found = output_shape(model, row).shape
    except Exception as error:  # whatever a net of wrong sizes may raise
        raise broken(out / "run.json", f"outlines a net that refuses its inputs ({first_line(error)})") from None
    if found != wanted:
        raise broken(out / "run.json", f"outlines a net with outputs of shape {found}, not {wanted}")
