"""Adaptive steps: weights, hidden units and KL in one solve by diffrax, to an error tolerance.

dw = (f_p + NN_φ) dt + σ dB,   dh = f_h(t, h, w) dt,   dKL = ½ |u|² dt   (the analytic estimator)

The noise is additive, so that Itô and Stratonovich solvers agree and can have order 1.5. Only the analytic estimator is
offered: the martingale of the others is biased, because a rejected step has used future noise, and the correction for
that would need the trace of a D × D matrix at every evaluation.
"""

import functools

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from sdebnn.checks import check_count, check_positive, plain_number
from sdebnn.integrate.brownian import Brownian, BrownianPath, check_base
from sdebnn.integrate.paths import (
    Dynamics,
    Hidden,
    Process,
    Solution,
    WeightPath,
    correction,
    energy,
    seen_in,
    slope_of_seen,
    start_of,
    with_seen,
)
from sdebnn.integrate.solver import AbstractSolver
from sdebnn.integrate.stability import check_contraction
from sdebnn.integrate.terms import NoiseOnWeights, adaptive_solver, check_adjoint, evaluations_a_step, is_reversible
from sdebnn.processes import Depth, Weights

FIRST_STEP = 0.05  # the controller corrects it at once
TRAJECTORY_STEPS = 20  # between the depths of a path or a trajectory
SHARK, CHECKPOINT = diffrax.ShARK(), diffrax.RecursiveCheckpointAdjoint()

SolveState = tuple[Weights, Hidden | None, Float[Array, ""]]  # w, h and the KL so far


class Adaptive(AbstractSolver):
    """Steps chosen by the local error, held to ``rtol`` and ``atol`` in each of w, h and KL (root mean square).

        block = bayesianize(field, drift=(8,), solver=Adaptive(rtol=1e-2), key=key)
        hidden, kl = block(jnp.ones((5, 4)), key=key)

    - ``rtol`` and ``atol``: the relative and the absolute tolerance. By default, both are equal.
    - ``solver``: any SDE solver of diffrax, such as ``diffrax.ShARK()`` (the default), ``SRA1()`` (order 1.5) or
      ``Heun()``. A solver without an error estimate, such as ``SEA()``, compares each step with two half steps.
    - ``adjoint``: how gradients are computed. ``diffrax.RecursiveCheckpointAdjoint()``, the default, stores some states
      and recomputes the others, ``DirectAdjoint()`` stores all, ``BacksolveAdjoint()`` solves the stochastic adjoint
      equation backwards: its memory does not grow with the number of steps, and its gradient is as accurate as the
      tolerance.
    - ``max_step``: the length of the longest step. ``max_steps`` is the largest number of steps that are tried.
    - ``noise_steps``: the number of equal steps on which a key's Brownian path is first drawn; a virtual Brownian tree
      interpolates between them.
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
        self.solver, self.adjoint = adaptive_solver(solver), adjoint
        self.max_step, self.max_steps, self.noise_steps = max_step, max_steps, noise_steps
        check_adjoint(self.solver, self.adjoint)

    @property
    def base(self) -> int:
        """The number of steps of the grid on which a key's Brownian path is first drawn."""
        return self.noise_steps

    @property
    def trains_on_meshes(self) -> bool:
        """No: the loops of diffrax cannot be differentiated on several devices, with Equinox 0.13."""
        return False

    def with_tolerance(self, rtol: float) -> "Adaptive":
        """The same solver with this ``rtol``, and ``atol`` changed in proportion."""
        return Adaptive(
            rtol, self.atol * (rtol / self.rtol), self.solver, self.adjoint,
            max_step=self.max_step, max_steps=self.max_steps, noise_steps=self.noise_steps,
        )  # fmt: skip

    def tighter(self) -> "tuple[Adaptive, float]":
        """The same solver with a tenth of the tolerance, whose own error is neglected."""
        return self.with_tolerance(self.rtol / 10), 1.0

    @property
    def description(self) -> str:
        """The solver of diffrax and its tolerance."""
        inner = getattr(self.solver, "solver", self.solver)  # of half steps, if it has no error estimate
        return f"adaptive steps of {type(inner).__name__}, rtol={self.rtol:g}"

    def execution(self, dynamics: Dynamics, h0: Hidden) -> str:
        """One solve by diffrax, on every platform."""
        return f"weights, hidden units and KL in one solve by diffrax, gradient by {type(self.adjoint).__name__}"

    def check_process(self, process: Process) -> None:
        """Refuse a prior for which the solver is known to be unstable at the length of the first step."""
        if is_reversible(self.solver):
            check_contraction(process.prior, round(1 / FIRST_STEP), "use solver=diffrax.ShARK() or Heun()")

    def times(self, dtype: DTypeLike = float) -> Float[Array, " time"]:
        """The depths of a path or a trajectory: equally spaced, whatever steps are taken."""
        return jnp.arange(TRAJECTORY_STEPS + 1, dtype=dtype) / TRAJECTORY_STEPS

    def weights(self, process: Process, *, key: PRNGKeyArray) -> WeightPath:
        """Draw a path of the weights, in steps that suit the weights alone, and estimate its KL."""
        t = self.times()
        (w, _, nats), _, kl = self._run(process, None, key, diffrax.SaveAt(ts=t))
        return WeightPath(t.astype(w.dtype), w, (), kl + nats[-1])

    def solve(
        self, dynamics: Dynamics, h0: Hidden, *, key: PRNGKeyArray, every: bool = False, with_roughness: bool = False
    ) -> Solution:
        """Draw the weights and carry a batch through them: to h_1, or to ``every`` depth of ``times``."""
        if with_roughness:
            raise ValueError("adaptive steps have no roughness: train with FixedGrid, and predict with rtol=.")
        saveat = diffrax.SaveAt(ts=self.times()) if every else diffrax.SaveAt(t1=True)
        (_, h, nats), solution, kl = self._run(dynamics, h0, key, saveat)
        finished = solution.result == diffrax.RESULTS.successful
        evaluations = solution.stats["num_steps"] * evaluations_a_step(self.solver)
        batch = h[:, -h0.shape[0] :]
        outputs, kl = (jnp.where(finished, x, jnp.nan) for x in (batch if every else batch[-1], kl + nats[-1]))
        return Solution(outputs, kl, evaluations, finished)

    def _run(
        self, process: Process, h0: Hidden | None, key: PRNGKeyArray, saveat: diffrax.SaveAt
    ) -> tuple[
        tuple[Float[Array, "time weight"], PyTree[Array], Float[Array, " time"]], diffrax.Solution, Float[Array, ""]
    ]:
        self.check_kl(process.kl)
        self.check_process(process)
        w0, seen, start_nats, path_key = start_of(process, key)
        path = BrownianPath(Brownian(self.base, w0.shape[0], w0.dtype, path_key))
        state = (w0, seen if h0 is None else with_seen(seen, h0), jnp.zeros((), w0.dtype))
        if isinstance(self.adjoint, diffrax.BacksolveAdjoint):
            _check_forward_derivative(process, state)
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
            args=process,  # not in a closure, because the adjoint equation differentiates only args
            saveat=saveat,
            adjoint=self.adjoint,
            stepsize_controller=controller,
            max_steps=self.max_steps,
            throw=False,
        )
        ys = solution.ys
        assert ys is not None
        return ys, solution, start_nats


