"""Theorems with exact answers, compared with what this machine computes."""

from collections.abc import Iterator

import jax
from jaxtyping import PRNGKeyArray

from sdebnn.verify.known_posterior import (
    ExactDrift,
    LinearGaussian,
    Theorem,
    elbo_samples,
    gradient_samples,
    log_normal,
    ou_kl,
    posterior_if_w0_is_inferred,
)
from sdebnn.verify.objective import evidence, landing, marginals, path_kl, unbiased
from sdebnn.verify.seeing import seeing
from sdebnn.verify.solving import (
    adaptive,
    coarser,
    gradients,
    loss_and_gradient,
    refining,
    relative,
    reproducible,
    reversible,
    small_model,
    stability,
    strong_order,
)

__all__ = [
    "SUITE",
    "ExactDrift",
    "LinearGaussian",
    "Theorem",
    "coarser",
    "elbo_samples",
    "gradient_samples",
    "log_normal",
    "loss_and_gradient",
    "ou_kl",
    "posterior_if_w0_is_inferred",
    "relative",
    "small_model",
    "theorems",
]

SUITE = (
    marginals, path_kl, evidence, landing, unbiased, strong_order, refining, adaptive, gradients, reversible,
    reproducible, stability, seeing,
)  # fmt: skip


def theorems(key: PRNGKeyArray) -> Iterator[Theorem]:
    """All theorems, each measured when it is reached.

        from sdebnn import verify

        theorem = next(verify.theorems(key))
        print(theorem.name, theorem.measured, theorem.exact, theorem.passed)

    ``sdebnn verify`` prints all of them.
    """
    for i, group in enumerate(SUITE):
        yield from group(jax.random.fold_in(key, i))
