"""Presets with some of their numbers replaced: learning rate, batch size and average, sigma, and the prior of w_0."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
from jaxtyping import PRNGKeyArray

from sdebnn.models import SDEBNN
from sdebnn.presets import Preset
from sdebnn.processes import AbstractPrior, Normal
from sdebnn.runs.settings import Settings
from sdebnn.train import Optimizer


def changed(row: Preset, settings: Settings) -> Preset:
    """A preset with the numbers that the settings give in place of its own."""
    training, optimizer, batches = row.training, row.training.optimizer, row.training.batches
    if settings.learning_rate is not None:
        optimizer = _with_rate(optimizer, settings.learning_rate)
    if settings.ema is not None:
        optimizer = replace(optimizer, ema=settings.ema)
    if settings.batch_size is not None:
        parts = math.gcd(batches.accumulate, settings.batch_size)
        batches = replace(batches, size=settings.batch_size, accumulate=parts)
    net = row.net
    if settings.sigma is not None or settings.prior_variance is not None:
        net = _with_priors(row.net, settings.sigma, settings.prior_variance)
    return row._replace(net=net, training=training._replace(optimizer=optimizer, batches=batches))


def _with_rate(optimizer: Optimizer, rate: float) -> Optimizer:
    """The optimiser at another learning rate. The rules of presets are functions of their rate."""
    rule = optimizer.rule
    if rule is not None:
        if not isinstance(rule, partial) or rule.args != (optimizer.learning_rate,):
            raise ValueError(f"learning_rate={rate}: the optimiser of this preset has no rate to change: leave it out.")
        rule = partial(rule.func, rate)
    return replace(optimizer, learning_rate=rate, rule=rule)


def _with_priors(
    net: Callable[[PRNGKeyArray], SDEBNN], sigma: float | None, prior_variance: float | None
) -> Callable[[PRNGKeyArray], SDEBNN]:
    """Nets with another sigma, and another variance of the prior of w_0, in all their blocks."""

    def part(node: Any) -> Any:
        if isinstance(node, AbstractPrior) and sigma is not None:
            return eqx.tree_at(lambda prior: prior.sigma, node, sigma)
        if isinstance(node, Normal) and prior_variance is not None:
            std = math.sqrt(prior_variance)
            return eqx.tree_at(lambda law: law.prior_std, node, std, is_leaf=lambda leaf: leaf is None)
        return node

    return lambda key: jax.tree.map(part, net(key), is_leaf=lambda node: isinstance(node, AbstractPrior | Normal))
