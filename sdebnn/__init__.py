"""Infinitely deep Bayesian neural networks: weights that follow an SDE over depth, and the posterior over them.

The names here are what most programs need. Parts of nets are in ``sdebnn.nn``, weight processes in
``sdebnn.processes``, solvers in ``sdebnn.integrate``, likelihoods in ``sdebnn.likelihoods``, other Bayesian models in
``sdebnn.baselines``, data sets in ``sdebnn.data`` and scores in ``sdebnn.metrics``.
"""

import importlib
from typing import TYPE_CHECKING

from sdebnn import baselines, data, integrate, likelihoods, metrics, nn, processes
from sdebnn.describe import Description, describe
from sdebnn.integrate import Adaptive, FixedGrid
from sdebnn.likelihoods import Categorical, Cauchy, Gaussian, Laplace, StudentT, Weighted
from sdebnn.models import SDEBNN, Deterministic, Ensemble, bayesianize, prior_of, refined
from sdebnn.nets import our_net, paper_net
from sdebnn.predict import UncertaintySources, evaluate, predict, uncertainty_sources
from sdebnn.processes import OU, Normal, Point
from sdebnn.train import Batches, Checkpoints, Elbo, Fit, Objective, Optimizer, Validation, elbo, fit

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


def __getattr__(name: str) -> object:
    """Import what needs scikit-learn when it is first used."""
    if name not in _WITH_SKLEARN:
        raise AttributeError(f"module 'sdebnn' has no attribute {name!r}")
    try:
        module = importlib.import_module(f"sdebnn.{_WITH_SKLEARN[name]}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "sklearn":
            raise
        raise ImportError(f"sdebnn.{name} needs scikit-learn: pip install 'sdebnn[sklearn]'.") from None
    return getattr(module, name)


def __dir__() -> list[str]:
    return [*globals(), *_WITH_SKLEARN]


__all__ = [
    "OU",
    "SDEBNN",
    "Adaptive",
    "Batches",
    "Categorical",
    "Cauchy",
    "Checkpoints",
    "Description",
    "Deterministic",
    "Elbo",
    "Ensemble",
    "Fit",
    "FixedGrid",
    "Gaussian",
    "Laplace",
    "Normal",
    "Objective",
    "Optimizer",
    "Point",
    "StudentT",
    "UncertaintySources",
    "Validation",
    "Weighted",
    "baselines",
    "bayesianize",
    "data",
    "describe",
    "elbo",
    "evaluate",
    "fit",
    "integrate",
    "likelihoods",
    "metrics",
    "nn",
    "our_net",
    "paper_net",
    "predict",
    "prior_of",
    "processes",
    "refined",
    "uncertainty_sources",
]
