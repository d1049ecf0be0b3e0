"""``fit`` trains any model of the contract.

Training is a function of the key, the data and the settings. A run that is stopped or killed resumes from its last
checkpoint and reaches the same parameters, bit for bit, as an uninterrupted run.
"""

import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray

from sdebnn import hosts
from sdebnn.checks import check_count, check_instance, check_key, plain_number
from sdebnn.contract import AbstractModel, Data, as_data, check_likelihood, check_model, check_trainable
from sdebnn.data import Inputs, evenly_spaced_rows
from sdebnn.fingerprints import described, digest
from sdebnn.likelihoods import AbstractLikelihood
from sdebnn.meshes import training_mesh
from sdebnn.models import Ensemble, blocks
from sdebnn.train.batches import batch_source
from sdebnn.train.checkpoints import member_folder
from sdebnn.train.collapse import default_warmup, infers_start, warn_if_collapsed
from sdebnn.train.loop import Job
from sdebnn.train.optimizers import optimizer_of
from sdebnn.train.options import Batches, Checkpoints, Objective, Optimizer, Validation
from sdebnn.train.progress import Display, say
from sdebnn.train.running import RunSpec, TrainingRun

# Steps in one call if each takes all examples: enough to outweigh the overhead of a call, and the bar still moves.
STEPS_A_CALL = 50
COMPARED_ROWS = 16  # of the data of several processes
MAX_HISTORY_STEPS = 50_000_000  # the history of all steps is kept in memory


class Fit(NamedTuple):
    """The result of ``fit``: the trained model, the trained likelihood, and the history of the training.

    ``history`` holds one array for each term of ``Elbo``, with a number for each step (NaN for steps not run). If a
    list of models was trained, its arrays have an axis of members in front.

        fitted = fit(model, likelihood, x, y, key=key, epochs=20)
        model, likelihood, history = fitted
        last_elbo = history["elbo"][-1]
    """

    model: AbstractModel
    likelihood: AbstractLikelihood
    history: dict[str, np.ndarray]


