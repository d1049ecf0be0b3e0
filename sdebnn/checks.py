"""What a user can get wrong, said in one line: the value that is wrong, and what to do instead.

Every check runs on concrete values, at the call, before anything is compiled.
"""

import math
from collections.abc import Sequence
from numbers import Integral, Real

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PRNGKeyArray


def shown(value: object) -> str:
    """A value as it reads in one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else text[:77] + "..."


def check_key(key: PRNGKeyArray) -> None:
    """Refuse what is not one fresh typed key."""
    remedy = "make one with jax.random.key(0)"
    if not isinstance(key, jax.Array):
        raise ValueError(f"key={shown(key)} is not a JAX random key: {remedy}.")
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise ValueError(
            f"key is an array of dtype {key.dtype}, perhaps a legacy jax.random.PRNGKey: {remedy}, "
            "or turn yours into one with jax.random.wrap_key_data(key)."
        )
    if key.shape != ():
        raise ValueError(f"key is an array of keys of shape {key.shape}: pass one of them, such as keys[0].")
    if str(jax.random.key_impl(key)) != "threefry2x32":
        raise ValueError(
            f"key is of the implementation {jax.random.key_impl(key)}, whose numbers change under vmap, so that it "
            "would not name one network: make one with jax.random.key(0, impl='threefry2x32')."
        )
    # Only set while the user has jax.debug_key_reuse on; a key may otherwise name the same draw twice.
    if getattr(key, "_consumed", False):
        raise ValueError("key was used before, and jax.debug_key_reuse is on: jax.random.split it first.")


def check_count(name: str, value: object, least: int = 1) -> None:
    """Refuse what is not a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:  # pyright: ignore[reportOperatorIssue]
        raise ValueError(f"{name}={shown(value)} must be a whole number, at least {least}.")


def check_counts(name: str, values: Sequence[int]) -> None:
    """Refuse what is not a sequence of whole numbers of at least 1."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ValueError(f"{name}={shown(values)} must be a sequence of whole numbers, such as (32, 32).")
    for i, value in enumerate(values):
        check_count(f"{name}[{i}]", value)


def check_positive(name: str, value: object, *, or_zero: bool = False) -> None:
    """Refuse what is not a finite and positive number."""
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if not math.isfinite(number) or number < 0 or (number == 0 and not or_zero):
        bound = "zero or more" if or_zero else "greater than zero"
        raise ValueError(f"{name}={shown(value)} must be a number, finite and {bound}.")


def check_parameter(name: str, value: object, *, least: float = -math.inf) -> None:
    """Refuse what is neither a finite number (fixed) nor an array of them (trained), each at least ``least``."""
    if isinstance(value, Tracer):
        return
    number = isinstance(value, Real) and not isinstance(value, bool)
    if number or (isinstance(value, jax.Array | np.ndarray) and np.issubdtype(value.dtype, np.floating)):
        array = np.asarray(value, dtype=float)
        if array.size and bool(np.all(np.isfinite(array) & (array >= least))):
            return
    bound = "" if least == -math.inf else f", at least {least:g}"
    raise ValueError(f"{name}={shown(value)} must be a finite number, or an array of such{bound}.")


def check_callable(name: str, value: object, example: str) -> None:
    """Refuse what is not a function."""
    if not callable(value):
        raise ValueError(f"{name}={shown(value)} is not a function: pass one such as {example}.")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse a word that is not among the choices."""
    if value not in choices:
        raise ValueError(f"{name}={shown(value)} is unknown: choose one of {', '.join(map(repr, choices))}.")


def check_array(name: str, value: object, least_ndim: int = 1) -> None:
    """Refuse data that are empty, not numbers, NaN or infinite, or of too few axes."""
    if isinstance(value, Tracer):
        return
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} is not a rectangular array of numbers: {error}.") from None
    real = array.dtype == bool or jnp.issubdtype(array.dtype, jnp.integer) or jnp.issubdtype(array.dtype, jnp.floating)
    if not real:
        raise ValueError(f"{name} has dtype {array.dtype}: pass real numbers.")
    if array.ndim < least_ndim:
        raise ValueError(
            f"{name} has shape {array.shape}: it needs at least {least_ndim} axes, examples first; "
            f"one column of numbers is {name}[:, None]."
        )
    if array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}: it is empty, pass at least one example.")
    wrong = int(np.size(array) - np.count_nonzero(np.isfinite(array)))
    if wrong:
        first = np.argwhere(~np.isfinite(array))[0]
        raise ValueError(
            f"{name} holds {wrong} NaN or infinite value{'s' * (wrong > 1)}, the first {array[tuple(first)]} "
            f"at index {tuple(map(int, first))}: remove or impute them."
        )


def check_classes(name: str, labels: Array | np.ndarray, classes: int) -> None:
    """Refuse labels that are not among the classes 0, 1, ..."""
    check_array(name, labels, least_ndim=0)
    labels = np.asarray(labels)  # known numbers stay so while JAX traces
    low, high = int(np.min(labels)), int(np.max(labels))
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        raise ValueError(f"{name} holds class {wrong}, the model has {classes}: number them 0 to {classes - 1}.")


def check_data(x: Array | np.ndarray, y: Array | np.ndarray) -> None:
    """Refuse inputs and targets that cannot be a supervised data set."""
    check_array("x", x, least_ndim=2)
    check_array("y", y)
    if np.shape(x)[0] != np.shape(y)[0]:
        raise ValueError(
            f"x has {np.shape(x)[0]} examples and y has {np.shape(y)[0]} (shapes {np.shape(x)} and {np.shape(y)}): "
            "the first axes must agree."
        )


def as_inputs(name: str, x: Array | np.ndarray) -> Float[Array, "example *input"]:
    """A batch as a floating-point array of JAX, examples first; refused if it cannot be one."""
    check_array(name, x, least_ndim=2)
    with np.errstate(over="ignore"):
        array = jnp.asarray(x)
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        array = array.astype(float)
    if array is not x:
        check_array(name, array)  # once more: what is finite in float64 may not be in float32
    return array
