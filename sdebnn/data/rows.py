"""Examples whose rows are read when they are asked for: a selection of rows, and an array in several files."""

import abc
import math
from collections.abc import Sequence
from typing import Protocol, SupportsIndex, runtime_checkable

import numpy as np
from jaxtyping import Array

RowIndex = SupportsIndex | slice | np.ndarray | Sequence[int]


@runtime_checkable
class RowSource(Protocol):
    """Examples that are read when they are asked for: ``source[rows]`` returns them as an array.

        class Squares:
            shape, dtype = (40, 1), np.dtype(np.float32)

            def __getitem__(self, rows):
                return np.arange(40, dtype=np.float32)[rows, None] ** 2

        samples = predict(model, Squares(), draws=4, key=key)

    ``fit``, ``evaluate`` and ``predict`` accept any object with these three attributes in place of an array of inputs.
    ``fit`` may read rows in another thread, but only in one at a time.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype: ...
    def __getitem__(self, key: RowIndex, /) -> np.ndarray: ...


Inputs = np.ndarray | Array | RowSource


class _RowsOnDisk(abc.ABC):
    """What selections and shards have in common with arrays."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    @abc.abstractmethod
    def __getitem__(self, key: RowIndex, /) -> np.ndarray: ...

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("rows on disk cannot become an array without a copy: leave out copy=False.")
        return np.asarray(self[:], dtype=dtype)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype})"


class ShardedRows(_RowsOnDisk):
    """The rows of several arrays on disk, one after the other: ``rows[i]`` reads the array that holds row i.

        np.save("first.npy", X[:40])
        np.save("second.npy", X[40:])
        files = ["first.npy", "second.npy"]
        rows = sdebnn.data.ShardedRows([np.load(file, mmap_mode="r") for file in files], files)
        print(rows.shape, rows[[0, 59]])

    ``fit``, ``evaluate`` and ``predict`` take them as inputs.

    ``names`` are those of the files, for errors.
    """

    def __init__(self, shards: Sequence[np.ndarray], names: Sequence[str]):
        for shard, name in zip(shards, names, strict=True):
            if shard.ndim < 1 or shard.shape[1:] != shards[0].shape[1:] or shard.dtype != shards[0].dtype:
                raise ValueError(
                    f"{name} holds {shard.dtype} of shape {shard.shape}, and {names[0]} holds {shards[0].dtype} of "
                    f"shape {shards[0].shape}: shards must agree in all but the number of rows."
                )
        self.shards, self.names = tuple(shards), tuple(names)
        self.starts = np.cumsum([0, *map(len, shards)])
        self.shape, self.dtype = (int(self.starts[-1]), *shards[0].shape[1:]), shards[0].dtype

    def __getitem__(self, key: RowIndex, /) -> np.ndarray:
        if isinstance(key, slice):
            return self._sliced(*key.indices(len(self)))
        rows = np.asarray(key)
        if rows.dtype == bool:
            rows = np.nonzero(rows)[0]
        rows = np.where(rows < 0, rows + len(self), rows).astype(np.int64)
        if rows.size and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"rows from {rows.min()} to {rows.max()} are not all among {len(self)}.")
        return self._gathered(rows.ravel()).reshape(*rows.shape, *self.shape[1:])

    def name_of_row(self, row: int) -> str:
        """A row as errors name it: by its number in all shards, and by its place in its file."""
        shard = int(self._shard_of(np.array([row]))[0])
        return f"row {row} (row {row - self.starts[shard]} of {self.names[shard]})"

    def _shard_of(self, rows: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.starts, rows, "right") - 1

    def _sliced(self, start: int, stop: int, step: int) -> np.ndarray:
        if step != 1:
            return self._gathered(np.arange(start, stop, step))
        ends = zip(self.starts[:-1], self.starts[1:], self.shards, strict=True)
        parts = [shard[max(start, a) - a : stop - a] for a, b, shard in ends if a < stop and start < b]
        return np.concatenate(parts) if parts else np.empty((0, *self.shape[1:]), self.dtype)

    def _gathered(self, rows: np.ndarray) -> np.ndarray:
        found = np.empty((len(rows), *self.shape[1:]), self.dtype)
        shard_of = self._shard_of(rows)
        by_shard = np.argsort(shard_of, kind="stable")
        ends = np.nonzero(np.diff(shard_of[by_shard]))[0] + 1
        for places in np.split(by_shard, ends) if len(rows) else ():
            shard = shard_of[places[0]]
            found[places] = self.shards[shard][rows[places] - self.starts[shard]]
        return found


class SelectedRows(_RowsOnDisk):
    """A selection of the rows of an array on disk: ``rows[i]`` reads ``array[index[i]]`` and nothing else."""

    def __init__(self, array: "np.ndarray | ShardedRows | SelectedRows", index: np.ndarray):
        # A selection of a selection refers to the array itself, so that reading a row takes one lookup.
        self.array, self.index = (
            (array.array, array.index[index]) if isinstance(array, SelectedRows) else (array, index)
        )
        self.shape, self.dtype = (len(self.index), *self.array.shape[1:]), self.array.dtype

    def __getitem__(self, key: RowIndex, /) -> np.ndarray:
        return self.array[self.index[key]]

    def origin(self, rows: RowIndex) -> np.ndarray:
        """The row numbers in the array on disk: ``self[rows]`` is ``array[origin(rows)]``."""
        return np.atleast_1d(self.index[rows])

    def name_of_row(self, row: int) -> str:
        """A row as errors name it: by its number in the array on disk."""
        return name_of_row(self.array, int(self.index[row]))


RowsOnDisk = np.memmap | ShardedRows | SelectedRows


def name_of_row(x: object, row: int) -> str:
    """A row of inputs as errors name it: by its number in the user's own array."""
    return x.name_of_row(row) if isinstance(x, ShardedRows | SelectedRows) else f"row {row}"
