"""The base class of the regressor and the classifier: from a table to a fitted ensemble, and its draws on other rows.

Each member of the ensemble holds rows out and stops training where it predicts them best. Afterwards, the held-out rows
calibrate the forecast. All randomness, that of predictions included, comes from one seed drawn from ``random_state``. A
fitted estimator therefore always predicts the same for a row, whatever the other rows are.
"""

import functools
import math
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PRNGKeyArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    _check_sample_weight,  # pyright: ignore[reportPrivateUsage]
    check_is_fitted,
    validate_data,
)

from sdebnn.calibration import Calibration, HeldOut, calibrated
from sdebnn.checks import check_count, check_positive, check_process
from sdebnn.contract import AbstractModel
from sdebnn.data import Standardiser, TrainingInputs
from sdebnn.data.standardise import MAX_STANDARDISED, magnitude
from sdebnn.estimators.conformal import check_level
from sdebnn.estimators.net import NetSizes
from sdebnn.estimators.table import ArrayLike, Encoding, Table, power_of_two
from sdebnn.likelihoods import AbstractLikelihood, Weighted
from sdebnn.models import Ensemble
from sdebnn.prediction import predict
from sdebnn.records import named, put_back
from sdebnn.train import Batches, Fit, Objective, Optimizer, Validation, fit

VALIDATIONS = 50  # in ``max_iter`` steps
MIN_ROWS_TO_SPLIT = 3  # smaller tables hold no rows out
CALIBRATION_DRAWS = 20  # of each member
MAX_CALIBRATION_ROWS = 2048  # of each fold: more would hardly change one number
MAX_TEMPERATURE = 4.0
LOG_TEMPERATURE_STD = 0.2  # of its prior, which a few held-out rows do not outweigh
MAX_ENTRY = 1e300  # of a table: predictions may be a million times as large, and must not overflow
PADDED_ROWS, PADDED_HELD_OUT = 256, 64  # smaller tables are padded to so many rows
ROWS_AT_ONCE = 2048
DRAWS_AT_ONCE = 20  # divides the draws of a calibration and the default of a prediction
OUTPUTS_AT_ONCE = 2**22  # numbers, over all rows and draws that are predicted together


E = TypeVar("E", bound="Estimator")


class Uncertainty(NamedTuple):
    """The uncertainty of every row: what more data like those of the fit would remove, and what they would not."""

    reducible: np.ndarray
    noise: np.ndarray


class LearningTask(NamedTuple):
    """A table, and the number of outputs that a net needs for each row."""

    table: Table
    outputs: int
    standardise_targets: bool


def checked_weight(sample_weight: ArrayLike | None, X: np.ndarray) -> np.ndarray:
    """The weight of each row, of which at least one must be well above zero."""
    weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if not 1e-30 < weight.max() < 1e30:
        raise ValueError(
            f"the largest sample_weight is {weight.max():.3g}: pass weights of which some are neither nearly zero nor "
            "nearly infinite."
        )
    return weight


def check_magnitude(name: str, columns: np.ndarray) -> None:
    """Refuse numbers so large that predictions of their size could overflow."""
    largest = columns.ravel()[np.abs(columns).argmax()]
    if abs(largest) > MAX_ENTRY:
        raise ValueError(
            f"{name} holds {largest:.3g}, and results computed from numbers beyond {MAX_ENTRY:g} may overflow: divide "
            "its columns by a constant."
        )


def _default_batch_size(rows: int) -> int:
    """A sixteenth of the rows, rounded down to a power of two, from 128 to 512."""
    return 1 << int(math.log2(min(512, max(128, rows / 16))))


