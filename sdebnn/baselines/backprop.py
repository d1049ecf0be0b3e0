"""Bayes by Backprop (Blundell et al. 2015): mean-field weights under a prior that mixes a wide and a narrow normal.

p(w) = Π [ share N(w_i; 0, wide²) + (1 - share) N(w_i; 0, narrow²) ]

Most weights are then nearly 0, and a few are large. The KL is estimated by log q(w) - log p(w) at the drawn weights.
"""

import math
from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn.checks import check_positive, plain_number
from sdebnn.contract import AbstractModel
from sdebnn.models import MeanField
from sdebnn.processes import AbstractInitialLaw, Normal, Weights


class ScaleMixture(AbstractInitialLaw):
    """Independent normal weights, q(w) = N(mean, std²), under a prior that mixes a wide and a narrow normal.

        from functools import partial

        mlp = eqx.nn.MLP(1, 1, 32, 2, key=key)
        net = nn.MeanField(mlp, partial(baselines.ScaleMixture, share=0.25, narrow=0.01))

    ``share`` is that of the wide normal; ``wide`` and ``narrow`` are the standard deviations. ``bayes_by_backprop``
    makes such a net.
    """

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
            raise ValueError(f"share={share!r}, the share of the wide normal, must be between 0 and 1, such as 0.5.")
        self.posterior = Normal(mean, std)
        self.share, self.wide, self.narrow = share, wide, narrow

    def sample(self, *, key: PRNGKeyArray) -> Weights:
        """One reparameterised sample."""
        return self.posterior.sample(key=key)

    def prior(self) -> AbstractInitialLaw:
        """Not available: samples of the mixture are not reparameterised."""
        raise ValueError("a scale mixture has no reparameterised prior: use Normal for prior_of.")

    def log_ratio(self, w0: Weights) -> Float[Array, ""]:
        """log q(w) - log p(w). Its mean under q is the KL."""
        # log q from its ratio to a standard normal; the constants of the normals cancel
        log_q = self.posterior.log_ratio(w0) - 0.5 * jnp.sum(w0**2)
        shares = ((self.share, self.wide), (1 - self.share, self.narrow))
        parts = [math.log(share / std) - 0.5 * (w0 / std) ** 2 for share, std in shares]
        return log_q - jnp.sum(jax.nn.logsumexp(jnp.stack(parts), axis=0))


def bayes_by_backprop(
    model: AbstractModel | Callable[[Array], Array],
    std: float = 0.05,
    *,
    share: float = 0.5,
    wide: float = 1.0,
    narrow: float = math.exp(-6),
) -> MeanField:
    """Any model with mean-field weights under the scale-mixture prior.

        net = baselines.bayes_by_backprop(eqx.nn.MLP(1, 1, 32, 2, key=key))
        fitted = fit(net, likelihood, x, y, key=key, epochs=20)

    ``std`` is the standard deviation of the posterior at the start; the other arguments are those of ``ScaleMixture``.
    """
    return MeanField(model, partial(ScaleMixture, std=std, share=share, wide=wide, narrow=narrow))
