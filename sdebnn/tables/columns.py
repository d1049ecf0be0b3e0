"""From named columns to a matrix of numbers, in the way that was found on the training rows.

A number that is missing is replaced by the median of its column; if any was missing in training, one more column of the
matrix says where. A word becomes one column for each of the most frequent words of training, 1 where it occurs; a
missing word counts as a word, if it occurred in training. Words that training did not know are 0 in all of them.
"""

import warnings
from typing import Any, NamedTuple

import numpy as np

from sdebnn.checks import shown
from sdebnn.tables.frame import Frame, as_word, is_words

MAX_WORDS = 30  # of a column that get a column of their own
MAX_DISTINCT = 0.5  # a column of words with a larger share of different ones names rows, and says nothing of others
MIN_ROWS_TO_IGNORE = 20


class NumberColumn(NamedTuple):
    """A column of numbers: its name, the number in place of missing ones, and whether some were missing."""

    name: str
    median: float
    with_missing: bool

    @property
    def width(self) -> int:
        """The number of columns of the matrix."""
        return 1 + self.with_missing

    def encoded(self, column: np.ndarray) -> np.ndarray:
        """The columns of the matrix."""
        gone = np.isnan(column)
        filled = np.where(gone, self.median, column)
        return np.column_stack([filled, gone]) if self.with_missing else filled[:, None]


class WordColumn(NamedTuple):
    """A column of words: its name, and the words that have a column of their own; None stands for a missing one."""

    name: str
    words: tuple[str | None, ...]

    @property
    def width(self) -> int:
        """The number of columns of the matrix."""
        return len(self.words)

    def encoded(self, column: np.ndarray) -> np.ndarray:
        """The columns of the matrix."""
        return np.column_stack([[cell == word for cell in column] for word in self.words]).astype(np.float64)


