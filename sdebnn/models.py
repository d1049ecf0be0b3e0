"""Models of the contract: blocks of infinite depth, any module made random, and sequences of models.

h_1 = h_0 + ∫ f_h(t, h_t, w_t) dt,   w from the posterior;   a deterministic model ignores the key, and its KL is 0
"""

import inspect
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num, PRNGKeyArray, PyTree

from sdebnn.checks import (
    as_inputs,
    as_precise,
    check_array,
    check_callable,
    check_count,
    check_counts,
    check_key,
    check_object,
    shown,
)
from sdebnn.contract import check_solution, solve, training
from sdebnn.convolutions import TimeConv
from sdebnn.fields import Augment, Standardised, TimeMLP, own_scales
from sdebnn.integrate import (
    Adaptive,
    Estimator,
    FixedGrid,
    Hidden,
    Solution,
    Solver,
    WeightPath,
    check_estimator,
    redialled,
)
from sdebnn.processes import OU, Depth, Drift, DriftNet, Law, NoDrift, Normal, Point, Weights
from sdebnn.programs import compiled

Outputs = Float[Array, "example *output"]
EXAMPLE = "example"  # the name, inside a module of one example, of the axis of all of them


def over_batch(module: Any, *leading: Any) -> Callable[[Array], Array]:
    """A module of one example as a function of a batch, after the arguments that all examples share.

    A module whose ``batched`` is true takes the batch as it is: so do convolutions, whose gradient needs it whole.
    """
    if getattr(module, "batched", False):
        return lambda x: module(*leading, x)
    return lambda x: jax.vmap(module, in_axes=(None,) * len(leading) + (0,), axis_name=EXAMPLE)(*leading, x)


def all_steps(field: Any, h: Hidden, *, keep: bool, unroll: int) -> Hidden | None:
    """A batch after all Euler steps of a field whose arrays are those of every step, where there is a faster way."""
    return field.euler(h, keep=keep, unroll=unroll) if isinstance(field, TimeConv) else None


class Deterministic(eqx.Module):
    """A module of one example as a model of a batch: no weight is uncertain, the KL is 0."""

    module: Callable[[Array], Array]

    def __check_init__(self):
        check_object(self.module)
        check_callable("module", self.module, "eqx.nn.Linear(2, 1, key=key)")

    def __call__(self, x: Float[Array, "example *input"], *, key: PRNGKeyArray) -> tuple[Outputs, Float[Array, ""]]:
        try:
            outputs = over_batch(self.module)(x)
        except TypeError as error:
            raise ValueError(f"{_name(self.module)} refuses {_refusal(x, error)}: check the shape of x.") from error
        return outputs, jnp.zeros((), outputs.dtype)


def as_model(module: Any) -> Any:
    """A model of the contract as it is, known by its ``key`` without default; any other module as ``Deterministic``."""
    check_object(module)
    try:
        key = inspect.signature(module).parameters.get("key")
    except (TypeError, ValueError):
        raise ValueError(f"{shown(module)} is no model: pass one, or a module of one example.") from None
    return module if key is not None and key.default is key.empty else Deterministic(module)


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
    initial: Law
    solver: Solver
    kl: Estimator = eqx.field(static=True)

    def __check_init__(self):
        check_estimator(self.kl, self.drift)
        _check_prior(self.prior)
        _check_kind("initial", self.initial, ("sample", "kl", "log_ratio", "prior"), "a law of w_0", "Point or Normal")
        _check_kind(
            "solver", self.solver, ("weights", "solve", "check_kl"), "a solver", "FixedGrid(20, 'euler') or Adaptive()"
        )
        self.solver.check_kl(self.kl)
        self.solver.check_process(self)

    def with_solver(self, solver: Solver) -> "SDEBlock":
        """The same block, solved otherwise; in adaptive steps its KL is the analytic estimate, of the same mean."""
        kl = "analytic" if isinstance(solver, Adaptive) else self.kl
        return SDEBlock(self.field, self.weights, self.prior, self.drift, self.initial, solver, kl)

    def draw(self, *, key: PRNGKeyArray) -> WeightPath:
        """The path of standardised weights that the key names, and its KL."""
        check_key(key)
        return self.solver.weights(self, key=key)

    def __call__(self, h: Hidden, *, key: PRNGKeyArray) -> tuple[Hidden, Float[Array, ""]]:
        return self.solve(h, key=key)[:2]

    def solve(self, h: Hidden, *, key: PRNGKeyArray, rough: bool = False) -> Solution:
        """The hidden states at depth 1 and the KL; the evaluations that took and, if asked, the roughness."""
        return self._solve(h, key, every=False, rough=rough)

    def trajectory(
        self, h: Hidden, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "time example *state"], Float[Array, ""]]:
        """The hidden states of a batch at every depth of ``solver.times()``, from h_0 to h_1, and the KL."""
        return self._solve(h, key, every=True)[:2]

    def _solve(self, h: Hidden, key: PRNGKeyArray, every: bool, rough: bool = False) -> Solution:
        check_key(key)
        h = self._as_state(h)
        solution = _compiled_solve(self, h, key, every, rough)
        check_solution(solution)
        return solution

    def unravel(self, w: Float[Array, "*step weight"]) -> PyTree[Array]:
        """The arrays of the field that standardised weights stand for."""
        return self.weights.unravel(w)

    def f_h(self, t: Depth, h: Hidden, random: PyTree[Array]) -> Hidden:
        """The field with one draw of its weights in place, over a batch."""
        return over_batch(eqx.combine(random, self.field), t)(h)

    def euler(self, random: PyTree[Array], h: Hidden, *, keep: bool, unroll: int) -> Hidden | None:
        """All Euler steps through the arrays of each, where there is a faster way than one after the other."""
        return all_steps(eqx.combine(random, self.field), h, keep=keep, unroll=unroll)

    def _as_state(self, h: Hidden) -> Hidden:
        """A batch as the field takes it, at least as precise as the weights; refused if the field does not take it."""
        w0 = jax.eval_shape(lambda key: self.initial.sample(key=key), jax.random.key(0))
        h = as_precise(as_inputs("h", h), w0)
        check_field(self.f_h, h, jax.eval_shape(self.weights.unravel, w0))
        return h


