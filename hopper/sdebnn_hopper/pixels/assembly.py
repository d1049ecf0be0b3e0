"""Instructions of a Hopper GPU that Pallas does not offer, and integers of a thread for addressing memory."""

# pyright: reportCallIssue=false, reportArgumentType=false
# (Mosaic has no complete types, and they differ between versions)

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax.experimental.mosaic.gpu.utils import c as constant
from jax.experimental.mosaic.gpu.utils import memref_ptr
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm

Value = Any  # a value of the program that Mosaic writes
Ref = Any  # an array in shared or global memory
REGISTERS = plgpu.Layout.WGMMA
SPLAT = plgpu.Layout.WG_SPLAT(())


def i32() -> Any:
    """The type of a thread's integers."""
    return ir.IntegerType.get_signless(32)


class Int:
    """A 32-bit integer of a thread."""

    def __init__(self, value: Any) -> None:
        self.value = constant(value, i32()) if isinstance(value, int) else value

    def _with(self, operation: Any, other: "Int | int") -> "Int":
        return Int(operation(self.value, as_int(other).value))

    def __add__(self, other: "Int | int") -> "Int":
        return self._with(arith.addi, other)

    def __sub__(self, other: "Int | int") -> "Int":
        return self._with(arith.subi, other)

    def __mul__(self, other: "Int | int") -> "Int":
        return self._with(arith.muli, other)

    def __and__(self, other: "Int | int") -> "Int":
        return self._with(arith.andi, other)

    def __xor__(self, other: "Int | int") -> "Int":
        return self._with(arith.xori, other)

    def __rshift__(self, other: int) -> "Int":
        return self._with(arith.shrsi, other)

    def __lshift__(self, other: int) -> "Int":
        return self._with(arith.shli, other)

    def __floordiv__(self, other: int) -> "Int":
        return self._with(arith.divui, other)

    def __mod__(self, other: int) -> "Int":
        return self._with(arith.remui, other)

    def below(self, other: "Int | int") -> Value:
        """Whether 0 <= self < other."""
        return arith.cmpi(arith.CmpIPredicate.ult, self.value, as_int(other).value)

    def equals(self, other: "Int | int") -> Value:
        return arith.cmpi(arith.CmpIPredicate.eq, self.value, as_int(other).value)


def as_int(number: Int | int) -> Int:
    """The same number as an ``Int``."""
    return number if isinstance(number, Int) else Int(number)


def chosen(condition: Value, yes: Int | int, no: Int | int) -> Int:
    """One of two numbers, by a condition of the thread."""
    return Int(arith.select(condition, as_int(yes).value, as_int(no).value))


def is_value(x: Any) -> bool:
    """Whether x is a value of the program, rather than a JAX array."""
    return isinstance(x, ir.Value)


def anded(x: Value, y: Value) -> Value:
    """Whether both hold."""
    return arith.andi(x, y)


def selected(condition: Value, yes: Value, no: Value) -> Value:
    """One of two registers, by a condition."""
    return arith.select(condition, yes, no)


def assembly(ptx: str, made: str = "", given: Sequence[Any] = (), changed: Sequence[Value] = ()) -> list[Value]:
    """The results of inline assembly: first the float32 registers that it changes, then new ones (f or r).

    Its operands are numbered in this order, followed by the given ones.
    """
    kinds = "f" * len(changed) + made
    types = [ir.F32Type.get() if kind == "f" else i32() for kind in kinds]
    operands = [each.value if isinstance(each, Int) else each for each in given]
    letters = ["l" if each.type == ir.IntegerType.get_signless(64) else _letter(each) for each in operands]
    constraints = [*[f"={kind}" for kind in kinds], *map(str, range(len(changed))), *letters, "~{memory}"]
    kind = ir.Type.parse("!llvm.void") if not types else llvm.StructType.get_literal(types)
    kind = types[0] if len(types) == 1 else kind
    out = llvm.inline_asm(kind, [*changed, *operands], ptx, ",".join(constraints), asm_dialect=0, has_side_effects=True)
    if len(types) < 2:
        return [out] if types else []
    return [llvm.extractvalue(each, out, [i]) for i, each in enumerate(types)]


def _letter(value: Value) -> str:
    return "f" if value.type == ir.F32Type.get() else "r"


def address(ref: Value) -> Int:
    """The address of an array in shared memory."""
    long = ir.IntegerType.get_signless(64)
    return Int(arith.trunci(i32(), llvm.ptrtoint(long, memref_ptr(ref))))


