"""Numeric targets with additive noise:   y = location + scale · ε,   one law for each law of ε.

The scale is known (a float), learned (``learn=True``), or, with ``scale=None``, read from the second half of the
outputs (heteroscedastic); a softplus keeps it positive.
"""

import math
from abc import abstractmethod

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Real

from sdebnn.checks import check_key, check_positive, plain_number
from sdebnn.likelihoods.likelihood import AbstractLikelihood, Outputs, check_head

SMALLEST_SCALE = 1e-6  # of those that are read from the outputs
ASSUMED_NOISE = 0.3  # before training, relative to the spread of the targets, if the outputs give the scale
MISFIT = 0.5  # nats an example: the cost, under a Gaussian, of residuals with twice the noise's variance


class AbstractLocationScale(AbstractLikelihood):
    """y = location + scale · ε. A subclass gives the log density, variance, entropy and sampler of ε.

        class Logistic(AbstractLocationScale):
            def __init__(self, scale=1.0, *, learn=False):
                super().__init__(scale, learn=learn)

            def standard_log_prob(self, z):
                return -z - 2 * jax.nn.softplus(-z)

            @property
            def standard_variance(self):
                return np.pi**2 / 3

            def standard_entropy(self):
                return 2.0

            def standard_sample(self, key, shape):
                return jax.random.logistic(key, shape)

        nats = Logistic(0.1, learn=True).log_prob(samples, y)

    The outputs are the locations of the targets. ``scale`` is known, or with ``learn=True`` the value where its
    training starts. With ``scale=None``, it is different for each example: the outputs are then twice as many as the
    targets, and the softplus of the second half are the scales.
    """

    log_scale: float | Float[Array, ""] | None

    def __init__(self, scale: float | None = 1.0, *, learn: bool = False):
        scale = plain_number(scale)
        if scale is None:
            if learn:
                raise ValueError("learn=True has no meaning with scale=None: the outputs give the scale already.")
            self.log_scale = None
        else:
            check_positive("scale", scale)
            self.log_scale = jnp.log(jnp.asarray(scale, float)) if learn else math.log(scale)

    @abstractmethod
    def standard_log_prob(self, z: Float[Array, "..."]) -> Float[Array, "..."]:
        """The log density of ε."""

    @property
    @abstractmethod
    def standard_variance(self) -> float:
        """The variance of ε; infinite if there is none."""

    @abstractmethod
    def standard_entropy(self) -> float:
        """The entropy of ε, in nats."""

    @abstractmethod
    def standard_sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Samples of ε."""

    def log_prob(self, outputs: Outputs, y: Real[Array, "*_ target"]) -> Float[Array, "..."]:
        """log p(y | outputs), summed over the targets of an example."""
        location, scale = self._split(outputs)
        # Shapes must match in full: broadcasting would pair every target with every example.
        if not min(2, location.ndim) <= y.ndim <= location.ndim or y.shape != location.shape[-y.ndim :]:
            check_head(outputs, y, "targets")
            raise ValueError(
                f"y has shape {y.shape}, the model gives {location.shape[-1]} target(s) for each of "
                f"{location.shape[-2] if location.ndim > 1 else 1} example(s): pass y of shape "
                f"(examples, {location.shape[-1]})."
            )
        return jnp.sum(self.standard_log_prob((y - location) / scale) - jnp.log(scale), axis=-1)

    def center(self, outputs: Outputs) -> Float[Array, "..."]:
        """The location of every target."""
        return self._split(outputs)[0]

    def variance(self, outputs: Outputs) -> Float[Array, "..."]:
        """The variance of every target around its location."""
        return self.scale(outputs) ** 2 * self.standard_variance

    def sample(self, outputs: Outputs, *, key: PRNGKeyArray) -> Float[Array, "..."]:
        """Targets sampled from p(y | outputs)."""
        check_key(key)
        location, scale = self._split(outputs)
        return location + scale * self.standard_sample(key, location.shape).astype(location.dtype)

    def tempered(self, outputs: Outputs, temperature: float | Float[Array, ""]) -> Float[Array, "*lead output"]:
        """Outputs of the same location whose scale is ``temperature`` times as large; needs ``scale=None``."""
        if self.log_scale is not None:
            return super().tempered(outputs, temperature)
        location, scale = self._split(outputs)
        excess = jnp.maximum(temperature * scale - SMALLEST_SCALE, jnp.finfo(outputs.dtype).tiny)
        # The inverse of softplus, log(exp(s) - 1), without overflow.
        return jnp.concatenate([location, excess + jnp.log(-jnp.expm1(-excess))], axis=-1)

    def pseudo_observations(self, y: Array, outputs: int) -> tuple[Float[Array, "example output"], ...]:
        """The targets themselves, with the variance of a normal law that says as much about the location.

        If the outputs give the scale, the noise is assumed to be 0.3 times as large as the spread of the targets, and
        so the second half of the outputs is observed, too, though with little certainty.
        """
        location = y.astype(float)
        if self.log_scale is not None:
            variance = jnp.exp(2 * jnp.asarray(self.log_scale, location.dtype)) / self.standard_information
            return location, jnp.broadcast_to(variance, location.shape)
        std = jnp.std(location, axis=0)
        noise = ASSUMED_NOISE * jnp.where(std > 0, std, 1.0)
        raw = noise + jnp.log(-jnp.expm1(-noise))  # the inverse of softplus
        values = jnp.concatenate([location, jnp.broadcast_to(raw, location.shape)], axis=-1)
        variances = jnp.concatenate([noise**2 / self.standard_information, jnp.ones_like(raw)])
        return values, jnp.broadcast_to(variances, values.shape)

    @property
    def standard_information(self) -> float:
        """The Fisher information that one ε has about a shift of it."""
        return 1.0

    def scale(self, outputs: Outputs) -> Float[Array, "..."]:
        """The scale of every target."""
        location, scale = self._split(outputs)
        return jnp.broadcast_to(scale, location.shape)

    @property
    def has_units(self) -> bool:
        """True."""
        return True

    def in_units(self, scores: dict[str, float], units: Float[np.ndarray, " target"]) -> dict[str, float]:
        """The RMSE times the unit that all targets share, and the NLL plus the logarithm of each target's unit."""
        return {**scores, "rmse": scores["rmse"] * float(units[0]), "nll": scores["nll"] + float(np.log(units).sum())}

    def log_prob_of_a_fit(self, y: Array, weights: Array | None) -> float | None:
        """The mean log density of residuals with twice the noise's variance; None if the outputs give the scale."""
        if self.log_scale is None:
            return None
        return y.shape[-1] * (-self.standard_entropy() - float(self.log_scale) - MISFIT)

    def _split(self, outputs: Outputs) -> tuple[Float[Array, "*lead target"], Float[Array, "..."]]:
        """Location and scale of every target."""
        if self.log_scale is not None:
            return outputs, jnp.exp(jnp.asarray(self.log_scale, outputs.dtype))
        if outputs.shape[-1] % 2:
            raise ValueError(
                f"scale=None reads location and scale from the outputs, but there are {outputs.shape[-1]}: "
                "build the model with two outputs for each target."
            )
        location, raw = jnp.split(outputs, 2, axis=-1)
        return location, jax.nn.softplus(raw) + SMALLEST_SCALE


