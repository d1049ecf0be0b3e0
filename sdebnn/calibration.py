"""Calibration of a forecast by one number, the temperature T, on held-out examples:

    T = argmin  -Σ weight · log E_w[ p(y | tempered(outputs, T)) ]  +  ½ (log T / prior_std)²

The likelihood defines what a temperature does (``AbstractLikelihood.tempered``). With a ``prior_std``, a few examples
change the temperature little.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sdebnn.likelihoods import AbstractLikelihood
from sdebnn.programs import compiled


class HeldOut(NamedTuple):
    """Outputs of several draws for held-out examples, with their targets and weights."""

    outputs: Float[Array | np.ndarray, "draw example output"]
    y: Array | np.ndarray
    weights: Float[Array | np.ndarray, " example"]


class Calibration(NamedTuple):
    """The best temperature, and the mean NLL of the held-out examples at T = 1 and at the best temperature."""

    temperature: float
    nll_before: float
    nll: float


@runtime_checkable
class _Minimum(Protocol):
    """The part of SciPy's result that is used."""

    x: float


def calibrated(
    likelihood: AbstractLikelihood, parts: Sequence[HeldOut], *, largest: float = 20.0, prior_std: float | None = None
) -> Calibration:
    """The best temperature from 1 / ``largest`` to ``largest``. Each part may have draws of its own."""
    from scipy import optimize, special

    total = sum(float(np.sum(part.weights)) for part in parts)

    def nll(log_temperature: float) -> float:
        """The mean NLL; sums in float64, since the search compares values that differ little."""
        loss = 0.0
        for part in parts:
            temperature = np.asarray(math.exp(log_temperature), jnp.result_type(float))
            each = np.asarray(_log_probs(likelihood, part.outputs, part.y, temperature), float)
            averaged = np.asarray(special.logsumexp(each, axis=0)) - math.log(len(each))
            loss -= float(np.asarray(part.weights, float) @ averaged)
        return loss / total

    def objective(log_temperature: float) -> float:
        prior = 0.0 if prior_std is None else 0.5 * (log_temperature / prior_std) ** 2
        return nll(log_temperature) + prior / total

    span = math.log(largest)
    found: _Minimum = optimize.minimize_scalar(objective, bounds=(-span, span), method="bounded")  # pyright: ignore[reportAssignmentType]
    return Calibration(math.exp(found.x), nll(0.0), nll(found.x))


@compiled
def _log_probs(
    likelihood: AbstractLikelihood,
    outputs: Array | np.ndarray,
    y: Array | np.ndarray,
    temperature: Array | np.ndarray,
) -> Float[Array, "..."]:
    """log p(y | tempered outputs) of each draw and example."""
    return likelihood.log_prob(likelihood.tempered(jnp.asarray(outputs), jnp.asarray(temperature)), jnp.asarray(y))
