"""Fit any model of the contract: the loop around the compiled steps, which loses nothing.

Training is a function of the key, the data and the settings. A run that is stopped, or killed, goes on from its last
checkpoint to the same parameters, bit for bit, as one that never was.
"""

import contextlib
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, get_args

import equinox as eqx
import jax
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray

from sdebnn.checks import check_callable, check_choice, check_count, check_key, check_positive, plain_number, shown
from sdebnn.contract import check_conditioning, conditioned
from sdebnn.fingerprints import described
from sdebnn.likelihoods import Likelihood
from sdebnn.train.collapse import KL_WARMUP, infers_start, warn_if_collapsed
from sdebnn.train.folder import RunFolder
from sdebnn.train.loop import Job
from sdebnn.train.objective import as_data
from sdebnn.train.progress import Display
from sdebnn.train.running import Plan, Running, Watch
from sdebnn.train.source import source_of
from sdebnn.train.stacks import by_stacks

STEPS_A_CALL = 50  # of all examples each: enough to outlast the call's overhead, few enough that the bar moves
MOST_STEPS = 50_000_000  # of which the history is kept

Optimizer = optax.GradientTransformation | Callable[[int], optax.GradientTransformation]


class Fit(NamedTuple):
    """What ``fit`` returns: the trained pair, and its history by step (the terms of ``Elbo``; NaN where not run)."""

    model: Any
    likelihood: Any
    history: dict[str, np.ndarray]


