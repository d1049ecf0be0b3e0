"""A model of a table with named columns: how the columns are encoded, a fitted estimator, and what it was trained on.

FOLDER/model.safetensors     the estimator
FOLDER/inputs.safetensors    the columns, the target, and the spread of the training rows
"""

import warnings
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from sdebnn.artifacts import load, save
from sdebnn.checks import check_choice, shown
from sdebnn.data import Distance, UnlikeTrainingWarning
from sdebnn.estimators import SDEBNNClassifier, SDEBNNRegressor
from sdebnn.records import TEXT, Rule, Rules, broken, check_finite, load_one, number, one_of, save_one
from sdebnn.tables.columns import ColumnCoder, WordColumn
from sdebnn.tables.frame import Frame, as_word, is_words, read_frame

Task = Literal["regression", "classification"]
KIND = "inputs of a table, version 1"
MODEL_FILE, INPUTS_FILE = "model.safetensors", "inputs.safetensors"
RULES: Rules = {
    "target": TEXT,
    "task": one_of(*get_args(Task)),
    "columns": Rule("a list of columns", lambda value: isinstance(value, list)),
    "limit": number(0.0),
}
MANY_CLASSES = 20  # different whole numbers: more are a quantity, fewer may be classes
ARRAYS = (".npy", ".npz", ".png", ".jpg", ".jpeg", ".parquet")  # files that are no text
FAR = 3.0  # a distance of which the user is warned


class TableModel(NamedTuple):
    """A fitted estimator with the columns that it takes."""

    target: str
    coder: ColumnCoder
    estimator: SDEBNNRegressor | SDEBNNClassifier
    distance: Distance

    @property
    def task(self) -> Task:
        """What the model does."""
        return "regression" if isinstance(self.estimator, SDEBNNRegressor) else "classification"

    def read(self, path: Path, *, with_target: bool = False) -> Frame:
        """The table in a file, with columns of the kinds that training had. Others are not looked at."""
        if path.suffix.lower() in ARRAYS or path.is_dir():
            raise ValueError(f"{path} is no table: a run of a table takes a .csv file with named columns.")
        words = [part.name for part in self.coder.parts if isinstance(part, WordColumn)]
        names = [part.name for part in self.coder.parts]
        return read_frame(path, words=words, used=[self.target, *names] if with_target else names)

    def inputs(self, frame: Frame, *, where: str) -> np.ndarray:
        """The matrix of the estimator. The column of the target may be there, and is not used.

        Rows that are far from those of training are mentioned in a warning.
        """
        matrix = self.coder.matrix(frame.without(self.target), where=where)
        unlike = self.distance.to(matrix)
        far = int((unlike > FAR).sum())
        if far:
            row = int(unlike.argmax())
            of_row = np.abs(self.distance.standardised(matrix[row]))
            name = np.repeat([part.name for part in self.coder.parts], [part.width for part in self.coder.parts])
            count = "1 row" if len(matrix) == 1 else f"{len(matrix)} rows"
            verb, forecasts = ("is", "this forecast") if far == 1 else ("are", "these forecasts")
            warnings.warn(
                f"{where}: {far} of {count} {verb} unlike the training data, row {row + 1} most of all, in its "
                f"column {shown(str(name[of_row.argmax()]))}: check its units, and trust {forecasts} less.",
                UnlikeTrainingWarning,
                stacklevel=2,
            )
        return matrix

    def save(self, folder: Path) -> None:
        """Write the files of this model into a folder."""
        facts = {
            "target": self.target,
            "task": self.task,
            "columns": self.coder.to_json(),
            "limit": self.distance.limit,
        }
        arrays = {name: getattr(self.distance, name) for name in ("center", "spread", "factor")}
        save_one(folder / INPUTS_FILE, arrays, KIND, facts)
        save(self.estimator, folder / MODEL_FILE)


