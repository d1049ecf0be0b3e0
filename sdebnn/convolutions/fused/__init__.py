"""All Euler steps of the paper's convolutional field as one kernel, on the GPUs and for the shapes it was written for:

    h_{i+1} = h_i + dt f_h(t_i, h_i),   t_i = i dt,   dt = 1 / steps

with f_h four convolutions (same, down, up, same) of (h, t) and tanh between, in bfloat16; the state is float32. What
lies between layers never leaves the chip, and the gradient computes it again. Wherever no kernel ``fits``, the same
function runs as XLA makes it. Nothing of Mosaic is imported before a kernel is used. There is a gradient by reverse
mode, and no second one.

There are two kernels, with the same door: of 2 x 2 ``patches``, for small images and narrow fields, whose matrices all
stay on the chip; and of single ``pixels``, for wide fields, whose matrices come piece by piece.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import pairwise
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from sdebnn.convolutions.fused import patches, pixels
from sdebnn.convolutions.fused.patches.packing import Layer
from sdebnn.convolutions.squeezed import MOVES

# Mosaic's Python interface changes from version to version of JAX: on others than these the kernels were not tried.
TRIED = ((0, 11),)
MOST_STEPS = 1000  # more than anyone takes, and few enough that 32 bits count the bytes of all their matrices

Layers = tuple[Layer, Layer, Layer, Layer]
Images = Float[Array, "example height width channel"]
Plain = Callable[[Layers, Images], Images]


def _tried() -> bool:
    return jax.__version_info__[:2] in TRIED


@cache
def _capability() -> str:
    """The compute capability of the GPU that programs run on, or nothing."""
    device = jax.devices()[0]
    return str(getattr(device, "compute_capability", "")) if jax.default_backend() == "gpu" else ""


def kernel_of(h0: Any) -> ModuleType | None:
    """The kernel whose images have this shape."""
    if h0.ndim != 4:
        return None
    return next((kernel for kernel in (patches, pixels) if kernel.width(*h0.shape[1:])), None)


def fits(
    layers: Sequence[tuple[Any, Any, Any]],
    h0: Any,
    *,
    moves: Sequence[str],
    activation: Callable[[Array], Array],
    compute: str,
) -> bool:
    """Whether ``euler`` of these layers (arrays, or their shapes and types) has a kernel here: see ``euler``."""
    kernel = kernel_of(h0)
    if kernel is None:
        return False
    channels, width = h0.shape[-1], kernel.width(*h0.shape[1:])
    sizes = (channels, width, width, width, channels)
    return (
        _tried()
        and _capability() == "9.0"
        and not jax.config.read("jax_enable_x64")  # loops then count in 64 bits, and the kernels' addresses in 32
        and layers[0][0].shape[0] <= MOST_STEPS
        and compute == "bfloat16"
        and activation in (jnp.tanh, jax.nn.tanh, lax.tanh)
        and tuple(moves) == MOVES
        and all(time is not None for _, time, _ in layers)
        and [kernel.shape[1:] for kernel, _, _ in layers] == [(3, 3, *pair) for pair in pairwise(sizes)]
        and all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves((layers, h0)))
    )


def _by_platform(kernel: Callable[..., Any], xla: Callable[..., Any], *given: Any) -> Any:
    """What the kernel makes of arrays where they are on a GPU, and XLA elsewhere."""
    return lax.platform_dependent(*given, cuda=kernel, default=xla) if _tried() else xla(*given)


@cache
def _kernels_of(door: ModuleType) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Forward with all states, and back: each traced once for a shape, or blocks alike would be compiled one by one."""
    return jax.jit(partial(door.forward_by_kernel, keep=True)), jax.jit(door.backward_by_kernel)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def euler(layers: Layers, h0: Images, plain: Plain) -> Images:
    """The state after as many steps as the layers' arrays are long, for arguments that ``fits`` accepts.

    A layer is its kernel (step, 3, 3, in, out), time (step, 3, 3, out) and bias (step, out). ``plain(layers, h0)`` is
    the same function by XLA, for programs that are compiled for another platform; it closes over no traced values.
    """
    kernel: Any = kernel_of(h0)

    def by_xla(layers: Layers, _: Any, h0: Images) -> Images:
        return plain(layers, h0)

    def by_kernel(_: Layers, matrices: Any, h0: Images) -> Images:
        return kernel.forward_by_kernel(matrices, h0, keep=False)[0]

    return _by_platform(by_kernel, by_xla, layers, kernel.matrices_of(layers, h0.shape[1]), h0)


def _euler_forward(layers: Layers, h0: Images, plain: Plain) -> tuple[Images, Any]:
    kernel: Any = kernel_of(h0)

    def by_xla(layers: Layers, matrices: Any, h0: Images) -> tuple[Images, Any]:
        return plain(layers, h0), kernel.no_states(matrices, h0)

    def by_kernel(_: Layers, matrices: Any, h0: Images) -> tuple[Images, Any]:
        return _kernels_of(kernel)[0](matrices, h0)

    matrices = kernel.matrices_of(layers, h0.shape[1])
    h1, states = _by_platform(by_kernel, by_xla, layers, matrices, h0)
    return h1, (layers, matrices, h0, states)


def _euler_backward(plain: Plain, kept: Any, g: Images) -> tuple[Layers, Images]:
    kernel: Any = kernel_of(g)

    def by_xla(layers: Layers, _: Any, h0: Images, __: Any, g: Images) -> tuple[Layers, Images]:
        return jax.vjp(plain, layers, h0)[1](g)

    def by_kernel(layers: Layers, matrices: Any, _: Images, states: Any, g: Images) -> tuple[Layers, Images]:
        g0, gradients = _kernels_of(kernel)[1](matrices, states, g)
        return (*jax.linear_transpose(partial(kernel.packed, side=g.shape[1]), layers)(gradients), g0)

    return _by_platform(by_kernel, by_xla, *kept, g)


euler.defvjp(_euler_forward, _euler_backward)
