"""Infinitely deep Bayesian neural networks: weights that follow an SDE over depth, and the posterior over them.

The names here are what most programs need. Parts of nets are in ``sdebnn.nn``, weight processes in
``sdebnn.processes``, solvers in ``sdebnn.integrate``, likelihoods in ``sdebnn.likelihoods``, other Bayesian models in
``sdebnn.baselines``, data sets in ``sdebnn.data`` and scores in ``sdebnn.metrics``.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sdebnn import baselines, data, hosts, integrate, likelihoods, metrics, nn, processes
    from sdebnn.artifacts import load, save
    from sdebnn.description import Description, describe
    from sdebnn.estimators import SDEBNNClassifier as SDEBNNClassifier
    from sdebnn.estimators import SDEBNNRegressor as SDEBNNRegressor
    from sdebnn.integrate import Adaptive, FixedGrid
    from sdebnn.likelihoods import Categorical, Cauchy, Gaussian, Laplace, StudentT, Weighted
    from sdebnn.meshes import make_mesh
    from sdebnn.models import SDEBNN, Deterministic, Ensemble, bayesianize, prior_of, refined
    from sdebnn.nets import our_net, paper_net
    from sdebnn.prediction import UncertaintySources, evaluate, predict, uncertainty_sources
    from sdebnn.processes import OU, Normal, Point
    from sdebnn.strangeness import StateDistance
    from sdebnn.train import Batches, Checkpoints, Elbo, Fit, Objective, Optimizer, Validation, elbo, fit

__version__ = "0.2.0"

# Each module is imported when one of its names is first used: the whole takes more than a second, which a command that
# prints its help need not wait for.
_ROOMS = ("baselines", "data", "hosts", "integrate", "likelihoods", "metrics", "nn", "processes")
_EXTRAS = {"plots": ("matplotlib", "plot")}  # rooms that need a library, and the extra that installs it
_NAMES = {
    "artifacts": ("load", "save"),
    "description": ("Description", "describe"),
    "estimators": ("SDEBNNClassifier", "SDEBNNRegressor"),
    "integrate": ("Adaptive", "FixedGrid"),
    "likelihoods": ("Categorical", "Cauchy", "Gaussian", "Laplace", "StudentT", "Weighted"),
    "meshes": ("make_mesh",),
    "models": ("SDEBNN", "Deterministic", "Ensemble", "bayesianize", "prior_of", "refined"),
    "nets": ("our_net", "paper_net"),
    "prediction": ("UncertaintySources", "evaluate", "predict", "uncertainty_sources"),
    "processes": ("OU", "Normal", "Point"),
    "strangeness": ("StateDistance",),
    "train": ("Batches", "Checkpoints", "Elbo", "Fit", "Objective", "Optimizer", "Validation", "elbo", "fit"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _ROOMS:
        return importlib.import_module(f"sdebnn.{name}")
    if name in _EXTRAS:
        return _room_with_library(name, *_EXTRAS[name])
    if name not in _HOMES:
        raise AttributeError(f"module 'sdebnn' has no attribute {name!r}")
    try:
        module = importlib.import_module(f"sdebnn.{_HOMES[name]}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "sklearn":
            raise
        raise ImportError(f"sdebnn.{name} needs scikit-learn: pip install 'sdebnn[sklearn]'.") from None
    value = globals()[name] = getattr(module, name)
    return value


def _room_with_library(name: str, library: str, extra: str) -> object:
    try:
        return importlib.import_module(f"sdebnn.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != library:
            raise
        raise ImportError(f"sdebnn.{name} needs {library}: pip install 'sdebnn[{extra}]'.") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS, *_EXTRAS, *_HOMES})


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
    "StateDistance",
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
    "hosts",
    "integrate",
    "likelihoods",
    "load",
    "make_mesh",
    "metrics",
    "nn",
    "our_net",
    "paper_net",
    "predict",
    "prior_of",
    "processes",
    "refined",
    "save",
    "uncertainty_sources",
]
