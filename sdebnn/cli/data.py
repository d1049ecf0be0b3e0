"""``sdebnn data list`` and ``sdebnn data get``."""

from pathlib import Path
from typing import Annotated

import typer

from sdebnn import data
from sdebnn.cli.common import Json, print_result
from sdebnn.data import CATALOGUE, Entry

app = typer.Typer(no_args_is_help=True, add_completion=False, help="List and download data sets.")


@app.command("list")
def list_command(as_json: Json = False) -> None:
    """List the data sets, and whether each is on this machine."""
    root = data.home()
    if as_json:
        sets = [
            {"name": "/".join((entry.name, *entry.options)), "state": _state(entry, root), "summary": entry.summary}
            for entry in CATALOGUE.values()
        ]
        print_result({"folder": str(root), "data sets": sets}, as_json)
        return
    for entry in CATALOGUE.values():
        name = "/".join((entry.name, *entry.options))
        print(f"{name:30}{_state(entry, root):12}{_kind(entry):28}{entry.summary}")
    print(
        f"Folder: {root} (set SDEBNN_DATA to choose another). Your own: a .csv or .npz file, or a folder "
        "of pictures or of .npy files."
    )


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="A name from sdebnn data list.")],
    folder: Annotated[Path | None, typer.Option(help="Folder of all data sets, instead of SDEBNN_DATA.")] = None,
    base: Annotated[str | None, typer.Option(help="Another address with the same files.")] = None,
    as_json: Json = False,
) -> None:
    """Download a data set. Complete files are kept, and damaged files are downloaded again."""
    entry = CATALOGUE.get(name)
    built_in = entry is not None and entry.built_in
    where = None if built_in else str(data.get(name, folder, base=base))
    if as_json:
        print_result({"name": name, "folder": where}, as_json)
    else:
        print(f"{name} is built in: there is nothing to download." if built_in else f"{name}: {where}")


def _state(entry: Entry, root: Path) -> str:
    if entry.built_in:
        return "built in"
    if data.is_here(entry, root):
        return "here"
    return "to get" if entry.source is not None else "not here"


def _kind(entry: Entry) -> str:
    shape = "" if entry.shape is None else "x".join(map(str, entry.shape))
    return f"{shape:10}{'regression' if entry.classes is None else f'{len(entry.classes)} classes'}"
