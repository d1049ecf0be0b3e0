"""The loop of a warpgroup over a layer: over pieces as they arrive, or over tiles while all pieces stay on the chip."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from jax.experimental.mosaic.gpu.utils import fori

from sdebnn_hopper.pixels.assembly import Int, Value, commit, fence, load_matrices, opaque, wait, wgmma
from sdebnn_hopper.pixels.chip import Lanes, PixelPlan, Ring
from sdebnn_hopper.pixels.geometry import choose, class_of, line_pixel, row_of, swizzled
from sdebnn_hopper.pixels.layer import MAX_BATCHES_IN_FLIGHT, Finish, batches
from sdebnn_hopper.pixels.phases import Piece, Term
from sdebnn_hopper.pixels.shape import ROW_BYTES, WIDTH
from sdebnn_hopper.pixels.turns import Turns

MAX_EMPTY_PLACES = 1  # places of finished pieces that are not yet refilled


class LayerRun(Turns):
    """The computation of a layer, with a list of finished pieces whose places are not yet refilled."""

    def __init__(self, plan: PixelPlan, number: int, lanes: Lanes, places: Sequence[Int], ring: Ring) -> None:
        super().__init__(plan, number, lanes, places, ring)
        self.left: list[int] = []

    def run(self, finish: Finish) -> None:
        """Compute all rows of this group, and call ``finish(parity, row, sums)`` with the results."""
        row = self.row(0)
        if self.work.tiles > 1:
            self._run_tiles(finish)
        elif self.work.split:
            finish(0, row, self.summed_over_groups(self.turns(row)))
        elif self.work.owned:
            finish(self.lanes.group, row, self.turns(row))
        else:
            start = self.start
            for parity, pieces in enumerate(self.phase.groups):
                finish(parity, row, self._stream(row, parity, list(enumerate(pieces, start))))
                start += len(pieces)
            self._refill(0)

    def _stream(self, row: Int, parity: int, places: Sequence[tuple[int, Piece]]) -> list[Value]:
        """The sums over pieces, in the order in which they arrive."""
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
        self._refill(MAX_EMPTY_PLACES)

    def _refill(self, lag: int) -> None:
        """Refill the places of all finished pieces but the last ``lag``, which other groups may still need."""
        while len(self.left) > lag:
            self.ring.refill(self.left.pop(0))

    def _run_tiles(self, finish: Finish) -> None:
        """Compute several tiles of rows, while all pieces stay on the chip."""
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
                row = opaque(self.row(Int(tile)))
                for some in batches(terms):
                    sums = self.batch(sums, row, 0, some)
                finish(0, row, wait(0, sums))
                return none

        for place in places:
            self.ring.release(place)
        for place in places:
            self.ring.refill(place)

    def _lines(self, terms: Sequence[tuple[Int, Term]]) -> tuple[list[Int], list[list[Value]]]:
        """The rows and the sums of four lines of the state, one for each tile. A line is read once for up to three."""
        y, x = line_pixel(self.lanes.group, self.lanes.warp, self.lanes.thread & 15)
        y, x = opaque(y), opaque(x)
        sums: list[list[Value]] = [[] for _ in range(self.work.tiles)]
        for data, term in terms:
            if not term.taps:
                places = [self.map_at(class_of(self.shape.side, y + i, x)) for i in range(self.work.tiles)]
                rows = [load_matrices(at) for at in places]
                fence()
                for i, a in enumerate(rows):
                    sums[i] = wgmma(sums[i], self.work.made, a, data, term.row * ROW_BYTES, transposed=False)
                commit()
        of_taps = {term.taps[0]: (data, term.row * ROW_BYTES) for data, term in terms if term.taps}
        for j in (-1, 0, 1):
            lines = []
            for i in range(-1, self.work.tiles + 1):
                at, inside = row_of(self.shape, y + i, x + j)
                lines.append(choose(inside, swizzled(self.source, at, self.lanes.high), self.zeros))
            for k in range(WIDTH // 16):
                rows = [load_matrices(at, 32 * k) for at in lines]
                fence()
                for i in (-1, 0, 1):
                    data, offset = of_taps[i, j]
                    for tile in range(self.work.tiles):
                        a = rows[tile + i + 1]
                        sums[tile] = wgmma(sums[tile], self.work.made, a, data, offset + 32 * k, transposed=False)
                commit()
                wait(MAX_BATCHES_IN_FLIGHT)
        flat = wait(0, [each for tile in sums for each in tile])
        size = self.work.made // 2
        tiles = range(self.work.tiles)
        return [row_of(self.shape, y + i, x)[0] for i in tiles], [flat[i * size : (i + 1) * size] for i in tiles]
