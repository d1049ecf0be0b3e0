"""The cost model of docs/scaling.md: what a training step should cost on several devices, beside what programs say.

    python benchmarks/scaling.py [--json benchmarks/scaling.json]

Devices are simulated, so that arithmetic, messages and memory of a device can be read from its compiled program. The
time of all devices together on this machine's processor is measured, too. Then the model predicts larger machines.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

DEVICES = (1, 2, 4, 8)
BATCH, STEPS_TIMED = 64, 12


class Machine(NamedTuple):
    """One accelerator, and what connects it to the others."""

    name: str
    flops: float  # of training, per second, as measured on whole steps
    memory: float  # bytes per second
    link: float  # bytes per second in and out of an accelerator
    latency: float  # seconds of a message
    dollars: float  # an hour, an assumption


class Net(NamedTuple):
    """A net and how it is trained."""

    name: str
    flops: float  # of an example and a draw: forward, backward, and the steps over depth
    weights: float  # random weights
    parameters: float  # trained numbers
    depth: int  # steps over depth


def step_seconds(net: Net, machine: Machine, batch: int, data: int, draws: int = 1, draw: int = 1) -> dict[str, float]:
    """The parts of a step on data x draw accelerators."""
    devices = data * draw
    examples = (batch / data) * (draws / draw) * net.flops / machine.flops
    # Every device draws the path of its draws, reads and writes it, and its gradient: 6 passes of 4 bytes.
    paths = (draws / draw) * 6 * 4 * net.weights * net.depth / machine.memory
    optimiser = 10 * 4 * net.parameters / machine.memory  # reads and writes parameters, moments, average, gradient
    sums = 2 * (devices - 1) / devices * 4 * net.parameters / machine.link + (machine.latency if devices > 1 else 0.0)
    found = {"examples": examples, "paths": paths, "optimiser": optimiser, "sum": sums}
    return {**found, "step": sum(found.values())}


H200 = Machine("H200, within one host", 300e12, 4.3e12, 400e9, 30e-6, 3.5)
H200_HOSTS = H200._replace(name="H200, between hosts", link=45e9, latency=100e-6)
CIFAR = Net("ours on CIFAR-10 (128, 256, 512 channels)", 3 * 24 * 2 * 9 * 128**2 * 32**2, 14.7e6, 88e6, 2)
IMAGENET = Net("the same at 224 pixels (four scales from 56 pixels)", 3 * 32 * 2 * 9 * 128**2 * 56**2, 50e6, 300e6, 2)
SMALL_DRIFT = IMAGENET._replace(name="the same with a drift of one number a weight", parameters=100e6)


def predictions() -> list[dict[str, Any]]:
    """Steps and epochs of larger machines."""
    rows = []
    for net, examples, batch, devices in (
        (CIFAR, 50_000, 256, 1), (CIFAR, 50_000, 256, 8), (CIFAR, 50_000, 2048, 8), (IMAGENET, 1_281_167, 256, 1),
        (IMAGENET, 1_281_167, 1024, 8), (IMAGENET, 1_281_167, 8192, 256), (SMALL_DRIFT, 1_281_167, 8192, 256),
        (SMALL_DRIFT, 1_281_167, 32768, 256),
    ):  # fmt: skip
        machine = H200 if devices <= 8 else H200_HOSTS
        parts = step_seconds(net, machine, batch, devices)
        alone = step_seconds(net, machine, batch, 1)["step"]
        epoch = parts["step"] * (examples // batch)
        rows.append(
            {"net": net.name, "machine": machine.name, "devices": devices, "batch": batch,
             **{f"{name}_ms": round(1e3 * value, 2) for name, value in parts.items()},
             "efficiency": round(alone / parts["step"] / devices, 3), "epoch_seconds": round(epoch, 2),
             "dollars_for_90_epochs": round(90 * epoch * devices * machine.dollars / 3600, 2)}
        )  # fmt: skip
    return rows


def counted(devices: int, batch: int) -> dict[str, float]:
    """What the program of a device says, and the seconds of a step, in a process with so many simulated devices."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    command = [sys.executable, __file__, "--devices", str(devices), "--batch", str(batch)]
    done = subprocess.run(
        command, env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}, stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def count_here(devices: int, batch: int) -> dict[str, float]:
    import equinox as eqx
    import jax
    import numpy as np

    from sdebnn import Batches, Categorical, FixedGrid, Objective, fit, make_mesh, our_net
    from sdebnn.train import loop

    random, key = np.random.default_rng(0), jax.random.key(0)
    x, y = random.integers(0, 256, (batch, 16, 16, 3)).astype(np.uint8), random.integers(0, 10, batch)
    net = our_net(
        (16, 16, 3), 10, channels=(32, 64), mean=(0.5,) * 3, std=(0.2,) * 3, blocks=1, compute="float32", key=key,
        solver=FixedGrid(2, unroll=2, gradient="backprop"),
    )  # fmt: skip
    seen, real = {}, loop.program()

    def spy(call: Any, state: Any) -> Any:
        if not seen:
            program = real.program.lower(("cpu", call), state).compile().compiled
            sizes = re.findall(r"= f32\[(\d+)\]\S* all-reduce\(", program.as_text())
            seen.update(
                flops=program.cost_analysis()["flops"], sums=len(sizes), sum_bytes=4 * sum(map(int, sizes)),
                temporary_mib=program.memory_analysis().temp_size_in_bytes / 2**20,
            )  # fmt: skip
        began = time.perf_counter()
        found = jax.block_until_ready(real(call, state))
        taken.append((time.perf_counter() - began, int(call.stop) - before[0]))
        before[0] = int(call.stop)
        return found

    taken, before = [], [0]
    loop.program = lambda: spy
    fit(net, Categorical(), x, y, key=key, epochs=STEPS_TIMED, progress=False, batches=Batches(batch),
        objective=Objective(draws=1), mesh=make_mesh(devices))  # fmt: skip
    paces = [seconds / steps for seconds, steps in taken[2:] if steps > 0]
    trained = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(net, eqx.is_inexact_array)))
    return {**seen, "seconds": min(paces), "parameters": trained}


