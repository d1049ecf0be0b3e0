"""Classes with their probabilities, from a table: the classifier for scikit-learn."""

from typing import Any

import numpy as np
from scipy import special
from sklearn.base import ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d, validate_data

from sdebnn.checks import check_count, shown
from sdebnn.estimators.conformal import check_level, conformal_rank
from sdebnn.estimators.estimator import Estimator, Task, check_size, checked_weight, most_likely
from sdebnn.estimators.table import Rows
from sdebnn.likelihoods import Categorical


class SDEBNNClassifier(ClassifierMixin, Estimator):
    """Classification by an ensemble of infinitely deep Bayesian nets: probabilities that mean what they say.

    Inputs are standardised inside; labels may be numbers or words, two or more. What one may want to set is what
    ``SDEBNNRegressor`` has, but for ``noise``; ``class_weight`` is a dictionary or "balanced", as in scikit-learn; with
    ``conformal``, ``predict_set`` covers as promised.
    """

    def __init__(
        self,
        *,
        members=5,
        width=50,
        steps=4,
        sigma=0.01,
        kl_weight=1.0,
        class_weight=None,
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
        self.class_weight = class_weight

    def _task(self, X: Any, y: Any, sample_weight: Any) -> Task:
        going_on = self._goes_on()
        X, y = validate_data(self, X, y, dtype=np.float64, reset=not going_on)
        check_size("X", X)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        try:
            classes, numbers = np.unique(y, return_inverse=True)
        except TypeError:
            raise ValueError(f"y={shown(y.tolist())} mixes kinds of labels: pass words alone, or numbers.") from None
        weight = checked_weight(sample_weight, X) * compute_sample_weight(self.class_weight, y)
        if (weight < 0).any():
            raise ValueError(f"class_weight={shown(self.class_weight)} must be zero or more for every class.")
        seen = np.unique(y[weight > 0])
        if len(seen) < 2:
            raise ValueError(f"there is one class among the rows that count, {shown(seen.tolist())}: pass two or more.")
        if going_on and not np.array_equal(classes, self.classes_):
            raise ValueError(
                f"warm_start=True goes on with the classes {shown(self.classes_.tolist())}, y holds "
                f"{shown(classes.tolist())}: keep them, or set warm_start=False."
            )
        self.classes_ = classes
        rows = Rows(X, numbers[:, None].astype(np.float64), weight)
        return Task(rows, len(classes), Categorical(), scaled=False)

    def predict_proba(self, X: Any, return_std: bool = False) -> Any:
        """The probability of each class, as ``classes_`` has them; with ``return_std`` also its spread over draws."""
        mean, std = self._moments(self._checked(X))
        return (mean, std) if return_std else mean

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """The logarithm of ``predict_proba``."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The most probable class of every row; with ``return_std`` also the spread of its probability over draws."""
        mean, std = self.predict_proba(X, return_std=True)
        best = mean.argmax(1)
        labels = self.classes_[best]
        return (labels, std[np.arange(len(best)), best]) if return_std else labels

    def predict_set(self, X: Any, coverage: float = 0.95) -> np.ndarray:
        """Which classes belong to a set that holds the true one with probability ``coverage``: "row class", yes or no.

        The most probable ones that reach it together; or, with ``conformal``, all as probable as the held-out rows ask,
        which may be none.
        """
        check_level("coverage", coverage)
        proba = self.predict_proba(X)
        if self.scores_ is not None:
            return 1 - proba <= conformal_rank(self.scores_, coverage)
        order = np.argsort(-proba, axis=1, kind="stable")
        ahead = np.cumsum(np.take_along_axis(proba, order, 1), axis=1) - np.take_along_axis(proba, order, 1)
        chosen = np.zeros(proba.shape, bool)
        np.put_along_axis(chosen, order, ahead < coverage, axis=1)
        return chosen

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Labels drawn from the forecast, samples last; each sample is of one network, the same for all rows."""
        check_count("n_samples", n_samples)
        random = check_random_state(random_state)
        parts = [
            outputs / self.calibration_ + random.gumbel(size=outputs.shape)
            for outputs in self._outputs(self._checked(X), n_samples, random)
        ]
        return self.classes_[np.concatenate([part.argmax(-1).T for part in parts])]

    def log_prob(self, X: Any, y: Any) -> np.ndarray:
        """The log probability, in nats, of every row's own label under its forecast."""
        log_proba = self.predict_log_proba(X)
        y = column_or_1d(y)
        check_consistent_length(X, y)
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            known = shown(self.classes_.tolist())
            raise ValueError(f"y holds {shown(unknown.tolist()[0])}, which this was not fitted to: it knows {known}.")
        return log_proba[np.arange(len(y)), np.searchsorted(self.classes_, y)]

    def _scores(self, rows: Rows) -> np.ndarray:
        """How improbable each held-out row's own class is, ascending."""
        proba, _ = self._moments(rows.x)
        return np.sort(1 - proba[np.arange(len(proba)), rows.y[:, 0].astype(int)])

    def _parts(self, rows: Rows, number: int) -> tuple[Rows, Rows | None]:
        """No class is held out whole: of each some row is learned from."""
        rows, held_out = super()._parts(rows, number)
        if held_out is None:
            return rows, None
        alone = ~np.isin(held_out.y[:, 0], rows.y[:, 0])
        rows, held_out = rows.with_rows(held_out.at(alone)), held_out.at(~alone)
        return rows, held_out if len(held_out.x) else None

    def _moments(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and spread over draws of each class's probability."""
        each = (special.softmax(outputs / self.calibration_, axis=-1) for outputs in self._outputs(x))
        mean, std = map(np.concatenate, zip(*((part.mean(0), part.std(0)) for part in each), strict=True))
        return mean / mean.sum(1, keepdims=True), std

    def _calibrated(self, held_out: list[tuple[np.ndarray, Rows]]) -> float:
        def loss(temperature: float) -> float:
            total = 0.0
            for outputs, rows in held_out:
                each = special.log_softmax(outputs / temperature, axis=-1)
                own = np.take_along_axis(each, rows.y[None].astype(int), axis=-1)[..., 0]
                total -= float(rows.weight @ special.logsumexp(own, axis=0))
            return total

        return most_likely(loss) if held_out else 1.0
