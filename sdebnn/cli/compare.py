"""``sdebnn compare``: train every system of the paper's tables on one data set, and print one table.

A regression of one number on one number is also drawn, all systems in one picture.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from sdebnn import metrics
from sdebnn.cli.common import key_of, plain_warnings, prepare_pictures, pyplot, save_picture
from sdebnn.compare import Comparison
from sdebnn.data import find, load
from sdebnn.files import FolderLock

COLUMNS = {  # heading and number format of each score; scores that no row has are left out
    "accuracy": ("accuracy", "{:.2%}"), "rmse": ("RMSE", "{:.4g}"), "nll": ("NLL", "{:.4f}"), "ece": ("ECE", "{:.2%}"),
    "brier": ("Brier", "{:.4f}"), "coverage_95": ("coverage", "{:.1%}"), "kl": ("KL", "{:.1f}"),
    "kl_weight": ("weight", "{:g}"), "draws": ("draws", "{:d}"), "parameters": ("parameters", "{:d}"),
    "seconds": ("seconds", "{:.1f}"),
}  # fmt: skip


def compare(
    data: Annotated[str, typer.Option(help="A data set (see sdebnn data list), a folder of .npy files, a .csv file.")],
    out: Annotated[Path, typer.Option(help="The folder for compare.json and pictures.")] = Path("comparison"),
    row: Annotated[list[str] | None, typer.Option(help="Only this row; may be repeated.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue with the rows that are not done.")] = False,
    epochs: Annotated[int | None, typer.Option(help="Epochs for all rows, instead of each row's own.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Batch size for all rows, instead of each row's own.")] = None,
    kl_weight: Annotated[float | None, typer.Option(help="KL weight for all rows; 1 is the ELBO.")] = None,
    noise: Annotated[float | None, typer.Option(help="Known noise of a regression; learned if not given.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the data, the nets, the order and the draws.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")] = False,
) -> None:
    """Train every system of the paper's tables on a data set, one after the other, and compare their scores."""
    key_of(seed)
    with FolderLock(out) as lock:  # two comparisons in one folder would overwrite each other's rows
        try:
            _compare(data, out, row, resume, epochs, batch_size, kl_weight, noise, seed, as_json)
        finally:
            lock.abandon()


def _compare(
    data: str,
    out: Path,
    row: list[str] | None,
    resume: bool,
    epochs: int | None,
    batch_size: int | None,
    kl_weight: float | None,
    noise: float | None,
    seed: int,
    as_json: bool,
) -> None:
    found = find(data)
    if noise is None and found is not None:
        noise = found[0].noise
    table = Comparison(
        load(data, seed=seed), out, only=row or (), seed=seed, epochs=epochs, batch_size=batch_size,
        kl_weight=kl_weight, noise=noise, resume=resume,
    )  # fmt: skip
    if table.task.on_a_line:
        prepare_pictures(out)
    console = Console(stderr=True, highlight=False)
    total = len(table.rows)
    console.print(
        f"{total} rows on {table.settings['examples']} examples; each is saved to {table.file} when it is done."
    )
    with plain_warnings():
        left = table.pending()
        for number, now in enumerate(left, start=total - len(left) + 1):
            console.print(f"[bold]{now.name}[/] ({number} of {total})", soft_wrap=True)
            console.print(_line(table.add(now)), soft_wrap=True)
    if table.task.on_a_line:
        _picture(table, out / "posteriors.png")
    if as_json:
        print(json.dumps({"settings": table.settings, "rows": table.in_order()}))
    else:
        _print(table.in_order())
        if table.task.on_a_line:
            print(f"Look at {out / 'posteriors.png'}: all posteriors, with the exact Gaussian process beside them.")


def _line(scores: dict[str, Any]) -> str:
    """The scores of a row as text."""
    wanted = ("accuracy", "rmse", "nll", "ece", "coverage_95", "seconds")
    parts = [f"{COLUMNS[name][0]} {COLUMNS[name][1].format(scores[name])}" for name in wanted if name in scores]
    return ", ".join(parts)


def _print(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    names = [name for name in COLUMNS if any(name in row for row in rows)]
    width = max(len(row["name"]) for row in rows)
    cells = [[COLUMNS[name][1].format(row[name]) for name in names] for row in rows]
    widths = [max(len(COLUMNS[name][0]), *(len(line[i]) for line in cells)) for i, name in enumerate(names)]
    heads = "  ".join(f"{COLUMNS[name][0]:>{wide}}" for name, wide in zip(names, widths, strict=True))
    print(f"{'':{width}}  {heads}")
    for row, line in zip(rows, cells, strict=True):
        numbers = "  ".join(f"{cell:>{wide}}" for cell, wide in zip(line, widths, strict=True))
        print(f"{row['name']:{width}}  {numbers}")
    for row in rows:
        if row["chains"] is not None:
            chains = row["chains"]
            print(
                f"{row['name']}: R-hat {chains['rhat_outputs']:.3f} over outputs, {chains['rhat_weights']:.3f} over "
                f"weights; effective sample size {chains['ess_outputs']:.0f} and {chains['ess_weights']:.0f}; "
                f"{chains['divergences']} divergences."
            )


def _picture(table: Comparison, file: Path) -> None:
    """Draw all posteriors, one panel each, with the 95 % interval of the exact Gaussian process as dashed lines."""
    from sdebnn import plots

    plt, standardisers, x = pyplot(), table.task.standardisers, table.points()
    assert standardisers is not None
    seen = standardisers.x.undo(np.asarray(table.task.train.x))[:, 0]
    y = standardisers.y.undo(np.asarray(table.task.train.y))[:, 0]
    rows = table.in_order()
    across = min(5, len(rows))
    down = -(-len(rows) // across)
    figure, panels = plt.subplots(
        down, across, figsize=(3.3 * across, 2.6 * down), sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    exact = table.curve("GP (exact)")
    for axes in panels.flat[len(rows) :]:
        axes.set_visible(False)
    for axes, row in zip(panels.flat, rows, strict=False):
        curve = table.curve(row["name"])
        if curve is not None:
            plots.bands(axes, x, curve[0])
            plots.draws(axes, x, curve[1][:5])
        if exact is not None:
            for bound in metrics.interval(exact[0], 0.95):
                axes.plot(x, bound, "--", color="#333", linewidth=0.8, zorder=3)
        plots.observations(axes, seen, y)
        plots.label(axes, row["name"], "")
        axes.tick_params(labelsize=8, labelbottom=True)
    middle, half = (y.max() + y.min()) / 2, (y.max() - y.min()) * 1.6
    panels[0, 0].set_ylim(middle - half, middle + half)
    save_picture(figure, file)
    plt.close(figure)
