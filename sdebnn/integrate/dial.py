"""The compute dial: the same dynamics and the same Brownian paths, solved at another resolution."""

from sdebnn.checks import shown
from sdebnn.integrate.adaptive import Adaptive
from sdebnn.integrate.grid import FixedGrid
from sdebnn.integrate.methods import METHODS

Solver = FixedGrid | Adaptive


def redialled(solver: Solver, *, steps: int | None = None, rtol: float | None = None) -> Solver:
    """The solver with so many equal steps, or with this tolerance; a key names the same Brownian path in both.

    A grid keeps its method, and gives way to ``Adaptive`` for a tolerance; ``Adaptive`` keeps the ratio of its two
    tolerances, and gives way to "ralston3" for a number of steps.
    """
    if (steps is None) == (rtol is None):
        raise ValueError(f"steps={shown(steps)} and rtol={shown(rtol)}: pass one of the two.")
    _check_dial(solver)
    if rtol is not None:
        if isinstance(solver, Adaptive):
            return Adaptive(
                rtol, solver.atol * (rtol / solver.rtol), solver.solver, solver.adjoint,
                max_step=solver.max_step, max_steps=solver.max_steps, noise_steps=solver.base,
            )  # fmt: skip
        return Adaptive(rtol, noise_steps=solver.base)
    assert steps is not None
    if isinstance(solver, Adaptive):
        return FixedGrid(steps, "ralston3", noise_steps=solver.base)
    if steps == solver.steps:
        return solver
    return FixedGrid(steps, solver.method, solver.gradient, solver.unroll, solver.base, solver.at_once)


def tighter(solver: Solver) -> tuple[Solver, float]:
    """A solver closer to the truth under the same noise, and the error of the first one in units of their difference.

    A grid takes twice the steps: an error in proportion to dt^p is 1 / (1 - 2^-p) times that difference. A tolerance is
    taken to a tenth, whose own error is neglected.
    """
    _check_dial(solver)
    if isinstance(solver, Adaptive):
        return redialled(solver, rtol=solver.rtol / 10), 1.0
    return redialled(solver, steps=2 * solver.steps), 1 / (1 - 2 ** -METHODS[solver.method].order)


def _check_dial(solver: Solver) -> None:
    if not isinstance(solver, FixedGrid | Adaptive):
        raise ValueError(f"solver={shown(solver)} has no dial: FixedGrid and Adaptive do.")
