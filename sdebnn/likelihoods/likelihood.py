"""The contract of likelihoods: p(y | outputs), and everything that depends on the kind of target."""

from abc import abstractmethod
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, PRNGKeyArray, Real

from sdebnn import metrics

PSEUDO_VARIANCES = 1e4  # largest ratio of two variances of pseudo-observations
LEAST_TARGETS = 100  # sampled for a credible interval: several from each network, if there are fewer

Outputs = Float[Array, "*lead output"]


class Summary(NamedTuple):
    """A forecast as a table with one row for each example, and what its columns are, in words."""

    table: Float[np.ndarray, "example column"]
    columns: str


class AbstractLikelihood(eqx.Module):
    """p(y | outputs). Array fields are trained together with the model. Leading axes of outputs and targets broadcast.

    To write your own, subclass it with four methods. The rest have defaults that suit numeric targets:

        class Poisson(AbstractLikelihood):
            def log_prob(self, outputs, y):  # the outputs are log rates
                nats = y * outputs - jnp.exp(outputs) - jax.lax.lgamma(y + 1.0)
                return jnp.sum(nats, axis=-1)

            def center(self, outputs):
                return jnp.exp(outputs)

            def variance(self, outputs):
                return jnp.exp(outputs)

            def sample(self, outputs, *, key):
                counts = jax.random.poisson(key, jnp.exp(outputs))
                return counts.astype(outputs.dtype)

        counts = jnp.round(jnp.exp(y))
        nats = Poisson().log_prob(samples, counts)

    ``outputs`` are those of a model, "example output" or "draw example output". ``y`` are targets, "example target" or,
    for classes, "example".
    """

    @abstractmethod
    def log_prob(self, outputs: Outputs, y: Array) -> Float[Array, "..."]:
        """log p(y | outputs) in nats for every example, summed over its targets. Wrong shapes raise a ValueError."""

    @abstractmethod
    def center(self, outputs: Outputs) -> Float[Array, "..."]:
        """The mean of p(y | outputs); the median if there is no mean; the class probabilities for classes."""

    @abstractmethod
    def variance(self, outputs: Outputs) -> Float[Array, "..."]:
        """The variance of p(y | outputs) around the center; infinite if there is none."""

    @abstractmethod
    def sample(self, outputs: Outputs, *, key: PRNGKeyArray) -> Array:
        """Targets sampled from p(y | outputs)."""

    def tempered(self, outputs: Outputs, temperature: float | Float[Array, ""]) -> Float[Array, "*lead output"]:
        """Outputs whose forecast is less certain by a factor: above 1 less confident, below 1 more. 1 changes nothing.

        Calibration chooses this factor on held-out examples. A likelihood that cannot be tempered raises a ValueError.
        """
        raise ValueError(
            f"{type(self).__name__} has no temperature that its outputs could carry: use Categorical(), or a law whose "
            "outputs give the scale, such as Gaussian(None)."
        )

    def pseudo_observations(self, y: Array, outputs: int) -> tuple[Float[Array, "example output"], ...]:
        """Observations of the outputs themselves, with normal noise, that say about the same as the targets.

        Returned are their values and variances, by one step of Newton's method from outputs of 0. A target that says
        next to nothing gets a variance of at most ``PSEUDO_VARIANCES`` times the smallest one.
        """

        def log_prob(f: Float[Array, " output"], y: Array) -> Float[Array, ""]:
            return jnp.sum(self.log_prob(f[None], y[None]))

        @jax.jit
        def derivatives(y: Array) -> tuple[Array, Array]:
            f = jnp.zeros((y.shape[0], outputs))
            curvature = jax.vmap(lambda f, y: jnp.diagonal(jax.hessian(log_prob)(f, y)))(f, y)
            return jax.vmap(jax.grad(log_prob))(f, y), curvature

        slope, curvature = derivatives(y)
        largest = jnp.max(-curvature, axis=0)
        precision = jnp.maximum(-curvature, jnp.where(largest > 0, largest, 1.0) / PSEUDO_VARIANCES)
        return slope / precision, 1 / precision

    def cast_targets(self, y: Array, dtype: DTypeLike) -> Array:
        """Targets in the type in which they are trained on; ``dtype`` is the floating-point type of the inputs."""
        return y.astype(dtype)

    def targets_from_columns(self, columns: Real[Array, "*lead column"]) -> Array:
        """Targets that were stored as columns of floating-point numbers, as ``Weighted`` stores them."""
        return columns

    def check_targets(self, y: Array, outputs: int) -> None:
        """Raise a ValueError for values that a model with so many outputs cannot predict."""

    @property
    def has_units(self) -> bool:
        """Whether the targets may be standardised: whether y and a + b y have laws of the same kind."""
        return False

    def in_units(self, scores: dict[str, float], units: Float[np.ndarray, " target"]) -> dict[str, float]:
        """Scores of standardised targets in the original units, which are the targets' standard deviations."""
        return scores

    def is_correct(self, outputs: Outputs, y: Array) -> Bool[Array, "..."] | None:
        """Whether the most probable class of each example is right; None if the targets are not classes."""
        return None

    def scores(
        self, samples: Float[Array, "draw example output"], y: Array, *, key: PRNGKeyArray
    ) -> dict[str, Float[Array, ""]]:
        """Scores of the averaged forecast besides the NLL, by name. The key draws the observation noise."""
        repeated = jnp.repeat(samples, -(-LEAST_TARGETS // len(samples)), axis=0)
        return {
            "rmse": metrics.rmse(self.center(samples), y),
            "coverage_95": metrics.coverage(self.sample(repeated, key=key), y),
        }

    def summary(self, samples: Float[Array, "draw example output"]) -> Summary:
        """The averaged forecast as a table."""
        centers, noise = np.asarray(self.center(samples)), np.asarray(self.variance(samples)).mean(0)
        table = np.concatenate([centers.mean(0), np.sqrt(centers.var(0) + noise)], axis=1)
        return Summary(table, "the mean of each target, then its standard deviation")

    def log_prob_of_a_fit(self, y: Array, weights: Array | None) -> float | None:
        """The mean log-likelihood, in nats an example, that a model exceeds once it has learned something.

        ``fit`` warns of a posterior that collapsed to its prior if the model stays below it. None if it is unknown.
        """
        return None

    def split_weights(self, y: Array) -> "tuple[AbstractLikelihood, Array, Array | None]":
        """The likelihood of a single observation, its targets, and the weight of each row, if rows have weights."""
        return self, y, None


def check_head(outputs: Outputs, y: Array, columns: str) -> None:
    """Refuse outputs with more axes than examples and outputs: they may come from a net without a head."""
    if outputs.ndim > 2:
        raise ValueError(
            f"y has shape {y.shape} and the outputs have shape {outputs.shape}, where (examples, {columns}) or "
            f"(draws, examples, {columns}) is needed: pass as many y as examples, and if the net gives several rows "
            "for each example, end it with a head such as eqx.nn.Linear."
        )
