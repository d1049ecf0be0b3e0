"""Classes:   p(y | outputs) = softmax(outputs)_y."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Real

from sdebnn import metrics
from sdebnn.checks import check_classes, check_key
from sdebnn.likelihoods.likelihood import AbstractLikelihood, Outputs, Summary, check_head

LEAST_GAIN = 0.02  # share of the entropy of the classes that a fit explains at least


class Categorical(AbstractLikelihood):
    """One of several classes; the outputs are logits, the targets class numbers.

        likelihood = Categorical()
        logits = predict(net, images, draws=4, key=key)
        probabilities = likelihood.center(logits).mean(0)

    Classes are numbered from 0, and a model needs one output for each.
    """

    def log_prob(self, outputs: Outputs, y: Int[Array, "..."]) -> Float[Array, "..."]:
        """log p(y | outputs)."""
        classes = outputs.shape[-1]
        if classes < 2:
            raise ValueError(f"the model has {classes} output: build it with one for each class, two or more.")
        if not jnp.issubdtype(y.dtype, jnp.integer):
            raise ValueError(f"y has dtype {y.dtype}: pass class numbers, whole numbers from 0 to {classes - 1}.")
        examples = outputs.shape[:-1]
        if not min(1, len(examples)) <= y.ndim <= len(examples) or y.shape != examples[len(examples) - y.ndim :]:
            check_head(outputs, y, "classes")
            raise ValueError(f"y has shape {y.shape}: pass one class number for each of {examples[-1]} examples.")
        if not isinstance(y, Tracer):
            check_classes("y", y, classes)
        log_probs = jax.nn.log_softmax(outputs)
        labels = jnp.broadcast_to(y, log_probs.shape[:-1])
        return jnp.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]

    def center(self, outputs: Outputs) -> Float[Array, "..."]:
        """The probability of every class."""
        return jax.nn.softmax(outputs)

    def variance(self, outputs: Outputs) -> Float[Array, "..."]:
        """p (1 - p) for every class: the variance of its indicator."""
        p = self.center(outputs)
        return p * (1 - p)

    def sample(self, outputs: Outputs, *, key: PRNGKeyArray) -> Int[Array, "..."]:
        """Classes sampled from p(y | outputs)."""
        check_key(key)
        return jax.random.categorical(key, outputs)

    def tempered(self, outputs: Outputs, temperature: float | Float[Array, ""]) -> Float[Array, "*lead output"]:
        """The logits divided by the temperature."""
        return outputs / temperature

    def cast_targets(self, y: Array, dtype: DTypeLike) -> Array:
        """Class numbers, unchanged."""
        return y

    def targets_from_columns(self, columns: Real[Array, "*lead column"]) -> Int[Array, "*lead"]:
        """The class numbers in the first column."""
        return columns[..., 0].astype(int)

    def check_targets(self, y: Array, outputs: int) -> None:
        """Refuse class numbers outside 0 to ``outputs`` - 1."""
        check_classes("y", y, outputs)

    def is_correct(self, outputs: Outputs, y: Array) -> Bool[Array, "..."] | None:
        """Whether the largest output of each example, logit or probability, is that of the true class."""
        return jnp.argmax(outputs, axis=-1) == y

    def scores(
        self, samples: Float[Array, "draw example output"], y: Array, *, key: PRNGKeyArray
    ) -> dict[str, Float[Array, ""]]:
        """Accuracy, expected calibration error and Brier score of the averaged probabilities."""
        probabilities = self.center(samples)
        return {
            "accuracy": metrics.accuracy(probabilities, y),
            "ece": metrics.ece(probabilities, y),
            "brier": metrics.brier(probabilities, y),
        }

    def summary(self, samples: Float[Array, "draw example output"]) -> Summary:
        """The averaged probabilities as a table."""
        return Summary(np.asarray(self.center(samples)).mean(0), "the probability of each class")

    def log_prob_of_a_fit(self, y: Array, weights: Array | None) -> float | None:
        """Slightly more than the frequencies of the classes give; None if there is only one class."""
        share = np.bincount(np.asarray(y), None if weights is None else np.asarray(weights))
        share = share[share > 0] / share.sum()
        entropy = float(-(share * np.log(share)).sum())
        return -(1 - LEAST_GAIN) * entropy if entropy > 0 else None
