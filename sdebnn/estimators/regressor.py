"""Numbers with their uncertainty, from a table: the regressor for scikit-learn."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax.numpy as jnp
import numpy as np
from scipy import stats
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_consistent_length, validate_data

from sdebnn.checks import check_choice, check_count, shown
from sdebnn.estimators.conformal import check_level, conformal_rank
from sdebnn.estimators.estimator import Estimator, Task, check_size, checked_weight, most_likely
from sdebnn.estimators.forecast import Forecast
from sdebnn.estimators.table import Rows
from sdebnn.likelihoods import Gaussian, Laplace, StudentT

Noise = Literal["gaussian", "laplace", "student"]
DF = 5.0  # degrees of freedom of "student"
NOISES = {
    "gaussian": (Gaussian(None), stats.norm()),
    "laplace": (Laplace(None), stats.laplace()),
    "student": (StudentT(DF, None), stats.t(DF)),
}


class Interval(NamedTuple):
    """The ends of an interval for every row."""

    lower: np.ndarray
    upper: np.ndarray


class SDEBNNRegressor(MultiOutputMixin, RegressorMixin, Estimator):
    """Regression by an ensemble of infinitely deep Bayesian nets: a mean, and how far to trust it, for every row.

    Inputs and targets are standardised inside; the noise may differ from row to row. Nothing needs tuning on small
    tables. What one may want to set:

    members, width, steps   nets in the ensemble, their hidden units, and the steps that solve each over its depth
    sigma                   how much the weights wander over depth
    noise                   law of the targets around their mean: "gaussian", "laplace" or "student" (heavy tails)
    kl_weight               of the KL in the objective: 1 is the ELBO, less trusts the data more
    max_iter                training steps of each member, rounded up to whole passes over the rows;
                            ``learning_rate`` is decayed to zero over them
    batch_size              rows of a step: 128 to 512, by the size of the table, unless told
    early_stopping          each member holds out a ``validation_fraction`` of the rows, and stops when they have not
                            been predicted better for ``n_iter_no_change`` checks, of which there are fifty in
                            ``max_iter`` steps, or one a pass; these rows also say how wide the forecast must be
    draws                   networks that are averaged in a prediction, rounded up to a multiple of ``members``
    conformal               calibrate ``predict_interval`` on a ``calibration_fraction`` of the rows, held out: it then
                            covers as promised, whatever the data, if new rows come as the old ones did
    warm_start              go on from the last fit
    random_state, verbose   as in scikit-learn; ``verbose`` shows a progress bar

    A weight in ``sample_weight`` is how often a row counts: with weights that add up to 1, all rows together count as
    one.
    """

    def __init__(
        self,
        *,
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
        self.noise = noise

    def _task(self, X: Any, y: Any, sample_weight: Any) -> Task:
        check_choice("noise", self.noise, get_args(Noise))
        X, y = validate_data(self, X, y, multi_output=True, y_numeric=True, dtype=np.float64, reset=not self._goes_on())
        check_size("X", X)
        check_size("y", y)
        weight = checked_weight(sample_weight, X)
        self.noise_, self.flat_ = self.noise, y.ndim == 1
        rows = Rows(X, y.astype(np.float64).reshape(len(X), -1), weight)
        return Task(rows, 2 * rows.y.shape[1], NOISES[self.noise][0], scaled=True)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of every row's target; with ``return_std`` also its standard deviation, net and noise together."""
        if return_std:
            return self._each(self._checked(X), lambda forecast: (forecast.mean(), forecast.std()))
        return self._each(self._checked(X), lambda forecast: (forecast.mean(),))[0]

    def predict_quantiles(self, X: Any, alpha: float | Sequence[float] = (0.05, 0.5, 0.95)) -> np.ndarray:
        """The quantiles of every row's target at the levels ``alpha``, which are the last axis if there are several."""
        levels = [check_level("alpha", level) for level in np.atleast_1d(np.asarray(alpha)).tolist()]
        if not levels:
            raise ValueError(f"alpha={shown(alpha)} holds no level: pass one or more, such as 0.5.")
        each = self._each(self._checked(X), lambda forecast: tuple(forecast.quantile(level) for level in levels))
        return each[0] if np.ndim(alpha) == 0 else np.stack(each, axis=-1)

    def predict_interval(self, X: Any, coverage: float = 0.95) -> Interval:
        """The lower and the upper end of an interval that holds the target of a row with probability ``coverage``.

        Central; or, with ``conformal``, as many standard deviations to both sides of the mean as the held-out rows ask;
        each of several targets for itself.
        """
        check_level("coverage", coverage)
        x = self._checked(X)
        if self.scores_ is None:
            low, high = (1 - coverage) / 2, (1 + coverage) / 2
            return Interval(*self._each(x, lambda forecast: (forecast.quantile(low), forecast.quantile(high))))
        mean, std = self._each(x, lambda forecast: (forecast.mean(), forecast.std()))
        reach = self._shaped(conformal_rank(self.scores_, coverage)[None]) * std
        return Interval(mean - reach, mean + reach)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Targets drawn from the forecast, samples last; each is of one network, the same for all rows, and noise."""
        check_count("n_samples", n_samples)
        random = check_random_state(random_state)
        forecasts = self._forecasts(self._checked(X), n_samples, random)
        return self._shaped(np.concatenate([np.moveaxis(forecast.sample(random), 0, -1) for forecast in forecasts]))

    def log_prob(self, X: Any, y: Any) -> np.ndarray:
        """The log density, in nats, of every row's own target under its forecast."""
        y = check_array(y, ensure_2d=False, dtype="numeric").astype(np.float64)
        check_consistent_length(X, y)
        parts, first = [], 0
        for forecast in self._forecasts(self._checked(X)):
            rows = forecast.location.shape[1]
            targets = y[first : first + rows].reshape(rows, -1)
            if targets.shape[1] != forecast.location.shape[2]:
                fitted = forecast.location.shape[2]
                raise ValueError(
                    f"y has {targets.shape[1]} targets for each row: pass {fitted}, as this was fitted to."
                )
            parts.append(forecast.log_prob(targets))
            first += rows
        return np.concatenate(parts)

    def _forecasts(
        self, x: np.ndarray, draws: int | None = None, random: np.random.RandomState | None = None
    ) -> Iterator[Forecast]:
        """The forecast of some rows at a time."""
        for outputs in self._outputs(x, draws, random):
            yield self._forecast(outputs, self.calibration_)

    def _forecast(self, outputs: np.ndarray, calibration: float) -> Forecast:
        """What outputs say, in the targets' own units; the noise is wider by the factor of calibration."""
        likelihood, law = NOISES[self.noise_]
        center, spread = self.y_scaling_
        parameters = (likelihood.center(jnp.asarray(outputs)), likelihood.scale(jnp.asarray(outputs)))
        location, scale = (np.asarray(parameter, np.float64) for parameter in parameters)
        return Forecast(law, center + spread * location, calibration * spread * scale)

    def _calibrated(self, held_out: list[tuple[np.ndarray, Rows]]) -> float:
        parts = [(self._forecast(outputs, 1.0), rows) for outputs, rows in held_out]

        def loss(factor: float) -> float:
            each = ((part._replace(scale=factor * part.scale), rows) for part, rows in parts)
            return -sum(float(rows.weight @ part.log_prob(rows.y)) for part, rows in each)

        return most_likely(loss) if parts else 1.0

    def _each(self, x: np.ndarray, what: Callable[[Forecast], tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
        """Arrays that a forecast gives, of all rows; without the axis of targets, if y had none."""
        parts = [what(forecast) for forecast in self._forecasts(x)]
        return tuple(self._shaped(np.concatenate(part)) for part in zip(*parts, strict=True))

    def _shaped(self, array: np.ndarray) -> np.ndarray:
        return array[:, 0] if self.flat_ else array

    def _scores(self, rows: Rows) -> np.ndarray:
        """How many standard deviations from its mean each held-out target is: "target row", ascending."""
        forecasts = [(forecast.mean(), forecast.std()) for forecast in self._forecasts(rows.x)]
        mean, std = map(np.concatenate, zip(*forecasts, strict=True))
        return np.sort(np.abs(rows.y - mean) / std, axis=0).T