@functools.cache  # the same object for the same rate, so that a second fit reuses the program of the first
def _warmed_up_adam(rate: float) -> Callable[[int], optax.GradientTransformation]:
    """Adam for weights that are trained already: a quarter of the rate, after a warm-up.

    Without it, the first steps of Adam, which all have the size of the rate, would undo the earlier training.
    """

    def adam(steps: int) -> optax.GradientTransformation:
        warm_up = max(1, steps // 5)
        return optax.adam(optax.warmup_cosine_decay_schedule(0.0, rate / 4, warm_up, max(steps, warm_up + 1)))

    return functools.cache(adam)


class Estimator(BaseEstimator):
    """Fits an ensemble to a table. Subclasses define the targets, the likelihood and the predictions.

    They repeat every parameter, since scikit-learn reads the parameters from the signature of each class.
    """

    def __init__(
        self,
        *,
        members,
        width,
        steps,
        sigma,
        kl_weight,
        max_iter,
        batch_size,
        learning_rate,
        early_stopping,
        validation_fraction,
        n_iter_no_change,
        draws,
        conformal,
        calibration_fraction,
        warm_start,
        random_state,
        verbose,
    ):
        self.members, self.width, self.steps, self.sigma = members, width, steps, sigma
        self.kl_weight, self.max_iter, self.batch_size = kl_weight, max_iter, batch_size
        self.learning_rate, self.early_stopping = learning_rate, early_stopping
        self.validation_fraction, self.n_iter_no_change, self.draws = validation_fraction, n_iter_no_change, draws
        self.conformal, self.calibration_fraction = conformal, calibration_fraction
        self.warm_start, self.random_state, self.verbose = warm_start, random_state, verbose

    def fit(self: E, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> E:
        """Train on the rows of X and their targets y. The weight of a row is the number of times it counts."""
        check_process()
        self._check_parameters()
        before = dict(vars(self))
        try:
            task = self._task(X, y, sample_weight)
            seed = self.seed_ if self._continues() else int(check_random_state(self.random_state).randint(2**31 - 1))
            table, held_out = self._conformal_split(task.table, seed)
            self.scores_, self.draws_ = None, self.draws
            self._fit(task._replace(table=table.distinct()), seed)
            self.scores_ = None if held_out is None else self._scores(held_out)
        except BaseException:  # a failed fit changes nothing
            vars(self).clear()
            vars(self).update(before)
            raise
        return self

    @abstractmethod
    def _task(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> LearningTask:
        """The arguments of ``fit``, checked."""

    @property
    @abstractmethod
    def _likelihood(self) -> AbstractLikelihood:
        """The likelihood of the standardised targets."""

    @abstractmethod
    def _scores(self, table: Table) -> np.ndarray:
        """The conformal scores of some rows, ascending along the last axis."""

    def _check_parameters(self) -> None:
        for name in ("members", "width", "steps", "max_iter", "n_iter_no_change", "draws"):
            check_count(name, getattr(self, name))
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size)
        for name in ("sigma", "learning_rate"):
            check_positive(name, getattr(self, name))
        check_positive("kl_weight", self.kl_weight, or_zero=True)
        for name in ("validation_fraction", "calibration_fraction"):
            check_level(name, getattr(self, name))
        if self.conformal and self._continues():
            raise ValueError(
                "warm_start=True continues from a fit that has seen all rows, and conformal=True needs rows that it "
                "has not seen: set one of them to False."
            )

    def _validated(self, X: ArrayLike, y: ArrayLike, **options: bool) -> tuple[np.ndarray, np.ndarray]:
        """The arguments of ``fit`` as arrays, checked by scikit-learn."""
        reset = not self._continues()
        return validate_data(self, X, y, dtype=np.float64, reset=reset, **options)  # pyright: ignore[reportArgumentType, reportReturnType]

    def _continues(self) -> bool:
        """Whether the members start from those of the last fit."""
        return bool(self.warm_start) and self.__sklearn_is_fitted__() and self.ensemble_ is not None

    def _conformal_split(self, table: Table, seed: int) -> tuple[Table, Table | None]:
        """The rows to train on, and those from which conformal scores are computed."""
        if not self.conformal:
            return table, None
        table = table.at(table.weight > 0)
        if len(table.x) < 2:
            raise ValueError("conformal=True holds rows out, and there is only one sample: pass more rows.")
        return table.split(self.calibration_fraction, seed)

    def _fit(self, task: LearningTask, seed: int) -> None:
        """Fit to the distinct rows of a table."""
        self._fit_ensemble(task, seed)

    def _fit_ensemble(self, task: LearningTask, seed: int) -> Calibration | None:
        """Train the members, each on the rows that it does not hold out, and calibrate the ensemble."""
        table, net = task.table, self._net_sizes(task)
        if self._continues():
            members = self._known_members(net, table)
        else:
            self._set_scalings(task, seed)
            members = [net.model(jax.random.key(seed + i)) for i in range(self.members)]
        parts = [self._validation_split(table, fold) for fold in range(self._folds)]
        fits = [self._fit_member(members[i], *parts[i % len(parts)], i) for i in range(self.members)]
        self.ensemble_ = Ensemble([each.model for each in fits])
        steps = [int(np.isfinite(each.history["elbo"]).sum()) for each in fits]
        self.n_iter_ = max(steps)
        self.loss_curve_ = -fits[0].history["elbo"][: steps[0]] / parts[0][0].weight.sum()
        found = self._calibration([part for _, part in parts])
        self.temperature_ = 1.0 if found is None else found.temperature
        return found

    def _net_sizes(self, task: LearningTask) -> NetSizes:
        features = -(-task.table.x.shape[1] // 8) * 8
        return NetSizes(features, task.outputs, self.width, self.steps, float(self.sigma))

    def _set_scalings(self, task: LearningTask, seed: int) -> None:
        """Compute from a table how inputs are encoded and targets standardised."""
        table, net = task.table, self._net_sizes(task)
        self.net_, self.encoding_, self.seed_ = net, Encoding.of(table.x, table.weight, net.bins), seed
        self.y_scaling_ = Standardiser.identity(table.y.shape[1])
        if task.standardise_targets:
            # A constant is predicted to a relative 1e-6, but a single row does not show that it is a constant.
            constant = (1.0 if len(table.y) == 1 else 1e-6) * magnitude(table.y)
            self.y_scaling_ = Standardiser.of(table.y, table.weight, constant=constant)

    @property
    def _folds(self) -> int:
        """At least two members hold out the same rows, whose forecast is then an average, as the ensemble's is."""
        return max(1, self.members // 2)

    def _known_members(self, net: NetSizes, table: Table) -> list[AbstractModel]:
        """The members of the last fit, if they suit the table of this one."""
        if (net, self.members) != (self.net_, self.ensemble_.size):
            raise ValueError(
                f"warm_start=True continues with {self.ensemble_.size} of {self.net_}, and this fit asks for "
                f"{self.members} of {net}: keep the columns and the sizes, or set warm_start=False."
            )
        far = np.abs(self.y_scaling_.to(table.y)).max()
        if far > MAX_STANDARDISED:
            raise ValueError(
                f"warm_start=True: a target is {far:.3g} standard deviations from those of the first fit: set "
                "warm_start=False."
            )
        return [self.ensemble_.member(i) for i in range(self.members)]

    def _calibration(self, held_out: list[Table | None]) -> Calibration | None:
        """The temperature at which the rows that members held out are most likely; None if there are none."""
        parts = []
        for fold, table in enumerate(held_out):
            if table is not None:
                table = table.at(slice(MAX_CALIBRATION_ROWS))
                members = [self.ensemble_.member(i) for i in range(fold, self.members, len(held_out))]
                draws = CALIBRATION_DRAWS * len(members)
                outputs = self._drawn(Ensemble(members), table.x, draws, self._prediction_key(), PADDED_ROWS)
                y = self._likelihood.targets_from_columns(jnp.asarray(self.y_scaling_.to(table.y), float))
                parts.append(HeldOut(outputs, y, table.weight))
        if not parts:
            return None
        return calibrated(self._likelihood, parts, largest=MAX_TEMPERATURE, prior_std=LOG_TEMPERATURE_STD)

    def _validation_split(self, table: Table, fold: int) -> tuple[Table, Table | None]:
        """The rows that a member learns from, and those that it holds out, if it does."""
        if not self.early_stopping or len(table.x) < MIN_ROWS_TO_SPLIT:
            return table, None
        return table.split(self.validation_fraction, self.seed_, fold)

    def _fit_member(self, model: AbstractModel, table: Table, held_out: Table | None, index: int) -> Fit:
        if self.verbose:
            print(f"Member {index + 1} of {self.members}", file=sys.stderr)
        x, y = self._arrays(table.padded(PADDED_ROWS))
        batch = min(self.batch_size or _default_batch_size(len(x)), len(x))
        epochs, rate = -(-self.max_iter // (len(x) // batch)), float(self.learning_rate)
        rule = _warmed_up_adam(rate) if self._continues() else None
        validation = None
        if held_out is not None:
            validation = Validation(
                *self._arrays(held_out.padded(PADDED_HELD_OUT)),
                every=max(1, epochs // VALIDATIONS),
                patience=self.n_iter_no_change,
            )
        return fit(
            model,
            Weighted(self._likelihood),
            x,
            y,
            key=jax.random.fold_in(jax.random.key(self.seed_), index),
            epochs=epochs,
            objective=Objective(draws=1, kl_weight=float(self.kl_weight)),
            batches=Batches(batch),
            optimizer=Optimizer(rate, rule, clip=100.0, ema=0.998),
            validation=validation,
            progress=bool(self.verbose),
        )

    def _arrays(self, table: Table) -> tuple[np.ndarray, np.ndarray]:
        """Encoded inputs, and standardised targets with the weights as the last column."""
        y = np.hstack([self.y_scaling_.to(table.y), table.weight[:, None]])
        return self._encoded(table.x, len(table.x)), y.astype(jnp.result_type(float))

    def _encoded(self, x: np.ndarray, rows: int) -> np.ndarray:
        """Encoded inputs in the type that JAX computes with, followed by rows of zeros."""
        encoded = np.zeros((rows, self.net_.features * (1 + self.net_.bins)), jnp.result_type(float))
        for first in range(0, len(x), ROWS_AT_ONCE):
            part = x[first : first + ROWS_AT_ONCE]
            encoded[first : first + len(part)] = self.encoding_.to(part, self.net_.features)
        return encoded

    def _checked(self, X: ArrayLike) -> np.ndarray:
        """Rows to predict, checked."""
        check_process()
        check_is_fitted(self)
        x = np.asarray(validate_data(self, X, reset=False, dtype=np.float64))  # pyright: ignore[reportArgumentType]
        TrainingInputs.table(self.encoding_.columns).warn_if_unlike(x, stacklevel=3)
        return x

    def _outputs(
        self, x: np.ndarray, draws: int | None = None, random: np.random.RandomState | None = None
    ) -> Iterator[np.ndarray]:
        """The calibrated outputs of each draw, "draw row output", for some rows at a time.

        By default the draws are the same in every call, and their number is rounded up to a multiple of the members, so
        that each member has the same weight. With ``random``, the draws differ, and their number is not rounded.
        """
        if draws is None:  # conformal scores were computed from ``draws_`` draws
            draws = self.draws if self.scores_ is None else self.draws_
        check_count("draws", draws)
        assert draws is not None
        key = self._prediction_key() if random is None else jax.random.key(random.randint(2**31 - 1))
        at_once = min(ROWS_AT_ONCE, 1 << int(math.log2(max(1, OUTPUTS_AT_ONCE / (draws * self.net_.outputs)))))
        for first in range(0, len(x), at_once):
            part = x[first : first + at_once]
            outputs = self._drawn(self.ensemble_, part, draws, key, min(PADDED_ROWS, at_once))
            tempered = self._likelihood.tempered(jnp.asarray(outputs), self.temperature_)
            yield np.asarray(tempered if random is None else tempered[:draws], np.float64)

    def _prediction_key(self) -> PRNGKeyArray:
        return jax.random.fold_in(jax.random.key(self.seed_), 0xD1A)

    def _drawn(self, ensemble: Ensemble, x: np.ndarray, draws: int, key: PRNGKeyArray, least: int) -> np.ndarray:
        """The outputs of an ensemble for some rows, before calibration."""
        # Padded to few different shapes, which are compiled once. A row's outputs do not depend on the other rows.
        inputs = self._encoded(x, power_of_two(len(x), least))
        samples = predict(ensemble, inputs, draws=draws, key=key, batch_size=len(inputs), draws_at_once=DRAWS_AT_ONCE)
        return np.asarray(samples)[:, : len(x)]

    def __sklearn_is_fitted__(self) -> bool:
        return "ensemble_" in vars(self)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = {**cast(dict[str, Any], super().__getstate__())}
        if state.get("ensemble_") is not None:  # NumPy arrays, so that a fit on a GPU can be read anywhere
            arrays = named(eqx.filter(self.ensemble_, eqx.is_array))
            state["ensemble_"] = {name: np.asarray(array) for name, array in arrays.items()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if state.get("ensemble_") is not None:
            size = len(next(iter(state["ensemble_"].values())))
            arrays, rest = eqx.partition(ensemble_shapes(self.net_, size), is_shape)
            self.ensemble_ = eqx.combine(jax.tree.map(jnp.asarray, put_back(arrays, state["ensemble_"])), rest)


def ensemble_shapes(net: NetSizes, size: int) -> Ensemble:
    """An ensemble of so many nets, with shapes in place of its arrays."""
    return eqx.filter_eval_shape(lambda key: Ensemble([net.model(key)] * size), jax.random.key(0))


def is_shape(leaf: object) -> bool:
    """Whether a leaf stands for an array."""
    return isinstance(leaf, jax.ShapeDtypeStruct)
