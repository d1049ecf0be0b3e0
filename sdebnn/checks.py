"""What a user can get wrong, said in one line: the value that is wrong, and what to do instead.

Every check runs on concrete values, at the call, before anything is compiled.
"""

import contextlib
import math
import os
import warnings
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PRNGKeyArray

LEAST_SPREAD, LARGEST_SPREAD = 0.1, 10.0  # of standardised inputs like those of the training
IMAGES_TO_JUDGE = 2  # at least, to say that they have too little contrast
ROWS_TO_JUDGE = 30  # of a table, at least, to say that it is unlike another
LARGEST_MEAN = 5.0  # and how far their mean may be from 0
ONE_VALUE = 1e-4  # a spread of less is float32's rounding of a column of one value


def shown(value: object) -> str:
    """A value as it reads in one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else text[:77] + "..."


_forked = False  # whether this process began as a copy of one in which JAX was running


def _note_fork() -> None:
    """In a process that was just forked: find out whether JAX was running, as far as it says."""
    global _forked
    with contextlib.suppress(Exception):
        _forked = _forked or bool(jax._src.xla_bridge.backends_are_initialized())  # pyright: ignore[reportAttributeAccessIssue]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def check_process() -> None:
    """Refuse to compute in a process that was forked while JAX was running.

    It inherits the locks of JAX's threads but not the threads, and its first program would wait for ever.
    """
    if _forked:
        raise RuntimeError(
            "this process was forked from one in which JAX was running, and would wait for ever: start processes with "
            "multiprocessing.get_context('spawn'), or by joblib's default backend, loky."
        )


def check_key(key: PRNGKeyArray) -> None:
    """Refuse what is not one fresh typed key, and a process that cannot use it."""
    check_process()
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


def plain_number(value: Any) -> Any:
    """A NumPy scalar, or a NumPy array without axes, as the Python number that it holds; anything else as it is.

    Equinox takes NumPy scalars for arrays, and would train them.
    """
    return value.item() if isinstance(value, np.generic | np.ndarray) and value.ndim == 0 else value


def check_object(value: object) -> None:
    """Refuse a class where one of its objects is meant."""
    if isinstance(value, type):
        raise ValueError(f"{value.__name__} is a class: pass an object of it, such as {value.__name__}(...).")


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
    """A batch as an array of float32 or float64, examples first; refused if it cannot be one."""
    check_array(name, x, least_ndim=2)
    with np.errstate(over="ignore"):
        array = jnp.asarray(x)
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        array = array.astype(float)
    elif array.dtype.itemsize < 4:  # float16 or bfloat16, in which sums over depth would lose their last digits
        array = array.astype(jnp.float32)
    if array is not x:
        check_array(name, array)  # once more: what is finite in float64 may not be in float32
    return array


def as_precise(h: Float[Array, "..."], weights: Any) -> Float[Array, "..."]:
    """The same numbers in the wider of their own type and that of the weights."""
    return h.astype(jnp.promote_types(h.dtype, weights.dtype))


def warn_if_unlike(
    mean: np.ndarray,
    std: np.ndarray,
    x: np.ndarray,
    *,
    column: str,
    cause: str,
    table: bool = False,
    stacklevel: int = 2,
) -> None:
    """Warn, once, if inputs are far from mean 0 and spread 1 when standardised as those of the training were.

    ``mean`` and ``std`` are those of the training inputs in each column, the last axis of x. A column of one value has
    no spread, and is judged by its mean alone. ``column`` is what a column is called; ``cause`` is the likely mistake.
    Rows of a ``table`` may well be alike, so that a small spread is no sign there; and a few of them say nothing.
    """
    if table and len(x) < ROWS_TO_JUDGE:
        return
    with np.errstate(over="ignore", invalid="ignore"):
        z = (x.reshape(-1, x.shape[-1]) - mean.astype(float)) / std
        centers, spreads = z.mean(0), z.std(0)
    few = len(x) < IMAGES_TO_JUDGE
    for number, (center, spread) in enumerate(zip(centers, spreads, strict=True)):
        if table and len(np.unique(z[:, number])) <= 2:  # a flag, which may well be rare
            continue
        narrow = spread < LEAST_SPREAD and not (table or few)
        usual_spread = spread < ONE_VALUE or (not narrow and spread <= LARGEST_SPREAD)
        if abs(center) > LARGEST_MEAN or not usual_spread:
            warnings.warn(
                f"x is unlike the training data: standardised as those were, its {column} {number} has mean "
                f"{center:.3g} and spread {spread:.3g} instead of 0 and 1. {cause}",
                stacklevel=stacklevel + 1,
            )
            return
