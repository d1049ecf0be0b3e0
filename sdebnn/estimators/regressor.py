"""The regressor for scikit-learn: numbers and their uncertainty, from a table."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal, NamedTuple, cast, get_args

import jax.numpy as jnp
import numpy as np
from scipy import stats
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_consistent_length

from sdebnn.calibration import Calibration
from sdebnn.checks import check_choice, check_count, check_level, shown
from sdebnn.estimators.arguments import check_magnitude, checked_weight
from sdebnn.estimators.conformal import conformal_bound
from sdebnn.estimators.estimator import (
    ROWS_AT_ONCE,
    Estimator,
    LearningTask,
    Uncertainty,
)
from sdebnn.estimators.forecast import Forecast, StandardLaw
from sdebnn.estimators.gaussian_process import MAX_ROWS, GaussianProcess
from sdebnn.estimators.table import ArrayLike, Table
from sdebnn.likelihoods import AbstractLocationScale, Gaussian, Laplace, StudentT
from sdebnn.outcomes import TARGETS, NumberOutcomes

FamilyName = Literal["auto", "ensemble", "gp"]
NoiseName = Literal["gaussian", "laplace", "student"]
# In nats, for which a Gaussian process is used: all members together predict better than those that held a row out.
MIN_GAIN = 0.05
STUDENT_DF = 5.0  # degrees of freedom
FUNCTIONS = 32  # that represent a Gaussian process in outcomes
NOISES = {
    "gaussian": (Gaussian(None), stats.norm()),
    "laplace": (Laplace(None), stats.laplace()),
    "student": (StudentT(STUDENT_DF, None), stats.t(STUDENT_DF)),
}


class Interval(NamedTuple):
    """An interval for every row: arrays of its ends, ``lower`` and ``upper``."""

    lower: np.ndarray
    upper: np.ndarray


class NumberForecast(NamedTuple):
    """What ``SDEBNNRegressor.forecast`` returns: arrays with one entry for every row, or "row target".

    ``mean`` and ``std`` are the mean and the standard deviation of the target, ``uncertainty`` the two parts of the
    standard deviation, and ``interval`` an ``Interval``.
    """

    mean: np.ndarray
    std: np.ndarray
    uncertainty: Uncertainty
    interval: Interval


class SDEBNNRegressor(MultiOutputMixin, RegressorMixin, Estimator):
    """Regression by infinitely deep Bayesian nets, or by a Gaussian process: a mean and its uncertainty for every row.

        from sdebnn import SDEBNNRegressor

        regressor = SDEBNNRegressor(members=2, max_iter=100, random_state=0)
        mean, std = regressor.fit(X, target).predict(X, return_std=True)
        lower, upper = regressor.predict_interval(X, coverage=0.9)
        from_function, from_noise = regressor.forecast(X).uncertainty

    Inputs and targets are standardised inside. Small tables need no tuning. There are two families. An ensemble of nets
    follows steps, kinks and noise that differs between rows. An exact Gaussian process is the limit of a net of
    infinite width; it predicts smooth targets with little noise far more accurately. By default both are fitted if the
    table has at most 2000 distinct rows, and the one that predicts held-out rows better is used. ``family_`` is its
    name, and ``family_scores_`` has the mean log density of the held-out rows for each. The parameters are:

    - ``family``: "auto", "ensemble" or "gp" (the Gaussian process). "auto" uses the ensemble alone if the table has
      more than 2000 distinct rows or no rows are held out.
    - ``members``, ``width``, ``steps``: the number of nets in the ensemble, of their hidden units, and of the solver's
      steps over depth.
    - ``sigma``: the diffusion of the weights over depth.
    - ``noise``: the law of the targets around their mean: "gaussian", "laplace" or "student" (heavy tails). The noise
      of the Gaussian process is always Gaussian, and the same for all rows.
    - ``kl_weight``: the weight of the KL in the objective: 1 gives the ELBO, and less trusts the data more.
    - ``max_iter``: the training steps of each member, rounded up to whole epochs. ``learning_rate`` decays to zero over
      them.
    - ``batch_size``: the rows in a step; by default 128 to 512, depending on the size of the table.
    - ``early_stopping``: each member holds out a ``validation_fraction`` of the rows, and stops when their prediction
      has not improved for ``n_iter_no_change`` validations. There are fifty validations in ``max_iter`` steps, at most
      one in an epoch. The same rows calibrate the forecast.
    - ``draws``: the networks that are averaged in a prediction, rounded up to a multiple of ``members``.
    - ``conformal``: compute ``predict_interval`` from a ``calibration_fraction`` of the rows, held out. It then has the
      coverage that is asked for, whatever the law of the data, if the rows to predict and the rows of the fit are
      exchangeable.
    - ``warm_start``: continue the training of the ensemble from the last fit; a Gaussian process is fitted anew.
    - ``random_state``, ``verbose``: as in scikit-learn; ``verbose`` shows a progress bar.

    A weight in ``sample_weight`` is the number of times that a row counts. If the weights add up to 1, all rows
    together count as one.
    """

    def __init__(
        self,
        *,
        family="auto",
        members=5,
        width=50,
        steps=4,
        sigma=0.01,
        noise="student",
        kl_weight=1.0,
        max_iter=3000,
        batch_size=None,
        learning_rate=2e-2,
        early_stopping=True,
        validation_fraction=0.2,
        n_iter_no_change=10,
        draws=100,
        conformal=False,
        calibration_fraction=0.2,
        warm_start=False,
        random_state=None,
        verbose=False,
    ):
        super().__init__(
            members=members, width=width, steps=steps, sigma=sigma, kl_weight=kl_weight, max_iter=max_iter,
            batch_size=batch_size, learning_rate=learning_rate, early_stopping=early_stopping,
            validation_fraction=validation_fraction, n_iter_no_change=n_iter_no_change, draws=draws,
            conformal=conformal, calibration_fraction=calibration_fraction, warm_start=warm_start,
            random_state=random_state, verbose=verbose,
        )  # fmt: skip
        self.family = family
        self.noise = noise

    def _task(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> LearningTask:
        check_choice("family", self.family, get_args(FamilyName))
        check_choice("noise", self.noise, get_args(NoiseName))
        x, targets = self._validated(X, y, multi_output=True, y_numeric=True)
        check_magnitude("X", x)
        check_magnitude("y", targets)
        weight = checked_weight(sample_weight, x)
        self.noise_, self.flat_ = self.noise, targets.ndim == 1
        table = Table(x, targets.astype(np.float64).reshape(len(x), -1), weight)
        return LearningTask(table, 2 * table.y.shape[1], standardise_targets=True)

    def _fit(self, task: LearningTask, seed: int) -> None:
        """Fit the families that are asked for, and choose one of them."""
        rows = len(task.table.x)
        self.family_, self.gp_, self.family_scores_ = "ensemble", None, {}
        self._set_scalings(task, seed)
        if self.family == "gp":
            if rows > MAX_ROWS:
                raise ValueError(
                    f"family='gp' was asked for with {rows} distinct rows, and its time grows with their third power: "
                    f"pass at most {MAX_ROWS}, or set family='ensemble'."
                )
            self.family_, self.gp_, self.ensemble_ = "gp", self._fitted_process(task.table), None
            self.n_iter_, self.temperature_, self.loss_curve_ = 0, 1.0, np.zeros(0)  # there are no members
            return
        held_out = self._held_out_rows(task.table)
        with self._workers() as workers:
            competes = self.family == "auto" and rows <= MAX_ROWS and len(held_out) > 0
            other = workers.start(self._scored_process, task.table, held_out) if competes else None
            calibration = self._fit_ensemble(task.table, workers)
            if other is not None and calibration is not None:
                self._choose_family(calibration, *other.result())

    def _choose_family(self, calibration: Calibration, process: GaussianProcess, log_density: float) -> None:
        """Use the Gaussian process if it predicts the held-out rows better than the ensemble does."""
        scores = {"ensemble": -calibration.nll, "gp": log_density}
        units = float(np.log(self.y_scaling_.spread).sum())
        self.family_scores_ = {name: score - units for name, score in scores.items()}
        if scores["gp"] > scores["ensemble"] + MIN_GAIN:
            self.family_, self.gp_ = "gp", process

    def _scored_process(
        self, check: Callable[[], None], table: Table, held_out: list[np.ndarray]
    ) -> tuple[GaussianProcess, float]:
        """A Gaussian process, and the mean log density that it gives to held-out rows."""
        process = self._fitted_process(table, check)
        return process, process.held_out_log_density(held_out, check=check)

    def _fitted_process(self, table: Table, check: Callable[[], None] = lambda: None) -> GaussianProcess:
        x, y = self.encoding_.columns.clipped(table.x), self.y_scaling_.to(table.y)
        return GaussianProcess.fit(x, y, table.weight, check)

    def _held_out_rows(self, table: Table) -> list[np.ndarray]:
        """The numbers of the rows that members hold out, fold by fold."""
        numbered = table._replace(y=np.arange(len(table.x))[:, None])
        parts = [self._validation_split(numbered, fold)[1] for fold in range(self._folds)]
        return [part.y[:, 0] for part in parts if part is not None]

    @property
    def _likelihood(self) -> AbstractLocationScale:
        return NOISES[self.noise_][0]

    def predict(self, X: ArrayLike, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, ...]:
        """The mean of the target of every row, an array "row" or, if there are several targets, "row target".

        With ``return_std``, also its standard deviation, of the function and the noise together.
        """
        if return_std:
            return self._each(self._checked(X), lambda forecast: (forecast.mean(), forecast.std()))
        return self._each(self._checked(X), lambda forecast: (forecast.mean(),))[0]

    def predict_quantiles(self, X: ArrayLike, alpha: float | Sequence[float] = (0.05, 0.5, 0.95)) -> np.ndarray:
        """The quantiles of the target of every row. Several levels ``alpha`` are the last axis of the result."""
        levels = [check_level("alpha", level) for level in np.atleast_1d(np.asarray(alpha)).tolist()]
        if not levels:
            raise ValueError(f"alpha={shown(alpha)} holds no level: pass at least one, such as 0.5.")
        each = self._each(self._checked(X), lambda forecast: tuple(forecast.quantile(level) for level in levels))
        return each[0] if np.ndim(alpha) == 0 else np.stack(each, axis=-1)

    def predict_interval(self, X: ArrayLike, coverage: float = 0.95) -> Interval:
        """An interval that contains the target of a row with probability ``coverage``.

        It lies between two quantiles. With ``conformal``, it extends from the mean by the number of standard deviations
        that the held-out rows require. If there are several targets, each has its own interval.
        """
        check_level("coverage", coverage)
        return self._interval(coverage, *self._each(self._checked(X), partial(self._ends, coverage=coverage)))

    def forecast(self, X: ArrayLike, coverage: float = 0.95) -> NumberForecast:
        """What ``predict`` and ``predict_interval`` return, and the two parts of the standard deviation.

        The squares of the parts add up to its square. ``reducible`` is that of the function, which more rows would
        reduce; ``noise`` is that of a target around it. The networks are drawn once for all of this.
        """
        check_level("coverage", coverage)
        mean, std, of_draws, *ends = self._each(
            self._checked(X), lambda each: (each.mean(), each.std(), each.std_of_draws(), *self._ends(each, coverage))
        )
        return NumberForecast(mean, std, self._parts(std, of_draws), self._interval(coverage, *ends))

    def _ends(self, forecast: Forecast, coverage: float) -> tuple[np.ndarray, np.ndarray]:
        """From what an interval is made: two quantiles or, if it is conformal, the mean and the standard deviation."""
        if self.scores_ is None:
            return forecast.quantile((1 - coverage) / 2), forecast.quantile((1 + coverage) / 2)
        return forecast.mean(), forecast.std()

    def _interval(self, coverage: float, first: np.ndarray, second: np.ndarray) -> Interval:
        if self.scores_ is None:
            return Interval(first, second)
        reach = self._shaped(conformal_bound(self.scores_, coverage)[None]) * second
        return Interval(first - reach, first + reach)

    def _parts(self, std: np.ndarray, of_draws: np.ndarray) -> Uncertainty:
        """The standard deviation of the function, and that of the noise. Only the nets have draws."""
        if self.gp_ is None:
            return Uncertainty(of_draws, np.sqrt(np.maximum(std**2 - of_draws**2, 0)))
        noise = np.broadcast_to(self._shaped((self.y_scaling_.spread * self.gp_.noise)[None]), std.shape)
        return Uncertainty(np.sqrt(np.maximum(std**2 - noise**2, 0)), noise)

    def sample_y(
        self, X: ArrayLike, n_samples: int = 1, random_state: int | np.random.RandomState | None = 0
    ) -> np.ndarray:
        """Targets sampled from the forecast; the last axis holds the samples.

        Each sample uses one function for all rows, a network or one drawn from the Gaussian process, and adds noise.
        """
        check_count("n_samples", n_samples)
        random, x = check_random_state(random_state), self._checked(X)
        if self.gp_ is not None:
            parts = [self.y_scaling_.undo(self.gp_.sample(self.encoding_.columns.clipped(x), n_samples, random))]
        else:
            parts = [forecast.sample(random) for forecast in self._forecasts(x, n_samples, random)]
        return self._shaped(np.concatenate([np.moveaxis(part, 0, -1) for part in parts]))

    def log_prob(self, X: ArrayLike, y: ArrayLike) -> np.ndarray:
        """The log density, in nats, of the target of every row."""
        known = check_array(y, ensure_2d=False, dtype="numeric").astype(np.float64)
        check_consistent_length(X, known)
        parts, first = [], 0
        for forecast in self._forecasts(self._checked(X)):
            rows = forecast.location.shape[1]
            targets = known[first : first + rows].reshape(rows, -1)
            if targets.shape[1] != forecast.location.shape[2]:
                fitted = forecast.location.shape[2]
                raise ValueError(f"y has {targets.shape[1]} targets for each row: pass {fitted}, as in the fit.")
            parts.append(forecast.log_prob(targets))
            first += rows
        return np.concatenate(parts)

    def outcomes(self, X: ArrayLike, y: ArrayLike) -> NumberOutcomes:
        """The forecast of every row beside its target, from which scores and plots are made.

        A Gaussian process is represented by functions at the quantiles of its law at every row.
        """
        x, known = self._checked(X), check_array(y, ensure_2d=False, dtype="numeric").astype(np.float64)
        check_consistent_length(x, known)
        random, parts = np.random.RandomState(0), []
        for forecast in self._forecasts(x):
            mean, variance = forecast.location, forecast.law.var() * forecast.scale**2
            if self.gp_ is not None:
                noise = (self.y_scaling_.spread * self.gp_.noise) ** 2 * np.ones_like(variance)
                z = stats.norm.ppf((np.arange(FUNCTIONS) + 0.5) / FUNCTIONS)[:, None, None]
                mean = mean + np.sqrt(np.maximum(variance - noise, 0)) * z / z.std()
                variance = np.repeat(noise, FUNCTIONS, axis=0)
            repeats = -(-TARGETS // len(forecast.location))
            parts.append((mean, variance, np.concatenate([forecast.sample(random) for _ in range(repeats)])))
        mean, variance, targets = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
        names = ("y",) if self.flat_ else tuple(f"y{i + 1}" for i in range(mean.shape[-1]))
        return NumberOutcomes(mean, variance, targets, self.log_prob(X, y), known.reshape(len(known), -1), names)

    def _forecasts(
        self, x: np.ndarray, draws: int | None = None, random: np.random.RandomState | None = None
    ) -> Iterator[Forecast]:
        """The forecast, in the units of the targets, for some rows at a time."""
        center, spread = self.y_scaling_
        if self.gp_ is not None:
            for first in range(0, len(x), ROWS_AT_ONCE):
                mean, std = self.gp_.predict(self.encoding_.columns.clipped(x[first : first + ROWS_AT_ONCE]))
                yield Forecast(cast(StandardLaw, stats.norm()), (center + spread * mean)[None], (spread * std)[None])
            return
        likelihood, law = NOISES[self.noise_]
        for outputs in self._outputs(x, draws, random):
            parameters = likelihood.center(jnp.asarray(outputs)), likelihood.scale(jnp.asarray(outputs))
            location, scale = (np.asarray(parameter, np.float64) for parameter in parameters)
            yield Forecast(cast(StandardLaw, law), center + spread * location, spread * scale)

    def _each(self, x: np.ndarray, arrays: Callable[[Forecast], tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
        """Arrays computed from the forecast of all rows; without the axis of targets if y had none."""
        parts = [arrays(forecast) for forecast in self._forecasts(x)]
        return tuple(self._shaped(np.concatenate(part)) for part in zip(*parts, strict=True))

    def _shaped(self, array: np.ndarray) -> np.ndarray:
        return array[:, 0] if self.flat_ else array

    def _scores(self, table: Table) -> np.ndarray:
        """The distance of each target from its mean in standard deviations, "target row", ascending."""
        forecasts = [(forecast.mean(), forecast.std()) for forecast in self._forecasts(table.x)]
        mean, std = map(np.concatenate, zip(*forecasts, strict=True))
        return np.sort(np.abs(table.y - mean) / std, axis=0).T
