"""A data set: a training part, a test part, and the names of the classes.

Arrays may be memory maps: then only the rows that are asked for are read.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol, SupportsIndex, runtime_checkable

import numpy as np
from jaxtyping import Array

from sdebnn.checks import check_count, shown

ROWS_PER_CHECK = 1000
RowIndex = SupportsIndex | slice | np.ndarray | Sequence[int]


@runtime_checkable
class RowSource(Protocol):
    """Examples that are read when they are asked for: ``source[rows]`` returns them as an array.

    ``fit``, ``evaluate`` and ``predict`` accept any object with these three attributes in place of an array of inputs.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype: ...
    def __getitem__(self, key: RowIndex, /) -> np.ndarray: ...


Inputs = np.ndarray | Array | RowSource


class SelectedRows:
    """A selection of the rows of an array on disk: ``rows[i]`` reads ``array[index[i]]`` and nothing else."""

    def __init__(self, array: "np.ndarray | SelectedRows", index: np.ndarray):
        # A selection of a selection refers to the array itself, so that reading a row takes one lookup.
        self.array, self.index = (
            (array.array, array.index[index]) if isinstance(array, SelectedRows) else (array, index)
        )

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.index), *self.array.shape[1:])

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    @property
    def ndim(self) -> int:
        return self.array.ndim

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, key: RowIndex) -> np.ndarray:
        return self.array[self.index[key]]

    def origin(self, rows: RowIndex) -> np.ndarray:
        """The row numbers in the array on disk: ``self[rows]`` is ``array[origin(rows)]``."""
        return np.atleast_1d(self.index[rows])

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("rows on disk cannot become an array without a copy: leave out copy=False.")
        return np.asarray(self[:], dtype=dtype)

    def __repr__(self) -> str:
        return f"SelectedRows(shape={self.shape}, dtype={self.dtype})"


class Part(NamedTuple):
    """Inputs and targets, examples first. Images are uint8 "example height width channel", labels are int32."""

    x: np.ndarray | SelectedRows
    y: np.ndarray | SelectedRows


class DataSet(NamedTuple):
    """A training part and a test part; ``classes`` is None for a regression."""

    name: str
    train: Part
    test: Part
    classes: tuple[str, ...] | None


def select(part: Part, index: np.ndarray) -> Part:
    """The examples with these indices, in this order: a view if the part is on disk, else a copy."""
    x, y = (SelectedRows(a, index) if isinstance(a, np.memmap | SelectedRows) else a[index] for a in part)
    return Part(x, y)


def held_out(part: Part, share: float = 0.1, *, seed: int, name: str = "share") -> tuple[Part, Part]:
    """Split a part at random in two, the second with this ``share`` of the examples: for training and for validation.

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
