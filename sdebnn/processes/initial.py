"""Laws of w_0, the weights at depth 0: a trained point, or a posterior with a prior of its own."""

import math
from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn.checks import check_array, check_parameter, check_positive, plain_number
from sdebnn.host_arrays import filled
from sdebnn.processes.prior import Weights


class AbstractInitialLaw(eqx.Module):
    """q(w_0), and the prior p(w_0) of its KL.

    To write your own, subclass it with ``sample``, ``log_ratio`` and ``prior``; ``kl`` too if it has a closed form:

        class Uniform(AbstractInitialLaw):
            center: jax.Array  # q is uniform on center ± 1, p on 0 ± 10

            def sample(self, *, key):
                size = self.center.shape
                return self.center + jax.random.uniform(key, size, minval=-1, maxval=1)

            def log_ratio(self, w0):
                return jnp.asarray(w0.size * np.log(10.0))

            def prior(self):
                return self  # or a law with the prior's own spread

        block = bayesianize(field, initial=Uniform, key=key)

    ``bayesianize`` calls it with the standardised weights of the field, a vector.
    """

    @abstractmethod
    def sample(self, *, key: PRNGKeyArray) -> Weights:
        """One sample of w_0, a vector, through which gradients flow to the law's arrays."""

    @abstractmethod
    def log_ratio(self, w0: Weights) -> Float[Array, ""]:
        """log q(w_0) - log p(w_0). Its mean under q is the KL."""

    @abstractmethod
    def prior(self) -> "AbstractInitialLaw":
        """The law before any data."""

    def kl(self) -> Float[Array, ""] | None:
        """KL(q(w_0) || p(w_0)) in nats, or None if there is no closed form; ``log_ratio`` then estimates it."""
        return None

    def moments(self) -> tuple[Weights, Weights] | None:
        """Mean and standard deviation if the weights are independent and normal, otherwise None.

        A ``Guide`` conditions such a law on its pseudo-observations, and leaves any other law as it is.
        """
        return None

    @property
    def is_inferred(self) -> bool:
        """Whether the KL charges for what w_0 has learned."""
        return True

    @property
    def description(self) -> str:
        """The law in a few words, for ``describe``."""
        return f"{type(self).__name__}, {'inferred' if self.is_inferred else 'a trained value'}"

    @property
    def size(self) -> int:
        """The number of weights."""
        return jax.eval_shape(lambda key: self.sample(key=key), jax.random.key(0)).size


class Point(AbstractInitialLaw):
    """w_0 is one trained value. The KL does not charge for it.

        block = bayesianize(field, initial=Point, key=key)

    ``value`` is the vector of standardised weights.
    """

    value: Weights

    def __check_init__(self):
        check_array("value", self.value)

    def sample(self, *, key: PRNGKeyArray) -> Weights:
        """The value itself, for every key."""
        return self.value

    def log_ratio(self, w0: Weights) -> Float[Array, ""]:
        """Zero, since nothing is inferred."""
        return jnp.zeros((), self.value.dtype)

    def prior(self) -> "Point":
        """The point itself: it has no prior."""
        return self

    def kl(self) -> Float[Array, ""]:
        """Zero, since nothing is inferred."""
        return jnp.zeros((), self.value.dtype)

    @property
    def is_inferred(self) -> bool:
        """False."""
        return False


