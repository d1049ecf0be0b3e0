"""Checks of what a user passes. Each error is one line with the wrong value and the remedy.

All checks run on concrete values, when a function is called and before anything is compiled.
"""

import contextlib
import math
import os
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PRNGKeyArray
from numpy.typing import ArrayLike


def shown(value: object) -> str:
    """A value as text of at most 80 characters on one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else text[:77] + "..."


_forked = False  # whether this process was forked from one in which JAX was running


def _note_fork() -> None:
    """Record, in a forked process, whether JAX was running in its parent."""
    global _forked
    with contextlib.suppress(Exception):
        _forked = _forked or bool(jax._src.xla_bridge.backends_are_initialized())  # pyright: ignore[reportAttributeAccessIssue]


os.register_at_fork(after_in_child=_note_fork)


def check_process() -> None:
    """Refuse to compute in a process that was forked while JAX was running.

    It inherits the locks of JAX's threads but not the threads, so that its first program would wait forever.
    """
    if _forked:
        raise RuntimeError(
            "this process was forked from one in which JAX was running, and would wait forever: start processes with "
            "multiprocessing.get_context('spawn'), or with joblib's default backend, loky."
        )


def check_key(key: PRNGKeyArray) -> None:
    """Refuse anything but one unused typed key, and a process that cannot use it."""
    check_process()
    remedy = "make one with jax.random.key(0)"
    if not isinstance(key, jax.Array):
        raise ValueError(f"key={shown(key)} is not a JAX random key: {remedy}.")
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise ValueError(
            f"key is an array of dtype {key.dtype}, perhaps a legacy jax.random.PRNGKey: {remedy}, "
            "or convert yours with jax.random.wrap_key_data(key)."
        )
    if key.shape != ():
        raise ValueError(f"key is an array of keys of shape {key.shape}: pass one of them, such as keys[0].")
    if str(jax.random.key_impl(key)) != "threefry2x32":
        raise ValueError(
            f"key has the implementation {jax.random.key_impl(key)}, whose numbers change under vmap, so that one key "
            "would not always give the same network: make one with jax.random.key(0, impl='threefry2x32')."
        )
    # Set only if the user has turned on jax.debug_key_reuse; otherwise a key may be used for the same draw twice.
    if getattr(key, "_consumed", False):
        raise ValueError("key was used before, and jax.debug_key_reuse is on: split it first with jax.random.split.")


def check_count(name: str, value: object, least: int = 1) -> None:
    """Refuse anything but a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:  # pyright: ignore[reportOperatorIssue]
        raise ValueError(f"{name}={shown(value)} must be a whole number, at least {least}.")


