"""What a model of a table says about rows, as named columns, and the files in which they are written."""

import csv
import io
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from sdebnn import metrics
from sdebnn.checks import check_choice
from sdebnn.estimators import SDEBNNRegressor
from sdebnn.files import save_array, write_whole
from sdebnn.tables.frame import Frame
from sdebnn.tables.model import TableModel, known_rows, targets_of

SUFFIXES = (".csv", ".npy", ".parquet")
Columns = dict[str, np.ndarray]


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
    x, y = model.inputs(frame, where=where), targets_of(frame.columns[model.target], model.task)
    estimator = model.estimator
    nll = -float(np.mean(estimator.log_prob(x, y)))
    if isinstance(estimator, SDEBNNRegressor):
        mean, (lower, upper) = np.asarray(estimator.predict(x)), estimator.predict_interval(x, 0.95)
        covered = float(np.mean((lower <= y) & (y <= upper)))
        return {"nll": nll, "rmse": float(np.sqrt(np.mean((mean - y) ** 2))), "coverage_95": covered}
    proba = np.asarray(estimator.predict_proba(x))[None]
    labels = np.searchsorted(estimator.classes_, y)
    found = {"accuracy": metrics.accuracy, "ece": metrics.ece, "brier": metrics.brier}
    return {"nll": nll, **{name: float(score(proba, labels)) for name, score in found.items()}}


def check_suffix(path: Path) -> None:
    """Refuse a file whose format is not known, or for which something is not installed."""
    check_choice("the suffix of out", path.suffix, SUFFIXES)
    if path.suffix == ".parquet":
        _polars()


def write_columns(path: Path, columns: Columns) -> None:
    """Write named columns as a file; its suffix says in which format."""
    if path.suffix == ".npy":  # the columns of numbers
        save_array(path, np.column_stack([column for column in columns.values() if column.dtype.kind == "f"]))
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


def _polars() -> Any:
    try:
        import polars
    except ImportError:
        raise ValueError(
            "a file .parquet needs polars: pip install polars, or choose a name that ends in .csv."
        ) from None
    return polars
