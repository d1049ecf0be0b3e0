"""Collapse: a posterior that has become its prior, and so learned nothing, because the KL was charged too early.

Where w_0 is inferred, the start of training can make it cheaper to pay no KL at all than to fit: the weights return to
their prior, and the net explains the data as noise. A warm-up of the KL's weight avoids most such fits; the rest are
told by their terms: next to no KL, and a likelihood far below that of residuals as large as its own noise.
"""

import warnings
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from sdebnn.likelihoods import Categorical, Likelihood, noise_log_prob, parted
from sdebnn.processes import Normal

KL_WARMUP = 0.3  # share of a run over which the KL's weight rises, where w_0 is inferred
LITTLE_KL = 1.0  # nats of the whole data set
SHORTFALL = 0.5  # nats per example: what residuals of twice the noise's variance cost under a Gaussian
LAST = 0.1  # share of the run over which the terms are averaged


def infers_start(model: Any) -> bool:
    """Whether any weight of a model is inferred at depth 0, and so charged for."""
    nodes = jax.tree.leaves(model, is_leaf=lambda node: isinstance(node, Normal))
    return any(isinstance(node, Normal) for node in nodes)


def warn_if_collapsed(likelihood: Likelihood, history: dict[str, np.ndarray], y: Array) -> None:
    """Warn of a fit that paid next to no KL and explains the targets worse than its own noise would."""
    run = np.flatnonzero(np.isfinite(history["kl"]))
    if not run.size:
        return
    last = run[-max(1, int(LAST * run.size)) :]
    kl = float(history["kl"][last].mean())
    weights = parted(likelihood, y)[2]
    fit = float(history["log_likelihood"][last].mean()) / (y.shape[0] if weights is None else float(weights.sum()))
    expected = _log_prob_without_collapse(likelihood, y)
    if kl > LITTLE_KL or expected is None or fit > expected:
        return
    warnings.warn(
        f"the fit has collapsed to its prior: its KL is {kl:.2g} nats, and its mean log-likelihood {fit:.3g} nats an "
        f"example, where a fit has more than {expected:.3g}; raise kl_warmup, train for longer, or try another key.",
        RuntimeWarning,
        stacklevel=3,
    )


def _log_prob_without_collapse(likelihood: Likelihood, y: Array) -> float | None:
    """A mean log-likelihood, in nats an example, that a net which has learned something exceeds; None if unknown."""
    likelihood, y, weights = parted(likelihood, y)
    if isinstance(likelihood, Categorical):  # no better than the frequencies of the classes
        share = np.bincount(np.asarray(y), None if weights is None else np.asarray(weights))
        share = share[share > 0] / share.sum()
        entropy = float(-(share * np.log(share)).sum())
        return -entropy + 0.02 * entropy if entropy > 0 else None
    noise = noise_log_prob(likelihood)
    return None if noise is None else y.shape[-1] * (noise - SHORTFALL)
