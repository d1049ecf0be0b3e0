"""What the tests of the kernels share: Euler steps of the paper's field by ``TimeConv``, and measures of distance."""

import json
import math
import os
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sdebnn
import sdebnn_hopper
from sdebnn.convolutions import TimeConv
from sdebnn.convolutions.kernels import Layers

SOURCES = [str(Path(package.__file__).parents[1]) for package in (sdebnn, sdebnn_hopper)]
NAMES = [f"layer {i + 1} {name}" for i in range(4) for name in ("kernel", "time", "bias")]

needs_jax = pytest.mark.skipif(
    jax.__version__ != sdebnn_hopper.JAX,
    reason=f"the kernels are built on jax {sdebnn_hopper.JAX}; this is {jax.__version__}",
)
needs_hopper = pytest.mark.skipif(
    sdebnn_hopper.HopperKernels().unavailable(jax.devices()[0]) is not None,
    reason=f"needs jax {sdebnn_hopper.JAX} and a Hopper GPU",
)


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(math.prod(shape)).normal(size=shape), jnp.float32)


def drawn(channels: int, width: int, steps: int) -> Layers:
    """Random layers for every step, scaled so that a layer's outputs are about as large as its inputs."""
    return tuple(
        (normal(steps, 3, 3, m, n) / math.sqrt(9 * m), normal(steps, 3, 3, n) / 3, normal(steps, n) / 10)
        for m, n in pairwise((channels, width, width, width, channels))
    )


@cache
def field(channels: int, width: int, compute: str) -> TimeConv:
    return eqx.filter_eval_shape(TimeConv, channels, (width,) * 3, compute=compute, key=jax.random.key(0))


def plain(layers, h0, compute="float32"):
    """All Euler steps, by a loop."""
    steps, _, _, channels, width = layers[0][0].shape
    shapes, rest = eqx.partition(field(channels, width, compute), lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))

    def step(h, now):
        t, arrays = now
        of_step = eqx.combine(jax.tree.unflatten(jax.tree.structure(shapes), arrays), rest)
        return h + of_step(t, h) / steps, None

    return lax.scan(step, h0, (jnp.arange(steps) / steps, jax.tree.leaves(layers)))[0]


def half(layers, h0):
    return plain(layers, h0, "bfloat16")


def value_and_gradients(f):
    """A compiled function of (layers, h0, seed): f(layers, h0), and the seed pulled back to h0 and to the layers."""

    @jax.jit
    def both(layers, h0, seed):
        h1, pull_back = jax.vjp(f, layers, h0)
        gradients, g0 = pull_back(seed)
        return h1, g0, gradients

    return both


def far(a, b) -> float:
    a, b = np.float64(a), np.float64(b)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def distances(ours, exact, h0, seed) -> dict[str, float]:
    """Relative distances of h1 - h0, of g0 - g1 and of the layers' gradients."""
    (h1, g0, gradients), (h1_, g0_, gradients_) = ours, exact
    leaves = zip(jax.tree.leaves(gradients), jax.tree.leaves(gradients_), strict=True)
    return {
        "h1 - h0": far(h1 - h0, h1_ - h0),
        "g0 - g1": far(g0 - seed, g0_ - seed),
        **{name: far(*pair) for name, pair in zip(NAMES, leaves, strict=True)},
    }


def assert_as_close_as_bfloat16(errors: dict[str, float], of_plain: dict[str, float]) -> None:
    """No distance exceeds 2 %, as that of a wrong block or border would, nor by much that of XLA in bfloat16.

    bfloat16 rounds by at most 2^-9, and a gradient passes some dozen roundings. The margin of 0.003 is for the small
    gradients of the last layer, which XLA sums in float32 and for which the kernel rounds d_4.
    """
    for name, error in errors.items():
        assert error < 0.02, name
        assert error < 1.5 * of_plain[name] + 0.003, name


def environment(**more: str) -> dict[str, str]:
    """The environment of a process that imports both packages."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(SOURCES), **more}


def interpreted_elsewhere(script: str, *arguments: object) -> tuple[dict[str, float], dict[str, float]]:
    """What a test file, run as a script, prints of ``interpreted``.

    It runs in another process because the four threads of Pallas' interpreter wait for each other, so that XLA's pool,
    whose size is set at the start, must hold them all.
    """
    said = subprocess.run(
        [sys.executable, script, *map(str, arguments)],
        env=environment(NPROC="16", JAX_PLATFORMS="cpu"),
        stdout=subprocess.PIPE,
        check=True,
        timeout=600,
    )
    errors, of_plain = json.loads(said.stdout.splitlines()[-1])
    return errors, of_plain


def interpreted(kernel, layers, h0) -> tuple[dict[str, float], dict[str, float]]:
    """Distances from float32: of a kernel in Pallas' interpreter, and of XLA in bfloat16."""
    seed, side = jnp.cos(h0), h0.shape[1]

    @jax.jit
    def ours(layers, h0, seed):
        matrices = kernel.matrices_of(layers, side)
        h1, states = kernel.forward_by_kernel(matrices, h0, keep=True, interpret=True)
        g0, gradients = kernel.backward_by_kernel(matrices, states, seed, interpret=True)
        return h1, g0, jax.linear_transpose(lambda layers: kernel.packed(layers, side), layers)(gradients)[0]

    exact = value_and_gradients(plain)(layers, h0, seed)
    by_xla = value_and_gradients(half)(layers, h0, seed)
    return distances(ours(layers, h0, seed), exact, h0, seed), distances(by_xla, exact, h0, seed)


def on_the_gpu(layers, h0) -> tuple[dict[str, float], dict[str, float]]:
    """Distances from float32: of the kernel on the GPU, and of XLA in bfloat16."""
    seed = jnp.cos(h0)
    ours = value_and_gradients(lambda layers, h0: sdebnn_hopper.euler(layers, h0, half))(layers, h0, seed)
    by_xla = value_and_gradients(half)(layers, h0, seed)
    with jax.default_matmul_precision("highest"):
        exact = value_and_gradients(plain)(layers, h0, seed)
    return distances(ours, exact, h0, seed), distances(by_xla, exact, h0, seed)
