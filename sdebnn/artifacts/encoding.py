"""A model as JSON and arrays. An array is stored under its place in the model, such as ``model.layers.0.weight``.

null, true, 3, 0.5, "text"                         plain values
{"tuple": [...]}  {"list": [...]}  {"dict": {...}}
{"array": "jax" | "jax, weak" | "numpy" | "scalar"}  {"key": "threefry2x32"}
{"class": NAME, "fields": {...}}                   with "checked": false if it is no whole object
{"function": NAME}  {"partial": [function, arguments, keywords]}
{"structure": ...}  {"leaf": true}                 the structure of a tree of arrays, and the place of one of them
{"opaque": TEXT}                                   what has no name, and which ``like`` must provide

An Equinox module from which arrays were taken out, such as the field of a block, is no whole object: its fields need
not fit their annotations.
"""

import dataclasses
import functools
import math
import types
import typing
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from sdebnn.artifacts.names import class_label, is_named_tuple, name_of
from sdebnn.checks import shown
from sdebnn.records import TYPES

MAX_DEPTH = 100  # of nested parts
MAX_PARTS = 10**5  # of the JSON of a model; 50 characters count as one, so that a header has less than 16 MB
MAX_WHOLE = 2**31 - 1
MAX_TEXT = 2**16
MAX_NAME = 200  # characters of a key of a dict
DTYPES = frozenset(map(np.dtype, TYPES.values()))
KEY_WORDS = {"threefry2x32": 2, "rbg": 4, "unsafe_rbg": 4}  # implementations of random keys


class Leaf:
    """The place of an array in a structure."""


class Parts(NamedTuple):
    """What is not JSON: the arrays, and the classes, functions and opaque things of a model, by their places."""

    arrays: dict[str, np.ndarray]
    objects: dict[str, Any]


def encoded(thing: Any, where: str, parts: Parts, depth: int = 0) -> Any:
    """A part of a model as JSON. Its arrays and objects are added to ``parts``."""
    if depth > MAX_DEPTH:
        raise ValueError(f"{where[:80]}... is nested more than {MAX_DEPTH} deep: remove the part that contains itself.")
    if is_plain(thing):
        return thing
    if isinstance(thing, jax.Array | np.ndarray | np.generic):
        return _array(thing, where, parts)
    if isinstance(thing, Leaf):
        return {"leaf": True}

    def inside(part: Any, name: str | int) -> Any:
        return encoded(part, f"{where}.{name}", parts, depth + 1)

    if isinstance(thing, jax.tree_util.PyTreeDef):
        return {"structure": inside(jax.tree.unflatten(thing, [Leaf()] * thing.num_leaves), "structure")}
    if type(thing) in (tuple, list):
        return {type(thing).__name__: [inside(part, number) for number, part in enumerate(thing)]}
    if type(thing) is dict and all(type(name) is str and len(name) <= MAX_NAME for name in thing):
        return {"dict": {name: inside(part, name) for name, part in thing.items()}}
    if not isinstance(thing, type) and (dataclasses.is_dataclass(thing) or is_named_tuple(type(thing))):
        return _record(thing, where, parts, inside)
    parts.objects[where] = thing
    if isinstance(thing, functools.partial):
        kind = "tree_partial" if isinstance(thing, jax.tree_util.Partial) else "partial"
        return {kind: [inside(thing.func, "func"), inside(thing.args, "args"), inside(thing.keywords, "keywords")]}
    if not isinstance(thing, type) and callable(thing) and name_of(thing) is not None:
        return {"function": name_of(thing)}
    if not jax.tree_util.all_leaves([thing]):
        raise ValueError(f"{where}={shown(thing)} is a tree of a kind that a file cannot hold: use a tuple or a dict.")
    return {"opaque": getattr(thing, "__qualname__", None) or type(thing).__qualname__}


def is_too_large(words: Any) -> bool:
    """Whether JSON has more than ``MAX_PARTS``."""
    size, waiting = 0.0, [words]
    while waiting:
        node = waiting.pop()
        size += 1 + len(node) / 50 if isinstance(node, str) else 1
        if isinstance(node, dict | list):
            waiting.extend(node)
        if isinstance(node, dict):
            waiting.extend(node.values())
        if size + len(waiting) > MAX_PARTS:
            return True
    return False


