"""Make the weights of any Equinox module a process over depth."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray, PyTree

from sdebnn.checks import check_array, check_counts, check_key, check_object, shown
from sdebnn.fields import Standardised, own_scales
from sdebnn.integrate import AbstractSolver, FixedGrid, Guide, KLEstimator
from sdebnn.models.block import SDEBlock, check_parts
from sdebnn.processes import OU, AbstractDrift, AbstractInitialLaw, AbstractPrior, DriftNet, Point, Weights


def bayesianize(
    module: Callable[..., Array],
    where: Callable[[Any], Any] | None = None,
    *,
    prior: AbstractPrior = OU(),
    drift: AbstractDrift | Sequence[int] = (32, 32),
    initial: Callable[[Weights], AbstractInitialLaw] = Point,
    guide: Guide | None = None,
    solver: AbstractSolver = FixedGrid(),
    kl: KLEstimator = "analytic",
    scale: Callable[[Array], float] | None = None,
    key: PRNGKeyArray,
) -> SDEBlock:
    """Make the weights of a field, an Equinox module (t, h) -> dh/dt of one example, a process over depth.

        mlp = TimeMLP(4, (8,), key=key)
        block = bayesianize(mlp, prior=OU(sigma=0.2), drift=(8,), key=key)
        hidden, kl = block(jnp.ones((5, 4)), key=key)
        part = bayesianize(mlp, lambda mlp: mlp.layers[0], initial=Normal, key=key)

    - ``where`` picks the part to make random, as in ``eqx.tree_at``: a function from the module to one part, or to a
      tuple of parts. ``None`` picks all arrays. The rest of the module is deterministic and is trained as well. An
      array that occurs at two places of a module counts as two arrays; share it with ``eqx.nn.Shared``.
    - ``prior`` is an ``AbstractPrior``, the law of the weights before the data.
    - ``drift`` is an ``AbstractDrift``, or the widths of a ``DriftNet``. It starts at zero, at the prior.
    - ``initial`` makes the law of w_0 from the weights: ``Point``, ``Normal`` or another ``AbstractInitialLaw``.
    - ``guide`` lets the drift see hidden states, too: ``Guide(points)``, whose points are states at depth 0.
    - ``solver`` is an ``AbstractSolver``: ``FixedGrid`` or ``Adaptive``.
    - ``kl`` is the estimator of the KL. "analytic" suits most models. "full" and "stl" add a term of mean zero; near
      the exact posterior, "stl" makes the gradient less noisy.
    - ``scale`` gives each array as a multiple of its standardised weights; ``None`` takes ``own_scales`` of the module.

    The result is a model of a batch of states, whose outputs are the states at depth 1.
    """
    check_key(key)
    check_object(module)
    # A class of laws is a function of w_0, too.
    if not callable(initial) or (isinstance(initial, type) and not issubclass(initial, AbstractInitialLaw)):
        raise ValueError(f"initial={shown(initial)} is not a law of w_0: pass Point or Normal, or a function of w_0.")
    try:
        inspect.signature(module).bind(0.0, None)
    except (TypeError, ValueError):
        raise ValueError(
            f"{getattr(module, '__name__', type(module).__name__)} cannot be called as field(t, h): pass an Equinox "
            "module that maps (t, h) to dh/dt, "
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
    check_parts(prior, drift, solver)
    _check_drift("drift", drift, w0)
    _check_drift("prior's drift", prior.drift, w0)
    law: AbstractInitialLaw = initial(w0)  # pyright: ignore[reportCallIssue]
    return SDEBlock(field, weights, prior, drift, law, solver, kl, guide)


def _check_drift(name: str, drift: Callable[..., Array], w0: Weights) -> None:
    """Refuse a drift that does not map (t, w) to a vector like w."""
    try:
        shape = jax.eval_shape(drift, jnp.zeros((), w0.dtype), w0).shape
    except Exception as error:  # whatever a user's own function may raise
        shape = f"none ({str(error).splitlines()[0]})"
    if shape != w0.shape:
        raise ValueError(f"the {name} maps {w0.shape[0]} weights to shape {shape}: make it {w0.shape}.")


def picked(module: PyTree, where: Callable[[Any], Any] | None) -> PyTree[bool]:
    """A mask of the leaves of a module: the floating-point arrays of the parts that ``where`` picks."""
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
