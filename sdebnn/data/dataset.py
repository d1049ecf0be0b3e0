"""A data set: a part to learn from, a part to be judged by, and the names of the classes.

Arrays may be memory maps: then nothing here reads more of them than the rows that are asked for.
"""

from typing import Any, NamedTuple

import numpy as np

from sdebnn.checks import check_count, shown


class Rows:
    """Some rows of an array that stays on disk, in the order given: ``rows[i]`` reads ``array[index[i]]``, no more."""

    def __init__(self, array: "np.ndarray | Rows", index: np.ndarray):
        # Rows of rows are rows: a split of a split costs one look-up.
        self.array, self.index = (array.array, array.index[index]) if isinstance(array, Rows) else (array, index)

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

    def __getitem__(self, key: Any) -> np.ndarray:
        return self.array[self.index[key]]

    def origin(self, rows: Any) -> np.ndarray:
        """Which rows of the array on disk these are: ``self[rows]`` is ``array[origin(rows)]``."""
        return np.atleast_1d(self.index[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("rows on disk cannot become an array without a copy: leave out copy=False.")
        return np.asarray(self[:], dtype=dtype)

    def __repr__(self) -> str:
        return f"Rows(shape={self.shape}, dtype={self.dtype})"


class Part(NamedTuple):
    """Inputs and targets, examples first. Images are uint8 "example height width channel", labels int32."""

    x: np.ndarray | Rows
    y: np.ndarray | Rows


class DataSet(NamedTuple):
    """What to learn from and what to be judged by; ``classes`` is None where the targets are numbers."""

    name: str
    train: Part
    test: Part
    classes: tuple[str, ...] | None


def rows(part: Part, index: np.ndarray) -> Part:
    """Some examples of a part, in the order given: a view where the part is on disk, else a copy."""
    x, y = (Rows(a, index) if isinstance(a, np.memmap | Rows) else a[index] for a in part)
    return Part(x, y)


def held_out(part: Part, share: float = 0.1, *, seed: int, name: str = "share") -> tuple[Part, Part]:
    """Two parts, the second with a ``share`` of the examples drawn at random: to train on, and to choose by.

    ``name`` is what an error calls the share, for callers whose own users know it by another name.
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
    # Sorted, so that a pass over a memory map goes forward through the file.
    return rows(part, np.sort(order[second:])), rows(part, np.sort(order[:second]))
