"""How each primitive of JAX is written in ONNX operators of opset 18."""

import string
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.export import is_symbolic_dim
from jax.extend.core import JaxprEqn

from sdebnn.export.freezing import aval_of, takes_columns
from sdebnn.export.onnx_graph import Graph, Rule, Value


def _same(kind: str, **attributes: Any) -> Rule:
    """The rule of a primitive that is one operator with the same inputs."""
    return lambda graph, equation, inputs: [graph.node(kind, inputs, **attributes)]


def _nothing(graph: Graph, equation: JaxprEqn, inputs: list[Value]) -> Sequence[Value]:
    return inputs


def _dtype(equation: JaxprEqn) -> Any:
    return aval_of(equation.invars[0]).dtype


def _log1p(graph: Graph, equation: JaxprEqn, inputs: list[Value]) -> Sequence[Value]:
    return [graph.node("Log", [graph.node("Add", [inputs[0], np.ones((), _dtype(equation))])])]


def _rsqrt(graph: Graph, equation: JaxprEqn, inputs: list[Value]) -> Sequence[Value]:
    return [graph.node("Reciprocal", [graph.node("Sqrt", inputs)])]


def _square(graph: Graph, equation: JaxprEqn, inputs: list[Value]) -> Sequence[Value]:
    return [graph.node("Mul", [inputs[0], inputs[0]])]


def _integer_pow(graph: Graph, equation: JaxprEqn, inputs: list[Value]) -> Sequence[Value]:
    return [graph.node("Pow", [inputs[0], np.asarray(equation.params["y"], _dtype(equation))])]


def _not_equal(graph: Graph, equation: JaxprEqn, inputs: list[Value]) -> Sequence[Value]:
    return [graph.node("Not", [graph.node("Equal", inputs)])]


def _clamp(graph: Graph, equation: JaxprEqn, inputs: list[Value]) -> Sequence[Value]:
    low, x, high = inputs
    return [graph.node("Min", [graph.node("Max", [x, low]), high])]


def _select(graph: Graph, equation: JaxprEqn, inputs: list[Value]) -> Sequence[Value]:
    which, if_false, if_true = inputs
    return [graph.node("Where", [which, if_true, if_false])]


def _cast(graph: Graph, equation: JaxprEqn, inputs: list[Value]) -> Sequence[Value]:
    return [graph.node("Cast", inputs, to=graph.type(equation.params["new_dtype"]))]


def _reshaped(graph: Graph, value: Value, sizes: Sequence[Any]) -> str:
    """A value in another shape, of which one size may be symbolic."""
    if sum(map(is_symbolic_dim, sizes)) > 1:
        return graph.node("Reshape", [value, graph.shape(sizes)])
    return graph.node("Reshape", [value, np.array([-1 if is_symbolic_dim(size) else size for size in sizes])])


def _reshape(graph: Graph, equation: JaxprEqn, inputs: list[Value]) -> Sequence[Value]:
    return [_reshaped(graph, inputs[0], aval_of(equation.outvars[0]).shape)]


def _transpose(graph: Graph, equation: JaxprEqn, inputs: list[Value]) -> Sequence[Value]:
    return [graph.node("Transpose", inputs, perm=list(map(int, equation.params["permutation"])))]


def _broadcast(graph: Graph, equation: JaxprEqn, inputs: list[Value]) -> Sequence[Value]:
    """Ones for the new axes, and then as many copies as needed; ``Expand`` leaves axes as they are for a size of 1."""
    before, after = aval_of(equation.invars[0]).shape, aval_of(equation.outvars[0]).shape
    axes = dict(zip(map(int, equation.params["broadcast_dimensions"]), before, strict=True))
    value = _reshaped(graph, inputs[0], [axes.get(axis, 1) for axis in range(len(after))])
    grows = [axis not in axes or axes[axis] != size for axis, size in enumerate(after)]
    if not any(grows):
        return [value]
    copies = [size if more else 1 for size, more in zip(after, grows, strict=True)]
    return [graph.node("Expand", [value, graph.shape(copies)])]


def _reduce(kind: str) -> Rule:
    def rule(graph: Graph, equation: JaxprEqn, inputs: list[Value]) -> Sequence[Value]:
        return [graph.node(kind, [inputs[0], np.array(equation.params["axes"], np.int64)], keepdims=0)]

    return rule


def _concatenate(graph: Graph, equation: JaxprEqn, inputs: list[Value]) -> Sequence[Value]:
    axis = int(equation.params["dimension"])
    sizes = [aval_of(variable).shape[axis] for variable in equation.invars]
    full = [value for value, size in zip(inputs, sizes, strict=True) if is_symbolic_dim(size) or size > 0]
    return [graph.node("Concat", full, axis=axis)]


def _slice(graph: Graph, equation: JaxprEqn, inputs: list[Value]) -> Sequence[Value]:
    params, shape = equation.params, aval_of(equation.invars[0]).shape
    steps = params["strides"] or (1,) * len(shape)
    parts = zip(range(len(shape)), params["start_indices"], params["limit_indices"], steps, shape, strict=True)
    cut = [(axis, start, end, step) for axis, start, end, step, size in parts if (start, end, step) != (0, size, 1)]
    if not cut:
        return inputs
    axes, starts, ends, steps = (np.array(each, np.int64) for each in zip(*cut, strict=True))
    return [graph.node("Slice", [inputs[0], starts, ends, axes, steps])]


def _split(graph: Graph, equation: JaxprEqn, inputs: list[Value]) -> Sequence[Value]:
    found, first = [], 0
    for size in equation.params["sizes"]:
        ends = [np.array([end], np.int64) for end in (first, first + size, equation.params["axis"])]
        found.append(graph.node("Slice", [inputs[0], *ends]))
        first += size
    return found


