"""Layers of fewer than 256 rows, in which the groups share the parities or the taps instead of the rows."""

from collections.abc import Sequence
from functools import partial

from sdebnn_hopper.pixels.assembly import Int, Value, assembly, selected, wait
from sdebnn_hopper.pixels.geometry import choose
from sdebnn_hopper.pixels.layer import LayerProducts, Turn
from sdebnn_hopper.pixels.phases import Term
from sdebnn_hopper.pixels.shape import GROUPS

FREE_BARRIER = 8  # a barrier that neither Pallas nor Mosaic uses


class Turns(LayerProducts):
    """A layer whose pieces are distributed over the groups: in each turn, every group takes one piece."""

    def turns(self, row: Int) -> list[Value]:
        """The sums over this group's pieces: every fourth, or those of its parity. All groups take equally many turns.

        A group without a piece left multiplies its last one with zeros.
        """
        (pieces,) = self.phase.groups
        group, ring, start = self.lanes.group, self.ring, self.start
        sums: list[Value] = []
        before: tuple[Int, Value | None] | None = None
        done: list[tuple[int, int]] = []
        if self.work.owned and not pieces[0].terms[0].taps:  # the map, of all parities
            sums = self.batch(sums, row, group, [(ring.data(start), pieces[0].terms[0])], partial(ring.wait, start))
            start += 1
        deep = pieces[-1].terms[0].deep if self.work.owned else pieces[0].terms[0].deep
        for turn in self._plan(start, len(pieces)):
            place = turn.place
            if turn.valid is not None and before is not None:
                place = choose(turn.valid, place, before[0])
            term = Term((turn.tap,), 0, deep)
            begun = partial(ring.wait, place, turn.valid)
            sums = self.batch(sums, row, group, [(ring.data(place), term)], begun, turn)
            if before is not None:
                self._release_turn(before, done)
            elif start > self.start:
                ring.release(self.start)
                ring.refill(self.start)
            before, done = (place, turn.valid), turn.owners
        sums = wait(0, sums)
        if before is not None:
            self._release_turn(before, done)
        return sums

    def _release_turn(self, before: tuple[Int, Value | None], done: Sequence[tuple[int, int]]) -> None:
        place, valid = before
        self.ring.release(place, GROUPS if valid is None else choose(valid, GROUPS, 0))
        for each, owner in done:
            self.ring.refill(each, owner)

    def _plan(self, start: int, count: int) -> list[Turn]:
        group = self.lanes.group
        if self.work.owned:
            e, f = group >> 1, group & 1
            return [
                Turn(group + start, None, (Int(0), Int(0)), [(start + k, k) for k in range(4)]),
                Turn(e + (start + 4), f.equals(0), (Int(0), Int(1)), [(start + 4, 0), (start + 5, 2)]),
                Turn(f + (start + 6), e.equals(0), (Int(1), Int(0)), [(start + 6, 0), (start + 7, 1)]),
                Turn(Int(start + 8), group.equals(0), (Int(1), Int(1)), [(start + 8, 0)]),
            ]
        turns = []
        for first in range(0, count, GROUPS):
            number = group + first
            i = (number * 11) >> 5  # a third
            j = number - i * 3
            if self.phase.move == "same":
                i, j = self._distance(i), self._distance(j)
            owners = [(start + first + k, k) for k in range(GROUPS) if first + k < count]
            last = first + GROUPS > 9
            turns.append(
                Turn(
                    number + start,
                    number.below(count) if last else None,
                    (i, j),
                    owners,
                    number.equals(9) if last and count > 9 else None,
                    number.below(9) if last else None,
                )
            )
        return turns

    def _distance(self, i: Int) -> Int:
        """The offset of a line of taps, given its index."""
        return Int(1) - i if self.phase.adjoint else i - 1

    def summed_over_groups(self, sums: list[Value]) -> list[Value]:
        """The sums over all groups, for this group's own columns, given each group's sums of all columns."""
        lanes, size = self.lanes, self.work.made // 2
        at = self.exchange + ((lanes.thread & 127) << 4)
        mine: list[Value] = []
        own = [lanes.group.equals(k) for k in range(GROUPS)]
        for i in range(size):
            found = sums[i]
            for k in range(1, GROUPS):
                found = selected(own[k], sums[k * size + i], found)
            mine.append(found)
        for other in range(GROUPS):
            slot = ((lanes.group - (other + 1)) & 3) + (GROUPS - 1) * other
            there = at + slot * (size * 512)
            for k in range(0, size, 4):
                assembly(
                    f"{{ .reg .pred p; setp.ne.s32 p, $5, {other}; "
                    f"@p st.shared.v4.f32 [$4+{512 * k}], {{$0,$1,$2,$3}}; }}",
                    given=[*sums[other * size + k : other * size + k + 4], there, lanes.group],
                )
        assembly(f"bar.sync {FREE_BARRIER}, {128 * GROUPS};")
        here = at + lanes.group * ((GROUPS - 1) * size * 512)
        for k in range((GROUPS - 1) * size // 4):
            i = 4 * k % size
            mine[i : i + 4] = assembly(
                f"{{ .reg .f32 x<4>; ld.shared.v4.f32 {{x0,x1,x2,x3}}, [$8+{2048 * k}]; "
                + "".join(f"add.f32 ${j}, ${j}, x{j}; " for j in range(4))
                + "}",
                given=[here],
                changed=mine[i : i + 4],
            )
        return mine
