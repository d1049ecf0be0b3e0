"""What a model of a table says about rows, as named columns, and the files in which they are written."""

import csv
import io
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from sdebnn import metrics
from sdebnn.checks import check_choice, shown
from sdebnn.estimators import SDEBNNRegressor
from sdebnn.files import save_array, write_whole
from sdebnn.tables.frame import Frame
from sdebnn.tables.model import TableModel, known_rows, targets_of, task_of

SUFFIXES = (".csv", ".npy", ".parquet")
Columns = dict[str, np.ndarray]
# Of the columns of a forecast, beside the target and the probabilities of classes.
NAMES = ("std", "std_reducible", "std_noise", "lower", "upper", "unlike", "probability", "entropy", "entropy_reducible")


def forecast(model: TableModel, frame: Frame, *, where: str, coverage: float = 0.95) -> Columns:
    """The forecast of every row, as named columns.

    Of a number: its mean and standard deviation; the part of it that more rows would reduce, and the noise; an interval
    that contains it with probability ``coverage``. Of a class: the most probable one, its probability, that of every
    class, and the entropy in nats with its part that more rows would reduce. ``unlike`` is how far the row is from the
    training rows: 99 % of those have at most 1.
    """
    x = model.inputs(frame, where=where)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "x is unlike")  # ``inputs`` has said so, and named the column
        return _forecast(model, x, coverage)


def _forecast(model: TableModel, x: np.ndarray, coverage: float) -> Columns:
    unlike = {"unlike": model.distance.to(x)}
    estimator = model.estimator
    uncertainty = estimator.predict_uncertainty(x)
    if isinstance(estimator, SDEBNNRegressor):
        mean, std = estimator.predict(x, return_std=True)
        lower, upper = estimator.predict_interval(x, coverage)
        parts = {"std_reducible": uncertainty.reducible, "std_noise": uncertainty.noise}
        return {model.target: mean, "std": std, **parts, "lower": lower, "upper": upper, **unlike}
    proba = np.asarray(estimator.predict_proba(x))
    best = proba.argmax(1)
    each = {f"p({label})": column for label, column in zip(estimator.classes_, proba.T, strict=True)}
    return {
        model.target: estimator.classes_[best], "probability": proba[np.arange(len(best)), best], **each,
        "entropy": uncertainty.reducible + uncertainty.noise, "entropy_reducible": uncertainty.reducible, **unlike,
    }  # fmt: skip


def table_scores(model: TableModel, frame: Frame, *, where: str) -> dict[str, float]:
    """The scores of the forecast of rows whose target is known."""
    frame = known_rows(frame, model.target, where=where)
    task_of(model.target, frame.columns[model.target], model.task)  # refuses words where numbers are needed
    y, estimator = targets_of(frame.columns[model.target], model.task), model.estimator
    if not isinstance(estimator, SDEBNNRegressor):
        known = np.isin(y, estimator.classes_)
        if not known.all():
            warnings.warn(
                f"{where}: {int((~known).sum())} rows of classes that training did not know, such as "
                f"{shown(str(y[~known][0]))}, are left out.",
                stacklevel=2,
            )
            if not known.any():
                raise ValueError(f"{where} holds no row of a class that training knew: {shown(estimator.classes_)}.")
            frame, y = frame.at(known), y[known]
    x = model.inputs(frame, where=where)
    nll = -float(np.mean(estimator.log_prob(x, y)))
    if isinstance(estimator, SDEBNNRegressor):
        mean, (lower, upper) = np.asarray(estimator.predict(x)), estimator.predict_interval(x, 0.95)
        covered = float(np.mean((lower <= y) & (y <= upper)))
        rmse = float(np.sqrt(np.mean((mean - y) ** 2)))
        return {"nll": nll, "rmse": rmse, "coverage_95": covered, "rows": len(y)}
    proba = np.asarray(estimator.predict_proba(x))[None]
    labels = np.searchsorted(estimator.classes_, y)
    found = {"accuracy": metrics.accuracy, "ece": metrics.ece, "brier": metrics.brier}
    return {"nll": nll, **{name: float(score(proba, labels)) for name, score in found.items()}, "rows": len(y)}


def check_suffix(path: Path) -> None:
    """Refuse a file whose format is not known, or for which something is not installed."""
    check_choice("the suffix of out", path.suffix, SUFFIXES)
    if path.suffix == ".parquet":
        _polars()


def write_columns(path: Path, columns: Columns) -> list[str]:
    """Write named columns as a file, whose suffix says in which format, and return the names of those in it."""
    if path.suffix == ".npy":  # the columns of numbers
        columns = {name: column for name, column in columns.items() if column.dtype.kind == "f"}
        save_array(path, np.column_stack(list(columns.values())))
    elif path.suffix == ".parquet":
        stream = io.BytesIO()
        _polars().DataFrame({name: column.tolist() for name, column in columns.items()}).write_parquet(stream)
        write_whole(path, stream.getvalue())
    else:
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator=os.linesep)
        writer.writerow(columns)
        writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
        write_whole(path, stream.getvalue().encode())
    return list(columns)


def _polars() -> Any:
    try:
        import polars
    except ImportError:
        raise ValueError(
            "a file .parquet needs polars: pip install polars, or choose a name that ends in .csv."
        ) from None
    return polars
