"""``sdebnn export``: the model of a run as one file that needs neither the run nor this package."""

from pathlib import Path
from typing import Annotated

import typer

from sdebnn.cli.common import Json, check_out, key_of, plain_warnings, print_result
from sdebnn.cli.forecasting import BestOption, RunArgument
from sdebnn.export import export_run
from sdebnn.export.containers import check_suffix


def export(
    run: RunArgument,
    out: Annotated[Path, typer.Option(help="The file to write: .stablehlo for JAX, .onnx for ONNX runtimes.")] = Path(
        "model.stablehlo"
    ),
    draws: Annotated[
        int | None, typer.Option(help="Posterior draws to freeze; those of sdebnn predict by default.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the output file if it exists.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    best: BestOption = False,
    as_json: Json = False,
) -> None:
    """Write the averaged forecast of a run's model, with frozen draws, as a program for other software.

    The file holds a contract in JSON, which describes the inputs and the outputs. It is compared with the run's own
    forecast of random inputs before it is written.
    """
    key_of(seed)
    check_suffix(out)
    check_out(out, out.suffix, force=force, inputs=())
    with plain_warnings():
        found = export_run(run, out, draws=draws, seed=seed, best=best)
    if as_json:
        facts = {"out": str(out), "bytes": found.size, "difference": found.difference, "contract": found.contract}
        print_result(facts, as_json)
        return
    given = found.contract["input"]
    outputs = ", ".join(tensor["name"] for tensor in found.contract["outputs"])
    shape = " by ".join(map(str, given["shape"]))
    used = found.contract["draws"]
    draws_of = f"{used} draws" if used else "no draws, for a Gaussian process needs none"
    same = "sdebnn predict" if draws is None or not used else f"sdebnn predict --draws {draws}"
    print(
        f"{out}: {found.size / 1e6:.3g} MB, {draws_of}; from {given['name']}, {given['dtype']} of {shape}, to "
        f"{outputs}; within {found.difference:.1g} of {same}."
    )
