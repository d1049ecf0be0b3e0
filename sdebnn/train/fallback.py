"""Parameters to fall back on: those of the last good ELBO, returned if the ELBO of the final parameters is bad."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import PyTree

EXPLOSION_FACTOR = 1e3  # a fit has exploded if -ELBO exceeds its first value, or N nats, by this factor


class GoodParameters(NamedTuple):
    """Parameters, and their moving average, at a step where the ELBO was good.

    ``read`` returns both. They may be on the device until then: copying them to the host at every call is slow.
    """

    step: int
    read: Callable[[], tuple[PyTree, PyTree | None]]


def is_good(elbo: ArrayLike, first: float, examples: int) -> bool:
    """Whether an ELBO is finite and not absurdly far below the first one of the run."""
    scale = max(abs(first) if math.isfinite(first) else 0.0, examples)
    value = float(np.asarray(elbo))
    return bool(math.isfinite(value) and -value <= EXPLOSION_FACTOR * scale)


def what_went_wrong(
    step: int, skipped: int, stopped_after: int | None, good: GoodParameters | None, fell_back: bool
) -> str:
    """What a user must know about the end of a run, in words; empty if all is well.

    ``stopped_after`` is the number of skipped steps in a row that stopped the run, if any did; ``fell_back`` says
    whether the ELBO of the final parameters was bad.
    """
    words = []
    if skipped:
        end = "" if stopped_after is None else f", the last {stopped_after} in a row, and training stopped"
        reason = "because their ELBO, gradient or parameters were not finite"
        words.append(f"{skipped} of {step} steps were skipped{end}, {reason}")
    if fell_back:
        instead = "no good parameters are known" if good is None else (
            f"the parameters of step {good.step}, the last with a good ELBO, are returned"
        )  # fmt: skip
        words.append(f"the ELBO of the last parameters is not finite or has exploded: {instead}")
    return "; ".join(words)
