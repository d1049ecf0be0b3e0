"""Matrix products of a warpgroup (four warps of a Hopper GPU) that Pallas does not offer.

    product             sum_k a_k W[row_k :]      by wgmma: a in registers, W in shared memory
    put_correlations    sum_p a[p]' b[p]          by mma.sync: both in shared memory, p the positions of an image

They are inline parts of a kernel, written with Mosaic's own Python objects. Pallas' interpreter does not support inline
parts: with ``interpret``, ``jax.numpy`` computes the same.
"""

# pyright: reportCallIssue=false, reportArgumentType=false
# (Mosaic has no complete types, and they differ between versions)

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mosaic
from jax.experimental.mosaic.gpu.mma import MMALayouts
from jax.experimental.mosaic.gpu.utils import c as constant
from jax.experimental.mosaic.gpu.utils import fori, memref_ptr
from jax.experimental.mosaic.gpu.wgmma import _as_i32_reg, wgmma_fence  # pyright: ignore[reportPrivateUsage]
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm

from sdebnn_hopper.blocks import as_array
from sdebnn_hopper.patches.packing import POSITIONS

ROWS = 64  # rows of the output of a wgmma
# Layout of matrices of 32 columns in shared memory.
TILES = (plgpu.TilingTransform((8, 16)), plgpu.SwizzleTransform(32))
TILE_BYTES, BAND_BYTES = 256, 512  # a band is eight rows of tiles
MAX_PRODUCTS_IN_FLIGHT = 2  # while the rows of the next product are loaded
POSITION_GROUPS_A_ROUND = 2  # groups of 16 positions in a round of a correlation's loop; more only compile longer
REGISTERS = plgpu.Layout.WGMMA

Ref = Any  # an array in shared or global memory
Value = Any  # a value of the program that Mosaic writes


class Slice(NamedTuple):
    """A part of a buffer that begins at a row and a column, and has some columns."""

    buffer: Ref
    row: int
    column: int
    columns: int


