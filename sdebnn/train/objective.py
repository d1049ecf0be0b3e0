"""The evidence lower bound of any model of the contract.

    ELBO = E_Q[ log p(D | w) ] - kl_weight · KL         in nats of the whole data set of N examples

A batch of B examples estimates log p(D | w) by N/B times its own. kl_weight = 1 is the bound on the evidence; less is
a tempered ("cold") posterior. The loss is -ELBO / N: the KL is divided by the number of examples, never by B.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn.checks import (
    check_array,
    check_callable,
    check_classes,
    check_count,
    check_data,
    check_key,
    check_object,
    check_positive,
    shown,
)
from sdebnn.contract import draw_keys, over_draws, solve, training
from sdebnn.likelihoods import Categorical, Likelihood, parted


class Elbo(NamedTuple):
    """The bound and its two terms, in nats of the whole data set; the solve's roughness; the share of right classes.

    The roughness is 0 unless asked for, the accuracy (that of single draws) NaN where there are no classes. Under the
    estimators "full" and "stl" the KL of a few draws can be negative: it contains a term whose mean is zero, and only
    its mean is a KL.
    """

    elbo: Float[Array, ""]
    log_likelihood: Float[Array, ""]
    kl: Float[Array, ""]
    roughness: Float[Array, ""]
    accuracy: Float[Array, ""]


def elbo(
    model: Any,
    likelihood: Likelihood,
    x: Array,
    y: Array,
    *,
    key: PRNGKeyArray,
    draws: int = 1,
    draws_at_once: int | None = None,
    kl_weight: float | Float[Array, ""] = 1.0,
    examples: int | None = None,
    rough: bool = False,
) -> Elbo:
    """Estimate the ELBO from a batch of a data set of ``examples`` (all of it, unless told), averaged over draws.

    ``draws_at_once`` (all, unless told) are computed side by side; one at a time suits convolutions, which run slowly
    side by side. With ``rough``, also the roughness of the hidden units: how much their slope changes step by step.
    """
    check_data(x, y)
    if not isinstance(kl_weight, jax.Array):
        check_positive("kl_weight", kl_weight, or_zero=True)
    batch = x.shape[0]
    if examples is None:
        examples = batch
    check_count("examples", examples, least=batch)

    seen = training(model)

    def one(key: PRNGKeyArray) -> tuple[Array, ...]:
        solution = solve(seen, x, key=key, rough=rough)
        log_likelihood = jnp.sum(likelihood.log_prob(solution.outputs, y))
        return log_likelihood, solution.kl, solution.roughness, _accuracy(likelihood, solution.outputs, y)

    keys = draw_keys(key, draws, seen)
    if keys.size == 1:
        terms = one(keys[0])  # without the axis: convolutions stay convolutions
    else:
        terms = tuple(term.mean() for term in over_draws(one, keys, draws_at_once or keys.size))
    log_likelihood, kl, roughness, accuracy = terms
    log_likelihood = log_likelihood * (examples / batch)
    return Elbo(log_likelihood - kl_weight * kl, log_likelihood, kl, roughness, accuracy)


def _accuracy(likelihood: Likelihood, outputs: Array, y: Array) -> Float[Array, ""]:
    likelihood, y, weights = parted(likelihood, y)
    if not isinstance(likelihood, Categorical):
        return jnp.full((), jnp.nan, outputs.dtype)
    return jnp.average((jnp.argmax(outputs, axis=-1) == y).astype(outputs.dtype), weights=weights)


def as_floats(x: Array) -> Float[Array, "..."]:
    """A batch as the model takes it: bytes and other whole numbers become floats, on the device."""
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return x.astype(float)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))  # half precision is for storage


def is_lazy(x: Any) -> bool:
    """Whether rows are read as they are asked for: a memory map, or an object that has a shape but is no array."""
    return isinstance(x, np.memmap) or not isinstance(x, np.ndarray | jax.Array)


def is_resident(x: Any) -> bool:
    """Whether the examples are on the device."""
    return isinstance(x, jax.Array)


def as_data(
    model: Any, likelihood: Likelihood, x: Any, y: Any, *, key: PRNGKeyArray, limit: int = 2**31
) -> tuple[Any, Array]:
    """The data as they are trained on, once they are known to suit the model and the likelihood; nothing is compiled.

    Whole numbers such as bytes stay as they are until a batch is taken; beyond ``limit`` bytes x stays where it is, and
    its rows are looked at when they are read.
    """
    check_key(key)
    check_callable("model", model, "SDEBNN.mlp(1, 1, key=key)")
    check_object(model)
    if not isinstance(likelihood, Likelihood) or isinstance(likelihood, type):
        raise ValueError(f"likelihood={shown(likelihood)} is not one: pass an object such as Gaussian(0.1).")
    if is_lazy(x):
        x = _shaped(x)
    if is_lazy(y) and hasattr(y, "shape"):
        y = np.asarray(y)
    if not is_resident(x) and math.prod(x.shape) * np.dtype(x.dtype).itemsize > limit:
        check_array("y", y)
        _check_shapes(x.shape, np.shape(y))
    else:
        x = x[:] if is_lazy(x) else x
        check_data(x, y)
        x = _on_device("x", x)
    y = _on_device("y", y)
    if not isinstance(likelihood, Categorical):
        y = y.astype(jnp.promote_types(_floating(x.dtype), jnp.float32))
    _check_targets(model, likelihood, x, y, key)
    return x, y


def _shaped(x: Any) -> Any:
    """x as it is, if it has a shape, a type and rows; else as an array, if it can be one."""
    if all(hasattr(x, name) for name in ("shape", "dtype", "__getitem__")):
        return x
    check_array("x", x, least_ndim=2)
    return np.asarray(x)


def _check_shapes(x: tuple[int, ...], y: tuple[int, ...]) -> None:
    if len(x) < 2 or 0 in x or x[0] != y[0]:
        raise ValueError(f"x has shape {x}, y {y}: both need as many examples, x at least 2 axes.")


def _floating(dtype: Any) -> Any:
    """The type of numbers that a batch of this type has when the model sees it."""
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    return jnp.promote_types(dtype, jnp.float32) if jnp.issubdtype(dtype, jnp.inexact) else jnp.result_type(float)


def _on_device(name: str, array: Any) -> Array:
    with np.errstate(over="ignore"):
        there = jnp.asarray(array)
    if there is not array and jnp.issubdtype(there.dtype, jnp.inexact):
        check_array(name, there)  # once more: what is finite in float64 may not be in float32
    return there


def _check_targets(model: Any, likelihood: Likelihood, x: Any, y: Array, key: PRNGKeyArray) -> None:
    """Refuse targets that the likelihood of the model's outputs refuses."""
    row = jax.ShapeDtypeStruct((1, *x.shape[1:]), _floating(x.dtype))
    outputs, _ = jax.eval_shape(lambda x, key: model(as_floats(x), key=key), row, key)
    if len(outputs.shape) != 2:
        raise ValueError(
            f"the model maps an example to outputs of shape {outputs.shape[1:]}, where a vector is needed: add a head "
            "such as Deterministic(eqx.nn.Linear(size, outputs, key=key)), after flattening where there are more axes."
        )
    shape = jax.ShapeDtypeStruct((y.shape[0], *outputs.shape[1:]), outputs.dtype)
    jax.eval_shape(likelihood.log_prob, shape, y)
    inner, classes, _ = parted(likelihood, y)
    if isinstance(inner, Categorical):  # whose numbers count, not their shapes alone
        check_classes("y", classes, outputs.shape[-1])
