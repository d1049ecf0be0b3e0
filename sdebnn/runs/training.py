"""Training a run of the command line in its folder, and scoring it.

RUN/run.json            the settings, what the net needs to know about the data, and an outline of the net
RUN/inputs.safetensors, RUN/states.safetensors      how far other examples are from those of training (``unlike.py``)
RUN/metrics.jsonl       the training log             RUN/checkpoints/       the state of training
RUN/member-1/ ...       the same of the other members of a mixture
RUN/more-1/ ...         the same of a training that went on after the end of the first
RUN/result.json         the scores of the trained model on the test part, and its bound on the training part
RUN/outcomes.safetensors, RUN/examples.safetensors     its forecasts of the test part, beside what came true
"""

import json
import platform
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from sdebnn import __version__, hosts
from sdebnn.checks import check_count
from sdebnn.contract import AbstractModel, parameter_count
from sdebnn.data import DataSet, Distance, Inputs, Part, check_part, evenly_spaced_rows, features, find, held_out, load
from sdebnn.files import write_whole
from sdebnn.fingerprints import digest
from sdebnn.likelihoods import AbstractLikelihood
from sdebnn.meshes import make_mesh
from sdebnn.models import blocks
from sdebnn.outcomes import Outcomes, outcomes_of, save_examples, save_outcomes, telling_rows
from sdebnn.prediction import Evaluation, evaluate, evaluation
from sdebnn.presets import About
from sdebnn.records import check_same_settings, read_result
from sdebnn.runs.run import Run, make, outline_of, outlined_run, stage_folder, trained
from sdebnn.runs.settings import MAX_STAGES, Settings, read_run, run_bytes
from sdebnn.runs.unlike import INPUTS_FILE, STATES_FILE, Unlike, inputs_bytes, read_unlike, states_bytes
from sdebnn.strangeness import StateDistance
from sdebnn.train import Batches, Checkpoints, Fit, RunFolder, ShouldStop, Validation, fit, saved_seconds, saved_steps