def _check_kind(name: str, value: Any, parts: Sequence[str], kind: str, remedy: str) -> None:
    """Refuse what lacks a part of its kind, or is a class of it."""
    if isinstance(value, type):
        raise ValueError(f"{name} is the class {value.__name__}, not an object: pass {remedy}.")
    if not all(hasattr(value, part) for part in parts):
        raise ValueError(f"{name}={shown(value)} is not {kind}: pass {remedy}.")


def _check_prior(prior: Any) -> None:
    """Refuse what is not a prior; a number is likely meant as its sigma."""
    is_sigma = isinstance(prior, Real) and not isinstance(prior, bool) and prior > 0  # pyright: ignore[reportOperatorIssue]
    _check_kind("prior", prior, ("drift", "sigma"), "a prior", f"OU(sigma={prior if is_sigma else 0.1})")


def check_field(f_h: Callable[[Depth, Hidden, PyTree], Hidden], h: Hidden, arrays: PyTree) -> None:
    """Refuse a field whose dh/dt does not look like h."""
    try:
        out = jax.eval_shape(f_h, jnp.zeros((), h.dtype), h, arrays)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the field, called as field(t, h), refuses {_refusal(h, error)}.") from error
    if getattr(out, "shape", None) != h.shape or out.dtype != h.dtype:
        raise ValueError(
            f"the field maps a state of shape {h.shape[1:]} and dtype {h.dtype} to "
            f"{getattr(out, 'shape', (None,))[1:]} and {getattr(out, 'dtype', type(out))}: "
            "dh/dt must look like h; give the field its own last layer, or cast x."
        )


@compiled  # for those who call a model outside jit: the loops are compiled once, not at every call
def _compiled_solve(block: SDEBlock, h: Hidden, key: PRNGKeyArray, every: bool, rough: bool) -> Solution:
    return block.solver.solve(block, h, key=key, every=every, rough=rough)


def blocks(model: Any) -> list[SDEBlock]:
    """Every block in a model, in order."""
    return [node for node in jax.tree.leaves(model, is_leaf=_is_block) if _is_block(node)]


def map_blocks(change: Callable[[SDEBlock], SDEBlock], model: Any) -> Any:
    """The same model with each of its blocks changed."""
    return jax.tree.map(lambda node: change(node) if _is_block(node) else node, model, is_leaf=_is_block)


def _is_block(node: Any) -> bool:
    return isinstance(node, SDEBlock)


def refined(model: Any, *, steps: int | None = None, rtol: float | None = None) -> Any:
    """The same model, its blocks solved in so many steps or to this tolerance: finer or coarser, without retraining.

    A key names one Brownian path at every resolution, so that refining converges to one function.
    """
    return map_blocks(lambda block: block.with_solver(redialled(block.solver, steps=steps, rtol=rtol)), model)


def prior_of(model: Any) -> Any:
    """The same model before any data: each block's drift is off and its w_0 follows the prior, so the KL is 0.

    Deterministic parameters, and a w_0 that is a point, stay as they are.
    """

    def forget(block: SDEBlock) -> SDEBlock:
        return eqx.tree_at(lambda b: (b.drift, b.initial), block, (NoDrift(), block.initial.prior()))

    return map_blocks(forget, model)