def fit(
    model: AbstractModel | Sequence[AbstractModel],
    likelihood: AbstractLikelihood,
    x: Inputs,
    y: Inputs,
    *,
    key: PRNGKeyArray,
    epochs: int = 300,
    objective: Objective = Objective(),
    batches: Batches = Batches(),
    optimizer: Optimizer = Optimizer(),
    validation: Validation | None = None,
    checkpoints: Checkpoints | None = None,
    mesh: Mesh | None = None,
    progress: bool = True,
) -> Fit:
    """Train the parameters of the model and of the likelihood on (x, y), examples first.

        fitted = fit(model, Gaussian(0.1, learn=True), x, y, key=key, epochs=20)
        fitted = fit(
            net, Categorical(), images, labels, key=key, epochs=2, batches=Batches(4)
        )
        nets = [SDEBNN.paper_mlp(1, 1, widths=(4,), key=each) for each in keys[:2]]
        fitted = fit(nets, Gaussian(0.1), x, y, key=key, epochs=2)

    ``x`` and ``y`` are arrays, and ``x`` may also be a memory map. Targets are numbers, "example target", or class
    numbers, "example". The ``key`` determines all that is random. An epoch is one pass over the examples: one step,
    unless ``batches`` says otherwise. The result is a ``Fit``: the trained model and likelihood, and the history.

    ``objective`` says how the ELBO is estimated and weighted, ``batches`` how the examples are divided into steps,
    ``optimizer`` how the parameters move. With ``validation``, held-out examples are scored on the way, and training
    can stop early. With ``checkpoints``, a run that is stopped or killed resumes as if nothing had happened. Each of
    these classes documents its options. The devices of a ``mesh`` share each step; by default they are as many as can
    share it equally. ``progress`` shows a progress bar.

    A list of models of one kind is trained one after the other, each with keys of its own, and becomes an ``Ensemble``:
    a mixture of their posteriors, with the mean of their bounds as its bound.

    300 steps on all examples suit ``SDEBNN.mlp``, whose training starts near its posterior; other nets need more.

    After the steps, some models learn in another way: HMC draws its samples, a Laplace approximation computes the
    curvature, a temperature is chosen on ``validation``.

    If the ELBO of the last parameters is not finite or has exploded, the last parameters with a good ELBO are returned
    instead, with a warning.
    """
    check_key(key)
    epochs = plain_number(epochs)
    check_count("epochs", epochs)
    _check_options(objective, batches, optimizer, validation, checkpoints)
    if isinstance(model, Sequence):
        options = {
            "epochs": epochs, "objective": objective, "batches": batches, "optimizer": optimizer,
            "validation": validation, "mesh": mesh, "progress": progress,
        }  # fmt: skip
        return _fit_in_turn(Ensemble(model), likelihood, (x, y), key, checkpoints, options)
    model = check_model(model)
    check_trainable(model, check_likelihood(likelihood), has_validation=validation is not None)
    if objective.roughness_weight and not model.has_dynamics:
        raise ValueError(
            f"roughness_weight={objective.roughness_weight}: {type(model).__name__} has no dynamics to make smooth; "
            "leave it at 0."
        )
    limit = batches.memory_limit
    data = as_data(model, likelihood, x, y, key=key, limit=limit)
    model = model.before_training(likelihood, data)
    held_out = None
    if validation is not None:
        held_out = as_data(model, likelihood, validation.x, validation.y, key=key, limit=limit)
    spec = _run_spec(
        model, likelihood, data, held_out, epochs, objective, batches, optimizer, validation, checkpoints, mesh, key
    )
    job = spec.job
    with contextlib.ExitStack() as stack:
        stack.enter_context(hosts.lost_process_errors())
        if hosts.count() > 1:
            _check_same(spec, model, likelihood, data, held_out, checkpoints is not None)
        folder = None if checkpoints is None else stack.enter_context(checkpoints.opened())
        progress = progress and hosts.is_first()
        display = stack.enter_context(Display(progress, spec.total, job.kl_weight, job.kl_warmup, job.examples))
        if job.mesh is not None:
            data_devices, draw_devices = job.mesh.devices.shape
            display.say(
                f"{job.mesh.size} devices of {hosts.count()} processes: {data_devices} share the examples, "
                f"{draw_devices} the draws"
            )
        parameters, rest = eqx.partition((model, likelihood), eqx.is_inexact_array)
        source = batch_source(
            *data, key, batch_size=job.batch_size, steps_a_call=job.steps_a_call, memory_limit=limit, mesh=job.mesh
        )
        stack.callback(source.close)
        run = TrainingRun(spec, parameters, rest, key, source, folder, display)
        run.resume_if_saved(checkpoints is not None and checkpoints.resume, data)
        trained: AbstractModel
        trained, likelihood = eqx.combine(run.train(), rest)
        if infers_start(trained):
            warn_if_collapsed(likelihood, run.history, data[1])
        learned = trained.after_training(
            likelihood, data, validation=held_out, key=jax.random.fold_in(key, 0xC0D), say=display.say
        )
    return Fit(learned, likelihood, run.history)


def _fit_in_turn(
    models: Ensemble,
    likelihood: AbstractLikelihood,
    data: tuple[Any, Any],
    key: PRNGKeyArray,
    checkpoints: Checkpoints | None,
    options: dict[str, Any],
) -> Fit:
    """Train the members one after the other. The checkpoints of the first are in the folder, the others' inside it."""
    if jax.tree.leaves(eqx.filter(check_likelihood(likelihood), eqx.is_inexact_array)):
        raise ValueError(
            f"{type(likelihood).__name__} has parameters, and each model of a list would learn its own: train them "
            "together, as Ensemble(models)."
        )
    if models.member(0).learns_after_training:
        raise ValueError(
            f"{type(models.member(0)).__name__} learns from the data after its steps, and cannot do so in a mixture: "
            "fit the models one by one."
        )
    fitted: list[Fit] = []
    for number in range(models.size):
        own = checkpoints
        if checkpoints is not None and number:
            own = replace(checkpoints, folder=member_folder(checkpoints.path, number))
        say(f"Member {number + 1} of {models.size}", show=options["progress"] and hosts.is_first())
        fitted.append(
            fit(models.member(number), likelihood, *data, key=member_key(key, number), checkpoints=own, **options)
        )
    history = {name: np.stack([each.history[name] for each in fitted]) for name in fitted[0].history}
    return Fit(Ensemble([each.model for each in fitted]), fitted[0].likelihood, history)


