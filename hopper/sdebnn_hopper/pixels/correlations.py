"""The gradients of a step's matrices, for one image:   dL/dW[tap] = sum over p of  x[neighbour of p]' d[p].

The rows of a product are channels, and the sum is over positions: x is transposed when it is loaded to registers, from
addresses that each thread chooses, and d is read from shared memory. A warpgroup computes tiles of 64 x 64 numbers, and
each tile is a unit of the result. Its columns are written in the order in which threads hold them: see
``plain.in_column_order``.
"""

from collections.abc import Callable, Sequence
from typing import Any

from jax.experimental.mosaic.gpu.utils import c as constant
from jax.experimental.mosaic.gpu.utils import fori, when
from jaxlib.mlir import ir

from sdebnn_hopper.pixels import plain
from sdebnn_hopper.pixels.assembly import (
    Int,
    Ref,
    Value,
    address,
    assembly,
    commit,
    fence,
    inline,
    load_matrices,
    pointer,
    wait,
    wgmma,
)
from sdebnn_hopper.pixels.chip import ONE_HOT_OFFSET, Chip, Lanes, PixelPlan
from sdebnn_hopper.pixels.geometry import (
    both,
    choose,
    class_of,
    pixel,
    row_of,
    small_pixel,
    swizzled,
    up_class_of,
)
from sdebnn_hopper.pixels.shape import GROUPS, ROW_BYTES, TILE, BlockShape

UNIT_BYTES = TILE * ROW_BYTES
POSITION_GROUPS_A_BATCH = 4  # groups of 16 positions whose products start together


def units(shape: BlockShape) -> list[int]:
    """The number of tiles of each layer's gradient."""
    return [shape.halves * shape.tiles_of(2), 10, 10, shape.halves * shape.tiles_of(0)]


class CorrelationLanes(Lanes):
    """The indices of a thread within 16 channels of 16 positions."""

    def __init__(self) -> None:
        super().__init__()
        self.position = (self.lane & 7) + (self.high << 3)
        self.chunk = (self.warp << 1) + ((self.lane >> 3) & 1)


