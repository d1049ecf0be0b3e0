"""The contract of all models: one draw of the weights, named by a key, evaluated on a batch.

    model(x, *, key) -> (outputs, kl)

The same key always gives the same function. That is all a model must do. What it may also offer, if it is more:

    solve(x, *, key, rough=False) -> Solution       it solves something: the same, and what that took
    draw_keys(key, draws) -> keys                   it holds a few functions: the keys that name each in turn, rounded
                                                    up to whole rounds if each is to have the same weight
    training() -> model                             what the ELBO takes instead, of the same mean: less noisy
    conditioned(likelihood, x, y, *, validation, key, say) -> model
                                                    it learns by more than gradient steps: what comes after them
    check_conditioning(likelihood, validation)      and refuses, before them, what it could not learn from
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Key, Num, PRNGKeyArray

from sdebnn.checks import check_count, check_key
from sdebnn.integrate import Solution, warn_if_stray
from sdebnn.programs import compiled


def draw_keys(key: PRNGKeyArray, draws: int, model: Any = None) -> Key[Array, " draw"]:
    """The keys of the first, second, ... draw under a key: asking for more draws keeps the ones before.

    Of a model that holds a few functions, such as an ensemble, they name each of these in turn.
    """
    check_key(key)
    check_count("draws", draws)
    if hasattr(model, "draw_keys"):
        return model.draw_keys(key, draws)
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(draws))


def training(model: Any) -> Any:
    """The model as the ELBO takes it: of the same mean, and less noisy if the model knows how."""
    return model.training() if hasattr(model, "training") else model


def conditioned(
    model: Any,
    likelihood: Any,
    x: Any,
    y: Array,
    *,
    validation: tuple[Any, Array] | None,
    key: PRNGKeyArray,
    say: Callable[[str], None],
) -> Any:
    """The model once gradient steps are done: itself, unless there is more for it to learn from the data."""
    if not hasattr(model, "conditioned"):
        return model
    return model.conditioned(likelihood, x, y, validation=validation, key=key, say=say)


def check_conditioning(model: Any, likelihood: Any, validation: Any) -> None:
    """Refuse, before gradient steps, a model that could not do what it does after them.

    That is one that lacks something; or one inside another that would not hand it the data.
    """
    if hasattr(model, "check_conditioning"):
        model.check_conditioning(likelihood, validation)

    def more(node: Any) -> bool:
        return hasattr(node, "conditioned")

    inside = [] if more(model) else [node for node in jax.tree.leaves(model, is_leaf=more) if more(node)]
    if inside:
        name, outer = type(inside[0]).__name__, type(model).__name__
        raise ValueError(f"{name} learns from the data by itself, and cannot do so inside {outer}: put it outermost.")


def solve(model: Any, x: Num[Array, "example *input"], *, key: PRNGKeyArray, rough: bool = False) -> Solution:
    """What any model of the contract computes, and what that took: nothing, if the model does not say."""
    if hasattr(model, "solve"):
        return model.solve(x, key=key, rough=rough)
    outputs, kl = model(x, key=key)
    zero = jnp.zeros((), kl.dtype)
    return Solution(outputs, kl, jnp.asarray(0), jnp.asarray(True), zero, zero)


def solutions(model: Any, x: Num[Array, "example *input"], keys: Key[Array, " draw"], at_once: int) -> Solution:
    """What several draws compute, ``at_once`` of them side by side; each part has an axis of draws in front."""
    if at_once > 1:
        return _draws(model, x, keys, at_once)
    # One program, called again: convolutions then have no further axis, and are in no loop.
    return jax.tree.map(lambda *each: jnp.stack(each), *[_draw(model, x, key) for key in keys])


def over_draws(one: Callable[[PRNGKeyArray], Any], keys: Key[Array, " draw"], at_once: int) -> Any:
    """What a function of a key returns for each of them, ``at_once`` side by side."""
    if at_once >= keys.size:
        return jax.vmap(one)(keys)  # no loop, not even of one round: its gradient would keep what all draws share
    return lax.map(one, keys) if at_once == 1 else lax.map(one, keys, batch_size=at_once)


@compiled
def _draws(model: Any, x: Array, keys: Key[Array, " draw"], at_once: int) -> Solution:
    return over_draws(lambda key: solve(model, x, key=key), keys, at_once)


@compiled
def _draw(model: Any, x: Array, key: PRNGKeyArray) -> Solution:
    return solve(model, x, key=key)


def check_solution(solution: Solution) -> None:
    """Refuse draws that did not reach depth 1, or blew up on the way. While JAX traces, nothing is known."""
    if any(isinstance(part, Tracer) for part in solution):
        return
    finished = np.asarray(solution.finished)
    if not finished.all():
        raise ValueError(
            f"{np.size(finished) - finished.sum()} of {np.size(finished)} draws did not reach depth 1 within the steps "
            "allowed: raise max_steps, loosen rtol, or look for weights that blow up."
        )
    sums = np.asarray(jnp.sum(solution.outputs, axis=tuple(range(finished.ndim, solution.outputs.ndim))))
    wrong = ~np.isfinite(sums + np.asarray(solution.kl))
    if wrong.any():
        raise ValueError(
            f"{wrong.sum()} of {wrong.size} draws are not finite: take more steps, a smaller sigma or a smaller gain, "
            "or standardise the inputs."
        )
    warn_if_stray(jnp.asarray(solution.stray))
