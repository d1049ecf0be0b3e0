"""Hidden dynamics dh/dt = f_h(t, h) of one example, whose arrays, ravelled, are the weights w.

A field is any Equinox module that maps (t, h) to dh/dt. The process runs on standardised weights w; an array of
the module is scale · w, with scale = gain / sqrt(fan-in), so that σ means the same in every layer of every width.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import GetAttrKey
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from sdebnn.checks import check_callable, check_count, check_counts, check_key, check_positive, plain_number
from sdebnn.host_arrays import filled, joined, normals
from sdebnn.processes import Depth

EXAMPLE = "example"  # the name, inside a module of one example, of the axis over all examples


class FasterSteps(NamedTuple):
    """A way to take all Euler steps of a field that is faster than a loop.

    ``take(keep=..., unroll=...)`` returns h_1: ``keep`` is whether the backward pass keeps the forward pass, ``unroll``
    how many steps the plain loop compiles as one. ``how`` describes it in a few words, for ``describe``.
    """

    how: str
    take: Callable[..., Float[Array, "example *state"]]


class AbstractLayer(eqx.Module):
    """Optional base class of fields and layers: for own scales, whole batches, or faster Euler steps.

    All methods have defaults. To write your own:

        class Scaled(AbstractLayer):
            weight: jax.Array  # ten times its standardised value

            @property
            def scales(self):
                return jax.tree.map(lambda _: 10.0, self)

            def __call__(self, t, h):
                return self.weight @ h

        block = bayesianize(Scaled(jnp.eye(4)), key=key)
    """

    @property
    def takes_batch(self) -> bool:
        """Whether it is called with a whole batch instead of one example, as convolutions are for their gradient."""
        return False

    @property
    def scales(self) -> PyTree | None:
        """A tree of factors, structured like this module: array = factor · standardised weights.

        None takes ``fan_in_scale``.
        """
        return None

    def suited_to(self, h: Float[np.ndarray, "example state"]) -> "AbstractLayer":
        """The same layer with constants that suit states at depth 0 like these; called before training starts."""
        return self

    def likely_weights(
        self,
        h: Float[np.ndarray, "point state"],
        targets: Float[np.ndarray, "point output"],
        variances: Float[np.ndarray, "point output"],
    ) -> PyTree | None:
        """Standardised weights at which training may start if linear functions of the last state have these targets.

        It is a tree like the random arrays of this layer; None if there is nothing to say.
        """
        return None

    def all_euler_steps(self, h: Float[Array, "example *state"]) -> FasterSteps | None:
        """A faster way to take all Euler steps from h, with arrays that have the steps as first axis; None without one.

        h may be traced, so only its shape and its type are known.
        """
        return None


def over_batch(module: Callable[..., Array], *shared: Depth) -> Callable[[Array], Array]:
    """A module of one example as a function of a batch, after arguments that all examples share.

        slopes = over_batch(field, 0.5)(jnp.ones((10, 4)))

    Here, 0.5 is the depth. A layer that takes whole batches is called once.
    """
    layer: object = module
    if isinstance(layer, AbstractLayer) and layer.takes_batch:
        return lambda x: module(*shared, x)
    return lambda x: jax.vmap(module, in_axes=(None,) * len(shared) + (0,), axis_name=EXAMPLE)(*shared, x)


class TimeMLP(AbstractLayer):
    """An MLP from (h, t) to dh/dt, with any smooth activation.

        mlp = TimeMLP(4, (16, 16), activation=jax.nn.swish, key=key)
        slope = mlp(0.5, jnp.ones(4))
        block = bayesianize(mlp, key=key)

    ``size`` is the number of entries of h, ``widths`` are those of the hidden layers. ``gain`` multiplies the scale of
    the weights.
    """

    layers: tuple[eqx.nn.Linear, ...]
    activation: Callable[[Array], Array]
    gain: float = eqx.field(static=True)

    def __init__(
        self,
        size: int,
        widths: Sequence[int] = (32, 32),
        *,
        activation: Callable[[Array], Array] = jnp.tanh,
        gain: float = 1.0,
        key: PRNGKeyArray,
    ):
        check_count("size", size)
        check_counts("widths", widths)
        check_callable("activation", activation, "jnp.tanh")
        gain = plain_number(gain)
        check_positive("gain", gain)
        check_key(key)
        sizes = (size + 1, *widths, size)
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = tuple(_linear(m, n, gain, key=k) for m, n, k in zip(sizes[:-1], sizes[1:], keys, strict=True))
        self.activation = activation
        self.gain = gain

    @property
    def scales(self) -> "TimeMLP":
        """Each array as a multiple of its standardised weights."""
        scale = partial(fan_in_scale, gain=self.gain)
        return jax.tree.map(lambda leaf: scale(leaf) if eqx.is_inexact_array(leaf) else leaf, self)

    def __call__(self, t: Depth, h: Float[Array, " state"]) -> Float[Array, " state"]:
        h = jnp.append(h, jnp.asarray(t, h.dtype))
        for layer in self.layers[:-1]:
            h = self.activation(layer(h))
        return self.layers[-1](h)


def _linear(in_size: int, out_size: int, gain: float, *, key: PRNGKeyArray) -> eqx.nn.Linear:
    """A linear layer whose standardised weights start as standard normals, and biases at zero."""
    weight_key, unused = jax.random.split(key)
    weight = 1 / math.sqrt(in_size) * (gain * normals(weight_key, (out_size, in_size)))
    layer = eqx.filter_eval_shape(eqx.nn.Linear, in_size, out_size, key=unused)
    return eqx.tree_at(lambda layer: (layer.weight, layer.bias), layer, (jnp.asarray(weight), filled(out_size)))


class Last(eqx.Module):
    """The last entries of a vector."""

    count: int = eqx.field(static=True)

    def __call__(self, h: Float[Array, " state"]) -> Float[Array, " last"]:
        return h[-self.count :]


class Readout(AbstractLayer):
    """A linear layer from ``in_size`` to ``out_size`` numbers, standardised by its fan-in.

        last = Deterministic(Readout(4, 1, key=key))
        outputs, kl = last(jnp.ones((5, 4)), key=key)

    Its weights start as standard normals, and are divided by the square root of ``in_size`` when it is called.
    """

    weight: Float[Array, "out in"]
    bias: Float[Array, " out"]

    def __init__(self, in_size: int, out_size: int, *, key: PRNGKeyArray):
        check_counts("sizes", (in_size, out_size))
        self.weight, self.bias = jnp.asarray(normals(key, (out_size, in_size))), filled(out_size)

    @property
    def scales(self) -> "Readout":
        """1: the arrays are standardised."""
        return jax.tree.map(lambda _: 1.0, self)

    def __call__(self, x: Float[Array, " in"]) -> Float[Array, " out"]:
        return self.weight @ x / math.sqrt(x.size) + self.bias


class Augment(eqx.Module):
    """Append zeros to the input, so that trajectories may cross: without them every 1-D draw is monotonic.

        first = Deterministic(Augment(1, 3))
        net = SDEBNN((first, bayesianize(field, key=key)))

    ``size`` is the number of entries of an input, ``zeros`` the number of zeros.
    """

    size: int = eqx.field(static=True, converter=plain_number)
    zeros: int = eqx.field(static=True, converter=plain_number)

    def __check_init__(self):
        check_count("size", self.size)
        check_count("zeros", self.zeros, least=0)

    def __call__(self, x: Float[Array, " feature"]) -> Float[Array, " state"]:
        if x.shape != (self.size,):
            raise ValueError(
                f"an example has shape {x.shape}, this model takes ({self.size},): "
                f"pass x of shape (examples, {self.size})."
            )
        return jnp.concatenate([x, jnp.zeros(self.zeros, x.dtype)])


def fixed_logarithms(name: str, values: float | Sequence[float], size: int) -> tuple[float, ...]:
    """The logarithms of given positive numbers, one for each of ``size`` or one for all."""
    given = [plain_number(value) for value in np.atleast_1d(np.asarray(values)).tolist()]
    if len(given) not in (1, size):
        raise ValueError(f"{name} holds {len(given)} numbers: pass one, or {size}.")
    for value in given:
        check_positive(name, value)
    return tuple(math.log(value) for value in (given * size if len(given) == 1 else given))


def fan_in_scale(leaf: Float[Array, "..."], gain: float = 1.0) -> float:
    """gain / sqrt(fan-in) of a weight (its axes: outputs first, as in Equinox); 1 for vectors and scalars.

        quarter = fan_in_scale(jnp.ones((8, 16)))

    ``gain`` is a factor of the result.
    """
    return gain / math.sqrt(math.prod(leaf.shape[1:])) if leaf.ndim > 1 else 1.0


def own_scales(module: PyTree, mask: PyTree[bool] | None = None) -> tuple[float, ...]:
    """Each array of a module (those in the mask, or all) as a multiple of its standardised weights.

        scales = own_scales(TimeMLP(4, (8,), key=key))

    An ``AbstractLayer`` with ``scales`` has its own. Otherwise the scale is ``fan_in_scale``, and 1 for arrays that are
    called ``bias``.
    """

    def has_scales(node: PyTree) -> bool:
        # A layer without arrays, such as one inside an ODEBlock, which keeps them as a vector, has nothing to scale.
        has_arrays = any(map(eqx.is_inexact_array, jax.tree.leaves(node)))
        return isinstance(node, AbstractLayer) and has_arrays and node.scales is not None

    def scales_of(path: tuple[object, ...], node: PyTree) -> PyTree:
        if isinstance(node, AbstractLayer):
            return node.scales
        return 1.0 if not eqx.is_inexact_array(node) or _is_bias(path) else fan_in_scale(node)

    tree = jax.tree_util.tree_map_with_path(scales_of, module, is_leaf=has_scales)
    mask = jax.tree.map(eqx.is_inexact_array, module) if mask is None else mask
    return tuple(float(scale) for scale, wanted in zip(*map(jax.tree.leaves, (tree, mask)), strict=True) if wanted)


def _is_bias(path: tuple[object, ...]) -> bool:
    return bool(path) and path[-1] == GetAttrKey("bias")


class Standardised(eqx.Module):
    """The bijection between a tree of arrays and its standardised vector w: array = scale(array) · its part of w.

        arrays = eqx.filter(field, eqx.is_array)
        weights = Standardised(arrays)
        w = weights.ravel(arrays)
        same = weights.unravel(w)

    Scales are given one for each array, or as a function of it. With a function, arrays that are called ``bias`` have
    scale 1 whatever their shape: the bias of a convolution has as many axes as an image.
    """

    structure: Hashable = eqx.field(static=True)  # the tree's definition
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    scales: tuple[float, ...] = eqx.field(static=True)

    def __init__(self, tree: PyTree[Array], scale: Callable[[Array], float] | Sequence[float] = fan_in_scale):
        named, self.structure = jax.tree_util.tree_flatten_with_path(tree)
        self.shapes = tuple(leaf.shape for _, leaf in named)
        if isinstance(scale, Sequence):
            self.scales = tuple(map(plain_number, scale))
        else:
            check_callable("scale", scale, "fan_in_scale")
            self.scales = tuple(1.0 if _is_bias(path) else float(scale(leaf)) for path, leaf in named)
        for (path, _), value in zip(named, self.scales, strict=True):
            check_positive(f"scale of {jax.tree_util.keystr(path)}", value)

    @property
    def size(self) -> int:
        """The number of weights."""
        return sum(math.prod(shape) for shape in self.shapes)

    def ravel(self, tree: PyTree[Array]) -> Float[Array, " weight"]:
        """The vector w of a tree."""
        return joined(jax.tree.leaves(tree), self.scales)

    def unravel(self, w: Float[Array, "... weight"]) -> PyTree[Array]:
        """The tree of a vector; leading axes, such as a whole path of vectors, stay in front of every leaf."""
        parts = lax.split(w, [math.prod(shape) for shape in self.shapes], axis=w.ndim - 1)
        shaped = zip(parts, self.shapes, self.scales, strict=True)
        leaves = [scale * part.reshape(w.shape[:-1] + shape) for part, shape, scale in shaped]
        return jax.tree.unflatten(self.structure, leaves)
