"""The kernels beside the plain path, both in bfloat16, on a Hopper GPU: a table, and JSON.

Both take twenty Euler steps of the paper's fields, for MNIST and for the three scales of CIFAR-10, on 128 images.
Distances are relative to the plain path in float32: of h1 - h0, of g0 - g1 and of the layers' gradients. A time is the
best of four runs of a compiled loop of thirty calls, each of which depends on the one before.

    python benchmarks/kernels.py [--json FILE]
"""

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from rich.console import Console
from rich.table import Table

import sdebnn
import sdebnn_hopper
from sdebnn.convolutions import squeezed
from sdebnn.convolutions.kernels import EulerSteps

STEPS, BATCH = 20, 128
SHAPES = ((28, 3, 32), (32, 5, 64), (16, 20, 64), (8, 80, 64))  # side, channels of the state, and between the layers
CALLS, TURNS = 30, 4
NAMES = ["h1 - h0", "g0 - g1", *[f"layer {i + 1} {name}" for i in range(4) for name in ("kernel", "time", "bias")]]
Steps = Callable[[Any, jax.Array], jax.Array]


def drawn(channels: int, width: int) -> tuple[tuple[jax.Array, ...], ...]:
    """Random layers for every step, scaled so that a layer's outputs are about as large as its inputs."""
    keys = iter(jax.random.split(jax.random.key(0), 12))

    def normal(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), (STEPS, *shape))

    sizes = pairwise((channels, width, width, width, channels))
    return tuple((normal(3, 3, m, n) / math.sqrt(9 * m), normal(3, 3, n) / 3, normal(n) / 10) for m, n in sizes)


def by_xla(compute: str, unroll: int) -> Steps:
    return partial(squeezed.euler_over_patches, activation=jnp.tanh, compute=compute, keep=True, unroll=unroll)


def ways(unroll: int) -> dict[str, Steps]:
    plain = by_xla("bfloat16", unroll)
    return {"plain": plain, "kernel": lambda layers, h0: sdebnn_hopper.euler(layers, h0, plain)}


def results(f: Steps, layers: Any, h0: jax.Array, g: jax.Array) -> list[np.ndarray]:
    """h1 - h0, g0 - g1 and the layers' gradients."""

    @jax.jit
    def run(layers: Any, h0: jax.Array, g: jax.Array) -> list[jax.Array]:
        h1, pull_back = jax.vjp(f, layers, h0)
        gradients, g0 = pull_back(g)
        return [h1 - h0, g0 - g, *jax.tree.leaves(gradients)]

    return [np.float64(each) for each in run(layers, h0, g)]


def far(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def timed(body: Callable[[Any], Any], start: Any) -> dict[str, float]:
    """Milliseconds a call, seconds to compile, and MiB of temporaries."""
    clock = time.perf_counter()
    program = jax.jit(lambda start: lax.fori_loop(0, CALLS, lambda _, now: body(now), start)).lower(start).compile()
    row = {"compile_s": time.perf_counter() - clock}
    row["temporary_mib"] = program.memory_analysis().temp_size_in_bytes / 2**20
    jax.block_until_ready(program(start))
    times = []
    for _ in range(TURNS):
        clock = time.perf_counter()
        jax.block_until_ready(program(start))
        times.append(time.perf_counter() - clock)
    return {"ms": 1e3 * min(times) / CALLS, **row}


def measured(f: Steps, layers: Any, h0: jax.Array, g: jax.Array) -> dict[str, dict[str, float]]:
    def forward(now: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
        layers, h = now
        h = f(layers, h)
        return jax.tree.map(lambda leaf: leaf + 1e-9 * h[0, 0, 0, 0], layers), h

    def gradient(now: Any) -> Any:
        _, pull_back = jax.vjp(f, *now)
        return jax.tree.map(lambda x, d: x - 1e-7 * d, now, pull_back(g))

    return {"forward": timed(forward, (layers, h0)), "gradient": timed(gradient, (layers, h0))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    path = parser.parse_args().json
    console = Console(width=100 if not sys.stdout.isatty() else None)
    found = {f"{shape[0]} pixels": compared(console, *shape) for shape in SHAPES}
    if path:
        path.write_text(json.dumps({**about(), **found}, indent=2) + "\n")


def about() -> dict[str, Any]:
    """When, where and with which versions the figures were measured."""
    return {
        "command": "python benchmarks/kernels.py",
        "date": time.strftime("%Y-%m-%d"),
        "device": jax.devices()[0].device_kind,
        "versions": {
            "sdebnn": sdebnn.__version__,
            "sdebnn-hopper": sdebnn_hopper.__version__,
            "jax": jax.__version__,
            "python": platform.python_version(),
        },
    }


def compared(console: Console, side: int, channels: int, width: int) -> dict[str, Any]:
    """Distances and times for images of one shape."""
    layers = drawn(channels, width)
    h0, g = (jax.random.normal(key, (BATCH, side, side, channels)) for key in jax.random.split(jax.random.key(1)))
    provider, steps = sdebnn_hopper.HopperKernels(), EulerSteps(layers, h0, jnp.tanh, "bfloat16")
    why_not = provider.unavailable(steps.device) or provider.refusal(steps)
    if why_not:
        raise SystemExit(f"sdebnn-hopper does not run here: {why_not}.")
    with jax.default_matmul_precision("highest"):
        exact = results(by_xla("float32", 1), layers, h0, g)
    found = {way: results(f, layers, h0, g) for way, f in ways(1).items()}
    distances = {way: dict(zip(NAMES, map(far, each, exact), strict=True)) for way, each in found.items()}
    shown(console, f"{side} pixels: distance from float32", distances, "{:.5f}")
    times = {way: measured(f, layers, h0, g) for way, f in ways(STEPS).items()}
    for what in ("forward", "gradient"):
        shown(console, f"{what}, {BATCH} images", {way: row[what] for way, row in times.items()}, "{:.3f}")
    return {"distances": distances, "times": times}


def shown(console: Console, title: str, columns: dict[str, dict[str, float]], form: str) -> None:
    table = Table(title, *columns)
    for name in next(iter(columns.values())):
        table.add_row(name, *[form.format(column[name]) for column in columns.values()])
    console.print(table)


if __name__ == "__main__":
    main()
