"""``sdebnn train``, ``sdebnn evaluate`` and ``sdebnn predict``: train a model on a data set, and use it."""

import importlib
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from sdebnn import runs
from sdebnn.checks import check_array
from sdebnn.cli.common import check_out, key_of, plain_warnings
from sdebnn.data import find, formats
from sdebnn.files import save_array
from sdebnn.prediction import predict as draws_of
from sdebnn.presets import Affine
from sdebnn.tables.kind import is_table_run

TABLES = (".csv", ".tsv")

Draws = Annotated[int | None, typer.Option(help="Posterior draws to average over; 16 of each member by default.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
RunArgument = Annotated[Path, typer.Argument(help="The folder of a run.")]
BestOption = Annotated[bool, typer.Option("--best", help="Use the parameters with the best validation score.")]


def train(
    data: Annotated[str, typer.Option(help="A data set (see sdebnn data list), a folder of .npy files, a .csv file.")],
    out: Annotated[Path, typer.Option(help="The folder of the run.")],
    target: Annotated[
        str | None, typer.Option(help="Of a .csv file: the column to predict; by default the last.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Of a .csv file: regression or classification.")] = None,
    test: Annotated[float, typer.Option(help="Of a .csv file: the share of the rows to score the model on.")] = 0.1,
    preset: Annotated[str, typer.Option(help="ours, fast, best or paper.")] = "ours",
    members: Annotated[int | None, typer.Option(help="Nets in the mixture, instead of the preset's number.")] = None,
    infer_w0: Annotated[bool, typer.Option("--infer-w0", help="Infer w_0; otherwise it is a point.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run from its last checkpoint, if any.")] = False,
    epochs: Annotated[int | None, typer.Option(help="Epochs, instead of the preset's number.")] = None,
    kl_weight: Annotated[float, typer.Option(help="1 is the ELBO; less gives a tempered posterior.")] = 1.0,
    validation: Annotated[float, typer.Option(help="Share of the training part to validate on; 0 for none.")] = 0.1,
    patience: Annotated[int | None, typer.Option(help="Stop after this many validations without a better NLL.")] = None,
    monitor: Annotated[int | None, typer.Option(help="Epochs between measurements of STL's gradient noise.")] = None,
    draws: Draws = None,
    seed: Annotated[int, typer.Option(help="Seed of the net, the split, the order and the draws.")] = 0,
    save_every: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 60.0,
    memory_limit: Annotated[int, typer.Option(help="MiB of data on the device; larger data are streamed.")] = 2048,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard logs.")] = False,
    as_json: Json = False,
) -> None:
    """Train a net on a data set, and score it on the test part. It can be stopped at any time, and resumed later.

    A .csv file is a table, whose first line names the columns. It is learned by the estimators of sdebnn in one go: if
    it is stopped, it starts anew.
    """
    if Path(data).suffix.lower() in TABLES and find(data) is None:
        others = {
            "--preset": preset != "ours", "--infer-w0": infer_w0, "--epochs": epochs is not None,
            "--patience": patience is not None, "--monitor": monitor is not None, "--draws": draws is not None,
            "--tensorboard": tensorboard, "--validation": validation != 0.1, "--save-every": save_every != 60.0,
            "--memory-limit": memory_limit != 2048,
        }  # fmt: skip
        _refuse_others(others, f"is for nets of images and arrays, and {data} is a table")
        _train_table(data, out, target, task, seed, test, members, kl_weight, resume, as_json)
        return
    others = {"--target": target is not None, "--task": task is not None, "--test": test != 0.1}
    _refuse_others(others, f"is for tables, and {data} is no .csv file")
    if find(data) is None and Path(data).exists():
        data = str(Path(data).resolve())  # so that the run can be opened from any folder
    settings = runs.Settings(data, preset, infer_w0, seed, epochs, kl_weight, validation, patience, members)
    if memory_limit < 1:
        raise ValueError(f"memory_limit={memory_limit} must be at least 1 MiB.")
    with plain_warnings():
        result = runs.train(
            settings, out, resume=resume, draws=draws, monitor=monitor, save_every=save_every,
            memory_limit=memory_limit * 2**20, tensorboard=tensorboard,
        )  # fmt: skip
    _print_result(result, as_json)


def _refuse_others(given: dict[str, bool], why: str) -> None:
    """Refuse an option that would be ignored."""
    for name, is_given in given.items():
        if is_given:
            raise ValueError(f"{name} {why}: leave it out.")


def _train_table(
    data: str, out: Path, target: str | None, task: str | None, seed: int, test: float, members: int | None,
    kl_weight: float, resume: bool, as_json: bool,
) -> None:  # fmt: skip
    tables = _tables()
    settings = tables.TableSettings(str(Path(data).resolve()), target, task, seed, test, kl_weight=kl_weight)
    if members is not None:
        settings = settings._replace(members=members)
    with plain_warnings():
        result = tables.train_table(settings, out, resume=resume, say=lambda words: print(words, file=sys.stderr))
    _print_result(result, as_json)


def _tables() -> Any:
    """The runs of tables, which need scikit-learn."""
    try:
        return importlib.import_module("sdebnn.tables.runs")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("sklearn", "scipy"):
            raise
        raise ValueError("tables need scikit-learn: pip install 'sdebnn[sklearn]'.") from None


def evaluate(
    run: RunArgument,
    data: Annotated[
        Path | None, typer.Option(help="Of a run of a table: a .csv file with the target's column.")
    ] = None,
    draws: Draws = None,
    steps: Annotated[int | None, typer.Option(help="Solver steps, instead of those of the training.")] = None,
    best: BestOption = False,
    as_json: Json = False,
) -> None:
    """Score a run's model on the test part of its data, or on a table of your own."""
    if is_table_run(run):
        tables = _tables()
        others = {"--draws": draws is not None, "--steps": steps is not None, "--best": best}
        _refuse_others(others, f"is for runs of images and arrays, and {run} is one of a table")
        with plain_warnings():
            model = tables.open_table(run)
            scores = tables.result_of(run) if data is None else tables.scores_on(model, data)
        _print_result(scores, as_json)
        return
    _refuse_others({"--data": data is not None}, f"is for runs of tables, and {run} is none")
    made, model, likelihood = runs.open_run(run, best=best)
    with plain_warnings():
        part = runs.scored_part(run, made.settings)
        scores = runs.score(made, part, model, likelihood, draws, steps)
    _print_result({**scores, "draws": runs.DRAWS * len(made.nets) if draws is None else draws}, as_json)


def predict(
    run: RunArgument,
    inputs: Annotated[Path, typer.Argument(help="A .csv file, or a .npy file, of examples like the training data.")],
    out: Annotated[Path | None, typer.Option(help="The file to write: .csv, .npy or .parquet for tables.")] = None,
    coverage: Annotated[float, typer.Option(help="Of tables: the chance that the interval contains a number.")] = 0.95,
    force: Annotated[bool, typer.Option("--force", help="Replace the output file if it exists.")] = False,
    draws: Draws = None,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    best: BestOption = False,
) -> None:
    """Predict with a run's model: class probabilities, or means and standard deviations, one row for each example.

    For a table, a row also has the parts of the uncertainty, an interval, and how unlike the training data it is.
    """
    key_of(seed)
    if is_table_run(run):
        others = {"--draws": draws is not None, "--seed": seed != 0, "--best": best}
        _refuse_others(others, f"is for runs of images and arrays, and {run} is one of a table")
        _predict_table(run, inputs, out or Path("predictions.csv"), force, coverage)
        return
    _refuse_others({"--coverage": coverage != 0.95}, f"is for runs of tables, and {run} is none")
    out = out or Path("predictions.npy")
    check_out(out, ".npy", force=force, inputs=(inputs,))
    x = formats.mapped(inputs)
    check_array(str(inputs), x, least_ndim=2)
    runs.check_inputs(run, str(inputs), x)
    made, model, likelihood = runs.open_run(run, best=best)
    if made.about.are_images and x.dtype != np.uint8:
        raise ValueError(f"{inputs} holds {x.dtype}, the run was trained on bytes: save images as uint8, 0 to 255.")
    x = x if x.dtype == np.uint8 else np.asarray(x, np.float32)
    with plain_warnings():
        first = getattr(made.nets[0].layers[0], "module", None)
        if isinstance(first, Affine):
            first.training_inputs().warn_if_unlike(x)
        draws = runs.DRAWS * len(made.nets) if draws is None else draws
        samples = draws_of(model, x, draws=draws, key=key_of(seed), draws_at_once=made.preset.draws_at_once)
    table, columns = likelihood.summary(samples)
    save_array(out, table)
    print(f"{out}: {table.shape[0]} rows of {table.shape[1]}, {columns}.")


def _predict_table(run: Path, inputs: Path, out: Path, force: bool, coverage: float) -> None:
    tables = _tables()
    tables.check_suffix(out)
    check_out(out, out.suffix, force=force, inputs=(inputs,))
    with plain_warnings():
        model = tables.open_table(run)
        columns = tables.forecast(model, model.read(inputs), where=inputs.name, coverage=coverage)
    written = tables.write_columns(out, columns)
    print(f"{out}: {len(columns['unlike'])} rows of {', '.join(written)}.")


def _print_result(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:16}{value:.5g}" if isinstance(value, float) else f"{name:16}{value}")
