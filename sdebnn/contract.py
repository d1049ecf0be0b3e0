"""The contract of models: a posterior over functions, of which each key names one."""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple, TypeVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Key, Num, PRNGKeyArray, PyTree

from sdebnn.checks import check_count, check_key, check_object, shown
from sdebnn.data import Inputs, as_arrays, batch_dtype
from sdebnn.integrate import Guide, Solution
from sdebnn.integrate.stability import warn_if_unstable
from sdebnn.likelihoods import AbstractLikelihood
from sdebnn.meshes import DATA, DRAW, is_local, on_mesh, padded
from sdebnn.programs import compiled

T = TypeVar("T")


Data = tuple[Inputs, Array]  # inputs and targets, examples first


class LayerLine(NamedTuple):
    """A line of ``describe``: the number of trained parameters and of random weights of one layer, and other facts.

    ``execution`` says how it is solved over depth. ``inside`` are the lines of models that this one evaluates; their
    random weights are counted there. ``outputs`` are the shape and type of its outputs, if they are known without
    tracing a solve, which would take longer.
    """

    name: str
    parameters: int
    random_weights: int = 0
    facts: tuple[str, ...] = ()
    execution: str = ""
    inside: "tuple[LayerLine, ...]" = ()
    outputs: jax.ShapeDtypeStruct | None = None


def parameter_count(tree: PyTree) -> int:
    """The number of floating-point numbers in a tree, which ``fit`` trains."""
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array)))


