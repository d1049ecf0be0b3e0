"""The exact-answer suite: what this machine computes, beside what mathematics says."""

from collections.abc import Iterator

import jax
from jaxtyping import PRNGKeyArray

from sdebnn.verify.objective import evidence, landing, marginals, path_kl, unbiased
from sdebnn.verify.solving import (
    adaptive,
    coarser,
    gradients,
    loss_and_gradient,
    naming,
    refining,
    relative,
    reversible,
    small_model,
    stability,
    strong_order,
)
from sdebnn.verify.yardstick import (
    LinearGaussian,
    PosteriorDrift,
    Theorem,
    elbo_samples,
    gradient_samples,
    infer_w0,
    log_normal,
    ou_kl,
)

__all__ = [
    "SUITE",
    "LinearGaussian",
    "PosteriorDrift",
    "Theorem",
    "coarser",
    "elbo_samples",
    "gradient_samples",
    "infer_w0",
    "log_normal",
    "loss_and_gradient",
    "ou_kl",
    "relative",
    "small_model",
    "theorems",
]

SUITE = (
    marginals, path_kl, evidence, landing, unbiased, strong_order, refining, adaptive, gradients, reversible, naming,
    stability,
)  # fmt: skip


def theorems(key: PRNGKeyArray) -> Iterator[Theorem]:
    """Every theorem in turn, measured here and now."""
    for i, group in enumerate(SUITE):
        yield from group(jax.random.fold_in(key, i))