def bayesianize(
    module: Callable[..., Array],
    where: Callable[[Any], Any] | None = None,
    *,
    prior: OU = OU(),
    drift: Drift | Sequence[int] = (32, 32),
    initial: Callable[[Weights], Law] = Point,
    solver: Solver = FixedGrid(),
    kl: Estimator = "analytic",
    scale: Callable[[Array], float] | None = None,
    key: PRNGKeyArray,
) -> SDEBlock:
    """Make the weights of any field, an Equinox module (t, h) -> dh/dt of one example, a process over depth.

    ``where`` picks the part to make random, as in ``eqx.tree_at``: ``lambda m: m.layers[0]``, or a tuple of parts.
    Without it all arrays are. What is not picked stays deterministic, and is trained all the same.
    An array that stands in two places of a module is two arrays of w; share it with ``eqx.nn.Shared``.
    ``drift`` is a module (t, w) -> R^D or the widths of a ``DriftNet``; ``initial`` is ``Point`` or ``Normal``.
    ``scale`` says what an array is as a multiple of its standardised weights; without it, ``own_scales`` of the module.
    """
    check_key(key)
    check_object(module)
    _check_prior(prior)
    # A class is a function of w_0 too, if it is that of a law.
    if not callable(initial) or (isinstance(initial, type) and not hasattr(initial, "sample")):
        raise ValueError(f"initial={shown(initial)} is not a law of w_0: pass Point or Normal, or a function of w_0.")
    try:
        inspect.signature(module).bind(0.0, None)
    except (TypeError, ValueError):
        raise ValueError(
            f"{_name(module)} cannot be called as field(t, h): pass an Equinox module that maps (t, h) to dh/dt, "
            "such as one whose __call__(self, t, h) hands h to yours."
        ) from None
    mask = picked(module, where)
    random, field = eqx.partition(module, mask)
    weights = Standardised(random, scale or own_scales(module, mask))
    w0 = weights.ravel(random)
    check_array("w_0, the module's weights,", w0)
    if isinstance(drift, Sequence):
        check_counts("drift", drift)
        drift = DriftNet(weights.size, drift, key=key)
    _check_kind("drift", drift, ("__call__",), "a drift", "widths such as (32, 32), or a module (t, w) -> R^D")
    _check_drift("drift", drift, w0)
    _check_drift("prior's drift", prior.drift, w0)
    return SDEBlock(field, weights, prior, drift, initial(w0), solver, kl)


def _check_drift(name: str, drift: Any, w0: Weights) -> None:
    """Refuse a drift that does not map (t, w) to something like w."""
    try:
        shape = jax.eval_shape(drift, jnp.zeros((), w0.dtype), w0).shape
    except Exception as error:  # whatever a user's own function may raise
        shape = f"none ({str(error).splitlines()[0]})"
    if shape != w0.shape:
        raise ValueError(f"the {name} maps {w0.shape[0]} weights to shape {shape}: make it {w0.shape}.")


def picked(module: Any, where: Callable[[Any], Any] | None) -> PyTree[bool]:
    """Which leaves of a module are meant: the floating-point arrays of the parts that ``where`` picks."""
    arrays = jax.tree.map(lambda leaf: eqx.is_inexact_array(leaf) and not jnp.iscomplexobj(leaf), module)
    if not any(jax.tree.leaves(arrays)):
        raise ValueError(f"{type(module).__name__} holds no floating-point array: there are no weights to make random.")
    if where is None:
        return arrays
    nothing = jax.tree.map(lambda _: False, module)
    try:
        parts = eqx.tree_at(where, nothing, replace_fn=lambda part: jax.tree.map(lambda _: True, part))
    except (ValueError, AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(
            f"where does not pick parts of {type(module).__name__} ({str(error).splitlines()[0]}): "
            "return one of its arrays or submodules, such as lambda m: m.layers[0], or a tuple of them."
        ) from None
    mask = jax.tree.map(lambda a, b: a and b, arrays, parts)
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
        for layer in self.layers:
            check_object(layer)

    def __call__(self, x: Num[Array, "example *input"], *, key: PRNGKeyArray) -> tuple[Outputs, Float[Array, ""]]:
        return self.solve(x, key=key)[:2]

    def solve(self, x: Num[Array, "example *input"], *, key: PRNGKeyArray, rough: bool = False) -> Solution:
        """The outputs and the sum of the KLs; and the sums of what the layers took."""
        check_key(key)
        h, parts = as_inputs("x", x), []
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(len(self.layers)))  # at once: compiled once
        for i, layer in enumerate(self.layers):
            try:
                part = solve(layer, h, key=keys[i], rough=rough)
            except TypeError as error:
                raise ValueError(
                    f"layer {i}, {_name(layer)}, is not a model(x, *, key) -> (outputs, kl) of a batch "
                    f"({str(error).splitlines()[0]}): wrap a module of one example in Deterministic."
                ) from error
            h = part.outputs
            parts.append(part)
        kl, evaluations, finished, roughness, stray = map(jnp.stack, zip(*(part[1:] for part in parts), strict=True))
        return Solution(h, kl.sum(), evaluations.sum(), finished.all(), roughness.sum(), stray.max())

    def training(self) -> "SDEBNN":
        """The same sequence, each model as the ELBO takes it."""
        return SDEBNN(tuple(training(layer) for layer in self.layers))

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
        initial: Callable[[Weights], Law] = Normal,
        solver: Solver = FixedGrid(),
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
            key=drift_key,
        )
        head = eqx.nn.Linear(state, out_size, key=head_key)
        return SDEBNN((Deterministic(Augment(in_size, augment)), block, Deterministic(head)))