class AbstractModel(eqx.Module):
    """A posterior over functions. A key names one function, evaluated on a batch by ``model(x, key=key)``.

    The outputs of a call are "example output", and the KL is one number, in nats. To write your own, subclass it with
    ``solve``. Its floating-point arrays are what ``fit`` trains, and ``kl`` is what the bound charges for them. The
    same key must always give the same function:

        class Jitter(AbstractModel):
            weight: jax.Array
            log_std: jax.Array

            def solve(self, x, *, key, with_roughness=False):
                noise = jax.random.normal(key, self.weight.shape)
                w = self.weight + jnp.exp(self.log_std) * noise
                variance = jnp.exp(2 * self.log_std)
                nats = 0.5 * (variance + self.weight**2 - 1) - self.log_std
                return Solution(x @ w, jnp.sum(nats))

        outputs, kl = Jitter(jnp.zeros((1, 1)), jnp.zeros((1, 1)))(x, key=key)

    Every other method has a default and is needed only for what its docstring says.
    """

    @abstractmethod
    def solve(self, x: Num[Array, "example *input"], *, key: PRNGKeyArray, with_roughness: bool = False) -> Solution:
        """Evaluate the function that the key names on a batch. Return its outputs, the KL, and what the solve took.

        ``with_roughness`` asks for the roughness of the hidden states, which a model without dynamics leaves at 0.
        """

    @final
    def __call__(
        self, x: Num[Array, "example *input"], *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "example *output"], Float[Array, ""]]:
        """The outputs and the KL of ``solve``."""
        solution = self.solve(x, key=key)
        return solution.outputs, solution.kl

    def draw_keys(self, key: PRNGKeyArray, draws: int) -> Key[Array, " draw"]:
        """The keys of the first, second, ... draw. More draws keep the earlier ones.

        Override it for a model that holds a finite number of functions, such as an ensemble, to name each in turn. It
        may return more than ``draws`` keys, so that every function gets the same weight.
        """
        return _indexed_keys(key, draws)

    def for_training(self) -> "AbstractModel":
        """The model that the ELBO evaluates in training: of the same expectation, perhaps with less variance."""
        return self

    def as_candidate(self) -> "AbstractModel | None":
        """The model on the grid on which it was trained, with log q - log p of the draw itself as its KL.

        None if it cannot compute this. A ``ConditionedReadout`` chooses among such draws of its body.
        """
        return None

    @property
    def has_dynamics(self) -> bool:
        """Whether the roughness of a solution means something: whether this model, or one inside it, solves over depth.

        Override it with True for a model that solves something itself.
        """

        def inside(node: PyTree) -> bool:
            return node is not self and isinstance(node, AbstractModel)

        return any(node.has_dynamics for node in jax.tree.leaves(self, is_leaf=inside) if inside(node))

    @property
    def has_states(self) -> bool:
        """Whether ``states`` returns hidden states."""
        return False

    def states(self, x: Num[Array, "example *input"], *, key: PRNGKeyArray) -> tuple[Num[Array, "example *state"], ...]:
        """The hidden states of the function that the key names, layer by layer, by which examples can be compared.

        Override it, with ``has_states``, for a model of several layers.
        """
        return ()

    @property
    def starts_near_posterior(self) -> bool:
        """Whether the first step starts near the posterior, so that ``fit`` needs no warm-up of the KL weight.

        By default, whether a guide, or a model that does, is inside it.
        """

        def inside(node: PyTree) -> bool:
            return isinstance(node, Guide) or (node is not self and isinstance(node, AbstractModel))

        found = [node for node in jax.tree.leaves(self, is_leaf=inside) if inside(node)]
        return any(isinstance(node, Guide) or node.starts_near_posterior for node in found)

    def layer_line(self, x: Num[Array, "example *input"]) -> LayerLine:
        """The line of ``describe`` for a batch like x, which is traced: only its shape and its type are known.

        Override it for a model that has more to tell, or that evaluates other models.
        """
        return LayerLine(type(self).__name__, parameter_count(self))

    @property
    def learns_after_training(self) -> bool:
        """Whether ``after_training`` learns from the data, such as a sampler or a calibrated temperature does."""
        return False

    def check_trainable(self, likelihood: AbstractLikelihood, *, has_validation: bool) -> None:
        """Raise a ValueError, before the gradient steps, for what ``after_training`` could not use."""

    def suited_to(
        self,
        points: Num[Array, "point *input"],
        targets: Float[np.ndarray, "point output"],
        variances: Float[np.ndarray, "point output"],
    ) -> "AbstractModel":
        """The model whose features a ``ConditionedReadout`` reads, with constants and a start that suit such data."""
        return self

    def before_training(self, likelihood: AbstractLikelihood, data: Data) -> "AbstractModel":
        """The model from which training on these data starts: a guide, for example, is placed at some of the inputs.

        It must leave a model that was trained before as it is.
        """
        return self

    def after_training(
        self,
        likelihood: AbstractLikelihood,
        data: Data,
        *,
        validation: Data | None,
        key: PRNGKeyArray,
        say: Callable[[str], None],
    ) -> "AbstractModel":
        """The model after gradient steps, with what it learns from the data by other means; ``say`` shows progress."""
        return self


def check_model(model: object) -> AbstractModel:
    """The model, if it is one."""
    check_object(model)
    if not isinstance(model, AbstractModel):
        raise ValueError(
            f"model={shown(model)} is not a model: pass one such as SDEBNN.mlp(1, 1, key=key), or wrap a module of one "
            "example in Deterministic."
        )
    return model


def check_likelihood(likelihood: object) -> AbstractLikelihood:
    """The likelihood, if it is one."""
    if not isinstance(likelihood, AbstractLikelihood):
        raise ValueError(f"likelihood={shown(likelihood)} is not one: pass an object such as Gaussian(0.1).")
    return likelihood


