"""Optimisers of Optax for ``fit``: the default, and those of the presets. All of them work on stacks of arrays."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from sdebnn.checks import shown
from sdebnn.train.muon import orthogonalised
from sdebnn.train.stacks import by_row, by_stacks

UpdateRule = optax.GradientTransformation | Callable[[int], optax.GradientTransformation]

# Factors of the learning rate for arrays that are not standardised (drifts, biases, norms) and for the std of w_0.
RATE_FACTORS = {"drift": 0.1, "scale": 0.1, "shift": 0.1, "bias": 0.1, "log_std": 0.5}


def optimizer_of(
    rule: UpdateRule | None, learning_rate: float, steps: int, clip: float | None
) -> optax.GradientTransformation:
    """The optimiser that ``Optimizer`` describes, for a run of so many steps."""
    if rule is None:
        rule = _adam(learning_rate, steps)
    elif not isinstance(rule, optax.GradientTransformation) and callable(rule):
        rule = rule(steps)
    if not isinstance(rule, optax.GradientTransformation):
        raise ValueError(f"rule={shown(rule)} is not an optimiser of Optax: pass one such as optax.adam(1e-3).")
    return rule if clip is None else _clipped(rule, clip)


# Cached, so that a second fit with the same numbers uses the same object and finds the compiled program.
@functools.cache
def _adam(learning_rate: float, steps: int) -> optax.GradientTransformation:
    return by_stacks(lambda _: optax.adam(optax.cosine_decay_schedule(learning_rate, steps)))


@functools.cache
def _clipped(optimizer: optax.GradientTransformation, norm: float) -> optax.GradientTransformation:
    return optax.chain(by_stacks(lambda _: optax.clip_by_global_norm(norm)), optimizer)


@functools.cache
def grouped_muon(rate: float, steps: int, *, orthogonal: bool = True) -> optax.GradientTransformation:
    """Muon for the kernels of convolutions, Adam for the rest, with warm-up, cosine decay and weight decay.

        from functools import partial

        from sdebnn.train import grouped_muon

        optimizer = Optimizer(rule=partial(grouped_muon, 0.02))  # fit passes the steps
        fitted = fit(net, Categorical(), images, labels, key=key, epochs=2, optimizer=optimizer)

    Muon (Jordan and others, 2024) moves a matrix along the orthogonal matrix that is nearest to its momentum: along all
    directions equally far. Here all updates are in units of standardised weights: those of a kernel have a root mean
    square of the learning rate, and those of Adam never exceed it. Arrays that are not standardised (drifts, biases,
    norms) have a tenth of the rate, and the standard deviation of w_0 has half of it. ``orthogonal=False`` is Adam for
    all arrays.
    """
    warmup = min(200, max(1, steps // 10))
    schedule = optax.warmup_cosine_decay_schedule(0.0, rate, warmup, max(steps, warmup + 1))

    def make(like: PyTree) -> optax.GradientTransformation:
        decays = by_row(lambda path: 0.05 * (_group(path) in ("kernel", "value")), like)
        shares = by_row(lambda path: RATE_FACTORS.get(_group(path), 1.0), like)

        def bounded(rows: Array, now: Array, decay: np.ndarray, share: np.ndarray) -> Array:
            size = jnp.sqrt(jnp.mean(rows**2, axis=tuple(range(1, rows.ndim)), keepdims=True))
            moved = rows / jnp.maximum(1.0, size) + jnp.asarray(decay, rows.dtype) * now
            return jnp.asarray(share, rows.dtype) * moved

        return optax.chain(
            optax.stateless(lambda updates, now: jax.tree.map(bounded, updates, now, decays, shares)),
            optax.scale_by_learning_rate(schedule),
        )

    adam = by_stacks(lambda _: optax.scale_by_adam(b1=0.9, b2=0.99))
    return optax.chain(orthogonalised(adam) if orthogonal else adam, by_stacks(make))


@functools.cache
def constant_adam(rate: float, steps: int) -> optax.GradientTransformation:
    """Adam with a constant learning rate.

        from functools import partial

        from sdebnn.train import constant_adam

        optimizer = Optimizer(rule=partial(constant_adam, 1e-3))

    The default of ``Optimizer`` lets the rate decay to zero. The number of ``steps``, which ``fit`` passes, is not
    used.
    """
    return by_stacks(lambda _: optax.adam(rate))


def _group(path: tuple[Any, ...]) -> str:
    """The name of an array's group: "drift" for arrays of a drift, else the last name on its path."""
    names = [str(getattr(part, "name", "")) for part in path]
    return "drift" if "drift" in names else names[-1]
