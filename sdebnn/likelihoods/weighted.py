"""Rows that count more or less often:   log p(y | outputs)^weight."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, Real

from sdebnn.likelihoods.likelihood import AbstractLikelihood, Outputs, Summary

SMALLEST_WEIGHT = 1e-6  # of a pseudo-observation


class Weighted(AbstractLikelihood):
    """Any likelihood, for targets whose last column is the weight of each row. Class numbers may be floats there.

        weights = jnp.where(x > 0, 2.0, 1.0)
        columns = jnp.concatenate([y, weights], axis=1)
        fitted = fit(model, Weighted(Gaussian(0.1)), x, columns, key=key, epochs=20)

    A row of weight 2 counts as two rows. Sample weights affect only ``log_prob``; forecasts do not depend on them.
    """

    likelihood: AbstractLikelihood

    def log_prob(self, outputs: Outputs, y: Real[Array, "*_ column"]) -> Float[Array, "..."]:
        """log p(y | outputs), multiplied by the weight of each row."""
        likelihood, targets, weights = self.split_weights(y)
        return weights * likelihood.log_prob(outputs, targets)

    def center(self, outputs: Outputs) -> Float[Array, "..."]:
        """The center of p(y | outputs)."""
        return self.likelihood.center(outputs)

    def variance(self, outputs: Outputs) -> Float[Array, "..."]:
        """The variance of p(y | outputs)."""
        return self.likelihood.variance(outputs)

    def sample(self, outputs: Outputs, *, key: PRNGKeyArray) -> Array:
        """Targets sampled from p(y | outputs), without weights."""
        return self.likelihood.sample(outputs, key=key)

    def tempered(self, outputs: Outputs, temperature: float | Float[Array, ""]) -> Float[Array, "*lead output"]:
        """The outputs as the likelihood itself tempers them."""
        return self.likelihood.tempered(outputs, temperature)

    def pseudo_observations(self, y: Array, outputs: int) -> tuple[Float[Array, "example output"], ...]:
        """Those of the likelihood itself, with variances divided by the weights."""
        likelihood, targets, weights = self.split_weights(y)
        values, variances = likelihood.pseudo_observations(targets, outputs)
        return values, variances / jnp.maximum(weights, SMALLEST_WEIGHT)[:, None]

    def check_targets(self, y: Array, outputs: int) -> None:
        """Refuse values that the likelihood itself refuses."""
        likelihood, targets, _ = self.split_weights(y)
        likelihood.check_targets(targets, outputs)

    def is_correct(self, outputs: Outputs, y: Array) -> Bool[Array, "..."] | None:
        """Whether the most probable class of each example is right."""
        likelihood, targets, _ = self.split_weights(y)
        return likelihood.is_correct(outputs, targets)

    def scores(
        self, samples: Float[Array, "draw example output"], y: Array, *, key: PRNGKeyArray
    ) -> dict[str, Float[Array, ""]]:
        """The scores of the likelihood itself: every row counts once."""
        likelihood, targets, _ = self.split_weights(y)
        return likelihood.scores(samples, targets, key=key)

    def summary(self, samples: Float[Array, "draw example output"]) -> Summary:
        """The summary of the likelihood itself."""
        return self.likelihood.summary(samples)

    def split_weights(self, y: Array) -> tuple[AbstractLikelihood, Array, Array]:
        """The likelihood itself, its targets, and the weights."""
        if y.shape[-1] < 2:
            raise ValueError(f"y has shape {y.shape}: put the weight of each row in a last column, after the targets.")
        return self.likelihood, self.likelihood.targets_from_columns(y[..., :-1]), y[..., -1]
