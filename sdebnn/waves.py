"""A field whose features make random smooth functions of the inputs, of a chosen or an inferred length.

v = (x - center) / length,      φ = √(2 / width) sin(r A v + E z / √augment + f t + π a)
z' = C φ + c,      Φ' = φ,      T' = v / (4 √inputs)

The rates r are constants, one for each wave; A, E, f, a, C and c are random.
"""

import dataclasses
import math
from collections.abc import Sequence
from statistics import NormalDist

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn.checks import check_count, check_counts, check_key
from sdebnn.fields import AbstractLayer, fixed_logarithms
from sdebnn.host_arrays import filled, normals
from sdebnn.processes import Depth

TREND = 0.25  # standard deviation of the trend's slope, in units of scale / length
LOG_LENGTHS = tuple(np.linspace(-2.4, 1.2, 13).tolist())  # relative to the median, among which training starts
# Taylor coefficients of sin(2π r) / r in r².
SINE = tuple((-1) ** k * (2 * math.pi) ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(7))
GOLDEN = (math.sqrt(5) - 1) / 2  # multiples of it, modulo 1, fill the unit interval evenly
LENGTH_SPREAD = 1.0  # standard deviation, under the prior, of the logarithm of an inferred length
WAVE_SPREAD = 0.7  # that of the logarithms of the waves' own lengths, relative to the common one


class WaveWeights(eqx.Module):
    """The arrays of ``Waves`` that are random, standardised. ``length`` is empty if the lengths are given."""

    inputs: Float[Array, "width in"]
    states: Float[Array, "width augment"]
    depth: Float[Array, " width"]
    phase: Float[Array, " width"]
    inner: Float[Array, "augment width"]
    inner_bias: Float[Array, " augment"]
    length: Float[Array, " inferred"]


class Waves(AbstractLayer):
    """Sine waves of the inputs, which change over depth and act on each other through ``augment`` numbers z.

        waves = Waves(1, width=32, length=0.5, key=key)
        first = Deterministic(Augment(1, waves.state_size - 1))
        body = SDEBNN((first, bayesianize(waves, lambda f: f.weights, key=key)))
        net = ConditionedReadout(body, outputs=1)

    The state is h = (x, z, Φ, T): the inputs, which stay as they are; z; the sum Φ of the ``width`` waves over depth;
    and a trend T. All but x start at 0. A linear function of (Φ, T, 1) with standard normal coefficients is then a
    smooth random function of x, of size 1, which changes over distances of about ``length`` and has a weak trend. Each
    wave has a length of its own around it, for most of them within a factor of 2.

    ``length`` is one number, or one for each input, in the units of x. Without it, the lengths are random weights:
    their logarithms have the standard deviation 1 around those of the inputs' spread, which ``fit`` takes from the data
    as it does ``center``, the mean of the inputs. If there are several inputs, every second wave depends on one of them
    alone.
    """

    weights: WaveWeights
    log_length: Float[Array, " in"] | tuple[float, ...]
    center: Float[Array, " in"]

    def __init__(
        self,
        in_size: int,
        width: int = 64,
        augment: int = 2,
        *,
        length: float | Sequence[float] | None = None,
        key: PRNGKeyArray,
    ):
        check_counts("sizes", (in_size, width))
        check_count("augment", augment, least=0)
        check_key(key)
        keys = iter(jax.random.split(key, len(dataclasses.fields(WaveWeights))))

        def drawn(*shape: int) -> Array:
            return jnp.asarray(normals(next(keys), shape))

        self.log_length = filled(in_size) if length is None else fixed_logarithms("length", length, in_size)
        self.weights = WaveWeights(
            drawn(width, in_size), drawn(width, augment), drawn(width), drawn(width), drawn(augment, width),
            drawn(augment), drawn(in_size if length is None else 0),
        )  # fmt: skip
        self.center = filled(in_size)

    @property
    def feature_count(self) -> int:
        """The number of entries of (Φ, T), at the end of the state."""
        return sum(self.weights.inputs.shape)

    @property
    def state_size(self) -> int:
        """The number of entries of the state."""
        width, in_size = self.weights.inputs.shape
        return 2 * in_size + self.weights.states.shape[1] + width

    @property
    def scales(self) -> "Waves":
        """1: the weights are standardised."""
        return jax.tree.map(lambda leaf: 1.0 if eqx.is_inexact_array(leaf) else leaf, self)

    def suited_to(self, h: Float[np.ndarray, "example state"]) -> "Waves":
        """The center is the mean of the inputs. Inferred lengths have the inputs' spread, times √inputs, as median."""
        x = h[:, : self.center.size]
        new = eqx.tree_at(lambda field: field.center, self, jnp.asarray(x.mean(0), self.center.dtype))
        if not isinstance(self.log_length, jax.Array):
            return new
        std = x.std(0)
        lengths = np.where(std > 0, std, 1.0) * math.sqrt(x.shape[1])
        return eqx.tree_at(lambda field: field.log_length, new, jnp.asarray(np.log(lengths), self.center.dtype))

    def likely_weights(
        self,
        h: Float[np.ndarray, "point state"],
        targets: Float[np.ndarray, "point output"],
        variances: Float[np.ndarray, "point output"],
    ) -> "Waves | None":
        """Zeros, and lengths that all differ from their medians by the factor of the highest evidence among a few."""
        if not self.weights.length.size:
            return None
        v = (h[:, : self.center.size] - np.asarray(self.center)) * np.exp(-np.asarray(self.log_length))
        evidence = [_log_evidence(v * math.exp(-log), targets, variances) for log in LOG_LENGTHS]
        start = jax.tree.map(jnp.zeros_like, self.weights)
        best = LOG_LENGTHS[int(np.argmax(evidence))] / LENGTH_SPREAD
        start = eqx.tree_at(lambda w: w.length, start, jnp.full_like(start.length, best))
        return eqx.tree_at(lambda field: field.weights, self, start)

    def __call__(self, t: Depth, h: Float[Array, " state"]) -> Float[Array, " state"]:
        w, (width, in_size) = self.weights, self.weights.inputs.shape
        augment = w.states.shape[1]
        x, z = h[:in_size], h[in_size : in_size + augment]
        log_length = lax.stop_gradient(jnp.asarray(self.log_length, h.dtype))
        if w.length.size:
            log_length = log_length + LENGTH_SPREAD * w.length
        v = (x - lax.stop_gradient(self.center)) * jnp.exp(-log_length)
        angle = (w.inputs * _rates(width, in_size)) @ v + t * w.depth + math.pi * w.phase
        if augment:
            angle = angle + w.states @ z / math.sqrt(augment)
        wave = math.sqrt(2 / width) * sine(angle)
        inner = w.inner @ wave + w.inner_bias
        return jnp.concatenate([jnp.zeros_like(x), inner, wave, TREND / math.sqrt(in_size) * v])


