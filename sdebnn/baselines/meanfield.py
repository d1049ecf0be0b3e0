"""Mean-field variational inference over the weights of any model:   q(w) = Π N(w_i; mean_i, std_i²)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn.baselines.weights import Weighted
from sdebnn.contract import solve
from sdebnn.integrate import Solution
from sdebnn.models import EXAMPLE, SDEBNN, Deterministic
from sdebnn.processes import Normal, Weights


class MeanField(eqx.Module):
    """Any model, or module of one example, whose weights, standardised by their fan-in, are independent normals.

    ``law`` makes their law of the weights there are: ``Normal`` (of std 0.05, unless told), whose KL is in closed form,
    or another with ``sample`` and ``log_ratio``, whose KL is then estimated by the draw. Under ``Normal``, training
    draws sums instead of weights where it may (local reparameterisation, see ``passed_once``).
    """

    net: Weighted
    law: Any

    def __init__(self, model: Any, law: Callable[[Weights], Any] | None = None):
        self.net, w = Weighted.of(model)
        self.law = (law or partial(Normal, std=0.05))(w)

    def training(self) -> "MeanField | LocallyDrawn":
        """Itself; or with sums drawn for each example alone, which on the average of many is less noisy."""
        return LocallyDrawn(self) if isinstance(self.law, Normal) and passed_once(self.net.rest) else self

    def __call__(
        self, x: Float[Array, "example *input"], *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "example *output"], Float[Array, ""]]:
        return self.solve(x, key=key)[:2]

    def solve(self, x: Float[Array, "example *input"], *, key: PRNGKeyArray, rough: bool = False) -> Solution:
        """The solution of the model under one draw of its weights, the KL added to its own."""
        w = self.law.sample(key=key)
        return self.evaluated(self.net(w), w, x, key, rough)

    def evaluated(self, drawn: Any, w: Weights, x: Array, key: PRNGKeyArray, rough: bool) -> Solution:
        """What one draw makes of a batch, and the KL."""
        part = solve(drawn, x, key=jax.random.fold_in(key, 0), rough=rough)
        own = self.law.kl() if hasattr(self.law, "kl") else self.law.log_ratio(w)
        return part._replace(kl=part.kl + own.astype(part.kl.dtype))


class LocallyDrawn(eqx.Module):
    """A mean-field posterior as the ELBO sees it (Kingma et al. 2015): each example has a draw of its own.

    The sums that a linear layer makes of an example are normal under normal weights; here they are drawn, not the
    weights. For every single example the law is the same, which is all that the ELBO asks.
    """

    posterior: MeanField

    def __call__(
        self, x: Float[Array, "example *input"], *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "example *output"], Float[Array, ""]]:
        return self.solve(x, key=key)[:2]

    def solve(self, x: Float[Array, "example *input"], *, key: PRNGKeyArray, rough: bool = False) -> Solution:
        """As the posterior's, with sums in the place of weights."""
        net, law = self.posterior.net, self.posterior.law
        w = law.sample(key=key)
        mean, std = net(law.mean), net(jnp.exp(law.log_std))
        keys = jax.random.split(jax.random.fold_in(key, 1), len(passed_once(mean)))
        sums = [_Sums(*each) for each in zip(passed_once(mean), passed_once(std), keys, strict=True)]
        return self.posterior.evaluated(eqx.tree_at(passed_once, net(w), sums), w, x, key, rough)


def passed_once(node: Any) -> list[eqx.nn.Linear]:
    """The linear layers that every example passes exactly once, as far as the types of what holds them tell.

    A field is evaluated at every step, and a convolution's kernel meets every pixel: their sums are not independent.
    """
    if isinstance(node, eqx.nn.Linear):
        return [] if "scalar" in (node.in_features, node.out_features) else [node]
    if isinstance(node, Deterministic):
        return passed_once(node.module)
    if isinstance(node, SDEBNN | eqx.nn.MLP | eqx.nn.Sequential):
        return [linear for layer in node.layers for linear in passed_once(layer)]
    return []


class _Sums(eqx.Module):
    """A linear layer of independent normal weights: the sums of an example are normal, and drawn as such."""

    mean: eqx.nn.Linear
    std: eqx.nn.Linear
    key: PRNGKeyArray

    def __call__(self, x: Float[Array, " in"], *, key: PRNGKeyArray | None = None) -> Float[Array, " out"]:
        own = jax.random.fold_in(self.key, lax.axis_index(EXAMPLE))
        variance = self.std.weight**2 @ x**2
        if self.std.bias is not None:
            variance = variance + self.std.bias**2
        noise = jax.random.normal(own, variance.shape, variance.dtype)
        return self.mean(x) + jnp.sqrt(variance + 1e-12) * noise  # no slope is infinite where x is zero
