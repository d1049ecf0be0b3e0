"""The files of exported programs, and how they are checked before use. Each is a program and its contract.

    .stablehlo    magic (8 bytes), size of the contract (8, little-endian), SHA-256 of the contract (32), the contract
                  (JSON), the program (``jax.export``)
    .onnx         an ONNX model, whose last fields are the metadata "sdebnn.contract" and "sdebnn.contract.sha256"

The contract holds the size and the SHA-256 of the program: of the ONNX model without that metadata, which are the bytes
before it. Digests reveal damage but not forgery, because anyone can compute them. Programs are therefore checked
further before they run (``loading.py``), and should come from people you trust.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sdebnn.checks import check_choice
from sdebnn.files import contents
from sdebnn.records import OBJECT, TEXT, Rule, Rules, broken, check_record, one_of, or_none, whole

FORMAT = "forecast exported by sdebnn, version 1"
SUFFIXES = (".stablehlo", ".onnx")
MAGIC = b"\x93SDEBNN\x01"
PREFIX = len(MAGIC) + 8 + 32
MAX_FILE_BYTES, MAX_CONTRACT_BYTES = 2**31 - 1, 2**24
METADATA = 14  # the number of the field ``metadata_props`` in an ONNX model
KEY, DIGEST_KEY = "sdebnn.contract", "sdebnn.contract.sha256"

WORDS = Rule("a list of words", lambda value: isinstance(value, list) and all(map(TEXT.holds, value)))
LIST = Rule("a list of objects", lambda value: isinstance(value, list) and all(map(OBJECT.holds, value)))
SHAPE = Rule(
    "'batch' and sizes",
    lambda value: isinstance(value, list) and value[:1] == ["batch"] and all(map(whole(1).holds, value[1:])),
)
DTYPES = ("uint8", "float32", "float64")
RULES: Rules = {
    "format": one_of(FORMAT),
    "kind": one_of("images", "vectors", "table"),
    "task": one_of("classification", "regression"),
    "target": TEXT,
    "classes": or_none(WORDS),
    "draws": whole(0),  # none for a Gaussian process
    "input": OBJECT,
    "outputs": LIST,
    "made_with": OBJECT,
    "program": OBJECT,
}
TENSOR_RULES: Rules = {"name": TEXT, "dtype": one_of(*DTYPES), "shape": SHAPE}
PROGRAM_RULES: Rules = {"bytes": whole(1), "sha256": TEXT}


def check_suffix(path: Path) -> None:
    """Refuse a file whose format is not known."""
    check_choice("the suffix of the exported file", path.suffix, SUFFIXES)


def file_bytes(suffix: str, contract: dict[str, Any], program: bytes) -> bytes:
    """The contents of a file with this contract, which is completed by the digest of the program."""
    whole = {"format": FORMAT, **contract, "program": {"bytes": len(program), "sha256": _sha256(program)}}
    text = json.dumps(whole, ensure_ascii=False).encode()
    return program + _metadata(text) if suffix == ".onnx" else _header(text) + program


def read_exported(path: Path) -> tuple[dict[str, Any], bytes]:
    """The contract and the program of a file; refused if it was changed, truncated, or is of another kind."""
    check_suffix(path)
    return parsed(path, contents(path, MAX_FILE_BYTES))


def parsed(path: Path, data: bytes) -> tuple[dict[str, Any], bytes]:
    """The contract and the program in the contents of a file; ``path`` is what errors call it."""
    text, program = (_split_onnx if path.suffix == ".onnx" else _split_stablehlo)(path, data)
    try:
        contract = json.loads(text)
    except (ValueError, RecursionError):
        raise broken(path, "has a contract that is no JSON") from None
    if not isinstance(contract, dict):
        raise broken(path, "has a contract that is no JSON object")
    check_record(path, contract, RULES)
    for tensor in (contract["input"], *contract["outputs"]):
        check_record(path, tensor, TENSOR_RULES)
    check_record(path, contract["program"], PROGRAM_RULES)
    if contract["program"] != {"bytes": len(program), "sha256": _sha256(program)}:
        raise broken(path, "is truncated or was changed since it was written")
    return contract, program


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _header(text: bytes) -> bytes:
    return MAGIC + len(text).to_bytes(8, "little") + hashlib.sha256(text).digest() + text


def _split_stablehlo(path: Path, data: bytes) -> tuple[bytes, bytes]:
    if data[: len(MAGIC)] != MAGIC or len(data) < PREFIX:
        raise broken(path, "is no program that sdebnn exported, or it is truncated")
    size = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 8], "little")
    if size > min(MAX_CONTRACT_BYTES, len(data) - PREFIX):
        raise broken(path, f"has a contract of {size} bytes, more than there are")
    text = data[PREFIX : PREFIX + size]
    if _header(text) != data[: PREFIX + size]:
        raise broken(path, "was changed since it was written")
    return text, data[PREFIX + size :]


def _metadata(text: bytes) -> bytes:
    """Two entries of ``metadata_props``, to be appended to an ONNX model: protocol buffers may be concatenated."""
    found = b""
    for key, value in ((KEY.encode(), text), (DIGEST_KEY.encode(), _sha256(text).encode())):
        entry = _field(1, key) + _field(2, value)
        found += _field(METADATA, entry)
    return found


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _split_onnx(path: Path, data: bytes) -> tuple[bytes, bytes]:
    try:
        begin, entry = next((at, part) for at, number, part in _fields(data) if number == METADATA)
        (_, first, key), (_, second, text) = _fields(entry)
    except (StopIteration, ValueError):
        raise broken(path, "is no ONNX model that sdebnn exported, or it is truncated") from None
    if (first, second, key) != (1, 2, KEY.encode()) or len(text) > MAX_CONTRACT_BYTES:
        raise broken(path, "is no ONNX model that sdebnn exported")
    if data[begin:] != _metadata(text):
        raise broken(path, "was changed since it was written")
    return text, data[:begin]


def _fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Where each field of a protocol buffer begins, its number, and its contents; a ValueError if it is none."""
    at = 0
    while at < len(data):
        begin = at
        tag, at = _read_varint(data, at)
        size, kind = 0, tag & 7
        if kind == 0:
            _, at = _read_varint(data, at)
        elif kind == 2:
            size, at = _read_varint(data, at)
        else:
            raise ValueError(f"fields of kind {kind} are not in ONNX models")
        if at + size > len(data):
            raise ValueError("the field ends after the data")
        yield begin, tag >> 3, data[at : at + size]
        at += size


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, at + place + 1
    raise ValueError("a number does not end")