class Gaussian(AbstractLocationScale):
    """Normal noise; ``scale`` is its standard deviation.

        fitted = fit(model, Gaussian(0.1, learn=True), x, y, key=key, epochs=20)
        noise = fitted.likelihood.variance(samples).mean() ** 0.5
        uneven = Gaussian(None)

    With ``learn=True``, the scale is trained, and ``scale`` is where this starts. With ``scale=None``, the second half
    of the outputs gives the scale of every target, so that a model needs two outputs for each.
    """

    def __init__(self, scale: float | None = 1.0, *, learn: bool = False):
        super().__init__(scale, learn=learn)

    def standard_log_prob(self, z: Float[Array, "..."]) -> Float[Array, "..."]:
        """The log density of ε."""
        return -0.5 * z**2 - 0.5 * math.log(2 * math.pi)

    @property
    def standard_variance(self) -> float:
        """The variance of ε."""
        return 1.0

    def standard_entropy(self) -> float:
        """The entropy of ε, in nats."""
        return 0.5 * math.log(2 * math.pi * math.e)

    def standard_sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Samples of ε."""
        return jax.random.normal(key, shape)


class Laplace(AbstractLocationScale):
    """Double-exponential noise; its standard deviation is √2 ``scale``.

        likelihood = Laplace(0.1, learn=True)
        nats = likelihood.log_prob(samples, y).mean()

    ``scale`` and ``learn`` are those of ``Gaussian``.
    """

    def __init__(self, scale: float | None = 1.0, *, learn: bool = False):
        super().__init__(scale, learn=learn)

    def standard_log_prob(self, z: Float[Array, "..."]) -> Float[Array, "..."]:
        """The log density of ε."""
        return -jnp.abs(z) - math.log(2)

    @property
    def standard_variance(self) -> float:
        """The variance of ε."""
        return 2.0

    def standard_entropy(self) -> float:
        """The entropy of ε, in nats."""
        return 1 + math.log(2)

    def standard_sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Samples of ε."""
        return jax.random.laplace(key, shape)