class Normal(AbstractInitialLaw):
    """q(w_0) = N(mean, std²) against the prior N(prior_mean, prior_std²), independent over weights.

        block = bayesianize(field, initial=Normal, key=key)
        nats = Normal(jnp.zeros(4), 0.1).kl()
        narrow = bayesianize(field, initial=lambda w0: Normal(w0, 0.1), key=key)

    ``mean`` is the vector where training starts, ``std`` one number, that of all weights where training starts.
    ``prior_std=None`` is empirical Bayes: the single value, for all these weights, that minimises the KL.
    """

    mean: Weights
    log_std: Weights
    prior_mean: float
    prior_std: float | None

    def __init__(self, mean: Weights, std: float = 0.2, *, prior_mean: float = 0.0, prior_std: float | None = 1.0):
        std, prior_mean, prior_std = map(plain_number, (std, prior_mean, prior_std))
        check_array("mean", mean)
        check_positive("std", std)
        if prior_std is not None:
            check_positive("prior_std", prior_std)
        check_parameter("prior_mean", prior_mean)
        self.mean = jnp.asarray(mean)
        self.log_std = filled(self.mean.shape, math.log(std), self.mean.dtype)
        self.prior_mean = prior_mean
        self.prior_std = prior_std

    def sample(self, *, key: PRNGKeyArray) -> Weights:
        """One reparameterised sample."""
        return self.mean + jnp.exp(self.log_std) * jax.random.normal(key, self.mean.shape, self.mean.dtype)

    def log_ratio(self, w0: Weights) -> Float[Array, ""]:
        """log q(w_0) - log p(w_0)."""
        log_prior_std = self._log_prior_std()
        under_q = (w0 - self.mean) * jnp.exp(-self.log_std)
        under_p = (w0 - self.prior_mean) * jnp.exp(-log_prior_std)
        return jnp.sum(0.5 * under_p**2 - 0.5 * under_q**2 - (self.log_std - log_prior_std))

    def prior(self) -> "Normal":
        """N(prior_mean, prior_std²)."""
        log_std = jnp.broadcast_to(self._log_prior_std(), self.mean.shape)
        mean = jnp.full_like(self.mean, self.prior_mean)
        return eqx.tree_at(lambda law: (law.mean, law.log_std), self, (mean, log_std))

    def kl(self) -> Float[Array, ""]:
        """KL(q(w_0) || p(w_0)) in nats, in closed form."""
        log_prior_std = self._log_prior_std()
        log_relative = self.log_std - log_prior_std
        shift = (self.mean - self.prior_mean) * jnp.exp(-log_prior_std)
        return 0.5 * jnp.sum(jnp.expm1(2 * log_relative) - 2 * log_relative + shift**2)

    def moments(self) -> tuple[Weights, Weights]:
        """The mean and the standard deviation."""
        return self.mean, jnp.exp(self.log_std)

    def _log_prior_std(self) -> Float[Array, ""]:
        if self.prior_std is not None:
            return jnp.asarray(math.log(self.prior_std), self.mean.dtype)
        return 0.5 * jnp.log(jnp.mean((self.mean - self.prior_mean) ** 2 + jnp.exp(2 * self.log_std)))


class Independent(AbstractInitialLaw):
    """Independent laws of consecutive parts of w_0, such as the arrays of a module: some points, others inferred.

        law = Independent((Normal(jnp.zeros(16)), Point(jnp.zeros(4))))
        block = bayesianize(field, initial=lambda w0: law, key=key)

    ``parts`` are the laws; their sizes add up to the number of weights.
    """

    parts: tuple[AbstractInitialLaw, ...]

    def sample(self, *, key: PRNGKeyArray) -> Weights:
        """One sample of every part."""
        keys = jax.random.split(key, len(self.parts))
        return jnp.concatenate([part.sample(key=k) for part, k in zip(self.parts, keys, strict=True)])

    def log_ratio(self, w0: Weights) -> Float[Array, ""]:
        """The sum over the parts."""
        ends = np.cumsum([part.size for part in self.parts])[:-1]
        pieces = zip(self.parts, jnp.split(w0, ends), strict=True)
        return jnp.sum(jnp.stack([part.log_ratio(piece) for part, piece in pieces]))

    def prior(self) -> "Independent":
        """The parts' laws before any data."""
        return Independent(tuple(part.prior() for part in self.parts))

    def kl(self) -> Float[Array, ""] | None:
        """The sum over the parts, if each has a closed form."""
        terms = [part.kl() for part in self.parts]
        known = [term for term in terms if term is not None]
        return jnp.sum(jnp.stack(known)) if len(known) == len(terms) else None

    def moments(self) -> tuple[Weights, Weights] | None:
        """Those of the parts, if each has them."""
        known = [pair for part in self.parts if (pair := part.moments()) is not None]
        if len(known) < len(self.parts):
            return None
        means, stds = zip(*known, strict=True)
        return jnp.concatenate(means), jnp.concatenate(stds)

    @property
    def description(self) -> str:
        """The number of weights that are inferred."""
        inferred = sum(part.size for part in self.parts if part.is_inferred)
        return f"{inferred} of {self.size} inferred"

    @property
    def is_inferred(self) -> bool:
        """Whether any part is inferred."""
        return any(part.is_inferred for part in self.parts)
