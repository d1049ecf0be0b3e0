"""The programs of models of tables. Their input is the matrix of ``ColumnCoder``, which the contract describes."""

import copy
import math
import warnings
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array
from scipy import linalg, stats

from sdebnn.checks import check_count, shown
from sdebnn.contract import AbstractModel
from sdebnn.data.standardise import MAX_STANDARDISED, Standardiser
from sdebnn.estimators import SDEBNNClassifier, SDEBNNRegressor
from sdebnn.estimators.conformal import conformal_bound
from sdebnn.estimators.estimator import PREDICTION_STREAM
from sdebnn.estimators.gaussian_process import GaussianProcess, noisy_kernel
from sdebnn.estimators.regressor import NOISES
from sdebnn.estimators.table import Encoding
from sdebnn.export.freezing import FrozenDraws
from sdebnn.export.programs import Compared, Program, class_outputs, frozen_model, number_outputs
from sdebnn.export.summaries import CDFS, Outputs, of_classes, of_numbers, quantile
from sdebnn.likelihoods import Categorical
from sdebnn.tables.columns import ColumnCoder, NumberColumn
from sdebnn.tables.forecaster import TableForecaster
from sdebnn.tables.frame import Frame
from sdebnn.tables.model import TableModel

COVERAGE = 0.95
LEVELS = ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2)
MAX_RATIO = 2.0**14  # of a column's center to its spread: float32 leaves ten bits for the differences
PARTS = ("std", "std_reducible", "std_noise", "lower", "upper")


def table_program(forecaster: TableForecaster, draws: int | None = None) -> Program:
    """The program of a model of a table, with the draws of its predictions, or another number of them."""
    model = forecaster.model._replace(estimator=_with_draws(forecaster.model.estimator, draws))
    forecaster, estimator = TableForecaster(model), model.estimator
    _check_columns(model)
    contract = forecaster.contract
    facts: dict[str, Any] = {name: contract[name] for name in ("kind", "task", "target", "classes")}
    unit = 1.0
    if isinstance(estimator, SDEBNNClassifier):
        function, facts["draws"] = _class_function(estimator)
    else:
        function, facts["draws"] = _number_function(estimator)
        facts["coverage"], unit = COVERAGE, float(estimator.y_scaling_.spread[0])
    return Program(
        function, (model.coder.width,), np.float32, facts, {"columns": _described(model.coder)},
        lambda random, rows: _compared(forecaster, random, rows), unit,
    )  # fmt: skip


def _with_draws(estimator: SDEBNNRegressor | SDEBNNClassifier, draws: int | None) -> SDEBNNRegressor | SDEBNNClassifier:
    if draws is None:
        return estimator
    check_count("draws", draws)
    if getattr(estimator, "gp_", None) is not None:  # its forecast is exact
        return estimator
    if estimator.scores_ is not None and draws != estimator.draws_:
        raise ValueError(f"draws={draws}: the intervals of this model need {estimator.draws_} draws: leave it out.")
    changed = copy.copy(estimator)
    changed.draws = draws
    return changed


def _check_columns(model: TableModel) -> None:
    """Refuse columns of which float32, the type of the inputs, would lose the differences between rows."""
    center, spread = model.estimator.encoding_.columns
    lost = np.abs(center) > MAX_RATIO * spread
    if lost.any():
        at = int(lost.argmax())
        name = np.repeat([part.name for part in model.coder.parts], [part.width for part in model.coder.parts])[at]
        raise ValueError(
            f"column {shown(str(name))} is {center[at]:.9g} with a standard deviation of {spread[at]:.3g}, which the "
            "float32 inputs of exported programs cannot tell apart: subtract a constant from it, and train again."
        )


def _described(coder: ColumnCoder) -> list[dict[str, Any]]:
    """How each column of the matrix is made from a column of the table."""
    found: list[dict[str, Any]] = []
    for part in coder.parts:
        if isinstance(part, NumberColumn):
            found.append({"column": part.name, "value": "the number", "if_missing": part.median})
            if part.with_missing:
                found.append({"column": part.name, "value": "1 where it is missing, otherwise 0"})
        else:
            for word in part.words:
                where = "where it is missing" if word is None else "where it is the word"
                found.append({"column": part.name, "value": f"1 {where}, otherwise 0", "word": word})
    return found


def _compared(forecaster: TableForecaster, random: np.random.Generator, rows: int) -> Compared:
    """Random rows, some with missing cells: their matrix, and their forecast."""
    model, first = forecaster.model, 0
    center, spread = model.estimator.encoding_.columns
    columns: dict[str, np.ndarray] = {}
    for part in model.coder.parts:
        if isinstance(part, NumberColumn):
            wide = spread[first] if np.isfinite(spread[first]) else 0.0
            cells = np.asarray(random.normal(center[first], wide, rows), np.float32).astype(np.float64)
            cells[random.random(rows) < 0.1] = np.nan
        else:
            cells = np.asarray(random.choice(np.array([*part.words, None], object), rows), object)
        columns[part.name] = cells
        first += part.width
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about these rows
        found = forecaster.forecast(Frame(columns), where="x", coverage=COVERAGE)
        matrix = model.coder.matrix(Frame(columns), where="x").astype(np.float32)
    if isinstance(model.estimator, SDEBNNClassifier):
        return Compared(matrix, class_outputs(found, tuple(map(str, model.estimator.classes_))))
    return Compared(matrix, number_outputs(found, forecaster.target, PARTS))


