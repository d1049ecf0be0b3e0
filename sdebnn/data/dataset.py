"""A data set: a training part, a test part, and the names of the classes.

Arrays may be memory maps, or shards of one array: then only the rows that are asked for are read.
"""

import math
from typing import NamedTuple

import numpy as np

from sdebnn.checks import check_count, shown
from sdebnn.data.rows import RowsOnDisk, SelectedRows, ShardedRows

ROWS_PER_CHECK = 1000


class Part(NamedTuple):
    """Inputs and targets, examples first. Images are uint8 "example height width channel", labels are int32.

        part = sdebnn.data.Part(X, target[:, None])
        x, y = part

    The arrays may be on disk: memory maps, ``ShardedRows``, or selections of their rows.
    """

    x: np.ndarray | ShardedRows | SelectedRows
    y: np.ndarray | ShardedRows | SelectedRows


class DataSet(NamedTuple):
    """A training part and a test part; ``classes`` is None for a regression.

        train = sdebnn.data.Part(X[:50], classes[:50])
        test = sdebnn.data.Part(X[50:], classes[50:])
        data = sdebnn.data.DataSet("measurements", train, test, ("low", "middle", "high"))

    ``load`` returns such sets.
    """

    name: str
    train: Part
    test: Part
    classes: tuple[str, ...] | None


def select(part: Part, index: np.ndarray) -> Part:
    """The examples with these indices, in this order: a view if the part is on disk, else a copy."""
    x, y = (SelectedRows(a, index) if isinstance(a, RowsOnDisk) else a[index] for a in part)
    return Part(x, y)


def held_out(part: Part, share: float = 0.1, *, seed: int, name: str = "share") -> tuple[Part, Part]:
    """Split a part at random in two, the second with this ``share`` of the examples: for training and for validation.

        train, rest = sdebnn.data.held_out(sdebnn.data.Part(X, target[:, None]), 0.2, seed=0)
        validation = Validation(rest.x, rest.y)

    ``name`` is what error messages call the share, for callers whose users know it by another name.
    """
    check_count("seed", seed, least=0)
    examples = len(part.x)
    second = round(share * examples) if isinstance(share, int | float) and 0 < share < 1 else 0
    if not 0 < second < examples:
        raise ValueError(
            f"{name}={shown(share)} of {examples} examples leaves nothing on one side: "
            "pass a number between 0 and 1, such as 0.1, that leaves examples on both."
        )
    order = np.random.default_rng(seed).permutation(examples)
    # Sorted, so that a pass over a memory map reads the file forwards.
    return select(part, np.sort(order[second:])), select(part, np.sort(order[:second]))


def check_part(name: str, part: Part, limit: int | None = None) -> None:
    """Refuse a part with NaN or infinite values; it is read in blocks, as it may be larger than memory.

    Inputs of more than ``limit`` bytes are skipped: training checks their rows when it reads them.
    """
    size = math.prod(part.x.shape) * np.dtype(part.x.dtype).itemsize
    for of, column in (("x", part.x), ("y", part.y)):
        if of == "x" and limit is not None and size > limit:
            continue
        for i in range(0, len(column), ROWS_PER_CHECK):
            rows = np.asarray(column[i : i + ROWS_PER_CHECK])
            if np.issubdtype(rows.dtype, np.inexact) and not np.isfinite(rows).all():
                first = np.argwhere(~np.isfinite(rows))[0]
                at = (i + int(first[0]), *map(int, first[1:]))
                value = rows[tuple(first)]
                raise ValueError(f"{name}'s {of} holds {value} at index {at}: remove or impute such values.")
