"""A warpgroup's part of an image, for both kernels: four warpgroups share the positions of an image.

A buffer in shared memory has a row for each position, and rows of zeros before and after them, so that a neighbour
outside the image is read as zero. A warpgroup computes 64 positions; the last two groups have 32 of them in common, and
write the same numbers there.
"""

# pyright: reportCallIssue=false, reportAttributeAccessIssue=false
# (Mosaic has no complete types, and they differ between versions)

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from sdebnn_hopper.blocks import store
from sdebnn_hopper.patches.matrix import REGISTERS, ROWS, Ref, Slice, product
from sdebnn_hopper.patches.packing import LINE, LINES, POSITIONS, WIDTH, Table

GUARD = LINE + 1  # rows of zeros on either side: the farthest neighbour is one line and one patch away
HEIGHT = GUARD + POSITIONS + GUARD
GROUPS = 4
# Numbers in a row, of which 128, 32 and 24 are used. A row is an odd multiple of 16 bytes, so that neighbouring rows
# are in different banks of shared memory.
PIXELS_STRIDE, PATCH_STRIDE, STATE_STRIDE = 136, 40, 24


class PatchPlan(NamedTuple):
    """The parameters for which a kernel is compiled, besides the shapes of its arrays."""

    side: int
    dt: float
    interpret: bool = False


class Warpgroup(NamedTuple):
    """One of four warpgroups: the image and the positions that it computes."""

    plan: PatchPlan
    image: Any
    number: Any
    first: Any

    @classmethod
    def current(cls, plan: PatchPlan) -> "Warpgroup":
        number = lax.axis_index("group")
        return cls(plan, lax.axis_index("image"), number, jnp.minimum(number * ROWS, POSITIONS - ROWS))

    def part(self, buffer: Ref) -> Ref:
        """This group's rows of a buffer, with their neighbours."""
        return buffer.at[pl.ds(self.first, ROWS + 2 * GUARD)]

    def from_memory(self, rows: Ref, column: int = 0, columns: int = 16) -> Any:
        """This group's rows of an array in global memory that has a row for each position."""
        return _load(rows.at[pl.ds(self.first, ROWS), pl.ds(column, columns)])

    def load(self, part: Ref, offset: int, columns: int = WIDTH, column: int = 0) -> Any:
        return _load(part.at[pl.ds(GUARD + offset, ROWS), pl.ds(column, columns)])

    def put(self, part: Ref, x: Any, column: int = 0) -> None:
        store(part.at[pl.ds(GUARD, ROWS), pl.ds(column, x.shape[1])], x.astype(jnp.bfloat16))

    def to_memory(self, rows: Ref, x: Any) -> None:
        """Write this group's rows to global memory."""
        store(rows.at[pl.ds(self.first, ROWS)], x.astype(rows.dtype))

    def clear(self, buffers: Sequence[Ref]) -> None:
        for number, row in enumerate((0, ROWS, 2 * ROWS, HEIGHT - ROWS)):

            @pl.when(self.number == number)
            def _(row: int = row) -> None:
                for buffer in buffers:
                    buffer[pl.ds(row, ROWS)] = jnp.zeros((ROWS, buffer.shape[1]), jnp.bfloat16)

    def zero_outside(self, x: Any) -> Any:
        """The same numbers, with zeros at positions outside the image."""
        n = self.plan.side // 2
        position = plgpu.broadcasted_iota(jnp.int32, x.shape, 0, layout=REGISTERS) + self.first
        kept = (position & (LINE - 1)) < n
        if n < LINES:
            kept &= position < LINE * n
        return jnp.where(kept, x, 0.0)

    def put_layer(self, table: Table, matrix: Ref, source: Ref, out: Ref, where: Any) -> None:
        """Write the tanh of a layer's output."""
        sums = self.per_pixel if len(table.terms) > 1 else self.per_patch
        for parity, z in enumerate(sums(table, matrix, source, where)):
            self.put(out, jnp.tanh(self.zero_outside(z)), WIDTH * parity)

    def per_pixel(self, table: Table, matrix: Ref, source: Ref, where: Any = None) -> Iterator[Any]:
        """A layer with an output for each pixel, one parity after another. Neighbours are loaded once for all four."""
        near = {offset: self.load(source, offset, table.given) for offset in table.offsets}
        for parity, terms in enumerate(table.terms):
            of_class = [] if where is None else [(where, table.maps[parity])]
            yield self._product(table, matrix, [*of_class, *[(near[term.offset], term.row) for term in terms]])

    def per_patch(self, table: Table, matrix: Ref, source: Ref, where: Any = None) -> Iterator[Any]:
        """A layer with one output for each patch. Neighbours are loaded while products run."""
        of_class = [] if where is None else [(where, table.maps[0])]
        cuts = [(Slice(source, GUARD + term.offset, term.column, table.given), term.row) for term in table.terms[0]]
        yield self._product(table, matrix, [*of_class, *cuts])

    def _product(self, table: Table, matrix: Ref, terms: list[tuple[Any, int]]) -> Any:
        return product(table.made, matrix, terms, transposed=table.transposed, interpret=self.plan.interpret)


def _load(ref: Ref) -> Any:
    return plgpu.load(ref, layout=REGISTERS, optimized=False)
