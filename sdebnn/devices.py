"""Which platform a program runs on: "cpu", "gpu" or "tpu".

Some choices that change speed but not results depend on it. A program that is being traced cannot see where its arrays
are, so ``compiled`` looks at its arguments before it traces and states the platform here.
"""

import contextlib
from collections.abc import Generator
from contextvars import ContextVar
from typing import Protocol, runtime_checkable

import jax
from jax.core import Tracer
from jaxtyping import PyTree

_traced_for: ContextVar[str | None] = ContextVar("traced_for", default=None)


@runtime_checkable
class Device(Protocol):
    """What is asked of a device of JAX."""

    @property
    def platform(self) -> str:
        """Such as "gpu"."""
        ...

    @property
    def device_kind(self) -> str:
        """Such as "NVIDIA H200"."""
        ...


def platform_of(arrays: PyTree) -> str:
    """The platform of the device to which the arrays are committed; for others, the platform in use."""
    for leaf in jax.tree.leaves(arrays):
        if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and leaf.committed:
            return next(iter(leaf.devices())).platform
    return platform()


def platform() -> str:
    """The platform for which a program is being traced; otherwise that of JAX's default device."""
    traced_for = _traced_for.get()
    if traced_for is not None:
        return traced_for
    if jax.config.jax_default_device is None:  # pyright: ignore[reportAttributeAccessIssue]
        return jax.default_backend()
    return default_device().platform


def default_device() -> Device:
    """The device on which JAX runs programs whose arguments are not committed to one."""
    device = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(device, str):  # the name of a platform
        return jax.local_devices(backend=device)[0]
    return device or jax.local_devices()[0]


@contextlib.contextmanager
def tracing_for(platform: str) -> Generator[None]:
    """Trace a program for this platform."""
    token = _traced_for.set(platform)
    try:
        yield
    finally:
        _traced_for.reset(token)
