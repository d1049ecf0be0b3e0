"""What a model of a table says about rows, as named columns, and its scores on them."""

import warnings

import numpy as np

from sdebnn import metrics
from sdebnn.checks import check_level, shown
from sdebnn.columns import Columns, of_classes, of_numbers
from sdebnn.data import UnlikeTrainingWarning
from sdebnn.estimators import SDEBNNRegressor
from sdebnn.outcomes import NumberOutcomes, Outcomes
from sdebnn.tables.frame import Frame
from sdebnn.tables.model import TableModel, known_rows, targets_of, task_of


def forecast(model: TableModel, frame: Frame, *, where: str, coverage: float = 0.95) -> Columns:
    """The forecast of every row, as named columns.

    Of a number: its mean and standard deviation; the part of it that more rows would reduce, and the noise; an interval
    that contains it with probability ``coverage``. Of a class: the most probable one, its probability, that of every
    class, and the entropy in nats with its part that more rows would reduce. ``unlike`` is how far the row is from the
    training rows: 99 % of those have at most 1.
    """
    check_level("coverage", coverage)
    x = model.inputs(frame, where=where)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnlikeTrainingWarning)  # ``inputs`` has said so, and named the column
        return _forecast(model, x, coverage)


def _forecast(model: TableModel, x: np.ndarray, coverage: float) -> Columns:
    unlike, estimator = model.distance.to(x), model.estimator
    if isinstance(estimator, SDEBNNRegressor):
        mean, std, uncertainty, interval = estimator.forecast(x, coverage)
        return of_numbers(model.target, mean, std, *uncertainty, interval, unlike)
    proba, uncertainty = estimator.forecast(x)
    return of_classes(model.target, estimator.classes_, proba, *uncertainty, unlike)


def table_outcomes(model: TableModel, frame: Frame, *, where: str) -> Outcomes:
    """The forecast of rows whose target is known, beside the target."""
    frame, y = _known(model, frame, where)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the scores of the same rows say so
        x = model.inputs(frame, where=where)
        found = model.estimator.outcomes(x, y)._replace(unlike=model.distance.to(x))
    return found._replace(names=(model.target,)) if isinstance(found, NumberOutcomes) else found


def table_scores(model: TableModel, frame: Frame, *, where: str) -> dict[str, float]:
    """The scores of the forecast of rows whose target is known."""
    frame, y = _known(model, frame, where)
    x, estimator = model.inputs(frame, where=where), model.estimator
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


def _known(model: TableModel, frame: Frame, where: str) -> tuple[Frame, np.ndarray]:
    """The rows whose target is known, and of a class that training knew; and their targets."""
    frame = known_rows(frame, model.target, where=where)
    task_of(model.target, frame.columns[model.target], model.task)  # refuses words where numbers are needed
    y, estimator = targets_of(frame.columns[model.target], model.task), model.estimator
    if isinstance(estimator, SDEBNNRegressor):
        return frame, y
    known = np.isin(y, estimator.classes_)
    if not known.any():
        raise ValueError(f"{where} holds no row of a class that training knew: {shown(estimator.classes_.tolist())}.")
    if not known.all():
        warnings.warn(
            f"{where}: {int((~known).sum())} rows of classes that training did not know, such as "
            f"{shown(str(y[~known][0]))}, are left out.",
            stacklevel=2,
        )
    return frame.at(known), y[known]