def checked() -> list[dict[str, float]]:
    """Arithmetic of a device, as a constant and a part for each example, from one device; then of 2, 4 and 8."""
    half, whole = counted(1, BATCH // 2), counted(1, BATCH)
    each = (whole["flops"] - half["flops"]) / (BATCH // 2)
    constant = whole["flops"] - BATCH * each
    rows = []
    for devices in DEVICES:
        found = whole if devices == 1 else counted(devices, BATCH)
        together = (devices * constant + BATCH * each) / (constant + BATCH * each)
        rows.append(
            {"devices": devices, "mflop": found["flops"] / 1e6,
             "mflop_predicted": (constant + BATCH / devices * each) / 1e6, "sums": found["sums"],
             "sum_kb": found["sum_bytes"] / 1e3,
             "sum_kb_predicted": 0 if devices == 1 else 4 * found["parameters"] / 1e3,
             "temporary_mib": found["temporary_mib"], "ms_on_one_processor": 1e3 * found["seconds"],
             "ms_predicted": 1e3 * whole["seconds"] * together}
        )  # fmt: skip
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    cells = [list(rows[0]), *([f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    return "\n".join("  ".join(f"{c:>{w}}" for c, w in zip(line, widths, strict=True)) for line in cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--devices", type=int)
    parser.add_argument("--batch", type=int, default=BATCH)
    given = parser.parse_args()
    if given.devices:
        print(json.dumps(count_here(given.devices, given.batch)))
        return
    simulated, predicted = checked(), predictions()
    print(table(simulated), table(predicted), sep="\n\n")
    if given.json:
        import jax

        facts = {
            "command": "python benchmarks/scaling.py", "date": time.strftime("%Y-%m-%d"), "jax": jax.__version__,
            "python": platform.python_version(), "cores": os.cpu_count(), "load": os.getloadavg()[0],
        }  # fmt: skip
        given.json.write_text(json.dumps({**facts, "simulated": simulated, "predicted": predicted}, indent=1) + "\n")


if __name__ == "__main__":
    main()
