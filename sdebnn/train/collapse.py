"""Posterior collapse: the posterior has become the prior, and the model has learned nothing.

If w_0 is inferred, early training can raise the bound by shrinking the KL to zero: the weights return to their prior,
and the model explains the data as noise. A warm-up of the KL weight avoids most collapses. The others are
recognised by a KL near zero and a log-likelihood below that of residuals as large as the likelihood's own noise.
"""

import warnings

import jax
import numpy as np
from jaxtyping import Array, PyTree

from sdebnn.contract import AbstractModel
from sdebnn.likelihoods import AbstractLikelihood
from sdebnn.processes import AbstractInitialLaw

KL_WARMUP = 0.3  # share of the run for the warm-up of the KL weight, unless the model starts near its posterior
MAX_COLLAPSED_KL = 1.0  # nats for the whole data set
AVERAGED_SHARE = 0.1  # the terms are averaged over this share of the steps, at the end of the run


def infers_start(model: AbstractModel) -> bool:
    """Whether any weights of a model are inferred at depth 0, so that the KL includes them."""

    def is_law(node: PyTree) -> bool:
        return isinstance(node, AbstractInitialLaw)

    return any(is_law(node) and node.is_inferred for node in jax.tree.leaves(model, is_leaf=is_law))


def default_warmup(model: AbstractModel) -> float:
    """The share of the run over which the KL weight rises: none for a model that starts near its posterior."""
    return KL_WARMUP if infers_start(model) and not model.starts_near_posterior else 0.0


def warn_if_collapsed(likelihood: AbstractLikelihood, history: dict[str, np.ndarray], y: Array) -> None:
    """Warn if the KL of a fit is near zero and the targets are explained worse than by the likelihood's noise."""
    run = np.flatnonzero(np.isfinite(history["kl"]))
    if not run.size:
        return
    last = run[-max(1, int(AVERAGED_SHARE * run.size)) :]
    kl = float(history["kl"][last].mean())
    likelihood, targets, weights = likelihood.split_weights(y)
    fit = float(history["log_likelihood"][last].mean()) / (y.shape[0] if weights is None else float(weights.sum()))
    expected = likelihood.log_prob_of_a_fit(targets, weights)
    if kl > MAX_COLLAPSED_KL or expected is None or fit > expected:
        return
    warnings.warn(
        f"the fit has collapsed to its prior: its KL is {kl:.2g} nats, and its mean log-likelihood is {fit:.3g} nats "
        f"per example, not above {expected:.3g}; raise kl_warmup, train for longer, or try another key.",
        RuntimeWarning,
        stacklevel=3,
    )
