"""How the time of a training step grows with the number of weights D and of steps: exponents of fitted power laws.

Nets of all sizes take turns, so that other load affects all of them; the fastest turn of each counts.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

import sdebnn

WIDTHS, STEPS, TURNS = (256, 384, 576, 864), (20, 40, 80, 160), 10


def growth(console: Console) -> dict[str, object]:
    """Both exponents, and the times they are fitted to; a linear cost has exponent 1."""
    shapes = list(dict.fromkeys([*((width, 20) for width in WIDTHS), *((256, steps) for steps in STEPS)]))
    sizes, programs = zip(*(_step(*shape) for shape in shapes), strict=True)
    ms = dict(zip(shapes, _fastest(programs), strict=True))
    weights = list(sizes[: len(WIDTHS)])
    by_width, by_steps = [ms[width, 20] for width in WIDTHS], [ms[256, steps] for steps in STEPS]
    found = {
        "weights": weights, "ms_by_weights": by_width, "exponent_in_weights": _exponent(weights, by_width),
        "steps": list(STEPS), "ms_by_steps": by_steps, "exponent_in_steps": _exponent(STEPS, by_steps),
    }  # fmt: skip
    console.print(
        f"Time grows as D^{found['exponent_in_weights']:.2f} from {weights[0]:,} to {weights[-1]:,} weights, and as "
        f"steps^{found['exponent_in_steps']:.2f} from {STEPS[0]} to {STEPS[-1]}."
    )
    return found


def _exponent(sizes, times) -> float:
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def _step(width: int, steps: int) -> tuple[int, Callable[[int], Any]]:
    """D, and a function that computes a loss and its gradient, for the wide job with this width."""
    keys = jax.random.split(jax.random.key(0), 3)
    block = sdebnn.bayesianize(
        sdebnn.nn.TimeMLP(3, (width, width), key=keys[0]), drift=(1, 64, 1), solver=sdebnn.FixedGrid(steps), key=keys[1]
    )
    h = jax.random.normal(keys[2], (128, 3))
    parameters, rest = eqx.partition(block, eqx.is_inexact_array)

    @jax.jit
    @jax.value_and_grad
    def loss(parameters, key):
        block = eqx.combine(parameters, rest)
        outputs, kl = jax.vmap(lambda k: block(h, key=k))(jax.random.split(key, 4))
        return jnp.mean(outputs**2) + kl.mean()

    return block.weights.size, lambda number: jax.block_until_ready(loss(parameters, jax.random.key(number)))


def _fastest(programs: Sequence[Callable[[int], Any]]) -> list[float]:
    """The milliseconds of the fastest turn of each program."""
    times = np.full((1 + TURNS, len(programs)), np.inf)
    for turn in range(1 + TURNS):  # the first compiles
        for i, program in enumerate(programs):
            clock = time.perf_counter()
            program(turn)
            times[turn, i] = 1e3 * (time.perf_counter() - clock)
    return times[1:].min(0).tolist()