DRAWS = 16  # of each member, to score it
BOUND_DRAWS, BOUND_ROWS = 2, 50_000  # of each member, and of the training part, for the bound
SHORT_EPOCHS = 1000  # in which ``fit``, which validates every 50 epochs if a batch is all examples, does so too rarely
COMPARED_ROWS = 5000  # of the training part, from which distances are measured


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
    mesh: Mesh | None = None,
    progress: bool = True,
    should_stop: ShouldStop | None = None,
) -> dict[str, Any]:
    """Train a run in a folder, or resume it, and score the trained model on the test part.

    A run that is done, resumed with more epochs, goes on from its end: for the epochs that are new, with a schedule of
    their own. ``should_stop(epoch, scores)`` is called after each validation, and may end the training.
    """
    if draws is not None:
        check_count("draws", draws)
    settings.check()
    with ExitStack() as stack:
        # Locks the folder before anything in it is read.
        place = stack.enter_context(RunFolder(out, tensorboard=tensorboard))
        before = hosts.from_first(lambda: _known(settings, place, resume))
        data = load(settings.data, seed=settings.seed, test=settings.test, size=settings.size)
        run = make(settings, About.of(data))
        if before is not None:
            remedy = "the data have changed; restore them, or train another run"
            check_same_settings(out, before, {"fingerprint": _fingerprint(data)}, remedy)
            run = _as_it_was(run, out, before)
            place.remember("run.json")
            if (out / INPUTS_FILE).is_file():
                place.remember(INPUTS_FILE)
        # Before hours of training, and before rows are held out, which would change the row numbers in errors.
        check_part("the training part", data.train, memory_limit)
        check_part("the test part", data.test)
        part, validation = data.train, None
        if settings.validation:
            part, rest = held_out(part, settings.validation, seed=settings.seed, name="validation")
            validation = Validation(rest.x, rest.y, patience=settings.patience, should_stop=should_stop)
        elif settings.patience is not None:
            raise ValueError(f"patience={settings.patience} needs a validation set: pass a validation share above 0.")
        stages = _stages(before, settings.epochs, run.training.epochs)
        if before is None or stages != tuple(read_run(out)["stages"]):
            net = outline_of(run) if before is None else before.get("net")
            facts = {"fingerprint": _fingerprint(data), "about": run.about._asdict(), "net": net}
            place.write("run.json", run_bytes(settings, stages, facts))
        if before is None or not (out / INPUTS_FILE).exists():
            rows = evenly_spaced_rows(len(part.x), COMPARED_ROWS)
            found = features(np.asarray(part.x[rows]))
            found = found[np.isfinite(found).all(1)]  # of data that are streamed, rows are refused when they are read
            found = found if len(found) else np.zeros((1, found.shape[1]))
            place.write(INPUTS_FILE, inputs_bytes(Distance.of(found)))
        stage = len(stages) - 1
        models, likelihood = list(run.trained_apart), run.likelihood
        recipe = run.training.changed(epochs=stages[stage], kl_weight=settings.kl_weight)
        objective = replace(recipe.objective, monitor_every=monitor)
        whole = place
        if stage or run.is_outlined:
            models, likelihood = _kept(run, out, max(1, stage))
        if stage:
            objective = replace(objective, kl_warmup=0.0)
            validation = None if validation is None else replace(validation, at_start=True)
            place = stack.enter_context(RunFolder(stage_folder(out, stage), tensorboard=tensorboard))
        batches = replace(_fitting(recipe.batches, len(part.x)), memory_limit=memory_limit)
        if validation is not None and batches.size == len(part.x):
            validation = replace(validation, every=_validated_every(recipe.epochs))
        fitted = fit(
            models if run.in_turn else models[0], likelihood, part.x, part.y,
            key=run.key(stage), validation=validation, progress=progress,
            checkpoints=Checkpoints(place, resume, save_every, tensorboard=tensorboard), mesh=mesh,
            **recipe._replace(objective=objective, batches=batches).options(),
        )  # fmt: skip
        draws = draws_of(run, draws)
        whole.hold()  # the folder may have been deleted meanwhile
        place.hold()
        folders = [folder for number in range(len(stages)) for folder in run.folders(out, number)]
        everywhere = make_mesh() if mesh is None and hosts.count() > 1 else mesh
        found = score(run, data.test, fitted.model, fitted.likelihood, draws, mesh=everywhere)
        bound = _bound(run, fitted.model, fitted.likelihood, part, everywhere)
        if not hosts.is_first():
            hosts.wait_for_all("scored")
            return {}
        result = {
            **found.scores,
            "elbo": bound,
            "settings": {**settings._asdict(), "epochs": sum(stages)},
            "draws": draws,
            "members": len(run.nets),
            "examples": len(part.x),
            "epochs": sum(stages),
            "parameters": parameter_count(fitted.model),
            "random_weights": sum(block.weights.size for net in run.nets for block in blocks(net)),
            "fit_seconds": round(sum(saved_seconds(folder) for folder in folders if saved_steps(folder)), 2),
            "device": jax.devices()[0].device_kind,
            "versions": {"sdebnn": __version__, "jax": jax.__version__, "python": platform.python_version()},
        }
        whole.hold()  # scoring may take long, and the folder may have been deleted meanwhile
        if run.about.are_images and fitted.model.has_states:
            states = _state_distance(fitted.model, part, None if validation is None else validation.x, settings.seed)
            whole.write(STATES_FILE, states_bytes(states, sum(stages)))
            result["unlike_by"] = "states"
        judged = outcomes(run, fitted, found, data.test, read_unlike(out, run.about, sum(stages)))
        save_outcomes(out, judged)
        if run.about.are_images or run.about.shape == (1,):
            rows = telling_rows(judged)
            save_examples(out, np.asarray(data.test.x[rows]), rows)
        write_whole(out / "result.json", (json.dumps(result, indent=1) + "\n").encode())
        hosts.wait_for_all("scored")
    return result


