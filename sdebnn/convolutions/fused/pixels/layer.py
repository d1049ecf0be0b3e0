"""Layers and their adjoints:   z[p] = sum over taps of  x[neighbour of p] W[tap]  +  onehot(class of p) M.

The source's rows are read from shared memory at whatever address a thread gives, a neighbour beyond the image from a
row of zeros; so stride, parity and border cost nothing. The matrices come by the ring.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sdebnn.convolutions.fused.pixels.assembly import Int, Value, as_int, assembly, commit, fence, loaded, wait, wgmma
from sdebnn.convolutions.fused.pixels.chip import ONES, Lanes, Plan, Ring
from sdebnn.convolutions.fused.pixels.geometry import (
    choose,
    class_of,
    few_pixel,
    few_row,
    pixel,
    row_of,
    swizzled,
    up_class_of,
)
from sdebnn.convolutions.fused.pixels.phases import Term, Work
from sdebnn.convolutions.fused.pixels.shape import ROW, TILE

DEEP = 6  # products of 16 channels that begin together, at most
FLYING = 1  # batches of products that may run while the next one's rows are loaded

Finish = Callable[[Any, Int, list[Value]], None]  # of a parity, a thread's row, and the sums of its tile


class Turn(NamedTuple):
    """What a group does at its turn, where groups share the taps or the parities."""

    place: Int  # of its piece
    valid: Value | None  # whether there is one: there is, where nothing is said
    tap: tuple[Int, Int]
    owners: list[tuple[int, int]]  # the places of all groups' pieces, and whose they are
    mapped: Value | None = None  # whether it is the map
    of_tap: Value | None = None  # whether it is a tap's


def batches(terms: Sequence[tuple[Int, Term]]) -> list[list[tuple[Int, Term]]]:
    """Terms that are computed together: as many as have rows in registers at a time."""
    found: list[list[tuple[Int, Term]]] = []
    for each in terms:
        if found and sum(term.deep for _, term in found[-1]) + each[1].deep <= DEEP:
            found[-1].append(each)
        else:
            found.append([each])
    return found


class Layer:
    """One phase of a plan, within an inline part: who computes which rows, from which addresses."""

    def __init__(self, plan: Plan, number: int, lanes: Lanes, places: Sequence[Int], ring: Ring) -> None:
        self.shape, self.phase = plan.shape, plan.phases[number]
        self.work, self.start = Work(self.shape, self.phase), plan.start(number)
        self.lanes, self.ring = lanes, ring
        self.source, self.zeros, self.exchange = places

    def row(self, tile: Int | int) -> Int:
        """The row, of all pixels or of a small image, that this thread addresses."""
        if not self.work.shared:
            return self.lanes.row
        return (self.lanes.group * self.work.tiles + tile) * TILE + self.lanes.row

    def _addresses(self, row: Int, parity: Int | int, term: Term) -> list[tuple[Int, int]]:
        """Of the source's numbers of each 16 channels: an address, and columns to lay over it."""
        shape, high, move = self.shape, self.lanes.high, self.phase.move
        y, x = (few_pixel if self.work.few else pixel)(shape, row)
        if not term.taps:
            if move == "up":
                kind = up_class_of((y << 1) + (parity >> 1), (x << 1) + (parity & 1))
            else:
                kind = class_of(shape.small if self.work.few else shape.side, y, x)
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
            at, inside = few_row(shape, y - i, x - j)
        elif move == "down":
            at, inside = row_of(shape, (y << 1) + i, (x << 1) + j)
        else:
            at, inside = row_of(shape, y + i, x + j)
        start = choose(inside, swizzled(self.source, at, high), self.zeros)
        return [(start, 32 * k) for k in range(term.deep)]

    def _instead(self, places: list[tuple[Int, int]], row: Int, turn: Turn) -> list[tuple[Int, int]]:
        """The same addresses; those of the map, or of zeros, where it is not a tap's turn."""
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
        """Some terms' products, on their way: ``begun`` is called before the first, when the rows are."""
        rows = []
        for _, term in terms:
            places = self._addresses(row, parity, term)
            if turn is not None and turn.valid is not None:
                places = self._instead(places, row, turn)
            rows.append([loaded(at, column) for at, column in places])
        if begun is not None:
            begun()
        fence()
        deep = 32 if self.phase.by_rows else 16 * ROW
        for (data, term), of_term in zip(terms, rows, strict=True):
            for k, a in enumerate(of_term):
                sums = wgmma(sums, self.work.summed, a, data, term.row * ROW + k * deep, turned=not self.phase.by_rows)
        commit()
        wait(FLYING)
        return sums

    def map_at(self, kind: Int) -> Int:
        """Where the one-hot rows of classes are."""
        return self.zeros + ONES + (kind << 5) + (self.lanes.high << 4)

    def put(self, out: Int, parity: Int | int, row: Int, sums: Sequence[Value], slope_of: Int | None = None) -> None:
        """Write the tanh of sums, or the sums times the slope of tanh, 1 - a^2 with a at the same place elsewhere."""
        row_out = row + as_int(parity) * self.shape.few if self.phase.move == "up" else row
        at = swizzled(out, row_out, self.lanes.high)
        old = None if slope_of is None else swizzled(slope_of, row_out, self.lanes.high)
        if self.work.split:
            at = at ^ (self.lanes.group << 5)
            old = None if old is None else old ^ (self.lanes.group << 5)
        kept = row.below(self.shape.few) if self.work.few and self.shape.few < TILE else None
        for k in range(self.work.made // 16):
            put_sixteen(at, old, 32 * k, sums[8 * k : 8 * k + 8], kept)


def put_sixteen(at: Int, old: Int | None, column: int, sums: Sequence[Value], kept: Value | None) -> None:
    """16 columns of 16 rows, by the warp."""
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
