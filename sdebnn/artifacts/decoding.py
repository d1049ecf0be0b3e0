"""The model that ``encoded`` wrote, from JSON and arrays that may be forged.

Objects are made without calling their constructors: their fields are set to what the file holds, and then checked as
``encoded`` checked them. A file can therefore run nothing but the checks of classes that it may name.
"""

import functools
import json
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sdebnn.artifacts.encoding import (
    KEY_WORDS,
    MAX_DEPTH,
    MAX_NAME,
    Leaf,
    complaint,
    field_names,
    is_finite,
    is_plain,
)
from sdebnn.artifacts.names import ADDED_FIELDS, RENAMED, Names, NeedsHelpError, is_named_tuple
from sdebnn.checks import shown

FUNCTION_KINDS = {"function", "partial", "tree_partial", "opaque"}


class Decoder:
    """Makes objects from the JSON of one file. Each array may be used once.

    ``objects`` holds the classes, functions and opaque things of a model of the same structure by their places, as
    ``encoded`` collects them. They are used instead of names.
    """

    def __init__(self, arrays: Mapping[str, Any], names: Names, objects: dict[str, Any]):
        self.arrays, self.names, self.objects = dict(arrays), names, objects
        self.in_structure = False
        self.partials: dict[str, Any] = {}

    def part(self, node: Any, where: str, depth: int = 0) -> Any:
        """The object that a node describes."""
        if depth > MAX_DEPTH:
            raise ValueError(f"has parts that are nested more than {MAX_DEPTH} deep")
        if not isinstance(node, dict):
            if isinstance(node, list) or not is_plain(node):
                raise ValueError(f"has {where}={shown(node)}, which is no value of a model")
            return node
        match node:
            case {"class": str(name), "fields": dict(fields), **rest} if rest in ({}, {"checked": False}):
                return self._record(name, fields, where, depth, is_checked=not rest)
            case {"array": "jax" | "jax, weak" | "numpy" | "scalar" as kind} if len(node) == 1:
                return self._array(kind, where)
            case {"key": str(implementation)} if len(node) == 1:
                return self._key(implementation, where)
            case {"tuple": list(parts)} if len(node) == 1:
                return tuple(self._each(enumerate(parts), where, depth).values())
            case {"list": list(parts)} if len(node) == 1:
                return list(self._each(enumerate(parts), where, depth).values())
            case {"dict": dict(parts)} if len(node) == 1 and all(len(name) <= MAX_NAME for name in parts):
                return self._each(parts.items(), where, depth)
            case {"structure": inner} if len(node) == 1 and not self.in_structure:
                return self._structure(inner, where, depth)
            case {"leaf": True} if len(node) == 1 and self.in_structure:
                return Leaf()
            case {"function": str()} | {"partial": [_, _, _]} | {"tree_partial": [_, _, _]} | {"opaque": str()} if (
                len(node) == 1
            ):
                return self.objects[where] if where in self.objects else self._function(node, where, depth)
            case _:
                raise ValueError(f"has {where}={shown(node)}, which is no part of a model")

    def _each(self, items: Any, where: str, depth: int) -> dict[Any, Any]:
        return {name: self.part(part, f"{where}.{name}", depth + 1) for name, part in items}

    def _record(self, name: str, fields: dict[str, Any], where: str, depth: int, *, is_checked: bool) -> Any:
        of = self.objects[where] if where in self.objects else self.names.named_class(name)
        fields = {**ADDED_FIELDS.get(RENAMED.get(name, name), {}), **fields}
        wrong = set(fields) ^ set(field_names(of))
        if wrong:
            has = "a" if min(wrong) in fields else "no"
            raise ValueError(f"has {has} field {shown(min(wrong))} in {where}, unlike {of.__name__} of this version")
        values = self._each(((name, fields[name]) for name in field_names(of)), where, depth)
        if is_named_tuple(of):
            return tuple.__new__(of, values.values())
        try:
            made = object.__new__(of)
        except TypeError:  # an abstract class
            raise ValueError(f"has in {where} a {of.__name__}, of which there are no objects") from None
        for field, value in values.items():
            object.__setattr__(made, field, value)
        wrong = complaint(made) if is_checked else None
        if wrong is not None:
            raise ValueError(f"has a wrong value in {where} ({wrong})")
        return made

    def _array(self, kind: str, where: str) -> Any:
        array = self._stored(where)
        if kind == "scalar" and array.shape != ():
            raise ValueError(f"has an array of shape {array.shape} in {where}, which should be a number")
        if kind in ("numpy", "scalar"):
            return array[()] if kind == "scalar" else array.copy()
        if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
            raise NeedsHelpError(
                f"holds {array.dtype} numbers, such as in {where}: call jax.config.update('jax_enable_x64', True) first"
            )
        if not is_finite(array):
            raise ValueError(f"holds NaN or infinite parameters in {where}")
        if kind == "jax":
            return jnp.asarray(array)
        zeros = jnp.full(array.shape, 0.0 if jnp.issubdtype(array.dtype, jnp.inexact) else 0)
        if not zeros.weak_type or zeros.dtype != array.dtype:
            raise ValueError(f"has a weakly typed array of {array.dtype} in {where}")
        return zeros.at[...].set(array)

    def _key(self, implementation: str, where: str) -> Any:
        array = self._stored(where)
        if array.shape[-1:] != (KEY_WORDS.get(implementation),) or array.dtype != np.uint32:
            raise ValueError(f"has no random key of the kind {shown(implementation)} in {where}")
        return jax.random.wrap_key_data(jnp.asarray(array), impl=implementation)

    def _stored(self, where: str) -> Any:
        if where not in self.arrays:
            raise ValueError(f"has no array {shown(where)}")
        return self.arrays.pop(where)

    def _structure(self, inner: Any, where: str, depth: int) -> Any:
        self.in_structure = True
        tree = self.part(inner, f"{where}.structure", depth + 1)
        self.in_structure = False
        return jax.tree.structure(tree)

    def _function(self, node: dict[str, Any], where: str, depth: int) -> Any:
        ((kind, content),) = node.items()
        if kind == "opaque":
            raise NeedsHelpError(
                f"holds {shown(content)} in {where}, which has no name: pass like= a model of the same structure"
            )
        if kind == "function":
            return self.names.named_function(content)
        # Equal partials become one object, because JAX compares partials in structures by identity.
        words, before = json.dumps(node), len(self.arrays)
        if words in self.partials:
            return self.partials[words]
        func, args, keywords = (
            self.part(part, f"{where}.{name}", depth + 1)
            for name, part in zip(("func", "args", "keywords"), content, strict=True)
        )
        if not callable(func) or not isinstance(args, tuple) or not isinstance(keywords, dict):
            raise ValueError(f"has {where}={shown(node)}, which is no function")
        made = (functools.partial if kind == "partial" else jax.tree_util.Partial)(func, *args, **keywords)
        if len(self.arrays) == before:
            self.partials[words] = made
        return made


