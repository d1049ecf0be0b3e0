"""How a solve on a fixed grid is executed on each platform.

The plain way draws the whole weight path in one loop over depth, and then carries the batch through it in a second
loop. The other ways give the same numbers up to rounding, and are chosen where they were measured to be faster. Tests
compare each of them with the plain way.
"""

from typing import NamedTuple


class Execution(NamedTuple):
    """The choices for one platform."""

    unroll: int  # steps of the loop over the hidden units that are compiled as one
    unroll_weights: bool  # whether the loop over the weights is unrolled, too
    low_rank_drift: bool  # whether a drift may take all Euler steps by a recursion of its own
    field_steps: bool  # whether a field may take all Euler steps by kernels of its own
    one_loop_from: int | None  # number of weights from which weights and hidden units advance in one loop
    why: str


PLAIN = Execution(
    5,
    False,
    False,
    False,
    None,
    "equal steps run as two plain loops, the weights first, five hidden steps compiled as one",
)
CHOICES = {
    "cpu": PLAIN._replace(
        unroll=4,
        one_loop_from=2**13,
        why="equal steps run as two plain loops, the weights first, four hidden steps compiled as one; from 8192 "
        "weights on as one loop, because their path no longer fits the cache",
    ),
    "gpu": PLAIN._replace(
        unroll_weights=True,
        low_rank_drift=True,
        field_steps=True,
        why="equal steps run as two loops, the weights first, five steps compiled as one, because an iteration costs "
        "more than its arithmetic; narrow drifts by a low-rank recursion; convolutional fields by packed matrices or "
        "by installed kernels",
    ),
}


def execution_on(platform: str) -> Execution:
    """The choices for a platform; the plain way if it was not measured."""
    return CHOICES.get(platform, PLAIN)
