"""``sdebnn reproduce``: tables and figures of the paper, from the folder ``experiments`` of the repository."""

import importlib
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import sdebnn
from sdebnn.cli.common import Json, plain_warnings, prepare_pictures

PLACES = (Path(sdebnn.__file__).parent.parent, Path())  # a clone in which sdebnn is installed, or the current folder


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="ID", help="Such as fig3; without one, all are listed.")] = None,
    scale: Annotated[str, typer.Option(help="smoke (minutes on two processors) or full.")] = "smoke",
    out: Annotated[
        Path | None, typer.Option(help="The folder for ID.json and ID.png: results, or results/smoke.")
    ] = None,
    draw: Annotated[bool, typer.Option("--draw", help="Only draw what is in ID.json.")] = False,
    as_json: Json = False,
) -> None:
    """Run a table or a figure of the paper, and say whether the paper's claim holds. An interrupted one goes on."""
    reproduction = _reproduction()
    if name is None:
        for each in reproduction.names():
            print(f"{each:10}{reproduction.experiment(each).title}")
        return
    subject = reproduction.experiment(name)
    reproduction.check_scale(scale)
    folder = Path("results" if scale == "full" else "results/smoke") if out is None else out
    prepare_pictures(folder)
    console = Console(stderr=True, highlight=False)
    with plain_warnings():
        if not draw:
            reproduction.reproduce(name, scale, folder, lambda words: console.print(words, soft_wrap=True))
        finding = reproduction.draw(name, folder)
    result = reproduction.read(reproduction.file_of(name, folder))
    if as_json:
        print(json.dumps({"id": name, "finding": finding and finding._asdict(), **result}))
        return
    _print(subject, {row: each["found"] for row, each in result["rows"].items()}, finding, result["scale"])
    picture = folder / f"{name}.png"
    print(f"Look at {picture}." if picture.exists() else f"The results are in {reproduction.file_of(name, folder)}.")


def _reproduction() -> Any:
    """The module of this name in the folder of experiments, which a distribution does not hold."""
    for place in PLACES:
        path = place / "experiments" / "reproduction.py"
        if path.is_file():
            sys.path.insert(0, str(path.parent))
            return importlib.import_module("reproduction")
    raise ValueError(
        "the experiments are not part of the installed package: run this command in a clone of the repository."
    )


def _print(subject: Any, found: dict[str, Any], finding: Any, scale: str) -> None:
    print(f"{subject.title}\nThe paper: {subject.claim}")
    if finding is None:
        print("Here: not all rows are finished.")
        return
    table = subject.table(found)
    if table is not None:
        shown = Table(*table.headings, box=None, header_style="bold")
        for row in table.rows:
            shown.add_row(*row)
        Console(highlight=False, width=160).print(shown)
    verdict = {True: "holds", False: "does not hold", None: "cannot be told"}[finding.holds]
    if scale == "smoke":
        verdict = "smoke scale, too short to judge"
    print(f"Here: {verdict}. {finding.words}")
