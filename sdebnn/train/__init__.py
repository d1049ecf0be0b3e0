"""Training of any model of the contract by its evidence lower bound, with checkpoints that a run can resume from."""

from sdebnn.train.checkpoints import RunFolder, member_folder, saved_answer, saved_best, saved_seconds, saved_steps
from sdebnn.train.engine import Fit, fit, member_key
from sdebnn.train.monitor import EstimatorNoise, estimator_noise
from sdebnn.train.objective import Elbo, elbo
from sdebnn.train.optimizers import constant_adam, grouped_muon
from sdebnn.train.options import Batches, Checkpoints, Objective, Optimizer, Recipe, Validation
from sdebnn.train.validation import Scores, ShouldStop

__all__ = [
    "Batches",
    "Checkpoints",
    "Elbo",
    "EstimatorNoise",
    "Fit",
    "Objective",
    "Optimizer",
    "Recipe",
    "RunFolder",
    "Scores",
    "ShouldStop",
    "Validation",
    "constant_adam",
    "elbo",
    "estimator_noise",
    "fit",
    "grouped_muon",
    "member_folder",
    "member_key",
    "saved_answer",
    "saved_best",
    "saved_seconds",
    "saved_steps",
]