def check_counts(name: str, values: Sequence[int]) -> None:
    """Refuse anything but a sequence of whole numbers of at least 1."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ValueError(f"{name}={shown(values)} must be a sequence of whole numbers, such as (32, 32).")
    for i, value in enumerate(values):
        check_count(f"{name}[{i}]", value)


def check_positive(name: str, value: object, *, or_zero: bool = False) -> None:
    """Refuse anything but a finite and positive number."""
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if not math.isfinite(number) or number < 0 or (number == 0 and not or_zero):
        bound = "zero or more" if or_zero else "greater than zero"
        raise ValueError(f"{name}={shown(value)} must be a number, finite and {bound}.")


def check_level(name: str, level: object) -> float:
    """The level as a float, if it is between 0 and 1."""
    if not isinstance(level, Real) or isinstance(level, bool) or not 0 < float(level) < 1:
        raise ValueError(f"{name}={shown(level)} must be between 0 and 1, such as 0.95.")
    return float(level)


def check_parameter(name: str, value: object, *, least: float = -math.inf) -> None:
    """Refuse anything but a finite number (fixed) or an array of such (trained), each at least ``least``."""
    if isinstance(value, Tracer):
        return
    number = isinstance(value, Real) and not isinstance(value, bool)
    if number or (isinstance(value, jax.Array | np.ndarray) and np.issubdtype(value.dtype, np.floating)):
        array = np.asarray(value, dtype=float)
        if array.size and bool(np.all(np.isfinite(array) & (array >= least))):
            return
    bound = "" if least == -math.inf else f", at least {least:g}"
    raise ValueError(f"{name}={shown(value)} must be a finite number, or an array of such{bound}.")


def plain_number(value: Any) -> Any:  # a converter of fields of several types
    """A NumPy scalar or zero-dimensional array as a Python number; anything else unchanged.

    Equinox treats NumPy scalars as arrays, and would train them.
    """
    return value.item() if isinstance(value, np.generic | np.ndarray) and value.ndim == 0 else value


def check_object(value: object) -> None:
    """Refuse a class in place of an instance."""
    if isinstance(value, type):
        raise ValueError(f"{value.__name__} is a class: pass an object, such as {value.__name__}(...).")


def check_instance(name: str, value: object, kind: type, article: str, remedy: str) -> None:
    """Refuse a value that is not an instance of a contract, or is a class of it."""
    if isinstance(value, type):
        raise ValueError(f"{name} is the class {value.__name__}, not an object: pass {remedy}.")
    if not isinstance(value, kind):
        raise ValueError(f"{name}={shown(value)} is not {article}: pass {remedy}.")


def check_callable(name: str, value: object, example: str) -> None:
    """Refuse a value that cannot be called."""
    if not callable(value):
        raise ValueError(f"{name}={shown(value)} is not a function: pass one such as {example}.")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse a value that is not one of the choices."""
    if value not in choices:
        raise ValueError(f"{name}={shown(value)} is unknown: choose one of {', '.join(map(repr, choices))}.")


def check_array(name: str, value: object, least_ndim: int = 1) -> None:
    """Refuse data that are empty, not numeric, not finite, or have too few axes."""
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
        raise ValueError(f"{name} has shape {array.shape}: pass at least one example.")
    wrong = int(np.size(array) - np.count_nonzero(np.isfinite(array)))
    if wrong:
        first = np.argwhere(~np.isfinite(array))[0]
        raise ValueError(
            f"{name} holds {wrong} NaN or infinite value{'s' * (wrong > 1)}, the first {array[tuple(first)]} "
            f"at index {tuple(map(int, first))}: remove or impute them."
        )


def check_classes(name: str, labels: Array | np.ndarray, classes: int) -> None:
    """Refuse labels that are not one of the classes 0, 1, ..."""
    check_array(name, labels, least_ndim=0)
    labels = np.asarray(labels)  # stays concrete while JAX traces
    low, high = int(np.min(labels)), int(np.max(labels))
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        raise ValueError(
            f"{name} holds class {wrong}, and the model has {classes} classes: number them 0 to {classes - 1}."
        )


def check_data(x: ArrayLike, y: ArrayLike) -> None:
    """Refuse inputs and targets that do not form a supervised data set."""
    check_array("x", x, least_ndim=2)
    check_array("y", y)
    if np.shape(x)[0] != np.shape(y)[0]:
        raise ValueError(
            f"x has {np.shape(x)[0]} examples and y has {np.shape(y)[0]} (shapes {np.shape(x)} and {np.shape(y)}): "
            "the first axes must agree."
        )


def as_inputs(name: str, x: Array | np.ndarray) -> Float[Array, "example *input"]:
    """A batch as an array of float32 or float64, examples first."""
    check_array(name, x, least_ndim=2)
    with np.errstate(over="ignore"):
        array = jnp.asarray(x)
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        array = array.astype(float)
    elif array.dtype.itemsize < 4:  # float16 or bfloat16, too imprecise for sums over depth
        array = array.astype(jnp.float32)
    if array is not x:
        check_array(name, array)  # a number that is finite in float64 may overflow in float32
    return array


def as_precise(h: Float[Array, "..."], weights: Array | jax.ShapeDtypeStruct) -> Float[Array, "..."]:
    """The same numbers in the wider of their own type and the type of the weights."""
    return h.astype(jnp.promote_types(h.dtype, weights.dtype))
