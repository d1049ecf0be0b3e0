"""Compile the training program of a preset for an H200, without a GPU, to see what the compilation consists of.

    python benchmarks/compiling.py paper cifar [--infer-w0] [--batch 128] [--hlo FILE]

It needs jax's CUDA plugin (``pip install "jax[cuda13]"``) and no GPU: XLA is given the description of one. The kernels
of sdebnn-hopper are included if it is installed. Without a GPU, XLA cannot time alternative algorithms, and it is
slower on few cores, so these times only compare one form of a program with another. With ``TF_CPP_MIN_LOG_LEVEL=0`` and
``TF_CPP_VMODULE=hlo_pass_pipeline=1,nvptx_compiler=1`` XLA logs the start of each of its passes.
"""

import argparse
import importlib.util
import os
import re
import time
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"  # the device of arrays; programs are compiled for the GPU

import equinox as eqx
import fit_worker
import jax
from jax.experimental import topologies

import sdebnn
from sdebnn.presets import About, preset
from sdebnn.train import loop, xla_options

H200 = """
gpu_device_info {
  threads_per_block_limit: 1024  threads_per_warp: 32  shared_memory_per_block: 49152  shared_memory_per_core: 233472
  threads_per_core_limit: 2048  core_count: 132  fpus_per_core: 128  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535  block_dim_limit_z: 65535  memory_bandwidth: 4800000000000  l2_cache_size: 62914560
  clock_rate_ghz: 1.98  device_memory_size: 149000000000  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 minor: 0 }  registers_per_core_limit: 65536  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 12 patch: 0 }
runtime_version { major: 13 minor: 0 patch: 0 }
device_description_str: "NVIDIA H200"
"""


class ReachedError(Exception):
    """Raised instead of compiling, with the arguments of the program."""


def arguments_of(name: str, kind: str, batch: int, infer_w0: bool) -> Any:
    """The arguments that ``fit`` passes to its program, for a preset on random images."""

    def reached(*given: Any) -> None:
        raise ReachedError(given)

    loop.program = lambda: reached
    data = fit_worker.data(kind)
    row = preset(name, About.of(data), infer_w0=infer_w0)
    how = {**row.training.changed(epochs=1, batch_size=batch).options(), "progress": False}
    try:
        sdebnn.fit(row.net(jax.random.key(0)), row.likelihood, *data.train, key=jax.random.key(1), **how)
    except ReachedError as reached:
        return reached.args[0]
    raise SystemExit("fit compiled nothing")


def _use_kernels(there: Any) -> None:
    """Let sdebnn-hopper treat the default device as an H200, and compile its kernels for the described GPU."""
    import sdebnn_hopper
    from sdebnn_hopper import blocks

    def compile_kernel(kernel: Any, shapes: Any) -> None:
        """As ``blocks.compile_kernel``."""
        jax.jit(kernel, in_shardings=there, out_shardings=there).trace(*shapes).lower(
            lowering_platforms=("cuda",)
        ).compile()

    sdebnn_hopper.capability = lambda device: sdebnn_hopper.CAPABILITY
    blocks.compile_kernel = compile_kernel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", choices=("paper", "ours"))
    parser.add_argument("data", choices=("mnist", "cifar"))
    parser.add_argument("--infer-w0", action="store_true", help="infer w_0; otherwise it is a point")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--hlo", type=Path, help="where to write the compiled program")
    options = parser.parse_args()
    jax.devices()  # loads the plugins
    try:
        target = topologies.get_topology_desc("one", platform="cuda", target_config=H200, topology="1x1x1")
    except NotImplementedError:
        raise SystemExit(f"jax {jax.__version__} has no CUDA plugin here: pip install jax[cuda13].") from None
    there = jax.sharding.SingleDeviceSharding(target.devices[0])
    jax.default_backend = lambda: "gpu"
    if importlib.util.find_spec("sdebnn_hopper"):
        _use_kernels(there)
    given = arguments_of(options.preset, options.data, options.batch, options.infer_w0)
    arrays, rest = eqx.partition(given, eqx.is_array)
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=there), arrays)

    def program(arrays: Any) -> Any:
        return eqx.filter(loop.advance(*eqx.combine(arrays, rest)), eqx.is_array)

    # Without a GPU, XLA has no list of algorithms, from which this option takes the first.
    told = dict(xla_options.OPTIONS)
    del told["xla_gpu_exclude_nondeterministic_ops"]
    how = {"in_shardings": there, "out_shardings": there, "compiler_options": told}
    clock = time.perf_counter()
    lowered = jax.jit(program, **how).trace(shapes).lower(lowering_platforms=("cuda",))
    print(
        f"traced in {time.perf_counter() - clock:.1f} s: {lowered.as_text().count(chr(10))} lines for XLA", flush=True
    )
    clock = time.perf_counter()
    compiled = lowered.compile()
    text, sizes = compiled.as_text(), compiled.memory_analysis()
    lines, kernels = text.count("\n"), len(re.findall(r" (?:fusion|custom-call)\(", text))
    print(
        f"compiled in {time.perf_counter() - clock:.1f} s: {lines} lines of HLO, {kernels} kernels, "
        f"{sizes.temp_size_in_bytes / 2**20:.0f} MiB beside {sizes.argument_size_in_bytes / 2**20:.0f} of arguments"
    )
    if options.hlo:
        options.hlo.write_text(text)


if __name__ == "__main__":
    main()
