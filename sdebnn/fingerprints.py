"""Descriptions of the objects of a training, and digests of its data, by which two trainings are compared.

``described`` traverses an object (a model, a likelihood, an optimiser, an augmentation) and lists what it consists of:
the class of every part, fixed numbers and strings, functions with the values in their closures, the shapes of trained
arrays, and digests of all other arrays. ``digest`` reads all rows of an array: the same numbers have the same digest in
memory and on disk.
"""

import dataclasses
import functools
import hashlib
import inspect
import sys
import types
from collections.abc import Mapping
from numbers import Number
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

BYTES_PER_BLOCK = 2**25  # of rows that are hashed together
# Functions of these packages are described by their names; of all other functions the code is hashed as well.
LIBRARIES = ("builtins", "diffrax", "equinox", "jax", "jaxlib", "lineax", "numpy", "optax", "scipy", "sdebnn")
OPAQUE = ("builtins", "jax", "jaxlib", "numpy")  # objects of these packages are not traversed
CODE = " code "  # separates the name of a function from the digest of its code


def described(thing: object) -> dict[str, str]:
    """The parts of an object by their paths: numbers and strings by value, classes and functions by name.

    Training changes the floating-point arrays of Equinox modules, so that only their shapes and types are listed.
    """
    found: dict[str, str] = {}
    _describe(thing, "", found, trained=True, above=())
    return found


def difference(before: Mapping[str, str], now: Mapping[str, str], *, code: bool = True) -> tuple[str, str, str] | None:
    """The first path at which two descriptions differ, and both values; without ``code``, code is not compared."""
    for path in sorted(set(before) | set(now)):
        one, two = before.get(path, "nothing"), now.get(path, "nothing")
        if one != two and (code or one.split(CODE)[0] != two.split(CODE)[0]) and not _same_number(one, two):
            return path.lstrip("."), one, two
    return None


def _same_number(one: str, two: str) -> bool:
    """Whether two texts are one number, such as 3 and 3.0: schedules of Optax turn their whole numbers into floats."""
    try:
        return float(one) == float(two)
    except ValueError:
        return False


