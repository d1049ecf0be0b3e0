"""What both kernels are to Pallas: a block of warpgroups for an image, that write what they hold in registers."""

# pyright: reportCallIssue=false, reportAttributeAccessIssue=false
# (Mosaic's types, and those of other versions)

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Any

import jax
import numpy as np
from jax import export
from jax.experimental.mosaic import gpu as mosaic
from jax.experimental.mosaic.gpu.utils import c as constant
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import llvm


def launched(
    body: Any, groups: int, images: int, out: Any, scratch: Sequence[Any], *, name: str, interpret: bool, ahead: bool
) -> Callable[..., Any]:
    """A kernel of one block an image, and so many warpgroups a block; compiled ahead, if it will surely be needed."""
    run = plgpu.kernel(
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
    return partial(_compiled_ahead, run) if ahead and jax.default_backend() == "gpu" else run


def _compiled_ahead(run: Callable[..., Any], *given: jax.Array) -> Any:
    """What a kernel makes of arrays, while another thread begins to compile it.

    Mosaic takes a third of the time that compiling a program with kernels takes, one kernel after the other, and does
    not compile twice what is the same to the byte. Traced twice kernels differ; what is exported stays as it is.
    """
    shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in given]
    allowed = [export.DisabledSafetyCheck.custom_call("mosaic_gpu_v2")]
    same = export.export(jax.jit(run), platforms=["cuda"], disabled_checks=allowed)(*shapes)
    Thread(target=begin, args=(same, shapes)).start()
    return same.call(*given)


def begin(kernel: export.Exported, shapes: Sequence[jax.ShapeDtypeStruct]) -> None:
    """Compile a kernel by itself."""
    with suppress(jax.errors.JaxRuntimeError):  # the program will meet the same error, and say so
        jax.jit(kernel.call).lower(*shapes).compile()


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
