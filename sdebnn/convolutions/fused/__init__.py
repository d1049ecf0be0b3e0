"""All Euler steps of the paper's convolutional field as one kernel, on the GPUs and for the shapes it was written for:

    h_{i+1} = h_i + dt f_h(t_i, h_i),   t_i = i dt,   dt = 1 / steps

with f_h four convolutions (same, down, up, same) of (h, t) and tanh between, in bfloat16; the state is float32. What
lies between layers never leaves the chip, and the gradient computes it again. Wherever the kernel does not ``fit``, the
same function runs as XLA makes it. Nothing of Mosaic is imported before the kernel is used. It has a gradient, and no
second one.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, Float

from sdebnn.convolutions.fused.packing import (
    CHANNELS,
    LINES,
    POSITIONS,
    STATE,
    WIDTH,
    Layer,
    Matrices,
    Matrix,
    States,
    images_of,
    marked,
    packed,
    rows_of,
)
from sdebnn.convolutions.squeezed import MOVES

# Mosaic's Python interface changes from version to version of JAX: on others than these the kernel was not tried.
TRIED = ((0, 11), (0, 12))

Layers = tuple[Layer, Layer, Layer, Layer]
Images = Float[Array, "example height width 3"]
Plain = Callable[[Layers, Images], Images]


def _tried() -> bool:
    return jax.__version_info__[:2] in TRIED


@cache
def _capability() -> str:
    """The compute capability of the GPU that programs run on, or nothing."""
    device = jax.devices()[0]
    return str(getattr(device, "compute_capability", "")) if jax.default_backend() == "gpu" else ""


def fits(
    layers: Sequence[tuple[Any, Any, Any]],
    h0: Any,
    *,
    moves: Sequence[str],
    activation: Callable[[Array], Array],
    compute: str,
) -> bool:
    """Whether ``euler`` of these layers (arrays, or their shapes and types) has a kernel here: see ``euler``."""
    sizes = (CHANNELS, WIDTH, WIDTH, WIDTH, CHANNELS)
    return (
        _tried()
        and _capability() == "9.0"
        and compute == "bfloat16"
        and activation in (jnp.tanh, jax.nn.tanh, lax.tanh)
        and tuple(moves) == MOVES
        and all(time is not None for _, time, _ in layers)
        and [kernel.shape[1:] for kernel, _, _ in layers] == [(3, 3, *pair) for pair in pairwise(sizes)]
        and all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves((layers, h0)))
        and h0.shape[1:] in [(side, side, CHANNELS) for side in range(4, 2 * LINES + 1, 2)]
    )


def _by_platform(kernel: Callable[..., Any], xla: Callable[..., Any], *given: Any) -> Any:
    """What the kernel makes of arrays where they are on a GPU, and XLA elsewhere."""
    return lax.platform_dependent(*given, cuda=kernel, default=xla) if _tried() else xla(*given)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def euler(layers: Layers, h0: Images, plain: Plain) -> Images:
    """The state after as many steps as the layers' arrays are long, for arguments that ``fits`` accepts.

    A layer is its kernel (step, 3, 3, in, out), time (step, 3, 3, out) and bias (step, out). ``plain(layers, h0)`` is
    the same function by XLA, for programs that are compiled for another platform; it closes over no traced values.
    """

    def by_xla(layers: Layers, _: Matrices, h0: Images) -> Images:
        return plain(layers, h0)

    def by_kernel(_: Layers, matrices: Matrices, h0: Images) -> Images:
        return forward_by_kernel(matrices, h0, keep=False)[0]

    return _by_platform(by_kernel, by_xla, layers, matrices_of(layers), h0)


def _euler_forward(layers: Layers, h0: Images, plain: Plain) -> tuple[Images, Any]:
    def by_xla(layers: Layers, matrices: Matrices, h0: Images) -> tuple[Images, States]:
        nothing = jnp.zeros((matrices[0].shape[0], h0.shape[0], POSITIONS, STATE), jnp.bfloat16)
        return plain(layers, h0), nothing

    def by_kernel(_: Layers, matrices: Matrices, h0: Images) -> tuple[Images, States]:
        return forward_by_kernel(matrices, h0, keep=True)

    matrices = matrices_of(layers)
    h1, states = _by_platform(by_kernel, by_xla, layers, matrices, h0)
    return h1, (layers, matrices, h0, states)


def _euler_backward(plain: Plain, kept: Any, g: Images) -> tuple[Layers, Images]:
    def by_xla(layers: Layers, _: Matrices, h0: Images, __: States, g: Images) -> tuple[Layers, Images]:
        return jax.vjp(plain, layers, h0)[1](g)

    def by_kernel(layers: Layers, matrices: Matrices, _: Images, states: States, g: Images) -> tuple[Layers, Images]:
        g0, gradients = backward_by_kernel(matrices, states, g)
        return (*jax.linear_transpose(packed, layers)(gradients), g0)

    return _by_platform(by_kernel, by_xla, *kept, g)


euler.defvjp(_euler_forward, _euler_backward)


def matrices_of(layers: Layers) -> Matrices:
    """The layers of all steps as the kernel takes them."""
    return tuple(matrix.astype(jnp.bfloat16) for matrix in packed(layers))


def forward_by_kernel(matrices: Matrices, h0: Images, *, keep: bool, interpret: bool = False) -> tuple[Images, Any]:
    """The state after all steps, and if they are to be kept the states before each, as rows."""
    from sdebnn.convolutions.fused.forward import Plan, forward

    side = h0.shape[1]
    plan = Plan(side, 1 / matrices[0].shape[0], interpret)
    # Of several draws of the weights, one after the other.
    h1, states = sequential_vmap(partial(forward, plan, keep))(marked(rows_of(h0), side), matrices)
    return images_of(h1, side), states


def backward_by_kernel(
    matrices: Matrices, states: States, g: Images, *, interpret: bool = False
) -> tuple[Images, tuple[Matrix, ...]]:
    """The cotangents of h_0 and of the matrices, from that of h_1."""
    from sdebnn.convolutions.fused.backward import Plan, backward

    side = g.shape[1]
    plan = Plan(side, 1 / matrices[0].shape[0], interpret)
    g0, gradients = sequential_vmap(partial(backward, plan))(rows_of(g), states, matrices)
    return images_of(g0, side), gradients