def as_data(
    model: AbstractModel,
    likelihood: AbstractLikelihood,
    x: object,
    y: object,
    *,
    key: PRNGKeyArray,
    limit: int = 2**31,
) -> Data:
    """The inputs and targets as they are used for training, checked against the model and the likelihood.

    Inputs of more than ``limit`` bytes stay where they are. Nothing is compiled.
    """
    check_key(key)
    check_model(model)
    check_likelihood(likelihood)
    inputs, targets = as_arrays(x, y, limit=limit)
    row = jax.ShapeDtypeStruct((1, *inputs.shape[1:]), batch_dtype(inputs.dtype))
    targets = likelihood.cast_targets(targets, row.dtype)
    outputs, _ = jax.eval_shape(lambda x, key: model(x, key=key), row, key)
    if len(outputs.shape) != 2:
        raise ValueError(
            f"the model maps an example to outputs of shape {outputs.shape[1:]}, where a vector is needed: add a head "
            "such as Deterministic(eqx.nn.Linear(size, outputs, key=key)), after flattening if there are more axes."
        )
    shape = jax.ShapeDtypeStruct((targets.shape[0], *outputs.shape[1:]), outputs.dtype)
    jax.eval_shape(likelihood.log_prob, shape, targets)
    likelihood.check_targets(targets, outputs.shape[-1])
    return inputs, targets


def draw_keys(key: PRNGKeyArray, draws: int, model: AbstractModel | None = None) -> Key[Array, " draw"]:
    """The keys of the first, second, ... draw under a key; those of a model if it is given.

        each = draw_keys(key, 4, model)
        outputs, kl = model(x, key=each[0])

    ``predict(model, x, draws=4, key=key)`` evaluates the functions that these four keys name.
    """
    check_key(key)
    check_count("draws", draws)
    return _indexed_keys(key, draws) if model is None else model.draw_keys(key, draws)


def _indexed_keys(key: PRNGKeyArray, draws: int) -> Key[Array, " draw"]:
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(draws))


def check_trainable(model: AbstractModel, likelihood: AbstractLikelihood, *, has_validation: bool) -> None:
    """Before training, refuse a model whose ``after_training`` would fail.

    Either something that it needs is missing, or it is inside a model that never calls it.
    """
    model.check_trainable(likelihood, has_validation=has_validation)

    def learns(node: PyTree) -> bool:
        return isinstance(node, AbstractModel) and node.learns_after_training

    inside = [] if learns(model) else [node for node in jax.tree.leaves(model, is_leaf=learns) if learns(node)]
    if inside:
        name, outer = type(inside[0]).__name__, type(model).__name__
        raise ValueError(f"{name} learns from the data by itself, and cannot do so inside {outer}: put it outermost.")


def solutions(
    model: AbstractModel,
    x: Num[Array, "example *input"],
    keys: Key[Array, " draw"],
    at_once: int,
    mesh: Mesh | None = None,
) -> Solution:
    """The solutions of several draws, ``at_once`` of them in parallel; each part gets an axis of draws in front.

    On a mesh, its devices share examples and draws; the model must be on all of them (``on_mesh``).
    """
    if mesh is not None:
        return _shared_solutions(model, x, keys, at_once, mesh)
    if at_once > 1:
        return _draws(model, x, keys, at_once)
    # One program, called repeatedly: convolutions then have no additional axis and are not inside a loop.
    return jax.tree.map(lambda *each: jnp.stack(each), *[_draw(model, x, key) for key in keys])


def over_draws(one: Callable[[PRNGKeyArray], T], keys: Key[Array, " draw"], at_once: int) -> T:
    """The results of a function for each key, ``at_once`` of them in parallel."""
    if at_once >= keys.size:
        return jax.vmap(one)(keys)  # without a loop, whose gradient would keep what all draws share
    if at_once == 1:
        return lax.map(one, keys)
    # Rounds of equal size: a smaller last round would be compiled as a second program. The first keys fill it up.
    rounds = math.ceil(keys.size / at_once)
    size = math.ceil(keys.size / rounds)
    filled = jnp.concatenate([keys, keys[: rounds * size - keys.size]]).reshape(rounds, size)
    results = lax.map(jax.vmap(one), filled)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[: keys.size], results)


