"""The operations of the kernels: write the output of a layer, return its sums, or write a state. See ``layer``."""

from collections.abc import Sequence
from typing import Any

from sdebnn_hopper.blocks import as_array
from sdebnn_hopper.pixels import plain
from sdebnn_hopper.pixels.assembly import (
    Int,
    Ref,
    Value,
    address,
    as_registers,
    assembly,
    inline,
    pointer,
)
from sdebnn_hopper.pixels.chip import Chip, Lanes, PixelPlan, Ring
from sdebnn_hopper.pixels.geometry import choose, line_pixel, row_of
from sdebnn_hopper.pixels.layer_run import LayerRun
from sdebnn_hopper.pixels.phases import Work
from sdebnn_hopper.pixels.shape import TILE

FENCE = "fence.proxy.async.shared::cta;"  # makes previous writes visible to wgmma


def _refs(chip: Chip, source: Ref) -> list[Ref]:
    return [source, chip.table, chip.exchange, chip.ring, chip.bars, chip.weights]


def _layer(plan: PixelPlan, number: int, refs: Sequence[Value], step: Int) -> LayerRun:
    lanes = Lanes()
    *places, ring, bars, weights = refs[:6]
    return LayerRun(plan, number, lanes, [address(ref) for ref in places], Ring(plan, lanes, ring, bars, weights, step))


def put_layer(
    plan: PixelPlan, number: int, chip: Chip, step: Any, source: Ref, out: Ref, slope_of: Ref | None = None
) -> None:
    """Write a layer's output to ``out``: its tanh or, for an adjoint, its product with the slope of tanh.

    The slope is computed from the activations in ``slope_of``.
    """
    if plan.interpret:
        plain.put_layer(plan, number, chip, step, source, out, slope_of)
        return

    def part(refs: Sequence[Value], numbers: Sequence[Int], _: Any) -> None:
        layer = _layer(plan, number, refs, numbers[0])
        to, old = address(refs[6]), None if slope_of is None else address(refs[7])
        layer.run(lambda parity, row, sums: layer.put(to, parity, row, sums, old))
        assembly(FENCE)

    more = [] if slope_of is None else [slope_of]
    inline(part, [*_refs(chip, source), out, *more], [step])


def summed(plan: PixelPlan, number: int, chip: Chip, step: Any, source: Ref) -> tuple[Any, ...]:
    """The sums of a layer, one array for each tile."""
    if plan.interpret:
        return plain.summed(plan, number, chip, step, source)
    work = Work(plan.shape, plan.phases[number])

    def part(refs: Sequence[Value], numbers: Sequence[Int], _: Any) -> list[Any]:
        found: list[Any] = []
        _layer(plan, number, refs, numbers[0]).run(lambda _, __, sums: found.append(as_array(sums, work.made)))
        return found

    return inline(part, _refs(chip, source), [step], made=[(TILE, work.made)] * work.tiles)


def put_sums(plan: PixelPlan, number: int, chip: Chip, step: Any, sums: Any, out: Ref) -> None:
    """Write the result of ``summed``, times the slope of tanh at the activations that ``out`` holds."""
    if plan.interpret:
        plain.put_sums(plan, number, sums, out)
        return

    def part(refs: Sequence[Value], numbers: Sequence[Int], arrays: Sequence[Any]) -> None:
        layer = _layer(plan, number, refs, numbers[0])
        to = address(refs[0])
        layer.put(to, 0, layer.row(0), as_registers(arrays[0]), to)
        assembly(FENCE)

    inline(part, _refs(chip, out), [step], [sums])


def put_state(plan: PixelPlan, buffer: Ref, tiles: Sequence[Any], memory: Ref | None = None, index: Any = None) -> None:
    """Write the rounded tiles of a state to shared memory and, if given, to ``memory[index]`` in global memory."""
    if plan.interpret:
        plain.put_state(plan, buffer, tiles, memory, index)
        return
    shape = plan.shape

    def part(refs: Sequence[Value], numbers: Sequence[Int], arrays: Sequence[Any]) -> None:
        lanes, base = Lanes(), address(refs[0])
        far = None if memory is None else pointer(refs[1], numbers[0], 16 * shape.chunks * shape.pixels)
        start = (lanes.warp << 4) + (lanes.lane >> 2)
        for i, tile in enumerate(arrays):
            row = start if not shape.shared else start + (lanes.group * shape.tiles + i) * TILE
            if shape.by_lines:
                y, x = line_pixel(lanes.group, lanes.warp, lanes.lane >> 2)
                row, _ = row_of(shape, y + i, x)
            registers = as_registers(tile)
            for k in range(shape.made // 8):
                chunk = Int(k) if shape.shared else lanes.group * (shape.made // 8) + k
                offset = ((chunk * shape.pixels + row) << 4) + ((lanes.lane & 3) << 2)
                keep = choose(chunk.below(shape.chunks), Int(1), 0)
                _put_8_columns(registers[4 * k : 4 * k + 4], base, offset, keep, far)

    refs = [buffer] if memory is None else [buffer, memory]
    inline(part, refs, [] if memory is None else [index], tiles)


def _put_8_columns(sums: Sequence[Value], base: Int, offset: Int, keep: Int, far: Value | None) -> None:
    """Write eight rounded columns of 16 rows, by one warp."""
    ptx = "{ .reg .pred p; .reg .b32 x, y; setp.ne.s32 p, $6, 0; "
    ptx += "cvt.rn.bf16x2.f32 x, $1, $0; cvt.rn.bf16x2.f32 y, $3, $2; "
    ptx += "@p st.shared.b32 [$4], x; @p st.shared.b32 [$4+128], y; "
    if far is not None:
        ptx += "{ .reg .b64 a; cvt.u64.u32 a, $5; add.s64 a, a, $7; "
        ptx += "@p st.global.b32 [a], x; @p st.global.b32 [a+128], y; } "
    assembly(ptx + "}", given=[*sums, base + offset, offset, keep, *([] if far is None else [far])])
