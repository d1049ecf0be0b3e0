"""Prediction with any ``AbstractModel``. The samples are one array, "draw example output".

p(y | x, D) = E_Q[ p(y | x, w) ],   estimated by the mean over draws of w
"""

import math
import warnings
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sdebnn import metrics
from sdebnn.checks import (
    as_inputs,
    check_array,
    check_count,
    check_key,
)
from sdebnn.contract import AbstractModel, as_data, check_likelihood, check_model, check_solution, draw_keys, solutions
from sdebnn.convolutions import Pixels
from sdebnn.data import Inputs, TrainingInputs, is_lazy
from sdebnn.integrate import Solution
from sdebnn.likelihoods import AbstractLikelihood
from sdebnn.meshes import on_mesh, prediction_mesh
from sdebnn.models import blocks, map_blocks, refined

DRAWS_AT_ONCE = 16  # enough to fill a processor, and few enough to bound memory

Samples = Float[Array, "draw example *output"]
T = TypeVar("T")


@overload
def predict(
    model: AbstractModel,
    x: Inputs,
    *,
    draws: int = 100,
    key: PRNGKeyArray,
    batch_size: int = 1000,
    draws_at_once: int = DRAWS_AT_ONCE,
    steps: int | None = None,
    rtol: float | None = None,
    mesh: Mesh | None = None,
    return_evaluations: Literal[False] = False,
) -> Samples: ...


@overload
def predict(
    model: AbstractModel,
    x: Inputs,
    *,
    draws: int = 100,
    key: PRNGKeyArray,
    batch_size: int = 1000,
    draws_at_once: int = DRAWS_AT_ONCE,
    steps: int | None = None,
    rtol: float | None = None,
    mesh: Mesh | None = None,
    return_evaluations: Literal[True],
) -> tuple[Samples, Int[Array, " draw"]]: ...


def predict(
    model: AbstractModel,
    x: Inputs,
    *,
    draws: int = 100,
    key: PRNGKeyArray,
    batch_size: int = 1000,
    draws_at_once: int = DRAWS_AT_ONCE,
    steps: int | None = None,
    rtol: float | None = None,
    mesh: Mesh | None = None,
    return_evaluations: bool = False,
) -> Samples | tuple[Samples, Int[Array, " draw"]]:
    """The outputs of ``draws`` functions from the posterior: ``samples[i]`` is one function, evaluated at every x.

        samples = predict(model, x, draws=4, key=key)
        mean, std = samples.mean(0), samples.std(0)

    They are one array, "draw example output", of the likelihood's parameters (means, logits): ``likelihood.center`` and
    ``likelihood.sample`` turn them into predictions of y. The ``key`` names the functions: the same key gives the same
    ones, and more ``draws`` keep the earlier ones. For an ``Ensemble``, ``draws`` is rounded up to a multiple of the
    number of members, so that all have the same weight.

    ``batch_size`` examples and ``draws_at_once`` draws (default: 16) are computed together; 1 draw at a time suits
    convolutions. ``steps`` or ``rtol`` solve the trained model at another resolution. Each key has the same Brownian
    paths at all resolutions, so that the samples converge as the solve is refined; with ``rtol``, samples depend on the
    other examples of their batch, within the tolerance. The devices of a ``mesh`` share examples and draws; by default
    they are all devices of this process. With ``return_evaluations``, the result is (samples, evaluations): how often
    each draw evaluated its field.
    """
    solutions = _solutions(_at_resolution(model, steps, rtol), x, draws, key, batch_size, draws_at_once, mesh)
    _warn_of_other_pixels(model, x)
    return (solutions.outputs, jnp.asarray(solutions.evaluations)) if return_evaluations else solutions.outputs


class UncertaintySources(NamedTuple):
    """Standard deviations of a prediction, by their source: ``weights``, observation ``noise`` and ``solver``.

    Each is an array "example target".
    """

    weights: Float[Array, "example target"]
    noise: Float[Array, "example target"]
    solver: Float[Array, "example target"]


