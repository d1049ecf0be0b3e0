"""A layer or its adjoint as products of rows with matrices that are fetched piece by piece, in which order.

    same    pixel y     reads  y + i - 1   by tap i      (its adjoint: y - i + 1)
    down    pixel y     reads  2 y + i     by tap i
    up      pixel 2 y + e reads  y - u     by tap 2 u + e  of the kernel turned round

along one axis. The adjoint of down is an up, and that of up a down, by the same taps.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sdebnn.convolutions.fused.pixels.shape import CLASSES, GROUPS, PARITIES, ROW, TAPS, TILE, WIDTH, Shape
from sdebnn.convolutions.operations import Move


class Place(NamedTuple):
    """Where a tap's matrix, or the map, begins: which piece of its layer, and which row of it."""

    piece: int
    row: int


def places(shape: Shape, layer: int) -> list[Place]:
    """Of the nine taps, and the map."""
    if layer in (1, 2):
        return [Place(i, 0) for i in range(10)]
    each, height = shape.taps_of_slot, shape.height
    of_taps = [Place(i // each, i % each * height) for i in range(9)]
    # Two taps of a single chunk are one product: after the ninth tap there are rows of zeros.
    return [*of_taps, Place(9 // each, max(16, 9 % each * height) if 9 % each else 0)]


def pieces(shape: Shape, layer: int) -> int:
    """How many pieces a layer has."""
    return places(shape, layer)[-1].piece + 1


def first_piece(shape: Shape, layer: int) -> int:
    """The first of a layer's pieces among a step's."""
    return sum(pieces(shape, i) for i in range(layer))


def bytes_of(shape: Shape, layer: int, piece: int, with_map: bool) -> int:
    """Up to the last row that is needed."""
    *of_taps, of_map = places(shape, layer)
    height = TILE if layer in (1, 2) else shape.height
    ends = [place.row + height for place in of_taps if place.piece == piece]
    if shape.planes == 1 and layer in (0, 3) and piece == 1:
        ends.append(16)
    if with_map and of_map.piece == piece:
        ends.append(of_map.row + (shape.columns if layer == 3 else CLASSES))
    return ROW * max(ends)


class Term(NamedTuple):
    """A product: the source's rows at a tap (or, of a single chunk, at two), times a block of a piece from a row on.

    No taps: it is the map, and the classes are the source. ``deep`` times 16 channels are taken.
    """

    taps: tuple[tuple[Any, Any], ...]  # whole numbers, or a thread's
    row: int
    deep: int


class Piece(NamedTuple):
    """What is fetched at once (which of a step's pieces, how many bytes) and what is computed with it."""

    number: int
    size: int
    terms: tuple[Term, ...]


class Phase(NamedTuple):
    """A layer or its adjoint, as products. ``groups``: for each parity of an outcome that doubles the side, or one.

    ``by_rows``: a matrix' rows are the outcome's channels, rather than the source's.
    """

    move: Move
    groups: tuple[tuple[Piece, ...], ...]
    by_rows: bool
    narrow: bool = False  # whether the source is a state
    adjoint: bool = False

    @property
    def pieces(self) -> list[Piece]:
        return [piece for group in self.groups for piece in group]


def phase(shape: Shape, layer: int, *, adjoint: bool) -> Phase:
    """A layer, or its adjoint, as products."""
    move = ("same", "up", "down", "same")[layer] if adjoint else ("same", "down", "up", "same")[layer]
    narrow = layer == (3 if adjoint else 0)
    *of_taps, of_map = places(shape, layer)
    deep = max(1, shape.planes // 2) if narrow else WIDTH // 16
    start, size = first_piece(shape, layer), pieces(shape, layer)

    def offset(tap: tuple[int, int]) -> tuple[int, int]:
        i, j = tap
        if move == "same":
            return (1 - i, 1 - j) if adjoint else (i - 1, j - 1)
        return (i, j) if move == "down" else (i // 2, j // 2)

    def made(piece: int, which: Sequence[int], with_map: bool) -> Piece:
        here = [i for i in which if of_taps[i].piece == piece]
        if narrow and shape.planes == 1:
            pairs = [here[k : k + 2] for k in range(0, len(here), 2)]
            terms = [Term(tuple(offset(TAPS[i]) for i in pair), of_taps[pair[0]].row, 1) for pair in pairs]
        else:
            terms = [Term((offset(TAPS[i]),), of_taps[i].row, deep) for i in here]
        mapped = with_map and of_map.piece == piece
        if mapped:
            terms.append(Term((), of_map.row, 1))
        whole = mapped and move != "up" and not (shape.few_shared if move == "down" else shape.shared)
        # Where groups share the taps, one takes the map instead of a tap: with rows of zeros.
        size = bytes_of(shape, layer, piece if not whole else 0, mapped and not whole)
        return Piece(start + piece, size, tuple(terms))

    if move == "up" and not shape.few_shared:
        # A parity by each group, tap by tap: so the order is that in which the groups' first, second ... taps come.
        turns = sorted(range(9), key=lambda k: (TAPS[k][0] // 2, TAPS[k][1] // 2, TAPS[k][0] % 2, TAPS[k][1] % 2))
        order = [*[made(9, (), True)] * (not adjoint), *[made(i, [i], False) for i in turns]]
        return Phase(move, (tuple(order),), adjoint, narrow, adjoint)
    if move == "up":
        groups = []
        for e, f in PARITIES:
            which = [k for k, (i, j) in enumerate(TAPS) if i % 2 == e and j % 2 == f]
            of_group = [made(i, which, False) for i in which]
            groups.append((*of_group, *[made(9, (), True)] * (not adjoint)))
        return Phase(move, tuple(groups), adjoint, narrow, adjoint)
    only = (
        [made(i, range(9), not adjoint) for i in range(size)]
        if not adjoint
        else [made(i, range(9), False) for i in range(size) if any(place.piece == i for place in of_taps)]
    )
    return Phase(move, (tuple(only),), (layer == 3) != adjoint, narrow, adjoint)


class Work(NamedTuple):
    """Who computes what of a phase.

    The rows are shared out among the groups; or, where there are too few, the parities (``owned``), or the taps
    (``split``): then each group ends up with all groups' sums of its own columns.
    """

    shape: Shape
    phase: Phase

    @property
    def few(self) -> bool:
        """Whether rows are those of a small image."""
        return self.phase.move != "same"

    @property
    def shared(self) -> bool:
        return self.shape.few_shared if self.few else self.shape.shared

    @property
    def owned(self) -> bool:
        return not self.shared and self.phase.move == "up"

    @property
    def split(self) -> bool:
        return not self.shared and not self.owned

    @property
    def to_state(self) -> bool:
        return not self.few and not self.phase.narrow

    @property
    def summed(self) -> int:
        """Columns of a product."""
        return self.shape.columns if self.to_state else WIDTH

    @property
    def made(self) -> int:
        """Columns that a group ends up with."""
        return self.summed // GROUPS if self.split else self.summed

    @property
    def tiles(self) -> int:
        return 1 if self.few else self.shape.tiles