def product(made: int, matrix: Ref, terms: Sequence[tuple[Any, int]], *, transposed: bool, interpret: bool) -> Any:
    """The sum over terms (a, row) of a @ matrix[row : row + k]; transposed, of a @ matrix[row : row + made, : k].T.

    Each a has 64 rows and k columns, 16 or 32. It is an array of bfloat16 in registers, or a slice of a buffer. The
    result is float32.
    """
    if interpret:
        return _plain_product(made, matrix, terms, transposed)
    operands, which = _distinct([a.buffer if isinstance(a, Slice) else a for a, _ in terms])
    of_buffers = {i for i, (a, _) in zip(which, terms, strict=True) if isinstance(a, Slice)}

    @plgpu.inline_mgpu(
        arg_types=(
            plgpu.RefType(TILES),
            *[plgpu.RefType() if i in of_buffers else REGISTERS for i in range(len(operands))],
        ),
        return_type=plgpu.ShapeDtypeStruct((ROWS, made), jnp.float32, layout=REGISTERS),
    )
    def inline(_: Any, matrix: Value, *operands: Any) -> Any:
        descriptor = _descriptor(matrix, transposed)
        sums: list[Value] = []
        for done, (i, (a, row)) in enumerate(zip(which, terms, strict=True), start=1):
            rows = wgmma_fence(_rows(operands[i], a) if isinstance(a, Slice) else operands[i])
            for k in range(rows.shape[1] // 16):
                offset = row // 8 * BAND_BYTES + k * (TILE_BYTES if transposed else 2 * BAND_BYTES)
                sums = _wgmma(made, sums, rows[:, 16 * k : 16 * k + 16], descriptor, offset, transposed)
            _assembly([], "wgmma.commit_group.sync.aligned;")
            if isinstance(a, Slice) and done < len(terms):
                _assembly([], f"wgmma.wait_group.sync.aligned {MAX_PRODUCTS_IN_FLIGHT};")
        return as_array(_assembly(sums, "wgmma.wait_group.sync.aligned 0;"), made)

    return inline(matrix, *operands)


def put_correlations(out: Ref, tiles: Sequence[tuple[Slice, Slice, int]], *, warps: int, interpret: bool) -> None:
    """For each tile (a, b, row), write the sum over an image's positions of a[p]' b[p], as bfloat16, to out[row :].

    ``warps`` of the four warps share the rows of the result, 16 each; the others compute other columns.
    """
    if interpret:
        return _put_plain_correlations(out, tiles)
    both = [cut for a, b, _ in tiles for cut in (a, b)]
    buffers, which = _distinct([cut.buffer for cut in both])
    cuts = [cut._replace(buffer=i) for i, cut in zip(which, both, strict=True)]
    pairs = list(zip(cuts[::2], cuts[1::2], strict=True))

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),) * (len(buffers) + 1))
    def inline(_: Any, *refs: Value) -> None:
        *buffers, out = refs
        layouts = MMALayouts(ir.BF16Type.get(), m_warps=warps)
        zero = constant(0.0, ir.F32Type.get())
        zeros = [mosaic.FragmentedArray.splat(zero, (a.columns, b.columns), layout=layouts.acc) for a, b in pairs]

        @fori(_index(POSITIONS // 16 // POSITION_GROUPS_A_ROUND), zeros)
        def looped(turn: Value, sums: list[Any]) -> list[Any]:
            for k in range(POSITION_GROUPS_A_ROUND):
                at = arith.addi(arith.muli(turn, _index(16 * POSITION_GROUPS_A_ROUND)), _index(16 * k))
                left = {a: _fragment(buffers, a, at, layouts.lhs, transposed=True) for a in dict.fromkeys(cuts[::2])}
                right = {b: _fragment(buffers, b, at, layouts.rhs, transposed=False) for b in dict.fromkeys(cuts[1::2])}
                sums = [mosaic.mma(each, left[a], right[b]) for each, (a, b) in zip(sums, pairs, strict=True)]
            return sums

        for total, (a, b), (_, _, row) in zip(looped.results, pairs, tiles, strict=True):
            place = mosaic.memref_slice(out, (slice(row, row + a.columns), slice(0, b.columns)))
            total.astype(ir.BF16Type.get()).store_untiled(place, optimized=False)

    return inline(*buffers, out)


def opaque(number: Any, *, interpret: bool) -> Any:
    """The same integer, by an instruction that compilers cannot analyse.

    So addresses that depend on it are computed where they are used. Otherwise the compiler would keep them in registers
    during the whole loop over steps, and there are not enough registers.
    """
    if interpret:
        return number
    splat = plgpu.Layout.WG_SPLAT(())

    @plgpu.inline_mgpu(arg_types=(splat,), return_type=plgpu.ShapeDtypeStruct((), jnp.int32, layout=splat))
    def inline(_: Any, number: Any) -> Any:
        integer = ir.IntegerType.get_signless(32)
        same = llvm.inline_asm(integer, [number.registers.item()], "mov.b32 $0, $1;", "=r,r", has_side_effects=True)
        return mosaic.FragmentedArray.splat(same, (), is_signed=number.is_signed)

    return inline(number)


def _distinct(operands: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """The distinct operands, and the index of each operand among them."""
    found = {id(each): each for each in operands}
    places = {name: i for i, name in enumerate(found)}
    return list(found.values()), [places[id(each)] for each in operands]


def _index(number: int) -> Value:
    return constant(number, ir.IndexType.get())


def _rows(buffer: Value, cut: Slice) -> Any:
    """64 rows of a buffer, in the register layout of wgmma."""
    place = (slice(cut.row, cut.row + ROWS), slice(cut.column, cut.column + cut.columns))
    piece = mosaic.memref_slice(buffer, place)
    return mosaic.FragmentedArray.load_untiled(piece, layout=mosaic.WGMMA_LAYOUT, optimized=False)


def _fragment(buffers: Sequence[Value], cut: Slice, at: Value, layout: Any, *, transposed: bool) -> Any:
    """16 rows of a slice, from ``at`` on; if transposed, with positions as columns."""
    rows = mosaic.ds(arith.addi(at, _index(cut.row)), 16)
    piece = mosaic.memref_slice(buffers[cut.buffer], (rows, slice(cut.column, cut.column + cut.columns)))
    piece = mosaic.memref_transpose(piece, (1, 0)) if transposed else piece
    return mosaic.FragmentedArray.load_untiled(piece, layout=layout, optimized=False)


def _descriptor(matrix: Value, transposed: bool) -> tuple[Value, Value]:
    """The descriptor of a matrix for wgmma: address and stride of tiles, then stride of bands and 32-byte swizzle."""
    integer, address = ir.IntegerType.get_signless(32), ir.IntegerType.get_signless(64)
    start = arith.shrui(arith.trunci(integer, llvm.ptrtoint(address, memref_ptr(matrix))), constant(4, integer))
    low = start if transposed else arith.ori(start, constant((TILE_BYTES >> 4) << 16, integer))
    return low, constant((BAND_BYTES >> 4) + (3 << 30) - (1 << 32), integer)  # as a signed number


def _wgmma(
    made: int, sums: list[Value], rows: Any, descriptor: tuple[Value, Value], offset: int, transposed: bool
) -> list[Value]:
    """The sums (or zero, if empty) plus 64 x 16 numbers in registers times 16 x made numbers in shared memory.

    The offset is added within the assembly, because a compiler that sees it moves every address out of the loop over
    steps.
    """
    count = made // 2
    old = sums or [constant(0.0, ir.F32Type.get())] * count
    a, low, high = 2 * count, 2 * count + 4, 2 * count + 5
    ptx = (
        "{ .reg .pred p; .reg .b32 lo; .reg .b64 d; "
        f"add.s32 lo, ${low}, {offset >> 4}; mov.b64 d, {{lo, ${high}}}; setp.ne.b32 p, {int(bool(sums))}, 0;\n"
        f"wgmma.mma_async.sync.aligned.m64n{made}k16.f32.bf16.bf16 {{{','.join(f'${i}' for i in range(count))}}}, "
        f"{{${a},${a + 1},${a + 2},${a + 3}}}, d, p, 1, 1, {int(not transposed)}; }}"
    )
    return _assembly(old, ptx, [*[_as_i32_reg(each) for each in rows.registers.flat], *descriptor])


def _assembly(changed: Sequence[Value], ptx: str, given: Sequence[Value] = ()) -> list[Value]:
    """The float32 registers that inline assembly changes. They are its first operands, and ``given`` the others."""
    count, number = len(changed), ir.F32Type.get()
    kind = llvm.StructType.get_literal([number] * count) if count else ir.Type.parse("!llvm.void")
    constraints = ",".join([*["=f"] * count, *map(str, range(count)), *["r"] * len(given)])
    out = llvm.inline_asm(kind, [*changed, *given], ptx, constraints, asm_dialect=0, has_side_effects=True)
    return [llvm.extractvalue(number, out, [i]) for i in range(count)]


def _read(cut: Slice, rows: int) -> Any:
    return cut.buffer[pl.ds(cut.row, rows), pl.ds(cut.column, cut.columns)].astype(jnp.float32)


def _plain_product(made: int, matrix: Ref, terms: Sequence[tuple[Any, int]], transposed: bool) -> Any:
    total = jnp.zeros((ROWS, made), jnp.float32)
    for a, row in terms:
        rows = _read(a, ROWS) if isinstance(a, Slice) else a.astype(jnp.float32)
        k = rows.shape[1]
        block = matrix[pl.ds(row, made)].T[:k] if transposed else matrix[pl.ds(row, k)]
        total += jnp.dot(rows, block.astype(jnp.float32), precision="highest")
    return total


def _put_plain_correlations(out: Ref, tiles: Sequence[tuple[Slice, Slice, int]]) -> None:
    for a, b, row in tiles:
        total = jnp.dot(_read(a, POSITIONS).T, _read(b, POSITIONS), precision="highest")
        out[pl.ds(row, a.columns), pl.ds(0, b.columns)] = total.astype(jnp.bfloat16)