def uncertainty_sources(
    model: AbstractModel,
    likelihood: AbstractLikelihood,
    x: Inputs,
    *,
    draws: int = 100,
    key: PRNGKeyArray,
    batch_size: int = 1000,
    draws_at_once: int = DRAWS_AT_ONCE,
    mesh: Mesh | None = None,
) -> UncertaintySources:
    """How much of a prediction's uncertainty comes from the weights, the observation noise, and the solver's error.

        sources = uncertainty_sources(model, likelihood, x, draws=4, key=key)
        most = sources.solver.max() / sources.weights.max()

    ``draws``, ``key``, ``batch_size``, ``draws_at_once`` and ``mesh`` are those of ``predict``. The result holds three
    standard deviations for each target of each example. ``solver`` is the difference between these draws and draws with
    twice the steps (or a tenth of the tolerance) under the same noise, extrapolated by the method's order; ``weights``
    is the spread of the finer draws. If ``solver`` is not small compared with ``weights``, take more steps, or use
    another method.
    """
    check_model(model)
    check_likelihood(likelihood)
    factor = max([block.solver.tighter()[1] for block in blocks(model)], default=1.0)
    fine = map_blocks(lambda block: block.with_solver(block.solver.tighter()[0]), model)
    here, there = (_solutions(law, x, draws, key, batch_size, draws_at_once, mesh).outputs for law in (model, fine))
    _warn_of_other_pixels(model, x)
    change = likelihood.center(here) - likelihood.center(there)
    return UncertaintySources(
        weights=jnp.std(likelihood.center(there), axis=0),
        noise=jnp.sqrt(jnp.mean(likelihood.variance(there), axis=0)),
        solver=factor * jnp.sqrt(jnp.mean(change**2, axis=0)),
    )


class ForecastScores(NamedTuple):
    """Scores of the averaged forecast: two in nats per example, and the accuracy, NaN if there are no classes.

    ``nll`` is -log of the mean over draws of p(y | x, w), and ``log_likelihood`` the mean of the log, as in the ELBO.
    """

    nll: float
    log_likelihood: float
    accuracy: float


def forecast_scores(
    likelihood: AbstractLikelihood,
    samples: Float[Array, "draw example output"],
    y: Array,
    weights: Float[Array, " example"] | None = None,
) -> ForecastScores:
    """The scores of samples on targets without weights, which are given apart; by default every row counts once."""
    log_probs = np.asarray(likelihood.log_prob(samples, y))
    correct = likelihood.is_correct(likelihood.center(samples).mean(0), y)
    return ForecastScores(
        nll=float(metrics.nll(log_probs, weights)),
        log_likelihood=float(np.average(log_probs.mean(0), weights=weights)),
        accuracy=math.nan if correct is None else float(np.average(np.asarray(correct), weights=weights)),
    )


def evaluate(
    model: AbstractModel,
    likelihood: AbstractLikelihood,
    x: object,
    y: object,
    *,
    draws: int = 100,
    key: PRNGKeyArray,
    batch_size: int = 1000,
    draws_at_once: int = DRAWS_AT_ONCE,
    steps: int | None = None,
    rtol: float | None = None,
    mesh: Mesh | None = None,
) -> dict[str, float]:
    """Scores of the averaged forecast on (x, y), by name.

        scores = evaluate(model, likelihood, x, y, draws=4, key=key)
        print(scores["nll"], scores["rmse"])

    - ``nll``: minus the log density of the targets under the averaged forecast, in nats an example.
    - ``log_likelihood``: the mean over draws of log p(y | x, w), in nats an example, the other term of the ELBO.
    - ``kl``: the KL of the posterior from the prior, in nats.
    - ``evaluations``: how often a draw evaluated its field.
    - For ``Categorical`` also ``accuracy``, ``ece`` and ``brier``, otherwise ``rmse`` and ``coverage_95``.

    The other arguments are those of ``predict``. Every row counts once, also under ``Weighted``. With one draw, the
    interval of ``coverage_95`` is that of the likelihood's noise around it.
    """
    return evaluation(
        model, likelihood, x, y, draws=draws, key=key, batch_size=batch_size, draws_at_once=draws_at_once, steps=steps,
        rtol=rtol, mesh=mesh,
    ).scores  # fmt: skip


class Evaluation(NamedTuple):
    """The scores of ``evaluate``, and the samples and targets that they are of."""

    scores: dict[str, float]
    samples: Samples
    y: Array


