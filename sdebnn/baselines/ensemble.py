"""Deep ensembles:   q(w) = 1/K Σ δ(w - w_k),   K fits that differ by where they start."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PRNGKeyArray

from sdebnn.contract import solve, training
from sdebnn.integrate import Solution
from sdebnn.models import as_model


class Ensemble(eqx.Module):
    """K models of one kind, each a draw: the last word of a key, modulo K, says which.

    Every member has the same weight in a prediction: ``draws`` is rounded up to a multiple of K.
    ``fit`` trains all of them in one compiled call: at every step each member sees the batch, ``draws_at_once`` of them
    side by side, and with Adam moves as it would alone. Where memory allows no more, train them one by one, and make an
    ensemble of what was fitted.
    """

    arrays: Any  # of all members, which come first
    rest: Any
    size: int = eqx.field(static=True)

    def __init__(self, members: Sequence[Any]):
        if not isinstance(members, Sequence) or not members:
            raise ValueError("members must be a list of models: pass at least one.")
        parts = [eqx.partition(as_model(member), eqx.is_array) for member in members]
        likes = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), arrays) for arrays, _ in parts]
        for number, (like, (_, rest)) in enumerate(zip(likes, parts, strict=True)):
            if like != likes[0] or not eqx.tree_equal(rest, parts[0][1]):
                raise ValueError(f"member {number} is not like member 0: build all of them alike, from different keys.")
        self.arrays = jax.tree.map(lambda *each: jnp.stack(each), *(arrays for arrays, _ in parts))
        self.rest, self.size = parts[0][1], len(parts)

    def draw_keys(self, key: PRNGKeyArray, draws: int) -> Key[Array, " draw"]:
        """Keys that name each member in turn, all equally often: at least ``draws`` of them."""
        return keys_in_turn(key, -(-draws // self.size) * self.size, self.size)

    def training(self) -> "EveryMember":
        """The same ensemble, of which the ELBO averages over all members."""
        return EveryMember(self)

    def member(self, number: Any) -> Any:
        """One of the models."""
        return eqx.combine(jax.tree.map(lambda leaf: leaf[number], self.arrays), self.rest)

    def __call__(
        self, x: Float[Array, "example *input"], *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "example *output"], Float[Array, ""]]:
        return self.solve(x, key=key)[:2]

    def solve(self, x: Float[Array, "example *input"], *, key: PRNGKeyArray, rough: bool = False) -> Solution:
        """The solution of the member that the key names."""
        return solve(self.member(number_of(key, self.size)), x, key=jax.random.fold_in(key, 0), rough=rough)


class EveryMember(eqx.Module):
    """An ensemble as the ELBO sees it: its draws are whole rounds of the members."""

    ensemble: Ensemble

    def draw_keys(self, key: PRNGKeyArray, draws: int) -> Key[Array, " draw"]:
        """The ensemble's own: each member as often as the others."""
        return self.ensemble.draw_keys(key, draws)

    def __call__(
        self, x: Float[Array, "example *input"], *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "example *output"], Float[Array, ""]]:
        return self.solve(x, key=key)[:2]

    def solve(self, x: Float[Array, "example *input"], *, key: PRNGKeyArray, rough: bool = False) -> Solution:
        """The solution of the member that the key names, as the ELBO takes it."""
        member = self.ensemble.member(number_of(key, self.ensemble.size))
        return solve(training(member), x, key=jax.random.fold_in(key, 0), rough=rough)


def number_of(key: PRNGKeyArray, size: int) -> Array:
    """Which of so many functions a key names."""
    return (jax.random.key_data(key)[-1] % jnp.uint32(size)).astype(jnp.int32)


def keys_in_turn(key: PRNGKeyArray, draws: int, size: int) -> Key[Array, " draw"]:
    """Keys that name each of so many functions in turn, the first of them by the key."""
    first = number_of(jax.random.fold_in(key, 0), size)

    def one(i: Array) -> PRNGKeyArray:
        words = jax.random.key_data(jax.random.fold_in(key, i))
        lower = words[-1] // 2 // size * size  # room above for the number
        number = ((first + i) % size).astype(words.dtype)
        return jax.random.wrap_key_data(words.at[-1].set(lower + number))

    return jax.vmap(one)(jnp.arange(draws))
