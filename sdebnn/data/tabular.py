"""Readers of tables of numbers: a user's own .csv or .npy files, and the UCI regressions with fixed splits.

Inputs are float32 "example feature", targets float32 "example 1"; nothing is rescaled.
"""

import os
from array import array
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from sdebnn.checks import check_choice, shown
from sdebnn.data import text
from sdebnn.data.dataset import DataSet, Part, held_out
from sdebnn.data.entry import Request
from sdebnn.data.formats import mapped
from sdebnn.data.rows import ShardedRows

MAX_CLASSES_OF_FEW = 20  # more classes than these need at least two examples each, on average
MAX_SHARDS = 400  # each is held open, and a process may have 1024 open files
TEST = 0.1  # share of the examples for the test part of data that have none


def check_no_share(where: Path, test: float | None) -> None:
    """Refuse a share for the test part of data that have one."""
    if test is not None:
        raise ValueError(f"test={shown(test)} is for data without a test part, and {where} has one: leave it out.")


def csv(path: str | os.PathLike[str], target: int | str = -1, *, test: float | None = None, seed: int = 0) -> DataSet:
    """A table in a text file with columns separated by commas, semicolons, tabs or spaces; the header is optional.

        data = sdebnn.data.tabular.csv("wine.csv", target="quality", test=0.2)

    ``target`` is the number of the column to predict, or its name in the header; all other columns are inputs. Numbers
    are in plain decimal notation, such as -1.5 or 2e3. The share ``test`` of the rows, a tenth, is drawn with the seed.
    """
    path = Path(path)
    names, table = text.parsed(path, text.cells, _parse)
    columns = table.shape[1]
    if isinstance(target, str):
        if names is None or names.count(target) != 1:
            raise ValueError(
                f"target={shown(target)} must name exactly one column of {path}, whose header is {shown(names)}."
            )
        column = names.index(target)
    elif isinstance(target, int) and not isinstance(target, bool) and -columns <= target < columns:
        column = target % columns
    else:
        raise ValueError(f"target={shown(target)} is not a column of {path}: number them 0 to {columns - 1}.")
    if columns < 2:
        raise ValueError(f"{path} has one column: a table needs the target and at least one input.")
    table = table.astype(np.float32)
    whole = Part(np.delete(table, column, axis=1), table[:, [column]])
    train_part, test_part = held_out(whole, TEST if test is None else test, seed=seed, name="test")
    return DataSet(path.stem, train_part, test_part, None)


def uci(request: Request) -> tuple[Part, Part]:
    """A UCI regression in one of its fixed splits, from the files data.txt and index_*.txt in a folder of its name."""
    name, split = (*request.options, *("", "0")[len(request.options) :])
    if not (split.isascii() and split.isdigit()):
        raise ValueError(f"split={shown(split)} must be a whole number, as in {request.entry.name}/concrete/0.")
    found = sorted(path.parent.name for path in request.folder.glob("*/data.txt"))
    if not found:
        raise ValueError(
            f"{request.folder} holds no data set: create a folder for each, with data.txt and index_*.txt in it."
        )
    check_choice("name", name, found)
    root = request.folder / name
    splits = len(list(root.glob("index_train_*.txt")))
    if int(split) >= splits:
        raise ValueError(f"split={split} does not exist: {root} has {splits}, numbered from 0.")
    _, table = text.parsed(root / "data.txt", text.words, _parse)
    rows, columns = table.shape
    features, target = (_index(root / f"index_{of}.txt", columns) for of in ("features", "target"))
    train, test = (_index(root / f"index_{of}_{int(split)}.txt", rows) for of in ("train", "test"))
    if np.intersect1d(train, test).size or np.intersect1d(features, target).size:
        raise ValueError(f"{root}: split {split} has rows or columns on both sides: fetch the data set again.")
    x, y = (np.ascontiguousarray(table[:, at], np.float32) for at in (features, target))
    return Part(x[train], y[train]), Part(x[test], y[test])


def arrays(folder: str | os.PathLike[str]) -> DataSet:
    """Your own x_train.npy, y_train.npy, x_test.npy and y_test.npy. They stay on disk, and may be larger than memory.

        data = sdebnn.data.tabular.arrays("arrays")

    Each may be several files, such as x_train-00000.npy and x_train-00001.npy, which hold its rows one after the other.
    If y has one axis, it holds labels, whole numbers; targets of a regression have two axes, "example output".
    """
    root = Path(folder)
    try:
        found = {f"{a}_{of}": _saved(root, f"{a}_{of}") for of in ("train", "test") for a in "xy"}
    except FileNotFoundError as error:
        raise ValueError(f"{error} Save it with numpy.save.") from None
    return data_set_of(root, found, suffix=".npy")


def _saved(root: Path, name: str) -> np.ndarray | ShardedRows:
    """The array in NAME.npy, or in NAME-00000.npy and so on. Targets in several files are read into memory."""
    whole, shards = root / f"{name}.npy", sorted(root.glob(f"{name}-*.npy"))
    if not shards:
        return mapped(whole)
    if whole.exists():
        raise ValueError(f"{root} holds both {whole.name} and {shards[0].name}: move one of them away.")
    if len(shards) > MAX_SHARDS:
        raise ValueError(f"{root} holds {len(shards)} files of {name}: save at most {MAX_SHARDS}, each with more rows.")
    paths = [root / f"{name}-{number:05d}.npy" for number in range(len(shards))]
    rows = ShardedRows([mapped(path) for path in paths], [str(path) for path in paths])
    return rows if name[0] == "x" else rows[:]


