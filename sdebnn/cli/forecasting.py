"""``sdebnn evaluate`` and ``sdebnn predict``: use the model of a run."""

from pathlib import Path
from typing import Annotated

import typer

from sdebnn import runs
from sdebnn.cli.common import Json, check_out, check_suits, key_of, plain_warnings, print_result, tables
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
    steps: Annotated[int | None, typer.Option(help="Solver steps, instead of those of the training.")] = None,
    best: BestOption = False,
    as_json: Json = False,
) -> None:
    """Score a run's model on the test part of its data, or on data of your own.

    The scores on the test part are those that a run keeps; with another number of draws or steps, it is read again.
    """
    others = {"--draws": draws is not None, "--steps": steps is not None, "--best": best}
    with plain_warnings():
        if is_table_run(run):
            unsuited = {"--steps": steps is not None, "--best": best}
            check_suits(unsuited, f"is for runs of images and arrays, and {run} is one of a table")
            if data is None:
                check_suits({"--draws": draws is not None}, f"needs --data, for {run} does not hold its test rows")
            scores = tables().result_of(run) if data is None else open_forecaster(run, draws=draws).scores(data)
        elif data is not None:
            check_suits({"--steps": steps is not None}, "is for the test part of a run, and --data is given")
            scores = open_forecaster(run, draws=draws, best=best).scores(data)
        else:
            if not any(others.values()) and (known := runs.known_scores(run)) is not None:
                print_result(known, as_json)
                return
            made, model, likelihood = runs.open_run(run, best=best)
            part = runs.scored_part(run, made.settings)
            scores = runs.score(made, part, model, likelihood, draws, steps).scores
            scores = {**scores, "draws": runs.draws_of(made, draws)}
    print_result(scores, as_json)


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