def _frozen(estimator: SDEBNNRegressor | SDEBNNClassifier) -> FrozenDraws:
    """The outputs of the draws of predictions, before calibration, as a function of encoded rows."""
    ensemble = cast(AbstractModel, estimator.ensemble_)
    count = estimator.draws if estimator.scores_ is None else estimator.draws_
    key = jax.random.fold_in(jax.random.key(np.uint32(estimator.seed_)), PREDICTION_STREAM)
    keys = ensemble.draw_keys(key, count)
    size = estimator.net_.features * (1 + estimator.net_.bins)
    return frozen_model(ensemble, keys, (size,), jnp.result_type(float).type)


def _class_function(estimator: SDEBNNClassifier) -> tuple[Any, int]:
    draws, likelihood = _frozen(estimator), Categorical()

    def function(x: Array) -> Outputs:
        samples = draws(_encoded(estimator.encoding_, x, estimator.net_.features)).astype(jnp.float64)
        return of_classes(likelihood.center(likelihood.tempered(samples, estimator.temperature_)))

    return function, draws.draws


def _number_function(estimator: SDEBNNRegressor) -> tuple[Any, int]:
    """The forecast in the units of the target, computed in those of the standardised one."""
    center, spread = (float(part[0]) for part in estimator.y_scaling_)
    process: GaussianProcess | None = estimator.gp_
    draws = _frozen(estimator) if process is None else None

    def function(x: Array) -> Outputs:
        if process is not None:
            found = _of_process(process, _standardised(estimator.encoding_.columns, x))
        else:
            assert draws is not None
            samples = draws(_encoded(estimator.encoding_, x, estimator.net_.features)).astype(jnp.float64)
            found = _of_samples(estimator, samples)
        if estimator.scores_ is not None:
            reach = float(conformal_bound(estimator.scores_, COVERAGE)[0]) * found["std"]
            found |= {"lower": found["mean"] - reach, "upper": found["mean"] + reach}
        shift = {"mean": center, "lower": center, "upper": center}
        return {name: shift.get(name, 0.0) + spread * array for name, array in found.items()}

    return function, 0 if draws is None else draws.draws


def _of_samples(estimator: SDEBNNRegressor, samples: Array) -> Outputs:
    """The forecast of the standardised target from the outputs of each draw."""
    likelihood, law = NOISES[estimator.noise_]
    location, scale = likelihood.center(samples), estimator.temperature_ * likelihood.scale(samples)
    found = of_numbers(location, likelihood.standard_variance * jnp.square(scale))
    cdf = CDFS[estimator.noise_]
    ends = (quantile(location, scale, cdf, level, float(law.ppf(level))) for level in LEVELS)
    found |= dict(zip(("lower", "upper"), ends, strict=True))
    return {name: jnp.squeeze(array, 1) for name, array in found.items()}


def _of_process(process: GaussianProcess, z: Array) -> Outputs:
    """The forecast of the standardised target by a Gaussian process, from standardised rows."""
    parameters = process.log_parameters[0]
    length, (scale, trend, noise) = np.exp(parameters[:-3]), np.exp(2 * parameters[-3:])
    factor = linalg.cholesky(noisy_kernel(parameters, process.x, process.weight), lower=True)
    alpha = linalg.cho_solve((factor, True), process.y[:, 0])
    inverse = linalg.solve_triangular(factor, np.eye(len(factor)), lower=True)

    def add(distance: Array, column: tuple[Array, Array]) -> tuple[Array, None]:
        here, there = column
        return distance + jnp.square(here[:, None] - there), None

    # Column by column: |a|² + |b|² - 2ab would cancel, and all differences at once would fill the memory.
    start = jnp.zeros((z.shape[0], len(factor)))
    distance, _ = lax.scan(add, start, ((z / length).T, jnp.asarray((process.x / length).T)))
    between = scale * jnp.exp(-0.5 * distance) + 1 + trend * (z @ process.x.T)
    prior = scale + 1 + trend * jnp.square(z).sum(1)
    of_function = jnp.maximum(prior - jnp.square(between @ inverse.T).sum(1), 0)
    mean, std = between @ alpha, jnp.sqrt(of_function + noise)
    lower, upper = (mean + std * float(stats.norm.ppf(level)) for level in LEVELS)
    parts = {"std_reducible": jnp.sqrt(of_function), "std_noise": jnp.full_like(std, math.sqrt(noise))}
    return {"mean": mean, "std": std, **parts, "lower": lower, "upper": upper}


def _standardised(columns: Standardiser, x: Array) -> Array:
    z = (x.astype(jnp.float64) - columns.center) / columns.spread
    return jnp.clip(z, -MAX_STANDARDISED, MAX_STANDARDISED)


def _encoded(encoding: Encoding, x: Array, features: int) -> Array:
    """``Encoding.to``, in the type in which the net computes."""
    z = _standardised(encoding.columns, x)
    low, high = encoding.knots[:, :-1], encoding.knots[:, 1:]
    known = np.isfinite(high)
    low, width = np.where(known, low, 0.0), np.where(known, high, 1.0) - np.where(known, low, 0.0)
    share = jnp.clip((z[:, :, None] - low) / width, 0, 1) * known
    in_bins = (share.reshape(-1, known.size) - encoding.bins.center) / (encoding.bins.spread * math.sqrt(known.size))
    missing, bins = features - x.shape[1], known.shape[1]
    both = [jnp.pad(z, ((0, 0), (0, missing))), jnp.pad(in_bins, ((0, 0), (0, missing * bins)))]
    return jnp.concatenate(both, axis=1).astype(jnp.float32)