def _check_same(
    spec: RunSpec, model: AbstractModel, likelihood: AbstractLikelihood, data: Data, held_out: Data | None, saves: bool
) -> None:
    """Refuse to train if the processes of a run do not all train the same. Of the data, some rows are compared."""

    def rows(part: Data | None) -> str:
        if part is None:
            return ""
        some = evenly_spaced_rows(part[0].shape[0], COMPARED_ROWS)
        return f"{part[0].shape} {digest(np.asarray(part[0][some]))} {digest(np.asarray(part[1]))}"

    job = spec.job
    mesh = None if job.mesh is None else (job.mesh.shape, [device.id for device in job.mesh.devices.flat])
    parameters = jax.tree.leaves(eqx.filter((model, likelihood), eqx.is_inexact_array))
    hosts.check_same(
        {
            "settings": json.dumps([spec.settings, job.draws_at_once, spec.monitor, saves], default=str),
            "model": str(described(model)), "likelihood": str(described(likelihood)),
            "optimizer": str(described(job.optimizer)), "augmentation": str(described(job.augment)),
            "initial parameters": str([digest(np.asarray(leaf)) for leaf in parameters]), "data": rows(data),
            "validation data": rows(held_out), "mesh": str(mesh),
        }
    )  # fmt: skip


def member_key(key: PRNGKeyArray, number: int) -> PRNGKeyArray:
    """The key of one member of several: for the first the key itself, so that it is trained as if it were alone."""
    return jax.random.fold_in(key, number) if number else key


def _check_options(*options: object) -> None:
    """Refuse an option of the wrong class, such as a number where ``Batches`` is needed."""
    names = ("objective", "batches", "optimizer", "validation", "checkpoints")
    kinds = (Objective, Batches, Optimizer, Validation, Checkpoints)
    examples = ("Objective(draws=2)", "Batches(128)", "Optimizer(1e-3)", "Validation(x, y)", "Checkpoints('run')")
    for name, kind, example, given in zip(names, kinds, examples, options, strict=True):
        if given is not None or kind in (Objective, Batches, Optimizer):
            check_instance(name, given, kind, f"{kind.__name__}(...)", example)


def _run_spec(
    model: AbstractModel,
    likelihood: AbstractLikelihood,
    data: Data,
    held_out: Data | None,
    epochs: int,
    objective: Objective,
    batches: Batches,
    optimizer: Optimizer,
    validation: Validation | None,
    checkpoints: Checkpoints | None,
    mesh: Mesh | None,
    key: PRNGKeyArray,
) -> RunSpec:
    """The run that the options describe, for these data."""
    examples = data[0].shape[0]
    size = batches.size_for(examples)
    steps_an_epoch = examples // size
    total = epochs * steps_an_epoch
    if total > MAX_HISTORY_STEPS:
        raise ValueError(
            f"epochs={epochs} are {total} steps, more than {MAX_HISTORY_STEPS}: lower epochs, or raise the batch size."
        )
    kl_warmup = objective.kl_warmup
    if kl_warmup is None:
        kl_warmup = default_warmup(model)
    rule = optimizer_of(optimizer.rule, optimizer.learning_rate, total, optimizer.clip)
    # A model may take more draws than were asked for, so that each of its members has equally many.
    draws = jax.eval_shape(lambda key: model.for_training().draw_keys(key, objective.draws), key).size
    steps_a_call = STEPS_A_CALL if size == examples else steps_an_epoch
    job = Job(
        rule, examples, size, batches.accumulate, objective.draws, objective.draws_at_once, objective.kl_weight,
        kl_warmup, objective.roughness_weight, optimizer.ema, batches.augment, optimizer.max_skipped, steps_a_call,
        training_mesh(
            mesh, (model, likelihood, data), size // batches.accumulate, draws,
            can_share=all(block.solver.trains_on_meshes for block in blocks(model)),
        ),
    )  # fmt: skip
    every, watch, patience, at_start = None, "nll", None, False
    if validation is not None:
        every, watch, patience = validation.every, validation.watch, validation.patience
        at_start = validation.at_start
    settings = {
        "epochs": epochs, "batch_size": size, "accumulate": batches.accumulate, "draws": objective.draws,
        "kl_weight": objective.kl_weight, "kl_warmup": kl_warmup, "learning_rate": optimizer.learning_rate,
        "clip": optimizer.clip, "ema": optimizer.ema, "roughness_weight": objective.roughness_weight, "watch": watch,
        "patience": patience, "validate_every": every, "examples": examples,
        "key": jax.random.key_data(key).tolist(),
    }  # fmt: skip
    parts = {"model": model, "likelihood": likelihood, "optimizer": rule, "augment": batches.augment}
    configuration = {} if checkpoints is None else {name: described(part) for name, part in parts.items()}
    return RunSpec(
        job, total, every or math.ceil(steps_a_call / steps_an_epoch), held_out, watch, patience, at_start,
        objective.monitor_every, 0.0 if checkpoints is None else checkpoints.every, settings, configuration,
        None if validation is None else validation.should_stop,
    )  # fmt: skip