def pointer(ref: Value, offset: Int, scale: int = 1) -> Value:
    """The address in global memory that is ``offset`` times ``scale`` bytes after the start of an array."""
    long = ir.IntegerType.get_signless(64)
    start = llvm.ptrtoint(long, memref_ptr(ref))
    return arith.addi(start, arith.muli(arith.extui(long, offset.value), constant(scale, long)))


def thread() -> Int:
    """The index of the thread in its block, by an instruction that compilers cannot analyse.

    So addresses that depend on it are computed where they are used. Otherwise the compiler would keep them in registers
    during the whole loop over steps, and there are not enough registers.
    """
    return Int(assembly("mov.u32 $0, %tid.x;", "r")[0])


def uniform(number: Int) -> Int:
    """The same number. This tells the compiler that it is equal in all threads of a warp."""
    return Int(assembly("shfl.sync.idx.b32 $0, $1, 0, 31, 0xffffffff;", "r", [number])[0])


def opaque(number: Int) -> Int:
    """The same number, by an instruction that compilers cannot analyse: see ``thread``."""
    return Int(assembly("mov.b32 $0, $1;", "r", [number])[0])


def load_matrices(at: Int, column: int = 0, transposed: bool = False) -> list[Value]:
    """Four 8 x 8 matrices. Each thread passes the address of a row, which is combined with ``column`` by xor."""
    kind = ".trans" if transposed else ""
    return assembly(
        f"{{ .reg .b32 a; xor.b32 a, $4, {column}; "
        f"ldmatrix.sync.aligned.m8n8.x4{kind}.shared.b16 {{$0,$1,$2,$3}}, [a]; }}",
        "rrrr",
        [at],
    )


def wgmma(sums: list[Value], n: int, a: Sequence[Value], low: Int, offset: int, *, transposed: bool) -> list[Value]:
    """The sums (or zero, if empty) plus 64 x 16 numbers in registers times 16 x n numbers in shared memory.

    ``low`` is an address, whose rows of 128 bytes are the n columns or, if transposed, the 16 rows. The offset is added
    within the assembly, because a compiler that sees it moves every address out of the loop over steps.
    """
    count = n // 2
    old = sums or [constant(0.0, ir.F32Type.get())] * count
    at = 2 * count
    high = (1024 >> 4) + (1 << 30)
    ptx = (
        "{ .reg .pred p; .reg .b32 lo; .reg .b64 d; "
        f"add.s32 lo, ${at + 4}, {offset}; shr.u32 lo, lo, 4; mov.b64 d, {{lo, {high}}}; "
        f"setp.ne.b32 p, {int(bool(sums))}, 0;\n"
        f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {{{','.join(f'${i}' for i in range(count))}}}, "
        f"{{${at},${at + 1},${at + 2},${at + 3}}}, d, p, 1, 1, {int(transposed)}; }}"
    )
    return assembly(ptx, given=[*a, low], changed=old)


def fence() -> None:
    """Order the following wgmma after previous writes to its registers."""
    assembly("wgmma.fence.sync.aligned;")


def commit() -> None:
    """Make the products since the last commit one batch."""
    assembly("wgmma.commit_group.sync.aligned;")


def wait(flying: int, sums: Sequence[Value] = ()) -> list[Value]:
    """Wait until at most ``flying`` batches are running; returns the sums, which are then complete."""
    return assembly(f"wgmma.wait_group.sync.aligned {flying};", changed=sums)


def as_registers(array: Any) -> list[Value]:
    """The inverse of ``blocks.as_array``."""
    return [llvm.extractelement(pair, constant(i, i32())) for pair in array.registers.flat for i in range(2)]


def inline(
    function: Callable[[Any, Any, Any], Any],
    refs: Sequence[Ref],
    numbers: Sequence[Any] = (),
    arrays: Sequence[Any] = (),
    made: Sequence[tuple[int, int]] = (),
) -> Any:
    """Run ``function(refs, numbers, arrays)`` as an inline part of the kernel. It returns arrays of shapes ``made``."""
    types = (*[plgpu.RefType()] * len(refs), *[SPLAT] * len(numbers), *[REGISTERS] * len(arrays))
    out = tuple(plgpu.ShapeDtypeStruct(shape, jnp.float32, layout=REGISTERS) for shape in made)

    @plgpu.inline_mgpu(arg_types=types, return_type=out if out else None)
    def part(_: Any, *given: Any) -> Any:
        a, b = len(refs), len(refs) + len(numbers)
        numbers_ = [opaque(Int(each.registers.item())) for each in given[a:b]]
        found = function(given[:a], numbers_, given[b:])
        return tuple(found) if out else None

    return part(*refs, *numbers, *arrays)
