"""The inline parts of the kernels in ``jax.numpy``, for Pallas' interpreter, which does not support inline parts.

Rows of shared memory are not swizzled here, and the ring is not used: pieces are read from global memory.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from sdebnn_hopper.pixels.chip import Chip, PixelPlan
from sdebnn_hopper.pixels.geometry import (
    class_of,
    line_pixel,
    pixel,
    row_of,
    small_pixel,
    small_row,
    up_class_of,
)
from sdebnn_hopper.pixels.phases import Piece, Term, Work
from sdebnn_hopper.pixels.shape import CLASSES, GROUPS, TILE, WIDTH, BlockShape

Ref = Any
OWNERS = (0, 1, 2, 3, 0, 2, 0, 1, 0)  # the group that owns the parity of each tap, in the order of ``phases``


def in_column_order(x: Any) -> Any:
    """Restore the order of the columns in a unit of the gradients. A thread writes two of every eight columns."""
    return x.reshape(*x.shape[:-1], 4, 8, 2).swapaxes(-3, -2).reshape(x.shape)


def _in_thread_order(x: Any) -> Any:
    return x.reshape(*x.shape[:-1], 8, 4, 2).swapaxes(-3, -2).reshape(x.shape)


def _rows_at(rows: Any, at: Any, inside: Any) -> Any:
    return jnp.where(inside[:, None], rows[jnp.where(inside, at, 0)], 0.0)


def _first(work: Work, tile: int) -> Any:
    """The first row of this group's tile."""
    return (lax.axis_index("group") * work.tiles + tile) * TILE if work.shared else 0


def _block(plan: PixelPlan, chip: Chip, step: Any, piece: Piece) -> Any:
    source = plan.steps - 1 - step if plan.backward else step
    blocks = chip.weights[source, piece.number].astype(jnp.float32).reshape(-1, 8, 8, 8)
    rows = [jnp.stack([blocks[:, i, j ^ i] for j in range(8)], 1) for i in range(8)]
    return jnp.stack(rows, 1).reshape(-1, WIDTH)


def _product(work: Work, source: Any, y: Any, x: Any, parity: Any, term: Term, block: Any) -> Any:
    shape, move = work.shape, work.phase.move
    if not term.taps:
        classes = class_of(shape.small if work.on_small_image else shape.side, y, x)
        if move == "up":
            classes = up_class_of(2 * y + (parity >> 1), 2 * x + (parity & 1))
        rows = jax.nn.one_hot(classes, CLASSES)
    else:
        near = {
            "up": lambda i, j: small_row(shape, y - i, x - j),
            "down": lambda i, j: row_of(shape, 2 * y + i, 2 * x + j),
            "same": lambda i, j: row_of(shape, y + i, x + j),
        }[move]
        rows = jnp.concatenate([_rows_at(source, *near(*tap)) for tap in term.taps], 1)[:, : 16 * term.deep]
    k = rows.shape[1]
    part = block[term.row :]
    return jnp.dot(rows, part[: work.summed, :k].T if work.phase.by_rows else part[:k], precision="highest")


def _sums(plan: PixelPlan, number: int, chip: Chip, step: Any, source: Ref, tile: int, parity: int) -> Any:
    """The sums of this group's rows and columns of a tile, for one parity, or for its own if groups own parities."""
    work = Work(plan.shape, plan.phases[number])
    group = lax.axis_index("group")
    rows = source[...].astype(jnp.float32)
    if work.phase.narrow:
        rows = rows.transpose(1, 0, 2).reshape(plan.shape.pixels, -1)
    p = _first(work, tile) + jnp.arange(TILE)
    y, x = (small_pixel if work.on_small_image else pixel)(plan.shape, p)
    if work.to_state and plan.shape.by_lines:
        y, x = line_pixel(group, jnp.arange(TILE) >> 4, jnp.arange(TILE) & 15)
        y = y + tile
    total = jnp.zeros((TILE, work.summed))
    pieces = work.phase.groups[parity]
    owners = [None] * (len(pieces) - 9) + list(OWNERS) if work.owned else [None] * len(pieces)
    for piece, owner in zip(pieces, owners, strict=True):
        block = _block(plan, chip, step, piece)
        for term in piece.terms:
            z = _product(work, rows, y, x, group if work.owned else parity, term, block)
            total += z if owner is None else jnp.where(group == owner, z, 0.0)
    return lax.dynamic_slice(total, (0, group * work.made), (TILE, work.made)) if work.split else total


def _put(plan: PixelPlan, number: int, tile: int, parity: Any, sums: Any, out: Ref, slope_of: Ref | None) -> None:
    work = Work(plan.shape, plan.phases[number])
    few = plan.shape.small_pixels
    count = min(TILE, few) if work.on_small_image else TILE
    start = _first(work, tile) + (parity * few if work.phase.move == "up" else 0)
    columns = pl.ds(lax.axis_index("group") * work.made if work.split else 0, work.made)
    place = (pl.ds(start, count), columns)
    z = sums[:count]
    a = None if slope_of is None else slope_of[place].astype(jnp.float32)
    out[place] = (jnp.tanh(z) if a is None else z - z * a * a).astype(jnp.bfloat16)


