"""A traced program as an ONNX model: one rule for each primitive (``onnx_rules.py``), and loops as ONNX ``Scan``.

A value is known, an array that becomes a constant of the model, or the name of a tensor. Equations between known values
are computed at once. jax2onnx 0.17.1 is not used: its rule for ``pad`` refuses a symbolic batch size, which image nets
need, and it depends on some thirty other packages.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.export import is_symbolic_dim
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from sdebnn.export.freezing import INLINED, aval_of, shared_and_carried
from sdebnn.export.optional import optional_module

OPSET, IR_VERSION = 18, 8  # read by onnxruntime 1.14 and later
Value = np.ndarray | str
Rule = Callable[["Graph", JaxprEqn, list[Value]], Sequence[Value]]


def onnx_bytes(
    traced: ClosedJaxpr, rules: dict[str, Rule], batch: Any, input_name: str, output_names: Sequence[str]
) -> bytes:
    """The model of a traced program of one input, whose first axis is the symbolic ``batch``."""
    onnx, graph = optional_module("onnx"), Graph(rules, batch, input_name)
    outputs = graph.add(traced.jaxpr, traced.consts, [input_name])
    for name, value in zip(output_names, outputs, strict=True):
        graph.node("Identity", [value], name=name)
    tensors = [
        onnx.helper.make_tensor_value_info(name, _type(onnx, aval_of(variable).dtype), _dims(aval_of(variable).shape))
        for name, variable in zip(
            [input_name, *output_names], [*traced.jaxpr.invars, *traced.jaxpr.outvars], strict=True
        )
    ]
    made = onnx.helper.make_graph(graph.nodes, "forecast", tensors[:1], tensors[1:], graph.initializers)
    model = onnx.helper.make_model(
        made, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="sdebnn"
    )
    return model.SerializeToString(deterministic=True)


def _type(onnx: Any, dtype: Any) -> int:
    return onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def _dims(shape: Sequence[Any]) -> list[Any]:
    return [str(size) if is_symbolic_dim(size) else int(size) for size in shape]


class Graph:
    """The nodes of a model, or of the body of a loop inside it; constants are those of the model."""

    def __init__(self, rules: dict[str, Rule], batch: Any, input_name: str, outer: "Graph | None" = None):
        self.onnx, self.rules, self.batch, self.input_name = optional_module("onnx"), rules, batch, input_name
        self.nodes: list[Any] = []
        self.initializers: list[Any] = [] if outer is None else outer.initializers
        self.named: dict[int, tuple[np.ndarray, str]] = {} if outer is None else outer.named
        self.count: list[int] = [0] if outer is None else outer.count

    def new(self) -> str:
        """A name that no other tensor has."""
        self.count[0] += 1
        return f"v{self.count[0]}"

    def node(self, kind: str, inputs: Sequence[Value], *, name: str | None = None, **attributes: Any) -> str:
        """Append a node of one output, and return the name of that."""
        found = name or self.new()
        self.nodes.append(self.onnx.helper.make_node(kind, list(map(self.name, inputs)), [found], **attributes))
        return found

    def name(self, value: Value) -> str:
        """The name of a value, which becomes a constant of the model if it is known."""
        if isinstance(value, str):
            return value
        if id(value) not in self.named:
            array, found = np.ascontiguousarray(value).reshape(value.shape), self.new()
            self.initializers.append(self.onnx.numpy_helper.from_array(array, found))
            self.named[id(value)] = value, found  # the array is kept, so that no other has its id
        return self.named[id(value)][1]

    def type(self, dtype: Any) -> int:
        """The number that ONNX has for a type."""
        return _type(self.onnx, dtype)

    def shape(self, sizes: Sequence[Any]) -> Value:
        """Sizes as a tensor; one that is symbolic must be a multiple of the batch size."""
        if not any(map(is_symbolic_dim, sizes)):
            return np.array(sizes, np.int64)
        rows = self.node("Shape", [self.input_name], start=0, end=1)
        parts = [
            self.node("Mul", [rows, np.array([int(size // self.batch)])]) if is_symbolic_dim(size)
            else np.array([size], np.int64)
            for size in sizes
        ]  # fmt: skip
        return self.node("Concat", parts, axis=0)

    def add(self, jaxpr: Jaxpr, consts: Sequence[Any], inputs: Sequence[Value]) -> list[Value]:
        """Append the nodes of a program, and return its outputs."""
        values: dict[Any, Value] = dict(zip(jaxpr.constvars, map(np.asarray, consts), strict=True))
        values.update(zip(jaxpr.invars, inputs, strict=True))

        def of(atom: Any) -> Value:
            return np.asarray(atom.val, aval_of(atom).dtype) if isinstance(atom, Literal) else values[atom]

        for equation in jaxpr.eqns:
            outputs = self._equation(equation, [of(atom) for atom in equation.invars])
            values.update(zip(equation.outvars, outputs, strict=True))
        return [of(atom) for atom in jaxpr.outvars]

    def _equation(self, equation: JaxprEqn, inputs: list[Value]) -> Sequence[Value]:
        primitive, params = equation.primitive, equation.params
        if primitive.name in INLINED:
            program = params[INLINED[primitive.name]]
            closed = isinstance(program, ClosedJaxpr)
            return self.add(program.jaxpr if closed else program, program.consts if closed else (), inputs)
        sizes = [size for variable in equation.outvars for size in aval_of(variable).shape]
        if not any(isinstance(value, str) for value in inputs) and not any(map(is_symbolic_dim, sizes)):
            found = primitive.bind(*inputs, **params)
            return [np.asarray(each) for each in (found if primitive.multiple_results else [found])]
        if any(size == 0 for size in sizes if not is_symbolic_dim(size)):  # nothing, which only ``concatenate`` takes
            return [np.zeros(0, aval_of(variable).dtype) for variable in equation.outvars]
        if primitive.name == "scan":
            return self._loop(equation, inputs)
        rule = self.rules.get(primitive.name)
        if rule is None:
            raise ValueError(
                f"the model computes {primitive.name!r}, for which there is no ONNX operator here: export it as "
                "StableHLO, to a file that ends in .stablehlo."
            )
        return rule(self, equation, inputs)

    def _loop(self, equation: JaxprEqn, inputs: list[Value]) -> Sequence[Value]:
        """A loop as an ONNX ``Scan``, whose body sees all tensors outside it by their names."""
        params, helper = equation.params, self.onnx.helper
        assert not params["reverse"]  # the loops over draws, columns and halvings all go forwards
        (consts, carry), inner = shared_and_carried(equation), params["jaxpr"]
        fixed, state, stacked = inputs[:consts], inputs[consts : consts + carry], inputs[consts + carry :]
        fixed = [self.name(value) if np.size(value) > 1 else value for value in fixed]
        body = Graph(self.rules, self.batch, self.input_name, outer=self)
        variables = inner.jaxpr.invars[consts:]
        names = [self.new() for _ in variables]
        results = body.add(inner.jaxpr, inner.consts, [*fixed, *names])
        outputs = [body.node("Identity", [value]) for value in results]
        types = [self.type(aval_of(variable).dtype) for variable in (*variables, *inner.jaxpr.outvars)]
        if not stacked:  # ``Scan`` needs something to count by
            stacked, names, types = [np.arange(params["length"])], [*names, self.new()], [
                *types[: len(names)], self.type(np.int64), *types[len(names) :]
            ]  # fmt: skip
        infos = [
            helper.make_tensor_value_info(name, kind, None)
            for name, kind in zip([*names, *outputs], types, strict=True)
        ]
        graph = helper.make_graph(body.nodes, self.new(), infos[: len(names)], infos[len(names) :])
        found = [self.new() for _ in outputs]
        given = list(map(self.name, [*state, *stacked]))
        self.nodes.append(helper.make_node("Scan", given, found, body=graph, num_scan_inputs=len(stacked)))
        return found
