"""The names by which a file refers to classes and functions, and the objects that they name.

sdebnn.OU, equinox.nn.Linear, diffrax.ShARK, jax.nn.silu    known to every ``load``
my_package.nets:Mine                                        needs ``load(path, modules=("my_package.nets",))``

A name of the first kind does not contain the file in which a class is defined, so that a class may move within sdebnn.
A file that names a class which was renamed since, or lacks a field that a class got since, must still load: add the old
name to ``RENAMED``, or the field to ``ADDED_FIELDS``, with the value by which a model computes what it did before.
"""

import functools
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import diffrax
import equinox as eqx

from sdebnn.checks import shown

RENAMED: dict[str, str] = {}  # old name: new name
ADDED_FIELDS: dict[str, dict[str, Any]] = {  # name of a class: its new fields, as they are written in a file
    "sdebnn.RandomView": {"turn": 0.0, "stretch": 0.0},
    "sdebnn.Validation": {"should_stop": None},
}

PACKAGES = ("baselines", "convolutions", "integrate", "likelihoods", "models", "processes")
MODULES = (
    "data.augment", "data.mixing", "data.standardise", "fields", "presets", "train.optimizers", "train.options",
    "waves",
)  # fmt: skip
FUNCTIONS = ("constant_adam", "fan_in_scale", "grouped_muon", "pooled", "sine", "squeeze", "unsqueeze")  # of sdebnn
# Functions of arrays only: a file must not be able to name one that reads or writes files, such as jnp.save.
JAX_FUNCTIONS = {
    "jax.nn": (
        "celu", "elu", "gelu", "glu", "hard_sigmoid", "hard_silu", "hard_tanh", "identity", "leaky_relu",
        "log_sigmoid", "log_softmax", "logsumexp", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "soft_sign",
        "softmax", "softplus", "sparse_plus", "sparse_sigmoid", "squareplus", "standardize",
    ),
    "jax.numpy": (
        "abs", "arcsinh", "arctan", "atleast_1d", "cbrt", "clip", "cos", "cosh", "exp", "exp2", "expm1", "flip", "log",
        "log1p", "max", "maximum", "mean", "min", "minimum", "negative", "positive", "ravel", "reciprocal", "reshape",
        "sign", "sin", "sinc", "sinh", "sqrt", "square", "squeeze", "sum", "swapaxes", "tan", "tanh", "transpose",
    ),
    "jax.lax": ("erf", "logistic", "rsqrt", "stop_gradient", "tanh"),
}  # fmt: skip


@functools.cache
def known_objects() -> dict[str, Any]:
    """The classes and functions that every file may name, by name."""
    found: dict[str, Any] = {}
    own = list(_own_modules())
    for module in own:
        for name, part in vars(module).items():
            if _is_record(part) and part.__module__ == module.__name__ and not name.startswith("_"):
                found[f"sdebnn.{name}"] = part
            if name in FUNCTIONS and callable(part) and part.__module__ == module.__name__:
                found[f"sdebnn.{name}"] = part
    for name, part in vars(eqx.nn).items():
        if isinstance(part, type) and issubclass(part, eqx.Module):
            found[f"equinox.nn.{name}"] = part
    for name, part in vars(diffrax).items():
        if isinstance(part, type) and issubclass(part, diffrax.AbstractSolver | diffrax.AbstractAdjoint):
            found[f"diffrax.{name}"] = part
    for place, names in JAX_FUNCTIONS.items():
        module = importlib.import_module(place)
        found.update({f"{place}.{name}": getattr(module, name) for name in names if hasattr(module, name)})
    # The default of an MLP is a private function, which is reached through the signature.
    found["equinox.identity"] = inspect.signature(eqx.nn.MLP.__init__).parameters["final_activation"].default
    return found


@functools.cache
def _names() -> dict[int, str]:
    """The name of each known object by its id; the first name if it has several."""
    return {id(part): name for name, part in reversed(known_objects().items())}


def name_of(thing: Any) -> str | None:
    """The name of a class or function; None if nothing can find it again, such as a lambda."""
    if id(thing) in _names():
        return _names()[id(thing)]
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or "." in name:
        return None
    return f"{module}:{name}" if getattr(sys.modules.get(module), name, None) is thing else None


def class_label(of: type) -> str:
    """The name of a class, or if no import finds it, text by which it is compared with that of another model."""
    return name_of(of) or f"{of.__module__}:{of.__qualname__}"


class Names:
    """What the names in a file may refer to: known objects, and those of modules that the caller declared."""

    def __init__(self, modules: Sequence[str]):
        if isinstance(modules, str) or not all(isinstance(name, str) for name in modules):
            raise ValueError(f"modules={shown(modules)} must be names of modules, such as ('my_package.nets',).")
        self.modules = {name: _imported(name) for name in modules}

    def named_class(self, name: str) -> type:
        """The class of this name."""
        found = self._named(name)
        if not _is_record(found):
            raise ValueError(f"names {shown(name)}, which is no Equinox module, data class or named tuple")
        return found

    def named_function(self, name: str) -> Any:
        """The function of this name."""
        found = self._named(name)
        if isinstance(found, type) or not callable(found):
            raise ValueError(f"names {shown(name)}, which is no function")
        return found

    def _named(self, name: str) -> Any:
        name = RENAMED.get(name, name)
        if name in known_objects():
            return known_objects()[name]
        place, colon, inside = name.partition(":")
        if not colon:
            raise ValueError(f"names {shown(name)}, which this version of sdebnn does not know")
        if "." in inside:
            raise NeedsHelpError(
                f"needs {shown(name)}, which no import finds: pass like= a model of the same structure"
            )
        if place not in self.modules:
            raise NeedsHelpError(
                f"needs {shown(name)}: pass modules=({place!r},) if you trust that module, or like= a model of the "
                "same structure"
            )
        found = getattr(self.modules[place], inside, None)
        # What a module has only imported, such as os.system, is none of its own.
        if getattr(found, "__module__", None) != place or getattr(found, "__qualname__", None) != inside:
            raise ValueError(f"names {shown(name)}, which the module does not define")
        return found


class NeedsHelpError(ValueError):
    """A file that is whole, but cannot be loaded without an argument that the message names."""


def _is_record(part: object) -> bool:
    """Whether a class has fields that a file can store: an Equinox module or data class, or a named tuple."""
    return isinstance(part, type) and (hasattr(part, "__dataclass_fields__") or is_named_tuple(part))


def is_named_tuple(part: type) -> bool:
    """Whether a class is a named tuple."""
    return issubclass(part, tuple) and isinstance(getattr(part, "_fields", None), tuple)


def _own_modules() -> Iterator[ModuleType]:
    """The modules of sdebnn whose classes are parts of models, or of how they are trained."""
    for name in PACKAGES:
        package = importlib.import_module(f"sdebnn.{name}")
        for info in pkgutil.iter_modules(package.__path__, f"sdebnn.{name}."):
            yield importlib.import_module(info.name)
    for name in MODULES:
        yield importlib.import_module(f"sdebnn.{name}")


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (ModuleNotFoundError, ValueError, TypeError) as error:
        raise ValueError(f"modules: {shown(name)} cannot be imported ({error}): pass the name of a module.") from None