def fit(
    model: Any,
    likelihood: Likelihood,
    x: Any,
    y: Any,
    *,
    key: PRNGKeyArray,
    epochs: int = 5000,
    batch_size: int | None = None,
    accumulate: int = 1,
    draws: int = 4,
    draws_at_once: int | None = None,
    kl_weight: float = 1.0,
    kl_warmup: float | None = None,
    learning_rate: float = 2e-2,
    optimizer: Optimizer | None = None,
    clip: float | None = None,
    ema: float | None = None,
    augment: Callable[..., Array] | None = None,
    roughness_weight: float = 0.0,
    validation: tuple[Any, Any] | None = None,
    validate_every: int | None = None,
    watch: Watch = "nll",
    patience: int | None = None,
    monitor: int | None = None,
    max_skipped: int = 10,
    memory_limit: int = 2**31,
    folder: str | Path | RunFolder | None = None,
    resume: bool = False,
    save_every: float = 60.0,
    keep: int = 2,
    tensorboard: bool = False,
    progress: bool = True,
) -> Fit:
    """Train the parameters of the model and of the likelihood on (x, y), examples first.

    **Batches.** ``batch_size=None`` takes all examples at every step. Otherwise each epoch shuffles them anew, and
    those that do not fill a last batch wait for another epoch. ``accumulate`` splits each batch into so many parts,
    computed in turn, each with draws of its own. ``augment(x, key=key)`` changes each batch, on the device. Data beyond
    ``memory_limit`` bytes, such as a memory map, are read as they are needed.

    **Objective.** ``draws`` of the weights a step, ``draws_at_once`` of them side by side (all, unless told; 1 suits
    convolutions). ``kl_weight`` 1 is the ELBO; it is reached from a thousandth over the first ``kl_warmup`` of the run:
    0.3 of it where w_0 is inferred, unless told, since a net charged in full from the start may learn nothing at all.
    ``roughness_weight`` times the roughness of the hidden units is added to the loss -ELBO / N: dynamics that few steps
    solve well, at some cost in fit.

    **Optimiser.** Adam with ``learning_rate`` decayed to zero along a cosine; or any of Optax, or a function that makes
    one from the number of steps. ``clip`` bounds the gradient's norm; ``ema`` averages the parameters, and the average
    is what is validated and returned.

    **Validation.** Every ``validate_every`` epochs. With ``patience``, training stops after so many validations in a
    row without a better ``watch``, and the best parameters are returned. ``monitor`` measures, every so many epochs,
    how noisy the gradient would be under each estimator of the KL, and says whether "stl" pays.

    **After the steps** a model that learns by more than them does so: HMC samples, a Laplace approximation takes the
    curvature, a temperature is chosen on ``validation``.

    **Nothing is lost.** A step whose numbers are not finite is skipped and counted; after ``max_skipped`` in a row
    training stops with a warning. What is returned was tried: if the ELBO of the last parameters is not finite, or has
    exploded, the last parameters with a good one are returned instead, with a warning. With a ``folder`` there are
    checkpoints, every ``save_every`` seconds and at the end, the last ``keep`` of them kept, beside the last good one,
    and ``metrics.jsonl``; Ctrl-C, SIGTERM and SIGHUP save first; ``resume=True`` goes on from the last one, to the same
    numbers as if nothing had happened. It refuses another model, likelihood, optimiser, setting or data set.
    """
    check_key(key)
    check_conditioning(model, likelihood, validation)
    epochs, batch_size, accumulate, draws, draws_at_once, validate_every, patience, monitor, max_skipped = map(
        plain_number,
        (epochs, batch_size, accumulate, draws, draws_at_once, validate_every, patience, monitor, max_skipped),
    )
    kl_weight, kl_warmup, learning_rate, clip, ema, roughness_weight, save_every, memory_limit, keep = map(
        plain_number, (kl_weight, kl_warmup, learning_rate, clip, ema, roughness_weight, save_every, memory_limit, keep)
    )
    for name, value in (("epochs", epochs), ("draws", draws), ("accumulate", accumulate), ("keep", keep)):
        check_count(name, value)
    for name, value in (("max_skipped", max_skipped), ("memory_limit", memory_limit)):
        check_count(name, value)
    for name, value in (
        ("batch_size", batch_size), ("draws_at_once", draws_at_once), ("validate_every", validate_every),
        ("patience", patience), ("monitor", monitor),
    ):  # fmt: skip
        if value is not None:
            check_count(name, value)
    check_positive("kl_weight", kl_weight, or_zero=True)
    if kl_warmup is None:
        kl_warmup = KL_WARMUP if infers_start(model) else 0.0
    check_positive("kl_warmup", kl_warmup, or_zero=True)
    check_positive("learning_rate", learning_rate)
    check_positive("roughness_weight", roughness_weight, or_zero=True)
    check_positive("save_every", save_every, or_zero=True)
    if kl_warmup > 1:
        raise ValueError(f"kl_warmup={kl_warmup} is a share of the run: pass a number from 0 to 1.")
    if clip is not None:
        check_positive("clip", clip)
    if ema is not None and not 0 < ema < 1:
        raise ValueError(f"ema={shown(ema)} must be between 0 and 1, such as 0.998; None keeps no average.")
    if augment is not None:
        check_callable("augment", augment, "sdebnn.data.augment's")
    check_choice("watch", watch, get_args(Watch))
    if patience is not None and validation is None:
        raise ValueError(f"patience={patience} watches the validation set: pass validation=(x, y).")
    if folder is None and (resume or tensorboard):
        raise ValueError("resume and tensorboard need a folder: pass folder='run'.")
    if roughness_weight and not hasattr(model, "solve"):
        raise ValueError(f"roughness_weight={roughness_weight}: {type(model).__name__} solves nothing; leave it at 0.")
    x, y = as_data(model, likelihood, x, y, key=key, limit=memory_limit)
    if validation is not None:
        validation = as_data(model, likelihood, *validation, key=key, limit=memory_limit)
    examples = x.shape[0]
    batch = examples if batch_size is None else min(batch_size, examples)
    if batch % accumulate:
        raise ValueError(f"accumulate={accumulate} does not divide the batch of {batch}: choose one that does.")

    steps_an_epoch = examples // batch
    total = epochs * steps_an_epoch
    if total > MOST_STEPS:
        raise ValueError(f"epochs={epochs} are {total} steps, more than {MOST_STEPS}: lower it, or raise batch_size.")
    optimizer = _optimizer(optimizer, learning_rate, total, clip)
    records = STEPS_A_CALL if batch == examples else steps_an_epoch
    job = Job(
        optimizer, examples, batch, accumulate, draws, draws_at_once, kl_weight, kl_warmup, roughness_weight, ema,
        augment, max_skipped, records,
    )  # fmt: skip
    settings = {
        "epochs": epochs, "batch_size": batch, "accumulate": accumulate, "draws": draws, "kl_weight": kl_weight,
        "kl_warmup": kl_warmup, "learning_rate": learning_rate, "clip": clip, "ema": ema,
        "roughness_weight": roughness_weight, "watch": watch, "patience": patience, "validate_every": validate_every,
        "examples": examples, "key": jax.random.key_data(key).tolist(),
    }  # fmt: skip
    parts = {"model": model, "likelihood": likelihood, "optimizer": optimizer, "augment": augment}
    configuration = {} if folder is None else {name: described(part) for name, part in parts.items()}
    plan = Plan(
        job, total, validate_every or math.ceil(records / steps_an_epoch), validation, watch, patience, monitor,
        save_every, settings, configuration,
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        place = None
        if folder is not None:
            place = folder
            if not isinstance(place, RunFolder):
                place = stack.enter_context(RunFolder(Path(place), keep=keep, tensorboard=tensorboard))
        display = stack.enter_context(Display(progress, total, kl_weight, kl_warmup, examples))
        parameters, rest = eqx.partition((model, likelihood), eqx.is_inexact_array)
        source = source_of(x, y, key, job, memory_limit)
        run = Running(plan, parameters, rest, key, source, place, display)
        if place is not None:
            run.go_on_from(place, resume, (x, y))
        model, likelihood = eqx.combine(run.train(), rest)
        if infers_start(model):
            warn_if_collapsed(likelihood, run.history, y)
        model = conditioned(
            model, likelihood, x, y, validation=validation, key=jax.random.fold_in(key, 0xC0D), say=display.say
        )
    return Fit(model, likelihood, run.history)


def _optimizer(given: Any, learning_rate: float, steps: int, clip: float | None) -> optax.GradientTransformation:
    if given is None:
        given = _adam(learning_rate, steps)
    elif not isinstance(given, optax.GradientTransformation) and callable(given):
        given = given(steps)
    if not isinstance(given, optax.GradientTransformation):
        raise ValueError(f"optimizer={shown(given)} is not one of Optax: pass one such as optax.adam(1e-3).")
    return given if clip is None else _clipped(given, clip)


# One object for the same numbers, so that a second fit finds the first one's program.
@functools.cache
def _adam(learning_rate: float, steps: int) -> optax.GradientTransformation:
    return by_stacks(lambda _: optax.adam(optax.cosine_decay_schedule(learning_rate, steps)))


@functools.cache
def _clipped(optimizer: optax.GradientTransformation, norm: float) -> optax.GradientTransformation:
    return optax.chain(by_stacks(lambda _: optax.clip_by_global_norm(norm)), optimizer)