class ColumnCoder(NamedTuple):
    """The columns that a model takes, in the order of its matrix, and those that it leaves out."""

    parts: tuple[NumberColumn | WordColumn, ...]
    left_out: tuple[str, ...] = ()

    @staticmethod
    def of(frame: Frame) -> "ColumnCoder":
        """The coder of training rows. Columns that name rows, and columns without any cell, are left out aloud."""
        parts: list[NumberColumn | WordColumn] = []
        for name, column in frame.columns.items():
            part = _words_of(name, column) if is_words(column) else _numbers_of(name, column)
            if part is not None:
                parts.append(part)
        if not parts:
            raise ValueError("no column is left to predict from: add columns of numbers, or of few different words.")
        return ColumnCoder(
            tuple(parts), tuple(name for name in frame.columns if name not in {part.name for part in parts})
        )

    @property
    def width(self) -> int:
        """The number of columns of the matrix."""
        return sum(part.width for part in self.parts)

    @property
    def with_missing(self) -> bool:
        """Whether a cell was missing in training, in any column of the matrix."""
        return any(part.with_missing if isinstance(part, NumberColumn) else None in part.words for part in self.parts)

    def matrix(self, frame: Frame, *, where: str) -> np.ndarray:
        """The matrix of some rows, "row column". Columns that are missing are refused, others ignored aloud."""
        names = [part.name for part in self.parts]
        absent = [name for name in names if name not in frame.columns]
        if absent:
            raise ValueError(
                f"{where} has no column {shown(absent[0])}, which the model needs: it takes {', '.join(names)}."
            )
        extra = [name for name in frame.columns if name not in names and name not in self.left_out]
        if extra:
            warnings.warn(f"{where}: the model does not use {', '.join(map(shown, extra))}.", stacklevel=2)
        return np.hstack([self._encoded(part, frame.columns[part.name], where) for part in self.parts])

    def _encoded(self, part: NumberColumn | WordColumn, column: np.ndarray, where: str) -> np.ndarray:
        if isinstance(part, NumberColumn):
            if is_words(column):
                word = next(cell for cell in column if cell is not None)
                raise ValueError(f"{where} column {shown(part.name)} holds {shown(word)}: training had numbers there.")
            if not part.with_missing and np.isnan(column).any():
                warnings.warn(
                    f"{where}: {_missing(np.isnan(column), 'number')} in column {shown(part.name)}, which had all its "
                    f"numbers in training: its median, {part.median:g}, takes their place as if it were known, so that "
                    "the forecasts of these rows are too certain.",
                    stacklevel=3,
                )
            return part.encoded(column)
        if not is_words(column):  # words that look like numbers, such as codes
            column = np.array([None if np.isnan(cell) else as_word(cell) for cell in column], object)
        gone = np.array([cell is None for cell in column])
        if gone.any() and None not in part.words:
            warnings.warn(
                f"{where}: {_missing(gone, 'word')} in column {shown(part.name)}, which had all its words in training: "
                "such a cell counts as none of them.",
                stacklevel=3,
            )
        unknown = [cell for cell in column if cell is not None and cell not in part.words]
        if unknown and len(part.words) < MAX_WORDS:
            warnings.warn(
                f"{where}: column {shown(part.name)} holds words that training did not know, such as "
                f"{shown(unknown[0])}: they count as none of its words.",
                stacklevel=3,
            )
        return part.encoded(column)

    def to_json(self) -> list[dict[str, Any]]:
        """The columns as JSON, for ``from_json``."""
        return [
            *(
                {"kind": "numbers" if isinstance(part, NumberColumn) else "words", **part._asdict()}
                for part in self.parts
            ),
            *({"kind": "left out", "name": name} for name in self.left_out),
        ]

    @staticmethod
    def from_json(columns: list[Any]) -> "ColumnCoder":
        """The coder that ``to_json`` described; a ValueError if it describes none."""
        parts: list[NumberColumn | WordColumn] = []
        left_out: list[str] = []
        for column in columns:
            match column:
                case {"kind": "left out", "name": str(name)}:
                    left_out.append(name)
                case {"kind": "numbers", "name": str(name), "median": float(median), "with_missing": bool(gone)}:
                    parts.append(NumberColumn(name, median, gone))
                case {"kind": "words", "name": str(name), "words": [_, *_] as words}:
                    if not all(word is None or isinstance(word, str) for word in words) or len(words) > MAX_WORDS + 1:
                        raise ValueError(f"{shown(name)} has words that are none")
                    parts.append(WordColumn(name, tuple(words)))
                case _:
                    raise ValueError(f"{shown(column)} describes no column")
        if not parts or len({part.name for part in parts}) < len(parts):
            raise ValueError("there are no columns, or two of one name")
        return ColumnCoder(tuple(parts), tuple(left_out))


def _numbers_of(name: str, column: np.ndarray) -> NumberColumn | None:
    gone = np.isnan(column)
    if gone.all():
        warnings.warn(f"column {shown(name)} is empty, and is left out.", stacklevel=4)
        return None
    return NumberColumn(name, float(np.median(column[~gone])), bool(gone.any()))


def _words_of(name: str, column: np.ndarray) -> WordColumn | None:
    words, counts = np.unique([cell for cell in column if cell is not None], return_counts=True)
    if len(column) >= MIN_ROWS_TO_IGNORE and len(words) > MAX_DISTINCT * len(column):
        warnings.warn(
            f"column {shown(name)} holds {len(words)} different words in {len(column)} rows, which name rows rather "
            "than describe them: it is left out.",
            stacklevel=4,
        )
        return None
    order = np.argsort(-counts, kind="stable")[:MAX_WORDS]
    known = tuple(sorted(str(words[i]) for i in order))
    return WordColumn(name, (*known, None) if any(cell is None for cell in column) else known)


def missing_cells(frame: Frame) -> list[str]:
    """A sentence on the cells that are missing in training rows, if there are any."""
    columns = frame.columns.items()
    counts = {name: sum(cell is None or cell != cell for cell in column.tolist()) for name, column in columns}
    found = [f"{shown(name)} {count}" for name, count in counts.items() if count]
    if not found:
        return []
    return [
        f"Missing cells: {', '.join(found)}. The model is told which cells are missing, and learns from the others."
    ]


def _missing(gone: np.ndarray, what: str) -> str:
    """How many cells are missing, in words."""
    count = int(gone.sum())
    return f"1 {what} is missing" if count == 1 else f"{count} {what}s are missing"
