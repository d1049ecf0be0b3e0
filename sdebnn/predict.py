"""Predict with any model of the contract: samples are one array, "draw example output".

p(y | x, D) = E_Q[ p(y | x, w) ],   estimated by the mean over draws of w
"""

import math
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn import metrics
from sdebnn.checks import (
    as_inputs,
    check_array,
    check_callable,
    check_count,
    check_key,
    check_object,
    shown,
    warn_if_unlike,
)
from sdebnn.contract import check_solution, draw_keys, solutions
from sdebnn.convolutions import Pixels
from sdebnn.integrate import FixedGrid, Solution, tighter
from sdebnn.likelihoods import Categorical, Likelihood, parted
from sdebnn.models import blocks, map_blocks, refined
from sdebnn.train import as_data, is_lazy

TARGETS_OF_ONE_DRAW = 100  # sampled for an interval, where there is one network only
PIXELS_CHECKED, IMAGES_CHECKED = 1_000_000, 1000  # at most, for whether they are on the scale of the training
DRAWS_AT_ONCE = 16  # wide enough to fill a processor, narrow enough to bound memory


def predict(
    model: Any,
    x: Any,
    *,
    draws: int = 100,
    key: PRNGKeyArray,
    batch_size: int = 1000,
    draws_at_once: int = DRAWS_AT_ONCE,
    steps: int | None = None,
    rtol: float | None = None,
    return_evaluations: bool = False,
) -> Any:
    """The outputs of ``draws`` functions from the posterior: ``samples[i]`` is one function, the same for every x.

    They are one array, "draw example output", of the likelihood's parameters (means, logits): ``likelihood.center`` and
    ``likelihood.sample`` turn them into predictions of y. For an ``Ensemble``, ``draws`` is rounded up to a multiple of
    its members, so that each has the same weight.
    ``batch_size`` examples and ``draws_at_once`` are computed together; 1 draw at a time suits convolutions.
    ``steps`` or ``rtol`` solve the trained model at another resolution. The key names the same Brownian paths at each,
    so that the samples converge as the solve is refined; to a tolerance, they depend on the batch within it.
    ``return_evaluations`` gives (samples, evaluations): how often each draw evaluated its field.
    """
    solutions = _solutions(_dialled(model, steps, rtol), x, draws, key, batch_size, draws_at_once)
    _warn_of_other_pixels(model, x)
    return (solutions.outputs, solutions.evaluations) if return_evaluations else solutions.outputs


class Spread(NamedTuple):
    """Standard deviations of a prediction, by where they come from: "example target" each."""

    weights: Float[Array, "example target"]
    noise: Float[Array, "example target"]
    solver: Float[Array, "example target"]


def solver_error(
    model: Any,
    likelihood: Likelihood,
    x: Any,
    *,
    draws: int = 100,
    key: PRNGKeyArray,
    batch_size: int = 1000,
    draws_at_once: int = DRAWS_AT_ONCE,
) -> Spread:
    """What makes a prediction uncertain: the posterior's weights, the observations' noise, or the solver's steps.

    The last is the difference that twice the steps (a tenth of the tolerance) make under the same noise, extrapolated
    by the method's order; ``weights`` is the spread of those finer draws. If ``solver`` is not small beside it, draws
    differ by how they were solved: take more steps, or another method.
    """
    check_callable("model", model, "SDEBNN.mlp(1, 1, key=key)")
    check_object(model)
    if not isinstance(likelihood, Likelihood) or isinstance(likelihood, type):
        raise ValueError(f"likelihood={shown(likelihood)} is not one: pass an object such as Gaussian(0.1).")
    factor = max([tighter(block.solver)[1] for block in blocks(model)], default=1.0)
    fine = map_blocks(lambda block: block.with_solver(tighter(block.solver)[0]), model)
    here, there = (_solutions(law, x, draws, key, batch_size, draws_at_once).outputs for law in (model, fine))
    _warn_of_other_pixels(model, x)
    change = likelihood.center(here) - likelihood.center(there)
    return Spread(
        weights=jnp.std(likelihood.center(there), axis=0),
        noise=jnp.sqrt(jnp.mean(likelihood.variance(there), axis=0)),
        solver=factor * jnp.sqrt(jnp.mean(change**2, axis=0)),
    )


