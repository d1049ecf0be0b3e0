"""An extension of Griffe, which reads the source for the reference: constructors from fields, and shapes of arrays.

Griffe knows the constructors of dataclasses. This extension adds those of Equinox modules and named tuples. Griffe also
takes strings in annotations for expressions; those of jaxtyping are shapes, and stay as they are written.
"""

from collections.abc import Iterator
from typing import Any

from griffe import (
    Attribute,
    Class,
    Expr,
    ExprCall,
    ExprKeyword,
    ExprSubscript,
    ExprTuple,
    Extension,
    Function,
    Object,
    Parameter,
    ParameterKind,
    Parameters,
)

MODULES = ("equinox.Module", "typing.NamedTuple")
POSITIONAL = ParameterKind.positional_or_keyword


class Signatures(Extension):
    """Adds missing constructors, and quotes shapes."""

    def on_package(self, *, pkg: Object, **_: Any) -> None:
        """Change all functions and classes of a package that has been read."""
        objects = [*_objects(pkg)]
        classes = [each for each in objects if isinstance(each, Class) and "__init__" not in each.members]
        constructors = [(cls, fields) for cls in classes if (fields := _fields(cls))]
        for cls, fields in constructors:
            given = [
                Parameter(name, annotation=field.annotation, kind=POSITIONAL, default=_default(field))
                for name, field in fields.items()
            ]
            parameters = Parameters(Parameter("self", kind=POSITIONAL), *given)
            cls.set_member("__init__", Function("__init__", parent=cls, parameters=parameters))
        for each in _objects(pkg):
            if isinstance(each, Function):
                _quote_shapes(each.returns)
                for parameter in each.parameters:
                    _quote_shapes(parameter.annotation)
            elif isinstance(each, Attribute):
                _quote_shapes(each.annotation)


def _objects(place: Object) -> Iterator[Object]:
    """All objects that are defined inside an object, at any depth."""
    for member in place.members.values():
        if isinstance(member, Object):
            yield member
            yield from _objects(member)


def _fields(cls: Class) -> dict[str, Attribute] | None:
    """The fields of a module or a named tuple, those of its bases first; None for other classes."""
    inherited = [_inherited(cls, base.canonical_path) for base in cls.bases if isinstance(base, Expr)]
    if all(each is None for each in inherited):
        return None
    own = {name: each for name, each in cls.members.items() if isinstance(each, Attribute) and _is_field(each)}
    return {name: field for each in (*inherited, own) for name, field in (each or {}).items()}


def _inherited(cls: Class, path: str) -> dict[str, Attribute] | None:
    if path in MODULES:
        return {}
    try:
        base = cls.modules_collection[path]
    except KeyError:
        return None
    base = base.final_target if base.is_alias else base
    return _fields(base) if isinstance(base, Class) and "__init__" not in base.members else None


def _is_field(attribute: Attribute) -> bool:
    is_declared = attribute.annotation is not None and "property" not in attribute.labels
    return is_declared and "AbstractVar" not in str(attribute.annotation)


def _default(field: Attribute) -> str | Expr | None:
    """The default of a field, which may be an argument of ``eqx.field``."""
    value = field.value
    if isinstance(value, ExprCall) and value.canonical_path == "equinox.field":
        named = {each.name: each.value for each in value.arguments if isinstance(each, ExprKeyword)}
        return named.get("default")
    return value


def _quote_shapes(annotation: str | Expr | None) -> None:
    """Turn ``Float[Array, example * input]`` back into ``Float[Array, "example *input"]``."""
    if not isinstance(annotation, Expr):
        return
    for part in annotation.iterate(flat=False):
        if part is not annotation:  # a name is a part of itself
            _quote_shapes(part)
    if not isinstance(annotation, ExprSubscript) or not isinstance(annotation.slice, ExprTuple):
        return
    if isinstance(annotation.left, Expr) and annotation.left.canonical_path.startswith("jaxtyping."):
        array, shape = annotation.slice.elements
        text = str(shape).strip("'\"").replace(" * ", " *")
        annotation.slice.elements = [array, f'"{text}"']
