"""Exporting the model of a run: trace, freeze, write, read back, and compare with ``sdebnn predict``."""

import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import export

from sdebnn import __version__
from sdebnn.devices import tracing_for
from sdebnn.export.containers import check_suffix, file_bytes
from sdebnn.export.loading import Exported, loaded_bytes
from sdebnn.export.onnx_graph import onnx_bytes
from sdebnn.export.onnx_rules import RULES
from sdebnn.export.optional import optional_module
from sdebnn.export.programs import BATCH, INPUT, Program, program_of
from sdebnn.export.summaries import MEANINGS
from sdebnn.files import write_whole
from sdebnn.forecasters import Forecaster, open_forecaster
from sdebnn.tables.kind import is_table_run

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
COMPARED_ROWS = 8
# Of probabilities and nats; of numbers in units of the target's spread. Usual differences are below 1e-6; the rounding
# of a Gaussian process with almost no noise is 2e-5.
TOLERANCE = 1e-4


class ExportResult(NamedTuple):
    """The file, its size, its contract, and the largest difference from ``sdebnn predict`` on random inputs."""

    path: Path
    size: int
    contract: dict[str, Any]
    difference: float


def export_run(
    run: str | Path, path: str | Path, *, draws: int | None = None, seed: int = 0, best: bool = False
) -> ExportResult:
    """Write the averaged forecast of a run's model as a program: .stablehlo, or .onnx.

        from sdebnn.export import export_run

        made = export_run("model", "model.onnx", draws=20)
        print(made.size, made.difference)

    The draws are frozen: those of ``sdebnn predict`` with the same ``draws``, ``seed`` and ``best``, or the first
    ``draws`` of them for a table. The file is compared with the run on random inputs before it is written.
    """
    run, path = Path(run), Path(path)
    check_suffix(path)
    if is_table_run(run) and (seed or best):
        raise ValueError(f"seed={seed} and best={best} are for nets of images and arrays: leave them out for {run}.")
    with _on_the_cpu():
        forecaster = open_forecaster(run, draws=None if is_table_run(run) else draws, seed=seed, best=best)
        return export_forecaster(forecaster, path, draws=draws)


def export_forecaster(forecaster: Forecaster, path: Path, *, draws: int | None = None) -> ExportResult:
    """Write the averaged forecast of an opened run as a program.

        from pathlib import Path

        from sdebnn.export import export_forecaster
        from sdebnn.forecasters import open_forecaster

        forecaster = open_forecaster(Path("model"))
        made = export_forecaster(forecaster, Path("model.stablehlo"), draws=20)

    ``path`` ends with .stablehlo or .onnx, as for ``export_run``.
    """
    check_suffix(path)
    return export_program(program_of(forecaster, draws), path)


def export_program(program: Program, path: Path) -> ExportResult:
    """Write a program, if it agrees with ``sdebnn predict``."""
    with jax.enable_x64(True):
        code, contract = (_onnx if path.suffix == ".onnx" else _stablehlo)(program)
    data = file_bytes(path.suffix, contract, code)
    exported = loaded_bytes(path, data)
    difference = largest_difference(program, exported)
    if not difference <= TOLERANCE:
        raise ValueError(
            f"the exported program differs from the run's own forecast by {difference:.2g}, and should by at most "
            f"{TOLERANCE:g}: nothing was written; please report this."
        )
    write_whole(path, data)
    return ExportResult(path, len(data), exported.contract, difference)


@contextlib.contextmanager
def _on_the_cpu() -> Generator[None]:
    """Nets are opened as they are on a CPU, where they compute in float32."""
    try:
        device = jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        raise ValueError("export computes on the CPU, which JAX_PLATFORMS excludes: add cpu to it.") from None
    with jax.default_device(device), tracing_for("cpu"):
        yield


def _stablehlo(program: Program) -> tuple[bytes, dict[str, Any]]:
    optional_module("flatbuffers")  # which JAX writes such programs with
    exported = export.export(jax.jit(program.function), platforms=PLATFORMS)(program.batch())
    outputs = jax.tree.unflatten(exported.out_tree, exported.out_avals)
    return bytes(exported.serialize()), _contract(program, outputs)


def _onnx(program: Program) -> tuple[bytes, dict[str, Any]]:
    traced, outputs = jax.make_jaxpr(program.function, return_shape=True)(program.batch())
    return onnx_bytes(traced, RULES, BATCH, INPUT, sorted(outputs)), _contract(program, outputs)


def _contract(program: Program, outputs: dict[str, Any]) -> dict[str, Any]:
    """What the file says about itself. JAX sorts the outputs by their names."""
    described = [{"name": name, **_tensor(outputs[name]), "meaning": MEANINGS[name]} for name in sorted(outputs)]
    return {
        **program.facts,
        "input": {"name": INPUT, **_tensor(program.batch()), **program.input_facts},
        "outputs": described,
        "made_with": {"sdebnn": __version__, "jax": jax.__version__},
    }


def _tensor(array: Any) -> dict[str, Any]:
    return {"dtype": str(np.dtype(array.dtype)), "shape": ["batch", *map(int, array.shape[1:])]}


def largest_difference(program: Program, exported: Exported) -> float:
    """The largest difference between an exported program and ``sdebnn predict`` on random inputs."""
    x, wanted = program.compared(np.random.default_rng(0), COMPARED_ROWS)
    found = exported(x)
    return max(float(np.abs(found[name] - wanted[name]).max()) for name in wanted) / program.unit