def first_line(error: Exception) -> str:
    """The first line of an error's message, shortened, without its full stop."""
    words = (str(error).strip() or type(error).__name__).splitlines()[0]
    return (words if len(words) <= 300 else words[:297] + "...").rstrip(".")


def is_plain(thing: Any) -> bool:
    """Whether a value is JSON as it is, within the limits of a file."""
    if type(thing) is int:
        return abs(thing) <= MAX_WHOLE
    if type(thing) is float:
        return math.isfinite(thing)
    return thing is None or type(thing) is bool or (type(thing) is str and len(thing) <= MAX_TEXT)


def is_finite(array: Any) -> bool:
    """Whether an array holds no NaN and no infinite value."""
    return not jnp.issubdtype(array.dtype, jnp.inexact) or bool(np.isfinite(np.asarray(array)).all())


def field_names(of: type) -> tuple[str, ...]:
    """The names of the fields of a data class or named tuple."""
    if is_named_tuple(of):
        return of._fields  # pyright: ignore[reportAttributeAccessIssue]
    return tuple(field.name for field in dataclasses.fields(of))


def _record(thing: Any, where: str, parts: Parts, inside: Callable[[Any, str], Any]) -> dict[str, Any]:
    missing = [name for name in field_names(type(thing)) if not hasattr(thing, name)]
    if missing:
        raise ValueError(f"{where} is a {type(thing).__name__} without {missing[0]}: set all its fields before saving.")
    parts.objects[where] = type(thing)
    fields = {name: inside(getattr(thing, name), name) for name in field_names(type(thing))}
    found = {"class": class_label(type(thing)), "fields": fields}
    return found if complaint(thing) is None else {**found, "checked": False}


def _array(array: Any, where: str, parts: Parts) -> dict[str, str]:
    if isinstance(array, Tracer):
        raise ValueError(f"{where} is traced by JAX and has no values: save a model outside of jit, grad and vmap.")
    kind = "scalar" if isinstance(array, np.generic) else "numpy"
    node = {"array": kind}
    if isinstance(array, jax.Array):
        node = {"array": "jax, weak" if getattr(array, "weak_type", False) else "jax"}
        if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            node, array = {"key": str(jax.random.key_impl(array))}, jax.random.key_data(array)
        if not is_finite(array):
            raise ValueError(f"{where} holds NaN or infinite values: train the model again, such as in smaller steps.")
    if np.dtype(array.dtype) not in DTYPES or node.get("key", "rbg") not in KEY_WORDS:
        raise ValueError(f"{where} has dtype {array.dtype}, which a file cannot hold: cast it, such as to float32.")
    if where in parts.arrays:
        raise ValueError(f"two arrays are called {where}: rename a key of a dict that contains a dot.")
    parts.arrays[where] = np.asarray(array)
    return node


def complaint(thing: Any) -> str | None:
    """Why the fields of an object are not those of a whole one, in one line; None if they are."""
    if not dataclasses.is_dataclass(thing):
        return None
    for field in dataclasses.fields(thing):
        if not _fits(field.type, getattr(thing, field.name)):
            return f"{field.name}={shown(getattr(thing, field.name))} is not what {type(thing).__name__} takes"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for of in type(thing).__mro__:
                if "__check_init__" in vars(of):
                    vars(of)["__check_init__"](thing)
    except Exception as error:  # whatever a user's own class may raise
        return first_line(error)
    return None


def _fits(annotation: Any, value: Any) -> bool:
    """Whether a value is of an annotated type. What an annotation of another kind allows is not known, and fits."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(each, value) for each in arguments)
    if origin is typing.Literal:
        return any(type(each) is type(value) and each == value for each in arguments)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        wanted = arguments[:1] * len(value) if arguments[-1:] == (...,) else arguments
        return len(wanted) == len(value) and all(map(_fits, wanted, value))
    if origin is Callable or annotation is Callable:
        return callable(value)
    if annotation in (float, int):
        return isinstance(value, int if annotation is int else int | float) and not isinstance(value, bool)
    if annotation is None:
        return value is None
    try:
        return isinstance(value, annotation) if isinstance(annotation, type) else True
    except TypeError:  # a class that does not allow the question
        return True
