"""A run of a table as a ``Forecaster``."""

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sdebnn.checks import check_count, shown
from sdebnn.columns import Columns
from sdebnn.tables.columns import NumberColumn, WordColumn
from sdebnn.tables.forecasts import forecast
from sdebnn.tables.frame import MISSING, Frame
from sdebnn.tables.model import TableModel
from sdebnn.tables.runs import open_table, scores_on


class TableForecaster(NamedTuple):
    """A model of a table with named columns."""

    model: TableModel

    @staticmethod
    def open(run: Path, draws: int | None = None) -> "TableForecaster":
        """The model of a run, with another number of draws than usual if it is given."""
        model = open_table(run)
        if draws is not None:
            check_count("draws", draws)
            if model.estimator.scores_ is None:  # the scores of conformal intervals are those of as many draws
                model.estimator.draws = draws
        return TableForecaster(model)

    @property
    def target(self) -> str:
        """The name of the column with the prediction."""
        return self.model.target

    @property
    def contract(self) -> dict[str, Any]:
        """The columns, and the classes."""
        classes = getattr(self.model.estimator, "classes_", None)
        return {
            "kind": "table",
            "task": self.model.task,
            "target": self.model.target,
            "columns": [_described(part) for part in self.model.coder.parts],
            "classes": None if classes is None else [str(label) for label in classes],
        }

    def read(self, path: Path) -> Frame:
        """The rows of a .csv file."""
        return self.model.read(path)

    def from_json(self, rows: Any) -> Frame:
        """Rows as objects with the names of the columns; null, or a name that is absent, is a missing value."""
        if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
            raise ValueError("rows must be a list of at least one object with the names of the columns.")
        names = {part.name for part in self.model.coder.parts}
        left_out = {*self.model.coder.left_out, self.target}
        extra = dict.fromkeys(name for row in rows for name in row if name not in names and name not in left_out)
        absent = names - {name for row in rows for name in row}
        if absent:
            raise ValueError(
                f"no row has the column {shown(sorted(absent)[0])}: write null where it is missing; the model takes "
                f"{', '.join(sorted(names))}."
            )
        if extra:
            warnings.warn(f"rows: the model does not use {', '.join(map(shown, extra))}.", stacklevel=2)
        return Frame({part.name: _cells(part, [row.get(part.name) for row in rows]) for part in self.model.coder.parts})

    def forecast(self, inputs: Frame, *, where: str, coverage: float = 0.95) -> Columns:
        """The forecast of every row."""
        return forecast(self.model, inputs, where=where, coverage=coverage)

    def scores(self, path: Path) -> dict[str, float]:
        """The scores on the rows of a .csv file with the target's column."""
        return scores_on(self.model, path)


def _described(part: NumberColumn | WordColumn) -> dict[str, Any]:
    if isinstance(part, NumberColumn):
        return {"name": part.name, "kind": "number", "if_missing": part.median}
    return {"name": part.name, "kind": "word", "words": list(part.words)}


def _truth(part: WordColumn, value: bool) -> str:
    """The word by which a column says whether something is true."""
    return next((word for word in part.words if word is not None and word.lower() == str(value).lower()), str(value))


def _cells(part: NumberColumn | WordColumn, cells: list[Any]) -> np.ndarray:
    """The cells of one column, as ``read_frame`` would return them."""
    if isinstance(part, WordColumn):
        cells = [_truth(part, cell) if isinstance(cell, bool) else cell for cell in cells]
        wrong = next((cell for cell in cells if cell is not None and not isinstance(cell, str)), None)
        if wrong is not None:
            raise ValueError(f"column {shown(part.name)} holds {shown(wrong)}: it takes words, in quotes.")
        return np.array([None if cell is None or cell.lower() in MISSING else cell for cell in cells], object)
    for cell in cells:
        known = cell is None or (isinstance(cell, int | float) and not isinstance(cell, bool))
        if not known or (cell is not None and not abs(cell) < 1e300):
            raise ValueError(f"column {shown(part.name)} holds {shown(cell)}: it takes finite numbers, or null.")
    return np.array([np.nan if cell is None else float(cell) for cell in cells])
