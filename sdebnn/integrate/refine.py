"""The same dynamics and the same Brownian paths, solved at another resolution."""

from sdebnn.checks import shown
from sdebnn.integrate.adaptive import Adaptive
from sdebnn.integrate.grid import FixedGrid
from sdebnn.integrate.solver import AbstractSolver


def refined_solver(solver: AbstractSolver, *, steps: int | None = None, rtol: float | None = None) -> AbstractSolver:
    """The solver with this number of equal steps, or with this tolerance, and with the same Brownian path for each key.

        fine = refined_solver(FixedGrid(10, "heun"), steps=40)
        adaptive = refined_solver(FixedGrid(10), rtol=1e-3)

    A grid keeps its method, and is replaced by ``Adaptive`` for a tolerance. ``Adaptive`` keeps the ratio of its two
    tolerances, and is replaced by a grid of "ralston3" for a number of steps.
    """
    if steps is not None and rtol is None:
        return solver.with_steps(steps) or FixedGrid(steps, "ralston3", noise_steps=solver.base)
    if rtol is not None and steps is None:
        return solver.with_tolerance(rtol) or Adaptive(rtol, noise_steps=solver.base)
    raise ValueError(f"steps={shown(steps)} and rtol={shown(rtol)}: pass one of the two.")
