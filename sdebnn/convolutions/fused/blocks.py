"""What both kernels are to Pallas: a block of warpgroups for an image, that write what they hold in registers."""

# pyright: reportCallIssue=false, reportAttributeAccessIssue=false
# (Mosaic's types, and those of other versions)

from collections.abc import Sequence
from typing import Any

from jax.experimental.pallas import mosaic_gpu as plgpu


def launched(
    body: Any, groups: int, images: int, out: Any, scratch: Sequence[Any], *, name: str, interpret: bool
) -> Any:
    """A kernel of one block an image, and so many warpgroups a block."""
    return plgpu.kernel(
        body,
        out_type=out,
        scratch_types=scratch,
        grid=(images,),
        grid_names=("image",),
        num_threads=groups,
        thread_name="group",
        kernel_name=name,
        interpret=plgpu.InterpretGPUParams() if interpret else None,
        compiler_params=plgpu.CompilerParams(
            approx_math=True,
            unsafe_no_auto_barriers=True,  # ``together`` stands where one is needed
            reduction_scratch_bytes=512,  # none of it is used, and shared memory is full
            lowering_semantics=plgpu.LoweringSemantics.Lane,  # which the inline parts are written for
        ),
    )


def store(ref: Any, x: Any) -> None:
    """Write, in however many pieces it takes: newer versions refuse to do so unless asked."""
    if hasattr(plgpu, "store"):
        plgpu.store(ref, x, optimized=False)
    else:
        ref[...] = x
