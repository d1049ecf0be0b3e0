"""The command line: the only place where strings become objects."""

import sys
from typing import Annotated

import typer

from sdebnn import __version__
from sdebnn.cli import checking, compare, data, demo, runs

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Infinitely deep Bayesian neural networks.",
)
for command in (demo.demo, runs.train, runs.evaluate, runs.predict, compare.compare, checking.info):
    app.command()(command)
app.command("verify")(checking.verify_command)
app.add_typer(data.app, name="data")


def main() -> None:
    """Run the command line. What a user got wrong is one line on stderr and exit code 2."""
    try:
        app()
    except (ValueError, OSError) as error:
        print(f"sdebnn: {error}", file=sys.stderr)
        sys.exit(2)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(f"sdebnn {__version__}")
        raise typer.Exit
