"""``sdebnn sweep``: train many runs with other parameters, and compare them on held-out examples."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sdebnn import runs, sweeps
from sdebnn.cli.common import Json, check_suits, plain_warnings, print_result, tables
from sdebnn.data import find

TABLES = (".csv", ".tsv")
OF_NETS = ("preset", "infer_w0", "epochs", "patience", "size")
OF_FILES = ("target", "task", "words")
USUAL = {"preset": "ours", "infer_w0": False, "kl_weight": 1.0, "seed": 0}


def sweep(
    out: Annotated[Path, typer.Option(help="The folder of the sweep.")],
    data: Annotated[
        str | None, typer.Option(help="As for sdebnn train. A sweep that exists goes on without it.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="Trials, over all workers; more than before are added. 24 by default.")
    ] = None,
    space: Annotated[
        str | None,
        typer.Option(
            help="paper, for nets: the paper's sigma 0.1, 0.2 or 0.5, its variance 0.1 to 0.44 of the prior of w_0, "
            "which is inferred, and learning rates from 2e-3 to 4e-2. These are the paper's 1e-4 to 1e-3, 20 to 40 "
            "times as large, since our weights are standardised. table, for tables: learning rate, sigma and width "
            "around the defaults. These are the default."
        ),
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(
            help="A space of your own: NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=A,B,C. Names for nets: "
            f"{', '.join(sweeps.NET_TYPES)}. For tables: {', '.join(sweeps.TABLE_TYPES)}. Repeatable."
        ),
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="URL of a database that workers share; by default a file in the folder.")
    ] = None,
    prune: Annotated[
        bool, typer.Option(help="Stop trials whose validation NLL is above the median of others at the same epoch.")
    ] = True,
    preset: Annotated[str, typer.Option(help="ours, fast, best or paper.")] = "ours",
    members: Annotated[int | None, typer.Option(help="Nets in the mixture of a trial.")] = None,
    infer_w0: Annotated[bool, typer.Option("--infer-w0", help="Infer w_0; otherwise it is a point.")] = False,
    epochs: Annotated[int | None, typer.Option(help="Epochs of a trial, instead of the preset's number.")] = None,
    kl_weight: Annotated[float, typer.Option(help="1 is the ELBO; less gives a tempered posterior.")] = 1.0,
    validation: Annotated[
        float | None,
        typer.Option(help="Share of the training part to compare trials on: a tenth by default, of tables a fifth."),
    ] = None,
    patience: Annotated[int | None, typer.Option(help="Stop after this many validations without a better NLL.")] = None,
    target: Annotated[str | None, typer.Option(help="Of a .csv file: the column to predict.")] = None,
    task: Annotated[str | None, typer.Option(help="Of a .csv file: regression or classification.")] = None,
    words: Annotated[list[str] | None, typer.Option(help="Of a .csv file: a column to take as words.")] = None,
    test: Annotated[float | None, typer.Option(help="Of your own data: the share to score on at the end.")] = None,
    size: Annotated[int | None, typer.Option(help="Of pictures: the side of the squares they are scaled to.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the trials and of the values that are tried.")] = 0,
    heartbeat: Annotated[
        int, typer.Option(help="Seconds between signs of life; a worker without any for six times as long is dead.")
    ] = sweeps.HEARTBEAT,
    show: Annotated[bool, typer.Option("--show", help="Show the trials so far, and train nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Train many runs with other parameters, and compare them by the NLL on held-out examples of the training part.

    Any number of processes may run the same command: together they finish the trials. If one is stopped or killed,
    another one takes its trial over, and the same command goes on with a sweep that was stopped. Every trial is a run
    in OUT/trials/, for evaluate, predict and report. sdebnn report OUT shows what mattered.
    """
    if show:
        _print(sweeps.results_so_far(out, storage), out, as_json)
        return
    given = {
        "preset": preset, "infer_w0": infer_w0, "epochs": epochs, "patience": patience, "size": size,
        "members": members, "kl_weight": kl_weight, "validation": validation, "target": target, "task": task,
        "words": words, "test": test, "seed": seed,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None and value != USUAL.get(name)}
    check_suits({"--space": bool(param) and space is not None}, "is another space than that of --param")
    with plain_warnings():
        if data is None:
            asked = _asked_before(out, {**given, "space": space, "param": param, "prune": not prune})
            trained = sweeps.trainee(asked.settings, of_table=asked.of_table)
            asked = asked._replace(digest=trained.digest())
        else:
            asked, trained = _asked_now(data, given, space, param, prune)
        found = sweeps.work(
            asked, trained, out, trials=trials, storage=storage, heartbeat=heartbeat,
            say=lambda said: print(said, file=sys.stderr, flush=True),
        )  # fmt: skip
    _print(found, out, as_json)


def _asked_before(out: Path, others: dict[str, Any]) -> sweeps.Sweep:
    """What was asked of the sweep in a folder, if nothing else is asked now."""
    asked, _ = sweeps.read_sweep(out)
    changed = {f"--{name.replace('_', '-')}": bool(value) for name, value in others.items()}
    check_suits(changed, f"needs --data, and the values with which {out} was made")
    return asked


def _asked_now(
    data: str, given: dict[str, Any], space: str | None, param: list[str] | None, prune: bool
) -> tuple[sweeps.Sweep, sweeps.AbstractTrainee]:
    """What the options ask for, and what is trained."""
    named = find(data)
    is_file = named is None and Path(data).suffix.lower() in TABLES
    of_table = is_file or (named is not None and named[0].is_table)
    wrong = OF_NETS if of_table else OF_FILES
    why = (
        f"is for nets of images and arrays, and {data} is a table" if of_table else f"is for tables, and {data} is none"
    )
    check_suits({f"--{name.replace('_', '-')}": name in given for name in wrong}, why)
    if named is not None:
        others = {f"--{name}": name in given for name in ("test", *OF_FILES)}
        check_suits(others, f"is for data of your own, and {data} has its own test part and target")
    if named is None and Path(data).exists():
        data = str(Path(data).resolve())  # so that the sweep can go on from any folder
    types = sweeps.TABLE_TYPES if of_table else sweeps.NET_TYPES
    name = space or ("table" if of_table else "paper")
    varied = sweeps.parsed(param, types) if param else sweeps.named_space(name, of_table=of_table)
    check_suits({f"--{each.replace('_', '-')}": each in given for each in varied}, "is swept")
    if of_table:
        settings = tables().TableSettings(data, **{"validation": 0.2, **given})
        settings = settings._replace(words=tuple(settings.words))
        trained: sweeps.AbstractTrainee = sweeps.Tables(settings)
    else:
        if not param:  # the paper's space is of nets with w_0 inferred
            given = {**given, "infer_w0": True}
        trained = sweeps.Nets(runs.Settings(data, **given))
    return sweeps.Sweep(of_table, trained.settings, varied, prune, trained.digest()), trained


def _print(found: sweeps.Results, out: Path, as_json: bool) -> None:
    """Print the trials, best first, as a table or as JSON."""
    if as_json:
        print_result({"out": str(out), **found.to_json()}, as_json)
        return
    lines = sweeps.table(found)
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    for row in found.rows:
        if row.error:
            print(f"Trial {row.number} failed: {row.error}")
    if found.best is not None:
        print(f"The best trial is a run: {out / found.best.folder}")
        print(f"For a page about the sweep: sdebnn report {shlex.quote(str(out))}")
