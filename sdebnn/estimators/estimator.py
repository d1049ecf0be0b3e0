"""The base class of the regressor and the classifier: from a table to a fitted ensemble, and its draws on other rows.

Each member of the ensemble holds rows out and stops training where it predicts them best. Afterwards, the held-out rows
calibrate the forecast. All randomness, that of predictions included, comes from one seed drawn from ``random_state``. A
fitted estimator therefore always predicts the same for a row, whatever the other rows are.
"""

import functools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from sdebnn.calibration import Calibration, HeldOut, calibrated
from sdebnn.checks import check_count, check_level, check_positive, check_process
from sdebnn.contract import AbstractModel, check_solution
from sdebnn.data import Standardiser, TrainingInputs
from sdebnn.data.standardise import MAX_STANDARDISED, magnitude
from sdebnn.devices import platform
from sdebnn.estimators.drawing import drawing_program, ensemble_of, ensemble_shapes, is_shape
from sdebnn.estimators.net import NetSizes
from sdebnn.estimators.table import ArrayLike, Encoding, Table, power_of_two
from sdebnn.estimators.training import MembersBar, Rows, Schedule, Trained, trained
from sdebnn.estimators.workers import Workers, cores
from sdebnn.integrate import Solution
from sdebnn.likelihoods import AbstractLikelihood, Weighted
from sdebnn.models import Ensemble
from sdebnn.records import named, put_back
from sdebnn.train import Batches, Objective, Optimizer, Validation, fit

VALIDATIONS = 50  # in ``max_iter`` steps
AVERAGE_DECAY = 0.998  # of the moving average of the parameters
MIN_ROWS_TO_SPLIT = 3  # smaller tables hold no rows out
CALIBRATION_DRAWS = 20  # of each member
MAX_CALIBRATION_ROWS = 2048  # of all folds: more would hardly change one number
MAX_TEMPERATURE = 4.0
PREDICTION_STREAM = np.uint32(0xD1A)  # distinguishes the keys of predictions from those of training
LOG_TEMPERATURE_STD = 0.2  # of its prior, which a few held-out rows do not outweigh
PADDED_ROWS, PADDED_HELD_OUT = 256, 64  # smaller tables are padded to so many rows
ROWS_AT_ONCE = 2048
NUMBERS_IN_MEMORY = 2**26  # of the encoded inputs of all folds, which members train on side by side
OUTPUTS_AT_ONCE = 2**22  # numbers, over all rows and draws that are predicted together


E = TypeVar("E", bound="Estimator")


class Uncertainty(NamedTuple):
    """The uncertainty of every row: what more data like those of the fit would remove, and what they would not.

    ``reducible`` and ``noise`` are standard deviations of a regressor, and parts of the entropy of a classifier.
    """

    reducible: np.ndarray
    noise: np.ndarray


