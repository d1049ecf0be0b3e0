"""A layer or its adjoint as products of rows with pieces of matrices, in the order in which they are fetched.

Along one axis:

    same    pixel y     reads  y + i - 1   by tap i      (its adjoint: y - i + 1)
    down    pixel y     reads  2 y + i     by tap i
    up      pixel 2 y + e reads  y - u     by tap 2 u + e  of the flipped kernel

The adjoint of down is an up, and that of up a down, by the same taps.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sdebnn.convolutions.operations import Move
from sdebnn_hopper.pixels.shape import CLASSES, GROUPS, PARITIES, ROW_BYTES, TAPS, TILE, WIDTH, BlockShape


class Place(NamedTuple):
    """Where the matrix of a tap, or the map, begins: the piece of its layer, and the row within the piece."""

    piece: int
    row: int


def places(shape: BlockShape, layer: int) -> list[Place]:
    """The places of the nine taps, and of the map."""
    if layer in (1, 2):
        return [Place(i, 0) for i in range(10)]
    each, height = shape.taps_of_slot, shape.height
    of_taps = [Place(i // each, i % each * height) for i in range(9)]
    # With a single chunk, a product takes two taps, so rows of zeros follow the ninth tap.
    return [*of_taps, Place(9 // each, max(16, 9 % each * height) if 9 % each else 0)]


def pieces(shape: BlockShape, layer: int) -> int:
    """The number of pieces of a layer."""
    return places(shape, layer)[-1].piece + 1


def first_piece(shape: BlockShape, layer: int) -> int:
    """The index of a layer's first piece among the pieces of a step."""
    return sum(pieces(shape, i) for i in range(layer))


def bytes_of(shape: BlockShape, layer: int, piece: int, with_map: bool) -> int:
    """The bytes of a piece up to the last row that is needed."""
    *of_taps, of_map = places(shape, layer)
    height = TILE if layer in (1, 2) else shape.height
    ends = [place.row + height for place in of_taps if place.piece == piece]
    if shape.planes == 1 and layer in (0, 3) and piece == 1:
        ends.append(16)
    if with_map and of_map.piece == piece:
        ends.append(of_map.row + (shape.columns if layer == 3 else CLASSES))
    return ROW_BYTES * max(ends)


class Term(NamedTuple):
    """A product: the source's rows at a tap (or two taps, with a single chunk), times a block of a piece from a row on.

    Without taps, it is the map, and its source are the classes. The product takes ``deep`` times 16 channels.
    """

    taps: tuple[tuple[Any, Any], ...]  # Python integers, or integers of a thread
    row: int
    deep: int


class Piece(NamedTuple):
    """A part of the matrices that is fetched at once (its index in a step, its bytes), and the products that use it."""

    number: int
    size: int
    terms: tuple[Term, ...]


class Phase(NamedTuple):
    """A layer or its adjoint, as products. ``groups`` has one entry for each parity if the side is doubled, else one.

    ``by_rows``: the rows of a matrix are the channels of the output, rather than of the source.
    """

    move: Move
    groups: tuple[tuple[Piece, ...], ...]
    by_rows: bool
    narrow: bool = False  # whether the source is a state
    adjoint: bool = False

    @property
    def pieces(self) -> list[Piece]:
        return [piece for group in self.groups for piece in group]


def phase(shape: BlockShape, layer: int, *, adjoint: bool) -> Phase:
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
        whole = mapped and move != "up" and not (shape.small_shared if move == "down" else shape.shared)
        # If groups share the taps, one of them takes the map instead of a tap, padded with rows of zeros.
        size = bytes_of(shape, layer, piece if not whole else 0, mapped and not whole)
        return Piece(start + piece, size, tuple(terms))

    if move == "up" and not shape.small_shared:
        # Each group computes one parity. So the first taps of all groups come first, then their second taps, and so on.
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
    """How the groups share a phase.

    The groups share the rows or, if there are too few rows, the parities (``owned``) or the taps (``split``). With
    shared taps, each group ends with the sums over all groups for its own columns.
    """

    shape: BlockShape
    phase: Phase

    @property
    def on_small_image(self) -> bool:
        """Whether the rows are those of a small image."""
        return self.phase.move != "same"

    @property
    def shared(self) -> bool:
        return self.shape.small_shared if self.on_small_image else self.shape.shared

    @property
    def owned(self) -> bool:
        return not self.shared and self.phase.move == "up"

    @property
    def split(self) -> bool:
        return not self.shared and not self.owned

    @property
    def to_state(self) -> bool:
        return not self.on_small_image and not self.phase.narrow

    @property
    def summed(self) -> int:
        """Columns of a product."""
        return self.shape.columns if self.to_state else WIDTH

    @property
    def made(self) -> int:
        """Columns of a group's result."""
        return self.summed // GROUPS if self.split else self.summed

    @property
    def tiles(self) -> int:
        return 1 if self.on_small_image else self.shape.tiles
