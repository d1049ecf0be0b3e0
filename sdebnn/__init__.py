"""Infinitely deep Bayesian neural networks: weights that follow an SDE over depth, and the posterior over them."""

from sdebnn import data, metrics
from sdebnn.convolutions import TimeConv, TimeConvLayer
from sdebnn.fields import Augment, Standardised, TimeMLP, fan_in_scale
from sdebnn.integrate import Adaptive, FixedGrid, Posterior, Solution, WeightPath
from sdebnn.likelihoods import Categorical, Cauchy, Gaussian, Laplace, StudentT
from sdebnn.models import SDEBNN, Deterministic, SDEBlock, bayesianize, draw_keys, prior_of, refined
from sdebnn.predict import Spread, evaluate, predict, solver_error
from sdebnn.processes import OU, DriftNet, LinearDrift, NoDrift, Normal, Point
from sdebnn.train import Elbo, Fit, elbo, fit

__version__ = "0.1.0"

__all__ = [
    "OU",
    "SDEBNN",
    "Adaptive",
    "Augment",
    "Categorical",
    "Cauchy",
    "Deterministic",
    "DriftNet",
    "Elbo",
    "Fit",
    "FixedGrid",
    "Gaussian",
    "Laplace",
    "LinearDrift",
    "NoDrift",
    "Normal",
    "Point",
    "Posterior",
    "SDEBlock",
    "Solution",
    "Spread",
    "Standardised",
    "StudentT",
    "TimeConvLayer",
    "TimeMLP",
    "WeightPath",
    "bayesianize",
    "data",
    "draw_keys",
    "elbo",
    "evaluate",
    "fan_in_scale",
    "fit",
    "metrics",
    "predict",
    "prior_of",
    "refined",
    "solver_error",
]
