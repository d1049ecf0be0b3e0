"""What both kernels are to Pallas: a block of warpgroups for an image, that write what they hold in registers."""

# pyright: reportCallIssue=false, reportAttributeAccessIssue=false
# (Mosaic's types, and those of other versions)

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.experimental.mosaic import gpu as mosaic
from jax.experimental.mosaic.gpu.utils import c as constant
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import llvm


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


def together(barrier: Any) -> None:
    """Wait for the other warpgroups."""
    plgpu.barrier_arrive(barrier)
    plgpu.barrier_wait(barrier)


def as_array(sums: Sequence[Any], n: int) -> Any:
    """A wgmma's registers, as Mosaic's array of 64 x n."""
    integer, pair = ir.IntegerType.get_signless(32), ir.VectorType.get((2,), ir.F32Type.get())
    registers = []
    for x, y in zip(sums[::2], sums[1::2], strict=True):
        half = llvm.insertelement(llvm.mlir_undef(pair), x, constant(0, integer))
        registers.append(llvm.insertelement(half, y, constant(1, integer)))
    shape = mosaic.FragmentedArray.splat(sums[0], (64, n), layout=mosaic.WGMMA_LAYOUT).registers.shape
    return mosaic.FragmentedArray(
        _registers=np.array(registers, dtype=object).reshape(shape), _layout=mosaic.WGMMA_LAYOUT, _is_signed=None
    )
