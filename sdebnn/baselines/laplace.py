"""Laplace approximation of the last layer (Kristiadi et al. 2020):   q(w) = N(ŵ, P⁻¹) at the trained weights ŵ.

    outputs = W φ(x) + b,   P = Σ φ̃ φ̃ᵀ ⊗ Λ + I / prior_std²,   φ̃ = (φ / √size, 1),   Λ = -∂² log p(y | outputs)

W is standardised by its fan-in. Since the outputs are linear in the last layer, P is exactly the Hessian if Λ is
positive semidefinite; otherwise the positive part of Λ is used.
"""

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Num, PRNGKeyArray

from sdebnn.checks import as_inputs, check_count, check_key, check_positive, plain_number
from sdebnn.contract import AbstractModel, Data
from sdebnn.host_arrays import filled, normals
from sdebnn.integrate import Solution
from sdebnn.likelihoods import AbstractLikelihood
from sdebnn.models import Frozen, as_model, check_deterministic
from sdebnn.programs import compiled

EXAMPLES_AT_ONCE = 500
MAX_WEIGHTS = 10_000  # of the last layer, whose precision is a dense matrix


class LastLayerLaplace(AbstractModel):
    """The features of a deterministic model, followed by a linear layer that becomes uncertain after training.

        features = eqx.nn.MLP(1, 16, 16, 1, final_activation=jnp.tanh, key=key)
        net = baselines.LastLayerLaplace(features, size=16, outputs=1, key=key)
        fitted = fit(net, likelihood, x, y, key=key, epochs=20)

    In training, the KL is -log p(ŵ) up to a constant, so that training finds the most probable weights. Afterwards, it
    is the KL of the normal law around them.
    """

    features: AbstractModel
    w: Float[Array, "feature output"]  # standardised; the last row is the bias
    factor: Frozen | None  # L of P = L Lᵀ
    prior_std: float = eqx.field(static=True)

    def __init__(
        self,
        features: AbstractModel | Callable[[Array], Array],
        size: int,
        outputs: int,
        *,
        prior_std: float = 1.0,
        key: PRNGKeyArray,
    ):
        check_count("size", size)
        check_count("outputs", outputs)
        prior_std = plain_number(prior_std)
        check_positive("prior_std", prior_std)
        check_key(key)
        if (size + 1) * outputs > MAX_WEIGHTS:
            raise ValueError(
                f"a last layer of {size} features and {outputs} outputs has {(size + 1) * outputs} weights, more than "
                f"{MAX_WEIGHTS}: average the features of an image over its pixels, or use fewer."
            )
        self.features = as_model(features)
        check_deterministic("LastLayerLaplace", self.features)
        self.w = jnp.concatenate([normals(key, (size, outputs)), filled((1, outputs))])
        self.factor = None
        self.prior_std = prior_std

    def solve(self, x: Num[Array, "example *input"], *, key: PRNGKeyArray, with_roughness: bool = False) -> Solution:
        """The outputs under one draw of the last layer, and the KL."""
        phi = self.scaled_features(x)
        if self.factor is None:
            return Solution(phi @ self.w, 0.5 * jnp.sum(self.w**2) / self.prior_std**2)
        factor = self.factor.value
        noise = jax.random.normal(key, (factor.shape[0],), factor.dtype)
        w = self.w + solve_triangular(factor, noise, lower=True, trans="T").reshape(self.w.shape)
        return Solution(phi @ w, self._kl(factor))

    @property
    def learns_after_training(self) -> bool:
        """True: the curvature is computed after training."""
        return True

    def scaled_features(self, x: Array) -> Float[Array, "example feature"]:
        """φ̃ of a batch."""
        phi, _ = self.features(x, key=jax.random.key(0))  # deterministic: the key is not used
        if phi.shape[1:] != (self.w.shape[0] - 1,):
            raise ValueError(f"features have shape {phi.shape[1:]}, and size={self.w.shape[0] - 1}: make them agree.")
        return jnp.concatenate([phi / math.sqrt(phi.shape[1]), jnp.ones((phi.shape[0], 1), phi.dtype)], axis=1)

    def _kl(self, factor: Array) -> Float[Array, ""]:
        size = factor.shape[0]
        inverse = solve_triangular(factor, jnp.eye(size, dtype=factor.dtype), lower=True)
        trace = jnp.sum(inverse**2) + jnp.sum(self.w**2)
        log_det = 2 * jnp.sum(jnp.log(jnp.diag(factor)))
        return 0.5 * (trace / self.prior_std**2 - size + log_det + 2 * size * math.log(self.prior_std))

    def after_training(
        self,
        likelihood: AbstractLikelihood,
        data: Data,
        *,
        validation: Data | None,
        key: PRNGKeyArray,
        say: Callable[[str], None],
    ) -> "LastLayerLaplace":
        """The same model with the precision of its last layer, from all the data."""
        x, y = data
        precision = jnp.eye(self.w.size) / self.prior_std**2
        for i in range(0, x.shape[0], EXAMPLES_AT_ONCE):
            precision = precision + _curvature(
                self, likelihood, as_inputs("x", x[i : i + EXAMPLES_AT_ONCE]), y[i : i + EXAMPLES_AT_ONCE]
            )
        say(f"Laplace: computed the curvature of {self.w.size} weights at {x.shape[0]} examples.")
        factor = Frozen(jnp.linalg.cholesky(precision))
        return eqx.tree_at(lambda model: model.factor, self, factor, is_leaf=lambda node: node is None)


@compiled
def _curvature(
    model: LastLayerLaplace, likelihood: AbstractLikelihood, x: Array, y: Array
) -> Float[Array, "weight weight"]:
    """Σ φ̃ φ̃ᵀ ⊗ Λ over some examples."""
    phi = model.scaled_features(x)

    def curved(outputs: Array, y: Array) -> Float[Array, "output output"]:
        values, vectors = jnp.linalg.eigh(-jax.hessian(lambda o: likelihood.log_prob(o[None], y[None])[0])(outputs))
        return (vectors * jnp.maximum(values, 0)) @ vectors.T

    each = jax.vmap(curved)(phi @ model.w, y)
    size = model.w.size
    return jnp.einsum("ni,nab,nj->iajb", phi, each, phi).reshape(size, size)
