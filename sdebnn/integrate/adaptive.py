"""Steps as long as an error tolerance allows: weights, hidden units and KL together, in one solve by diffrax.

dw = (f_p + NN_φ) dt + σ dB,   dh = f_h(t, h, w) dt,   dKL = ½ |u|² dt   (the analytic estimator)

Its noise is additive, so that Itô and Stratonovich solvers agree, and order 1.5 is open to them. The martingale of the
other estimators is not offered: a step that is rejected has looked ahead, and Itô's correction takes the trace of a
D × D matrix at every evaluation.
"""

import functools
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from sdebnn.checks import check_count, check_positive, plain_number
from sdebnn.integrate.brownian import Brownian, BrownianPath, check_base
from sdebnn.integrate.paths import Dynamics, Hidden, Process, Solution, WeightPath, energy, start_nats, start_of
from sdebnn.integrate.stability import check_contraction
from sdebnn.integrate.terms import NoiseOnWeights, adapting, check_adjoint, evaluations_a_step, is_reversible

FIRST_STEP = 0.05  # the controller corrects it at once
SHOWN_STEPS = 20  # between the depths at which a trajectory is read off
SHARK, CHECKPOINT = diffrax.ShARK(), diffrax.RecursiveCheckpointAdjoint()


class Adaptive(eqx.Module):
    """Steps chosen by the local error, held to ``rtol`` and ``atol`` in each of w, h and KL (root mean square).

    ``solver``: any SDE solver of diffrax, such as ``diffrax.ShARK()``, ``SRA1()`` (order 1.5) or ``Heun()``. One that
    does not estimate its error, such as ``SEA()``, is run beside two half steps of its own.
    ``adjoint``: how gradients flow. ``diffrax.RecursiveCheckpointAdjoint()`` keeps some states and recomputes the rest,
    ``DirectAdjoint()`` keeps all, ``BacksolveAdjoint()`` solves the stochastic adjoint equation backwards: its memory
    does not grow with the steps, its gradient is as exact as the tolerance.
    ``max_step`` is the longest step, ``max_steps`` the most that are tried.
    ``noise_steps`` is the grid on which a key's Brownian path is first drawn; a virtual Brownian tree bridges it.
    """

    rtol: float
    atol: float
    solver: diffrax.AbstractSolver
    adjoint: diffrax.AbstractAdjoint
    max_step: float
    max_steps: int = eqx.field(static=True)
    noise_steps: int = eqx.field(static=True)

    def __init__(
        self,
        rtol: float = 1e-3,
        atol: float | None = None,
        solver: diffrax.AbstractSolver = SHARK,
        adjoint: diffrax.AbstractAdjoint = CHECKPOINT,
        *,
        max_step: float = 1.0,
        max_steps: int = 4096,
        noise_steps: int = 1,
    ):
        rtol, atol, max_step = map(plain_number, (rtol, atol, max_step))
        check_positive("rtol", rtol)
        check_positive("atol", rtol if atol is None else atol)
        check_positive("max_step", max_step)
        check_count("max_steps", max_steps)
        check_base(1, noise_steps)
        self.rtol, self.atol = rtol, rtol if atol is None else atol
        self.solver, self.adjoint = adapting(solver), adjoint
        self.max_step, self.max_steps, self.noise_steps = max_step, max_steps, noise_steps
        check_adjoint(self.solver, self.adjoint)

    @property
    def base(self) -> int:
        """The steps of the grid on which a key's Brownian path is first drawn."""
        return self.noise_steps

    def check_kl(self, kl: str) -> None:
        """Refuse the estimators with a martingale."""
        if kl != "analytic":
            raise ValueError(
                f"kl={kl!r} adds an Itô integral, which steps that look ahead bias: with Adaptive use kl='analytic', "
                "or solve on FixedGrid."
            )

    def check_process(self, process: Process) -> None:
        """Refuse a prior for which the solver is known to be unstable at the length of the first step."""
        if is_reversible(self.solver):
            check_contraction(process.prior, round(1 / FIRST_STEP), "use solver=diffrax.ShARK() or Heun()")

    def times(self, dtype: Any = float) -> Float[Array, " time"]:
        """The depths at which a path or a trajectory is read off: equally spaced, whatever steps are taken."""
        return jnp.arange(SHOWN_STEPS + 1, dtype=dtype) / SHOWN_STEPS

    def weights(self, process: Process, *, key: PRNGKeyArray) -> WeightPath:
        """Draw w from the posterior, and its KL from the prior; the steps are those that suit the weights alone."""
        t = self.times()
        (w, _, nats), _, kl = self._run(process, None, key, diffrax.SaveAt(ts=t))
        return WeightPath(t.astype(w.dtype), w, (), kl + nats[-1])

    def solve(
        self, dynamics: Dynamics, h0: Hidden, *, key: PRNGKeyArray, every: bool = False, rough: bool = False
    ) -> Solution:
        """One draw of the weights, and a batch through it: to h_1, or to ``every`` depth of ``times``."""
        if rough:
            raise ValueError("adaptive steps have no roughness: train with FixedGrid, and predict with rtol=.")
        saveat = diffrax.SaveAt(ts=self.times()) if every else diffrax.SaveAt(t1=True)
        (_, h, nats), solution, kl = self._run(dynamics, h0, key, saveat)
        finished = solution.result == diffrax.RESULTS.successful
        evaluations = solution.stats["num_steps"] * evaluations_a_step(self.solver)
        outputs, kl = (jnp.where(finished, x, jnp.nan) for x in (h if every else h[-1], kl + nats[-1]))
        zero = jnp.zeros((), outputs.dtype)
        return Solution(outputs, kl, evaluations, finished, zero, zero)

    def _run(self, process: Process, h0: Hidden | None, key: PRNGKeyArray, saveat: diffrax.SaveAt) -> tuple:
        self.check_kl(process.kl)
        self.check_process(process)
        w0, path_key = start_of(process, key)
        path = BrownianPath(Brownian(self.base, w0.shape[0], w0.dtype, path_key))
        state = (w0, h0, jnp.zeros((), w0.dtype))
        controller = diffrax.PIDController(
            self.rtol, self.atol, pcoeff=0.1, icoeff=0.3, dtmax=self.max_step, norm=_worst_part
        )
        solution = diffrax.diffeqsolve(
            _terms(process, path, state),
            self.solver,
            t0=0.0,
            t1=1.0,
            dt0=min(FIRST_STEP, self.max_step),
            y0=state,
            args=process,  # never in a closure: the adjoint equation differentiates args alone
            saveat=saveat,
            adjoint=self.adjoint,
            stepsize_controller=controller,
            max_steps=self.max_steps,
            throw=False,
        )
        return solution.ys, solution, start_nats(process.initial, w0, process.kl)


def _slopes(t: Any, state: Any, process: Any) -> Any:
    w, h, _ = state
    correction = process.drift(t, w)
    dh = None if h is None else process.f_h(t, h, process.unravel(w))
    return process.prior.drift(t, w) + correction, dh, energy(process, correction)


def _terms(process: Process, path: diffrax.AbstractBrownianPath, state: tuple) -> diffrax.MultiTerm:
    still = jax.tree.map(jnp.zeros_like, state[1:])
    return diffrax.MultiTerm(diffrax.ODETerm(_slopes), NoiseOnWeights(process.prior.sigma, path, still))


def _worst_part(scaled_error: PyTree[Array]) -> Float[Array, ""]:
    """The largest root mean square among the parts: many weights must not hide the error of a few hidden units."""
    parts = [jnp.sqrt(jnp.mean(part**2)) for part in jax.tree.leaves(scaled_error)]
    return functools.reduce(jnp.maximum, parts)