def evaluate(
    model: Any,
    likelihood: Likelihood,
    x: Any,
    y: Any,
    *,
    draws: int = 100,
    key: PRNGKeyArray,
    batch_size: int = 1000,
    draws_at_once: int = DRAWS_AT_ONCE,
    steps: int | None = None,
    rtol: float | None = None,
) -> dict[str, float]:
    """Score the averaged forecast on (x, y): ``nll`` and ``kl`` in nats, beside what suits the likelihood.

    Under ``Categorical``: ``accuracy``, ``ece``, ``brier``. Otherwise ``rmse``, ``coverage_95``. ``evaluations`` is how
    often a draw evaluated its field; ``steps`` and ``rtol`` are those of ``predict``. Under ``Weighted``,
    too, every row counts once. With one draw, the interval is that of the likelihood's noise around it.
    """
    check_key(key)
    x, y = as_data(model, likelihood, x, y, key=key)
    draw_key, noise_key = jax.random.split(key)
    solutions = _solutions(_dialled(model, steps, rtol), x, draws, draw_key, batch_size, draws_at_once)
    _warn_of_other_pixels(model, x)
    samples = solutions.outputs
    likelihood, y, _ = parted(likelihood, y)
    scores = {
        "nll": metrics.nll(likelihood.log_prob(samples, y)),
        "kl": solutions.kl.mean(),
        "evaluations": solutions.evaluations.mean(),
    }
    centers = likelihood.center(samples)
    if isinstance(likelihood, Categorical):
        for metric in (metrics.accuracy, metrics.ece, metrics.brier):
            scores[metric.__name__] = metric(centers, y)
    else:
        scores["rmse"] = metrics.rmse(centers, y)
        repeated = samples if len(samples) > 1 else jnp.repeat(samples, TARGETS_OF_ONE_DRAW, axis=0)
        scores["coverage_95"] = metrics.coverage(likelihood.sample(repeated, key=noise_key), y)
    return {name: float(value) for name, value in scores.items()}


def _warn_of_other_pixels(model: Any, x: Any) -> None:
    """Warn if the first images given to a net that begins with ``Pixels`` are on another scale than its training's.

    Call it directly from a public function: the warning then points at the user's line.
    """
    known = [node for node in jax.tree.leaves(model, is_leaf=_is_pixels) if _is_pixels(node)]
    if not known or isinstance(x, Tracer) or x.shape[1:] != known[0].shape:
        return
    images = min(IMAGES_CHECKED, -(-PIXELS_CHECKED // math.prod(x.shape[1:])))
    warn_if_unlike(
        255 * np.asarray(known[0].mean), 255 * np.asarray(known[0].std), np.asarray(x[:images]), column="channel",
        cause="The net takes bytes, 0 to 255: scale the images as those of the training were.", stacklevel=3,
    )  # fmt: skip


def _is_pixels(node: Any) -> bool:
    return isinstance(node, Pixels)


def _dialled(model: Any, steps: int | None, rtol: float | None) -> Any:
    """The model at the resolution asked for, with a word if that is not the grid it was trained on."""
    check_callable("model", model, "SDEBNN.mlp(1, 1, key=key)")
    check_object(model)
    if steps is None and rtol is None:
        return model
    wanted = f"steps={steps}" if rtol is None else f"rtol={rtol}"
    dialled = refined(model, steps=steps, rtol=rtol)
    if not blocks(model):
        raise ValueError(f"{wanted} has no meaning for {type(model).__name__}: it holds no block that is solved.")
    grids = {block.solver.steps for block in blocks(model) if isinstance(block.solver, FixedGrid)} - {steps}
    if grids:
        warnings.warn(
            f"{wanted}: the model was trained on a grid of {', '.join(map(str, sorted(grids)))} steps, and may rely on "
            "it; solver_error says how far from solved that is. If it matters, train with the solver you predict with.",
            stacklevel=3,
        )
    return dialled


def _solutions(model: Any, x: Any, draws: int, key: PRNGKeyArray, batch_size: int, draws_at_once: int) -> Solution:
    """What the draws compute, a batch of examples at a time."""
    check_callable("model", model, "SDEBNN.mlp(1, 1, key=key)")
    check_object(model)
    check_count("batch_size", batch_size)
    check_count("draws_at_once", draws_at_once)
    if not is_lazy(x):
        check_array("x", x, least_ndim=2)
    keys = draw_keys(key, draws, model)
    parts = []
    for i in range(0, x.shape[0], batch_size):
        name = f"x[{i}:{i + batch_size}]" if is_lazy(x) else "x"
        parts.append(solutions(model, as_inputs(name, x[i : i + batch_size]), keys, draws_at_once))
        check_solution(parts[-1])
    outputs = jnp.concatenate([part.outputs for part in parts], axis=1)
    # Adaptive steps differ from batch to batch: the hardest one counts.
    evaluations = jnp.stack([part.evaluations for part in parts]).max(0)
    return parts[0]._replace(outputs=outputs, evaluations=evaluations)
