"""Solve the weights, the hidden units and the KL over depth: on a grid, or in adaptive steps."""

from sdebnn.integrate.adaptive import Adaptive
from sdebnn.integrate.brownian import Brownian, BrownianPath, Noise
from sdebnn.integrate.dial import Solver, redialled, tighter
from sdebnn.integrate.grid import FixedGrid, Gradient
from sdebnn.integrate.methods import METHODS, MethodName
from sdebnn.integrate.paths import (
    Dynamics,
    Estimator,
    Hidden,
    Posterior,
    Process,
    Solution,
    WeightPath,
    check_estimator,
    frozen,
)

__all__ = [
    "METHODS",
    "Adaptive",
    "Brownian",
    "BrownianPath",
    "Dynamics",
    "Estimator",
    "FixedGrid",
    "Gradient",
    "Hidden",
    "MethodName",
    "Noise",
    "Posterior",
    "Process",
    "Solution",
    "Solver",
    "WeightPath",
    "check_estimator",
    "frozen",
    "redialled",
    "tighter",
]