class Cauchy(AbstractLocationScale):
    """Noise without mean or variance: outliers have little influence.

        likelihood = Cauchy(0.1, learn=True)
        nats = likelihood.log_prob(samples, y).mean()

    ``scale`` is half the width of the interval that holds the middle half of the noise. ``scale`` and ``learn`` are
    given as in ``Gaussian``.
    """

    def __init__(self, scale: float | None = 1.0, *, learn: bool = False):
        super().__init__(scale, learn=learn)

    def standard_log_prob(self, z: Float[Array, "..."]) -> Float[Array, "..."]:
        """The log density of ε."""
        return -jnp.log1p(z**2) - math.log(math.pi)

    @property
    def standard_variance(self) -> float:
        """Infinite."""
        return math.inf

    @property
    def standard_information(self) -> float:
        """1/2."""
        return 0.5

    def standard_entropy(self) -> float:
        """The entropy of ε, in nats."""
        return math.log(4 * math.pi)

    def standard_sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Samples of ε."""
        return jax.random.cauchy(key, shape)


class StudentT(AbstractLocationScale):
    """Student's t with ``df`` degrees of freedom: Cauchy at 1, Gaussian in the limit.

        likelihood = StudentT(5.0, 0.1, learn=True)
        nats = likelihood.log_prob(samples, y).mean()

    ``df`` is not trained. ``scale`` and ``learn`` are those of ``Gaussian``.
    """

    df: float

    def __init__(self, df: float, scale: float | None = 1.0, *, learn: bool = False):
        self.df = plain_number(df)
        check_positive("df", self.df)
        super().__init__(scale, learn=learn)

    def standard_log_prob(self, z: Float[Array, "..."]) -> Float[Array, "..."]:
        """The log density of ε."""
        constant = math.lgamma((self.df + 1) / 2) - math.lgamma(self.df / 2) - 0.5 * math.log(self.df * math.pi)
        return constant - (self.df + 1) / 2 * jnp.log1p(z**2 / self.df)

    @property
    def standard_variance(self) -> float:
        """df / (df - 2), infinite up to df = 2."""
        return self.df / (self.df - 2) if self.df > 2 else math.inf

    @property
    def standard_information(self) -> float:
        """(df + 1) / (df + 3)."""
        return (self.df + 1) / (self.df + 3)

    def standard_entropy(self) -> float:
        """The entropy of ε, in nats."""
        half, more = self.df / 2, (self.df + 1) / 2
        log_beta = math.lgamma(half) + math.lgamma(0.5) - math.lgamma(more)
        digammas = jax.scipy.special.digamma(jnp.array([more, half]))
        return more * float(digammas[0] - digammas[1]) + 0.5 * math.log(self.df) + log_beta

    def standard_sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Samples of ε."""
        return jax.random.t(key, self.df, shape)
