"""What does seeing cost? One training step of nets whose posterior sees hidden states of some inputs, or does not.

The read-out of ``SDEBNN.mlp`` is conditioned at some points; without points it follows its prior. A ``Guide`` lets the
drift of a field see points. In each group, nets have the same field, weights and steps. All programs are compiled first
and then take turns, so that other load affects each of them; ratios are medians over the turns.

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
from sdebnn.fields import Last
from sdebnn.nn import SDEBNN, AbstractModel, Augment, Deterministic, Guide, TimeMLP, bayesianize
from sdebnn.processes import Normal
from sdebnn.train.objective import elbo

EXAMPLES, DRAWS = 200, 4
POINTS = (8, 32, 128)
KEY = jax.random.key(0)


def guided(points: int) -> SDEBNN:
    """An MLP over depth, whose drift sees so many points."""
    guide = Guide(jnp.zeros((points, 3)), 1) if points else None
    block = bayesianize(TimeMLP(3, (32,), key=KEY), initial=Normal, guide=guide, key=KEY)
    return SDEBNN((Deterministic(Augment(1, 2)), block, Deterministic(Last(1))))


def training_step(model: AbstractModel, x: jax.Array, y: jax.Array):
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
    data = (x, y)
    nets: dict[str, AbstractModel] = {"read-out without points": SDEBNN.mlp(1, 1, key=KEY)}
    for points in POINTS:
        model = SDEBNN.mlp(1, 1, points=points, key=KEY)
        nets[f"read-out conditioned at {points} points"] = model.before_training(sdebnn.Gaussian(0.1), data)
    for points in (0, 8, 32):
        name = f"drift that sees {points} points" if points else "drift that sees the weights alone"
        nets[name] = guided(points).before_training(sdebnn.Gaussian(0.1), data)
    programs = {name: training_step(model, x, y) for name, model in nets.items()}
    times = {name: [] for name in nets}
    for turn in range(options.turns + 1):
        for name, (step, _, _) in programs.items():
            clock = time.perf_counter()
            step(jax.random.key(turn))
            times[name].append(1e3 * (time.perf_counter() - clock))
    rows = {}
    for name, values in times.items():
        first = "read-out without points" if name.startswith("read-out") else "drift that sees the weights alone"
        rows[name] = {
            "milliseconds": round(float(np.median(values[1:])), 2),
            "times as long": round(float(np.median(np.array(values[1:]) / np.array(times[first][1:]))), 2),
            "seconds of compilation": round(programs[name][1], 1),
            "megabytes": round(programs[name][2], 2),
        }
    for name, row in rows.items():
        print(f"{name:40}", ", ".join(f"{value} {unit}" for unit, value in row.items()))
    if options.json is not None:
        sizes = {"examples": EXAMPLES, "draws": DRAWS}
        command = f"python benchmarks/seeing.py --turns {options.turns} --json {options.json}"
        record.write(options.json, command, sizes=sizes, rows=rows)


if __name__ == "__main__":
    main()
