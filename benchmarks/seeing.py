"""What does it cost that the drift sees? One training step of ``SDEBNN.mlp``, with and without its guide.

Both have the same field, weights and steps; without the guide, the drift sees the weights alone. All programs are
compiled first and then take turns, so that other load affects each of them; ratios are medians over the turns.

    python benchmarks/seeing.py [--turns 15] [--json benchmarks/seeing.json]
"""

import argparse
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import record

import sdebnn
from sdebnn.nn import SDEBNN, blocks
from sdebnn.train.objective import elbo

EXAMPLES, DRAWS = 200, 4
POINTS = (8, 16, 32, 64)


def unguided(model: SDEBNN) -> SDEBNN:
    """The same net without its guide."""
    return SDEBNN((model.layers[0], eqx.tree_at(lambda b: b.guide, blocks(model)[0], None), *model.layers[2:]))


def training_step(model: SDEBNN, x: jax.Array, y: jax.Array):
    """The gradient of the loss as a compiled function of a key, the seconds of its compilation, and its memory."""
    parameters, rest = eqx.partition(model, eqx.is_inexact_array)

    def loss(parameters, key):
        return -elbo(eqx.combine(parameters, rest), sdebnn.Gaussian(0.1), x, y, key=key, draws=DRAWS).elbo

    clock = time.perf_counter()
    program = jax.jit(jax.grad(loss)).lower(parameters, jax.random.key(0)).compile()
    seconds = time.perf_counter() - clock
    megabytes = program.memory_analysis().temp_size_in_bytes / 1e6
    return lambda key: jax.block_until_ready(program(parameters, key)), seconds, megabytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    x = jnp.linspace(-2, 2, EXAMPLES)[:, None]
    y = jnp.sin(3 * x)
    nets = {"the drift sees the weights alone": unguided(SDEBNN.mlp(1, 1, key=jax.random.key(0)))}
    for points in POINTS:
        model = SDEBNN.mlp(1, 1, points=points, key=jax.random.key(0))
        nets[f"it sees {points} points"] = model.before_training(sdebnn.Gaussian(0.1), (x, y))
    programs = {name: training_step(model, x, y) for name, model in nets.items()}
    times = {name: [] for name in nets}
    for turn in range(options.turns + 1):
        for name, (step, _, _) in programs.items():
            clock = time.perf_counter()
            step(jax.random.key(turn))
            times[name].append(1e3 * (time.perf_counter() - clock))
    first = np.array(next(iter(times.values()))[1:])
    rows = {
        name: {
            "milliseconds": round(float(np.median(values[1:])), 2),
            "times as long": round(float(np.median(np.array(values[1:]) / first)), 2),
            "seconds of compilation": round(programs[name][1], 1),
            "megabytes": round(programs[name][2], 2),
        }
        for name, values in times.items()
    }
    for name, row in rows.items():
        print(f"{name:34}", ", ".join(f"{value} {unit}" for unit, value in row.items()))
    if options.json is not None:
        weights = blocks(nets["it sees 8 points"])[0].weights.size
        sizes = {"examples": EXAMPLES, "draws": DRAWS, "steps": "10 of Heun's method", "weights": weights}
        command = f"python benchmarks/seeing.py --turns {options.turns} --json {options.json}"
        record.write(options.json, command, sizes=sizes, rows=rows)


if __name__ == "__main__":
    main()
