"""What the tests of the fused kernels share: steps of the paper's field, by the layers that everyone else uses."""

import math
from functools import cache
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sdebnn.convolutions import TimeConv, fused

NAMES = [f"layer {i + 1} {name}" for i in range(4) for name in ("kernel", "time", "bias")]
ON = {"moves": fused.MOVES, "activation": jnp.tanh, "compute": "bfloat16"}


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(math.prod(shape)).normal(size=shape), jnp.float32)


def drawn(channels: int, width: int, steps: int) -> fused.Layers:
    """Layers of every step, each of the size that keeps its outcome's."""
    return tuple(
        (normal(steps, 3, 3, m, n) / math.sqrt(9 * m), normal(steps, 3, 3, n) / 3, normal(steps, n) / 10)
        for m, n in pairwise((channels, width, width, width, channels))
    )


@cache
def field(channels: int, width: int, compute: str) -> TimeConv:
    return eqx.filter_eval_shape(TimeConv, channels, (width,) * 3, compute=compute, key=jax.random.key(0))


def plain(layers, h0, compute="float32"):
    """All steps, one after the other."""
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
    """f(layers, h0), and a function of a seed: what pulls it back."""

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
    """Relative, of what the steps add: to the state, to its cotangent, and to the layers' gradients."""
    (h1, g0, gradients), (h1_, g0_, gradients_) = ours, exact
    leaves = zip(jax.tree.leaves(gradients), jax.tree.leaves(gradients_), strict=True)
    return {
        "h1 - h0": far(h1 - h0, h1_ - h0),
        "g0 - g1": far(g0 - seed, g0_ - seed),
        **{name: far(*pair) for name, pair in zip(NAMES, leaves, strict=True)},
    }


def close_as_half_precision_goes(errors: dict[str, float], of_plain: dict[str, float]) -> None:
    """Eight bits round by 2^-9 at most; a gradient passes some dozen such roundings, which add up as noise does.

    So nothing is off by more than 2%, as a wrong block or border would be, and nothing by much more than XLA's own
    bfloat16 is; which adds up the last layer's small gradients in float32, where the kernel rounds d_4.
    """
    for name, error in errors.items():
        assert error < 0.02, name
        assert error < 1.5 * of_plain[name] + 0.003, name


def interpreted(kernel, layers, h0) -> tuple[dict[str, float], dict[str, float]]:
    """Of a kernel by Pallas' interpreter, and of XLA's bfloat16: distances from float32."""
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
    """Of the kernel that fits, and of XLA's bfloat16: distances from float32."""
    seed = jnp.cos(h0)
    ours = value_and_gradients(lambda layers, h0: fused.euler(layers, h0, half))(layers, h0, seed)
    by_xla = value_and_gradients(half)(layers, h0, seed)
    with jax.default_matmul_precision("highest"):
        exact = value_and_gradients(plain)(layers, h0, seed)
    return distances(ours, exact, h0, seed), distances(by_xla, exact, h0, seed)
