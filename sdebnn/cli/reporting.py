"""``sdebnn report``: one page about a run, or about several beside each other."""

from pathlib import Path
from typing import Annotated

import typer

from sdebnn.cli.common import Json, check_out, plain_warnings, print_result, write_page


def report(
    runs: Annotated[list[Path], typer.Argument(help="The folders of one run or more, or of a sweep.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    force: Annotated[bool, typer.Option("--force", help="Replace the page if it exists.")] = False,
    as_json: Json = False,
) -> None:
    """Write a page about runs: how they did and how sure that is, every plot, and what not to trust them with.

    Of a sweep: how it went, which parameters mattered, and its trials. The page needs no network and no other file. It
    is made from the folders alone, without the data.
    """
    check_out(out, ".html", force=force, inputs=())
    with plain_warnings():
        size = write_page(runs, out)
    if as_json:
        print_result({"out": str(out), "bytes": size, "runs": [str(run) for run in runs]}, as_json)
    else:
        print(f"{out}: {size / 1e6:.2g} MB about {', '.join(map(str, runs))}.")
