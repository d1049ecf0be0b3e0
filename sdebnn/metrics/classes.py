"""Scores of forecasts of a class. Samples are probabilities, "draw example class", and a forecast averages over draws.

Probabilities are averaged, never logits or log-probabilities:   p(y | x) = E_w[ p(y | x, w) ].

What is no probability or no label is an error: NaN, negative values, sums over the classes that differ from 1 by more
than 0.001, labels that are no whole numbers or no class. Of several classes with the highest probability, the first one
is said. A class that no example has counts like any other.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from sdebnn.checks import check_choice, check_classes, check_count

Numbers = Array | np.ndarray
ClassSamples = Float[Numbers, "draw example class"]
Labels = Int[Numbers, " example"]
Binning = Literal["width", "mass"]


def check_probabilities(samples: ClassSamples) -> None:
    """Refuse samples that are not class probabilities."""
    check_is_array("samples", samples)
    if samples.ndim != 3 or samples.size == 0:
        raise ValueError(f"samples have shape {samples.shape}: pass (draws, examples, classes).")
    if isinstance(samples, Tracer):
        return
    if not np.all(np.isfinite(samples)):
        raise ValueError("samples hold NaN or infinite probabilities: look for a model that blew up.")
    if not np.allclose(np.sum(samples, axis=-1), 1, atol=1e-3) or np.min(samples) < 0:
        raise ValueError(
            "samples do not add up to 1 over the classes: pass probabilities, such as Categorical().center(logits)."
        )


def check_is_array(name: str, value: object) -> None:
    """Refuse what is no array of numbers, such as a list, and truth values."""
    if not isinstance(value, jax.Array | np.ndarray):
        raise ValueError(f"{name} is a {type(value).__name__}: pass an array, such as np.asarray({name}).")
    if value.dtype == bool or not jnp.issubdtype(value.dtype, jnp.number):
        raise ValueError(f"{name} has dtype {value.dtype}: pass numbers, such as {name}.astype(float).")


def _check_classified(samples: ClassSamples, labels: Labels) -> None:
    """Refuse samples that are not class probabilities, and anything but one label for each example."""
    check_is_array("samples", samples)
    if not isinstance(labels, jax.Array | np.ndarray) or not jnp.issubdtype(labels.dtype, jnp.integer):
        kind = getattr(labels, "dtype", type(labels).__name__)
        raise ValueError(f"labels are of {kind}: pass an array of whole numbers, such as labels.astype(int).")
    if samples.ndim != 3 or labels.shape != samples.shape[1:2] or samples.size == 0:
        raise ValueError(
            f"samples have shape {samples.shape} and labels have shape {labels.shape}: pass (draws, examples, classes) "
            "and (examples,)."
        )
    check_probabilities(samples)
    if not isinstance(labels, Tracer):
        check_classes("labels", labels, samples.shape[-1])


def accuracy(samples: ClassSamples, labels: Labels) -> Float[Array, ""]:
    """Fraction of examples whose most probable class is the true one.

        metrics.accuracy(probs[None], labels)  # one draw

    ``samples`` are probabilities, "draw example class".
    """
    _check_classified(samples, labels)
    return jnp.mean(jnp.argmax(samples.mean(0), axis=-1) == labels)


def nll(
    log_probs: Float[Numbers, "draw example"], weights: Float[Numbers, " example"] | None = None
) -> Float[Array, ""]:
    """Mean of -log p(y | x) in nats, where p averages exp(log_probs) over draws; examples may be weighted.

        metrics.nll(likelihood.log_prob(samples, y))  # of every draw and example

    It is infinite if all draws give an example the probability 0. NaN and infinite densities are errors.
    """
    check_is_array("log_probs", log_probs)
    if log_probs.ndim != 2 or log_probs.size == 0:
        raise ValueError(f"log_probs has shape {log_probs.shape}: pass (draws, examples).")
    if weights is not None and weights.shape != log_probs.shape[1:]:
        raise ValueError(
            f"weights has shape {weights.shape}: pass one weight for each of the {log_probs.shape[1]} examples."
        )
    if not isinstance(log_probs, Tracer) and (np.isnan(log_probs).any() or np.max(log_probs) == np.inf):
        raise ValueError("log_probs hold NaN or inf: look for a model that blew up.")
    if weights is not None and not isinstance(weights, Tracer):
        wrong = not np.isfinite(weights).all() or np.min(weights) < 0 or not np.sum(weights) > 0
        if wrong:
            raise ValueError("weights must be finite, at least 0, and not all 0: check how they were made.")
    draws = log_probs.shape[0]
    return -jnp.average(jax.nn.logsumexp(log_probs, axis=0) - jnp.log(draws), weights=weights)


def brier(samples: ClassSamples, labels: Labels) -> Float[Array, ""]:
    """Mean squared distance between the forecast and the one-hot truth.

        metrics.brier(probs[None], labels)

    ``samples`` are probabilities, "draw example class". The best score is 0, and the worst 2.
    """
    _check_classified(samples, labels)
    truth = jax.nn.one_hot(labels, samples.shape[-1])
    return jnp.mean(jnp.sum((samples.mean(0) - truth) ** 2, axis=-1))


class BrierParts(NamedTuple):
    """The parts of a Brier score: ``reliability - resolution + uncertainty + within_bins``.

    ``reliability`` is the squared error of calibration, ``resolution`` how much the outcomes differ between bins, and
    ``uncertainty`` the score of the frequencies of the classes. ``within_bins`` is what the differences of forecasts
    inside a bin add, and is zero if they are equal there.
    """

    reliability: float
    resolution: float
    uncertainty: float
    within_bins: float


def brier_parts(samples: ClassSamples, labels: Labels, bins: int = 10, binning: Binning = "width") -> BrierParts:
    """The decomposition of the Brier score (Murphy), summed over the classes, each with bins of its probability.

        parts = metrics.brier_parts(probs[None], labels, bins=5)
        print(parts.reliability, parts.resolution)

    ``samples`` are probabilities, "draw example class".
    """
    probs, truth = _forecast(samples, labels, bins, binning)
    parts = np.zeros(3)
    for p, happened in zip(probs.T, truth.T, strict=True):
        count, confidence, frequency = _bins(p, happened, bins, binning)
        share, base = count / len(p), happened.mean()
        parts += [
            np.sum(share * (confidence - frequency) ** 2),
            np.sum(share * (frequency - base) ** 2),
            base * (1 - base),
        ]
    whole = float(np.mean(np.sum((probs - truth) ** 2, axis=-1)))
    reliability, resolution, uncertainty = map(float, parts)
    return BrierParts(reliability, resolution, uncertainty, whole - (reliability - resolution + uncertainty))


def ece(samples: ClassSamples, labels: Labels, bins: int = 10, binning: Binning = "width") -> Float[Array, ""]:
    """Expected calibration error of the most probable class: |accuracy - confidence| in bins, weighted by their counts.

        metrics.ece(probs[None], labels, bins=15)
        metrics.ece(probs[None], labels, bins=4, binning="mass")

    ``samples`` are probabilities, "draw example class".

    The bins of the confidence have equal width, [a, b), and the last one [a, 1]; or, with binning="mass", equally many
    examples.
    """
    check_count("bins", bins)
    check_choice("binning", binning, ("width", "mass"))
    _check_classified(samples, labels)
    probs = samples.mean(0)
    confidence = probs.max(-1)
    correct = jnp.argmax(probs, axis=-1) == labels
    if binning == "mass":
        count, mean, frequency = _bins(np.asarray(confidence, float), np.asarray(correct, float), bins, binning)
        return jnp.asarray(np.sum(count * np.abs(frequency - mean)) / labels.shape[0])
    index = jnp.clip((confidence * bins).astype(int), 0, bins - 1)
    gap = jnp.zeros(bins).at[index].add(correct - confidence)
    return jnp.sum(jnp.abs(gap)) / labels.shape[0]


def classwise_ece(samples: ClassSamples, labels: Labels, bins: int = 10, binning: Binning = "width") -> float:
    """The mean over classes of the calibration error of the probability of each, as of a binary forecast.

        metrics.classwise_ece(probs[None], labels, bins=4, binning="mass")

    ``samples`` are probabilities, "draw example class".

    With binning="mass" this is the adaptive calibration error. A class that no example has counts like any other: its
    probability should be zero.
    """
    probs, truth = _forecast(samples, labels, bins, binning)
    found = []
    for p, happened in zip(probs.T, truth.T, strict=True):
        count, confidence, frequency = _bins(p, happened, bins, binning)
        found.append(np.sum(count * np.abs(frequency - confidence)) / len(p))
    return float(np.mean(found))


class Reliability(NamedTuple):
    """For each bin that has ``examples``: how many, their mean ``confidence``, and their ``accuracy``."""

    examples: Int[np.ndarray, " bin"]
    confidence: Float[np.ndarray, " bin"]
    accuracy: Float[np.ndarray, " bin"]


def reliability(samples: ClassSamples, labels: Labels, bins: int = 10, binning: Binning = "width") -> Reliability:
    """The calibration curve of the most probable class.

        examples, confidence, right = metrics.reliability(probs[None], labels, bins=5)

    ``samples`` are probabilities, "draw example class". Only bins that have examples are returned.
    """
    probs, _ = _forecast(samples, labels, bins, binning)
    correct = probs.argmax(-1) == np.asarray(labels)
    return Reliability(*_bins(probs.max(-1), correct.astype(float), bins, binning))


def _forecast(
    samples: ClassSamples, labels: Labels, bins: int, binning: Binning
) -> tuple[Float[np.ndarray, "example class"], Float[np.ndarray, "example class"]]:
    """The averaged forecast, and the truth as zeros and ones."""
    check_count("bins", bins)
    check_choice("binning", binning, ("width", "mass"))
    _check_classified(samples, labels)
    return np.asarray(samples, float).mean(0), np.eye(samples.shape[-1])[np.asarray(labels)]


def _bins(
    p: Float[np.ndarray, " example"], happened: Float[np.ndarray, " example"], bins: int, binning: Binning
) -> tuple[Int[np.ndarray, " bin"], Float[np.ndarray, " bin"], Float[np.ndarray, " bin"]]:
    """Of each bin that is not empty: the count, the mean probability, and the frequency of what happened."""
    if binning == "width":
        index = np.clip((p * bins).astype(int), 0, bins - 1)
    else:
        index = np.empty(len(p), int)
        for number, rows in enumerate(np.array_split(np.argsort(p, kind="stable"), bins)):
            index[rows] = number
    count = np.bincount(index, minlength=bins)
    used = count > 0
    sums = [np.bincount(index, each, minlength=bins)[used] for each in (p, happened)]
    return count[used], sums[0] / count[used], sums[1] / count[used]
