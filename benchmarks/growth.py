"""How the time of a training step grows with the number of weights D and of steps: exponents of fitted power laws."""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

import sdebnn

WIDTHS, STEPS = (256, 384, 576, 864), (20, 40, 80, 160)  # hidden units, of D = width² + 8 width + 3 weights


def growth(console: Console) -> dict[str, object]:
    """Both exponents, and the times they are fitted to; a linear cost has exponent 1."""
    by_width = [_step(width, 20) for width in WIDTHS]
    by_steps = [_step(256, steps) for steps in STEPS]
    weights = [weights for weights, _ in by_width]
    found = {
        "weights": weights, "ms_by_weights": [ms for _, ms in by_width],
        "exponent_in_weights": _exponent(weights, [ms for _, ms in by_width]),
        "steps": list(STEPS), "ms_by_steps": [ms for _, ms in by_steps],
        "exponent_in_steps": _exponent(STEPS, [ms for _, ms in by_steps]),
    }  # fmt: skip
    console.print(
        f"Time grows as D^{found['exponent_in_weights']:.2f} from {weights[0]:,} to {weights[-1]:,} weights, and as "
        f"steps^{found['exponent_in_steps']:.2f} from {STEPS[0]} to {STEPS[-1]}."
    )
    return found


def _exponent(sizes, times) -> float:
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def _step(width: int, steps: int) -> tuple[int, float]:
    """D, and the milliseconds of a loss with its gradient, of the wide job with this width: the fastest of several."""
    keys = jax.random.split(jax.random.key(0), 3)
    block = sdebnn.bayesianize(
        sdebnn.TimeMLP(3, (width, width), key=keys[0]), drift=(1, 64, 1), solver=sdebnn.FixedGrid(steps), key=keys[1]
    )
    h = jax.random.normal(keys[2], (128, 3))
    parameters, rest = eqx.partition(block, eqx.is_inexact_array)

    @jax.jit
    @jax.value_and_grad
    def loss(parameters, key):
        block = eqx.combine(parameters, rest)
        outputs, kl = jax.vmap(lambda k: block(h, key=k))(jax.random.split(key, 4))
        return jnp.mean(outputs**2) + kl.mean()

    times = []
    for i in range(8):
        clock = time.perf_counter()
        jax.block_until_ready(loss(parameters, jax.random.key(i)))
        times.append(1e3 * (time.perf_counter() - clock))
    return block.weights.size, min(times)
