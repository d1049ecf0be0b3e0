"""``sdebnn evaluate`` and ``sdebnn predict``: use the model of a run."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from sdebnn import runs
from sdebnn.cli.common import Json, check_out, check_suits, key_of, plain_warnings, print_result, tables
from sdebnn.cli.shifting import lines, shifted_scores
from sdebnn.columns import check_suffix, write_columns
from sdebnn.forecasters import open_forecaster
from sdebnn.tables.kind import is_table_run

Draws = Annotated[int | None, typer.Option(help="Posterior draws to average over; 16 of each member by default.")]
RunArgument = Annotated[Path, typer.Argument(help="The folder of a run.")]
BestOption = Annotated[bool, typer.Option("--best", help="Use the parameters with the best validation score.")]


def evaluate(
    run: RunArgument,
    data: Annotated[
        Path | None, typer.Option(help="Your own: a .csv file with the target, a folder of classes, a .npz file.")
    ] = None,
    draws: Draws = None,
    corruptions: Annotated[
        bool, typer.Option("--corruptions", help="Of images: also under 19 corruptions at 5 severities.")
    ] = False,
    ood: Annotated[
        list[str] | None,
        typer.Option(
            help="Of images: tell them from others: noise, textures, shuffled, a data set, a path. Repeatable."
        ),
    ] = None,
    steps: Annotated[
        str | None, typer.Option(help="Solver steps, instead of those of the training; several as 5,10,20.")
    ] = None,
    rtol: Annotated[str | None, typer.Option(help="Tolerances of an adaptive solver, such as 1e-2,1e-3.")] = None,
    relative_to: Annotated[
        Path | None, typer.Option(help="With --corruptions: a run by whose errors to divide, evaluated before.")
    ] = None,
    best: BestOption = False,
    as_json: Json = False,
) -> None:
    """Score a run's model on the test part of its data, or on data of your own.

    The scores on the test part are those that a run keeps; with any option, it is read again. Scores on corruptions and
    other sets are also written to shifts.json in the run's folder, for its report.
    """
    resolutions = {"steps": _numbers("steps", steps, int), "rtol": _numbers("rtol", rtol, float)}
    shifted = corruptions or bool(ood) or rtol is not None or len(resolutions["steps"]) > 1
    options = {"--draws": draws is not None, "--steps": steps is not None, "--best": best, "--rtol": rtol is not None}
    of_images = {"--corruptions": corruptions, "--ood": bool(ood), "--relative-to": relative_to is not None}
    if relative_to is not None and not corruptions:
        raise ValueError("--relative-to compares errors on corruptions: add --corruptions.")
    with plain_warnings():
        if is_table_run(run):
            unsuited = {name: given for name, given in {**options, **of_images}.items() if name != "--draws"}
            check_suits(unsuited, f"is for runs of images and arrays, and {run} is one of a table")
            if data is None:
                check_suits({"--draws": draws is not None}, f"needs --data, for {run} does not hold its test rows")
            scores = tables().result_of(run) if data is None else open_forecaster(run, draws=draws).scores(data)
        elif shifted:
            scores = shifted_scores(
                run, data, draws, best, corruptions=corruptions, ood=ood or [], relative_to=relative_to, **resolutions
            )
        elif data is not None:
            check_suits({"--steps": steps is not None}, "is for the test part of a run, and --data is given")
            scores = open_forecaster(run, draws=draws, best=best).scores(data)
        elif not any(options.values()) and (known := runs.known_scores(run)) is not None:
            scores = known
        else:
            made, model, likelihood = runs.open_run(run, best=best)
            part = runs.scored_part(run, made.settings)
            (one,) = resolutions["steps"] or (None,)
            scores = runs.score(made, part, model, likelihood, draws, one).scores
            scores = {**scores, "draws": runs.draws_of(made, draws)}
    if shifted and not as_json:
        print("\n".join(lines(scores)))
    else:
        print_result(scores, as_json)


def _numbers(name: str, text: str | None, kind: Callable[[str], Any]) -> list[Any]:
    """The numbers in an option, separated by commas."""
    try:
        found = [] if text is None else [kind(word) for word in text.split(",")]
    except ValueError:
        found = [0]
    if any(value <= 0 for value in found):
        raise ValueError(f"{name}={text} must be positive numbers, separated by commas, such as 5,10.")
    return found


def predict(
    run: RunArgument,
    inputs: Annotated[
        Path, typer.Argument(help="A .csv file for a table; a .npy or .npz file, a picture or a folder of pictures.")
    ],
    out: Annotated[Path, typer.Option(help="The file to write: .csv, .npy or .parquet.")] = Path("predictions.csv"),
    coverage: Annotated[float, typer.Option(help="The chance that the interval contains a number.")] = 0.95,
    force: Annotated[bool, typer.Option("--force", help="Replace the output file if it exists.")] = False,
    draws: Draws = None,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    best: BestOption = False,
    as_json: Json = False,
) -> None:
    """Predict with a run's model, one row for each example, with the uncertainty of every prediction.

    Of a class: the label, its probability and that of every class, the entropy and the part of it that more data would
    reduce. Of a number: the mean, the standard deviation and its parts, an interval. And how unlike the training data
    the example is: 99 % of those have at most 1.
    """
    key_of(seed)
    if is_table_run(run):
        others = {"--seed": seed != 0, "--best": best}
        check_suits(others, f"is for runs of images and arrays, and {run} is one of a table")
    check_suffix(out)
    check_out(out, out.suffix, force=force, inputs=(inputs,))
    with plain_warnings():
        forecaster = open_forecaster(run, draws=draws, seed=seed, best=best)
        columns = forecaster.forecast(forecaster.read(inputs), where=inputs.name, coverage=coverage)
    written = write_columns(out, columns)
    rows = len(columns["unlike"])
    if as_json:
        print_result({"out": str(out), "rows": rows, "columns": written}, as_json)
    else:
        print(f"{out}: {rows} rows of {', '.join(written)}.")