def digest(array: Any) -> str:
    """The SHA-256 of all rows, in the type of numbers that training uses."""
    shape = tuple(array.shape)
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))
    found = hashlib.sha256(f"{shape} {dtype}".encode())
    row = max(1, dtype.itemsize * int(np.prod(shape[1:])))
    rows = max(1, BYTES_PER_BLOCK // row)
    for first in range(0, shape[0] if shape else 1, rows):
        part = np.asarray(array[first : first + rows] if shape else array)
        with np.errstate(over="ignore"):
            found.update(np.asarray(part, dtype).tobytes())  # not every type supports the buffer protocol
    return found.hexdigest()


def kept_digest(array: Any, kept: dict[str, str]) -> str:
    """The digest of an array. For an array on disk it is looked up by the file's name, size and modification time."""
    where = _identity(array)
    if where is None:
        return digest(array)
    if where not in kept:
        kept[where] = digest(array)
    return kept[where]


def _identity(array: object) -> str | None:
    """A key for the contents of an array on disk: its file, its modification time, and the selected rows."""
    index = getattr(array, "index", None)
    if isinstance(index, np.ndarray):
        inside = _identity(getattr(array, "array", None))
        return inside and f"{inside} rows {hashlib.sha256(index.tobytes()).hexdigest()}"
    shards = getattr(array, "shards", None)
    if isinstance(shards, tuple):
        inside = [_identity(shard) for shard in shards]
        return None if None in inside else " then ".join(map(str, inside))
    if not isinstance(array, np.memmap) or array.filename is None:
        return None
    path = Path(array.filename)
    try:
        status = path.stat()
    except OSError:
        return None
    # A slice has the offset of the whole array, and differs only in its address.
    whole = array.base if isinstance(array.base, np.ndarray) else array
    begins = array.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    layout = f"{array.offset} {begins} {array.shape} {array.dtype} {array.strides}"
    return f"{path.resolve()} size {status.st_size} changed {status.st_mtime_ns} layout {layout}"


def _describe(thing: Any, path: str, found: dict[str, str], *, trained: bool, above: tuple[int, ...]) -> None:
    """Add the parts of an object to ``found``; ``above`` holds the ids of the objects that contain it."""
    if id(thing) in above:
        found[path] = "itself"
        return
    inside = (*above, id(thing))

    def parts(items: Any, trained: bool = trained) -> None:
        for name, part in items:
            _describe(part, f"{path}{name}", found, trained=trained, above=inside)

    if thing is None or isinstance(thing, str | bytes | Number | np.dtype):
        found[path] = repr(thing.item() if isinstance(thing, np.generic) else thing)
    elif isinstance(thing, Tracer | jax.ShapeDtypeStruct):
        found[path] = f"{thing.dtype} {thing.shape}"
    elif isinstance(thing, np.ndarray) and thing.dtype == object:
        parts([(".shape", thing.shape), ("", thing.ravel().tolist())])
    elif isinstance(thing, jax.Array | np.ndarray):
        found[path] = f"{thing.dtype} {thing.shape}" + ("" if _is_trained(thing, trained) else f" {_bits(thing)}")
    elif isinstance(thing, type):
        found[path] = _name(thing)
    elif dataclasses.is_dataclass(thing):  # Equinox modules, too
        found[path] = _name(type(thing)) + _class_code(type(thing))
        parts((f".{field.name}", getattr(thing, field.name, None)) for field in dataclasses.fields(thing))
    elif isinstance(thing, tuple | list):
        found[path] = _name(type(thing))
        names = getattr(thing, "_fields", None)
        parts((f".{names[i]}" if names else f"[{i}]", part) for i, part in enumerate(thing))
    elif isinstance(thing, Mapping):
        found[path] = _name(type(thing))
        parts(sorted(((f"[{_short(name)}]", part) for name, part in thing.items()), key=lambda item: item[0]))
    elif isinstance(thing, set | frozenset):
        found[path] = repr(sorted(map(_short, thing)))
    elif isinstance(thing, functools.partial):
        found[path] = "partial"
        parts([(".func", thing.func), (".args", thing.args), (".keywords", thing.keywords)])
    elif callable(thing) and hasattr(thing, "__name__"):
        _describe_function(thing, path, found, inside)
    else:
        found[path] = _name(type(thing)) + _class_code(type(thing))
        if not _is_of(type(thing), OPAQUE):
            parts((f".{name}", part) for name, part in sorted(_state(thing).items()))


def _describe_function(function: Any, path: str, found: dict[str, str], above: tuple[int, ...]) -> None:
    """Add a function to ``found``: its name, a digest of its code if it is the user's, and its closure."""
    found[path] = _name(function)
    if _is_of(function, OPAQUE):
        return
    owner = getattr(function, "__self__", None)
    if owner is not None and not isinstance(owner, types.ModuleType):
        _describe(owner, f"{path}.self", found, trained=False, above=above)
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    if code is None:
        return
    if not _is_of(function, LIBRARIES):
        found[path] += CODE + _code(code)
    enclosed = dict(zip(code.co_freevars, getattr(function, "__closure__", None) or (), strict=True))
    for name, cell in enclosed.items():
        try:
            value = cell.cell_contents
        except ValueError:  # an empty cell
            continue
        _describe(value, f"{path}.{name}", found, trained=False, above=above)
    for name in code.co_names if not _is_of(function, LIBRARIES) else ():  # the globals that it uses
        value = function.__globals__.get(name)
        if isinstance(value, str | Number):
            _describe(value, f"{path}.{name}", found, trained=False, above=above)
        elif inspect.isfunction(value) and not _is_of(value, LIBRARIES) and f".{_name(value)}" not in found:
            _describe(value, f".{_name(value)}", found, trained=False, above=above)  # once for all callers
    for name in ("__defaults__", "__kwdefaults__"):
        if getattr(function, name, None):
            _describe(getattr(function, name), f"{path}.{name.strip('_')}", found, trained=False, above=above)


def _state(thing: Any) -> dict[str, Any]:
    """The attributes of an object without its cached properties."""
    classes = type(thing).__mro__
    slots = [name for of in classes for name in _names(getattr(of, "__slots__", ()))]
    found = {name: getattr(thing, name) for name in slots if hasattr(thing, name) and not name.startswith("__")}
    found.update(getattr(thing, "__dict__", {}))
    lazy = {name for of in classes for name, value in vars(of).items() if isinstance(value, functools.cached_property)}
    return {name: value for name, value in found.items() if name not in lazy}


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _short(thing: object) -> str:
    """A dictionary key or a member of a set as text that is the same in every process."""
    return repr(thing) if isinstance(thing, str | bytes | Number) else " ".join(described(thing).values())


def _is_trained(array: object, trained: bool) -> bool:
    return trained and eqx.is_inexact_array(array)


def _bits(array: Any) -> str:
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return digest(np.atleast_1d(np.asarray(array)))[:16]


def _name(thing: Any) -> str:
    """The module and name of a class or function; for a library only the package, as its modules may move."""
    module = getattr(thing, "__module__", None) or "builtins"
    name = getattr(thing, "__qualname__", thing.__name__)
    return f"{module.partition('.')[0] if _is_of(thing, LIBRARIES) else module}.{name}"


def _is_of(thing: object, packages: tuple[str, ...]) -> bool:
    return (getattr(thing, "__module__", None) or "builtins").partition(".")[0] in packages


def _class_code(of: type) -> str:
    """A digest of the methods of a user's class and of its base classes that are the user's."""
    if _is_of(of, LIBRARIES):
        return ""
    own = [each for each in of.__mro__ if not _is_of(each, (*LIBRARIES, *sys.stdlib_module_names))]
    functions = [inspect.unwrap(part) for each in own for part in vars(each).values() if inspect.isfunction(part)]
    codes = [function.__code__ for function in functions if hasattr(function, "__code__")]
    return CODE + hashlib.sha256("".join(map(_code, codes)).encode()).hexdigest()[:16] if codes else ""


def _code(code: types.CodeType) -> str:
    """A digest of the instructions of a function and of their constants and names."""
    constants = [_constant(part) for part in code.co_consts]
    return hashlib.sha256(repr((code.co_code, constants, code.co_names)).encode()).hexdigest()[:16]


def _constant(part: object) -> str:
    if isinstance(part, types.CodeType):
        return _code(part)
    return repr(sorted(map(repr, part)) if isinstance(part, frozenset) else part)  # sets are unordered
