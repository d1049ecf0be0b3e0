"""How a warpgroup goes through a layer: piece by piece, as they come, or tile by tile, while all pieces stay."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from jax.experimental.mosaic.gpu.utils import fori

from sdebnn.convolutions.fused.pixels.assembly import Int, Value, anew, commit, fence, loaded, wait, wgmma
from sdebnn.convolutions.fused.pixels.chip import Lanes, Plan, Ring
from sdebnn.convolutions.fused.pixels.geometry import choose, class_of, line_pixel, row_of, swizzled
from sdebnn.convolutions.fused.pixels.layer import FLYING, Finish, batches
from sdebnn.convolutions.fused.pixels.phases import Piece, Term
from sdebnn.convolutions.fused.pixels.shape import ROW, WIDTH
from sdebnn.convolutions.fused.pixels.turns import Turns

LAG = 1  # pieces that may be done with before the place of one is filled again


class Run(Turns):
    """A layer, and the pieces that are done with but whose places were not filled again."""

    def __init__(self, plan: Plan, number: int, lanes: Lanes, places: Sequence[Int], ring: Ring) -> None:
        super().__init__(plan, number, lanes, places, ring)
        self.left: list[int] = []

    def run(self, finish: Finish) -> None:
        """Compute all rows of this group; ``finish(parity, row, sums)`` is told what comes of them."""
        row = self.row(0)
        if self.work.tiles > 1:
            self._run_tiles(finish)
        elif self.work.split:
            finish(0, row, self.shared_out(self.turns(row)))
        elif self.work.owned:
            finish(self.lanes.group, row, self.turns(row))
        else:
            start = self.start
            for parity, pieces in enumerate(self.phase.groups):
                finish(parity, row, self._stream(row, parity, list(enumerate(pieces, start))))
                start += len(pieces)
            self._refill(0)

    def _stream(self, row: Int, parity: int, places: Sequence[tuple[int, Piece]]) -> list[Value]:
        """The sums over pieces as they come."""
        sums: list[Value] = []
        first = place = places[0][0]
        for place, piece in places:
            for number, terms in enumerate(batches([(self.ring.data(place), term) for term in piece.terms])):
                begun = None if number else partial(self.ring.wait, place)
                sums = self.batch(sums, row, parity, terms, begun)
                if number == 0 and place > first:
                    self._release(place - 1)
        sums = wait(0, sums)
        self._release(place)
        return sums

    def _release(self, place: int) -> None:
        self.ring.release(place)
        self.left.append(place)
        self._refill(LAG)

    def _refill(self, lag: int) -> None:
        """Of the pieces that were done with, refill the places of all but so many: other groups may still need them."""
        while len(self.left) > lag:
            self.ring.refill(self.left.pop(0))

    def _run_tiles(self, finish: Finish) -> None:
        """The same, of several tiles of rows, for which all pieces stay."""
        (pieces,) = self.phase.groups
        places = range(self.start, self.start + len(pieces))
        for place in places:
            self.ring.wait(place)
        at = [self.ring.data(place) for place in places]
        terms = [(data, term) for data, piece in zip(at, pieces, strict=True) for term in piece.terms]
        if self.work.to_state:
            for row, sums in zip(*self._lines(terms), strict=True):
                finish(0, row, sums)
        else:

            @fori(Int(self.work.tiles).value, [])
            def _(tile: Value, none: list[Any]) -> list[Any]:
                sums: list[Value] = []
                row = anew(self.row(Int(tile)))
                for some in batches(terms):
                    sums = self.batch(sums, row, 0, some)
                finish(0, row, wait(0, sums))
                return none

        for place in places:
            self.ring.release(place)
        for place in places:
            self.ring.refill(place)

    def _lines(self, terms: Sequence[tuple[Int, Term]]) -> tuple[list[Int], list[list[Value]]]:
        """The sums of four lines of the state, tile by tile: a line that is read serves up to three of them."""
        y, x = line_pixel(self.lanes.group, self.lanes.warp, self.lanes.thread & 15)
        y, x = anew(y), anew(x)
        sums: list[list[Value]] = [[] for _ in range(self.work.tiles)]
        for data, term in terms:
            if not term.taps:
                places = [self.map_at(class_of(self.shape.side, y + i, x)) for i in range(self.work.tiles)]
                rows = [loaded(at) for at in places]
                fence()
                for i, a in enumerate(rows):
                    sums[i] = wgmma(sums[i], self.work.made, a, data, term.row * ROW, turned=False)
                commit()
        of_taps = {term.taps[0]: (data, term.row * ROW) for data, term in terms if term.taps}
        for j in (-1, 0, 1):
            lines = []
            for i in range(-1, self.work.tiles + 1):
                at, inside = row_of(self.shape, y + i, x + j)
                lines.append(choose(inside, swizzled(self.source, at, self.lanes.high), self.zeros))
            for k in range(WIDTH // 16):
                rows = [loaded(at, 32 * k) for at in lines]
                fence()
                for i in (-1, 0, 1):
                    data, offset = of_taps[i, j]
                    for tile in range(self.work.tiles):
                        a = rows[tile + i + 1]
                        sums[tile] = wgmma(sums[tile], self.work.made, a, data, offset + 32 * k, turned=False)
                commit()
                wait(FLYING)
        flat = wait(0, [each for tile in sums for each in tile])
        size = self.work.made // 2
        tiles = range(self.work.tiles)
        return [row_of(self.shape, y + i, x)[0] for i in tiles], [flat[i * size : (i + 1) * size] for i in tiles]