def sine(angle: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """sin(angle) to about 1e-6, by a polynomial: XLA's own takes twelve times as long on a CPU."""
    turns = angle * (0.5 / math.pi)
    turns = turns - lax.stop_gradient(jnp.round(turns))
    quarter = jnp.where(jnp.abs(turns) > 0.25, jnp.sign(turns) * 0.5 - turns, turns)  # the same sine, from -¼ to ¼
    square, value = quarter**2, jnp.full_like(quarter, SINE[-1])
    for coefficient in SINE[-2::-1]:
        value = value * square + coefficient
    return quarter * value


def _log_evidence(
    v: Float[np.ndarray, "point in"], targets: Float[np.ndarray, "point output"], variances: Float[np.ndarray, "..."]
) -> float:
    """That of a Gaussian process with the covariance to which wide nets tend, at the best of a few scales."""
    kernel = wide_net_covariance(v, v)

    def of(scale: float) -> float:
        total = 0.0
        for y, variance in zip(targets.T, variances.T, strict=True):
            factor = np.linalg.cholesky(scale**2 * kernel + np.diag(variance + 1e-6 * scale**2))
            total -= 0.5 * np.sum(np.linalg.solve(factor, y) ** 2) + np.sum(np.log(np.diag(factor)))
        return total

    return max(map(of, (0.25, 0.5, 1.0, 2.0)))


def wide_net_covariance(a: Float[np.ndarray, "m in"], b: Float[np.ndarray, "n in"]) -> Float[np.ndarray, "m n"]:
    """The covariance of a linear function of (Φ, T, 1) at v = a and v = b.

    There are many waves, all of them see all inputs, they do not move over depth, and z is left out.
    """
    squares = np.sum((a[:, None] - b) ** 2, axis=-1)
    waves = np.mean([np.exp(-0.5 * squares * rate**2) for rate in _own_rates(64)], axis=0)
    return 1 + waves + TREND**2 / a.shape[1] * a @ b.T


def _own_rates(width: int) -> Float[np.ndarray, " width"]:
    """How fast each wave changes, times the common length: log-normal quantiles at evenly spread shares."""
    shares = (0.5 + np.arange(width) * GOLDEN) % 1
    return np.exp(WAVE_SPREAD * np.array([NormalDist().inv_cdf(share) for share in shares]))


def _rates(width: int, in_size: int) -> Float[np.ndarray, "width in"]:
    """The rates of all waves by input. Of several inputs, every second wave sees one alone, at its own length."""
    seen = np.ones((width, in_size))
    if in_size > 1:
        single = np.arange(1, width, 2)
        seen[single] = math.sqrt(in_size) * np.eye(in_size)[(single // 2) % in_size]
    return (_own_rates(width)[:, None] * seen).astype(np.float32)
