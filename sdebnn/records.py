"""Saved states: records of text and numbers, and trees of arrays, whose digests reveal later changes.

A tree of arrays is stored as two files: ``NAME.safetensors``, and ``NAME.json`` with the SHA-256 of the first file, the
facts about it, and a SHA-256 of its own contents (the seal). The JSON file is written last, so that the pair is
complete if it exists. A state that may replace an older one is a single file, with the record in its header:
``save_one``.

A seal detects damage but not forgery, because anyone can compute a new seal. A record is therefore also checked against
a rule for each of its values before anything is built from it.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save as serialise

from sdebnn.checks import shown
from sdebnn.files import contents, write_whole

MAX_RESULT_BYTES = 2**24
MAX_RECORD_BYTES = 2**26
TYPES = {
    "BOOL": np.bool_,
    "BF16": jnp.bfloat16,
    "F16": np.float16,
    "F32": np.float32,
    "F64": np.float64,
    **{f"{kind.upper()}{8 * size}": np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)},
    "C64": np.complex64,
}


class Rule(NamedTuple):
    """What a value of a record must be: a description, and a predicate."""

    words: str
    holds: Callable[[Any], bool]


TEXT = Rule("text", lambda value: isinstance(value, str))
YES_OR_NO = Rule("true or false", lambda value: isinstance(value, bool))
OBJECT = Rule("an object with names", lambda value: isinstance(value, dict))
Rules = Mapping[str, Rule]


def whole(least: int = 0, most: int = 2**53) -> Rule:
    """A whole number between two bounds."""

    def holds(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

    return Rule(f"a whole number from {least} to {most}", holds)


def number(least: float = -math.inf) -> Rule:
    """A finite number of at least ``least``."""

    def holds(value: object) -> bool:
        if not isinstance(value, Real) or isinstance(value, bool):
            return False
        return math.isfinite(value) and float(value) >= least

    return Rule("a finite number" + (f", at least {least:g}" if math.isfinite(least) else ""), holds)


def one_of(*words: str) -> Rule:
    """One of these words."""
    return Rule(f"one of {', '.join(words)}", lambda value: isinstance(value, str) and value in words)


def or_none(rule: Rule) -> Rule:
    """What a rule allows, or None."""
    return Rule(f"{rule.words}, or null", lambda value: value is None or rule.holds(value))


def check_record(file: Path, record: Mapping[str, Any], rules: Rules) -> None:
    """Refuse a record in which a value is missing or breaks its rule."""
    for name, rule in rules.items():
        if name not in record:
            raise broken(file, f"has no {name!r}")
        if not rule.holds(record[name]):
            raise broken(file, f"has {name}={shown(record[name])}, which should be {rule.words}")


def check_same_settings(place: Path, saved: Mapping[str, Any], now: Mapping[str, Any], remedy: str) -> None:
    """Refuse settings that differ from the saved ones of ``place``; the error names the first that does."""
    for name, value in now.items():
        if saved.get(name) != value:
            before, after = (shown(each).strip("'\"") for each in (saved.get(name), value))
            raise ValueError(f"{place} was made with {name}={before}, this run has {after}: {remedy}.")


def write_record(file: Path, kind: str, facts: dict[str, Any]) -> None:
    """Write a record as JSON, with its seal."""
    write_whole(file, record_bytes(kind, facts))


def record_bytes(kind: str, facts: dict[str, Any]) -> bytes:
    """The contents of the file of a record, with its seal."""
    words = {"kind": kind, **facts}
    return (json.dumps({**words, "seal": _seal(words)}, indent=1) + "\n").encode()


def read_record(file: Path, kind: str, rules: Rules) -> dict[str, Any]:
    """Read what ``write_record`` wrote; refused if it was changed, is of another kind or breaks a rule."""
    try:
        words = json.loads(contents(file, MAX_RECORD_BYTES))
        seal = words.pop("seal")
    except FileNotFoundError:
        raise broken(file, "is missing") from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise broken(file, "is not the record of a saved state") from None
    if seal != _seal(words):
        raise broken(file, "was changed since it was written")
    if words.pop("kind", None) != kind:
        raise broken(file, f"is not of the kind {kind!r}")
    check_record(file, words, rules)
    return words


def save_tree(path: Path, tree: PyTree, kind: str, facts: dict[str, Any]) -> None:
    """Write the arrays of a tree and the facts about it, as ``path``.safetensors and ``path``.json."""
    data = serialise({name: np.asarray(array, order="C") for name, array in named(tree).items()})
    write_whole(_with(path, ".safetensors"), data)
    write_record(_with(path, ".json"), kind, {"sha256": hashlib.sha256(data).hexdigest(), **facts})


def load_tree(
    path: Path, like: PyTree, kind: str, rules: Rules, *, some: bool = False
) -> tuple[PyTree, dict[str, Any]]:
    """Read what ``save_tree`` wrote: a tree like ``like``, and the facts. If ``some``, it may lack saved arrays."""
    facts = read_record(_with(path, ".json"), kind, {"sha256": TEXT, **rules})
    file = _with(path, ".safetensors")
    try:
        data = contents(file)
    except FileNotFoundError:
        raise broken(file, "is missing") from None
    if hashlib.sha256(data).hexdigest() != facts["sha256"]:
        raise broken(file, "is truncated or was changed since it was written")
    try:
        arrays = parse(data)
    except (SafetensorError, ValueError, KeyError) as error:  # a valid seal does not make the contents valid
        raise broken(file, f"is not a safetensors file ({error})") from None
    wanted = named(like)
    unknown = set(wanted) - set(arrays) if some else set(arrays) ^ set(wanted)
    if unknown:
        raise ValueError(
            f"{file} is of another model or optimiser: {len(unknown)} arrays differ in name, the first {min(unknown)}; "
            "build both as they were when it was saved, with the version of sdebnn that saved it."
        )
    for name, array in wanted.items():
        if arrays[name].shape != array.shape or arrays[name].dtype != array.dtype:
            raise ValueError(
                f"{file} is of another model or optimiser: {name} is {arrays[name].dtype} {arrays[name].shape} there, "
                f"{array.dtype} {array.shape} here; build both as they were when it was saved."
            )
    return put_back(like, arrays), facts


def check_finite(file: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse parameters that hold NaN or infinite values."""
    for name, array in arrays.items():
        if jnp.issubdtype(array.dtype, jnp.inexact) and not np.isfinite(array).all():
            raise broken(file, f"holds NaN or infinite parameters in {name}")


