"""Laplace's approximation of the last layer (Kristiadi et al. 2020):   q(w) = N(ŵ, P⁻¹) at the trained weights ŵ.

    outputs = W φ(x) + b,   P = Σ φ̃ φ̃ᵀ ⊗ Λ + I / prior_std²,   φ̃ = (φ / √size, 1),   Λ = -∂² log p(y | outputs)

W is standardised by its fan-in. Outputs are linear in the last layer: P is exactly the Hessian, if Λ is positive (where
a likelihood's is not, its positive part).
"""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn.baselines.weights import Held, check_deterministic
from sdebnn.checks import as_inputs, check_count, check_key, check_positive, plain_number
from sdebnn.likelihoods import Likelihood
from sdebnn.models import as_model
from sdebnn.programs import compiled
from sdebnn.starts import filled, normals

ROWS = 500  # at once
MOST = 10_000  # weights of the last layer, whose precision is one dense matrix


class LastLayerLaplace(eqx.Module):
    """Features of any deterministic model, and a linear layer of which ``fit`` also finds the uncertainty.

    Until then the KL is -log p(ŵ), up to a constant: training finds the most probable weights. After it, the KL is that
    of the normal law around them.
    """

    features: Any
    w: Float[Array, "feature output"]  # standardised; the last row is the bias
    factor: Held | None  # L of P = L Lᵀ
    prior_std: float = eqx.field(static=True)

    def __init__(self, features: Any, size: int, outputs: int, *, prior_std: float = 1.0, key: PRNGKeyArray):
        check_count("size", size)
        check_count("outputs", outputs)
        prior_std = plain_number(prior_std)
        check_positive("prior_std", prior_std)
        check_key(key)
        if (size + 1) * outputs > MOST:
            raise ValueError(
                f"a last layer of {size} features and {outputs} outputs has {(size + 1) * outputs} weights, more than "
                f"{MOST}: average the features of an image over its pixels, or take fewer."
            )
        check_deterministic("LastLayerLaplace", features)
        self.features = as_model(features)
        self.w = jnp.concatenate([normals(key, (size, outputs)), filled((1, outputs))])
        self.factor = None
        self.prior_std = prior_std

    def __call__(
        self, x: Float[Array, "example *input"], *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "example output"], Float[Array, ""]]:
        phi = self._phi(x)
        if self.factor is None:
            return phi @ self.w, 0.5 * jnp.sum(self.w**2) / self.prior_std**2
        factor = self.factor.value
        noise = jax.random.normal(key, (factor.shape[0],), factor.dtype)
        w = self.w + solve_triangular(factor, noise, lower=True, trans="T").reshape(self.w.shape)
        return phi @ w, self._kl(factor)

    def _phi(self, x: Array) -> Float[Array, "example feature"]:
        phi, _ = self.features(x, key=jax.random.key(0))  # deterministic: any key will do
        if phi.shape[1:] != (self.w.shape[0] - 1,):
            raise ValueError(f"features have shape {phi.shape[1:]}, size={self.w.shape[0] - 1}: make them agree.")
        return jnp.concatenate([phi / math.sqrt(phi.shape[1]), jnp.ones((phi.shape[0], 1), phi.dtype)], axis=1)

    def _kl(self, factor: Array) -> Float[Array, ""]:
        size = factor.shape[0]
        inverse = solve_triangular(factor, jnp.eye(size, dtype=factor.dtype), lower=True)
        trace = jnp.sum(inverse**2) + jnp.sum(self.w**2)
        log_det = 2 * jnp.sum(jnp.log(jnp.diag(factor)))
        return 0.5 * (trace / self.prior_std**2 - size + log_det + 2 * size * math.log(self.prior_std))

    def conditioned(
        self,
        likelihood: Likelihood,
        x: Any,
        y: Array,
        *,
        validation: tuple[Any, Array] | None,
        key: PRNGKeyArray,
        say: Callable[[str], None],
    ) -> "LastLayerLaplace":
        """The same model with the precision of its last layer, from all the data."""
        precision = jnp.eye(self.w.size) / self.prior_std**2
        for i in range(0, x.shape[0], ROWS):
            precision = precision + _curvature(self, likelihood, as_inputs("x", x[i : i + ROWS]), y[i : i + ROWS])
        say(f"Laplace: the curvature of {self.w.size} weights at {x.shape[0]} examples.")
        factor = Held(jnp.linalg.cholesky(precision))
        return eqx.tree_at(lambda model: model.factor, self, factor, is_leaf=lambda node: node is None)


@compiled
def _curvature(model: LastLayerLaplace, likelihood: Likelihood, x: Array, y: Array) -> Float[Array, "weight weight"]:
    """Σ φ̃ φ̃ᵀ ⊗ Λ of some examples."""
    phi = model._phi(x)

    def curved(outputs: Array, y: Array) -> Float[Array, "output output"]:
        values, vectors = jnp.linalg.eigh(-jax.hessian(lambda o: likelihood.log_prob(o[None], y[None])[0])(outputs))
        return (vectors * jnp.maximum(values, 0)) @ vectors.T

    each = jax.vmap(curved)(phi @ model.w, y)
    size = model.w.size
    return jnp.einsum("ni,nab,nj->iajb", phi, each, phi).reshape(size, size)
