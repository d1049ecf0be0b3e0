"""Bayesian hypernets (Krueger et al. 2017): a normalising flow turns noise into weights of known density.

ε ~ N(0, I),   w = mean + std · z(ε),   z a chain of couplings:   (a, b) -> (a, b · exp(s(a)) + m(a))
log q(w) = log N(ε; 0, I) - Σ s - Σ log std

The KL is estimated by log q(w) - log p(w) at the drawn weights.
"""

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num, PRNGKeyArray

from sdebnn.checks import check_count, check_key, check_positive, plain_number
from sdebnn.contract import AbstractModel, LayerLine, parameter_count
from sdebnn.host_arrays import filled
from sdebnn.integrate import Solution
from sdebnn.models import WeightFunction, as_model
from sdebnn.processes import Weights


class Coupling(eqx.Module):
    """One half of a vector shifts and scales the other half: invertible, with a triangular Jacobian."""

    into: eqx.nn.Linear
    out: eqx.nn.Linear
    size: int = eqx.field(static=True)

    def __init__(self, size: int, width: int, *, key: PRNGKeyArray):
        first, second = jax.random.split(key)
        half = size // 2
        self.into = eqx.nn.Linear(half, width, key=first)
        out = eqx.nn.Linear(width, 2 * (size - half), key=second)
        # Zero, so that the flow starts as a factorised normal law.
        self.out = jax.tree.map(jnp.zeros_like, out)
        self.size = size

    def __call__(self, z: Weights) -> tuple[Weights, Float[Array, ""]]:
        """The transformed vector, with its halves swapped, and the log determinant of the Jacobian."""
        a, b = z[: self.size // 2], z[self.size // 2 :]
        s, m = self._moves(a)
        return jnp.concatenate([b * jnp.exp(s) + m, a]), jnp.sum(s)

    def inverse(self, z: Weights) -> tuple[Weights, Float[Array, ""]]:
        """The vector before the transformation, and the log determinant of the transformation."""
        moved = self.size - self.size // 2
        a = z[moved:]
        s, m = self._moves(a)
        return jnp.concatenate([a, (z[:moved] - m) * jnp.exp(-s)]), jnp.sum(s)

    def _moves(self, a: Float[Array, " half"]) -> tuple[Array, Array]:
        s, m = jnp.split(self.out(jnp.tanh(self.into(a))), 2)
        return jnp.tanh(s), m  # a coupling scales by at most a factor of e


class Hypernet(AbstractModel):
    """Any model, or module of one example, whose weights (standardised by their fan-in) are drawn by a flow.

        net = baselines.Hypernet(eqx.nn.MLP(1, 1, 8, 1, key=key), couplings=2, key=key)
        outputs, kl = net(x, key=key)  # one draw

    The flow has ``couplings`` with ``width`` hidden units each. With two or more, every weight can depend on every
    other. ``std`` is the initial standard deviation of the weights, ``prior_std`` that of their prior.
    """

    net: WeightFunction
    mean: Weights
    log_std: Weights
    couplings: tuple[Coupling, ...]
    prior_std: float = eqx.field(static=True)

    def __init__(
        self,
        model: AbstractModel | Callable[[Array], Array],
        std: float = 0.05,
        *,
        couplings: int = 4,
        width: int = 32,
        prior_std: float = 1.0,
        key: PRNGKeyArray,
    ):
        std, prior_std = plain_number(std), plain_number(prior_std)
        check_positive("std", std)
        check_positive("prior_std", prior_std)
        check_count("couplings", couplings)
        check_count("width", width)
        check_key(key)
        self.net, self.mean = WeightFunction.of(as_model(model))
        size = self.net.weights.size
        if size < 2:
            raise ValueError(f"{type(model).__name__} has only one weight: a coupling needs two.")
        self.log_std = filled(self.mean.shape, math.log(std), self.mean.dtype)
        # If the size is odd, the longer half is transformed, and comes first after the swap.
        self.couplings = tuple(Coupling(size, width, key=k) for k in jax.random.split(key, couplings))
        self.prior_std = prior_std

    def draw(self, *, key: PRNGKeyArray) -> tuple[Weights, Float[Array, ""]]:
        """Drawn weights, and the log of their density."""
        noise = jax.random.normal(key, self.mean.shape, self.mean.dtype)
        w, log_det = self.push(noise)
        return w, _log_normal(noise) - log_det

    def push(self, noise: Weights) -> tuple[Weights, Float[Array, ""]]:
        """The weights that the noise is turned into, and log |det ∂w/∂ε|."""
        z, total = noise, jnp.sum(self.log_std)
        for coupling in self.couplings:
            z, log_det = coupling(z)
            total = total + log_det
        return self.mean + jnp.exp(self.log_std) * z, total

    def log_prob(self, w: Weights) -> Float[Array, ""]:
        """The log density of any weights."""
        z, total = (w - self.mean) * jnp.exp(-self.log_std), jnp.sum(self.log_std)
        for coupling in reversed(self.couplings):
            z, log_det = coupling.inverse(z)
            total = total + log_det
        return _log_normal(z) - total

    def layer_line(self, x: Num[Array, "example *input"]) -> LayerLine:
        """The number of weights, and the model that has these weights."""
        inner = self.net(self.mean).layer_line(x)
        return LayerLine(type(self).__name__, parameter_count(self), self.mean.size, inside=(inner,))

    def solve(self, x: Num[Array, "example *input"], *, key: PRNGKeyArray, with_roughness: bool = False) -> Solution:
        """The solution of the model under one draw of its weights, with the KL added to the model's own."""
        w, log_q = self.draw(key=key)
        part = self.net(w).solve(x, key=jax.random.fold_in(key, 0), with_roughness=with_roughness)
        log_p = _log_normal(w / self.prior_std) - w.size * math.log(self.prior_std)
        return part._replace(kl=part.kl + (log_q - log_p).astype(part.kl.dtype))


def _log_normal(z: Weights) -> Float[Array, ""]:
    return -0.5 * jnp.sum(z**2) - 0.5 * z.size * math.log(2 * math.pi)
