"""Images on a CPU: a training step of the paper's MNIST net, compared with only its convolutions in PyTorch.

sdebnn: a whole step of ``fit``, by the program that ``fit`` compiles: 128 random images of bytes, one draw of the path
of 21,000 weights, its KL, 20 Euler steps of four convolutions with time, each step recomputed for the gradient, the
head, the likelihood, Adam, a moving average of the parameters.
torch: only the convolutions and tanh of these 20 steps, forward and backward (``torch_peer.py``), in the usual layout,
NCHW, and in the one that is faster here, channels last.
They take turns, and ratios are those of the fastest times. On a machine with other load the ratios mean nothing,
because torch's threads wait for each other and lose far more time than ours. Without PyTorch there is only the first
row; ``--torch-python`` names an interpreter that has it.

    python benchmarks/images.py [--repeats 10] [--torch-python python] [--json FILE]
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import record

import sdebnn
from sdebnn.nets import paper_net
from sdebnn.train.batches import ChosenRows
from sdebnn.train.loop import Call, Job, program, start

BATCH, EXAMPLES = 128, 1280


def our_step() -> tuple[Callable[[], None], dict[str, float]]:
    """A function that takes one training step, and the time and memory of its compilation."""
    keys = jax.random.split(jax.random.key(0), 5)
    x = jax.random.randint(keys[0], (EXAMPLES, 28, 28, 1), 0, 256).astype(jnp.uint8)
    y = jax.random.randint(keys[1], (EXAMPLES,), 0, 10)
    pair = (paper_net((28, 28, 1), 10, key=keys[2]), sdebnn.Categorical())
    parameters, rest = eqx.partition(pair, eqx.is_inexact_array)
    like, steps = jax.eval_shape(lambda: parameters), EXAMPLES // BATCH
    job = Job(
        optax.adam(1e-2), EXAMPLES, BATCH, accumulate=1, draws=1, draws_at_once=None, kl_weight=1.0, kl_warmup=0.0,
        roughness_weight=0.0, ema=0.998, augment=None, max_skipped=10, steps_a_call=steps,
    )  # fmt: skip
    order = jax.random.permutation(keys[3], EXAMPLES).reshape(steps, BATCH)

    def call(state) -> Call:
        batches = ChosenRows(x, y, order, state.step + 0)
        return Call(job, like, rest, batches, keys[4], state.step + 1, jnp.asarray(1000, jnp.int32))

    state = start(parameters, job)
    clock = time.perf_counter()
    made = program().program.lower(call(state), state).compile()
    cost = {"compile_s": time.perf_counter() - clock}
    cost["temp_mib"] = made.compiled.memory_analysis().temp_size_in_bytes / 2**20

    def step() -> None:
        nonlocal state
        state, record = jax.block_until_ready(made(call(state), state))
        if not np.isfinite(record.terms.elbo[0]) or record.skipped[0]:
            raise SystemExit("a step was skipped, so its time is not that of a training step")

    return step, cost


def torch_steps(python: str) -> tuple[dict[str, Callable[[], float]], str]:
    """For each layout, a function that times one pass; and torch's version. Both are empty without torch."""
    peer = subprocess.Popen(
        [python, str(Path(__file__).with_name("torch_peer.py"))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    about = peer.stdout.readline().split()
    if not about:
        print(f"{Path(python).name} cannot import torch: no peers; see --torch-python.")
        return {}, ""

    def seconds(layout: str) -> float:
        peer.stdin.write(layout + "\n")
        peer.stdin.flush()
        return float(peer.stdout.readline())

    names = {"torch, NCHW": "nchw", "torch, channels last": "channels_last"}
    return {name: lambda layout=layout: seconds(layout) for name, layout in names.items()}, about[0]


def measure(repeats: int, python: str) -> tuple[dict[str, dict[str, float]], str]:
    step, cost = our_step()

    def ours() -> float:
        clock = time.perf_counter()
        step()
        return time.perf_counter() - clock

    peers, version = torch_steps(python)
    timed = {"sdebnn, a training step": ours, **peers}
    times = {name: [] for name in timed}
    for i in range(repeats + 1):  # the first round warms up
        for name, seconds in timed.items():
            elapsed = seconds()
            if i:
                times[name].append(elapsed)
    rows = {name: {"step_s": float(np.median(t)), "fastest_s": min(t)} for name, t in times.items()}
    for name in peers:
        rows[name]["ours_by_this"] = rows["sdebnn, a training step"]["fastest_s"] / rows[name]["fastest_s"]
    rows["sdebnn, a training step"] |= cost
    return rows, version


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--torch-python", default=sys.executable)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    load = os.getloadavg()[0]  # before this benchmark adds its own
    if load > 0.5:
        print(f"the machine is busy (load {load:.1f}): do not trust the ratios.")
    rows, version = measure(options.repeats, options.torch_python)
    columns = {"step_s": "s a step", "fastest_s": "fastest", "ours_by_this": "ours / it", "compile_s": "compile s",
               "temp_mib": "temp MiB"}  # fmt: skip
    print(f"{'':24}" + "".join(f"{title:>11}" for title in columns.values()))
    for name, row in rows.items():
        print(f"{name:24}" + "".join(f"{row[c]:11.2f}" if c in row else f"{'':11}" for c in columns))
    if options.json:
        record.write(options.json, "python benchmarks/images.py", torch=version, load_before=load, rows=rows)


if __name__ == "__main__":
    main()
