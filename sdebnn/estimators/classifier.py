"""The classifier for scikit-learn: the probabilities of classes, from a table."""

from typing import NamedTuple

import numpy as np
from scipy import special
from sklearn.base import ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d

from sdebnn.checks import check_count, check_level, shown
from sdebnn.estimators.arguments import check_magnitude, checked_weight
from sdebnn.estimators.conformal import conformal_bound
from sdebnn.estimators.estimator import Estimator, LearningTask, Uncertainty
from sdebnn.estimators.table import ArrayLike, Table
from sdebnn.likelihoods import Categorical
from sdebnn.metrics import entropy_split
from sdebnn.outcomes import ClassOutcomes


class ClassForecast(NamedTuple):
    """What ``SDEBNNClassifier.forecast`` returns.

    ``proba`` is the probability of each class, "row class", in the order of ``classes_``. ``uncertainty`` holds the two
    parts of the entropy of every row, in nats.
    """

    proba: np.ndarray
    uncertainty: Uncertainty


class SDEBNNClassifier(ClassifierMixin, Estimator):
    """Classification by an ensemble of infinitely deep Bayesian nets, with calibrated probabilities.

        from sdebnn import SDEBNNClassifier

        classifier = SDEBNNClassifier(members=2, max_iter=100, random_state=0)
        labels = classifier.fit(X, classes).predict(X)
        probabilities = classifier.predict_proba(X)
        sets = classifier.predict_set(X, coverage=0.9)

    Inputs are standardised inside. Labels may be numbers or strings, of two or more classes. The parameters are those
    of ``SDEBNNRegressor`` without ``family`` and ``noise``. ``class_weight`` is a dictionary or "balanced", as in
    scikit-learn. With ``conformal``, the sets of ``predict_set`` have the coverage that is asked for.
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

    def _task(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> LearningTask:
        x, targets = self._validated(X, y)
        check_magnitude("X", x)
        check_classification_targets(targets)
        labels = np.asarray(column_or_1d(targets, warn=True))
        try:
            classes, numbers = np.unique(labels, return_inverse=True)
        except TypeError:
            raise ValueError(
                f"y={shown(labels.tolist())} mixes labels of different types: pass strings only, or numbers only."
            ) from None
        weight = checked_weight(sample_weight, x) * compute_sample_weight(self.class_weight, labels)
        if (weight < 0).any():
            raise ValueError(f"class_weight={shown(self.class_weight)} must be zero or more for every class.")
        seen = np.unique(labels[weight > 0])
        if len(seen) < 2:
            raise ValueError(
                f"there is only one class among the rows of positive weight, {shown(seen.tolist())}: pass two or more."
            )
        if self._continues() and not np.array_equal(classes, self.classes_):
            raise ValueError(
                f"warm_start=True continues with the classes {shown(self.classes_.tolist())}, and y holds "
                f"{shown(classes.tolist())}: keep the classes, or set warm_start=False."
            )
        self.classes_ = classes
        table = Table(x, numbers[:, None].astype(np.float64), weight)
        return LearningTask(table, len(classes), standardise_targets=False)

    @property
    def _likelihood(self) -> Categorical:
        return Categorical()

    def predict_proba(self, X: ArrayLike, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """The probability of each class, an array "row class", in the order of ``classes_``.

        With ``return_std``, also the standard deviation of each probability over draws of the network.
        """
        mean, std = self._moments(self._checked(X))
        return (mean, std) if return_std else mean

    def predict_log_proba(self, X: ArrayLike) -> np.ndarray:
        """The logarithm of ``predict_proba``."""
        with np.errstate(divide="ignore"):
            return np.log(self._moments(self._checked(X))[0])

    def predict(self, X: ArrayLike, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """The most probable class of every row.

        With ``return_std``, also the standard deviation of its probability over draws of the network.
        """
        mean, std = self._moments(self._checked(X))
        best = mean.argmax(1)
        labels = self.classes_[best]
        return (labels, std[np.arange(len(best)), best]) if return_std else labels

    def forecast(self, X: ArrayLike) -> ClassForecast:
        """What ``predict_proba`` returns, and the two parts of the entropy of the label of every row, in nats.

        ``reducible`` is what the label would tell about the network, which more rows would reduce; ``noise`` is the
        mean entropy of a network's own forecast. The networks are drawn once for all of this.
        """
        parts = []
        for outputs in self._outputs(self._checked(X)):
            each = special.softmax(outputs, axis=-1)
            mean = each.mean(0) / each.mean(0).sum(1, keepdims=True)
            parts.append((mean, *entropy_split(each)[1:]))
        proba, reducible, noise = map(np.concatenate, zip(*parts, strict=True))
        return ClassForecast(proba, Uncertainty(reducible, noise))

    def outcomes(self, X: ArrayLike, y: ArrayLike) -> ClassOutcomes:
        """The forecast of every row beside its label, from which scores and plots are made."""
        labels = self._known_labels(X, y)
        samples = np.concatenate([special.softmax(outputs, -1) for outputs in self._outputs(self._checked(X))], axis=1)
        return ClassOutcomes(samples, labels, tuple(map(str, self.classes_)))

    def predict_set(self, X: ArrayLike, coverage: float = 0.95) -> np.ndarray:
        """A set of classes that contains the true one with probability ``coverage``, as booleans "row class".

        It is the smallest set of classes whose probabilities reach the coverage. With ``conformal``, it contains the
        classes that are at least as probable as the held-out rows require, and may be empty.
        """
        check_level("coverage", coverage)
        proba = self._moments(self._checked(X))[0]
        if self.scores_ is not None:
            return 1 - proba <= conformal_bound(self.scores_, coverage)
        order = np.argsort(-proba, axis=1, kind="stable")
        ahead = np.cumsum(np.take_along_axis(proba, order, 1), axis=1) - np.take_along_axis(proba, order, 1)
        chosen = np.zeros(proba.shape, bool)
        np.put_along_axis(chosen, order, ahead < coverage, axis=1)
        return chosen

    def sample_y(
        self, X: ArrayLike, n_samples: int = 1, random_state: int | np.random.RandomState | None = 0
    ) -> np.ndarray:
        """Labels sampled from the forecast, "row sample". Each sample uses one network for all rows."""
        check_count("n_samples", n_samples)
        random = check_random_state(random_state)
        parts = [
            outputs + random.gumbel(size=outputs.shape)
            for outputs in self._outputs(self._checked(X), n_samples, random)
        ]
        return self.classes_[np.concatenate([part.argmax(-1).T for part in parts])]

    def log_prob(self, X: ArrayLike, y: ArrayLike) -> np.ndarray:
        """The log probability, in nats, of the label of every row."""
        labels = self._known_labels(X, y)
        return self.predict_log_proba(X)[np.arange(len(labels)), labels]

    def _known_labels(self, X: ArrayLike, y: ArrayLike) -> np.ndarray:
        """The number of the class of every row."""
        labels = np.asarray(column_or_1d(y))
        check_consistent_length(X, labels)
        unknown = np.setdiff1d(labels, self.classes_)
        if len(unknown):
            known = shown(self.classes_.tolist())
            raise ValueError(
                f"y holds {shown(unknown.tolist()[0])}, which is not one of the fitted classes: pass {known}."
            )
        return np.searchsorted(self.classes_, labels)

    def _scores(self, table: Table) -> np.ndarray:
        """1 minus the probability of the true class of each row, ascending."""
        proba, _ = self._moments(table.x)
        return np.sort(1 - proba[np.arange(len(proba)), table.y[:, 0].astype(int)])

    def _validation_split(self, table: Table, fold: int) -> tuple[Table, Table | None]:
        """The same split, except that rows of a class that would not be learned from are not held out."""
        table, held_out = super()._validation_split(table, fold)
        if held_out is None:
            return table, None
        unlearned = ~np.isin(held_out.y[:, 0], table.y[:, 0])
        table, held_out = table.with_rows(held_out.at(unlearned)), held_out.at(~unlearned)
        return table, held_out if len(held_out.x) else None

    def _moments(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The mean and the standard deviation over draws of the probability of each class."""
        each = (special.softmax(outputs, axis=-1) for outputs in self._outputs(x))
        mean, std = map(np.concatenate, zip(*((part.mean(0), part.std(0)) for part in each), strict=True))
        return mean / mean.sum(1, keepdims=True), std