def _as_it_was(run: Run, out: Path, before: dict[str, Any]) -> Run:
    """The run in a folder: the one made anew, if its nets and their training are as they were, else its outline."""
    is_same = before.get("net") is None or before["net"] == outline_of(run)
    return run if is_same else outlined_run(out)._replace(settings=run.settings)


def _kept(run: Run, out: Path, stages: int) -> tuple[list[AbstractModel], AbstractLikelihood]:
    """The models that are trained apart, as their last checkpoints in some stages left them, and their likelihood."""
    begun = [
        any(saved_steps(run.folders(out, stage)[i]) for stage in range(stages)) for i in range(len(run.trained_apart))
    ]
    if not all(begun):
        changed = f" The preset {run.settings.preset!r} of this version is another." if run.is_outlined else ""
        raise ValueError(
            f"{out} lacks checkpoints of member {begun.index(False)}: restore them, or train another run.{changed}"
        )
    found = trained(run, out, stages)
    return [model for model, _ in found], found[0][1]


def draws_of(run: Run, draws: int | None = None) -> int:
    """The draws to average over: 16 of each member unless told, and equally many of each."""
    wanted, members = DRAWS * len(run.nets) if draws is None else draws, len(run.nets)
    return -(-wanted // members) * members


def _stages(before: dict[str, Any] | None, wanted: int | None, usual: int) -> tuple[int, ...]:
    """The epochs of each stage of a run, the last of which is to be trained."""
    if before is None:
        return (usual if wanted is None else wanted,)
    done = tuple(before["stages"])
    if wanted is None or wanted == sum(done):
        return done
    if len(done) == MAX_STAGES:
        raise ValueError(f"the run went on {MAX_STAGES - 1} times already, which is the most: train another run.")
    return (*done, wanted - sum(done))


def _validated_every(epochs: int) -> int | None:
    """Epochs between validations if a batch is all examples: some of them in a short run, else as ``fit`` has it."""
    return max(1, epochs // 20) if epochs < SHORT_EPOCHS else None


def _fitting(batches: Batches, examples: int) -> Batches:
    """The batches of a preset, made smaller if the data set has fewer examples than one batch."""
    accumulate = min(batches.accumulate, examples)
    size = min(batches.size or examples, examples) // accumulate * accumulate
    return replace(batches, size=size, accumulate=accumulate)


def _bound(run: Run, model: AbstractModel, likelihood: AbstractLikelihood, part: Part, mesh: Mesh | None) -> float:
    """The ELBO on the training part in nats, from some of its rows. That of a mixture is the mean over its members."""
    rows = evenly_spaced_rows(len(part.x), BOUND_ROWS)
    scores = evaluate(
        model, likelihood, part.x[rows], part.y[rows], draws=BOUND_DRAWS * len(run.nets),
        key=jax.random.fold_in(jax.random.key(run.settings.seed), 3), draws_at_once=run.draws_at_once, mesh=mesh,
    )  # fmt: skip
    return len(part.x) * scores["log_likelihood"] - scores["kl"]


def score(
    run: Run,
    part: Part,
    model: AbstractModel,
    likelihood: AbstractLikelihood,
    draws: int | None,
    steps: int | None = None,
    mesh: Mesh | None = None,
) -> Evaluation:
    """The scores of a trained model on a part of the data. The draws depend only on the run's seed."""
    return evaluation(
        model, likelihood, *part, draws=draws_of(run, draws), key=score_key(run.settings.seed),
        draws_at_once=run.draws_at_once, steps=steps, mesh=mesh,
    )  # fmt: skip


def _state_distance(model: AbstractModel, part: Part, held_out: Inputs | None, seed: int) -> StateDistance:
    """How far hidden states are from those of some training examples."""
    rows = evenly_spaced_rows(len(part.x), COMPARED_ROWS)
    x, y = np.asarray(part.x[rows]), np.asarray(part.y[rows])
    others = None
    if held_out is not None:
        others = np.asarray(held_out[evenly_spaced_rows(held_out.shape[0], COMPARED_ROWS)])
    return StateDistance.of(model, x, y, held_out=others, key=jax.random.fold_in(jax.random.key(seed), 5))


def outcomes(run: Run, fitted: Fit, found: Evaluation, part: Part, distances: Unlike) -> Outcomes:
    """What was said about a part of the data, beside what came true."""
    key = jax.random.fold_in(jax.random.key(run.settings.seed), 4)
    made = outcomes_of(fitted.likelihood, found.samples, found.y, run.about.classes, key=key)
    return made._replace(unlike=distances.of(fitted.model, part.x))


def score_key(seed: int) -> jax.Array:
    """The key of the draws with which a run is scored."""
    return jax.random.fold_in(jax.random.key(seed), 2)


def known_scores(out: Path) -> dict[str, Any] | None:
    """The scores on the test part that a run keeps; None if it is not done, or another model than the last is asked."""
    result, stages = out / "result.json", read_run(out)["stages"]
    if not result.exists():
        return None
    found = read_result(result)
    if found.get("epochs") != sum(stages):
        return None
    others = ("fit_seconds", "elbo")
    return {name: value for name, value in found.items() if isinstance(value, float) and name not in others} | {
        "draws": found.get("draws")
    }


def scored_part(out: Path, settings: Settings) -> Part:
    """The test part of the data of a run, if it is still the one that the run was trained with."""
    if find(settings.data) is None and not Path(settings.data).exists():
        raise ValueError(f"{settings.data}, with which {out} was trained, is not there: pass other data by --data.")
    data = load(settings.data, seed=settings.seed, parts=("test",), test=settings.test, size=settings.size)
    now, before = _part_fingerprint(data.test), read_run(out)["fingerprint"].split()[2:]
    if now.split() != before:
        raise ValueError(f"the test part of {settings.data} has changed since {out} was trained: restore it.")
    return data.test


def _fingerprint(data: DataSet) -> str:
    """A digest of the training rows by which the net is standardised, and of as many test rows."""
    return f"{_part_fingerprint(data.train)} {_part_fingerprint(data.test)}"


def _part_fingerprint(part: Part) -> str:
    return " ".join(digest(np.asarray(a[evenly_spaced_rows(len(a))]))[:16] for a in part)


def _known(settings: Settings, place: RunFolder, resume: bool) -> dict[str, Any] | None:
    """The record of this run, if the folder holds it already.

    An error if it holds another, if this one is not to be resumed, or if it is not done and other epochs are wanted.
    """
    out = place.path
    if not (out / "run.json").exists():
        if place.steps():
            raise ValueError(
                f"{out} holds checkpoints, but no run.json with their settings: restore it, or choose another folder."
            )
        return None
    if not resume:
        raise ValueError(f"{out} holds a run already: add --resume to go on with it, or choose another folder.")
    before = read_run(out)
    last = stage_folder(out, len(before["stages"]) - 1)
    if last != out and not saved_steps(last):  # a stage that was asked for, and has not begun
        before["stages"].pop()
    epochs, result = sum(before["stages"]), out / "result.json"
    done = result.exists() and read_result(result).get("epochs", 0) >= epochs
    if settings.epochs is not None and settings.epochs < epochs and done:
        raise ValueError(
            f"epochs={settings.epochs} is less than the {epochs} that {out} was trained for: pass more, or choose "
            "another folder."
        )
    if settings.epochs is not None and settings.epochs != epochs and not done:
        began = f", or remove {last} to go on from where it began" if last != out else ""
        raise ValueError(
            f"{out} was made with epochs={epochs}, which are not done, and this run has {settings.epochs}: use the "
            f"same first{began}."
        )
    # The data are compared by their contents, for they may have been moved.
    wanted = {name: value for name, value in settings._asdict().items() if name not in ("epochs", "data")}
    check_same_settings(out, before, wanted, "use the same, or choose another folder")
    return before
