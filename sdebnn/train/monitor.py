"""The variance of the gradient under each estimator of the KL, measured at the current parameters.

Var[g] = E|g|² - |E g|², summed over the parameters; the expectation is over draws of the weights, on one batch.
"""

from typing import NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Key, PRNGKeyArray, PyTree

from sdebnn.checks import check_count, check_key
from sdebnn.contract import AbstractModel, draw_keys
from sdebnn.data import as_floats
from sdebnn.integrate import KLEstimator
from sdebnn.likelihoods import AbstractLikelihood
from sdebnn.models import blocks, map_blocks
from sdebnn.programs import compiled
from sdebnn.train.objective import elbo


class EstimatorNoise(NamedTuple):
    """The variance of the gradient of -ELBO / N under each estimator of the KL, and its relative error."""

    analytic: float
    full: float
    stl: float
    error: float  # one standard error, relative to the variance
    now: KLEstimator  # the estimator in use

    def variances(self) -> dict[str, float]:
        """The variances by the name of the estimator."""
        return {name: getattr(self, name) for name in get_args(KLEstimator)}

    def verdict(self) -> str:
        """One sentence: whether ``kl="stl"`` reduces the variance at the current parameters."""
        ratio = self.stl / self.analytic if self.analytic > 0 else float("nan")
        pays = (
            "pays" if ratio < 1 - 2 * self.error else "costs" if ratio > 1 + 2 * self.error else "makes no difference"
        )
        return (
            f"Gradient noise: stl {pays} here, with {ratio:.3g} (± {2 * self.error * ratio:.1g}) times the variance of "
            f"analytic; in use: {self.now}."
        )


def estimator_noise(
    model: AbstractModel,
    likelihood: AbstractLikelihood,
    x: Array,
    y: Array,
    *,
    key: PRNGKeyArray,
    draws: int = 32,
    kl_weight: float = 1.0,
    examples: int | None = None,
) -> EstimatorNoise | None:
    """Measure the variance of the gradient under each estimator of the KL, with the same draws for all.

        from sdebnn.train import estimator_noise

        net = SDEBNN.paper_mlp(1, 1, drift=(8,), solver=FixedGrid(4), key=key)
        noise = estimator_noise(net, likelihood, x, y, draws=8, key=key)
        print(noise.verdict())

    Returns None unless the model has blocks, and all estimators are unbiased with their solvers.
    """
    check_key(key)
    check_count("draws", draws, least=4)
    found = blocks(model)
    estimators: tuple[KLEstimator, ...] = get_args(KLEstimator)
    if not found or not all(set(estimators) <= set(block.solver.estimators) for block in found):
        return None
    keys = draw_keys(jax.random.fold_in(key, 0x5715), draws, model)
    variances = {
        name: _variance(
            map_blocks(lambda block, name=name: block.with_estimator(name), model),
            likelihood,
            x,
            y,
            keys,
            kl_weight,
            examples or x.shape[0],
        )
        for name in estimators
    }
    # The error of a variance of normal variables. It is an upper estimate: the variance is summed over many parameters.
    error = float(np.sqrt(2 / (draws - 1)))
    return EstimatorNoise(**variances, error=error, now=found[0].kl)


def _variance(
    model: AbstractModel,
    likelihood: AbstractLikelihood,
    x: Array,
    y: Array,
    keys: Key[Array, " draw"],
    kl_weight: float,
    examples: int,
) -> float:
    return float(_compiled_variance(model, likelihood, x, y, keys, jnp.asarray(kl_weight), examples))


@compiled
def _compiled_variance(
    model: AbstractModel,
    likelihood: AbstractLikelihood,
    x: Array,
    y: Array,
    keys: Key[Array, " draw"],
    kl_weight: Array,
    examples: int,
) -> Array:
    parameters, rest = eqx.partition((model, likelihood), eqx.is_inexact_array)

    def loss(parameters: PyTree, key: PRNGKeyArray) -> Array:
        model, likelihood = eqx.combine(parameters, rest)
        terms = elbo(model, likelihood, as_floats(x), y, key=key, kl_weight=kl_weight, examples=examples)
        return -terms.elbo / examples

    def add(carry: tuple[PyTree, PyTree, Array], key: PRNGKeyArray) -> tuple[tuple[PyTree, PyTree, Array], None]:
        mean, squares, count = carry  # Welford's recursion stores no gradients and avoids cancellation
        gradient = jax.grad(loss)(parameters, key)
        count = count + 1
        new = jax.tree.map(lambda m, g: m + (g - m) / count, mean, gradient)
        terms = jax.tree.map(lambda g, m, n: jnp.sum((g - m) * (g - n)), gradient, mean, new)
        return (new, jax.tree.map(jnp.add, squares, terms), count), None

    zeros = jax.tree.map(jnp.zeros_like, parameters)
    sums = jax.tree.map(lambda leaf: jnp.zeros((), leaf.dtype), parameters)
    (_, squares, count), _ = lax.scan(add, (zeros, sums, jnp.zeros(())), keys)
    return sum(jax.tree.leaves(squares), start=jnp.zeros(())) / (count - 1)
