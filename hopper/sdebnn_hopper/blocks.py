"""Functions that both kernels use: launching a block of warpgroups for each image, and writing registers to memory."""

# pyright: reportCallIssue=false, reportAttributeAccessIssue=false
# (Mosaic has no complete types, and they differ between versions)

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Any

import jax
import numpy as np
from jax.experimental.mosaic import gpu as mosaic
from jax.experimental.mosaic.gpu.utils import c as constant
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import llvm


def kernel_call(
    body: Any, groups: int, images: int, out: Any, scratch: Sequence[Any], *, name: str, interpret: bool, ahead: bool
) -> Callable[..., Any]:
    """A kernel with one block for each image and ``groups`` warpgroups in each block.

    With ``ahead``, on a GPU, another thread starts to compile it when it is traced.
    """
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
            unsafe_no_auto_barriers=True,  # the kernels call ``sync_groups`` where a barrier is needed
            reduction_scratch_bytes=512,  # it is not used, and shared memory is full
            lowering_semantics=plgpu.LoweringSemantics.Lane,  # the inline parts are written for it
        ),
    )
    ahead = ahead and not interpret and jax.default_backend() == "gpu"
    return partial(_compiled_ahead, run) if ahead else run


def _compiled_ahead(run: Callable[..., Any], *given: jax.Array) -> Any:
    """The outputs of a kernel, while another thread starts to compile it.

    Mosaic compiles kernels one after the other, and reuses one whose bytes are the same. Retracing would change the
    kernel's bytes, because Mosaic numbers its values, so the first trace is called here and in the thread.
    """
    shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in given]
    traced = jax.jit(run, keep_unused=True).trace(*shapes)
    made = _single_call(traced.lower(lowering_platforms=("cuda",)))
    if made is None:
        return run(*given)
    target, attributes = made
    out = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in jax.tree.leaves(traced.out_info)]
    same = partial(jax.ffi.ffi_call(target, out), **attributes)
    Thread(target=compile_kernel, args=(same, shapes)).start()
    return same(*given)


def _single_call(lowered: Any) -> tuple[str, dict[str, Any]] | None:
    """The target and the attributes of a program that consists of one custom call; None for any other program."""
    main, *others = lowered.compiler_ir().body.operations
    block = main.regions[0].blocks[0]
    call, *after = block.operations
    if others or len(after) != 1 or "mhlo.backend_config" not in call.attributes:
        return None
    if list(call.operands) != list(block.arguments) or list(after[0].operands) != list(call.results):
        return None
    given = {each.name: each.attr for each in call.attributes["mhlo.backend_config"]}
    attributes = {
        name: each.value_bytes if hasattr(each, "value_bytes") else each.value for name, each in given.items()
    }
    return call.attributes["call_target_name"].value, attributes


def compile_kernel(kernel: Callable[..., Any], shapes: Sequence[jax.ShapeDtypeStruct]) -> None:
    """Compile a kernel on its own."""
    with suppress(Exception):  # the program compiles it again, and raises the same error
        jax.jit(kernel).lower(*shapes).compile()


def store(ref: Any, x: Any) -> None:
    """Write x to memory, if necessary by several instructions, which newer versions refuse unless told otherwise."""
    if hasattr(plgpu, "store"):
        plgpu.store(ref, x, optimized=False)
    else:
        ref[...] = x


def sync_groups(barrier: Any) -> None:
    """Wait until all warpgroups have arrived."""
    plgpu.barrier_arrive(barrier)
    plgpu.barrier_wait(barrier)


def as_array(sums: Sequence[Any], n: int) -> Any:
    """The registers of a wgmma as a Mosaic array of 64 x n."""
    integer, pair = ir.IntegerType.get_signless(32), ir.VectorType.get((2,), ir.F32Type.get())
    registers = []
    for x, y in zip(sums[::2], sums[1::2], strict=True):
        half = llvm.insertelement(llvm.mlir_undef(pair), x, constant(0, integer))
        registers.append(llvm.insertelement(half, y, constant(1, integer)))
    shape = mosaic.FragmentedArray.splat(sums[0], (64, n), layout=mosaic.WGMMA_LAYOUT).registers.shape
    return mosaic.FragmentedArray(
        _registers=np.array(registers, dtype=object).reshape(shape), _layout=mosaic.WGMMA_LAYOUT, _is_signed=None
    )
