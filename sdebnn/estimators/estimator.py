"""What the regressor and the classifier share: a table in, a fitted ensemble out, and its draws on other rows.

Each member of the ensemble holds other rows out, and stops where these are predicted best; how well it did so says how
wide the forecast must be. Whatever is random comes from one seed, drawn from ``random_state``, and so do the draws of
predictions: a fitted estimator always says the same of a row, whichever rows are beside it.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy import optimize
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from sdebnn.baselines import Ensemble
from sdebnn.checks import check_count, check_positive, shown
from sdebnn.estimators.table import BINS, Encoding, Rows, Scaling, power_of_two
from sdebnn.files import named, put_back
from sdebnn.integrate import FixedGrid
from sdebnn.likelihoods import Likelihood, Weighted
from sdebnn.models import SDEBNN, Deterministic
from sdebnn.predict import predict
from sdebnn.processes import OU, Point
from sdebnn.train import Fit, fit

LEAST_STATE = 32  # numbers in the hidden state
ZEROS = 8  # of which are no column of the table, at least
DRIFT = (16, 16)  # widths of the net of the posterior's drift
CHECKS = 50  # of the rows held out, in ``max_iter`` steps
FEW = 5  # rows held out that say nothing: a table so small is trained on whole
DRAWS_HELD_OUT = 20  # of each member, by which its rows held out are predicted
LARGEST = math.log(4)  # factor of a calibration
LEAST_ROWS, LEAST_HELD_OUT, ROWS_AT_ONCE = 256, 64, 2048


class Encoder(eqx.Module):
    """h_0: the standardised columns, zeros, and a linear map of all bins added to both."""

    weight: Float[Array, "state bin"]
    features: int = eqx.field(static=True)

    def __call__(self, x: Float[Array, " input"]) -> Float[Array, " state"]:
        state = self.weight.shape[0]
        return jnp.pad(x[: self.features], (0, state - self.features)) + self.weight @ x[self.features :]


class Net(NamedTuple):
    """All that a net is built from, beside a key."""

    features: int  # a multiple of eight: tables of a few columns more or fewer share a program
    outputs: int
    width: int
    steps: int
    sigma: float

    def model(self, key: PRNGKeyArray) -> SDEBNN:
        """An SDE-BNN before any data."""
        encoder_key, key = jax.random.split(key)
        state = max(LEAST_STATE, self.features + ZEROS)
        encoder = Encoder(jax.random.normal(encoder_key, (state, self.features * BINS)), self.features)
        inner = SDEBNN.mlp(
            state, self.outputs, widths=(self.width,), augment=0, prior=OU(sigma=self.sigma), drift=DRIFT,
            initial=Point, solver=FixedGrid(self.steps, gradient="backprop", unroll=1), key=key,
        )  # fmt: skip
        return SDEBNN((Deterministic(encoder), *inner.layers))


@eqx.filter_jit  # or its many small programs, one by one, would take longer than a fit
def _start(net: Net, key: PRNGKeyArray) -> SDEBNN:
    return net.model(key)


def most_likely(loss: Callable[[float], float]) -> float:
    """The factor, from a quarter to four, that makes a loss least."""
    found = optimize.minimize_scalar(lambda log: loss(math.exp(log)), bounds=(-LARGEST, LARGEST), method="bounded")
    return math.exp(found.x)


class Estimator(BaseEstimator):
    """A table in, a fitted ensemble out. Subclasses say what targets are, and what the draws say of them."""

    def __init__(
        self,
        *,
        members: int,
        width: int,
        steps: int,
        sigma: float,
        kl_weight: float,
        max_iter: int,
        batch_size: int,
        learning_rate: float,
        early_stopping: bool,
        validation_fraction: float,
        n_iter_no_change: int,
        draws: int,
        conformal: bool,
        calibration_fraction: float,
        warm_start: bool,
        random_state: Any,
        verbose: Any,
    ):
        self.members, self.width, self.steps, self.sigma = members, width, steps, sigma
        self.kl_weight, self.max_iter, self.batch_size = kl_weight, max_iter, batch_size
        self.learning_rate, self.early_stopping = learning_rate, early_stopping
        self.validation_fraction, self.n_iter_no_change, self.draws = validation_fraction, n_iter_no_change, draws
        self.conformal, self.calibration_fraction = conformal, calibration_fraction
        self.warm_start, self.random_state, self.verbose = warm_start, random_state, verbose

    def _check_parameters(self) -> None:
        for name in ("members", "width", "steps", "max_iter", "batch_size", "n_iter_no_change", "draws"):
            check_count(name, getattr(self, name))
        for name in ("sigma", "learning_rate"):
            check_positive(name, getattr(self, name))
        check_positive("kl_weight", self.kl_weight, or_zero=True)
        for name in ("validation_fraction", "calibration_fraction"):
            value = getattr(self, name)
            check_positive(name, value)
            if value >= 1:
                raise ValueError(f"{name}={shown(value)} is a share of the rows: pass a number between 0 and 1.")

    def _goes_on(self) -> bool:
        """Whether a fit starts from the last one."""
        return bool(self.warm_start) and self.__sklearn_is_fitted__()

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _calibration(self, rows: Rows, seed: int) -> tuple[Rows, Rows | None]:
        """The rows to train on, and those that a conformal forecast is calibrated on."""
        if not self.conformal:
            return rows, None
        rows = rows.at(rows.weight > 0)
        if len(rows.x) < 2:
            raise ValueError("conformal=True holds rows out, and there is one sample: pass more rows.")
        return rows.parted(self.calibration_fraction, seed)

    def _fit(self, rows: Rows, outputs: int, likelihood: Likelihood, seed: int, *, scale_targets: bool) -> None:
        """Train the members, each on the rows that it does not hold out; the net has so many ``outputs``."""
        rows = rows.distinct()
        net = Net(-(-rows.x.shape[1] // 8) * 8, outputs, self.width, self.steps, float(self.sigma))
        if self._goes_on():
            if (net, self.members) != (self.net_, len(self.members_)):
                raise ValueError(
                    f"warm_start=True goes on with {len(self.members_)} of {self.net_}, and this fit asks for "
                    f"{self.members} of {net}: keep the columns and the sizes, or set warm_start=False."
                )
            members = self.members_
        else:
            self.net_, self.encoding_ = net, Encoding.of(rows.x, rows.weight)
            self.y_scaling_ = Scaling(np.zeros(rows.y.shape[1]), np.ones(rows.y.shape[1]))
            if scale_targets:  # a constant is predicted as that constant, give or take a millionth
                self.y_scaling_ = Scaling.of(rows.y, rows.weight, constant=1e-6)
            members = tuple(_start(net, jax.random.key(seed + i)) for i in range(self.members))
        self.seed_ = seed
        parts = [self._parts(rows, i) for i in range(self.members)]
        fits = [self._fit_member(members[i], likelihood, *parts[i], number=i) for i in range(self.members)]
        self.members_ = tuple(each.model for each in fits)
        steps = [int(np.isfinite(each.history["elbo"]).sum()) for each in fits]
        self.n_iter_ = max(steps)
        self.loss_curve_ = -fits[0].history["elbo"][: steps[0]] / rows.weight.sum()
        self.calibration_ = self._calibrated(
            [
                (self._member_outputs(member, held_out.x, DRAWS_HELD_OUT, number), held_out)
                for number, (member, (_, held_out)) in enumerate(zip(self.members_, parts, strict=True))
                if held_out is not None
            ]
        )

    def _parts(self, rows: Rows, number: int) -> tuple[Rows, Rows | None]:
        """The rows that a member learns from, and those that it holds out, if it does."""
        if not self.early_stopping or len(rows.x) * self.validation_fraction < FEW:
            return rows, None
        return rows.parted(self.validation_fraction, self.seed_, number)

    def _fit_member(self, model: SDEBNN, likelihood: Likelihood, rows: Rows, held_out: Rows | None, number: int) -> Fit:
        x, y = self._arrays(rows.padded(LEAST_ROWS))
        batch = min(self.batch_size, len(x))
        epochs = -(-self.max_iter // (len(x) // batch))
        return fit(
            model, Weighted(likelihood), x, y,
            key=jax.random.fold_in(jax.random.key(self.seed_), number), epochs=epochs, batch_size=batch, draws=1,
            learning_rate=float(self.learning_rate), kl_weight=float(self.kl_weight), clip=100.0, ema=0.998,
            validation=None if held_out is None else self._arrays(held_out.padded(LEAST_HELD_OUT)),
            validate_every=max(1, epochs // CHECKS), patience=None if held_out is None else self.n_iter_no_change,
            progress=bool(self.verbose),
        )  # fmt: skip

    @abstractmethod
    def _calibrated(self, held_out: list[tuple[np.ndarray, Rows]]) -> float:
        """What makes the members' forecasts of the rows they held out most likely: 1 changes nothing."""

    def _arrays(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Encoded inputs; standardised targets, the weight appended."""
        x = self.encoding_.to(rows.x, self.net_.features)
        y = np.hstack([self.y_scaling_.to(rows.y), rows.weight[:, None]])
        return x.astype(jnp.result_type(float)), y.astype(jnp.result_type(float))

    def _checked(self, X: Any) -> np.ndarray:
        """Rows to predict, as they must be."""
        check_is_fitted(self)
        return validate_data(self, X, reset=False, dtype=np.float64)

    def _outputs(self, x: np.ndarray, draws: int | None = None) -> Iterator[np.ndarray]:
        """What each draw says of the rows, "draw row output", the members in turn; some rows at a time."""
        wanted = draws or self.draws
        each = -(-wanted // len(self.members_))
        for first in range(0, len(x), ROWS_AT_ONCE):
            part = x[first : first + ROWS_AT_ONCE]
            samples = [self._member_outputs(member, part, each, i) for i, member in enumerate(self.members_)]
            yield np.stack(samples, axis=1).reshape(-1, *samples[0].shape[1:])[:wanted]

    def _member_outputs(self, member: SDEBNN, x: np.ndarray, draws: int, number: int) -> np.ndarray:
        """What some draws of one member say of the rows."""
        inputs = self.encoding_.to(x, self.net_.features)
        # Always one of a few shapes: they are compiled once, and a row's numbers do not depend on its neighbours.
        inputs = np.pad(inputs, ((0, power_of_two(len(x), LEAST_ROWS) - len(x)), (0, 0)))
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(self.seed_), 0xD1A), number)
        samples = predict(member, inputs.astype(jnp.result_type(float)), draws=draws, key=key, batch_size=len(inputs))
        return np.asarray(samples[:, : len(x)], np.float64)

    @property
    def model_(self) -> Ensemble:
        """The fitted members as one model of standardised, encoded rows."""
        check_is_fitted(self)
        return Ensemble(self.members_)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "members_")

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
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
