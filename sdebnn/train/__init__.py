"""Train any model of the contract, by its evidence lower bound, and lose nothing on the way."""

from sdebnn.train.engine import Fit, fit
from sdebnn.train.folder import RunFolder, saved_answer, saved_seconds, saved_steps
from sdebnn.train.monitor import EstimatorNoise, estimator_noise
from sdebnn.train.objective import Elbo, as_data, elbo, is_lazy

__all__ = [
    "Elbo",
    "EstimatorNoise",
    "Fit",
    "RunFolder",
    "as_data",
    "elbo",
    "estimator_noise",
    "fit",
    "is_lazy",
    "saved_answer",
    "saved_seconds",
    "saved_steps",
]
