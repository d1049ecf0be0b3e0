"""Mean-field variational inference over the weights of any model:   q(w) = Π N(w_i; mean_i, std_i²)."""

from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Num, PRNGKeyArray, PyTree

from sdebnn.contract import AbstractModel, LayerLine, parameter_count
from sdebnn.fields import EXAMPLE
from sdebnn.integrate import Solution
from sdebnn.integrate.paths import start_nats
from sdebnn.models.sequence import SDEBNN, Deterministic, as_model
from sdebnn.models.weights import WeightFunction
from sdebnn.processes import AbstractInitialLaw, Normal, Weights


class MeanField(AbstractModel):
    """Any model, or module of one example, whose standardised weights are independent random variables.

        mlp = eqx.nn.MLP(1, 1, width_size=16, depth=2, key=key)
        fitted = fit(MeanField(mlp), likelihood, x, y, key=key, epochs=5)

    ``law`` makes their law from the present weights: ``Normal`` with std 0.05 by default, or another
    ``AbstractInitialLaw``. The KL is in closed form if the law has one, otherwise estimated by the draw. Under
    ``Normal``, training draws the outputs of linear layers instead of their weights where this gives the same bound
    with less noise (the local reparameterisation).
    """

    net: WeightFunction
    law: AbstractInitialLaw

    def __init__(
        self,
        model: AbstractModel | Callable[[Array], Array],
        law: Callable[[Weights], AbstractInitialLaw] | None = None,
    ):
        self.net, w = WeightFunction.of(as_model(model))
        self.law = (law or partial(Normal, std=0.05))(w)

    def layer_line(self, x: Num[Array, "example *input"]) -> LayerLine:
        """The law of the weights, and the model that has these weights."""
        inner = self.net(self.law.sample(key=jax.random.key(0))).layer_line(x)
        law = f"weights {self.law.description}"
        return LayerLine(
            type(self).__name__, parameter_count(self), self.law.size, (law,), inside=(inner,), outputs=inner.outputs
        )

    def for_training(self) -> "MeanField | LocallyReparameterised":
        """The local reparameterisation, which has less variance, if it applies; otherwise the model itself."""
        if isinstance(self.law, Normal) and passed_once(self.net.rest):
            return LocallyReparameterised(self, self.law)
        return self

    def solve(self, x: Num[Array, "example *input"], *, key: PRNGKeyArray, with_roughness: bool = False) -> Solution:
        """The solution of the model under one draw of its weights, with the KL added to the model's own."""
        w = self.law.sample(key=key)
        return self.evaluated(self.net(w), w, x, key, with_roughness)

    def evaluated(
        self, drawn: AbstractModel, w: Weights, x: Num[Array, "example *input"], key: PRNGKeyArray, with_roughness: bool
    ) -> Solution:
        """The solution of a drawn model on a batch, with the KL added."""
        part = drawn.solve(x, key=jax.random.fold_in(key, 0), with_roughness=with_roughness)
        own = start_nats(self.law, w, "analytic")
        return part._replace(kl=part.kl + own.astype(part.kl.dtype))


class LocallyReparameterised(AbstractModel):
    """A mean-field posterior in training (Kingma et al. 2015): each example has its own draw.

    The outputs of a linear layer with normal weights are normal, and are drawn directly instead of the weights. Each
    example has the same law as before, which is all that the ELBO depends on; draws of different examples are
    independent, which makes the ELBO less noisy.
    """

    posterior: MeanField
    law: Normal

    def solve(self, x: Num[Array, "example *input"], *, key: PRNGKeyArray, with_roughness: bool = False) -> Solution:
        """The posterior's solution, with the outputs of linear layers drawn instead of their weights."""
        net, law = self.posterior.net, self.law
        w = law.sample(key=key)
        mean, std = net(law.mean), net(jnp.exp(law.log_std))
        keys = jax.random.split(jax.random.fold_in(key, 1), len(passed_once(mean)))
        drawn = [_NormalOutputs(*each) for each in zip(passed_once(mean), passed_once(std), keys, strict=True)]
        return self.posterior.evaluated(eqx.tree_at(passed_once, net(w), drawn), w, x, key, with_roughness)


def passed_once(node: PyTree) -> list[eqx.nn.Linear]:
    """The linear layers that every example passes exactly once, as far as the types of their containers tell.

    Layers of a field are evaluated at every step, and a convolution's kernel at every pixel: their outputs are not
    independent.
    """
    if isinstance(node, eqx.nn.Linear):
        return [] if "scalar" in (node.in_features, node.out_features) else [node]
    if isinstance(node, Deterministic):
        return passed_once(node.module)
    if isinstance(node, SDEBNN | eqx.nn.MLP | eqx.nn.Sequential):
        return [linear for layer in node.layers for linear in passed_once(layer)]
    return []


class _NormalOutputs(eqx.Module):
    """A linear layer with independent normal weights, whose outputs are drawn from their normal law."""

    mean: eqx.nn.Linear
    std: eqx.nn.Linear
    key: PRNGKeyArray

    def __call__(self, x: Float[Array, " in"], *, key: PRNGKeyArray | None = None) -> Float[Array, " out"]:
        own = jax.random.fold_in(self.key, lax.axis_index(EXAMPLE))
        variance = self.std.weight**2 @ x**2
        if self.std.bias is not None:
            variance = variance + self.std.bias**2
        noise = jax.random.normal(own, variance.shape, variance.dtype)
        return self.mean(x) + jnp.sqrt(variance + 1e-12) * noise  # keeps the derivative finite where x is zero
