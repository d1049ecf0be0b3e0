"""Bayes by Backprop (Blundell et al. 2015): mean-field, under a prior by which few weights are large, most nearly 0.

p(w) = Π [ share N(w_i; 0, wide²) + (1 - share) N(w_i; 0, narrow²) ],   KL estimated by log q(w) - log p(w) of the draw
"""

import math
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn.baselines.meanfield import MeanField
from sdebnn.checks import check_positive, plain_number
from sdebnn.processes import Normal, Weights


class ScaleMixture(eqx.Module):
    """q(w) = N(mean, std²), each weight alone, against a prior that mixes a wide and a narrow normal."""

    posterior: Normal
    share: float = eqx.field(static=True)
    wide: float = eqx.field(static=True)
    narrow: float = eqx.field(static=True)

    def __init__(
        self, mean: Weights, std: float = 0.05, *, share: float = 0.5, wide: float = 1.0, narrow: float = math.exp(-6)
    ):
        share, wide, narrow = map(plain_number, (share, wide, narrow))
        for name, value in (("wide", wide), ("narrow", narrow)):
            check_positive(name, value)
        if not 0 < share < 1:
            raise ValueError(f"share={share!r} of the wide normal must be between 0 and 1, such as 0.5.")
        self.posterior = Normal(mean, std)
        self.share, self.wide, self.narrow = share, wide, narrow

    def sample(self, *, key: PRNGKeyArray) -> Weights:
        """One reparameterised draw."""
        return self.posterior.sample(key=key)

    def log_ratio(self, w: Weights) -> Float[Array, ""]:
        """log q(w) - log p(w), whose mean under q is the KL."""
        # log q, by its ratio to a standard normal: the constants of the normals cancel
        log_q = self.posterior.log_ratio(w) - 0.5 * jnp.sum(w**2)
        shares = ((self.share, self.wide), (1 - self.share, self.narrow))
        parts = [math.log(share / std) - 0.5 * (w / std) ** 2 for share, std in shares]
        return log_q - jnp.sum(jax.nn.logsumexp(jnp.stack(parts), axis=0))


def bayes_by_backprop(
    model: Any, std: float = 0.05, *, share: float = 0.5, wide: float = 1.0, narrow: float = math.exp(-6)
) -> MeanField:
    """Any model with mean-field weights under the scale-mixture prior."""
    return MeanField(model, partial(ScaleMixture, std=std, share=share, wide=wide, narrow=narrow))
