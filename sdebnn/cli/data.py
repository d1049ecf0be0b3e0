"""``sdebnn data list`` and ``sdebnn data get``."""

from pathlib import Path
from typing import Annotated

import typer

from sdebnn import data
from sdebnn.data import download, images, published
from sdebnn.runs import TOYS

app = typer.Typer(no_args_is_help=True, help="Data sets: which there are, and how to get them.")


@app.command("list")
def list_command() -> None:
    """List the data sets, and whether each is here."""
    root = published.home()
    for name, function in TOYS.items():
        print(f"{name:15}{'built in':12}{_about(function)}")
    print(f"{'digits':15}{'built in':12}{_about(images.digits)}")
    for name in download.SOURCES:
        reader = getattr(images, name.replace("-", "_"))
        where = "here" if download.is_here(name, root) else "to get"
        print(f"{name:15}{where:12}{_about(reader)}")
    print(f"Folder: {root} (set SDEBNN_DATA to choose another). Your own: a folder of .npy files, or a .csv file.")


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="One of sdebnn data list.")],
    folder: Annotated[Path | None, typer.Option(help="Instead of SDEBNN_DATA.")] = None,
    base: Annotated[str | None, typer.Option(help="Another address that has the same files.")] = None,
) -> None:
    """Fetch a data set: what is whole already is kept, what is damaged is fetched anew."""
    if name in TOYS or name == "digits":
        print(f"{name} is built in: there is nothing to fetch.")
        return
    print(f"{name}: {data.get(name, folder, base=base)}")


def _about(function: object) -> str:
    return (function.__doc__ or "").strip().splitlines()[0]
