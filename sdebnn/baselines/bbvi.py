"""Black-box variational inference for SDEs (Ryder et al. 2018): a Gaussian process as the posterior of the weights.

    dw = (f_p(t, w) + a(t) w + b(t)) dt + σ dB

a and b hold a number for each weight and are piecewise linear in depth. The objective is the ELBO, as for any posterior
over paths.
"""

from collections.abc import Callable

import equinox as eqx
import jax
from jaxtyping import Array, PRNGKeyArray

from sdebnn.integrate import AbstractSolver, FixedGrid, KLEstimator
from sdebnn.models import SDEBlock, bayesianize
from sdebnn.processes import OU, AbstractInitialLaw, AbstractPrior, LinearDrift, Point, Weights


def bbvi(
    module: Callable[..., Array],
    *,
    knots: int = 8,
    prior: AbstractPrior = OU(),
    initial: Callable[[Weights], AbstractInitialLaw] = Point,
    solver: AbstractSolver = FixedGrid(),
    kl: KLEstimator = "analytic",
    key: PRNGKeyArray,
) -> SDEBlock:
    """A block of any field, whose weights have a factorised Gaussian process over depth as their posterior.

        block = baselines.bbvi(field, prior=OU(sigma=0.2), solver=FixedGrid(4), key=key)
        head = Deterministic(eqx.nn.Linear(4, 1, key=key))
        net = SDEBNN((Deterministic(nn.Augment(1, 3)), block, head))

    The functions a and b have ``knots`` over depth. The other arguments are those of ``bayesianize``.
    """
    size = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(module, eqx.is_inexact_array)))
    drift = LinearDrift(max(size, 1), knots)  # bayesianize refuses a module without weights
    return bayesianize(module, prior=prior, drift=drift, initial=initial, solver=solver, kl=kl, key=key)
