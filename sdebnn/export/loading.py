"""Exported files as functions. A file is verified, and its program compared with its contract, before it runs."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import export

from sdebnn.export.containers import parsed, read_exported
from sdebnn.export.optional import optional_module
from sdebnn.records import broken

Function = Callable[[np.ndarray], dict[str, np.ndarray]]


class Exported(NamedTuple):
    """An exported program: its contract, and the function from a batch to named outputs."""

    contract: dict[str, Any]
    function: Function

    def __call__(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """The outputs for a batch of inputs, as the contract describes both."""
        wanted = self.contract["input"]
        x, shape = np.asarray(x), wanted["shape"][1:]
        if x.ndim != 1 + len(shape) or list(x.shape[1:]) != shape or not len(x):
            raise ValueError(f"x has shape {x.shape}: pass (examples, {', '.join(map(str, shape))}).")
        if x.dtype != wanted["dtype"]:
            if wanted["dtype"] == "uint8" or x.dtype.kind not in "buif":
                raise ValueError(f"x holds {x.dtype}: pass {wanted['dtype']}.")
            x = x.astype(wanted["dtype"])
        if x.dtype.kind == "f" and not np.isfinite(x).all():
            raise ValueError("x holds NaN or infinite values: encode missing ones as the contract says.")
        return self.function(x)


def load_exported(path: str | Path) -> Exported:
    """The program in a file that ``export_run`` wrote; refused if the file is damaged or not of that kind.

        from sdebnn.export import export_run, load_exported

        export_run("model", "model.stablehlo", draws=20)
        program = load_exported("model.stablehlo")
        print(program.contract["input"])
        outputs = program(np.array([[100.0, 1.0, 0.0]]))

    Digests do not show who made a file. Load only those of people you trust.
    """
    path = Path(path)
    return _loaded(path, *read_exported(path))


def loaded_bytes(path: Path, data: bytes) -> Exported:
    """The program in the contents of a file that is not written yet."""
    return _loaded(path, *parsed(path, data))


def _loaded(path: Path, contract: dict[str, Any], program: bytes) -> Exported:
    return Exported(contract, (_of_onnx if path.suffix == ".onnx" else _of_stablehlo)(path, contract, program))


def _of_stablehlo(path: Path, contract: dict[str, Any], program: bytes) -> Function:
    optional_module("flatbuffers")  # which JAX reads such programs with
    try:
        exported = export.deserialize(bytearray(program))
        called = set(re.findall(r"custom_call @(\w+)", exported.mlir_module()))
    except Exception as error:  # the readers of JAX and MLIR raise errors of many kinds
        raise broken(path, f"holds no program that this version of JAX reads ({type(error).__name__})") from None
    if called - {"shape_assertion"}:
        raise broken(path, f"calls {min(called)!r}, which is no part of a forecast")
    outputs = contract["outputs"]
    avals = (*exported.in_avals, *exported.out_avals)
    found = [([str(size) for size in aval.shape], str(aval.dtype)) for aval in avals]
    wanted = [(list(map(str, tensor["shape"])), tensor["dtype"]) for tensor in (contract["input"], *outputs)]
    named = jax.tree.structure(((0,), {})), jax.tree.structure({tensor["name"]: 0 for tensor in outputs})
    if found != wanted or (exported.in_tree, exported.out_tree) != named:
        raise broken(path, "holds a program of other inputs or outputs than its contract says")
    compiled = jax.jit(exported.call)
    return lambda x: {name: np.asarray(array) for name, array in compiled(x).items()}


def _of_onnx(path: Path, contract: dict[str, Any], program: bytes) -> Function:
    onnx, runtime = optional_module("onnx"), optional_module("onnxruntime")
    try:
        model = onnx.load_model_from_string(program)
        strange = len(model.functions) > 0 or any(map(_is_outside, _nodes_and_tensors(model.graph)))
    except Exception as error:  # so do those of protocol buffers
        raise broken(path, f"holds no ONNX model ({type(error).__name__})") from None
    if strange:
        raise broken(path, "uses operators or files that are no part of a forecast")
    try:
        session = runtime.InferenceSession(program, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise broken(path, f"holds no model that onnxruntime reads ({type(error).__name__})") from None
    found = [
        (each.name, list(map(str, each.shape)), each.type) for each in (*session.get_inputs(), *session.get_outputs())
    ]
    kinds = {"uint8": "tensor(uint8)", "float32": "tensor(float)", "float64": "tensor(double)"}
    tensors = (contract["input"], *contract["outputs"])
    if found != [(each["name"], list(map(str, each["shape"])), kinds[each["dtype"]]) for each in tensors]:
        raise broken(path, "holds a model of other inputs or outputs than its contract says")
    names = [each["name"] for each in contract["outputs"]]
    return lambda x: dict(zip(names, session.run(names, {contract["input"]["name"]: x}), strict=True))


def _nodes_and_tensors(graph: Any) -> Iterator[Any]:
    """All nodes and constants of a graph and of the graphs inside it."""
    yield from graph.initializer
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _nodes_and_tensors(inner)


def _is_outside(part: Any) -> bool:
    """Whether a node is no standard operator, or a constant is in another file."""
    return bool(part.domain) if hasattr(part, "op_type") else bool(part.external_data) or part.data_location != 0
