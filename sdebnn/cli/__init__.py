"""The command line."""

import os
import sys
from collections.abc import Callable
from typing import Annotated

import jax
import typer

from sdebnn import __version__
from sdebnn.cli import checking, compare, data, demo, runs
from sdebnn.cli.kept_programs import with_kept_programs

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Infinitely deep Bayesian neural networks.",
)
COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo.demo, "train": runs.train, "evaluate": runs.evaluate, "predict": runs.predict,
    "compare": compare.compare, "verify": checking.verify_command,
}  # fmt: skip
for name, command in COMMANDS.items():
    app.command(name)(with_kept_programs(command))
app.command()(checking.info)
app.add_typer(data.app, name="data")


def main() -> None:
    """Run the command line. A user's mistake is reported as one line on stderr, with exit code 2."""
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # so that a broken pipe is noticed inside this try
    except BrokenPipeError:  # the reader of the output, such as head, has exited; files are already written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError) as error:
        if "--debug" in sys.argv:
            raise
        _refuse(str(error))
    except Exception:
        if "--debug" in sys.argv or _has_device():
            raise
        asked = os.environ.get("JAX_PLATFORMS", "")
        _refuse(
            f"JAX_PLATFORMS={asked!r} asks for a device that JAX cannot use here: unset it, or install JAX for that "
            "device."
        )


def _has_device() -> bool:
    """Whether JAX has a device to run on. Without one, it raises errors of several kinds."""
    try:
        return bool(jax.devices())
    except Exception:
        return False


def _refuse(words: str) -> None:
    print(f"sdebnn: {' '.join(words.split())}", file=sys.stderr)
    sys.exit(2)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    if version:
        print(f"sdebnn {__version__}")
        raise typer.Exit
