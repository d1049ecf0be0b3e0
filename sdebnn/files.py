"""Files that are written whole or not at all, and that say so when they were changed since.

A tree of arrays is two files: ``NAME.safetensors``, and ``NAME.json`` with the SHA-256 of the first, what else is to be
known, and a SHA-256 of its own. The second is written last: where it is, the pair is complete. What may be written over
an older one is one file, with the record in its header: ``save_one``.
"""

import contextlib
import hashlib
import io
import json
import os
import stat
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save as serialise

PART = ".part"  # what a file is called until it is whole
TYPES = {
    "BOOL": np.bool_,
    "BF16": jnp.bfloat16,
    "F16": np.float16,
    "F32": np.float32,
    "F64": np.float64,
    **{f"{kind.upper()}{8 * size}": np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)},
    "C64": np.complex64,
}


def check_regular(path: Path) -> None:
    """Refuse what is there but is not a regular file: opening a pipe blocks, and reading a device may never end."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, a socket or a device"
        raise ValueError(f"{path} is {kind}: pass a regular file.")


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that, whatever happens, its name stands for the old content or the new, never for a piece."""
    part = path.with_name(path.name + PART)
    try:
        with open(part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name, too, outlives a power cut
    finally:
        os.close(folder)


def save_array(path: Path, array: Any) -> None:
    """Write an array as a .npy file, whole or not at all."""
    file = io.BytesIO()
    np.save(file, np.asarray(array))
    write_whole(path, file.getvalue())


def fingerprint(*arrays: Any) -> str:
    """A few bytes that tell these arrays from others."""
    digest = 0
    for array in arrays:
        digest = zlib.crc32(f"{array.shape} {array.dtype}".encode(), digest)
        digest = zlib.crc32(np.asarray(array).tobytes(), digest)
    return f"{digest:08x}"


def write_facts(file: Path, kind: str, facts: dict[str, Any]) -> None:
    """Write a record as JSON, sealed by a digest of its own."""
    words = {"kind": kind, **facts}
    write_whole(file, (json.dumps({**words, "seal": _seal(words)}, indent=1) + "\n").encode())


def read_facts(file: Path, kind: str) -> dict[str, Any]:
    """What ``write_facts`` wrote, unless it was changed since or is of another kind."""
    try:
        words = json.loads(file.read_bytes())
        seal = words.pop("seal")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise _broken(file, "is no record of a saved state") from None
    if seal != _seal(words):
        raise _broken(file, "was changed since it was written")
    if words.pop("kind", None) != kind:
        raise _broken(file, f"is not a {kind}")
    return words


def save_tree(path: Path, tree: PyTree, kind: str, facts: dict[str, Any]) -> None:
    """Write the arrays of a tree and the facts about it, as ``path``.safetensors and ``path``.json."""
    data = serialise({name: np.asarray(array, order="C") for name, array in named(tree).items()})
    write_whole(_with(path, ".safetensors"), data)
    write_facts(_with(path, ".json"), kind, {"sha256": hashlib.sha256(data).hexdigest(), **facts})


def load_tree(path: Path, like: PyTree, kind: str, *, some: bool = False) -> tuple[PyTree, dict[str, Any]]:
    """What ``save_tree`` wrote, in the place of the arrays of ``like``, all of them unless ``some``; and the facts."""
    facts = read_facts(_with(path, ".json"), kind)
    file = _with(path, ".safetensors")
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise _broken(file, "is missing") from None
    if hashlib.sha256(data).hexdigest() != facts["sha256"]:
        raise _broken(file, "is cut short or was changed since it was written")
    try:
        arrays = parse(data)
    except (SafetensorError, ValueError, KeyError) as error:  # a seal over nonsense is not a tree
        raise _broken(file, f"is no safetensors file ({error})") from None
    wanted = named(like)
    unknown = set(wanted) - set(arrays) if some else set(arrays) ^ set(wanted)
    if unknown:
        raise ValueError(
            f"{file} is of another model or optimiser: {len(unknown)} arrays differ in name, the first {min(unknown)}; "
            "build them as they were when it was saved, by the sdebnn of then."
        )
    for name, array in wanted.items():
        if arrays[name].shape != array.shape or arrays[name].dtype != array.dtype:
            raise ValueError(
                f"{file} is of another model or optimiser: {name} is {arrays[name].dtype} {arrays[name].shape} there, "
                f"{array.dtype} {array.shape} here; build them as they were when it was saved."
            )
    return put_back(like, arrays), facts


def save_one(path: Path, arrays: dict[str, np.ndarray], kind: str, facts: dict[str, Any]) -> None:
    """Write arrays, and the facts about them, as one safetensors file."""
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    words = {"kind": kind, "sha256": hashlib.sha256(serialise(arrays)).hexdigest(), **facts}
    write_whole(path, serialise(arrays, {"record": json.dumps({**words, "seal": _seal(words)})}))


def load_one(path: Path, kind: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """What ``save_one`` wrote, unless it was changed since or is of another kind."""
    data = path.read_bytes()
    try:
        arrays = parse(data)
        size = int.from_bytes(data[:8], "little")
        words = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["record"])
        seal = words.pop("seal")
    except (SafetensorError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise ValueError(f"{path} is no {kind}, or it was cut short: save it anew.") from None
    if seal != _seal(words) or words.pop("sha256") != hashlib.sha256(serialise(arrays)).hexdigest():
        raise ValueError(f"{path} was changed since it was written: save it anew.")
    if words.pop("kind") != kind:
        raise ValueError(f"{path} is no {kind}: save it anew.")
    return arrays, words


def parse(data: bytes) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file; of bfloat16, too, which the package's own function for NumPy does not know."""
    return {name: np.frombuffer(a["data"], TYPES[a["dtype"]]).reshape(a["shape"]) for name, a in deserialize(data)}


def named(tree: PyTree) -> dict[str, Any]:
    """The leaves of a tree by their paths."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {_name(where): leaf if hasattr(leaf, "dtype") else np.asarray(leaf) for where, leaf in leaves}


def put_back(like: PyTree, arrays: dict[str, Any]) -> PyTree:
    """A tree like ``like``, of the arrays that ``named`` called so."""
    return jax.tree_util.tree_map_with_path(lambda where, _: arrays[_name(where)], like)


def _name(where: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(where, simple=True, separator=".")


def _with(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _seal(words: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()


def _broken(file: Path, what: str) -> ValueError:
    return ValueError(f"{file} {what}: delete {file.stem}.* to go on from what was saved before, or start anew.")