def _shared_solutions(
    model: AbstractModel, x: Num[Array, "example *input"], keys: Key[Array, " draw"], at_once: int, mesh: Mesh
) -> Solution:
    """The solutions, computed by the devices of a mesh. Rows and keys that fill up their shares are left out."""
    examples, draws = x.shape[0], keys.size
    x = on_mesh(padded(x, mesh.shape[DATA]), mesh, DATA)
    whole = padded(keys, mesh.shape[DRAW])
    # As without a mesh: either all draws in one program, or one draw a device in a program that is called repeatedly.
    size = len(whole) if at_once > 1 else mesh.shape[DRAW]
    rounds = [on_mesh(whole[i : i + size], mesh, DRAW) for i in range(0, len(whole), size)]
    found = [_draws_on_mesh(model, x, some, at_once, mesh) for some in rounds]
    found = jax.tree.map(lambda *each: jnp.concatenate(each)[:draws], *found)
    if not isinstance(found.outputs, Tracer):  # results are on the default device, whatever the mesh is
        found = jax.tree.map(lambda part: jnp.asarray(np.asarray(part)), found)
    return found._replace(outputs=found.outputs[:, :examples])


@compiled
def _draws_on_mesh(model: AbstractModel, x: Array, keys: Key[Array, " draw"], at_once: int, mesh: Mesh) -> Solution:
    arrays, rest = eqx.partition(model, eqx.is_array)

    def share(arrays: PyTree, x: Array, keys: Array) -> Solution:
        model = eqx.combine(arrays, rest)
        if keys.size == 1:
            found = jax.tree.map(lambda part: part[None], _as_arrays(model.solve(x, key=keys[0])))
        else:
            found = over_draws(lambda key: _as_arrays(model.solve(x, key=key)), keys, at_once)
        # Adaptive steps, and what is computed of them, may differ between the shares of the examples.
        others = (part if name == "outputs" else part[:, None] for name, part in found._asdict().items())
        return Solution(*others)

    both, everywhere = PartitionSpec(DRAW, DATA), PartitionSpec()
    found = jax.shard_map(
        share, mesh=mesh, in_specs=(everywhere, PartitionSpec(DATA), PartitionSpec(DRAW)), out_specs=both,
        check_vma=False,
    )(arrays, x, keys)  # fmt: skip
    found = Solution(
        found.outputs, jnp.mean(found.kl, 1), jnp.max(found.evaluations, 1), jnp.all(found.finished, 1),
        jnp.mean(found.roughness, 1), jnp.max(found.shadow_distance, 1),
    )  # fmt: skip
    if is_local(mesh):
        return found
    return lax.with_sharding_constraint(found, NamedSharding(mesh, everywhere))


@compiled
def _draws(model: AbstractModel, x: Array, keys: Key[Array, " draw"], at_once: int) -> Solution:
    return over_draws(lambda key: _as_arrays(model.solve(x, key=key)), keys, at_once)


@compiled
def _draw(model: AbstractModel, x: Array, key: PRNGKeyArray) -> Solution:
    return _as_arrays(model.solve(x, key=key))


def _as_arrays(solution: Solution) -> Solution:
    return Solution(*map(jnp.asarray, solution))


def check_solution(solution: Solution) -> None:
    """Refuse draws that did not reach depth 1, or are not finite. Values that are being traced are not checked."""
    if any(isinstance(part, Tracer) for part in solution):
        return
    finished = np.asarray(solution.finished)
    if not finished.all():
        raise ValueError(
            f"{np.size(finished) - finished.sum()} of {np.size(finished)} draws did not reach depth 1 within the steps "
            "allowed: raise max_steps, loosen rtol, or look for weights that blow up."
        )
    sums = np.asarray(jnp.sum(solution.outputs, axis=tuple(range(finished.ndim, solution.outputs.ndim))))
    wrong = ~np.isfinite(sums + np.asarray(solution.kl))
    if wrong.any():
        raise ValueError(
            f"{wrong.sum()} of {wrong.size} draws are not finite: take more steps, a smaller sigma or a smaller gain, "
            "or standardise the inputs."
        )
    warn_if_unstable(jnp.asarray(solution.shadow_distance))
