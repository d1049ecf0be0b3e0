"""What the regressor and the classifier share: a table in, a fitted ensemble out, and its draws on other rows.

Each member of the ensemble holds rows out, and stops where these are predicted best; how well that went says how wide
the forecast must be. Whatever is random comes from one seed, drawn from ``random_state``, and so do the draws of
predictions: a fitted estimator always says the same of a row, whichever rows are beside it.
"""

import functools
import math
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PRNGKeyArray
from scipy import optimize
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from sdebnn.checks import check_count, check_positive, check_process, warn_if_unlike
from sdebnn.estimators.conformal import check_level
from sdebnn.estimators.net import Net
from sdebnn.estimators.table import FARTHEST, Encoding, Rows, Scaling, power_of_two
from sdebnn.likelihoods import Likelihood, Weighted
from sdebnn.models import SDEBNN
from sdebnn.predict import predict
from sdebnn.records import named, put_back
from sdebnn.train import Fit, fit

CHECKS = 50  # of the rows held out, in ``max_iter`` steps
FEW = 3  # rows, of which none can be spared
DRAWS_HELD_OUT = 20  # of each member, by which its rows held out are predicted
MOST_CALIBRATED = 2048  # of these rows: more would not change one number
LARGEST_NUMBER = 1e300  # of a table: predictions may be a million times as large
LARGEST = math.log(4)  # factor of a calibration
BELIEF = 0.2  # standard deviation of its logarithm, before any rows: a few rows held out do not outweigh it
LEAST_ROWS, LEAST_HELD_OUT, ROWS_AT_ONCE = 256, 64, 2048
NUMBERS_AT_ONCE = 2**22  # of all draws and outputs, by which rows are fewer


class Task(NamedTuple):
    """What is to be learned: rows, the outputs of the net for each, and what these say of the targets."""

    rows: Rows
    outputs: int
    likelihood: Likelihood
    scaled: bool  # whether the targets are to be standardised


def checked_weight(sample_weight: Any, X: np.ndarray) -> np.ndarray:
    """How often each row counts, as scikit-learn takes it; some row must."""
    weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if not 1e-30 < weight.max() < 1e30:
        raise ValueError(
            f"sample_weight is {weight.max():.3g} at most: pass weights of which some are not near zero or infinite."
        )
    return weight


def check_size(name: str, columns: np.ndarray) -> None:
    """Refuse numbers so large that predictions of their size would overflow."""
    largest = columns.ravel()[np.abs(columns).argmax()]
    if abs(largest) > LARGEST_NUMBER:
        raise ValueError(
            f"{name} holds {largest:.3g}, and what is computed from numbers beyond {LARGEST_NUMBER:g} may overflow: "
            "divide its columns by a constant."
        )


def _batch_of(rows: int) -> int:
    """Rows of a step: a sixteenth of them, rounded down to a power of two, from 128 to 512."""
    return 1 << int(math.log2(min(512, max(128, rows / 16))))


