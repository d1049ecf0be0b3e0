"""The resources of a block of threads: buffers in shared memory, the ring buffer for pieces of matrices, the lanes.

Only wgmma reads the ring, and only the copy engine writes it. Each piece has two barriers: ``full`` completes when the
piece has arrived, and ``empty`` when all warps have finished with it.
"""

# pyright: reportCallIssue=false, reportAttributeAccessIssue=false
# (Mosaic has no complete types, and they differ between versions)

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from sdebnn_hopper.blocks import store, sync_groups
from sdebnn_hopper.pixels.assembly import (
    Int,
    Ref,
    Value,
    address,
    anded,
    assembly,
    inline,
    pointer,
    thread,
    uniform,
)
from sdebnn_hopper.pixels.assembly import chosen as choose
from sdebnn_hopper.pixels.phases import Phase, Piece
from sdebnn_hopper.pixels.shape import GROUPS, TILE, WIDTH, BlockShape

WARPS = 4 * GROUPS
ONE_HOT_OFFSET = 128  # bytes of zeros in the table before the one-hot rows


class PixelPlan(NamedTuple):
    """The parameters for which a kernel is compiled, besides the shapes of its arrays."""

    shape: BlockShape
    steps: int
    dt: float
    backward: bool
    phases: tuple[Phase, ...]
    interpret: bool = False

    @property
    def schedule(self) -> list[Piece]:
        return [piece for phase in self.phases for piece in phase.pieces]

    def start(self, phase: int) -> int:
        return sum(len(each.pieces) for each in self.phases[:phase])


class Chip(NamedTuple):
    """The buffers of a block in shared memory, and ``weights`` in global memory."""

    wide: Ref  # one or two
    small: Ref
    narrow: Ref  # h, d_4
    ring: Ref
    table: Ref
    bars: Ref
    exchange: Ref  # through which groups add up their sums
    meet: Ref
    weights: Ref

    @classmethod
    def of(cls, refs: Sequence[Ref], weights: Ref) -> "Chip":
        *most, meet = refs
        return cls(*most, *([most[4]] if len(most) == 6 else []), meet, weights)  # without an exchange, any buffer


