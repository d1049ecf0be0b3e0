"""Likelihoods p(y | outputs): what a model's outputs say of the targets.

Each has    log_prob(outputs, y)    nats of every example,
            center(outputs)         the mean of y (the median under Cauchy; the class probabilities),
            variance(outputs)       the variance of y around it, infinite where there is none,
            sample(outputs, key=)   targets drawn from it.

The scale of a location-scale law is known (a float), learned (``learn=True``), or, with ``scale=None``, read from
the second half of the outputs (heteroscedastic): softplus keeps it positive.
"""

import math
from abc import abstractmethod
from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float, Int, PRNGKeyArray, Real

from sdebnn.checks import check_classes, check_key, check_positive, plain_number

Outputs = Float[Array, "*lead output"]


@runtime_checkable
class Likelihood(Protocol):
    """What ``fit`` and ``predict`` ask of a likelihood. Leading axes of outputs and targets broadcast."""

    def log_prob(self, outputs: Outputs, y: Array) -> Float[Array, "..."]:
        """log p(y | outputs), summed over the last axis."""
        ...

    def center(self, outputs: Outputs) -> Float[Array, "..."]:
        """The middle of p(y | outputs)."""
        ...

    def variance(self, outputs: Outputs) -> Float[Array, "..."]:
        """The variance of p(y | outputs)."""
        ...

    def sample(self, outputs: Outputs, *, key: PRNGKeyArray) -> Array:
        """Targets drawn from p(y | outputs)."""
        ...


def _check_head(outputs: Outputs, y: Array, what: str) -> None:
    """Refuse outputs of more axes than examples and outputs: they may be draws, or those of a net without a head."""
    if outputs.ndim > 2:
        raise ValueError(
            f"y has shape {y.shape} and the outputs have shape {outputs.shape}, where (examples, {what}) or "
            f"(draws, examples, {what}) is needed: pass as many y as examples, and if the net gives several rows for "
            "each example, end it with a head such as eqx.nn.Linear."
        )


class _LocationScale(eqx.Module):
    """y = location + scale · ε; a law is the density, the variance and the sampler of ε."""

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
    def _standard_log_prob(self, z: Float[Array, "..."]) -> Float[Array, "..."]: ...

    @property
    @abstractmethod
    def _standard_variance(self) -> float: ...

    @abstractmethod
    def standard_entropy(self) -> float:
        """The entropy of ε, in nats."""

    @abstractmethod
    def _standard_sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]: ...

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
        return location, jax.nn.softplus(raw) + 1e-6

    def scale(self, outputs: Outputs) -> Float[Array, "..."]:
        """The scale of every target."""
        location, scale = self._split(outputs)
        return jnp.broadcast_to(scale, location.shape)

    def center(self, outputs: Outputs) -> Float[Array, "..."]:
        """The location of every target."""
        return self._split(outputs)[0]

    def variance(self, outputs: Outputs) -> Float[Array, "..."]:
        """The variance of every target around its location."""
        return self.scale(outputs) ** 2 * self._standard_variance

    def log_prob(self, outputs: Outputs, y: Real[Array, "*_ target"]) -> Float[Array, "..."]:
        """log p(y | outputs), summed over the targets of an example."""
        location, scale = self._split(outputs)
        # The axes of an example must all be there: broadcasting would pair every target with every example.
        if not min(2, location.ndim) <= y.ndim <= location.ndim or y.shape != location.shape[-y.ndim :]:
            _check_head(outputs, y, "targets")
            raise ValueError(
                f"y has shape {y.shape}, the model gives {location.shape[-1]} target(s) for each of "
                f"{location.shape[-2] if location.ndim > 1 else 1} example(s): pass y of shape "
                f"(examples, {location.shape[-1]})."
            )
        return jnp.sum(self._standard_log_prob((y - location) / scale) - jnp.log(scale), axis=-1)

    def sample(self, outputs: Outputs, *, key: PRNGKeyArray) -> Float[Array, "..."]:
        """Targets drawn from p(y | outputs)."""
        check_key(key)
        location, scale = self._split(outputs)
        return location + scale * self._standard_sample(key, location.shape).astype(location.dtype)


class Gaussian(_LocationScale):
    """Normal noise; ``scale`` is its standard deviation."""

    def __init__(self, scale: float | None = 1.0, *, learn: bool = False):
        super().__init__(scale, learn=learn)

    def _standard_log_prob(self, z):
        return -0.5 * z**2 - 0.5 * math.log(2 * math.pi)

    @property
    def _standard_variance(self):
        return 1.0

    def standard_entropy(self):
        return 0.5 * math.log(2 * math.pi * math.e)

    def _standard_sample(self, key, shape):
        return jax.random.normal(key, shape)


class Laplace(_LocationScale):
    """Double-exponential noise; its standard deviation is √2 ``scale``."""

    def __init__(self, scale: float | None = 1.0, *, learn: bool = False):
        super().__init__(scale, learn=learn)

    def _standard_log_prob(self, z):
        return -jnp.abs(z) - math.log(2)

    @property
    def _standard_variance(self):
        return 2.0

    def standard_entropy(self):
        return 1 + math.log(2)

    def _standard_sample(self, key, shape):
        return jax.random.laplace(key, shape)


