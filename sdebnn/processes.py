"""Weight processes over depth t in [0, 1]: the prior, the drift that makes it the posterior, the law at t = 0.

prior       dw = f_p(t, w) dt + σ dB,                  f_p(t, w) = rate (mean - w)    (Ornstein-Uhlenbeck)
posterior   dw = (f_p(t, w) + NN_φ(t, w)) dt + σ dB,   one σ for both, or the KL between them is infinite

While NN_φ = 0 the posterior is the prior, and their KL exactly 0: every drift below starts there.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn.checks import (
    check_array,
    check_callable,
    check_count,
    check_counts,
    check_key,
    check_parameter,
    check_positive,
    plain_number,
)
from sdebnn.starts import filled, normals

LEAST_SIGMA = 1e-4  # under which the KL lets no weight move
TERMS = 20  # of a series, which are exact in float64 up to 1
NARROW = 8  # inputs of a layer, up to which gating its weights costs no more than gating its outputs

Depth = float | Float[Array, ""]
Weights = Float[Array, " weight"]
Drift = Callable[[Depth, Weights], Weights]


def _number_or_array(value: Any) -> Any:
    """A number, which is fixed, as Python's; an array, which is trained, as JAX's."""
    value = plain_number(value)
    numbers = isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.floating)
    return jnp.asarray(value) if numbers else value


class OU(eqx.Module):
    """Ornstein-Uhlenbeck prior. ``rate`` and ``mean`` are trained if given as arrays, fixed if given as numbers.

    A NumPy scalar is a number; an array of JAX without axes is an array.
    """

    rate: float | Float[Array, "..."] = eqx.field(default=1.0, converter=_number_or_array)
    mean: float | Float[Array, "..."] = eqx.field(default=0.0, converter=_number_or_array)
    sigma: float = eqx.field(default=0.1, converter=plain_number)

    def __check_init__(self):
        check_positive("sigma", self.sigma)
        if self.sigma < LEAST_SIGMA:
            warnings.warn(
                f"sigma={self.sigma:g} leaves the weights next to no freedom: moving one of them by 0.1 over the depth "
                f"costs {0.5 * (0.1 / self.sigma) ** 2:.1g} nats. Usual values are 0.01 to 1; for weights without "
                "noise, use ODEBlock.",
                stacklevel=3,
            )
        check_parameter("rate", self.rate, least=0.0)
        check_parameter("mean", self.mean)

    def drift(self, t: Depth, w: Weights) -> Weights:
        """f_p(t, w)."""
        return self.rate * (self.mean - w)

    def marginal(self, t: Depth, w0: Float[Array, "*w"]) -> tuple[Float[Array, "*w"], Float[Array, "*w"]]:
        """Mean and standard deviation of w_t given w_0, in closed form."""
        rate = jnp.asarray(self.rate, w0.dtype)
        mean = self.mean + (w0 - self.mean) * jnp.exp(-rate * t)
        # The variance is σ² (1 - exp(-2 rate t)) / (2 rate), whose limit at rate 0 is Brownian motion's σ² t.
        std = self.sigma * jnp.sqrt(t) * jnp.sqrt(_mean_decay(2 * rate * t))
        return mean, jnp.broadcast_to(std, mean.shape)

    def constrained(self) -> "OU":
        """The nearest prior that does not explode: itself, with an array ``rate`` raised to at least 0.

        For use after an update of the parameters, which knows no bounds.
        """
        if not isinstance(self.rate, jax.Array):
            return self
        return eqx.tree_at(lambda prior: prior.rate, self, jnp.maximum(self.rate, 0))


def _mean_decay(z: Float[Array, "..."]) -> Float[Array, "..."]:
    """(1 - exp(-z)) / z, the mean of exp(-s) over s from 0 to z; smooth at 0, and so are its derivatives."""
    small = jnp.abs(z) < 1
    # 1 - z/2 (1 - z/3 (1 - ...)): differences of the quotient itself would lose all digits near 0.
    near, far = jnp.where(small, z, 0.0), jnp.where(small, 1.0, z)
    series = jnp.ones_like(z)
    for k in range(TERMS, 1, -1):
        series = 1 - near / k * series
    return jnp.where(small, series, -jnp.expm1(-far) / far)


class ConcatSquash(eqx.Module):
    """A linear layer that depth opens, closes and shifts: (W x + b) sigmoid(c t + d) + e t."""

    weight: Float[Array, "out in"]
    bias: Float[Array, " out"]
    gate: Float[Array, " out"]
    gate_bias: Float[Array, " out"]
    shift: Float[Array, " out"]

    def __init__(self, in_size: int, out_size: int, *, key: PRNGKeyArray):
        weight, gate = jax.random.split(key)
        self.weight = jnp.asarray(1 / math.sqrt(in_size) * normals(weight, (out_size, in_size)))
        self.gate = jnp.asarray(normals(gate, (out_size,)))
        self.bias, self.gate_bias, self.shift = (filled(out_size) for _ in range(3))

    def __call__(self, t: Depth, x: Float[Array, " in"]) -> Float[Array, " out"]:
        gate = jax.nn.sigmoid(self.gate * t + self.gate_bias)
        if self.weight.shape[1] > NARROW or self.weight.shape[0] <= NARROW:
            return (self.weight @ x + self.bias) * gate + self.shift * t
        # All of it as one product, so that the gradient's sums over draws are one, too: others are slow on a processor.
        gate = lax.optimization_barrier(gate)  # which would otherwise be computed for each row
        rows = jnp.concatenate([(gate[:, None] * self.weight).T, (gate * self.bias + self.shift * t)[None]])
        return jnp.append(x, jnp.ones((), x.dtype)) @ rows


class DriftNet(eqx.Module):
    """NN_φ(t, w): a time-conditional MLP from w to w through the given widths; its last layer starts at zero.

    Narrow widths such as (1, 64, 1) keep the number of parameters linear, and small, in the number of weights.
    """

    layers: tuple[ConcatSquash, ...]
    activation: Callable[[Array], Array]

    def __init__(
        self,
        size: int,
        widths: Sequence[int] = (32, 32),
        *,
        activation: Callable[[Array], Array] = jnp.tanh,
        key: PRNGKeyArray,
    ):
        check_count("size", size)
        check_counts("widths", widths)
        check_callable("activation", activation, "jnp.tanh")
        check_key(key)
        sizes = (size, *widths, size)
        keys = jax.random.split(key, len(sizes) - 1)
        layers = [ConcatSquash(m, n, key=k) for m, n, k in zip(sizes[:-1], sizes[1:], keys, strict=True)]
        # bias and shift are zero already: with the weight, so is the output
        layers[-1] = eqx.tree_at(lambda layer: layer.weight, layers[-1], filled((size, sizes[-2])))
        self.layers = tuple(layers)
        self.activation = activation

    def __call__(self, t: Depth, w: Weights) -> Weights:
        for layer in self.layers[:-1]:
            w = self.activation(layer(t, w))
        return self.layers[-1](t, w)


class NoDrift(eqx.Module):
    """Zero, and no parameters: the posterior is the prior."""

    def __call__(self, t: Depth, w: Weights) -> Weights:
        return jnp.zeros_like(w)


class LinearDrift(eqx.Module):
    """a(t) w + b(t), elementwise: the posterior stays a Gaussian process, factorised over the weights.

    ``a`` and ``b`` are linear in t between equally spaced knots, and start at zero.
    """

    slope: Float[Array, "knot weight"]
    offset: Float[Array, "knot weight"]

    def __init__(self, size: int, knots: int = 8):
        check_count("size", size)
        check_count("knots", knots, least=2)
        self.slope, self.offset = filled((knots, size)), filled((knots, size))

    def __call__(self, t: Depth, w: Weights) -> Weights:
        last = self.slope.shape[0] - 1
        position = jnp.asarray(t, w.dtype) * last
        left = jnp.clip(jnp.floor(position), 0, last - 1).astype(int)
        share = position - left

        def at_t(knots: Float[Array, "knot weight"]) -> Weights:
            return (1 - share) * knots[left] + share * knots[left + 1]

        return at_t(self.slope) * w + at_t(self.offset)


class Point(eqx.Module):
    """w_0 is one learned value. The bound does not charge for what it holds."""

    value: Weights

    def __check_init__(self):
        check_array("value", self.value)

    def sample(self, *, key: PRNGKeyArray) -> Weights:
        """The value itself, whatever the key."""
        return self.value

    def kl(self) -> Float[Array, ""]:
        """Zero: nothing is inferred."""
        return jnp.zeros((), self.value.dtype)

    def log_ratio(self, w0: Weights) -> Float[Array, ""]:
        """Zero: nothing is inferred."""
        return jnp.zeros((), self.value.dtype)

    def prior(self) -> "Point":
        """The point itself: it has no prior."""
        return self


class Normal(eqx.Module):
    """w_0 is inferred: q(w_0) = N(mean, std²) against the prior N(prior_mean, prior_std²), each weight alone.

    ``prior_std=None`` is empirical Bayes: the one value for all these weights that makes the KL least.
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
        """One reparameterised draw."""
        return self.mean + jnp.exp(self.log_std) * jax.random.normal(key, self.mean.shape, self.mean.dtype)

    def kl(self) -> Float[Array, ""]:
        """KL(q(w_0) || p(w_0)) in nats, in closed form."""
        log_prior_std = self._log_prior_std()
        log_relative = self.log_std - log_prior_std
        shift = (self.mean - self.prior_mean) * jnp.exp(-log_prior_std)
        return 0.5 * jnp.sum(jnp.expm1(2 * log_relative) - 2 * log_relative + shift**2)

    def log_ratio(self, w0: Weights) -> Float[Array, ""]:
        """log q(w_0) - log p(w_0), whose mean under q is the KL."""
        log_prior_std = self._log_prior_std()
        under_q = (w0 - self.mean) * jnp.exp(-self.log_std)
        under_p = (w0 - self.prior_mean) * jnp.exp(-log_prior_std)
        return jnp.sum(0.5 * under_p**2 - 0.5 * under_q**2 - (self.log_std - log_prior_std))

    def prior(self) -> "Normal":
        """The law before any data."""
        log_std = jnp.broadcast_to(self._log_prior_std(), self.mean.shape)
        mean = jnp.full_like(self.mean, self.prior_mean)
        return eqx.tree_at(lambda law: (law.mean, law.log_std), self, (mean, log_std))

    def _log_prior_std(self) -> Float[Array, ""]:
        if self.prior_std is not None:
            return jnp.asarray(math.log(self.prior_std), self.mean.dtype)
        return 0.5 * jnp.log(jnp.mean((self.mean - self.prior_mean) ** 2 + jnp.exp(2 * self.log_std)))


class Independent(eqx.Module):
    """Laws of consecutive parts of w_0, such as the arrays of a module: some may be points, others inferred."""

    parts: tuple[Point | Normal, ...]

    def sample(self, *, key: PRNGKeyArray) -> Weights:
        """One draw of every part."""
        keys = jax.random.split(key, len(self.parts))
        return jnp.concatenate([part.sample(key=k) for part, k in zip(self.parts, keys, strict=True)])

    def kl(self) -> Float[Array, ""]:
        """The sum of the parts' KLs."""
        return jnp.sum(jnp.stack([part.kl() for part in self.parts]))

    def log_ratio(self, w0: Weights) -> Float[Array, ""]:
        """The sum of the parts' log density ratios."""
        ends = np.cumsum([jnp.size(jax.tree.leaves(part)[0]) for part in self.parts])[:-1]
        pieces = zip(self.parts, jnp.split(w0, ends), strict=True)
        return jnp.sum(jnp.stack([part.log_ratio(piece) for part, piece in pieces]))

    def prior(self) -> "Independent":
        """The laws before any data."""
        return Independent(tuple(part.prior() for part in self.parts))


Law = Point | Normal | Independent
