"""The base class of solvers, which solve the weights, the hidden units and the KL over depth."""

from abc import abstractmethod

import equinox as eqx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn.integrate.paths import Dynamics, Hidden, KLEstimator, Process, Solution, WeightPath


class AbstractSolver(eqx.Module):
    """Solves the weights, the hidden units and the KL from depth 0 to depth 1.

    ``FixedGrid`` takes equal steps by any method, ``Adaptive`` steps by any SDE solver of diffrax. A new method is an
    ``AbstractMethod`` for ``FixedGrid``; a new solver is needed only if the steps are chosen in another way. To write
    one, subclass this class: ``weights`` draws a path by itself, and ``solve`` carries a batch along such a path.

        class Randomised(AbstractSolver):
            grids: tuple[FixedGrid, FixedGrid]  # the key chooses one of them

            def solve(self, dynamics, h0, *, key, every=False, with_roughness=False):
                coarse, fine = (each.solve(dynamics, h0, key=key) for each in self.grids)
                chosen = jax.random.bernoulli(key)
                return jax.tree.map(lambda a, b: jnp.where(chosen, a, b), coarse, fine)

            def weights(self, process, *, key):
                return self.grids[1].weights(process, key=key)

            def times(self, dtype=float):
                return self.grids[1].times(dtype)

            def tighter(self):
                return self.grids[1].tighter()

            @property
            def base(self):
                return self.grids[1].base

        solver = Randomised((FixedGrid(5, noise_steps=10), FixedGrid(10)))
        block = bayesianize(field, solver=solver, key=key)
    """

    @abstractmethod
    def weights(self, process: Process, *, key: PRNGKeyArray) -> WeightPath:
        """Draw a path of the weights from the posterior, and estimate its KL from the prior."""

    @abstractmethod
    def solve(
        self, dynamics: Dynamics, h0: Hidden, *, key: PRNGKeyArray, every: bool = False, with_roughness: bool = False
    ) -> Solution:
        """Draw the weights and carry a batch through them to h_1; with ``every``, return the states at ``times``."""

    @abstractmethod
    def times(self, dtype: DTypeLike = float) -> Float[Array, " time"]:
        """The depths of a path or a trajectory, from 0 to 1."""

    @abstractmethod
    def tighter(self) -> "tuple[AbstractSolver, float]":
        """A more accurate solver with the same noise, and the factor that turns the difference of both results into an
        estimate of this solver's error.
        """

    @property
    @abstractmethod
    def base(self) -> int:
        """The number of steps of the grid on which a key's Brownian path is first drawn."""

    @property
    def estimators(self) -> tuple[KLEstimator, ...]:
        """The estimators of the KL that are unbiased with this solver."""
        return ("analytic",)

    @property
    def grid_steps(self) -> int | None:
        """The number of equal steps, or None if the steps are not equal."""
        return None

    @property
    def trains_on_meshes(self) -> bool:
        """Whether several devices can share a training step."""
        return True

    def with_steps(self, steps: int) -> "AbstractSolver | None":
        """The same solver with this number of equal steps; None if it has no such setting."""
        return None

    def with_tolerance(self, rtol: float) -> "AbstractSolver | None":
        """The same solver with this tolerance; None if it has no such setting."""
        return None

    @property
    def description(self) -> str:
        """The solver in a few words, for ``describe``."""
        return type(self).__name__

    def execution(self, dynamics: Dynamics, h0: Hidden) -> str:
        """How a solve is executed on the platform in use, in words; ``h0`` may be traced."""
        return "as the solver chooses"

    def check_process(self, process: Process) -> None:
        """Raise a ValueError for a process that this solver cannot solve."""

    def check_kl(self, kl: KLEstimator) -> None:
        """Refuse an estimator of the KL that is biased with this solver."""
        if kl not in self.estimators:
            raise ValueError(
                f"kl={kl!r} adds an Itô integral, which is biased with {type(self).__name__}: use kl='analytic', or "
                "solve on FixedGrid."
            )
