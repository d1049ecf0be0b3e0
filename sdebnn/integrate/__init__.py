"""Solve the weights, the hidden units and the KL over depth: on a grid, or in adaptive steps."""

from sdebnn.integrate.adaptive import Adaptive
from sdebnn.integrate.brownian import Brownian, BrownianPath, Noise
from sdebnn.integrate.dial import Solver, redialled, tighter
from sdebnn.integrate.grid import FixedGrid
from sdebnn.integrate.methods import METHODS, MethodName
from sdebnn.integrate.paths import (
    Estimator,
    Hidden,
    Posterior,
    Solution,
    WeightPath,
    check_estimator,
)
from sdebnn.integrate.stability import warn_if_stray

__all__ = [
    "METHODS",
    "Adaptive",
    "Brownian",
    "BrownianPath",
    "Estimator",
    "FixedGrid",
    "Hidden",
    "MethodName",
    "Noise",
    "Posterior",
    "Solution",
    "Solver",
    "WeightPath",
    "check_estimator",
    "redialled",
    "tighter",
    "warn_if_stray",
]