def data_set_of(root: Path, found: Mapping[str, np.ndarray | ShardedRows], *, suffix: str = "") -> DataSet:
    """The data set of four arrays, x_train, y_train, x_test and y_test, of a folder or a file.

    If y has one axis, it holds the labels, whole numbers or text. The classes are the labels that occur, in order.
    """
    for name, value in found.items():
        _check_saved(f"{root}: {name}{suffix}", value, least_ndim=2 if name[0] == "x" else 1)
    for of in ("train", "test"):
        x, y = found[f"x_{of}"], found[f"y_{of}"]
        if len(x) != len(y):
            raise ValueError(
                f"{root}: x_{of}{suffix} has {len(x)} examples and y_{of}{suffix} has {len(y)}: they must agree."
            )
    train, test = (np.asanyarray(found[name]) for name in ("y_train", "y_test"))  # memory maps stay what they are
    if found["x_train"].shape[1:] != found["x_test"].shape[1:] or train.shape[1:] != test.shape[1:]:
        raise ValueError(
            f"{root}: examples of the training part and of the test part differ in shape: save them alike."
        )
    name = root.stem if root.suffix == ".npz" else root.name
    if train.ndim > 1:
        if all(map(_is_one_hot, (train, test))):
            raise ValueError(f"{root}: y is one-hot, a 1 in each row: save the labels, such as y.argmax(1).")
        return DataSet(name, Part(found["x_train"], train), Part(found["x_test"], test), None)
    classes, parts = _labels(root, train, test)
    return DataSet(name, Part(found["x_train"], parts[0]), Part(found["x_test"], parts[1]), classes)


def _is_one_hot(y: np.ndarray) -> bool:
    """Whether each row of whole numbers holds a single 1 and otherwise 0, as no quantities do."""
    if y.ndim != 2 or y.shape[1] < 2 or y.dtype.kind not in "biu":
        return False
    return bool(((y == 0) | (y == 1)).all() and (y.sum(1) == 1).all())


def _labels(root: Path, train: np.ndarray, test: np.ndarray) -> tuple[tuple[str, ...], list[np.ndarray]]:
    """The classes, which are the labels that occur, and the number of the class of each example of the two parts."""
    kinds = {y.dtype.kind for y in (train, test)}
    if not (kinds == {"U"} or kinds <= {"i", "u"}):
        raise ValueError(
            f"{root}: a y with one axis must hold labels, such as 0 and 1; save targets of a regression as y[:, None]."
        )
    if kinds == {"i", "u"}:  # which NumPy would concatenate as floats
        train, test = train.astype(np.int64), test.astype(np.int64)
    labels = np.unique(np.concatenate([train, test]))
    if len(labels) < 2:
        raise ValueError(
            f"{root}: y holds no other label than {shown(str(labels[0]))}: a class needs another beside it."
        )
    examples = len(train) + len(test)
    if len(labels) > max(MAX_CLASSES_OF_FEW, examples // 2):
        raise ValueError(
            f"{root}: y holds {len(labels)} different labels for {examples} examples: save the targets of a regression "
            "as y[:, None], or leave out rare classes."
        )
    return tuple(map(str, labels)), [np.searchsorted(labels, y).astype(np.int32) for y in (train, test)]


def _check_saved(where: str, value: np.ndarray | ShardedRows, least_ndim: int) -> None:
    """Refuse an array that cannot be the inputs or the targets of a part."""
    labels = value.dtype.kind == "U" and value.ndim == least_ndim == 1
    if (value.dtype.kind not in "buif" and not labels) or not value.dtype.isnative:
        raise ValueError(f"{where} holds {value.dtype}: save real numbers in this machine's byte order.")
    if value.ndim < least_ndim or value.size == 0:
        raise ValueError(f"{where} has shape {value.shape}: save at least one example, and at least {least_ndim} axes.")


def _parse(path: Path, lines: text.Lines) -> tuple[list[str] | None, np.ndarray]:
    """The header, or None, and the numbers in the cells of some lines."""
    names, width, values = None, 0, array("d")  # 8 bytes per number instead of the 32 of a list
    for line, cells in lines:
        if not width:
            width = len(cells)
            if text.is_header(cells):
                names = [cell.strip() for cell in cells]
                continue
        if len(cells) != width:
            raise ValueError(f"{path} line {line} has {len(cells)} values, and the first line has {width}.")
        row = text.numbers(cells)
        if row is None:
            column = next(i for i, cell in enumerate(cells) if text.numbers([cell]) is None)
            called = f" ({' '.join(names[column].split()):.80})" if names else ""
            raise ValueError(
                f"{path} line {line}, column {column}{called} holds {shown(cells[column])}: "
                "a table needs a finite number in every cell, written like -1.5 or 2e3."
            )
        values.extend(row)
    if not values:
        raise ValueError(f"{path} has no rows of numbers.")
    return names, np.array(values).reshape(-1, width)


def _index(path: Path, size: int) -> np.ndarray:
    """The row or column numbers in an index file: distinct whole numbers below ``size``."""
    _, table = text.parsed(path, text.words, _parse)
    index = table.astype(np.int64).ravel()
    if (index != table.ravel()).any() or index.min() < 0 or index.max() >= size or np.unique(index).size != index.size:
        raise ValueError(f"{path} must hold whole numbers from 0 to {size - 1}, each once: fetch the data set again.")
    return index
