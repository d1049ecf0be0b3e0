"""Frozen draws: what depends on the key alone is computed once, and only what depends on x is left of a program.

The program of one draw, f(given, key, x), is traced and flattened into instructions. The level of a value says what it
depends on: the given arrays, the key, or x. Values of the first two levels that instructions of the third use are the
constants of the frozen program, which therefore draws no random numbers:

    f(given, key_i, x) = rest(shared, each_i, x)        shared: from the given arrays,   each_i: from key i

The batch size may be symbolic. Loops over depth that carry x are unrolled.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.export import is_symbolic_dim
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive
from jaxtyping import Array, Key, PyTree

GIVEN, KEY, X = range(3)  # levels
INLINED = {
    "jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat2": "jaxpr",
    "checkpoint": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
}  # fmt: skip
MAX_BYTES = 2**30  # of constants: a program takes about eight times as much memory when it is compiled


class Instruction(NamedTuple):
    """A primitive applied to the values in some slots."""

    primitive: Primitive
    params: dict[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def run(self, values: dict[int, Any]) -> None:
        """Compute the outputs, and put them into their slots."""
        found = self.primitive.bind(*(values[slot] for slot in self.inputs), **self.params)
        found = found if self.primitive.multiple_results else [found]
        values.update(zip(self.outputs, found, strict=True))


class FrozenDraws(NamedTuple):
    """The outputs of several draws as a function of x, without a key."""

    instructions: tuple[Instruction, ...]
    x: int
    output: int
    shared: dict[int, np.ndarray]
    each: dict[int, np.ndarray]  # the first axis is the draw
    draws: int

    def __call__(self, x: Array) -> Array:
        """The outputs of every draw, "draw example output"."""

        def one(_: None, each: dict[int, Any]) -> tuple[None, Array]:
            values: dict[int, Any] = {self.x: x, **self.shared, **each}
            for instruction in self.instructions:
                instruction.run(values)
            return None, values[self.output]

        return lax.scan(one, None, self.each, length=self.draws)[1]


def frozen_draws(
    function: Callable[[PyTree, Array, Array], Array], given: PyTree, keys: Key[Array, " draw"], x: jax.ShapeDtypeStruct
) -> FrozenDraws:
    """``function(given, key, x)`` for fixed arrays and keys. ``x`` is the shape of a batch, perhaps symbolic."""
    leaves, structure = jax.tree.flatten(given)
    traced = jax.make_jaxpr(lambda leaves, key, x: function(jax.tree.unflatten(structure, leaves), key, x))(
        leaves, keys[0], x
    )
    flat = _Flattened()
    slots = [*(flat.slot(GIVEN) for _ in leaves), flat.slot(KEY), flat.slot(X)]
    (output,) = flat.add(traced.jaxpr, traced.consts, slots)
    rest, used = _needed([each for each in flat.instructions if flat.level[each.outputs[0]] == X], {output})
    used -= {slots[-1], *itertools.chain(*(each.outputs for each in rest))}
    shared, each = (sorted(slot for slot in used if flat.level[slot] == level) for level in (GIVEN, KEY))
    _check_size(flat, shared, each, keys.size)
    known = dict(zip(slots[:-2], leaves, strict=True))
    of_all = flat.computed(shared, known, slots[-2], keys[:1])
    of_each = flat.computed(each, known, slots[-2], keys)
    # Such as the weights at depth 0, if they are a point: the program cannot tell that they are alike.
    alike = {slot: array for slot, array in of_each.items() if (array == array[:1]).all()}
    shared_arrays = {slot: array[0] for slot, array in (of_all | alike).items()}
    each_arrays = {slot: array for slot, array in of_each.items() if slot not in alike}
    if any((array < 0).any() for slot, array in (shared_arrays | each_arrays).items() if slot in flat.places):
        raise ValueError("the model looks up elements outside its arrays, and cannot be exported: correct the indices.")
    return FrozenDraws(tuple(rest), slots[-1], output, shared_arrays, each_arrays, keys.size)


class _Flattened:
    """Instructions without calls and loops that depend on x, and the level and the type of every slot."""

    def __init__(self):
        self.instructions: list[Instruction] = []
        self.level: dict[int, int] = {}
        self.constants: dict[int, Any] = {}
        self.size: dict[int, int] = {}
        self.places: list[int] = []  # indices of elements, which are negative if they are not in the array

    def slot(self, level: int, aval: Any = None) -> int:
        """A new slot."""
        number = len(self.level)
        self.level[number] = level
        if aval is not None and level < X:
            self.size[number] = aval.size * getattr(aval.dtype, "itemsize", 0)
        return number

    def constant(self, value: Any) -> int:
        """A slot with a value."""
        number = self.slot(GIVEN)
        self.constants[number] = value
        self.size[number] = np.size(value) * getattr(getattr(value, "dtype", None), "itemsize", 8)
        return number

    def add(self, jaxpr: Jaxpr, consts: Sequence[Any], inputs: Sequence[int]) -> list[int]:
        """Append the instructions of a program, and return the slots of its outputs."""
        slots: dict[Any, int] = dict(zip(jaxpr.constvars, map(self.constant, consts), strict=True))
        slots.update(zip(jaxpr.invars, inputs, strict=True))

        def of(atom: Any) -> int:
            return self.constant(atom.val) if isinstance(atom, Literal) else slots[atom]

        for equation in jaxpr.eqns:
            outputs = self._equation(equation, [of(atom) for atom in equation.invars])
            slots.update(zip(equation.outvars, outputs, strict=True))
        return [of(atom) for atom in jaxpr.outvars]

    def _equation(self, equation: JaxprEqn, inputs: list[int]) -> list[int]:
        name, params = equation.primitive.name, equation.params
        if name == "platform_index":  # the way that every platform can go
            return [self.constant(np.int32(next(i for i, each in enumerate(params["platforms"]) if each is None)))]
        if name == "optimization_barrier":
            return inputs
        level = max([self.level[slot] for slot in inputs], default=GIVEN)
        if _is_symbolic(equation):
            level = X
        if name in INLINED:
            return self._inlined(params[INLINED[name]], inputs)
        if name == "cond" and inputs[0] in self.constants:
            return self._inlined(params["branches"][int(self.constants[inputs[0]])], inputs[1:])
        if level == X:
            if name == "scan":
                return self._unrolled(equation, inputs)
            if name in ("while", "cond"):
                raise ValueError(
                    "the model chooses its steps by the inputs, as the solver Adaptive does, and cannot be exported: "
                    "train it with FixedGrid."
                )
            if name == "gather" and self.level[inputs[1]] < X and not takes_columns(equation):
                return [self._gathered(equation, inputs)]
            if params.get("precision", 0) is None:  # GPUs would round float32 to fewer bits
                params = {**params, "precision": (lax.Precision.HIGHEST, lax.Precision.HIGHEST)}
        outputs = [self.slot(level, aval_of(variable)) for variable in equation.outvars]
        self.instructions.append(Instruction(equation.primitive, params, tuple(inputs), tuple(outputs)))
        return outputs

    def _gathered(self, equation: JaxprEqn, inputs: list[int]) -> int:
        """Elements of each example at places that do not depend on x, as places in the flattened example."""
        before, after = (aval_of(each).shape for each in (equation.invars[0], equation.outvars[0]))
        size = math.prod(before[1:])
        places = jax.ShapeDtypeStruct(aval_of(equation.invars[1]).shape, aval_of(equation.invars[1]).dtype)
        whole, dtype = jax.ShapeDtypeStruct(before, aval_of(equation.invars[0]).dtype), np.int32
        one = tuple(1 if is_symbolic_dim(each) else each for each in equation.params["slice_sizes"])

        def flat(places: Array) -> Array:
            numbers = lax.iota(dtype, size).reshape(1, *before[1:])
            params = {**equation.params, "slice_sizes": one, "fill_value": None}
            return equation.primitive.bind(numbers, places, **params).reshape(-1, 1)

        def taken(x: Array, places: Array) -> Array:
            axes = lax.GatherDimensionNumbers((0,), (1,), (1,))
            rows = x.reshape(x.shape[0], size)
            return lax.gather(rows, places, axes, (x.shape[0], 1), mode="promise_in_bounds").reshape(after)

        places_of = jax.make_jaxpr(flat)(places)
        if not is_symbolic_dim(before[0]) or math.prod(after[1:]) != places_of.out_avals[0].shape[0]:
            raise ValueError("the model looks up examples by their number, and cannot be exported: remove that layer.")
        (found,) = self.add(places_of.jaxpr, places_of.consts, inputs[1:])
        self.places.append(found)
        program = jax.make_jaxpr(taken)(whole, places_of.out_avals[0])
        return self.add(program.jaxpr, program.consts, [inputs[0], found])[0]

    def _inlined(self, program: Jaxpr | ClosedJaxpr, inputs: Sequence[int]) -> list[int]:
        if isinstance(program, ClosedJaxpr):
            return self.add(program.jaxpr, program.consts, inputs)
        return self.add(program, (), inputs)

    def _unrolled(self, equation: JaxprEqn, inputs: list[int]) -> list[int]:
        """The instructions of every step of a loop."""
        params, (consts, carry) = equation.params, shared_and_carried(equation)
        fixed, state, stacked = inputs[:consts], inputs[consts : consts + carry], inputs[consts + carry :]
        shapes = [aval_of(variable) for variable in params["jaxpr"].jaxpr.invars[consts + carry :]]
        order = range(params["length"])
        rows: list[list[int]] = []
        for i in reversed(order) if params["reverse"] else order:
            now = [self._row(slot, i, params["length"], shape) for slot, shape in zip(stacked, shapes, strict=True)]
            outputs = self._inlined(params["jaxpr"], [*fixed, *state, *now])
            state = outputs[:carry]
            rows.append(outputs[carry:])
        rows = rows[::-1] if params["reverse"] else rows
        like = [aval_of(variable) for variable in params["jaxpr"].jaxpr.outvars[carry:]]
        return [
            *state,
            *(self._stacked(column, shape) for column, shape in zip(zip(*rows, strict=True), like, strict=True)),
        ]

    def _stacked(self, slots: Sequence[int], shape: Any) -> int:
        each = [jax.ShapeDtypeStruct(shape.shape, shape.dtype)] * len(slots)
        program = jax.make_jaxpr(lambda *arrays: lax.concatenate([array[None] for array in arrays], 0))(*each)
        return self.add(program.jaxpr, program.consts, slots)[0]

    def _row(self, slot: int, i: int, length: int, shape: Any) -> int:
        whole = jax.ShapeDtypeStruct((length, *shape.shape), shape.dtype)
        program = jax.make_jaxpr(lambda array: lax.index_in_dim(array, i, keepdims=False))(whole)
        return self.add(program.jaxpr, program.consts, [slot])[0]

    def computed(
        self, wanted: list[int], given: dict[int, Any], key: int, keys: Key[Array, " draw"]
    ) -> dict[int, np.ndarray]:
        """The values of some slots for each key, "key ..."."""
        needed, _ = _needed([each for each in self.instructions if self.level[each.outputs[0]] < X], set(wanted))

        @jax.jit
        def values_of(given: dict[int, Any], one: Array) -> list[Array]:
            values: dict[int, Any] = {**self.constants, **given, key: one}
            for instruction in needed:
                instruction.run(values)
            return [values[slot] for slot in wanted]

        rows = [[np.asarray(value) for value in values_of(given, one)] for one in keys] if wanted else []
        return {slot: np.stack(each) for slot, each in zip(wanted, zip(*rows, strict=True), strict=True)}


def _needed(instructions: list[Instruction], wanted: set[int]) -> tuple[list[Instruction], set[int]]:
    """The instructions on which some slots depend, and all slots that these use."""
    found: list[Instruction] = []
    used = set(wanted)
    for instruction in reversed(instructions):
        if used.intersection(instruction.outputs):
            found.append(instruction)
            used.update(instruction.inputs)
    return found[::-1], used


def aval_of(atom: Any) -> Any:
    """The shape and the type of a variable or a constant of a traced program."""
    return atom.aval


def shared_and_carried(loop: JaxprEqn) -> tuple[int, int]:
    """How many inputs all steps of a loop share, and how many values each step hands to the next.

    The versions of JAX record these numbers differently. What is stacked over the steps has one more axis outside.
    """
    body = loop.params["jaxpr"].jaxpr

    def stacked(outside: Sequence[Any], inside: Sequence[Any]) -> int:
        return sum(aval_of(a).ndim > aval_of(b).ndim for a, b in zip(outside, inside, strict=True))

    carried = len(body.outvars) - stacked(loop.outvars, body.outvars)
    return len(body.invars) - stacked(loop.invars, body.invars) - carried, carried


def takes_columns(equation: JaxprEqn) -> bool:
    """Whether an equation takes columns of a matrix, by a gather with indices of shape (columns, 1)."""
    numbers, shape = equation.params["dimension_numbers"], aval_of(equation.invars[1]).shape
    return len(shape) == 2 and shape[1] == 1 and numbers == lax.GatherDimensionNumbers((0,), (1,), (1,))


def _is_symbolic(equation: JaxprEqn) -> bool:
    """Whether an equation uses the size of the batch."""
    sizes = [size for variable in equation.outvars for size in getattr(aval_of(variable), "shape", ())]
    return any(map(is_symbolic_dim, [*sizes, *jax.tree.leaves(equation.params, is_leaf=is_symbolic_dim)]))


def _check_size(flat: _Flattened, shared: list[int], each: list[int], draws: int) -> None:
    of_all, of_each = (sum(flat.size.get(slot, 0) for slot in slots) for slots in (shared, each))
    if of_all + draws * of_each > MAX_BYTES:
        most = max(1, (MAX_BYTES - of_all) // max(1, of_each))
        raise ValueError(
            f"draws={draws} of this net are {(of_all + draws * of_each) / 1e9:.1f} GB of weights, and an exported file "
            f"holds at most {MAX_BYTES / 1e9:.1f} GB: pass at most --draws {most}."
        )