@functools.cache  # one object for the same numbers, so that a second fit finds the first one's program
def _gently(rate: float) -> Callable[[int], optax.GradientTransformation]:
    """Adam for weights that have learned something: its first steps, which are all of one size, are small ones."""

    def adam(steps: int) -> optax.GradientTransformation:
        warm_up = max(1, steps // 5)
        return optax.adam(optax.warmup_cosine_decay_schedule(0.0, rate / 4, warm_up, max(steps, warm_up + 1)))

    return functools.cache(adam)


def most_likely(loss: Callable[[float], float]) -> float:
    """The factor, from a quarter to four, that makes a loss in nats least, beside what is believed of it: about 1."""

    def total(log: float) -> float:
        return loss(math.exp(log)) + 0.5 * (log / BELIEF) ** 2

    found: Any = optimize.minimize_scalar(total, bounds=(-LARGEST, LARGEST), method="bounded")
    return math.exp(found.x)


class Estimator(BaseEstimator):
    """A table in, a fitted ensemble out. Subclasses say what targets are, and what the draws say of them.

    They name every parameter again: scikit-learn reads them off each class's own signature.
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

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Train on a table, and on what is to be predicted for every row; a weight is how often a row counts."""
        check_process()
        self._check_parameters()
        before = dict(vars(self))
        try:
            task = self._task(X, y, sample_weight)
            seed = self.seed_ if self._goes_on() else int(check_random_state(self.random_state).randint(2**31 - 1))
            rows, held_out = self._calibration(task.rows, seed)
            self.scores_, self.draws_ = None, self.draws
            self._fit(task._replace(rows=rows.distinct()), seed)
            self.scores_ = None if held_out is None else self._scores(held_out)
        except BaseException:  # a fit is done, or all is as it was before
            vars(self).clear()
            vars(self).update(before)
            raise
        return self

    @abstractmethod
    def _task(self, X: Any, y: Any, sample_weight: Any) -> Task:
        """What is to be learned, once it is known to be in order."""

    @abstractmethod
    def _scores(self, rows: Rows) -> np.ndarray:
        """How far off the forecast of each row is, ascending in the last axis."""

    @abstractmethod
    def _calibrated(self, held_out: list[tuple[np.ndarray, Rows]]) -> float:
        """What makes the members' forecasts of the rows they held out most likely: 1 changes nothing."""

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
        if self.conformal and self._goes_on():
            raise ValueError(
                "warm_start=True goes on with what has seen all rows, and conformal=True needs rows that it has not: "
                "set one of them to False."
            )

    def _goes_on(self) -> bool:
        """Whether a fit starts from the last one."""
        return bool(self.warm_start) and self.__sklearn_is_fitted__()

    def _calibration(self, rows: Rows, seed: int) -> tuple[Rows, Rows | None]:
        """The rows to train on, and those that a conformal forecast is calibrated on."""
        if not self.conformal:
            return rows, None
        rows = rows.at(rows.weight > 0)
        if len(rows.x) < 2:
            raise ValueError("conformal=True holds rows out, and there is one sample: pass more rows.")
        return rows.parted(self.calibration_fraction, seed)

    def _fit(self, task: Task, seed: int) -> None:
        """Train the members, each on the rows that it does not hold out."""
        rows = task.rows
        net = Net(-(-rows.x.shape[1] // 8) * 8, task.outputs, self.width, self.steps, float(self.sigma))
        if self._goes_on():
            if (net, self.members) != (self.net_, len(self.members_)):
                raise ValueError(
                    f"warm_start=True goes on with {len(self.members_)} of {self.net_}, and this fit asks for "
                    f"{self.members} of {net}: keep the columns and the sizes, or set warm_start=False."
                )
            far = np.abs(self.y_scaling_.to(rows.y)).max()
            if far > FARTHEST:
                raise ValueError(
                    f"warm_start=True: a target is {far:.3g} spreads from those of the first fit: set warm_start=False."
                )
            members = self.members_
        else:
            self.net_, self.encoding_, self.seed_ = net, Encoding.of(rows.x, rows.weight, net.bins), seed
            self.y_scaling_ = Scaling(np.zeros(rows.y.shape[1]), np.ones(rows.y.shape[1]))
            if task.scaled:
                # A constant is predicted as that constant, give or take a millionth; but one row says little.
                self.y_scaling_ = Scaling.of(rows.y, rows.weight, constant=1.0 if len(rows.y) == 1 else 1e-6)
            members = tuple(net.model(jax.random.key(seed + i)) for i in range(self.members))
        # Two members or more hold out the same rows: what they say of these together is what an ensemble would.
        folds = max(1, self.members // 2)
        parts = [self._parts(rows, fold) for fold in range(folds)]
        fits = [self._fit_member(members[i], task.likelihood, *parts[i % folds], i) for i in range(self.members)]
        self.members_ = tuple(each.model for each in fits)
        steps = [int(np.isfinite(each.history["elbo"]).sum()) for each in fits]
        self.n_iter_ = max(steps)
        self.loss_curve_ = -fits[0].history["elbo"][: steps[0]] / parts[0][0].weight.sum()
        held_out = [(fold, part[1].at(slice(MOST_CALIBRATED))) for fold, part in enumerate(parts) if part[1]]
        key = jax.random.fold_in(jax.random.key(self.seed_), 0xD1A)
        said = [
            (self._said_by(range(fold, self.members, folds), part.x, DRAWS_HELD_OUT, key, LEAST_ROWS), part)
            for fold, part in held_out
        ]
        self.calibration_ = self._calibrated(said)

    def _parts(self, rows: Rows, number: int) -> tuple[Rows, Rows | None]:
        """The rows that a member learns from, and those that it holds out, if it does."""
        if not self.early_stopping or len(rows.x) < FEW:
            return rows, None
        return rows.parted(self.validation_fraction, self.seed_, number)

    def _fit_member(self, model: SDEBNN, likelihood: Likelihood, rows: Rows, held_out: Rows | None, number: int) -> Fit:
        if self.verbose:
            print(f"Member {number + 1} of {self.members}", file=sys.stderr)
        x, y = self._arrays(rows.padded(LEAST_ROWS))
        batch = min(self.batch_size or _batch_of(len(x)), len(x))
        epochs = -(-self.max_iter // (len(x) // batch))
        return fit(
            model, Weighted(likelihood), x, y,
            key=jax.random.fold_in(jax.random.key(self.seed_), number), epochs=epochs, batch_size=batch, draws=1,
            learning_rate=float(self.learning_rate), clip=100.0, ema=0.998, kl_weight=float(self.kl_weight),
            optimizer=_gently(float(self.learning_rate)) if self._goes_on() else None,
            validation=None if held_out is None else self._arrays(held_out.padded(LEAST_HELD_OUT)),
            validate_every=max(1, epochs // CHECKS), patience=None if held_out is None else self.n_iter_no_change,
            progress=bool(self.verbose),
        )  # fmt: skip

    def _arrays(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Encoded inputs; standardised targets, the weight appended."""
        y = np.hstack([self.y_scaling_.to(rows.y), rows.weight[:, None]])
        return self._encoded(rows.x, len(rows.x)), y.astype(jnp.result_type(float))

    def _encoded(self, x: np.ndarray, rows: int) -> np.ndarray:
        """Encoded inputs as JAX computes with them, and rows of zeros up to so many; made a few rows at a time."""
        encoded = np.zeros((rows, self.net_.features * (1 + self.net_.bins)), jnp.result_type(float))
        for first in range(0, len(x), ROWS_AT_ONCE):
            part = x[first : first + ROWS_AT_ONCE]
            encoded[first : first + len(part)] = self.encoding_.to(part, self.net_.features)
        return encoded

    def _checked(self, X: Any) -> np.ndarray:
        """Rows to predict, as they must be."""
        check_process()
        check_is_fitted(self)
        x = np.asarray(validate_data(self, X, reset=False, dtype=np.float64))
        warn_if_unlike(
            *self.encoding_.columns, x[:ROWS_AT_ONCE], column="column", table=True, stacklevel=3,
            cause="Pass columns in the units and the order of those that it was fitted to.",
        )  # fmt: skip
        return x

    def _outputs(
        self, x: np.ndarray, draws: int | None = None, random: np.random.RandomState | None = None
    ) -> Iterator[np.ndarray]:
        """What each draw says of the rows, "draw row output", the members in turn; some rows at a time.

        The draws are always the same ones, and as many of each member: more than asked for, if the members do not
        divide that. If they are to be ``random``, they are exactly as many, and their members drawn by lot.
        """
        if draws is None:  # conformal scores are those of so many draws
            draws = self.draws if self.scores_ is None else self.draws_
        check_count("draws", draws)
        assert draws is not None
        members, key = list(range(len(self.members_))), jax.random.fold_in(jax.random.key(self.seed_), 0xD1A)
        if random is not None:
            members, key = random.permutation(members).tolist(), jax.random.key(random.randint(2**31 - 1))
        each = -(-draws // len(members))
        at_once = min(ROWS_AT_ONCE, 1 << int(math.log2(max(1, NUMBERS_AT_ONCE / (draws * self.net_.outputs)))))
        for first in range(0, len(x), at_once):
            said = self._said_by(members, x[first : first + at_once], each, key, min(LEAST_ROWS, at_once))
            yield said if random is None else said[:draws]

    def _said_by(self, members: Sequence[int], x: np.ndarray, draws: int, key: PRNGKeyArray, least: int) -> np.ndarray:
        """What so many draws of each of some members say of the rows, the members in turn."""
        # Always one of a few shapes: they are compiled once, and a row's numbers do not depend on its neighbours.
        inputs = self._encoded(x, power_of_two(len(x), least))
        keys = [jax.random.fold_in(key, i) for i in members]
        each = [
            predict(self.members_[i], inputs, draws=draws, key=key, batch_size=len(inputs))[:, : len(x)]
            for i, key in zip(members, keys, strict=True)
        ]
        return np.stack(each, axis=1).reshape(-1, *each[0].shape[1:]).astype(np.float64)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "members_")

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = {**cast(dict[str, Any], super().__getstate__())}
        if "members_" in state:  # numbers of the host: what was fitted on a GPU is read anywhere
            arrays = named(eqx.filter(self.members_, eqx.is_array))
            state["members_"] = {where: np.asarray(array) for where, array in arrays.items()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "members_" in state:
            member = eqx.filter_eval_shape(self.net_.model, jax.random.key(0))
            size = 1 + max(int(where.split(".")[0]) for where in state["members_"])
            arrays, rest = eqx.partition((member,) * size, lambda leaf: hasattr(leaf, "dtype"))
            self.members_ = eqx.combine(jax.tree.map(jnp.asarray, put_back(arrays, state["members_"])), rest)
