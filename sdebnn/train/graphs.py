"""How training is compiled for an NVIDIA GPU: soon, the same way every time, and as graphs.

A step is a thousand kernels or more, most of them small: those of the weights' path and of the optimiser leave nearly
all of the GPU idle. Recorded as a graph they are launched together, and those that do not wait for each other run side
by side. It takes more memory: what runs side by side shares none.
"""

import os
from functools import cache

import jax

OPTIONS: dict[str, str | bool] = {
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
    # Takes the first of cuDNN's algorithms, the same in every process, where XLA would try them all and take what was
    # fastest that time: so a run that is resumed goes on as it began. A third of the compiling, for 5 % of the time of
    # a step. Sums into places that a program picks, such as an embedding's gradient, are sorted first.
    "xla_gpu_exclude_nondeterministic_ops": True,
}


@cache
def compiler_options() -> dict[str, str | bool] | None:
    """What XLA is told for programs of this process, but for what ``XLA_FLAGS`` tell it; None where that is nothing."""
    told = os.environ.get("XLA_FLAGS", "").strip()
    in_a_file = told != "" and not told.startswith("-")  # of that name: what it says is not known
    if in_a_file or jax.default_backend() != "gpu" or not _is_nvidia():
        return None
    options = {name: value for name, value in OPTIONS.items() if name not in told}
    return options if options and _accepted(options) else None


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
