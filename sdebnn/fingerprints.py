"""What tells one training from another: the settings of its objects, in words, and a digest of its data.

``described`` walks through an object (a model, a likelihood, an optimiser, an augmentation) and lists what it is made
of: the class of every part, its fixed numbers and words, the functions it uses with the values that they enclose, the
shapes of the arrays that are trained, and a digest of those that are not. ``digest`` reads all rows of an array: one in
memory and the same one on disk have the same digest.
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

BYTES_AT_ONCE = 2**25  # of the rows that are digested together
# Their functions are known by name; of all other functions the code is digested, too.
LIBRARIES = ("builtins", "diffrax", "equinox", "jax", "jaxlib", "lineax", "numpy", "optax", "scipy", "sdebnn")
OPAQUE = ("builtins", "jax", "jaxlib", "numpy")  # named, and not looked into
CODE = " code "  # between the name of a function and the digest of its code


def described(thing: Any) -> dict[str, str]:
    """What an object is made of, by path: numbers and words as they are, classes and functions by name.

    Floating-point arrays of Equinox modules are what training changes: of these, only shape and type are listed.
    """
    found: dict[str, str] = {}
    _describe(thing, "", found, trained=True, above=())
    return found


def difference(before: Mapping[str, str], now: Mapping[str, str], *, code: bool = True) -> tuple[str, str, str] | None:
    """The first path at which two descriptions differ, and what each has there; ``code`` compares functions' code."""
    for path in sorted(set(before) | set(now)):
        one, two = before.get(path, "nothing"), now.get(path, "nothing")
        if one != two and (code or one.split(CODE)[0] != two.split(CODE)[0]):
            return path.lstrip("."), one, two
    return None


def digest(array: Any) -> str:
    """The SHA-256 of all rows, in the type of numbers that training sees."""
    shape = tuple(array.shape)
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))
    found = hashlib.sha256(f"{shape} {dtype}".encode())
    row = max(1, dtype.itemsize * int(np.prod(shape[1:])))
    rows = max(1, BYTES_AT_ONCE // row)
    for first in range(0, shape[0] if shape else 1, rows):
        part = np.asarray(array[first : first + rows] if shape else array)
        with np.errstate(over="ignore"):
            found.update(np.asarray(part, dtype).tobytes())  # not every type of numbers has a buffer
    return found.hexdigest()


def kept_digest(array: Any, kept: dict[str, str]) -> str:
    """The digest of an array; of one on disk, the digest kept for a file of this name, size and time of change."""
    where = _identity(array)
    if where is None:
        return digest(array)
    if where not in kept:
        kept[where] = digest(array)
    return kept[where]


def _identity(array: Any) -> str | None:
    """What names the contents of an array on disk: its file, as long as that is not changed; and which rows."""
    index = getattr(array, "index", None)
    if isinstance(index, np.ndarray):
        inside = _identity(getattr(array, "array", None))
        return inside and f"{inside} rows {hashlib.sha256(index.tobytes()).hexdigest()}"
    if not isinstance(array, np.memmap) or array.filename is None:
        return None
    path = Path(array.filename)
    try:
        status = path.stat()
    except OSError:
        return None
    # A slice keeps the offset of the whole: what tells it apart is where it begins in memory.
    whole = array.base if isinstance(array.base, np.ndarray) else array
    begins = array.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    layout = f"{array.offset} {begins} {array.shape} {array.dtype} {array.strides}"
    return f"{path.resolve()} size {status.st_size} changed {status.st_mtime_ns} layout {layout}"


def _describe(thing: Any, path: str, found: dict[str, str], *, trained: bool, above: tuple[int, ...]) -> None:
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
    """A function by its name, its code if it is the user's, and the values that it encloses."""
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
        except ValueError:  # a cell that is still empty
            continue
        _describe(value, f"{path}.{name}", found, trained=False, above=above)
    for name in code.co_names if not _is_of(function, LIBRARIES) else ():  # what it takes from its module
        value = function.__globals__.get(name)
        if isinstance(value, str | Number):
            _describe(value, f"{path}.{name}", found, trained=False, above=above)
        elif inspect.isfunction(value) and not _is_of(value, LIBRARIES) and f".{_name(value)}" not in found:
            _describe(value, f".{_name(value)}", found, trained=False, above=above)  # once, however many call it
    for name in ("__defaults__", "__kwdefaults__"):
        if getattr(function, name, None):
            _describe(getattr(function, name), f"{path}.{name.strip('_')}", found, trained=False, above=above)


def _state(thing: Any) -> dict[str, Any]:
    """The attributes of an object; without those that it computes when they are asked for, and keeps."""
    classes = type(thing).__mro__
    slots = [name for of in classes for name in _names(getattr(of, "__slots__", ()))]
    found = {name: getattr(thing, name) for name in slots if hasattr(thing, name) and not name.startswith("__")}
    found.update(getattr(thing, "__dict__", {}))
    lazy = {name for of in classes for name, value in vars(of).items() if isinstance(value, functools.cached_property)}
    return {name: value for name, value in found.items() if name not in lazy}


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _short(thing: Any) -> str:
    """A key, or a member of a set, in a few words that are the same in every process."""
    return repr(thing) if isinstance(thing, str | bytes | Number) else " ".join(described(thing).values())


def _is_trained(array: Any, trained: bool) -> bool:
    return trained and eqx.is_inexact_array(array)


def _bits(array: Any) -> str:
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return digest(np.atleast_1d(np.asarray(array)))[:16]


def _name(thing: Any) -> str:
    """The module and name of a class or function; of a library, whose modules move between versions, the package."""
    module = getattr(thing, "__module__", None) or "builtins"
    name = getattr(thing, "__qualname__", thing.__name__)
    return f"{module.partition('.')[0] if _is_of(thing, LIBRARIES) else module}.{name}"


def _is_of(thing: Any, packages: tuple[str, ...]) -> bool:
    return (getattr(thing, "__module__", None) or "builtins").partition(".")[0] in packages


def _class_code(of: type) -> str:
    """A digest of the methods of a class that is the user's own, those that it inherits from others included."""
    if _is_of(of, LIBRARIES):
        return ""
    own = [each for each in of.__mro__ if not _is_of(each, (*LIBRARIES, *sys.stdlib_module_names))]
    functions = [inspect.unwrap(part) for each in own for part in vars(each).values() if inspect.isfunction(part)]
    codes = [function.__code__ for function in functions if hasattr(function, "__code__")]
    return CODE + hashlib.sha256("".join(map(_code, codes)).encode()).hexdigest()[:16] if codes else ""


def _code(code: types.CodeType) -> str:
    """A digest of what a function does: its instructions, and the constants and names in them."""
    constants = [_constant(part) for part in code.co_consts]
    return hashlib.sha256(repr((code.co_code, constants, code.co_names)).encode()).hexdigest()[:16]


def _constant(part: Any) -> str:
    if isinstance(part, types.CodeType):
        return _code(part)
    return repr(sorted(map(repr, part)) if isinstance(part, frozenset) else part)  # sets have no order of their own