def read_result(file: Path) -> dict[str, Any]:
    """The scores in ``result.json`` of a run."""
    try:
        return dict(json.loads(contents(file, MAX_RESULT_BYTES)))
    except (ValueError, TypeError, RecursionError):
        raise ValueError(f"{file} is damaged: run sdebnn train with --resume to write it again.") from None


def save_one(path: Path, arrays: dict[str, np.ndarray], kind: str, facts: dict[str, Any]) -> None:
    """Write arrays and the facts about them as one safetensors file."""
    write_whole(path, one_bytes(arrays, kind, facts))


def one_bytes(arrays: dict[str, np.ndarray], kind: str, facts: dict[str, Any]) -> bytes:
    """The contents of the file that ``save_one`` writes."""
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    words = {"kind": kind, "sha256": hashlib.sha256(serialise(arrays)).hexdigest(), **facts}
    return serialise(arrays, {"record": json.dumps({**words, "seal": _seal(words)})})


def load_one(path: Path, kind: str, rules: Rules) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what ``save_one`` wrote; refused if it was changed, is of another kind or breaks a rule."""
    data = contents(path)
    try:
        arrays = parse(data)
        size = int.from_bytes(data[:8], "little")
        words = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["record"])
        seal = words.pop("seal")
    except (SafetensorError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise ValueError(f"{path} is not of the kind {kind!r}, or it is truncated: save it again.") from None
    if seal != _seal(words) or words.pop("sha256", None) != hashlib.sha256(serialise(arrays)).hexdigest():
        raise ValueError(f"{path} was changed since it was written: save it again.")
    if words.pop("kind", None) != kind:
        raise ValueError(f"{path} is not of the kind {kind!r}: save it again.")
    check_record(path, words, rules)
    return arrays, words


def parse(data: bytes) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file, including bfloat16, which the NumPy reader of safetensors does not support."""
    return {name: np.frombuffer(a["data"], TYPES[a["dtype"]]).reshape(a["shape"]) for name, a in deserialize(data)}


def named(tree: PyTree) -> dict[str, Any]:
    """The leaves of a tree by their paths; a leaf that is not an array becomes one."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {_name(where): np.asarray(leaf) if np.isscalar(leaf) else leaf for where, leaf in leaves}


def put_back(like: PyTree, arrays: dict[str, Any]) -> PyTree:
    """A tree like ``like`` with these arrays, which have the names that ``named`` gives."""
    return jax.tree_util.tree_map_with_path(lambda where, _: arrays[_name(where)], like)


def broken(file: Path, what: str) -> ValueError:
    """The error for a saved file that cannot be used, with the remedy."""
    if file.parent.name == "checkpoints":
        return ValueError(
            f"{file} {what}: delete {file.stem}.* to resume from the checkpoint before it, or start again."
        )
    return ValueError(f"{file} {what}: restore a copy of it, or create it again.")


def _name(where: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(where, simple=True, separator=".")


def _with(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _seal(words: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()
