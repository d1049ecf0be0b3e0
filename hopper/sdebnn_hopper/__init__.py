"""All Euler steps of the paper's convolutional field as one kernel, for NVIDIA Hopper GPUs (H100, H200):

    h_{i+1} = h_i + dt f_h(t_i, h_i),   t_i = i dt,   dt = 1 / steps

f_h is four convolutions (same, down, up, same) of (h, t) with tanh between them, in bfloat16; the state is float32.
Activations never leave the chip: the gradient recomputes them. There is a reverse-mode gradient, but no second
derivative.

There are two kernels with the same interface. The one of 2 x 2 ``patches`` is for small images and narrow fields,
whose matrices all stay on the chip. The one of single ``pixels`` is for wide fields, whose matrices are streamed.

``HopperKernels`` is what sdebnn finds through the entry point ``sdebnn.kernels``. Mosaic, on which the kernels are
built, is imported when a kernel is first used.
"""

from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from types import ModuleType
from typing import Any, final

import jax
import jax.numpy as jnp
from jax import lax

from sdebnn.convolutions.kernels import AbstractKernels, Device, EulerSteps, Images, Layers, Plain
from sdebnn_hopper import patches, pixels

__version__ = "0.1.0"

JAX = "0.11.2"  # Mosaic's Python interface changes with every version of JAX; pyproject.toml pins the same one
CAPABILITY = "9.0"  # Hopper's compute capability
MAX_STEPS = 1000  # so that 32 bits count the bytes of the matrices of all steps


@final
class HopperKernels(AbstractKernels):
    """The kernels as sdebnn finds them."""

    def unavailable(self, device: Device) -> str | None:
        """Why the kernels do not run on this device, or None."""
        if jax.__version__ != JAX:
            return f"it needs jax {JAX}; this is {jax.__version__}"
        if capability(device) != CAPABILITY:
            return f"it needs a GPU of compute capability {CAPABILITY}, such as an H100; this is {device.device_kind}"
        if jax.config.read("jax_enable_x64"):
            return "jax_enable_x64 is on; it makes loops count in 64 bits, and the kernels' addresses have 32"
        return None

    def refusal(self, steps: EulerSteps) -> str | None:
        """Why no kernel computes these steps, or None."""
        layers, h0, activation, compute = steps
        kernel, number = kernel_of(h0), layers[0][0].shape[0]
        if kernel is None:
            return f"no kernel is for images of shape {h0.shape[1:]}"
        width = kernel.width(*h0.shape[1:])
        sizes = (h0.shape[-1], width, width, width, h0.shape[-1])
        if [each.shape[1:] for each, _, _ in layers] != [(3, 3, *pair) for pair in pairwise(sizes)]:
            return f"for images of shape {h0.shape[1:]} the layers must have {width} channels between them"
        if number > MAX_STEPS:
            return f"{number} steps are more than {MAX_STEPS}"
        if compute != "bfloat16":
            return f"compute={compute!r} is not 'bfloat16'"
        if activation not in (jnp.tanh, jax.nn.tanh, lax.tanh):
            return "the activation is not tanh"
        if any(leaf.dtype != jnp.float32 for leaf in jax.tree.leaves((layers, h0))):
            return "the state and the weights are not all float32"
        return None

    def euler(self, steps: EulerSteps, plain: Plain) -> Images:
        """The state after all steps, for steps that ``refusal`` accepts."""
        return euler(steps.layers, steps.h0, plain)


def capability(device: Device) -> str:
    """The compute capability of a GPU; the empty string for other devices."""
    return str(getattr(device, "compute_capability", "")) if device.platform == "gpu" else ""


def kernel_of(h0: Any) -> ModuleType | None:
    """The kernel for images of this shape, as a module: ``patches`` or ``pixels``."""
    if h0.ndim != 4:
        return None
    return next((kernel for kernel in (patches, pixels) if kernel.width(*h0.shape[1:])), None)


def _by_platform(kernel: Callable[..., Any], xla: Callable[..., Any], *given: Any) -> Any:
    """``kernel(*given)`` in programs that are compiled for a CUDA GPU, ``xla(*given)`` in all others."""
    return lax.platform_dependent(*given, cuda=kernel, default=xla) if jax.__version__ == JAX else xla(*given)


@cache
def _kernels_of(kernel: ModuleType) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The forward kernel that keeps all states, and the backward kernel.

    Each is traced once for a shape; otherwise equal blocks of a net would be compiled one by one.
    """
    return jax.jit(partial(kernel.forward_by_kernel, keep=True)), jax.jit(kernel.backward_by_kernel)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def euler(layers: Layers, h0: Images, plain: Plain) -> Images:
    """The state after all steps; see ``AbstractKernels.euler`` for the arguments."""
    kernel: Any = kernel_of(h0)

    def by_xla(layers: Layers, _: Any, h0: Images) -> Images:
        return plain(layers, h0)

    def by_kernel(_: Layers, matrices: Any, h0: Images) -> Images:
        return kernel.forward_by_kernel(matrices, h0, keep=False)[0]

    return _by_platform(by_kernel, by_xla, layers, kernel.matrices_of(layers, h0.shape[1]), h0)


def _euler_forward(layers: Layers, h0: Images, plain: Plain) -> tuple[Images, Any]:
    kernel: Any = kernel_of(h0)

    def by_xla(layers: Layers, matrices: Any, h0: Images) -> tuple[Images, Any]:
        return plain(layers, h0), kernel.empty_states(matrices, h0)

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
