"""Exact Gaussian-process regression with hyperparameters of largest posterior density.

    k(x, x') = scale² exp(-½ Σ_j ((x_j - x'_j) / length_j)²) + 1 + trend² x·x'
    A = K + noise² / weight,   α = A⁻¹ y,   log p(y) = -½ yᵀα - ½ log|A| - N/2 log 2π

A weight is the precision of a row relative to the median row, so that multiplying all weights by a constant changes
nothing. Copies of a row are one row of greater weight, and not evidence that targets have no noise.

``sdebnn.baselines.GP`` is a model in JAX and float32, trained by gradient steps. Smooth targets with little noise need
float64, and a quasi-Newton search over one length for each column, so this module uses NumPy and SciPy.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import linalg, optimize, stats
from scipy.spatial.distance import cdist
from threadpoolctl import threadpool_limits  # scikit-learn depends on it

MAX_ROWS = 2000  # distinct ones: the time grows with their third power
MAX_SAMPLED_ROWS = 5000  # at which functions are sampled jointly
SEARCH_ROWS = 300  # a larger table is first searched on so many of its rows
SEARCH_STEPS, FINAL_STEPS = 100, 40  # of L-BFGS
TOLERANCE = 1e-5  # the search ends if a step changes the loss, in nats per row, by less than this share
JITTER = 1e-11  # share of scale² that is added to the diagonal, so that rounding errors leave A positive definite
BOUNDS = {"length": (1e-2, 1e4), "scale": (1e-3, 1e3), "trend": (1e-4, 1e2), "noise": (1e-5, 10.0)}
STARTS = ((0.5, 0.1), (2.0, 1e-3), (2.0, 0.3))  # length / √features, and noise
MAX_WEIGHT_RATIO = 1e6  # to the median weight
FAILED = 1e25  # loss where A is not positive definite, from which the search turns back

Rows = Float[np.ndarray, "row feature"]
Column = Float[np.ndarray, " row"]
LogParameters = Float[np.ndarray, " parameter"]  # log length of each feature, then log scale, log trend, log noise


class GaussianProcess(NamedTuple):
    """A process conditioned on standardised rows. Targets are independent, each with its own hyperparameters."""

    x: Float[np.ndarray, "row feature"]
    y: Float[np.ndarray, "row target"]
    weight: Float[np.ndarray, " row"]
    log_parameters: Float[np.ndarray, "target parameter"]

    @staticmethod
    def fit(
        x: Rows, y: Float[np.ndarray, "row target"], weight: Column, check: Callable[[], None] = lambda: None
    ) -> "GaussianProcess":
        """A process whose hyperparameters are searched for. Only the ratios of the weights matter.

        ``check`` is called in every step, and may raise an exception to end the search.
        """
        weight = np.clip(weight / np.median(weight), 1 / MAX_WEIGHT_RATIO, MAX_WEIGHT_RATIO)
        with threadpool_limits(1, "blas"):  # threads that share busy cores wait for each other at every small step
            return GaussianProcess(
                x, y, weight, np.stack([best_parameters(x, column, weight, check) for column in y.T])
            )

    @property
    def noise(self) -> Float[np.ndarray, " target"]:
        """The standard deviation of the noise of each target."""
        return np.exp(self.log_parameters[:, -1])

    def predict(self, at: Rows) -> tuple[Float[np.ndarray, "row target"], Float[np.ndarray, "row target"]]:
        """The mean and the standard deviation of each target, including its noise."""
        mean, std = zip(*(self._predict(target, at) for target in range(self.y.shape[1])), strict=True)
        return np.stack(mean, axis=1), np.stack(std, axis=1)

    def _predict(self, target: int, at: Rows) -> tuple[Column, Column]:
        mean, known = self._conditioned(target, at)
        variance = prior_variance(self.log_parameters[target], at) - (known**2).sum(0)
        return mean, np.sqrt(np.maximum(variance, 0) + self.noise[target] ** 2)

    def sample(self, at: Rows, samples: int, random: np.random.RandomState) -> Float[np.ndarray, "sample row target"]:
        """Targets of all rows together, of which each sample comes from one function, with noise."""
        if len(at) > MAX_SAMPLED_ROWS:
            raise ValueError(
                f"X has {len(at)} rows, and a Gaussian process samples at most {MAX_SAMPLED_ROWS} jointly: pass fewer "
                "rows at a time, or fit with family='ensemble'."
            )
        targets = range(self.y.shape[1])
        return np.stack([self._sample(target, at, samples, random) for target in targets], axis=-1)

    def _sample(self, target: int, at: Rows, samples: int, random: np.random.RandomState) -> np.ndarray:
        log_parameters = self.log_parameters[target]
        mean, known = self._conditioned(target, at)
        covariance = kernel(log_parameters, at, at) - known.T @ known
        # Noise is part of the covariance, which would otherwise be nearly singular.
        covariance[np.diag_indices(len(at))] += self.noise[target] ** 2 + JITTER * prior_variance(log_parameters, at)
        root = linalg.cholesky(covariance, lower=True)
        return mean + random.normal(size=(samples, len(at))) @ root.T

    def held_out_log_density(
        self,
        folds: Sequence[Int[np.ndarray, " _"]],
        steps: int = FINAL_STEPS,
        check: Callable[[], None] = lambda: None,
    ) -> float:
        """The mean log density of a row, for all targets together, given the rows that are not in its fold.

        The hyperparameters are those of the other rows, too: they are searched for in ``steps`` steps from those of all
        rows. Otherwise, a process that follows the noise of some rows would seem to predict them. Rows count by their
        weights.
        """
        total, weights = 0.0, 0.0
        for fold in folds:
            with threadpool_limits(1, "blas"):
                mean, std = self._without(fold, steps, check).predict(self.x[fold])
            each = stats.norm.logpdf(self.y[fold], mean, std).sum(1)
            total += float(self.weight[fold] @ each)
            weights += float(self.weight[fold].sum())
        return total / weights

    def _without(self, fold: Int[np.ndarray, " _"], steps: int, check: Callable[[], None]) -> "GaussianProcess":
        """The process of the rows that are not in a fold."""
        x, y, weight = (np.delete(array, fold, axis=0) for array in self[:3])
        targets = zip(self.log_parameters, y.T, strict=True)
        found = [
            _climbed(start, x, column, weight, steps, check).x if steps and np.ptp(column) > 0 else start
            for start, column in targets
        ]
        return GaussianProcess(x, y, weight, np.stack(found))

    def _conditioned(self, target: int, at: Rows) -> tuple[Column, np.ndarray]:
        """The mean of the function at some rows, and L⁻¹ k(X, at), where A = LLᵀ."""
        factor = linalg.cholesky(noisy_kernel(self.log_parameters[target], self.x, self.weight), lower=True)
        between = kernel(self.log_parameters[target], self.x, at)
        known = linalg.solve_triangular(factor, between, lower=True)
        return between.T @ linalg.cho_solve((factor, True), self.y[:, target]), known


def kernel(log_parameters: LogParameters, a: Rows, b: Float[np.ndarray, "other feature"]) -> np.ndarray:
    """The covariance of the function between rows, "row other"."""
    return _exponential(log_parameters, a, b) + 1 + math.exp(2 * log_parameters[-2]) * a @ b.T


def _exponential(log_parameters: LogParameters, a: Rows, b: Float[np.ndarray, "other feature"]) -> np.ndarray:
    """The part of the kernel that decays with the distance."""
    length = np.exp(log_parameters[:-3])
    exponential = cdist(a / length, b / length, "sqeuclidean")
    exponential *= -0.5
    np.exp(exponential, out=exponential)
    exponential *= math.exp(2 * log_parameters[-3])
    return exponential


def prior_variance(log_parameters: LogParameters, at: Rows) -> Column:
    """The diagonal of the kernel."""
    return math.exp(2 * log_parameters[-3]) + 1 + math.exp(2 * log_parameters[-2]) * (at**2).sum(1)


def noisy_kernel(log_parameters: LogParameters, x: Rows, weight: Column) -> Float[np.ndarray, "row row"]:
    """The matrix A."""
    matrix = kernel(log_parameters, x, x)
    matrix[np.diag_indices(len(x))] += math.exp(2 * log_parameters[-1]) / weight + JITTER * math.exp(
        2 * log_parameters[-3]
    )
    return matrix


def log_evidence(log_parameters: LogParameters, x: Rows, y: Column, weight: Column) -> tuple[float, LogParameters]:
    """log p(y), and its gradient by the log hyperparameters.

    With W = ααᵀ - A⁻¹ and P = W ∘ E, where E is the scaled exponential part of K, the gradient is ½ tr(W dA). Only the
    triangle U of A⁻¹ is computed, and no other matrix of its size is kept: passes over memory cost as much as LAPACK.
    """
    scale, trend, variance = np.exp(2 * log_parameters[-3:])
    exponential = _exponential(log_parameters, x, x)  # E
    matrix = x @ (trend * x).T
    matrix += exponential
    matrix += 1
    matrix[np.diag_indices(len(x))] += variance / weight + JITTER * scale
    # LAPACK works in place on columns. The matrix is symmetric, so its rows are its columns.
    factor, failed = linalg.lapack.dpotrf(matrix.T, lower=1, overwrite_a=1)  # pyright: ignore[reportAttributeAccessIssue]
    if failed:
        raise linalg.LinAlgError(f"the matrix A of {len(x)} rows is not positive definite.")
    alpha = linalg.cho_solve((factor, True), y, check_finite=False)
    value = -0.5 * y @ alpha - np.log(np.diag(factor)).sum() - 0.5 * len(y) * math.log(2 * math.pi)
    lower = linalg.lapack.dpotri(factor, lower=1, overwrite_c=1)[0]  # pyright: ignore[reportAttributeAccessIssue]
    upper = lower.T  # U, of which A⁻¹ is the sum with its transpose, once its diagonal is halved
    diagonal = np.diag(upper).copy()
    upper[np.diag_indices(len(x))] /= 2
    by_noise = variance * ((alpha**2 - diagonal) / weight).sum()
    by_trend = trend * (((x.T @ alpha) ** 2).sum() - 2 * ((upper @ x) * x).sum())
    upper *= exponential  # so that P = ααᵀ ∘ E - U - Uᵀ
    ones_and_x = np.hstack([np.ones((len(x), 1)), x])
    weighted = alpha[:, None] * (exponential @ (alpha[:, None] * ones_and_x))
    sums = weighted[:, 0] - upper.sum(0) - upper.sum(1)  # P 1
    # Σ_ab P_ab (x_aj - x_bj)² = 2 Σ_a (P 1)_a x_aj² - 2 x_jᵀ P x_j
    by_length = sums @ x**2 - (x * weighted[:, 1:]).sum(0) + 2 * (x * (upper @ x)).sum(0)
    others = (sums.sum() + JITTER * scale * (alpha**2 - diagonal).sum(), by_trend, by_noise)
    return float(value), np.concatenate([by_length * np.exp(-2 * log_parameters[:-3]), others])


def log_prior(log_parameters: LogParameters) -> tuple[float, LogParameters]:
    """The log density of a weak prior on log hyperparameters, up to a constant, and its gradient.

    It is normal and wide, with medians 2 √features, 1, 0.3 and 0.1, and decides only what few rows leave open.
    """
    features = len(log_parameters) - 3
    center = np.log([2 * math.sqrt(features)] * features + [1.0, 0.3, 0.1])
    spread = np.array([math.sqrt(3)] * features + [1.5, 2.0, 2.5])
    z = (log_parameters - center) / spread
    return -0.5 * float(z @ z), -z / spread


def best_parameters(x: Rows, y: Column, weight: Column, check: Callable[[], None] = lambda: None) -> LogParameters:
    """The log hyperparameters that maximise log_evidence + log_prior, from several starts."""
    features = x.shape[1]
    starts = [np.log([length * math.sqrt(features)] * features + [1.0, 0.3, noise]) for length, noise in STARTS]
    if np.ptp(y) == 0:  # the evidence of a constant grows without bound as the noise vanishes
        return starts[0]
    some = np.random.default_rng(0).permutation(len(x))[:SEARCH_ROWS]
    found = [_climbed(start, x[some], y[some], weight[some], SEARCH_STEPS, check) for start in starts]
    best = min(found, key=lambda each: each.fun)
    if len(some) < len(x):
        best = _climbed(best.x, x, y, weight, FINAL_STEPS, check)
        if best.fun >= FAILED:  # rounding errors matter more in a larger matrix
            best = _climbed(starts[0], x, y, weight, FINAL_STEPS, check)
    return best.x


def _climbed(
    start: LogParameters, x: Rows, y: Column, weight: Column, steps: int, check: Callable[[], None]
) -> optimize.OptimizeResult:
    """The result of L-BFGS from a start."""

    def loss(log_parameters: LogParameters) -> tuple[float, LogParameters]:
        check()
        try:
            evidence, by_evidence = log_evidence(log_parameters, x, y, weight)
        except linalg.LinAlgError:
            return FAILED, np.zeros_like(log_parameters)
        prior, by_prior = log_prior(log_parameters)
        return -(evidence + prior) / len(x), -(by_evidence + by_prior) / len(x)

    limits = [BOUNDS["length"]] * x.shape[1] + [BOUNDS[name] for name in ("scale", "trend", "noise")]
    return optimize.minimize(
        loss, start, jac=True, method="L-BFGS-B", bounds=np.log(limits), options={"maxiter": steps, "ftol": TOLERANCE}
    )