class Cauchy(_LocationScale):
    """Noise without mean or variance: outliers weigh little."""

    def __init__(self, scale: float | None = 1.0, *, learn: bool = False):
        super().__init__(scale, learn=learn)

    def _standard_log_prob(self, z):
        return -jnp.log1p(z**2) - math.log(math.pi)

    @property
    def _standard_variance(self):
        return math.inf

    def standard_entropy(self):
        return math.log(4 * math.pi)

    def _standard_sample(self, key, shape):
        return jax.random.cauchy(key, shape)


class StudentT(_LocationScale):
    """Student's t with ``df`` degrees of freedom: Cauchy at 1, Gaussian in the limit."""

    df: float

    def __init__(self, df: float, scale: float | None = 1.0, *, learn: bool = False):
        self.df = plain_number(df)
        check_positive("df", self.df)
        super().__init__(scale, learn=learn)

    def _standard_log_prob(self, z):
        constant = math.lgamma((self.df + 1) / 2) - math.lgamma(self.df / 2) - 0.5 * math.log(self.df * math.pi)
        return constant - (self.df + 1) / 2 * jnp.log1p(z**2 / self.df)

    @property
    def _standard_variance(self):
        return self.df / (self.df - 2) if self.df > 2 else math.inf

    def standard_entropy(self):
        half, more = self.df / 2, (self.df + 1) / 2
        log_beta = math.lgamma(half) + math.lgamma(0.5) - math.lgamma(more)
        digammas = jax.scipy.special.digamma(jnp.array([more, half]))
        return more * float(digammas[0] - digammas[1]) + 0.5 * math.log(self.df) + log_beta

    def _standard_sample(self, key, shape):
        return jax.random.t(key, self.df, shape)


class Categorical(eqx.Module):
    """One of several classes; the outputs are logits, the targets class numbers."""

    def log_prob(self, outputs: Outputs, y: Int[Array, "..."]) -> Float[Array, "..."]:
        """log p(y | outputs)."""
        classes = outputs.shape[-1]
        if classes < 2:
            raise ValueError(f"the model has {classes} output: build it with one for each class, two or more.")
        if not jnp.issubdtype(y.dtype, jnp.integer):
            raise ValueError(f"y has dtype {y.dtype}: pass class numbers, whole numbers from 0 to {classes - 1}.")
        examples = outputs.shape[:-1]
        if not min(1, len(examples)) <= y.ndim <= len(examples) or y.shape != examples[len(examples) - y.ndim :]:
            _check_head(outputs, y, "classes")
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
        """p (1 - p) of every class: the variance of its indicator."""
        p = self.center(outputs)
        return p * (1 - p)

    def sample(self, outputs: Outputs, *, key: PRNGKeyArray) -> Int[Array, "..."]:
        """Classes drawn from p(y | outputs)."""
        check_key(key)
        return jax.random.categorical(key, outputs)


class Weighted(eqx.Module):
    """Any likelihood, of targets whose last column says how often each row counts; class numbers may be floats there.

    Rows of weight 2 are as two of them. A forecast knows no weights: all else is the likelihood's own.
    """

    likelihood: Likelihood

    def log_prob(self, outputs: Outputs, y: Real[Array, "*_ column"]) -> Float[Array, "..."]:
        """log p(y | outputs), as often as the row counts."""
        targets, weights = self.parted(y)
        return weights * self.likelihood.log_prob(outputs, targets)

    def parted(self, y: Real[Array, "*_ column"]) -> tuple[Array, Float[Array, "..."]]:
        """The targets as the likelihood takes them, and the weights."""
        if y.shape[-1] < 2:
            raise ValueError(f"y has shape {y.shape}: put the weight of each row in a last column, after the targets.")
        targets, weights = y[..., :-1], y[..., -1]
        return targets[..., 0].astype(int) if isinstance(self.likelihood, Categorical) else targets, weights

    def center(self, outputs: Outputs) -> Float[Array, "..."]:
        """The middle of p(y | outputs)."""
        return self.likelihood.center(outputs)

    def variance(self, outputs: Outputs) -> Float[Array, "..."]:
        """The variance of p(y | outputs)."""
        return self.likelihood.variance(outputs)

    def sample(self, outputs: Outputs, *, key: PRNGKeyArray) -> Array:
        """Targets drawn from p(y | outputs), without weights."""
        return self.likelihood.sample(outputs, key=key)


def parted(likelihood: Likelihood, y: Array) -> tuple[Likelihood, Array, Array | None]:
    """A likelihood without weights, its targets, and the weights, if there are any."""
    return (likelihood.likelihood, *likelihood.parted(y)) if isinstance(likelihood, Weighted) else (likelihood, y, None)


def noise_log_prob(likelihood: Likelihood) -> float | None:
    """The mean log density of a target whose residual is the likelihood's own noise; None if outputs set the scale."""
    if not isinstance(likelihood, _LocationScale) or likelihood.log_scale is None:
        return None
    return -likelihood.standard_entropy() - float(likelihood.log_scale)
