"""Tables of numbers: a user's own .csv or .npy files, and the UCI sets in the form with fixed splits.

Inputs are float32 "example feature", targets float32 "example 1"; nothing is rescaled.
"""

import csv as comma
import os
import re
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import numpy as np

from sdebnn.checks import check_choice, check_count, shown
from sdebnn.data import published
from sdebnn.data.dataset import DataSet, Part, held_out
from sdebnn.data.formats import mapped
from sdebnn.files import check_regular

Folder = str | os.PathLike[str] | None
Lines = Iterator[tuple[int, list[str]]]  # the number of a line, and its cells
LARGEST = float(np.finfo(np.float32).max)
NOT_IN_A_NUMBER = re.compile(r"[^0-9eE.+\- \t]")  # float() also reads 1_000, other digits and nan


def csv(path: str | os.PathLike[str], target: int | str = -1, *, test: float = 0.1, seed: int = 0) -> DataSet:
    """A table in a text file, its columns parted by commas, semicolons, tabs or spaces, with or without a header.

    ``target`` is the number of the column to predict, or its name in the header; all others are inputs. Numbers are in
    plain decimal notation, such as -1.5 or 2e3. A share of ``test`` rows is drawn by the seed.
    """
    path = Path(path)
    names, table = _table(path, _cells)
    columns = table.shape[1]
    if isinstance(target, str):
        if names is None or names.count(target) != 1:
            raise ValueError(f"target={shown(target)} names no one column of {path}, whose header is {shown(names)}.")
        column = names.index(target)
    elif isinstance(target, int) and not isinstance(target, bool) and -columns <= target < columns:
        column = target % columns
    else:
        raise ValueError(f"target={shown(target)} is not a column of {path}: number them 0 to {columns - 1}.")
    if columns < 2:
        raise ValueError(f"{path} has one column: a table needs the target and at least one input.")
    table = table.astype(np.float32)
    whole = Part(np.delete(table, column, axis=1), table[:, [column]])
    train, judged = held_out(whole, test, seed=seed, name="test")
    return DataSet(path.stem, train, judged, None)


def uci(name: str, split: int, folder: Folder = None) -> DataSet:
    """A UCI regression in one of its fixed splits, from ``folder``/uci/<name>/: data.txt, index_*.txt."""
    root = published.home(folder) / "uci"
    there = sorted(path.parent.name for path in root.glob("*/data.txt"))
    if not there:
        raise ValueError(f"{root} holds no data set: put data.txt and index_*.txt of each in a folder of its name.")
    check_choice("name", name, there)
    check_count("split", split, least=0)
    root = root / name
    splits = len(list(root.glob("index_train_*.txt")))
    if split >= splits:
        raise ValueError(f"split={split} is not there: {root} has {splits}, numbered from 0.")
    _, table = _table(root / "data.txt", _words)
    rows, columns = table.shape
    features, target = (_index(root / f"index_{of}.txt", columns) for of in ("features", "target"))
    train, test = (_index(root / f"index_{of}_{split}.txt", rows) for of in ("train", "test"))
    if np.intersect1d(train, test).size or np.intersect1d(features, target).size:
        raise ValueError(f"{root}: split {split} has rows or columns on both sides: fetch the data set anew.")
    x, y = (np.ascontiguousarray(table[:, at], np.float32) for at in (features, target))
    return DataSet(name, Part(x[train], y[train]), Part(x[test], y[test]), None)


def arrays(folder: str | os.PathLike[str]) -> DataSet:
    """Your own x_train.npy, y_train.npy, x_test.npy and y_test.npy, which may be larger than memory: they stay on disk.

    Whole numbers in a y of one axis are labels, from 0; any other y is numbers to predict, "example output".
    """
    root = Path(folder)
    try:
        found = {f"{a}_{of}": mapped(root / f"{a}_{of}.npy") for of in ("train", "test") for a in "xy"}
    except FileNotFoundError as error:
        raise ValueError(f"{error} Save it with numpy.save.") from None
    for name, value in found.items():
        _check_saved(root / f"{name}.npy", value, least_ndim=2 if name[0] == "x" else 1)
    for of in ("train", "test"):
        x, y = found[f"x_{of}"], found[f"y_{of}"]
        if len(x) != len(y):
            raise ValueError(f"{root}: x_{of}.npy has {len(x)} examples and y_{of}.npy {len(y)}: they must agree.")
    train, test = found["y_train"], found["y_test"]
    if found["x_train"].shape[1:] != found["x_test"].shape[1:] or train.shape[1:] != test.shape[1:]:
        raise ValueError(f"{root}: an example of the train part has another shape than one of the test part.")
    if train.ndim > 1:
        return DataSet(root.name, Part(found["x_train"], train), Part(found["x_test"], test), None)
    low, high = min(train.min(), test.min()), max(train.max(), test.max())
    if train.dtype.kind not in "iu" or test.dtype.kind not in "iu" or low < 0 or high > 2**20:
        raise ValueError(f"{root}: y of one axis are labels 0, 1, ...; numbers to predict are saved as y[:, None].")
    train, test = train.astype(np.int32), test.astype(np.int32)
    classes = tuple(map(str, range(int(high) + 1)))
    return DataSet(root.name, Part(found["x_train"], train), Part(found["x_test"], test), classes)


