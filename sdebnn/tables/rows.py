"""The rows of a table to train on, and those for the test: of a file, or of a data set of the catalogue.

A data set of the catalogue has columns of numbers, x1, x2, ..., the target y, and its own test part.
"""

from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np

from sdebnn import fingerprints
from sdebnn.checks import check_choice, check_count, check_positive, shown
from sdebnn.columns import NAMES
from sdebnn.data import Part, find, load
from sdebnn.data.storage import file_md5
from sdebnn.data.tabular import MAX_CLASSES_OF_FEW
from sdebnn.estimators.regressor import FamilyName, NoiseName
from sdebnn.tables.frame import Frame, read_frame
from sdebnn.tables.kind import PARAMETERS
from sdebnn.tables.model import Task, known_rows, targets_of, task_of

SEEDS = 2**31
OF_REGRESSIONS = ("noise", "family")


class TableSettings(NamedTuple):
    """What is asked of a run of a table.

    ``data`` is a file, or a name of the catalogue. Of a file, ``target=None`` is the last column, ``task=None`` is
    inferred from it, ``test`` is the share of the rows to score on, and ``words`` are columns to take as words.
    """

    data: str
    target: str | None = None
    task: str | None = None
    seed: int = 0
    test: float = 0.1
    members: int = 5
    kl_weight: float = 1.0
    words: tuple[str, ...] = ()
    validation: float = 0.0  # share of the training rows that are held out from the estimator, and scored
    learning_rate: float | None = None  # None, here and below: that of the estimator
    sigma: float | None = None
    batch_size: int | None = None
    width: int | None = None
    steps: int | None = None
    max_iter: int | None = None
    noise: str | None = None
    family: str | None = None

    @property
    def parameters(self) -> dict[str, float | str]:
        """The parameters of the estimator that are given."""
        given = {name: getattr(self, name) for name in PARAMETERS}
        return {name: value for name, value in given.items() if value is not None}

    def check(self) -> None:
        """Refuse values that are not allowed."""
        if not 0 <= self.seed < SEEDS:
            raise ValueError(f"seed={self.seed} must be a whole number from 0 to {SEEDS - 1}.")
        if not 0 <= self.test < 1:
            raise ValueError(f"test={shown(self.test)} must be a share of the rows: 0 for none, or less than 1.")
        if not 0 <= self.validation < 1:
            raise ValueError(
                f"validation={shown(self.validation)} must be a share of the training rows: 0 for none, or less than 1."
            )
        for name in ("members", *(name for name, kind in PARAMETERS.items() if kind is int)):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        for name, kind in (("noise", NoiseName), ("family", FamilyName)):
            if getattr(self, name) is not None:
                check_choice(name, getattr(self, name), get_args(kind))
        for name in ("learning_rate", "sigma"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        check_positive("kl_weight", self.kl_weight, or_zero=True)


class TableRows(NamedTuple):
    """The target, the task, the rows to train on, and those for the test, if there are any."""

    target: str
    task: Task
    train: Frame
    test: Frame | None


def is_named_table(data: str) -> bool:
    """Whether this is the name of a table in the catalogue."""
    found = find(data)
    return found is not None and found[0].is_table


def label(data: str) -> str:
    """What messages and records call the data: the name in the catalogue, or that of a file without its folder."""
    return data if is_named_table(data) else Path(data).name


def is_there(data: str) -> bool:
    """Whether the data can be read again."""
    return is_named_table(data) or Path(data).exists()


def digest_of(settings: TableSettings) -> str:
    """A digest of the rows."""
    if not is_named_table(settings.data):
        return file_md5(Path(settings.data))
    data = load(settings.data, seed=settings.seed)
    return " ".join(fingerprints.digest(np.asarray(array))[:16] for part in (data.train, data.test) for array in part)


def table_rows(settings: TableSettings) -> TableRows:
    """The rows that the settings name."""
    return _named_rows(settings) if is_named_table(settings.data) else _file_rows(settings)


def _named_rows(settings: TableSettings) -> TableRows:
    data = load(settings.data, seed=settings.seed)
    train, test = (_frame(part, data.classes) for part in (data.train, data.test))
    return TableRows("y", "regression" if data.classes is None else "classification", train, test)


def _frame(part: Part, classes: tuple[str, ...] | None) -> Frame:
    x, y = np.asarray(part.x, np.float64), np.asarray(part.y)
    columns = {f"x{number}": column for number, column in enumerate(x.T, start=1)}
    target = y.astype(np.float64)[:, 0] if classes is None else np.array([classes[label] for label in y], object)
    return Frame({**columns, "y": target})


def _file_rows(settings: TableSettings) -> TableRows:
    where, frame = label(settings.data), read_frame(settings.data, words=settings.words)
    unknown = [name for name in settings.words if name not in frame.columns]
    if unknown:
        raise ValueError(f"words={shown(unknown[0])} is not a column of {where}, which has {', '.join(frame.columns)}.")
    target = list(frame.columns)[-1] if settings.target is None else settings.target
    frame = known_rows(frame, target, where=where)
    if target in NAMES or target.startswith("p("):
        raise ValueError(f"the target is called {target!r}, as a column of forecasts is: rename it in {where}.")
    task = task_of(target, frame.columns[target], settings.task)
    if task == "classification":
        _check_classes(target, targets_of(frame.columns[target], task))
    train, test = split(frame, settings.test, settings.seed)
    if task == "classification" and test is not None:
        train, test = _with_all_classes(train, test, target)
    return TableRows(target, task, train, test)


def _check_classes(target: str, labels: np.ndarray) -> None:
    """Refuse a target that is different in nearly every row, as a name or a number with a unit is."""
    classes = np.unique(labels)
    if len(classes) > max(MAX_CLASSES_OF_FEW, len(labels) // 2):
        raise ValueError(
            f"the target {shown(target)} holds {len(classes)} different labels in {len(labels)} rows, such as "
            f"{shown(str(labels[0]))}: choose another target, leave out rare classes, or write numbers as plain digits."
        )


def validation_split(settings: TableSettings, rows: TableRows) -> tuple[Frame, Frame | None]:
    """The rows that the estimator sees, and those of the training part that are held out from it, if any are."""
    train, held_out = split(rows.train, settings.validation, settings.seed)
    if settings.validation and held_out is None:
        raise ValueError(
            f"validation={shown(settings.validation)} of {rows.train.rows} rows is none of them: pass more rows, or a "
            "larger share."
        )
    if held_out is not None and rows.task == "classification":
        return _with_all_classes(train, held_out, rows.target)
    return train, held_out


def split(frame: Frame, share: float, seed: int) -> tuple[Frame, Frame | None]:
    """The rows to train on, and those for the test, in the order of the file."""
    count = round(share * frame.rows)
    if not share or not 0 < count < frame.rows:
        return frame, None
    order = np.random.default_rng(seed).permutation(frame.rows)
    return frame.at(np.sort(order[count:])), frame.at(np.sort(order[:count]))


def _with_all_classes(train: Frame, test: Frame, target: str) -> tuple[Frame, Frame | None]:
    """The two parts, with test rows of classes that training would not see moved to the training rows."""
    there, here = (targets_of(part.columns[target], "classification") for part in (test, train))
    unseen = ~np.isin(there, here)
    moved = {name: np.concatenate([column, test.columns[name][unseen]]) for name, column in train.columns.items()}
    return Frame(moved), None if unseen.all() else test.at(~unseen)