def scratch(shape: BlockShape, wides: int, narrows: int) -> list[Any]:
    """The buffers of a block, and the barrier of its groups."""
    half = jnp.bfloat16
    return [
        plgpu.SMEM((wides, shape.pixels, WIDTH), half),
        plgpu.SMEM((shape.small_pixels, WIDTH), half),
        plgpu.SMEM((narrows, shape.planes, shape.pixels, 8), half),
        plgpu.SMEM((shape.ring, shape.slot // 2), half),
        plgpu.SMEM((320,), half),
        plgpu.SMEM((2 * (2 * shape.ring + 1),), jnp.int32),
        *[plgpu.SMEM((shape.exchange // 4,), jnp.float32)] * (shape.exchange > 0),
        plgpu.Barrier(num_arrivals=GROUPS),
    ]


class Lanes:
    """The indices of a thread: its lane, warp and group, and the row and column that it addresses.

    They are computed again in each inline part.
    """

    def __init__(self) -> None:
        self.thread = thread()
        self.lane = self.thread & 31
        self.number = uniform(self.thread >> 5)  # index of the warp in the block
        self.warp, self.group = self.number & 3, self.number >> 2
        self.row = (self.warp << 4) + (self.thread & 15)
        self.high = (self.thread >> 4) & 1


class Ring:
    """A ring buffer for pieces of matrices, which are fetched in the order of the schedule."""

    def __init__(self, plan: PixelPlan, lanes: Lanes, ring: Value, bars: Value, weights: Value, step: Int) -> None:
        self.plan, self.lanes, self.step, self.weights = plan, lanes, step, weights
        self.ring, self.bars = address(ring), address(bars)
        self.count = step * len(plan.schedule)
        self.size = plan.shape.ring

    def _bars(self, place: Int | int) -> tuple[Int, Int, Int]:
        number = self.count + place
        full = self.bars + ((number & (self.size - 1)) << 3)
        return full, full + 8 * self.size, (number >> (self.size.bit_length() - 1)) & 1

    def data(self, place: Int | int) -> Int:
        return self.ring + ((self.count + place) & (self.size - 1)) * self.plan.shape.slot

    def wait(self, place: Int | int, needed: Value | None = None) -> None:
        full, _, parity = self._bars(place)
        wait_for(full, parity, Int(1) if needed is None else choose(needed, 1, 0))

    def release(self, place: Int | int, count: Int | int = 1) -> None:
        """Signal that this warp has finished with a piece, on behalf of ``count`` warps."""
        _, empty, _ = self._bars(place)
        assembly(
            "{ .reg .pred p; .reg .b64 t; setp.eq.s32 p, $0, 0; setp.ne.and.s32 p, $2, 0, p; "
            "@p mbarrier.arrive.shared::cta.b64 t, [$1], $2; }",
            given=[self.lanes.lane, empty, count if isinstance(count, Int) else Int(count)],
        )

    def refill(self, place: int, owner: int | None = None) -> None:
        """When all warps have finished with a piece, fetch the next piece of the schedule to its place.

        The warps of all groups take turns at this, or those of the group that used the piece.
        """
        turn = place // GROUPS % 4
        self._fetch(place + self.size, place, 128 * (place % GROUPS if owner is None else owner) + 32 * turn)

    def begin(self) -> None:
        for place in range(self.size):
            self._fetch(place, None, 0)

    def _fetch(self, place: int, after: int | None, mine: int) -> None:
        """Start to fetch a piece as soon as the previous piece at its place is no longer needed. One thread does it."""
        schedule, plan = self.plan.schedule, self.plan
        turns, index = divmod(place, len(schedule))
        step = self.step + turns
        left = Int(plan.steps) - step
        source_step = Int(plan.steps - 1) - step if plan.backward else step
        pieces = self.weights.type.shape[1]
        offset = (source_step * pieces + schedule[index].number) * plan.shape.slot
        full, empty, _ = self._bars(place)
        parity = self._bars(after)[2] if after is not None else Int(0)
        size = schedule[index].size
        waiting = "WAIT: mbarrier.try_wait.parity.shared::cta.b64 q, [$4], $5; @!q bra WAIT; "
        assembly(
            f"{{ .reg .pred p, q; .reg .b64 t; setp.ne.s32 p, $0, {mine}; @p bra DONE; "
            "setp.lt.s32 q, $1, 1; @q bra DONE; "
            + (waiting if after is not None else "")
            + f"mbarrier.arrive.expect_tx.shared::cta.b64 t, [$3], {size}; "
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
            f"[$2], [$6], {size}, [$3]; DONE: bar.warp.sync 0xffffffff; }}",
            given=[self.lanes.thread, left, self.data(place), full, empty, parity, pointer(self.weights, offset)],
        )


def wait_for(bar: Int, parity: Int, needed: Int) -> None:
    """Wait until a phase of a barrier has completed, if ``needed`` is not 0."""
    assembly(
        "{ .reg .pred q; setp.eq.s32 q, $2, 0; @q bra DONE; "
        "WAIT: mbarrier.try_wait.parity.shared::cta.b64 q, [$0], $1; @!q bra WAIT; DONE: }",
        given=[bar, parity, needed],
    )


def prepare(plan: PixelPlan, chip: Chip) -> None:
    """Write the zeros and the one-hot rows, initialise the barriers, and start to fetch the first pieces."""
    shape = plan.shape
    if plan.interpret:

        @pl.when(lax.axis_index("group") == 0)
        def _() -> None:
            chip.narrow[...] = jnp.zeros(chip.narrow.shape, jnp.bfloat16)

        sync_groups(chip.meet)
        return

    def first(refs: Sequence[Value], _: Any, __: Any) -> None:
        table, bars, narrow = refs
        at = Lanes().thread
        word = at - ONE_HOT_OFFSET // 4
        row, column = word >> 3, word & 7
        one = choose((row & 1).equals(0), 0x3F80, 0x3F800000)
        number = choose(anded(word.below(128), column.equals(row >> 1)), one, 0)
        assembly(
            "{ .reg .pred p; setp.lt.s32 p, $0, 160; @p st.shared.b32 [$1], $2; }",
            given=[at, address(table) + (at << 2), number],
        )
        start = address(bars)
        for i in range(2 * shape.ring + 1):
            count = WARPS if shape.ring <= i < 2 * shape.ring else 1
            assembly(
                f"{{ .reg .pred p; setp.eq.s32 p, $0, 0; @p mbarrier.init.shared::cta.b64 [$1], {count}; }}",
                given=[at, start + 8 * i],
            )
        if shape.planes > shape.chunks > 1:
            size = 16 * shape.pixels
            for i in range(narrow.type.shape[0]):
                last = address(narrow) + ((i + 1) * shape.planes - 1) * size
                for k in range(0, size, 4 * 128 * GROUPS):
                    assembly("st.shared.b32 [$0], 0;", given=[last + (at << 2) + k])
        assembly("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;")

    inline(first, [chip.table, chip.bars, chip.narrow])
    sync_groups(chip.meet)

    def second(refs: Sequence[Value], numbers: Sequence[Int], _: Any) -> None:
        Ring(plan, Lanes(), *refs, numbers[0]).begin()

    inline(second, [chip.ring, chip.bars, chip.weights], [jnp.int32(0)])


def tiles_from_memory(shape: BlockShape, rows: Ref) -> list[Any]:
    """This group's part of a state in global memory."""
    group = lax.axis_index("group")
    if not shape.shared:
        parts = [rows.at[:, pl.ds(group * shape.made, shape.made)]]
    else:
        parts = [rows.at[pl.ds((group * shape.tiles + i) * TILE, TILE)] for i in range(shape.tiles)]
    return [plgpu.load(part, layout=plgpu.Layout.WGMMA, optimized=False) for part in parts]


def tiles_to_memory(shape: BlockShape, rows: Ref, tiles: Sequence[Any]) -> None:
    """Write this group's part of a state to global memory."""
    group = lax.axis_index("group")
    for i, tile in enumerate(tiles):
        if shape.shared:
            store(rows.at[pl.ds((group * shape.tiles + i) * TILE, TILE)], tile)
        else:
            store(rows.at[:, pl.ds(group * shape.made, shape.made)], tile)
