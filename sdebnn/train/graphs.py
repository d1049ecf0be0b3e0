"""How training is compiled for an NVIDIA GPU: as graphs, in which what does not wait for each other runs side by side.

A step is a thousand kernels or more, most of them small: those of the weights' path and of the optimiser leave nearly
all of the GPU idle. Recorded as a graph they are launched together, and run beside the large ones. It takes more
memory: what runs side by side shares none.
"""

import os
from functools import cache

import jax

GRAPHS: dict[str, str | bool] = {
    "xla_gpu_enable_command_buffer": (
        "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,CONVOLUTION,WHILE,CONDITIONAL,DYNAMIC_SLICE_FUSION"
    ),
    "xla_gpu_graph_min_graph_size": "2",
    "xla_gpu_command_buffer_scheduling_mode": "CONCURRENT",
    # Orders what will run side by side anyway, in every program that is tried on the way: a sixth of the compiling.
    "xla_gpu_enable_latency_hiding_scheduler": False,
    "xla_gpu_enable_analytical_sol_latency_estimator": False,
    # Tries every fused kernel in other ways, each as a program of its own: a third of the compiling, for a hundredth of
    # the time of a step.
    "xla_gpu_experimental_enable_fusion_autotuner": False,
}


@cache
def compiler_options() -> dict[str, str | bool] | None:
    """What XLA is told for programs of this process; nothing where it is told by ``XLA_FLAGS``, or knows no graphs."""
    told = os.environ.get("XLA_FLAGS", "").strip()
    in_a_file = told != "" and not told.startswith("-")  # of that name: what it says is not known
    if in_a_file or any(name in told for name in GRAPHS):
        return None
    if jax.default_backend() != "gpu" or not _is_nvidia():
        return None
    return GRAPHS if _accepted(GRAPHS) else None


def _is_nvidia() -> bool:
    """Its compute capability is a number, such as 9.0; those of others have letters."""
    return str(getattr(jax.devices()[0], "compute_capability", "")).replace(".", "").isdigit()


def _accepted(options: dict[str, str | bool]) -> bool:
    """Whether this version of XLA knows these options: they may change their names."""
    try:
        jax.jit(lambda x: x, compiler_options=options).lower(0.0).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