def _pad(graph: Graph, equation: JaxprEqn, inputs: list[Value]) -> Sequence[Value]:
    low, high, between = zip(*equation.params["padding_config"], strict=True)
    if any(between):
        raise ValueError("the model pads between elements, which ONNX cannot: export it as .stablehlo.")
    return [graph.node("Pad", [inputs[0], np.array([*low, *high], np.int64), inputs[1]])]


def _dot(graph: Graph, equation: JaxprEqn, inputs: list[Value]) -> Sequence[Value]:
    """Σ over the contracted axes; the output has the batch axes, then the others of the left, then of the right."""
    (left_sum, right_sum), (left_batch, right_batch) = equation.params["dimension_numbers"]
    letters = iter(string.ascii_lowercase)
    left = [next(letters) for _ in aval_of(equation.invars[0]).shape]
    right = [next(letters) for _ in aval_of(equation.invars[1]).shape]
    for i, j in [*zip(left_sum, right_sum, strict=True), *zip(left_batch, right_batch, strict=True)]:
        right[j] = left[i]
    batch = [left[i] for i in left_batch]
    summed = {left[i] for i in left_sum}
    free = [letter for letter in (*left, *right) if letter not in summed and letter not in batch]
    formula = f"{''.join(left)},{''.join(right)}->{''.join(batch + free)}"
    if formula == "ab,bd->ad":
        return [graph.node("MatMul", inputs)]
    return [graph.node("Einsum", inputs, equation=formula)]


def _conv(graph: Graph, equation: JaxprEqn, inputs: list[Value]) -> Sequence[Value]:
    """A convolution, or its transpose where the images are dilated, with channels first."""
    params = equation.params
    of_images, of_kernel, of_output = params["dimension_numbers"]
    images = graph.node("Transpose", [inputs[0]], perm=list(of_images))
    begins, ends = zip(*params["padding"], strict=True)
    common: dict[str, Any] = {"dilations": list(params["rhs_dilation"]), "group": params["feature_group_count"]}
    if all(size == 1 for size in params["lhs_dilation"]):
        kernel = graph.node("Transpose", [inputs[1]], perm=list(of_kernel))
        strides = list(params["window_strides"])
        out = graph.node("Conv", [images, kernel], pads=[*begins, *ends], strides=strides, **common)
    else:
        out = _transposed_conv(graph, equation, images, inputs[1], begins, ends, common)
    return [graph.node("Transpose", [out], perm=np.argsort(of_output).tolist())]


def _transposed_conv(
    graph: Graph, equation: JaxprEqn, images: str, kernel: Value, begins: Any, ends: Any, common: dict[str, Any]
) -> str:
    """The convolution of images with zeros between their pixels: ONNX flips the kernel, and counts the padding."""
    params, (out, into, *axes) = equation.params, equation.params["dimension_numbers"][1]
    sizes = [aval_of(equation.invars[1]).shape[axis] for axis in axes]
    pads = [size - 1 - pad for pad, size in zip((*begins, *ends), (*sizes, *sizes), strict=True)]
    if (
        any(size != 1 for size in (*params["window_strides"], *params["rhs_dilation"], common["group"]))
        or min(pads) < 0
    ):
        raise ValueError("the model has a transposed convolution of a kind that ONNX lacks: export it as .stablehlo.")
    backwards = [np.array([each] * len(axes), np.int64) for each in (-1, np.iinfo(np.int64).min)]
    flipped = graph.node("Slice", [kernel, *backwards, np.array(axes, np.int64), np.array([-1] * len(axes), np.int64)])
    turned = graph.node("Transpose", [flipped], perm=[into, out, *axes])
    strides = list(params["lhs_dilation"])
    return graph.node("ConvTranspose", [images, turned], pads=pads, strides=strides, **common)


def _gather(graph: Graph, equation: JaxprEqn, inputs: list[Value]) -> Sequence[Value]:
    if not takes_columns(equation):
        raise ValueError("the model looks elements up in a way that ONNX lacks: export it as .stablehlo.")
    columns = graph.node("Reshape", [inputs[1], np.array([-1], np.int64)])
    return [graph.node("Gather", [inputs[0], columns], axis=1)]


RULES: dict[str, Rule] = {
    **{
        name: _same(kind)
        for name, kind in {
            "add": "Add", "add_any": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "max": "Max", "min": "Min",
            "neg": "Neg", "abs": "Abs", "sign": "Sign", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "tanh": "Tanh",
            "logistic": "Sigmoid", "erf": "Erf", "atan": "Atan", "sin": "Sin", "cos": "Cos", "floor": "Floor",
            "pow": "Pow", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual", "eq": "Equal",
            "and": "And", "or": "Or", "not": "Not",
        }.items()
    },
    **dict.fromkeys(("stop_gradient", "copy", "copy_p", "optimization_barrier", "reduce_precision"), _nothing),
    **{name: _reduce(kind) for name, kind in {
        "reduce_sum": "ReduceSum", "reduce_max": "ReduceMax", "reduce_min": "ReduceMin"}.items()},
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshape),
    "log1p": _log1p, "rsqrt": _rsqrt, "square": _square, "integer_pow": _integer_pow, "ne": _not_equal,
    "clamp": _clamp, "select_n": _select, "convert_element_type": _cast, "transpose": _transpose,
    "broadcast_in_dim": _broadcast, "concatenate": _concatenate, "slice": _slice, "split": _split, "pad": _pad,
    "dot_general": _dot, "conv_general_dilated": _conv, "gather": _gather,
}  # fmt: skip
