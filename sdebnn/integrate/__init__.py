"""Solve the weights, the hidden units and the KL over depth: on a fixed grid, or in adaptive steps."""

from sdebnn.integrate.adaptive import Adaptive
from sdebnn.integrate.brownian import Brownian, BrownianPath, Noise, noise_on_grid
from sdebnn.integrate.grid import FixedGrid
from sdebnn.integrate.guide import Guide
from sdebnn.integrate.methods import (
    METHODS,
    AbstractMethod,
    MethodName,
    ReversibleHeun,
    RungeKutta,
    Stages,
    VectorField,
)
from sdebnn.integrate.paths import Dynamics, Hidden, KLEstimator, Posterior, Process, Solution, WeightPath
from sdebnn.integrate.refine import refined_solver
from sdebnn.integrate.solver import AbstractSolver

__all__ = [
    "METHODS",
    "AbstractMethod",
    "AbstractSolver",
    "Adaptive",
    "Brownian",
    "BrownianPath",
    "Dynamics",
    "FixedGrid",
    "Guide",
    "Hidden",
    "KLEstimator",
    "MethodName",
    "Noise",
    "Posterior",
    "Process",
    "ReversibleHeun",
    "RungeKutta",
    "Solution",
    "Stages",
    "VectorField",
    "WeightPath",
    "noise_on_grid",
    "refined_solver",
]
