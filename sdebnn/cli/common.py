"""Functions and options that several commands use."""

import importlib
import importlib.util
import io
import json
import sys
import warnings
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import jax
import typer
from jax.sharding import Mesh

from sdebnn.checks import shown
from sdebnn.files import made_folder, write_whole
from sdebnn.meshes import make_mesh

if TYPE_CHECKING:
    from matplotlib.figure import Figure


TYPES = {float: "a number", int: "a whole number", str: "a word"}
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]


MeshOption = Annotated[
    str | None,
    typer.Option("--mesh", help="Devices that share examples, times devices that share draws, such as 4x2."),
]


def mesh_of(text: str | None) -> Mesh | None:
    """The mesh that an option names, or None."""
    if text is None:
        return None
    data, cross, draw = text.partition("x")
    if not (text.isascii() and data.isdigit() and (draw.isdigit() if cross else True)):
        raise ValueError(f"mesh={shown(text)} is no mesh: pass two whole numbers, such as 4x2.")
    return make_mesh(int(data), int(draw) if cross else 1)


def key_of(seed: int) -> jax.Array:
    """The key of a seed."""
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed={seed} must be a whole number from 0 to {2**32 - 1}.")
    return jax.random.key(seed)


def check_out(path: Path, suffix: str, *, force: bool, inputs: Iterable[Path]) -> None:
    """Before long work, refuse an output file that cannot or should not be written."""
    if path.suffix != suffix:
        raise ValueError(f"out={path} must end in {suffix}: choose another name.")
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"{path} cannot be written: choose a file name in an existing folder.")
    if path.exists():
        for each in inputs:
            if each.exists() and path.samefile(each):
                raise ValueError(f"out={path} is the file of the inputs, which would be lost: choose another name.")
        if not force:
            raise ValueError(f"{path} exists already: add --force to replace it, or choose another name with --out.")
    made_folder(path.parent)


def prepare_pictures(out: Path) -> None:
    """Before long work, check that pictures can be drawn and files can be written."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("pictures need matplotlib: pip install 'sdebnn[plot]'.")
    made_folder(out)


def write_page(runs: list[Path], out: Path) -> int:
    """Write the report of some runs, which needs Matplotlib, and return its size in bytes."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("a report needs matplotlib: pip install 'sdebnn[plot]'.")
    return importlib.import_module("sdebnn.reports").write_report(runs, out)


def pyplot() -> Any:
    """``matplotlib.pyplot`` with a backend that draws only into files."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    return pyplot


def save_picture(figure: "Figure", path: Path) -> None:
    """Write a figure as PNG, atomically."""
    picture = io.BytesIO()
    figure.savefig(picture, dpi=160, format="png")
    write_whole(path, picture.getvalue())


@contextmanager
def plain_warnings() -> Generator[None]:
    """Print each warning as one line."""
    before = warnings.showwarning

    def show(message: Warning | str, *_: object, **__: object) -> None:
        with suppress(OSError):  # stderr may be closed
            print(f"sdebnn: {message}", file=sys.stderr)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before


def tables() -> Any:
    """The runs of tables, which need scikit-learn."""
    try:
        return importlib.import_module("sdebnn.tables.runs")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("sklearn", "scipy"):
            raise
        raise ValueError("tables need scikit-learn: pip install 'sdebnn[sklearn]'.") from None


Params = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        help="NAME=VALUE in place of the preset's or the estimator's: learning_rate, sigma, batch_size; of nets also "
        "prior_variance (of w_0) and ema; of tables also width, steps, max_iter, noise and family. Repeatable.",
    ),
]


def parameters(given: list[str] | None, types: dict[str, type]) -> dict[str, Any]:
    """The values of ``--param NAME=VALUE``, of these names and types."""
    found = {}
    for words in given or ():
        name, equals, text = words.partition("=")
        if not equals or name not in types:
            raise ValueError(f"param={words!r} must be NAME=VALUE, where NAME is one of {', '.join(types)}.")
        try:
            found[name] = types[name](text)
        except ValueError:
            raise ValueError(f"param={words!r}: pass {TYPES[types[name]]} for {name}.") from None
    return found


def check_suits(given: dict[str, bool], why: str) -> None:
    """Refuse an option that would be ignored."""
    for name, is_given in given.items():
        if is_given:
            raise ValueError(f"{name} {why}: leave it out.")


def print_result(result: dict[str, Any], as_json: bool) -> None:
    """Print scores and facts, a line each or as JSON."""
    if as_json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:16}{value:.5g}" if isinstance(value, float) else f"{name:16}{value}")