def _sum(shape: BlockShape, count: int, at: Callable[[Int], Int], d: Int, start: Int | int = 0) -> list[Value]:
    """The sum over 16 ``count`` positions from 16 ``start`` on. ``at`` returns the address of x for a group of 16."""
    zeros = [constant(0.0, ir.F32Type.get())] * 32
    many = min(count, 4 if shape.both_fit else 8)  # groups in a round, limited by registers

    @fori(Int(count // many).value, zeros)
    def looped(turn: Value, sums: list[Value]) -> list[Value]:
        first = Int(turn) * many + start
        low = d + (first << 11)
        for begin in range(0, many, POSITION_GROUPS_A_BATCH):
            ks = range(begin, min(begin + POSITION_GROUPS_A_BATCH, many))
            rows = [load_matrices(at(first + k), transposed=True) for k in ks]
            fence()
            for k, a in zip(ks, rows, strict=True):
                sums = wgmma(sums, 64, a, low, 16 * ROW_BYTES * k, transposed=True)
            commit()
            wait(1)
        return wait(0, sums)

    return list(looped.results)


def _write(lanes: Lanes, memory: Value, unit: Int, sums: Sequence[Value]) -> None:
    """Write a unit as bfloat16."""
    base = pointer(memory, unit, UNIT_BYTES)
    offset = (((lanes.warp << 4) + (lanes.lane >> 2)) << 7) + ((lanes.lane & 3) << 5)
    for half in range(2):  # a row, and the row eight further
        for side in range(2):
            numbers = [sums[4 * j + 2 * half + b] for j in range(4 * side, 4 * side + 4) for b in range(2)]
            ptx = "{ .reg .b64 a; .reg .b32 r<4>; cvt.u64.u32 a, $8; add.s64 a, a, $9; "
            ptx += "".join(f"cvt.rn.bf16x2.f32 r{i}, ${2 * i + 1}, ${2 * i}; " for i in range(4))
            ptx += f"st.global.v4.b32 [a+{8 * ROW_BYTES * half + 16 * side}], {{r0,r1,r2,r3}}; }}"
            assembly(ptx, given=[*numbers, offset, base])


def put_inner(plan: PixelPlan, chip: Chip, out: Ref, unit: Any, x: Ref, d: Ref, *, up: bool) -> None:
    """Write the gradient of the second or (``up``) the third layer.

    Three groups compute three taps each, and the last group computes the map. x has all pixels (a_1, or d_3), and d is
    a small image (d_2, or a_2). For the third layer, the matrices are transposed, and the map belongs to x.
    """
    shape = plan.shape
    if plan.interpret:
        plain.put_inner(shape, out, unit, x, d, up)
        return

    def part(refs: Sequence[Value], numbers: Sequence[Int], _: Any) -> None:
        memory, table = refs[0], address(refs[1])
        wide, small = address(refs[2]), address(refs[3])
        lanes = CorrelationLanes()

        with when(lanes.group.below(3)):

            @fori(Int(3).value, [])
            def _(turn: Value, none: list[Any]) -> list[Any]:
                i, j = lanes.group, Int(turn)

                def at(k: Int) -> Int:
                    y, x = small_pixel(shape, (k << 4) + lanes.position)
                    row, inside = row_of(shape, (y << 1) + i, (x << 1) + j)
                    return choose(inside, swizzled(wide, row, lanes.chunk), table)

                sums = _sum(shape, shape.small_pixels // 16, at, small)
                _write(lanes, memory, numbers[0] + i * 3 + j, sums)
                return none

        with when(lanes.group.equals(3)):

            def at(k: Int) -> Int:
                row = (k << 4) + lanes.position
                kind = up_class_of(*pixel(shape, row)) if up else class_of(shape.small, *small_pixel(shape, row))
                return choose(lanes.chunk.below(2), table + ONE_HOT_OFFSET + (kind << 5) + (lanes.chunk << 4), table)

            sums = _sum(shape, (shape.pixels if up else shape.small_pixels) // 16, at, wide if up else small)
            _write(lanes, memory, numbers[0] + 9, sums)

    inline(part, [out, chip.table, x, d], [unit])


def put_outer(plan: PixelPlan, chip: Chip, out: Ref, unit: Any, x: Ref, d: Ref, *, last: bool) -> None:
    """Write the gradient of the first or the last layer: tiles of 64 rows (8 chunks), shared among the groups.

    x is a state (h, or d_4), and d has all pixels (d_1, or a_3). A chunk is 8 channels of x at one tap. After all of
    these come chunks of 8 classes, whose sums are the gradient of the map (only for the first layer).
    """
    shape = plan.shape
    tiles, halves = shape.tiles_of(0 if last else 2), shape.halves
    turns = max(1, tiles * halves // GROUPS)
    if plan.interpret:
        plain.put_outer(shape, out, unit, x, d, last)
        return

    def part(refs: Sequence[Value], numbers: Sequence[Int], _: Any) -> None:
        memory, table, state, wide = refs[0], *map(address, refs[1:])
        lanes = CorrelationLanes()

        def one(unit: Int) -> None:
            tile, half = (unit // halves, unit % halves) if halves > 1 else (unit, Int(0))
            chunk = (tile << 3) + lanes.chunk
            tap, plane = chunk // shape.chunks, chunk % shape.chunks
            i, j = tap // 3 - 1, tap % 3 - 1
            start = state + ((plane * shape.pixels) << 4)
            map_at = table + ONE_HOT_OFFSET + ((chunk - 9 * shape.chunks) << 4)

            def at(k: Int) -> Int:
                y, x = pixel(shape, (k << 4) + lanes.position)
                row, inside = row_of(shape, *((y - i, x - j) if last else (y + i, x + j)))
                found = choose(both(inside, tap.below(9)), start + (row << 4), table)
                if last:
                    return found
                of_map = (chunk - 9 * shape.chunks).below(2)
                return choose(of_map, map_at + (class_of(shape.side, y, x) << 5), found)

            many = shape.pixels // 16 // halves
            sums = _sum(shape, many, at, wide, half * many)
            _write(lanes, memory, numbers[0] + unit, sums)

        if turns == 1:
            one(lanes.group)
        else:

            @fori(Int(turns).value, [])
            def _(turn: Value, none: list[Any]) -> list[Any]:
                one(lanes.group * turns + Int(turn))
                return none

    inline(part, [out, chip.table, x, d], [unit])