class LearningTask(NamedTuple):
    """A table, and the number of outputs that a net needs for each row."""

    table: Table
    outputs: int
    standardise_targets: bool


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
        """Train on the rows of X and their targets y. The weight of a row is the number of times it counts.

        ``X`` is a table of numbers, an array or a data frame. Returned is the fitted estimator itself.
        """
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
        self._set_scalings(task, seed)
        with self._workers() as workers:
            self._fit_ensemble(task.table, workers)

    def _workers(self) -> Workers:
        """A thread for each core; a GPU runs one member at a time."""
        return Workers(1 if platform() != "cpu" else min(cores(), self.members + 1))

    def _fit_ensemble(self, table: Table, workers: Workers) -> Calibration | None:
        """Train the members, each on the rows that it does not hold out, and calibrate the ensemble."""
        members = self._known_members() if self._continues() else self._new_members()
        parts = [self._validation_split(table, fold) for fold in range(self._folds)]
        fits = self._fit_members(members, parts, workers)
        self.ensemble_ = ensemble_of(self.net_, [each.model for each in fits])
        self.n_iter_ = max(len(each.elbos) for each in fits)
        self.loss_curve_ = -fits[0].elbos / parts[0][0].weight.sum()
        found = self._calibration([part for _, part in parts])
        self.temperature_ = 1.0 if found is None else found.temperature
        return found

    def _fit_members(
        self, members: list[AbstractModel], parts: list[tuple[Table, Table | None]], workers: Workers
    ) -> list[Trained]:
        """Train the members: those of small tables side by side, others one after the other by ``fit``."""
        likelihood, found = Weighted(self._likelihood), [None] * self.members
        columns = self.net_.features * (1 + self.net_.bins)
        if len(parts) * len(parts[0][0].x) * columns <= NUMBERS_IN_MEMORY:
            arrays = [(self._arrays(table.padded(PADDED_ROWS)), self._held_out_arrays(part)) for table, part in parts]
            data = jax.tree.map(jnp.asarray, arrays)
            with MembersBar(bool(self.verbose), self.members, float(self.kl_weight), len(parts[0][0].x)) as bar:
                start = functools.partial(self._started, workers, bar, likelihood, data)
                tasks = [start(members[0], 0)]
                if parts[0][1] is not None:
                    # While the first member compiles the training, this compiles the predictions for the calibration.
                    some = parts[0][1].at(slice(MAX_CALIBRATION_ROWS // len(parts))).x
                    workers.start(lambda _: self._drawn(ensemble_of(self.net_, members), some, self._calibration_draws))
                tasks += [start(model, i) for i, model in enumerate(members) if i > 0]
                found = [task.result() for task in tasks]
        return [
            self._fit_member(model, *parts[i % len(parts)], i) if known is None else known
            for i, (model, known) in enumerate(zip(members, found, strict=True))
        ]

    def _started(
        self,
        workers: Workers,
        bar: MembersBar,
        likelihood: AbstractLikelihood,
        data: list[tuple[Rows, Rows | None]],
        model: AbstractModel,
        index: int,
    ) -> Future[Trained | None]:
        """The training of a member, started on the rows of its fold."""
        rows, held_out = data[index % len(data)]
        return workers.start(
            trained, model, likelihood, rows, held_out, self._schedule(len(rows[0])), seed=self.seed_, index=index,
            bar=bar,
        )  # fmt: skip

    def _schedule(self, rows: int) -> Schedule:
        """How members are trained on so many rows."""
        batch = min(self.batch_size or _default_batch_size(rows), rows)
        epochs, rate = -(-self.max_iter // (rows // batch)), float(self.learning_rate)
        rule = _warmed_up_adam(rate) if self._continues() else None
        optimizer = Optimizer(rate, rule, clip=100.0, ema=AVERAGE_DECAY)
        validate_every = max(1, epochs // VALIDATIONS)
        return Schedule(
            optimizer, AVERAGE_DECAY, batch, float(self.kl_weight), epochs, validate_every, self.n_iter_no_change
        )

    def _net_sizes(self, task: LearningTask) -> NetSizes:
        features = -(-task.table.x.shape[1] // 8) * 8
        return NetSizes(features, task.outputs, self.width, self.steps, float(self.sigma))

    def _set_scalings(self, task: LearningTask, seed: int) -> None:
        """Compute from a table how inputs are encoded and targets standardised, unless the last fit is continued."""
        table, net = task.table, self._net_sizes(task)
        if self._continues():
            self._check_continues(net, table)
            return
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

    def _check_continues(self, net: NetSizes, table: Table) -> None:
        """Refuse a table that the members of the last fit do not suit."""
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

    def _new_members(self) -> list[AbstractModel]:
        return [self.net_.model(jax.random.key(self.seed_ + i)) for i in range(self.members)]

    def _known_members(self) -> list[AbstractModel]:
        """The members of the last fit."""
        arrays = jax.tree.map(np.asarray, self.ensemble_.arrays)
        members = [jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf[i]), arrays) for i in range(self.members)]
        return [eqx.combine(member, self.ensemble_.rest) for member in members]

    @property
    def _calibration_draws(self) -> int:
        return CALIBRATION_DRAWS * self.members

    def _calibration(self, held_out: list[Table | None]) -> Calibration | None:
        """The temperature at which the rows that members held out are most likely; None if there are none."""
        parts = []
        for fold, table in enumerate(held_out):
            if table is not None:
                table = table.at(slice(MAX_CALIBRATION_ROWS // len(held_out)))
                # All members predict, since predictions after the fit run the same program.
                outputs, members = self._drawn(self.ensemble_, table.x, self._calibration_draws)
                targets = jnp.asarray(self.y_scaling_.to(table.y).astype(jnp.result_type(float)))
                y = self._likelihood.targets_from_columns(targets)
                parts.append(HeldOut(outputs[members % len(held_out) == fold], y, table.weight))
        if not parts:
            return None
        return calibrated(self._likelihood, parts, largest=MAX_TEMPERATURE, prior_std=LOG_TEMPERATURE_STD)

    def _validation_split(self, table: Table, fold: int) -> tuple[Table, Table | None]:
        """The rows that a member learns from, and those that it holds out, if it does."""
        if not self.early_stopping or len(table.x) < MIN_ROWS_TO_SPLIT:
            return table, None
        return table.split(self.validation_fraction, self.seed_, fold)

    def _fit_member(self, model: AbstractModel, table: Table, held_out: Table | None, index: int) -> Trained:
        """Train a member by ``fit``, which reads large tables in parts and skips steps that are not finite."""
        x, y = self._arrays(table.padded(PADDED_ROWS))
        schedule, rows = self._schedule(len(x)), self._held_out_arrays(held_out)
        every, patience = schedule.validate_every, schedule.patience
        found = fit(
            model,
            Weighted(self._likelihood),
            x,
            y,
            key=jax.random.fold_in(jax.random.key(self.seed_), index),
            epochs=schedule.epochs,
            objective=Objective(draws=1, kl_weight=schedule.kl_weight),
            batches=Batches(schedule.batch_size),
            optimizer=schedule.optimizer,
            validation=None if rows is None else Validation(*rows, every=every, patience=patience),
            progress=bool(self.verbose),
        )
        elbos = found.history["elbo"]
        return Trained(found.model, elbos[np.isfinite(elbos)])

    def _held_out_arrays(self, table: Table | None) -> Rows | None:
        return None if table is None else self._arrays(table.padded(PADDED_HELD_OUT))

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
        seed = None if random is None else random.randint(2**31 - 1)
        at_once = min(ROWS_AT_ONCE, 1 << int(math.log2(max(1, OUTPUTS_AT_ONCE / (draws * self.net_.outputs)))))
        for first in range(0, len(x), at_once):
            part = x[first : first + at_once]
            outputs, _ = self._drawn(self.ensemble_, part, draws, min(PADDED_ROWS, at_once), seed)
            tempered = self._likelihood.tempered(jnp.asarray(outputs), self.temperature_)
            yield np.asarray(tempered if random is None else tempered[:draws], np.float64)

    def _drawn(
        self, ensemble: Ensemble, x: np.ndarray, draws: int, least: int = PADDED_ROWS, seed: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The outputs of an ensemble for some rows, before calibration, and the number of the member of each draw.

        The draws are those of all predictions, or others with a ``seed``.
        """
        # Padded to few different shapes, which are compiled once. A row's outputs do not depend on the other rows.
        inputs = self._encoded(x, power_of_two(len(x), least))
        key = (np.uint32(self.seed_), PREDICTION_STREAM) if seed is None else (np.uint32(seed), None)
        outputs, members = map(np.asarray, drawing_program(platform())(ensemble, inputs, *key, draws))
        check_solution(Solution(jnp.asarray(outputs), jnp.asarray(np.zeros(len(outputs)))))
        return outputs[:, : len(x)], members

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
