"""The noise of the weights as a term of diffrax, and which solvers and adjoints of diffrax accept it.

Whether they do is found by tracing a solve of two weights: diffrax then raises an error, and nothing is run.
"""

import functools
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from sdebnn.checks import shown


class NoiseOnWeights(diffrax.AbstractTerm):
    """σ dB on w, the first part of the state, and zero on the other parts."""

    sigma: float
    path: diffrax.AbstractBrownianPath
    zeros: PyTree

    def vf(self, t: Any, y: Any, args: Any) -> Any:
        """σ, which does not depend on the state, because the noise is additive."""
        return jnp.asarray(self.sigma, y[0].dtype)

    def contr(self, t0: Any, t1: Any, **options: Any) -> Any:
        """The increment of the path between two times."""
        return self.path.evaluate(t0, t1, **options)

    def prod(self, vf: Any, control: Any) -> Any:
        """σ dB, with the structure of the state."""
        return vf * control, *self.zeros


class _NoPath(diffrax.AbstractBrownianPath):
    """A path that is constantly zero, for tracing solvers."""

    t0: Any = 0.0
    t1: Any = 1.0
    levy_area: Any = diffrax.SpaceTimeLevyArea

    def evaluate(self, t0: Any, t1: Any = None, left: bool = True, use_levy: bool = False) -> Any:
        zero = jnp.zeros(2)
        return diffrax.SpaceTimeLevyArea(dt=t1 - t0, W=zero, H=zero) if use_levy else zero


_ADJOINTS = (diffrax.RecursiveCheckpointAdjoint, diffrax.DirectAdjoint, diffrax.BacksolveAdjoint)


def _terms() -> diffrax.MultiTerm:
    def slopes(t: Any, y: Any, args: Any) -> Any:
        return args * y[0], jnp.sum(y[0] ** 2) * y[1]

    return diffrax.MultiTerm(diffrax.ODETerm(slopes), NoiseOnWeights(1.0, _NoPath(), (jnp.zeros(()),)))


def _complaint(solver: diffrax.AbstractSolver, adjoint: type[diffrax.AbstractAdjoint] | None) -> str | None:
    """Why diffrax refuses the pair, or None; cached if the solver can be hashed."""
    try:
        return _traced_complaint(solver, adjoint)
    except TypeError:  # a solver that holds arrays has no hash
        return _traced_complaint.__wrapped__(solver, adjoint)


@functools.cache
def _traced_complaint(solver: diffrax.AbstractSolver, adjoint: type[diffrax.AbstractAdjoint] | None) -> str | None:
    """Why diffrax refuses adaptive steps or, with an adjoint, their gradient, in one line; None if it accepts them."""
    if not isinstance(solver, diffrax.AbstractItoSolver | diffrax.AbstractStratonovichSolver):
        return "it is not made for SDEs"

    def end(rate: Array) -> Array:
        start = (jnp.ones(2), jnp.ones(()))
        solution = diffrax.diffeqsolve(
            _terms(), solver, 0.0, 1.0, 0.1, start, args=rate,
            adjoint=(adjoint or diffrax.RecursiveCheckpointAdjoint)(),
            stepsize_controller=diffrax.PIDController(1e-3, 1e-3),
        )  # fmt: skip
        return solution.ys[1][-1]  # pyright: ignore[reportOptionalSubscript]

    try:
        jax.eval_shape(jax.grad(end) if adjoint else end, jnp.ones(()))
    except Exception as error:  # diffrax raises many kinds, and so may a user's own solver
        return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")
    return None


def adaptive_solver(solver: diffrax.AbstractSolver) -> diffrax.AbstractSolver:
    """The solver itself if it estimates its error, else the solver with half steps if that works; else an error."""
    if not isinstance(solver, diffrax.AbstractSolver):
        raise ValueError(f"solver={shown(solver)} is not a solver of diffrax: pass one such as diffrax.ShARK().")
    complaint = _complaint(solver, None)
    if complaint is None:
        return solver
    halved = diffrax.HalfSolver(solver)
    if _complaint(halved, None) is None:
        return halved
    raise ValueError(
        f"solver={type(solver).__name__}() cannot adapt its steps ({complaint}): "
        "use diffrax.ShARK(), SRA1(), SEA() or Heun(), or equal steps with FixedGrid."
    )


def check_adjoint(solver: diffrax.AbstractSolver, adjoint: diffrax.AbstractAdjoint) -> None:
    """Refuse an adjoint whose gradient cannot be taken through the solver."""
    kind = next((kind for kind in _ADJOINTS if isinstance(adjoint, kind)), None)
    if kind is None:
        names = ", ".join(f"diffrax.{kind.__name__}()" for kind in _ADJOINTS)
        raise ValueError(f"adjoint={shown(adjoint)} gives no gradient here: pass one of {names}.")
    if kind is diffrax.RecursiveCheckpointAdjoint:  # differentiates whatever can be run; tracing it takes seconds
        return
    complaint = _complaint(solver, kind)
    if complaint is not None:
        raise ValueError(
            f"adjoint={kind.__name__}() cannot differentiate solver={type(solver).__name__}() ({complaint}): "
            "use solver=diffrax.Heun(), or adjoint=diffrax.RecursiveCheckpointAdjoint()."
        )


def is_reversible(solver: diffrax.AbstractSolver) -> bool:
    """Whether the solver is reversible Heun, with or without half steps."""
    return isinstance(solver.solver if isinstance(solver, diffrax.HalfSolver) else solver, diffrax.ReversibleHeun)


def evaluations_a_step(solver: diffrax.AbstractSolver) -> int:
    """The number of evaluations of the slopes in a step, accepted or not: one for each stage, or one without stages."""
    if isinstance(solver, diffrax.HalfSolver):  # one whole step and two half steps
        return 3 * evaluations_a_step(solver.solver)
    tableau = getattr(solver, "tableau", None)
    if tableau is None:
        return 1
    skipped = getattr(tableau, "ignore_stage_f", None)
    return len(tableau.b_sol) - (0 if skipped is None else int(np.sum(skipped)))
