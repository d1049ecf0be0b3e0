"""``sdebnn verify`` and ``sdebnn info``: whether this machine computes correctly, and what is installed."""

import json
import platform
from pathlib import Path
from typing import Annotated

import jax
import numpy as np
import typer
from rich.console import Console

from sdebnn import __version__, verify
from sdebnn.cli.common import key_of
from sdebnn.convolutions import kernels
from sdebnn.data import CATALOGUE, home
from sdebnn.description import describe
from sdebnn.devices import platform as platform_in_use
from sdebnn.integrate.execution import execution_on
from sdebnn.presets import PRESETS
from sdebnn.records import read_record, read_result
from sdebnn.runs import open_run, read_settings, read_stages
from sdebnn.runs.run import stage_folder
from sdebnn.tables.kind import KIND as TABLE_KIND
from sdebnn.tables.kind import is_table_run
from sdebnn.train import saved_steps


def verify_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the random paths.")] = 0,
) -> None:
    """Compare what this machine computes with exact answers. The exit code is 1 if any is wrong."""
    rows = []
    console = Console(stderr=True) if as_json else Console()
    if not as_json:
        console.print(
            f"{'':4}  {'theorem':54}  {'measured':>12}  {'exact':>12}  {'tolerance':>10}", style="bold", soft_wrap=True
        )
    for theorem in verify.theorems(key_of(seed)):
        rows.append({**theorem._asdict(), "passed": theorem.passed})
        if not as_json:
            mark = "[green]ok  [/]" if theorem.passed else "[red]FAIL[/]"
            numbers = f"{theorem.measured:12.6g}  {theorem.exact:12.6g}  {theorem.tolerance:10.2g}"
            console.print(f"{mark}  {theorem.name:54}  {numbers}", highlight=False, soft_wrap=True)
    failed = sum(not row["passed"] for row in rows)
    if as_json:
        print(json.dumps({"theorems": rows}, indent=2))
    else:
        console.print(f"{len(rows) - failed} of {len(rows)} hold on {jax.devices()[0].device_kind}.", highlight=False)
    raise typer.Exit(1 if failed else 0)


def info(
    run: Annotated[Path | None, typer.Argument(help="The folder of a run to describe.")] = None,
    layers: Annotated[bool, typer.Option("--layers", help="Also describe the net of the run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print what is installed and on which device it runs, or the settings and the progress of a run.

    In Python, sdebnn.describe(model, x) prints how any model is executed, as --layers does for the net of a run.
    """
    if run is None:
        if layers:
            raise ValueError("--layers describes the net of a run: pass the folder of one.")
        facts = {
            "sdebnn": __version__,
            "jax": jax.__version__,
            "python": platform.python_version(),
            "device": f"{len(jax.devices())} x {jax.devices()[0].device_kind} ({platform_in_use()})",
            "execution": execution_on(platform_in_use()).why,
            "kernels": kernels.description(),
            "data": str(home()),
            "data sets": ", ".join(CATALOGUE),
            "presets": ", ".join(PRESETS),
        }
    elif is_table_run(run):
        if layers:
            raise ValueError(f"{run} is a run of a table, whose nets have no layers to show: leave out --layers.")
        facts = {**read_record(run / "run.json", TABLE_KIND, {}), **read_result(run / "result.json")}
    else:
        settings, stages, result = read_settings(run), read_stages(run), run / "result.json"
        known = read_result(result) if result.exists() else {"epochs": 0}
        scored, state = known["epochs"], "done"
        if scored < sum(stages):
            state = f"in training; the scores are those after {scored} epochs" if scored else "in training"
        facts = {
            **known,
            **{name: value for name, value in settings._asdict().items() if value is not None or name not in known},
            "epochs": sum(stages),
            "state": state,
            "checkpoints at steps": saved_steps(stage_folder(run, len(stages) - 1)),
        }
        facts.pop("settings", None)  # they are there one by one
        if layers:
            made, model, _ = open_run(run)
            batch = np.zeros((made.training.batches.size or 1, *made.about.shape), np.float32)
            facts["layers"] = str(describe(model, batch))
    if as_json:
        print(json.dumps(facts))
        return
    for name, value in facts.items():
        print(f"{name}\n{value}" if name == "layers" else f"{name:22}{value}")
