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
from jax.experimental.mosaic import gpu as mosaic
from jax.experimental.mosaic.gpu.utils import c as constant
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import llvm


def launched(
    body: Any, groups: int, images: int, out: Any, scratch: Sequence[Any], *, name: str, interpret: bool, ahead: bool
) -> Callable[..., Any]:
    """A kernel of one block an image, and so many warpgroups a block; on a GPU compiled ``ahead``, if asked."""
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
    ahead = ahead and not interpret and jax.default_backend() == "gpu"
    return partial(_compiled_ahead, run) if ahead else run


def _compiled_ahead(run: Callable[..., Any], *given: jax.Array) -> Any:
    """What a kernel makes of arrays, while another thread begins to compile it.

    Mosaic compiles one kernel after the other, and none twice that is the same to the byte. Traced twice it is not:
    Mosaic numbers what it makes. So what the first tracing made is called, here and there.
    """
    shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in given]
    traced = jax.jit(run, keep_unused=True).trace(*shapes)
    made = _as_bytes(traced.lower(lowering_platforms=("cuda",)))
    if made is None:
        return run(*given)
    target, attributes = made
    out = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in jax.tree.leaves(traced.out_info)]
    same = partial(jax.ffi.ffi_call(target, out), **attributes)
    Thread(target=begin, args=(same, shapes)).start()
    return same(*given)


def _as_bytes(lowered: Any) -> tuple[str, dict[str, Any]] | None:
    """Whom a program calls, if that is all it does, and what it gives beside arrays: bytes, and switches."""
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


def begin(kernel: Callable[..., Any], shapes: Sequence[jax.ShapeDtypeStruct]) -> None:
    """Compile a kernel by itself."""
    with suppress(Exception):  # the program will meet it again, and say so
        jax.jit(kernel).lower(*shapes).compile()


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
