"""Draws of the ensemble of an estimator, by one compiled program."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt

from sdebnn.contract import AbstractModel, over_draws
from sdebnn.estimators.net import NetSizes
from sdebnn.estimators.training import options_on
from sdebnn.models import Ensemble
from sdebnn.models.ensemble import index_of
from sdebnn.programs import Compiled, compiled

DRAWS_AT_ONCE = 20  # divides the draws of a calibration and the default of a prediction


@functools.cache
def drawing_program(platform: str) -> Compiled[..., tuple[Array, Array]]:
    """``drawn``, compiled."""
    return compiled(drawn, compiler_options=options_on(platform))


def drawn(
    ensemble: Ensemble, x: Float[Array, "row input"], seed: UInt[Array, ""], stream: UInt[Array, ""] | None, draws: int
) -> tuple[Float[Array, "draw row output"], Int[Array, " draw"]]:
    """The outputs of ``predict``, and the number of the member of each draw.

    Keys are derived inside the program, since outside of it each operation would be compiled by itself.
    """
    key = jax.random.key(seed)
    keys = ensemble.draw_keys(key if stream is None else jax.random.fold_in(key, stream), draws)
    members = jax.vmap(lambda key: index_of(key, ensemble.size))(keys)
    return over_draws(lambda key: ensemble.solve(x, key=key).outputs, keys, DRAWS_AT_ONCE), members


def ensemble_of(net: NetSizes, members: list[AbstractModel]) -> Ensemble:
    """``Ensemble(members)``, stacked on the host, because a device would compile a program for each shape."""
    parts = [jax.tree.map(np.asarray, eqx.filter(member, eqx.is_array)) for member in members]
    arrays = jax.tree.map(lambda *each: jnp.asarray(np.stack(each)), *parts)
    return eqx.tree_at(lambda ensemble: ensemble.arrays, ensemble_shapes(net, len(members)), arrays)


@functools.cache
def ensemble_shapes(net: NetSizes, size: int) -> Ensemble:
    """An ensemble of so many nets, with shapes in place of its arrays."""
    return eqx.filter_eval_shape(lambda key: Ensemble([net.model(key)] * size), jax.random.key(0))


def is_shape(leaf: object) -> bool:
    """Whether a leaf stands for an array."""
    return isinstance(leaf, jax.ShapeDtypeStruct)
