"""Kernels of other distributions that compute all Euler steps of the paper's convolutional field at once:

    h_{i+1} = h_i + dt f_h(t_i, h_i),   t_i = i dt,   dt = 1 / steps

``squeezed.euler_over_patches`` is the plain path, and computes this on every device. A distribution that is faster on
some devices announces a subclass of ``AbstractKernels`` by an entry point of the group ``sdebnn.kernels``:

    [project.entry-points."sdebnn.kernels"]
    mine = "my_package:MyKernels"

Entry points are loaded at the first call that could use them. If a distribution refuses the device, the shape or the
type of the arrays, or cannot be loaded, the plain path runs. This module is the only one that knows of such
distributions.
"""

import abc
import warnings
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple

import jax
from jax.core import Tracer
from jaxtyping import Array

from sdebnn.convolutions.squeezed import Images, LayerArrays
from sdebnn.devices import Device, default_device

GROUP = "sdebnn.kernels"

Layers = tuple[LayerArrays, ...]
Plain = Callable[[Layers, Images], Images]


class EulerSteps(NamedTuple):
    """A task for kernels: compute the batch ``h0`` after all Euler steps of a field.

    The field has four 3×3 convolutions of (h, t): of stride 1, of stride 2, the transpose of one of stride 2, and of
    stride 1, with ``activation`` between them. A layer is its kernel (step, 3, 3, in, out), the weights of time
    (step, 3, 3, out) and its bias (step, out). The sides of the images are even. ``compute`` is the type to which the
    inputs of a layer are rounded, "float32" or "bfloat16".
    """

    layers: Layers
    h0: Images
    activation: Callable[[Array], Array]
    compute: str

    @property
    def device(self) -> Device:
        """The device of ``h0``; the default device if ``h0`` is traced, because a traced array has none."""
        traced = isinstance(self.h0, Tracer) or not isinstance(self.h0, jax.Array)
        return default_device() if traced else next(iter(self.h0.devices()))


class AbstractKernels(abc.ABC):
    """Kernels of a distribution. The class is instantiated once, without arguments. To write your own:

    ```python
    class MyKernels(AbstractKernels):
        def unavailable(self, device):
            return None if device.platform == "gpu" else f"it needs a GPU; this is {device.device_kind}"

        def refusal(self, steps):
            return None if steps.compute == "float32" else f"compute={steps.compute!r} is not supported"

        def euler(self, steps, plain):
            return my_kernel(steps.layers, steps.h0)  # differentiable, and equal to plain(steps.layers, steps.h0)
    ```
    """

    @abc.abstractmethod
    def unavailable(self, device: Device) -> str | None:
        """Why no kernel runs on this device, in a few words; None if there are kernels for it."""

    @abc.abstractmethod
    def refusal(self, steps: EulerSteps) -> str | None:
        """Why no kernel computes these steps, in a few words; None if one does.

        Arrays may be traced, so only shapes and types are known. The device was accepted by ``unavailable``.
        """

    @abc.abstractmethod
    def euler(self, steps: EulerSteps, plain: Plain) -> Images:
        """The state after all steps, for steps that ``refusal`` accepts. It is differentiable in layers and h0.

        ``plain(layers, h0)`` is the same function by the plain path. It is meant for programs that are compiled for
        another platform than that of ``steps.device``, and closes over no traced values.
        """


class Installed(NamedTuple):
    """An installed distribution: its name and version, and its kernels or the error that loading them raised."""

    name: str
    kernels: AbstractKernels | None
    error: str = ""


class Choice(NamedTuple):
    """The kernels that compute some steps, None for the plain path, and the reason."""

    kernels: AbstractKernels | None
    reason: str

    def euler(self, steps: EulerSteps, plain: Plain) -> Images:
        """The state after all steps, by these kernels, or by ``plain(layers, h0)``."""
        return plain(steps.layers, steps.h0) if self.kernels is None else self.kernels.euler(steps, plain)


@cache
def installed() -> tuple[Installed, ...]:
    """The distributions with kernels, in the order of their entry points' names. They are loaded at the first call."""
    return tuple(_loaded(point) for point in sorted(entry_points(group=GROUP), key=lambda point: point.name))


def _loaded(point: EntryPoint) -> Installed:
    name = f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value
    try:
        kernels = point.load()()
        if not isinstance(kernels, AbstractKernels):
            raise TypeError(f"{point.value} is not a subclass of sdebnn.convolutions.kernels.AbstractKernels")
    except Exception as error:  # loading may fail in any way; the plain path always works
        words = f"{type(error).__name__}: {error}"
        warnings.warn(
            f"{name} could not be loaded, so the plain path runs: {words}. Repair or uninstall it.",
            RuntimeWarning,
            stacklevel=2,
        )
        return Installed(name, None, words)
    return Installed(name, kernels)


def choice(steps: EulerSteps) -> Choice:
    """The first installed kernels that compute these steps, or the plain path, and the reason."""
    reasons = []
    for name, kernels, error in installed():
        why_not = error if kernels is None else kernels.unavailable(steps.device) or kernels.refusal(steps)
        if not why_not:
            return Choice(kernels, name)
        reasons.append(f"{name}: {why_not}")
    return Choice(None, f"plain path ({'; '.join(reasons) or 'no kernels installed'})")


def description() -> str:
    """Which kernels are installed, and whether they run on the default device: "none installed" if there are none."""
    words = []
    for name, kernels, error in installed():
        why_not = f"could not be loaded: {error}" if kernels is None else kernels.unavailable(default_device())
        words.append(f"{name} (not used: {why_not})" if why_not else name)
    return "; ".join(words) or "none installed"