def difference(saved: Any, given: Any, where: str) -> str | None:
    """The first place at which the JSON of a file differs from that of a given model, in words; None without one.

    A class that no ``load`` knows may be in another module, and something without a name may be anything.
    """
    kinds = [set(node) if isinstance(node, dict) else set[str]() for node in (saved, given)]
    if any("opaque" in kind for kind in kinds):
        same = all(kind & FUNCTION_KINDS for kind in kinds)
    elif isinstance(saved, dict) and isinstance(given, dict):
        keys = [kind - {"checked"} for kind in kinds]
        for name in sorted(keys[0] & keys[1]):
            part = where if name in ("tuple", "list", "dict", "fields") else f"{where}.{name}"
            if name == "class" and _label(saved[name]) == _label(given[name]):
                continue
            found = difference(saved[name], given[name], part)
            if found is not None:
                return found
        same = keys[0] == keys[1]
    elif isinstance(saved, list) and isinstance(given, list):
        for number, pair in enumerate(zip(saved, given, strict=False)):
            found = difference(*pair, f"{where}.{number}")
            if found is not None:
                return found
        same = len(saved) == len(given)
    else:
        same = type(saved) is type(given) and saved == given
    return None if same else f"{where} is {shown(saved)} in the file and {shown(given)} in like"


def _label(name: Any) -> Any:
    if not isinstance(name, str):
        return name
    place, colon, inside = RENAMED.get(name, name).partition(":")
    return inside if colon else place