def evaluation(
    model: AbstractModel,
    likelihood: AbstractLikelihood,
    x: object,
    y: object,
    *,
    draws: int,
    key: PRNGKeyArray,
    batch_size: int = 1000,
    draws_at_once: int = DRAWS_AT_ONCE,
    steps: int | None = None,
    rtol: float | None = None,
    mesh: Mesh | None = None,
) -> Evaluation:
    """What ``evaluate`` computes, with the samples."""
    check_key(key)
    x, y = as_data(model, likelihood, x, y, key=key)
    draw_key, noise_key = jax.random.split(key)
    solutions = _solutions(_at_resolution(model, steps, rtol), x, draws, draw_key, batch_size, draws_at_once, mesh)
    _warn_of_other_pixels(model, x)
    samples = solutions.outputs
    likelihood, y, _ = likelihood.split_weights(y)
    forecast = forecast_scores(likelihood, samples, y)
    scores = {
        "nll": forecast.nll,
        "log_likelihood": forecast.log_likelihood,
        "kl": jnp.mean(solutions.kl),
        "evaluations": jnp.mean(jnp.asarray(solutions.evaluations)),
        **likelihood.scores(samples, y, key=noise_key),
    }
    return Evaluation({name: float(value) for name, value in scores.items()}, samples, jnp.asarray(y))


def _warn_of_other_pixels(model: AbstractModel, x: Inputs) -> None:
    """Warn if the first images for a net that begins with ``Pixels`` have another scale than its training data.

    Call this directly from a public function, so that the warning points at the user's line.
    """
    known = [node for node in jax.tree.leaves(model, is_leaf=_is_pixels) if _is_pixels(node)]
    if known and x.shape[1:] == known[0].shape:
        TrainingInputs.images(known[0].mean, known[0].std).warn_if_unlike(x, stacklevel=3)


def _is_pixels(node: object) -> bool:
    return isinstance(node, Pixels)


def _at_resolution(model: AbstractModel, steps: int | None, rtol: float | None) -> AbstractModel:
    """The model at the requested resolution, with a warning if it was trained on another grid."""
    check_model(model)
    if steps is None and rtol is None:
        return model
    wanted = f"steps={steps}" if rtol is None else f"rtol={rtol}"
    at_resolution = refined(model, steps=steps, rtol=rtol)
    if not blocks(model):
        raise ValueError(
            f"{wanted} has no meaning for {type(model).__name__}, which has no block that is solved: leave it out."
        )
    grids = {block.solver.grid_steps for block in blocks(model)} - {steps, None}
    if grids:
        warnings.warn(
            f"{wanted}: the model was trained on a grid of {', '.join(sorted(map(str, grids)))} steps, and may depend "
            "on it; uncertainty_sources measures the solver's error. If it is large, train with the solver that you "
            "predict with.",
            stacklevel=3,
        )
    return at_resolution


def _solutions(
    model: AbstractModel,
    x: Inputs,
    draws: int,
    key: PRNGKeyArray,
    batch_size: int,
    draws_at_once: int,
    mesh: Mesh | None,
) -> Solution:
    """The solutions of all draws, computed in batches of examples."""
    check_model(model)
    check_count("draws_at_once", draws_at_once)
    keys = draw_keys(key, draws, model)
    mesh = prediction_mesh(mesh, (model, x), x.shape[0])
    model = on_mesh(model, mesh)

    def of_batch(batch: Array) -> Solution:
        found = solutions(model, batch, keys, draws_at_once, mesh)
        check_solution(found)  # waits for the device
        return found

    parts = in_batches(of_batch, x, batch_size, f" with draws_at_once={draws_at_once}: lower it, or")
    outputs = jnp.concatenate([part.outputs for part in parts], axis=1)
    # Adaptive steps differ between batches; the largest number is reported.
    evaluations = jnp.stack([part.evaluations for part in parts]).max(0)
    return parts[0]._replace(outputs=outputs, evaluations=evaluations)


def in_batches(function: Callable[[Array], T], x: Inputs, batch_size: int, remedy: str = ":") -> list[T]:
    """What a function finds for each batch of examples: of fewer examples, if the device runs out of memory.

    The function waits for the device. ``remedy`` is what else helps if one example is too many.
    """
    check_count("batch_size", batch_size)
    if not is_lazy(x) or not x.shape[0]:
        check_array("x", x, least_ndim=2)
    parts, i = [], 0
    while i < x.shape[0]:
        name = f"x[{i}:{i + batch_size}]" if is_lazy(x) else "x"
        try:
            parts.append(function(as_inputs(name, x[i : i + batch_size])))
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            batch_size = _smaller(min(batch_size, x.shape[0]), remedy)
        else:
            i += batch_size
    return parts


def _smaller(batch_size: int, remedy: str) -> int:
    """Half of a batch for which the device had too little memory, aloud; an error if it was a single example."""
    if batch_size == 1:
        raise ValueError(f"the device has too little memory for one example{remedy} use a device with more memory.")
    warnings.warn(
        f"the device ran out of memory with {batch_size} examples at once: it goes on with {batch_size // 2}.",
        stacklevel=6,
    )
    return batch_size // 2
