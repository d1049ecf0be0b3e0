"""Layers and their adjoints:   z[p] = sum over taps of  x[neighbour of p] W[tap]  +  onehot(class of p) M.

Each thread chooses the addresses of the source's rows in shared memory; a neighbour outside the image is read from a
row of zeros. So strides, parities and borders cost nothing. The matrices arrive through the ring.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sdebnn_hopper.pixels.assembly import Int, Value, as_int, assembly, commit, fence, load_matrices, wait, wgmma
from sdebnn_hopper.pixels.chip import ONE_HOT_OFFSET, Lanes, PixelPlan, Ring
from sdebnn_hopper.pixels.geometry import (
    choose,
    class_of,
    pixel,
    row_of,
    small_pixel,
    small_row,
    swizzled,
    up_class_of,
)
from sdebnn_hopper.pixels.phases import Term, Work
from sdebnn_hopper.pixels.shape import ROW_BYTES, TILE

MAX_PRODUCTS_A_BATCH = 6  # products of 16 channels that start together
MAX_BATCHES_IN_FLIGHT = 1  # while the rows of the next batch are loaded

Finish = Callable[[Any, Int, list[Value]], None]  # takes a parity, a thread's row, and the sums of its tile


class Turn(NamedTuple):
    """The work of a group in one turn, if groups share the taps or the parities."""

    place: Int  # place of its piece in the ring
    valid: Value | None  # whether the group has a piece; None: every group has one
    tap: tuple[Int, Int]
    owners: list[tuple[int, int]]  # place and group of all pieces of the turn
    mapped: Value | None = None  # whether the piece is the map
    of_tap: Value | None = None  # whether the piece is a tap


def batches(terms: Sequence[tuple[Int, Term]]) -> list[list[tuple[Int, Term]]]:
    """The terms in batches that are computed together, limited by the registers for their rows."""
    found: list[list[tuple[Int, Term]]] = []
    for each in terms:
        if found and sum(term.deep for _, term in found[-1]) + each[1].deep <= MAX_PRODUCTS_A_BATCH:
            found[-1].append(each)
        else:
            found.append([each])
    return found


class LayerProducts:
    """The products of one phase of a plan, within an inline part: which thread computes which rows, from where."""

    def __init__(self, plan: PixelPlan, number: int, lanes: Lanes, places: Sequence[Int], ring: Ring) -> None:
        self.shape, self.phase = plan.shape, plan.phases[number]
        self.work, self.start = Work(self.shape, self.phase), plan.start(number)
        self.lanes, self.ring = lanes, ring
        self.source, self.zeros, self.exchange = places

    def row(self, tile: Int | int) -> Int:
        """The row of the image, or of the small image, that this thread addresses."""
        if not self.work.shared:
            return self.lanes.row
        return (self.lanes.group * self.work.tiles + tile) * TILE + self.lanes.row

    def _addresses(self, row: Int, parity: Int | int, term: Term) -> list[tuple[Int, int]]:
        """For each 16 channels of the source: an address, and a column offset that is combined with it by xor."""
        shape, high, move = self.shape, self.lanes.high, self.phase.move
        y, x = (small_pixel if self.work.on_small_image else pixel)(shape, row)
        if not term.taps:
            if move == "up":
                kind = up_class_of((y << 1) + (parity >> 1), (x << 1) + (parity & 1))
            else:
                kind = class_of(shape.small if self.work.on_small_image else shape.side, y, x)
            return [(self.map_at(kind), 0)]
        (i, j), *more = term.taps
        if self.phase.narrow:
            a, b = as_int(i), as_int(j)
            if shape.planes == 1:
                k, m = more[0] if more else (-2 * shape.side, 0)
                a, b = a + high * (k - i), b + high * (m - j)
            at, inside = row_of(shape, y + a, x + b)
            chunks = [0] if shape.planes == 1 else [(high + 2 * k) * shape.pixels for k in range(term.deep)]
            return [(choose(inside, self.source + ((at + chunk) << 4), self.zeros), 0) for chunk in chunks]
        if move == "up":
            at, inside = small_row(shape, y - i, x - j)
        elif move == "down":
            at, inside = row_of(shape, (y << 1) + i, (x << 1) + j)
        else:
            at, inside = row_of(shape, y + i, x + j)
        start = choose(inside, swizzled(self.source, at, high), self.zeros)
        return [(start, 32 * k) for k in range(term.deep)]

    def _masked(self, places: list[tuple[Int, int]], row: Int, turn: Turn) -> list[tuple[Int, int]]:
        """The same addresses, replaced by those of the map or of zeros if the group's piece is not a tap."""
        tap = turn.of_tap if turn.of_tap is not None else turn.valid
        found = [(choose(tap, at, self.zeros), column) for at, column in places]
        if turn.mapped is not None:
            ((of_map, _),) = self._addresses(row, 0, Term((), 0, 1))
            found[0] = (choose(turn.mapped, of_map, found[0][0]), 0)
        return found

    def batch(
        self,
        sums: list[Value],
        row: Int,
        parity: Int | int,
        terms: Sequence[tuple[Int, Term]],
        begun: Callable[[], None] | None = None,
        turn: Turn | None = None,
    ) -> list[Value]:
        """Start the products of some terms. ``begun`` is called between loading the rows and the first product."""
        rows = []
        for _, term in terms:
            places = self._addresses(row, parity, term)
            if turn is not None and turn.valid is not None:
                places = self._masked(places, row, turn)
            rows.append([load_matrices(at, column) for at, column in places])
        if begun is not None:
            begun()
        fence()
        deep = 32 if self.phase.by_rows else 16 * ROW_BYTES
        for (data, term), of_term in zip(terms, rows, strict=True):
            for k, a in enumerate(of_term):
                sums = wgmma(
                    sums, self.work.summed, a, data, term.row * ROW_BYTES + k * deep, transposed=not self.phase.by_rows
                )
        commit()
        wait(MAX_BATCHES_IN_FLIGHT)
        return sums

    def map_at(self, kind: Int) -> Int:
        """The address of the one-hot row of a class."""
        return self.zeros + ONE_HOT_OFFSET + (kind << 5) + (self.lanes.high << 4)

    def put(self, out: Int, parity: Int | int, row: Int, sums: Sequence[Value], slope_of: Int | None = None) -> None:
        """Write the tanh of sums or, with ``slope_of``, the sums times 1 - a^2 for the activations a in that buffer."""
        row_out = row + as_int(parity) * self.shape.small_pixels if self.phase.move == "up" else row
        at = swizzled(out, row_out, self.lanes.high)
        old = None if slope_of is None else swizzled(slope_of, row_out, self.lanes.high)
        if self.work.split:
            at = at ^ (self.lanes.group << 5)
            old = None if old is None else old ^ (self.lanes.group << 5)
        kept = (
            row.below(self.shape.small_pixels) if self.work.on_small_image and self.shape.small_pixels < TILE else None
        )
        for k in range(self.work.made // 16):
            put_16_columns(at, old, 32 * k, sums[8 * k : 8 * k + 8], kept)


def put_16_columns(at: Int, old: Int | None, column: int, sums: Sequence[Value], kept: Value | None) -> None:
    """Write 16 columns of 16 rows, by one warp."""
    ptx = f"{{ .reg .pred p; .reg .b32 a, r<4>, o<4>; .reg .f32 t<8>, s; xor.b32 a, $8, {column}; "
    ptx += "setp.ne.s32 p, $10, 0; "
    if old is not None:
        ptx += f"{{ .reg .b32 b; xor.b32 b, $9, {column}; "
        ptx += "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {o0,o1,o2,o3}, [b]; } "
    for i in range(8):
        if old is None:
            ptx += f"tanh.approx.f32 t{i}, ${i}; "
        else:
            take = f"shl.b32 o, o{i // 2}, 16; " if i % 2 == 0 else f"and.b32 o, o{i // 2}, 0xffff0000; "
            ptx += f"{{ .reg .b32 o; .reg .f32 f; {take} mov.b32 f, o; mul.f32 s, ${i}, f; neg.f32 s, s; "
            ptx += f"fma.rn.f32 t{i}, s, f, ${i}; }} "
    for i in range(4):
        ptx += f"cvt.rn.bf16x2.f32 r{i}, t{2 * i + 1}, t{2 * i}; "
    guard = "" if kept is None else "@p "
    ptx += f"{guard}stmatrix.sync.aligned.m8n8.x4.shared.b16 [a], {{r0,r1,r2,r3}}; }}"
    keep = Int(1) if kept is None else choose(kept, 1, 0)
    assembly(ptx, given=[*sums, at, old if old is not None else at, keep])