def put_layer(plan: PixelPlan, number: int, chip: Chip, step: Any, source: Ref, out: Ref, slope_of: Ref | None) -> None:
    """As ``products.put_layer``."""
    work = Work(plan.shape, plan.phases[number])
    for parity in range(len(work.phase.groups)):
        for tile in range(work.tiles):
            z = _sums(plan, number, chip, step, source, tile, parity)
            _put(plan, number, tile, lax.axis_index("group") if work.owned else parity, z, out, slope_of)


def summed(plan: PixelPlan, number: int, chip: Chip, step: Any, source: Ref) -> tuple[Any, ...]:
    """As ``products.summed``."""
    tiles = Work(plan.shape, plan.phases[number]).tiles
    return tuple(_sums(plan, number, chip, step, source, tile, 0) for tile in range(tiles))


def put_sums(plan: PixelPlan, number: int, sums: Any, out: Ref) -> None:
    """As ``products.put_sums``."""
    _put(plan, number, 0, 0, sums, out, out)


def put_state(plan: PixelPlan, buffer: Ref, tiles: Sequence[Any], memory: Ref | None, index: Any) -> None:
    """As ``products.put_state``."""
    shape, group = plan.shape, lax.axis_index("group")
    images = 1 if memory is None else memory.shape[1]
    targets = [buffer] if memory is None else [buffer, memory.at[index // images, index % images]]
    for i, tile in enumerate(tiles):
        for w in range(4):
            row = ((group * shape.tiles + i) * TILE if shape.shared else 0) + 16 * w
            if shape.by_lines:
                y, x = line_pixel(group, w, 0)
                row, _ = row_of(shape, y + i, x)
            for k in range(shape.made // 8):
                chunk = k if shape.shared else group * (shape.made // 8) + k

                @pl.when(chunk < shape.chunks)
                def _(w: int = w, k: int = k, row: Any = row, chunk: Any = chunk, tile: Any = tile) -> None:
                    for target in targets:
                        target[chunk, pl.ds(row, 16), :] = tile[16 * w : 16 * w + 16, 8 * k : 8 * k + 8].astype(
                            jnp.bfloat16
                        )


def fetch_state(chip: Chip, states: Ref, index: Any) -> None:
    """Copy a state to shared memory."""
    images, chunks = states.shape[1:3]

    @pl.when(lax.axis_index("group") == 0)
    def _() -> None:
        for chunk in range(chunks):
            chip.narrow[0, chunk] = states[index // images, index % images, chunk]


def _write(out: Ref, unit: Any, sums: Any) -> None:
    images, units = out.shape[1], out.shape[2] // TILE
    image = unit // units
    rows = pl.ds(unit % units * TILE, TILE)
    out[image // images, image % images, rows, :] = _in_thread_order(sums).astype(jnp.bfloat16)


def _correlated(x: Any, d: Any) -> Any:
    return jnp.dot(x.T, d, precision="highest")


def put_inner(shape: BlockShape, out: Ref, unit: Any, x: Ref, d: Ref, up: bool) -> None:
    """As ``correlations.put_inner``."""
    group = lax.axis_index("group")
    wide, small = x[...].astype(jnp.float32), d[...].astype(jnp.float32)
    y, x = small_pixel(shape, jnp.arange(shape.small_pixels))

    @pl.when(group < 3)
    def _() -> None:
        for j in range(3):
            near = _rows_at(wide, *row_of(shape, 2 * y + group, 2 * x + j))
            _write(out, unit + 3 * group + j, _correlated(near, small))

    @pl.when(group == 3)
    def _() -> None:
        classes = up_class_of(*pixel(shape, jnp.arange(shape.pixels))) if up else class_of(shape.small, y, x)
        _write(out, unit + 9, _correlated(jax.nn.one_hot(classes, TILE), wide if up else small))


def put_outer(shape: BlockShape, out: Ref, unit: Any, x: Ref, d: Ref, last: bool) -> None:
    """As ``correlations.put_outer``."""
    group = lax.axis_index("group")
    state, wide = x[...].astype(jnp.float32), d[...].astype(jnp.float32)
    turns = shape.tiles_of(0 if last else 2) * shape.halves // GROUPS
    many = shape.pixels // shape.halves
    for turn in range(max(1, turns)):
        mine = group * max(1, turns) + turn
        rows = mine % shape.halves * many + jnp.arange(many)
        y, x = pixel(shape, rows)
        columns = []
        for k in range(8):
            chunk = 8 * (mine // shape.halves) + k
            tap = chunk // shape.chunks
            i, j = tap // 3 - 1, tap % 3 - 1
            at, inside = row_of(shape, *((y - i, x - j) if last else (y + i, x + j)))
            near = _rows_at(state[chunk % shape.chunks], at, inside & (tap < 9))
            which = chunk - 9 * shape.chunks
            of_map = jax.nn.one_hot(class_of(shape.side, y, x) - 8 * which, 8)
            mapped = (not last) & (which >= 0) & (which < 2)
            columns.append(jnp.where(mapped, of_map, near))
        _write(out, unit + mine, _correlated(jnp.concatenate(columns, 1), wide[rows]))
