"""Mixtures:   q(w) = 1/K Σ q_k(w),   K posteriors of one kind that differ in their initial weights.

The mixture is a posterior itself, and its KL is KL(q ‖ p) = 1/K Σ KL(q_k ‖ p) - I, where I is what a draw tells about
its member, between 0 and log K nats. So its bound is at least the mean of the members' bounds, which is what is
reported, and at most log K above it.
"""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key, Num, PRNGKeyArray, PyTree

from sdebnn.contract import AbstractModel, Data, LayerLine, parameter_count
from sdebnn.integrate import Solution
from sdebnn.likelihoods import AbstractLikelihood
from sdebnn.models.sequence import as_model


class Ensemble(AbstractModel):
    """K models of one kind, each of which has the same weight in a prediction.

        nets = [SDEBNN.paper_mlp(1, 1, widths=(4,), key=each) for each in keys[:3]]
        ensemble = Ensemble(nets)
        samples = predict(ensemble, x, draws=6, key=key)
        first = ensemble.member(0)

    ``members`` are models, or modules of one example, with arrays of the same shapes. A key names a member by its last
    word modulo K, and a function of that member. ``predict`` rounds ``draws`` up to a multiple of K. ``fit`` of an
    ensemble trains all members in one compiled program: at every step each member sees the batch, ``draws_at_once`` of
    them in parallel, and with Adam moves as it would alone. This suits small nets. Nets that fill a device are better
    trained one after the other: ``fit`` of a list of models does so, and returns an ensemble.
    """

    arrays: PyTree  # of all members; the first axis is the member
    rest: PyTree
    size: int = eqx.field(static=True)

    def __init__(self, members: Sequence[AbstractModel | Callable[[Array], Array]]):
        if not isinstance(members, Sequence) or not members:
            raise ValueError("members must be a list of models: pass at least one.")
        parts = [eqx.partition(as_model(member), eqx.is_array) for member in members]
        likes = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), arrays) for arrays, _ in parts]
        for number, (like, (_, rest)) in enumerate(zip(likes, parts, strict=True)):
            if like != likes[0] or not eqx.tree_equal(rest, parts[0][1]):
                raise ValueError(
                    f"member {number} is not like member 0: build all with the same arguments and different keys."
                )
        self.arrays = jax.tree.map(lambda *each: jnp.stack(each), *(arrays for arrays, _ in parts))
        self.rest, self.size = parts[0][1], len(parts)

    def draw_keys(self, key: PRNGKeyArray, draws: int) -> Key[Array, " draw"]:
        """At least ``draws`` keys, which name the members in turn and all of them equally often."""
        return keys_in_turn(key, -(-draws // self.size) * self.size, self.size)

    def layer_line(self, x: Num[Array, "example *input"]) -> LayerLine:
        """The number of members, and one of them."""
        inner = self.member(0).layer_line(x)
        name = f"{type(self).__name__} of {self.size} members, of which this is one"
        return LayerLine(name, parameter_count(self), inside=(inner,), outputs=inner.outputs)

    def before_training(self, likelihood: AbstractLikelihood, data: Data) -> "Ensemble":
        """The same ensemble, with each member as its training starts."""
        old = [self.member(i) for i in range(self.size)]
        new = [member.before_training(likelihood, data) for member in old]
        return self if all(a is b for a, b in zip(old, new, strict=True)) else Ensemble(new)

    def for_training(self) -> "EnsembleInTraining":
        """The same ensemble, each member as it is trained."""
        return EnsembleInTraining(self)

    def member(self, index: int | Int[Array, ""]) -> AbstractModel:
        """The member with this index."""
        # A solver to a tolerance, with which ``refined`` replaced that of the blocks, has numbers that are no arrays.
        of_one = jax.tree.map(lambda leaf: leaf[index] if eqx.is_array(leaf) else leaf, self.arrays)
        return eqx.combine(of_one, self.rest)

    @property
    def has_states(self) -> bool:
        """Whether its members have hidden states."""
        return self.member(0).has_states

    def states(self, x: Num[Array, "example *input"], *, key: PRNGKeyArray) -> tuple[Num[Array, "example *state"], ...]:
        """The hidden states of the first member."""
        return self.member(0).states(x, key=key)

    def solve(self, x: Num[Array, "example *input"], *, key: PRNGKeyArray, with_roughness: bool = False) -> Solution:
        """The solution of the member that the key names."""
        member = self.member(index_of(key, self.size))
        return member.solve(x, key=jax.random.fold_in(key, 0), with_roughness=with_roughness)


class EnsembleInTraining(AbstractModel):
    """An ensemble, each member as it is trained. The ELBO averages over all members."""

    ensemble: Ensemble

    def draw_keys(self, key: PRNGKeyArray, draws: int) -> Key[Array, " draw"]:
        """The keys of the ensemble, which name all members equally often."""
        return self.ensemble.draw_keys(key, draws)

    def solve(self, x: Num[Array, "example *input"], *, key: PRNGKeyArray, with_roughness: bool = False) -> Solution:
        """The solution of the member that the key names, as it is trained."""
        member = self.ensemble.member(index_of(key, self.ensemble.size)).for_training()
        return member.solve(x, key=jax.random.fold_in(key, 0), with_roughness=with_roughness)


def index_of(key: PRNGKeyArray, size: int) -> Int[Array, ""]:
    """Which of ``size`` functions a key names: its last word modulo ``size``."""
    return (jax.random.key_data(key)[-1] % jnp.uint32(size)).astype(jnp.int32)


def keys_in_turn(key: PRNGKeyArray, draws: int, size: int) -> Key[Array, " draw"]:
    """Keys that name each of ``size`` functions in turn, starting with one that depends on the key."""
    first = index_of(jax.random.fold_in(key, 0), size)

    def one(i: Array) -> PRNGKeyArray:
        words = jax.random.key_data(jax.random.fold_in(key, i))
        lower = words[-1] // 2 // size * size  # leaves room above for the index
        index = ((first + i) % size).astype(words.dtype)
        return jax.random.wrap_key_data(words.at[-1].set(lower + index))

    return jax.vmap(one)(jnp.arange(draws))
