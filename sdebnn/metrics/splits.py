"""Uncertainty split into what more data would reduce, and noise that they would not.

class     entropy of the mean = mutual information of label and weights + mean of the entropies
number    variance            = variance of the means                   + mean of the variances
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from sdebnn.metrics.classes import ClassSamples, Numbers, check_is_array, check_probabilities


class Split(NamedTuple):
    """The uncertainty of every example, ``total = reducible + noise``: in nats, or in squared units of y."""

    total: Float[np.ndarray, "..."]
    reducible: Float[np.ndarray, "..."]
    noise: Float[np.ndarray, "..."]


def entropy_split(samples: ClassSamples) -> Split:
    """The entropy of the forecast of every example in nats; samples are probabilities.

        logits = predict(net, images, draws=4, key=key)
        total, reducible, noise = metrics.entropy_split(Categorical().center(logits))

    With one draw, all of it counts as noise: what more data would reduce is the difference between draws.
    """
    check_probabilities(samples)
    each = np.asarray(samples, float)
    total, noise = _entropy(each.mean(0)), _entropy(each).mean(0)
    return Split(total, np.maximum(total - noise, 0), np.minimum(noise, total))


def variance_split(
    means: Float[Numbers, "draw example target"], variances: Float[Numbers, "draw example target"]
) -> Split:
    """The variance of the forecast of every target, from the mean and the variance of y under each draw.

        means, variances = likelihood.center(samples), likelihood.variance(samples)
        total, reducible, noise = metrics.variance_split(means, variances)

    With one draw, all of it counts as noise. A law without variance, such as Cauchy's, has infinite noise.
    """
    check_is_array("means", means)
    check_is_array("variances", variances)
    if means.shape != variances.shape or means.ndim != 3 or means.size == 0:
        raise ValueError(
            f"means have shape {means.shape} and variances {variances.shape}: pass (draws, examples, targets) for both."
        )
    if not np.isfinite(means).all() or np.isnan(variances).any() or np.min(variances) < 0:
        raise ValueError("means hold NaN or inf, or variances NaN or numbers below 0: look for a model that blew up.")
    reducible, noise = np.asarray(means, float).var(0), np.asarray(variances, float).mean(0)
    return Split(reducible + noise, reducible, noise)


def _entropy(probs: Float[np.ndarray, "*lead class"]) -> Float[np.ndarray, "*lead"]:
    return np.maximum(-(probs * np.log(np.maximum(probs, 1e-300))).sum(-1), 0)  # p log p is 0 at p = 0
