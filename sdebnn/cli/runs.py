"""``sdebnn train``, ``sdebnn evaluate`` and ``sdebnn predict``: train a model on a data set, and use it."""

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from sdebnn import runs
from sdebnn.checks import check_array
from sdebnn.cli.common import check_out, key_of, plain_warnings
from sdebnn.data import find, formats
from sdebnn.files import save_array
from sdebnn.predict import predict as draws_of
from sdebnn.presets import Affine

Draws = Annotated[int | None, typer.Option(help="Posterior draws to average over; 16 of each member by default.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
RunArgument = Annotated[Path, typer.Argument(help="The folder of a run.")]
BestOption = Annotated[bool, typer.Option("--best", help="Use the parameters with the best validation score.")]


def train(
    data: Annotated[str, typer.Option(help="A data set (see sdebnn data list), a folder of .npy files, a .csv file.")],
    out: Annotated[Path, typer.Option(help="The folder of the run.")],
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
    """Train a net on a data set, and score it on the test part. It can be stopped at any time, and resumed later."""
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


def evaluate(
    run: RunArgument,
    draws: Draws = None,
    steps: Annotated[int | None, typer.Option(help="Solver steps, instead of those of the training.")] = None,
    best: BestOption = False,
    as_json: Json = False,
) -> None:
    """Score a run's model on the test part of its data."""
    made, model, likelihood = runs.open_run(run, best=best)
    with plain_warnings():
        scores = runs.score(made, model, likelihood, draws, steps)
    _print_result({**scores, "draws": draws or runs.DRAWS * len(made.nets)}, as_json)


def predict(
    run: RunArgument,
    inputs: Annotated[Path, typer.Argument(help="A .npy file of examples like those of the training data.")],
    out: Annotated[Path, typer.Option(help="The .npy file to write.")] = Path("predictions.npy"),
    force: Annotated[bool, typer.Option("--force", help="Replace the output file if it exists.")] = False,
    draws: Draws = None,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    best: BestOption = False,
) -> None:
    """Predict with a run's model: class probabilities, or means and standard deviations, one row for each example."""
    key_of(seed)
    check_out(out, ".npy", force=force, inputs=(inputs,))
    x = formats.mapped(inputs)
    check_array(str(inputs), x, least_ndim=2)
    runs.check_inputs(run, str(inputs), x)
    made, model, likelihood = runs.open_run(run, best=best)
    if made.data.train.x.dtype == np.uint8 != x.dtype:
        raise ValueError(f"{inputs} holds {x.dtype}, the run was trained on bytes: save images as uint8, 0 to 255.")
    x = x if x.dtype == np.uint8 else np.asarray(x, np.float32)
    with plain_warnings():
        first = getattr(made.nets[0].layers[0], "module", None)
        if isinstance(first, Affine):
            first.training_inputs().warn_if_unlike(x)
        draws = draws or runs.DRAWS * len(made.nets)
        samples = draws_of(model, x, draws=draws, key=key_of(seed), draws_at_once=made.preset.draws_at_once)
    table, columns = likelihood.summary(samples)
    save_array(out, table)
    print(f"{out}: {table.shape[0]} rows of {table.shape[1]}, {columns}.")


def _print_result(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:16}{value:.5g}" if isinstance(value, float) else f"{name:16}{value}")
