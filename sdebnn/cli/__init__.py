"""The command line.

A command's module is imported when the command is run, so that ``sdebnn --help`` does not wait for JAX.
"""

import importlib
import os
import sys
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from sdebnn import __version__

# Typer has no name for it that all its versions share.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]  # pyright: ignore[reportAssignmentType]


class Command(NamedTuple):
    """Where a command is, and the first line of its help."""

    module: str
    function: str
    summary: str


COMMANDS = {
    "demo": Command("demo", "demo", "Fit 40 points with a gap between them, and draw what is known of them."),
    "train": Command("training", "train", "Train a net on a data set, and score it on the test part."),
    "sweep": Command(
        "sweeping", "sweep", "Train many runs with other parameters, and compare them on held-out examples."
    ),
    "evaluate": Command(
        "forecasting", "evaluate", "Score a run's model on the test part of its data, or on data of your own."
    ),
    "predict": Command(
        "forecasting", "predict", "Predict with a run's model, with the uncertainty of every prediction."
    ),
    "report": Command("reporting", "report", "Write a page about runs: scores, how sure they are, and every plot."),
    "export": Command(
        "exporting", "export", "Write a run's model as a program that needs no sdebnn: ONNX or StableHLO."
    ),
    "serve": Command("serving", "serve", "Serve a run's model over HTTP: JSON in, forecasts out."),
    "compare": Command("compare", "compare", "Train every system of the paper's tables, and compare their scores."),
    "reproduce": Command("reproducing", "reproduce", "Run a table or a figure of the paper, from a clone."),
    "verify": Command("checking", "verify_command", "Compare what this machine computes with exact answers."),
    "info": Command("checking", "info", "Print what is installed, or the settings and the progress of a run."),
    "data": Command("data", "app", "List and download data sets."),
}


class Commands(TyperGroup):
    """The commands by their names; only the one that is called is imported."""

    def __init__(self, **given: Any):
        super().__init__(**given)
        self.commands = {name: TyperCommand(name, help=each.summary) for name, each in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments name."""
        if args and args[0] in COMMANDS:
            self.commands[args[0]] = imported(args[0])
        return super().resolve_command(ctx, args)


def imported(name: str) -> Any:
    """The command with this name. This imports its module."""
    from sdebnn.cli.joining import joined
    from sdebnn.cli.kept_programs import with_kept_programs

    found = getattr(importlib.import_module(f"sdebnn.cli.{COMMANDS[name].module}"), COMMANDS[name].function)
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command(name)(joined(with_kept_programs(found)))
    return typer.main.get_command(alone)


app = typer.Typer(
    cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, help="Infinitely deep Bayesian neural networks."
)


def main() -> None:
    """Run the command line. A user's mistake is reported as one line on stderr, with exit code 2."""
    debug = "--debug" in sys.argv[1:]
    given = [word for word in sys.argv[1:] if word != "--debug"]  # it may stand anywhere
    try:
        try:
            sys.exit(app(given, prog_name="sdebnn", standalone_mode=False) or 0)
        finally:
            sys.stdout.flush()  # so that a broken pipe is noticed inside this try
    except BrokenPipeError:  # the reader of the output, such as head, has exited; files are already written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except UsageError as error:
        if debug:
            raise
        _refuse_usage(error)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except (ValueError, OSError) as error:
        if debug:
            raise
        _refuse(str(error))
    except Exception:
        if debug or _has_device():
            raise
        asked = os.environ.get("JAX_PLATFORMS", "")
        _refuse(
            f"JAX_PLATFORMS={asked!r} asks for a device that JAX cannot use here: unset it, or install JAX for that "
            "device."
        )


def _has_device() -> bool:
    """Whether JAX has a device to run on. Without one, it raises errors of several kinds."""
    import jax

    try:
        return bool(jax.devices())
    except Exception:
        return False


def _refuse_usage(error: Any) -> None:
    """Say in one line what is wrong with the arguments. Without any, the help is printed."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        sys.exit(2)
    place = "sdebnn" if error.ctx is None else error.ctx.command_path
    _refuse(f"{error.format_message().rstrip('.')}: see {place} --help.")


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
