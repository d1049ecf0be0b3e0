"""Black-box variational inference for SDEs (Ryder et al. 2018): a Gaussian process as the posterior of the weights.

    dw = (f_p(t, w) + a(t) w + b(t)) dt + σ dB

a and b, a number for each weight, bend at knots over depth. The objective is that of any posterior over paths.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jaxtyping import PRNGKeyArray

from sdebnn.integrate import Estimator, FixedGrid, Solver
from sdebnn.models import SDEBlock, bayesianize
from sdebnn.processes import OU, Law, LinearDrift, Point, Weights


def bbvi(
    module: Any,
    *,
    knots: int = 8,
    prior: OU = OU(),
    initial: Callable[[Weights], Law] = Point,
    solver: Solver = FixedGrid(),
    kl: Estimator = "analytic",
    key: PRNGKeyArray,
) -> SDEBlock:
    """The weights of any field as a process over depth whose posterior stays Gaussian, and factorised."""
    size = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(module, eqx.is_inexact_array)))
    drift = LinearDrift(max(size, 1), knots)  # of a module without weights bayesianize says so
    return bayesianize(module, prior=prior, drift=drift, initial=initial, solver=solver, kl=kl, key=key)
