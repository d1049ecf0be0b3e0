"""Infinitely deep Bayesian neural networks: weights that follow an SDE over depth, and the posterior over them."""

import importlib
from typing import TYPE_CHECKING, Any

from sdebnn import data, metrics
from sdebnn.baselines import (
    GP,
    HMC,
    Diagnostics,
    Ensemble,
    Hypernet,
    HyperODEBlock,
    LastLayerLaplace,
    MCDropout,
    MeanField,
    ODEBlock,
    PartlyRandom,
    ResNet,
    ScaleMixture,
    TemperatureScaled,
    bayes_by_backprop,
    bbvi,
)
from sdebnn.contract import draw_keys
from sdebnn.convolutions import TimeConv, TimeConvLayer, squeeze, unsqueeze
from sdebnn.fields import Augment, Standardised, TimeMLP, fan_in_scale
from sdebnn.integrate import Adaptive, FixedGrid, Posterior, Solution, WeightPath
from sdebnn.likelihoods import Categorical, Cauchy, Gaussian, Laplace, StudentT, Weighted
from sdebnn.models import SDEBNN, Deterministic, SDEBlock, bayesianize, prior_of, refined
from sdebnn.nets import our_net, paper_net
from sdebnn.predict import Spread, evaluate, predict, solver_error
from sdebnn.processes import OU, DriftNet, Independent, LinearDrift, NoDrift, Normal, Point
from sdebnn.train import Elbo, EstimatorNoise, Fit, elbo, estimator_noise, fit

if TYPE_CHECKING:
    from sdebnn.artifacts import load as load
    from sdebnn.artifacts import save as save
    from sdebnn.estimators import SDEBNNClassifier as SDEBNNClassifier
    from sdebnn.estimators import SDEBNNRegressor as SDEBNNRegressor

__version__ = "0.1.0"

_WITH_SKLEARN = {
    "SDEBNNClassifier": "estimators",
    "SDEBNNRegressor": "estimators",
    "load": "artifacts",
    "save": "artifacts",
}


def __getattr__(name: str) -> Any:
    """What needs scikit-learn is imported when it is asked for."""
    if name not in _WITH_SKLEARN:
        raise AttributeError(f"module 'sdebnn' has no attribute {name!r}")
    try:
        room = importlib.import_module(f"sdebnn.{_WITH_SKLEARN[name]}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "sklearn":
            raise
        raise ImportError(f"sdebnn.{name} needs scikit-learn: pip install 'sdebnn[sklearn]'.") from None
    return getattr(room, name)


def __dir__() -> list[str]:
    return [*globals(), *_WITH_SKLEARN]


__all__ = [
    "GP",
    "HMC",
    "OU",
    "SDEBNN",
    "Adaptive",
    "Augment",
    "Categorical",
    "Cauchy",
    "Deterministic",
    "Diagnostics",
    "DriftNet",
    "Elbo",
    "Ensemble",
    "EstimatorNoise",
    "Fit",
    "FixedGrid",
    "Gaussian",
    "HyperODEBlock",
    "Hypernet",
    "Independent",
    "Laplace",
    "LastLayerLaplace",
    "LinearDrift",
    "MCDropout",
    "MeanField",
    "NoDrift",
    "Normal",
    "ODEBlock",
    "PartlyRandom",
    "Point",
    "Posterior",
    "ResNet",
    "SDEBlock",
    "ScaleMixture",
    "Solution",
    "Spread",
    "Standardised",
    "StudentT",
    "TemperatureScaled",
    "TimeConv",
    "TimeConvLayer",
    "TimeMLP",
    "WeightPath",
    "Weighted",
    "bayes_by_backprop",
    "bayesianize",
    "bbvi",
    "data",
    "draw_keys",
    "elbo",
    "estimator_noise",
    "evaluate",
    "fan_in_scale",
    "fit",
    "metrics",
    "our_net",
    "paper_net",
    "predict",
    "prior_of",
    "refined",
    "solver_error",
    "squeeze",
    "unsqueeze",
]