def load_table(folder: Path) -> TableModel:
    """The model that ``TableModel.save`` wrote."""
    path = folder / INPUTS_FILE
    if not path.is_file():
        raise ValueError(f"{folder} holds no model of a table: {path.name} is missing.")
    arrays, facts = load_one(path, KIND, RULES)
    try:
        coder = ColumnCoder.from_json(facts["columns"])
    except ValueError as error:
        raise broken(path, f"describes no columns ({error})") from None
    size = coder.width
    check_finite(path, arrays)
    distance = Distance.from_arrays(arrays, facts["limit"], size)
    if distance is None:
        raise broken(path, f"has no numbers for {size} columns")
    estimator: Any = load(folder / MODEL_FILE)
    kind = "SDEBNNRegressor" if facts["task"] == "regression" else "SDEBNNClassifier"
    if type(estimator).__name__ != kind or estimator.n_features_in_ != size:
        raise broken(folder / MODEL_FILE, f"is no {facts['task']} of {size} columns, as {path.name} says")
    return TableModel(facts["target"], coder, estimator, distance)


def task_of(target: str, column: np.ndarray, asked: str | None = None) -> Task:
    """The task that a target column means, if it is plain or asked for."""
    if asked is not None:
        check_choice("task", asked, get_args(Task))
        if asked == "regression" and is_words(column):
            word = next(cell for cell in column if cell is not None)
            raise ValueError(f"the target {shown(target)} holds {shown(word)}: a regression needs numbers there.")
        return "regression" if asked == "regression" else "classification"
    if is_words(column):
        return "classification"
    distinct = np.unique(column[~np.isnan(column)])
    if len(distinct) > MANY_CLASSES or (distinct != np.round(distinct)).any():
        return "regression"
    if len(distinct) == 1:
        raise ValueError(
            f"the target {shown(target)} is {as_word(distinct[0])} in all rows, so there is nothing to learn: choose "
            "another."
        )
    if len(distinct) == 2:
        return "classification"
    raise ValueError(
        f"the target {shown(target)} holds {len(distinct)} different whole numbers, which may be classes or "
        "quantities: add --task classification or --task regression."
    )


def targets_of(column: np.ndarray, task: Task) -> np.ndarray:
    """A target column as the estimator takes it: numbers, or labels as text."""
    if task == "regression":
        return column.astype(np.float64)
    return column.astype(str) if is_words(column) else np.array([as_word(value) for value in column])


def known_rows(frame: Frame, target: str, *, where: str) -> Frame:
    """The rows whose target is known. Others are left out aloud."""
    if target not in frame.columns:
        raise ValueError(f"target={shown(target)} is not a column of {where}, which has {', '.join(frame.columns)}.")
    column = frame.columns[target]
    gone = np.array([cell is None for cell in column]) if is_words(column) else np.isnan(column)
    if gone.all():
        raise ValueError(f"the target {shown(target)} is missing in all rows of {where}: fill it in.")
    if gone.any():
        count = int(gone.sum())
        rows = "1 row has no target and is" if count == 1 else f"{count} rows have no target and are"
        warnings.warn(f"{where}: {rows} left out.", stacklevel=2)
    return frame.at(~gone)


def fit_table(frame: Frame, target: str, task: Task, *, where: str, **parameters: Any) -> TableModel:
    """Fit the estimator of a task, with these parameters, to the rows of a frame.

    If a cell of the inputs is missing, a regression is fitted by the ensemble, unless ``family`` says otherwise. What
    a missing cell would have told is noise, so rows with such cells are noisier than others. The noise of a Gaussian
    process is the same for all rows, and a few incomplete rows that are held out do not reliably show the error.
    """
    inputs = frame.without(target)
    coder = ColumnCoder.of(inputs)
    if task == "regression" and coder.with_missing:
        parameters = {"family": "ensemble", **parameters}
    matrix = coder.matrix(inputs, where=where)
    estimator = (SDEBNNRegressor if task == "regression" else SDEBNNClassifier)(**parameters)
    estimator.fit(matrix, targets_of(frame.columns[target], task))
    return TableModel(target, coder, estimator, Distance.of(matrix))
