"""Writing what threads hold in registers, in every version of Pallas that the kernels were tried on."""

# pyright: reportAttributeAccessIssue=false
# (Mosaic's types, and those of other versions)

from typing import Any

from jax.experimental.pallas import mosaic_gpu as plgpu


def store(ref: Any, x: Any) -> None:
    """Write, in however many pieces it takes: newer versions refuse to do so unless asked."""
    if hasattr(plgpu, "store"):
        plgpu.store(ref, x, optimized=False)
    else:
        ref[...] = x