def _check_saved(path: Path, value: np.ndarray, least_ndim: int) -> None:
    """Refuse an array that cannot be one half of a part."""
    if value.dtype.kind not in "buif" or not value.dtype.isnative:
        raise ValueError(f"{path} holds {value.dtype}: save real numbers in this machine's byte order.")
    if value.ndim < least_ndim or value.size == 0:
        raise ValueError(f"{path} has shape {value.shape}: it needs examples, and {least_ndim} axes or more.")


def _cells(stream: TextIO) -> Lines:
    """The cells of each line that has any, parted by the first separator that the first line knows."""
    first = next((line for line in stream if line.strip()), "")
    stream.seek(0)
    separator = next((mark for mark in ",;\t" if mark in first), None)
    if separator is None:
        yield from _words(stream)
        return
    reader, line = comma.reader(stream, delimiter=separator, skipinitialspace=True), 1
    try:
        for cells in reader:
            if any(map(str.strip, cells)):
                yield line, cells
            line = reader.line_num + 1  # where the next cells begin: quoted ones may go over several lines
    except comma.Error as error:
        words = str(error)
        if "field limit" in words:
            most = comma.field_size_limit()
            words = f"has a cell of more than {most} characters: close its quotation mark, or shorten it"
        raise _LineError(f"line {line} {words}") from None


def _words(stream: TextIO) -> Lines:
    for number, line in enumerate(stream, 1):
        # A space beyond ASCII may be part of a number, as in 1\u202f000.
        if words := line.split() if line.isascii() else re.split("[ \t]+", line.strip(" \t\r\n")):
            yield number, words


class _LineError(Exception):
    """A line that cannot be split into cells."""


def _table(path: Path, cells_of: Callable[[TextIO], Lines]) -> tuple[list[str] | None, np.ndarray]:
    """The header, if there is one, and the numbers of a text file."""
    try:
        check_regular(path)
        with path.open(encoding="utf-8-sig", newline="") as stream:
            return _parse(path, cells_of(stream))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise ValueError(
            f"{path} is not a table in text (UTF-8): {_first_foreign_byte(path)}; save it as UTF-8."
        ) from None
    except _LineError as error:
        raise ValueError(f"{path} {error}.") from None


def _first_foreign_byte(path: Path) -> str:
    """Where a file stops being UTF-8: the decoder counts from the start of its last chunk, not of the file."""
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if number == 1 and line.startswith((b"\xff\xfe", b"\xfe\xff")):
                return "it begins like UTF-16"
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return f"line {number}, byte {error.start + 1} is 0x{line[error.start]:02x}"
    return "its end is missing"


def _parse(path: Path, lines: Lines) -> tuple[list[str] | None, np.ndarray]:
    names, width, values = None, 0, array("d")  # 8 bytes a number, where a list takes 32
    for line, cells in lines:
        if not width:
            width = len(cells)
            if _is_header(cells):
                names = [cell.strip() for cell in cells]
                continue
        if len(cells) != width:
            raise ValueError(f"{path} line {line} has {len(cells)} values, the first line has {width}.")
        row = _row(cells)
        if row is None:
            column = next(i for i, cell in enumerate(cells) if _row([cell]) is None)
            called = f" ({' '.join(names[column].split()):.80})" if names else ""
            raise ValueError(
                f"{path} line {line}, column {column}{called} holds {shown(cells[column])}: "
                "a table needs a finite number in every cell, written like -1.5 or 2e3."
            )
        values.extend(row)
    if not values:
        raise ValueError(f"{path} holds no rows of numbers.")
    return names, np.array(values).reshape(-1, width)


def _row(cells: list[str]) -> list[float] | None:
    """The numbers of a row, or None if a cell is not a plain decimal number that float32 can hold."""
    if NOT_IN_A_NUMBER.search("".join(cells)):
        return None
    try:
        row = list(map(float, cells))
    except ValueError:
        return None
    return row if max(row) <= LARGEST and min(row) >= -LARGEST else None


def _is_header(cells: list[str]) -> bool:
    """Whether the first line holds names. A line with numbers that we do not read, such as 1_000, is a bad row."""

    def is_read(cell: str) -> bool:
        try:
            float(cell)
        except ValueError:
            return False
        return True

    read = [cell for cell in cells if is_read(cell)]
    return len(read) < len(cells) and not any(any(map(str.isdigit, cell)) for cell in read)


def _index(path: Path, size: int) -> np.ndarray:
    """The row or column numbers of an index file: whole, each once, below ``size``."""
    _, table = _table(path, _words)
    index = table.astype(np.int64).ravel()
    if (index != table.ravel()).any() or index.min() < 0 or index.max() >= size or np.unique(index).size != index.size:
        raise ValueError(f"{path} must hold whole numbers from 0 to {size - 1}, each once: fetch the data set anew.")
    return index
