"""Which estimator of the KL has the least noisy gradient at this point of training: measured, not presumed.

Var[g] = E|g|² - |E g|², summed over the parameters, over draws of the weights on one batch.
"""

from typing import Any, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Key, PRNGKeyArray, PyTree

from sdebnn.checks import check_count, check_key
from sdebnn.contract import draw_keys
from sdebnn.integrate import Estimator, FixedGrid
from sdebnn.likelihoods import Likelihood
from sdebnn.models import SDEBlock, blocks, map_blocks
from sdebnn.programs import compiled
from sdebnn.train.objective import as_floats, elbo


class EstimatorNoise(NamedTuple):
    """The variance of the gradient of -ELBO / N under each estimator, and the relative error of these numbers."""

    analytic: float
    full: float
    stl: float
    error: float  # relative, one standard error
    now: Estimator  # the one in use

    def variances(self) -> dict[str, float]:
        """By estimator."""
        return {name: getattr(self, name) for name in get_args(Estimator)}

    def verdict(self) -> str:
        """In words: whether sticking the landing pays at this point."""
        ratio = self.stl / self.analytic if self.analytic > 0 else float("nan")
        pays = (
            "pays" if ratio < 1 - 2 * self.error else "costs" if ratio > 1 + 2 * self.error else "makes no difference"
        )
        return (
            f"Gradient noise: stl {pays} here, with {ratio:.3g} (± {2 * self.error * ratio:.1g}) times the variance of "
            f"analytic; in use: {self.now}."
        )


def estimator_noise(
    model: Any,
    likelihood: Likelihood,
    x: Array,
    y: Array,
    *,
    key: PRNGKeyArray,
    draws: int = 32,
    kl_weight: float = 1.0,
    examples: int | None = None,
) -> EstimatorNoise | None:
    """Measure the gradient's variance under each estimator of the KL, with the same draws for all.

    ``None``, if the model holds no block that is solved on a grid: the estimators are then not all to be had.
    """
    check_key(key)
    check_count("draws", draws, least=4)
    found = blocks(model)
    if not found or not all(isinstance(block.solver, FixedGrid) for block in found):
        return None
    keys = draw_keys(jax.random.fold_in(key, 0x5715), draws, model)
    variances = {
        name: _variance(_with_estimator(model, name), likelihood, x, y, keys, kl_weight, examples or x.shape[0])
        for name in get_args(Estimator)
    }
    # Each variance is a mean of squares over the draws, of many parameters: normal theory is cautious.
    error = float(np.sqrt(2 / (draws - 1)))
    return EstimatorNoise(**variances, error=error, now=found[0].kl)


def _with_estimator(model: Any, kl: Estimator) -> Any:
    def change(block: SDEBlock) -> SDEBlock:
        return SDEBlock(block.field, block.weights, block.prior, block.drift, block.initial, block.solver, kl)

    return map_blocks(change, model)


def _variance(model: Any, likelihood: Any, x: Array, y: Array, keys: Array, kl_weight: float, examples: int) -> float:
    return float(_compiled_variance(model, likelihood, x, y, keys, jnp.asarray(kl_weight), examples))


@compiled
def _compiled_variance(
    model: Any, likelihood: Any, x: Array, y: Array, keys: Key[Array, " draw"], kl_weight: Array, examples: int
) -> Array:
    parameters, rest = eqx.partition((model, likelihood), eqx.is_inexact_array)

    def loss(parameters: PyTree, key: PRNGKeyArray) -> Array:
        model, likelihood = eqx.combine(parameters, rest)
        terms = elbo(model, likelihood, as_floats(x), y, key=key, kl_weight=kl_weight, examples=examples)
        return -terms.elbo / examples

    def add(carry: tuple[PyTree, PyTree, Array], key: PRNGKeyArray) -> tuple[tuple[PyTree, PyTree, Array], None]:
        mean, squares, count = carry  # Welford's recursion: no gradient is kept, and nothing cancels
        gradient = jax.grad(loss)(parameters, key)
        count = count + 1
        new = jax.tree.map(lambda m, g: m + (g - m) / count, mean, gradient)
        terms = jax.tree.map(lambda g, m, n: jnp.sum((g - m) * (g - n)), gradient, mean, new)
        return (new, jax.tree.map(jnp.add, squares, terms), count), None

    zeros = jax.tree.map(jnp.zeros_like, parameters)
    sums = jax.tree.map(lambda leaf: jnp.zeros((), leaf.dtype), parameters)
    (_, squares, count), _ = lax.scan(add, (zeros, sums, jnp.zeros(())), keys)
    return sum(jax.tree.leaves(squares), start=jnp.zeros(())) / (count - 1)
