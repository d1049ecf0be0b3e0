"""Mean-field variational inference over the weights of any module:   q(w) = Π N(w_i; mean_i, std_i²)."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn.fields import Standardised
from sdebnn.processes import Normal


class MeanField(eqx.Module):
    """A module of one example whose weights, standardised by their fan-in, are independent normals."""

    module: Any
    weights: Standardised
    law: Normal

    def __init__(self, module: Any, std: float = 0.05, *, prior_std: float | None = 1.0):
        random, self.module = eqx.partition(module, eqx.is_inexact_array)
        if not jax.tree.leaves(random):
            raise ValueError(f"{type(module).__name__} holds no floating-point array: there are no weights to infer.")
        self.weights = Standardised(random)
        self.law = Normal(self.weights.ravel(random), std, prior_std=prior_std)

    def __call__(
        self, x: Float[Array, "example *input"], *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "example *output"], Float[Array, ""]]:
        drawn = eqx.combine(self.weights.unravel(self.law.sample(key=key)), self.module)
        outputs = jax.vmap(drawn)(x)
        return outputs, self.law.kl().astype(jnp.result_type(outputs))
