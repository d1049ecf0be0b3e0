"""Models: one draw of the weights, named by a key, evaluated on a batch.

    model(x, *, key) -> (outputs, kl)

The same key always gives the same function. A deterministic model ignores the key and returns kl = 0.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PRNGKeyArray, PyTree

from sdebnn.checks import as_inputs, check_array, check_callable, check_count, check_key, shown
from sdebnn.fields import Augment, Standardised, TimeMLP, fan_in_scale
from sdebnn.integrate import Estimator, FixedGrid, Hidden, WeightPath, check_estimator
from sdebnn.processes import OU, Depth, Drift, DriftNet, NoDrift, Normal, Point, Weights

Outputs = Float[Array, "example *output"]


def draw_keys(key: PRNGKeyArray, draws: int) -> Key[Array, " draw"]:
    """The keys of the first, second, ... draw under a key: asking for more draws keeps the ones before."""
    check_key(key)
    check_count("draws", draws)
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(draws))


class Deterministic(eqx.Module):
    """A module of one example as a model of a batch: no weight is uncertain, the KL is 0."""

    module: Callable[[Array], Array]

    def __call__(self, x: Float[Array, "example *input"], *, key: PRNGKeyArray) -> tuple[Outputs, Float[Array, ""]]:
        try:
            outputs = jax.vmap(self.module)(x)
        except TypeError as error:
            raise ValueError(f"{_name(self.module)} refuses {_refusal(x, error)}: check the shape of x.") from error
        return outputs, jnp.zeros((), outputs.dtype)


def _name(module: Any) -> str:
    return getattr(module, "__name__", type(module).__name__)


def _refusal(x: Array, error: Exception) -> str:
    return f"an example of shape {x.shape[1:]} ({str(error).splitlines()[0]})"


class SDEBlock(eqx.Module):
    """A layer of infinite depth: h_1 = h_0 + ∫ f_h(t, h_t, w_t) dt, along one posterior draw of w.

    Built by ``bayesianize``. ``field`` holds what is not random; ``weights`` puts the rest into it.
    """

    field: PyTree
    weights: Standardised
    prior: OU
    drift: Drift
    initial: Point | Normal
    solver: FixedGrid
    kl: Estimator = eqx.field(static=True)

    def __check_init__(self):
        check_estimator(self.kl, self.drift)
        for name, parts, remedy in (
            ("prior", ("drift", "sigma"), "OU(sigma=0.1)"),
            ("initial", ("sample", "kl", "log_ratio", "prior"), "Point or Normal, to be called with w_0"),
            ("solver", ("weights", "hidden"), "FixedGrid(20)"),
        ):
            value = getattr(self, name)
            if not all(hasattr(value, part) for part in parts) or isinstance(value, type):
                raise ValueError(f"{name}={shown(value)} has no {' or no '.join(parts)}: pass {remedy}.")

    def draw(self, *, key: PRNGKeyArray) -> WeightPath:
        """The path of standardised weights that the key names, and its KL."""
        check_key(key)
        return self.solver.weights(self.prior, self.drift, self.initial, kl=self.kl, key=key)

    def __call__(self, h: Hidden, *, key: PRNGKeyArray) -> tuple[Hidden, Float[Array, ""]]:
        return self._solve(h, key, every=False)

    def trajectory(
        self, h: Hidden, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "time example *state"], Float[Array, ""]]:
        """The hidden states of a batch at every depth of the grid, from h_0 to h_1, and the KL."""
        return self._solve(h, key, every=True)

    def _solve(self, h: Hidden, key: PRNGKeyArray, every: bool) -> tuple[Array, Float[Array, ""]]:
        check_key(key)
        h = as_inputs("h", h)
        self._check_shape(h)
        return _compiled_solve(self, h, key, every)

    def _f_h(self, t: Depth, h: Hidden, random: PyTree[Array]) -> Hidden:
        """The field with one draw of its weights in place, over a batch."""
        return jax.vmap(eqx.combine(random, self.field), in_axes=(None, 0))(t, h)

    def _check_shape(self, h: Hidden) -> None:
        """Refuse a field whose dh/dt does not look like h."""
        w0 = jax.eval_shape(lambda key: self.initial.sample(key=key), jax.random.key(0))
        try:
            out = jax.eval_shape(self._f_h, jnp.zeros((), h.dtype), h, jax.eval_shape(self.weights.unravel, w0))
        except (TypeError, ValueError) as error:
            raise ValueError(f"the field, called as field(t, h), refuses {_refusal(h, error)}.") from error
        if getattr(out, "shape", None) != h.shape or out.dtype != h.dtype:
            raise ValueError(
                f"the field maps a state of shape {h.shape[1:]} and dtype {h.dtype} to "
                f"{getattr(out, 'shape', (None,))[1:]} and {getattr(out, 'dtype', type(out))}: "
                "dh/dt must look like h; give the field its own last layer, or cast x."
            )


@eqx.filter_jit  # for those who call a model outside jit: the loops are compiled once, not at every call
def _compiled_solve(
    block: SDEBlock, h: Hidden, key: PRNGKeyArray, every: bool
) -> tuple[Float[Array, "..."], Float[Array, ""]]:
    path = block.draw(key=key)
    # Every step's arrays at once, outside the loop over depth.
    random = tuple(block.weights.unravel(w) for w in path.stages)
    return block.solver.hidden(block._f_h, random, h, every=every), path.kl


def prior_of(model: Any) -> Any:
    """The same model before any data: each block's drift is off and its w_0 follows the prior, so the KL is 0.

    Deterministic parameters, and a w_0 that is a point, stay as they are.
    """

    def forget(node: Any) -> Any:
        if not isinstance(node, SDEBlock):
            return node
        return eqx.tree_at(lambda b: (b.drift, b.initial), node, (NoDrift(), node.initial.prior()))

    return jax.tree.map(forget, model, is_leaf=lambda node: isinstance(node, SDEBlock))


def bayesianize(
    module: Callable[..., Array],
    where: Callable[[Any], Any] | None = None,
    *,
    prior: OU = OU(),
    drift: Drift | Sequence[int] = (32, 32),
    initial: Callable[[Weights], Point | Normal] = Point,
    solver: FixedGrid = FixedGrid(),
    kl: Estimator = "analytic",
    scale: Callable[[Array], float] = fan_in_scale,
    key: PRNGKeyArray,
) -> SDEBlock:
    """Make the weights of any field, an Equinox module (t, h) -> dh/dt of one example, a process over depth.

    ``where`` picks the part to make random, as in ``eqx.tree_at``: ``lambda m: m.layers[0]``, or a tuple of parts.
    Without it all arrays are. What is not picked stays deterministic, and is trained all the same.
    An array that stands in two places of a module is two arrays of w; share it with ``eqx.nn.Shared``.
    ``drift`` is a module (t, w) -> R^D or the widths of a ``DriftNet``; ``initial`` is ``Point`` or ``Normal``.
    """
    check_key(key)
    check_callable("initial", initial, "Point")
    try:
        inspect.signature(module).bind(0.0, None)
    except (TypeError, ValueError):
        raise ValueError(
            f"{_name(module)} cannot be called as field(t, h): pass an Equinox module that maps (t, h) to dh/dt, "
            "such as one whose __call__(self, t, h) hands h to yours."
        ) from None
    random, field = eqx.partition(module, _mask(module, where))
    weights = Standardised(random, scale)
    w0 = weights.ravel(random)
    check_array("w_0, the module's weights,", w0)
    if isinstance(drift, Sequence):
        drift = DriftNet(weights.size, drift, key=key)
    _check_drift("drift", drift, w0)
    _check_drift("prior's drift", getattr(prior, "drift", None), w0)
    return SDEBlock(field, weights, prior, drift, initial(w0), solver, kl)


def _check_drift(name: str, drift: Any, w0: Weights) -> None:
    """Refuse a drift that does not map (t, w) to something like w."""
    check_callable(name, drift, "DriftNet or OU")
    try:
        shape = jax.eval_shape(drift, jnp.zeros((), w0.dtype), w0).shape
    except Exception as error:  # whatever a user's own function may raise
        shape = f"none ({str(error).splitlines()[0]})"
    if shape != w0.shape:
        raise ValueError(f"the {name} maps {w0.shape[0]} weights to shape {shape}: make it {w0.shape}.")


def _mask(module: Any, where: Callable[[Any], Any] | None) -> PyTree[bool]:
    """Which leaves of a module are random: the floating-point arrays of the parts that ``where`` picks."""
    arrays = jax.tree.map(lambda leaf: eqx.is_inexact_array(leaf) and not jnp.iscomplexobj(leaf), module)
    if not any(jax.tree.leaves(arrays)):
        raise ValueError(f"{type(module).__name__} holds no floating-point array: there are no weights to make random.")
    if where is None:
        return arrays
    nothing = jax.tree.map(lambda _: False, module)
    try:
        picked = eqx.tree_at(where, nothing, replace_fn=lambda part: jax.tree.map(lambda _: True, part))
    except (ValueError, AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(
            f"where does not pick parts of {type(module).__name__} ({str(error).splitlines()[0]}): "
            "return one of its arrays or submodules, such as lambda m: m.layers[0], or a tuple of them."
        ) from None
    mask = jax.tree.map(lambda a, b: a and b, arrays, picked)
    if not any(jax.tree.leaves(mask)):
        raise ValueError(
            f"where selects no floating-point array of {type(module).__name__}: "
            "return one of its weights, such as lambda m: m.layers[0].weight, or leave where out for all of them."
        )
    return mask


class SDEBNN(eqx.Module):
    """Models in sequence: the outputs of each are the inputs of the next, and their KLs add up."""

    layers: tuple[Any, ...]

    def __check_init__(self):
        if not isinstance(self.layers, tuple | list) or not self.layers or not all(map(callable, self.layers)):
            raise ValueError(
                f"layers={shown(self.layers)} must be a tuple of models, such as (bayesianize(field, key=key),)."
            )

    def __call__(self, x: Float[Array, "example *input"], *, key: PRNGKeyArray) -> tuple[Outputs, Float[Array, ""]]:
        check_key(key)
        h, kl = as_inputs("x", x), jnp.zeros(())
        for i, layer in enumerate(self.layers):
            try:
                h, more = layer(h, key=jax.random.fold_in(key, i))
            except TypeError as error:
                raise ValueError(
                    f"layer {i}, {_name(layer)}, is not a model(x, *, key) -> (outputs, kl) of a batch "
                    f"({str(error).splitlines()[0]}): wrap a module of one example in Deterministic."
                ) from error
            kl = kl + more
        return h, kl

    @staticmethod
    def mlp(
        in_size: int,
        out_size: int,
        *,
        widths: Sequence[int] = (16,),
        augment: int = 2,
        activation: Callable[[Array], Array] = jax.nn.swish,
        gain: float = 2.0,
        prior: OU = OU(sigma=0.2),
        drift: Sequence[int] = (32, 32),
        initial: Callable[[Weights], Point | Normal] = Normal,
        solver: FixedGrid = FixedGrid(),
        kl: Estimator = "analytic",
        key: PRNGKeyArray,
    ) -> "SDEBNN":
        """The net for vectors: zeros appended, one random MLP field, a deterministic linear read-out.

        The defaults suit inputs and targets of about unit scale, and infer w_0: the KL charges for all that is learned.
        """
        check_count("in_size", in_size)
        check_count("out_size", out_size)
        check_count("augment", augment, least=0)
        check_key(key)
        field_key, drift_key, head_key = jax.random.split(key, 3)
        state = in_size + augment
        block = bayesianize(
            TimeMLP(state, widths, activation=activation, gain=gain, key=field_key),
            prior=prior,
            drift=drift,
            initial=initial,
            solver=solver,
            kl=kl,
            scale=partial(fan_in_scale, gain=gain),
            key=drift_key,
        )
        head = eqx.nn.Linear(state, out_size, key=head_key)
        return SDEBNN((Deterministic(Augment(in_size, augment)), block, Deterministic(head)))