def _slopes(t: Depth, state: SolveState, process: Process) -> SolveState:
    w, h, _ = state
    known = correction(process, t, w, None if h is None else seen_in(process, h))
    return process.prior.drift(t, w) + known, slope_of_seen(process, t, w, h), energy(process, known)


def _check_forward_derivative(process: Process, state: SolveState) -> None:
    """Refuse a field whose gradient cannot be differentiated forwards, as diffrax does for the adjoint equation."""
    w, h, nats = state

    def gradient(scale: Array) -> Array:
        slopes, pullback = jax.vjp(lambda w: _slopes(0.0, (w, h, nats), process), w)
        return pullback(jax.tree.map(lambda slope: scale * slope, slopes))[0]

    try:
        jax.eval_shape(jax.jacfwd(gradient), nats)
    except TypeError as error:
        if "custom_vjp" not in str(error):
            raise
        raise ValueError(
            "adjoint=BacksolveAdjoint() differentiates the gradient of the field forwards, which the convolutions of "
            "sdebnn.nn do not allow: leave adjoint out, or use "
            "FixedGrid(20, 'reversible_heun', 'reversible'), whose memory does not grow with the steps either."
        ) from None


def _terms(process: Process, path: diffrax.AbstractBrownianPath, state: SolveState) -> diffrax.MultiTerm:
    zeros = jax.tree.map(jnp.zeros_like, state[1:])
    drift = diffrax.ODETerm(_slopes)  # pyright: ignore[reportArgumentType] (diffrax declares all numbers for t)
    return diffrax.MultiTerm(drift, NoiseOnWeights(process.prior.sigma, path, zeros))


def _worst_part(scaled_error: PyTree[Array]) -> Float[Array, ""]:
    """The largest root mean square among the parts, so that many weights do not hide the error of few hidden units."""
    parts = [jnp.sqrt(jnp.mean(part**2)) for part in jax.tree.leaves(scaled_error)]
    return functools.reduce(jnp.maximum, parts)
