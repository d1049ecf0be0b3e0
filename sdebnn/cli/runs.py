"""``sdebnn train``, ``evaluate``, ``predict``: runs, from a name to a calibrated model."""

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from sdebnn import runs
from sdebnn.checks import check_array
from sdebnn.cli.common import check_out, key_of, plain_warnings
from sdebnn.data import formats
from sdebnn.files import save_array
from sdebnn.likelihoods import Categorical
from sdebnn.predict import predict as draws_of
from sdebnn.presets import Affine

ROWS_TO_JUDGE = 2048  # by which inputs are compared with those of the training
Draws = Annotated[int, typer.Option(help="Posterior draws to average over.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
Folder = Annotated[Path, typer.Argument(help="The folder of a run.")]
Best = Annotated[bool, typer.Option("--best", help="The parameters that did best in validation, not the run's answer.")]


def train(
    data: Annotated[str, typer.Option(help="A data set (see sdebnn data list), a folder of .npy files, a .csv file.")],
    out: Annotated[Path, typer.Option(help="The folder of the run.")],
    preset: Annotated[str, typer.Option(help="ours or paper.")] = "ours",
    inferred: Annotated[bool, typer.Option("--inferred", help="Infer w_0; otherwise it is a point.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run was stopped, if it was.")] = False,
    epochs: Annotated[int | None, typer.Option(help="Instead of the preset's.")] = None,
    kl_weight: Annotated[float, typer.Option(help="1 is the ELBO, less a tempered posterior.")] = 1.0,
    validation: Annotated[float, typer.Option(help="Share of the training part to validate on; 0 for none.")] = 0.1,
    patience: Annotated[int | None, typer.Option(help="Stop after so many epochs without a better NLL.")] = None,
    monitor: Annotated[int | None, typer.Option(help="Every so many epochs, measure whether STL pays.")] = None,
    draws: Draws = 16,
    seed: Annotated[int, typer.Option(help="Names the net, the split, the order and the draws.")] = 0,
    save_every: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 60.0,
    memory_limit: Annotated[int, typer.Option(help="MiB of data on the device; more is read as needed.")] = 2048,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write for TensorBoard.")] = False,
    as_json: Json = False,
) -> None:
    """Train a net on a data set, and score it on the test part. Stop it any time: --resume goes on from there."""
    if data not in runs.NAMES and Path(data).exists():
        data = str(Path(data).resolve())  # so that the run is found again from anywhere
    settings = runs.Settings(data, preset, inferred, seed, epochs, kl_weight, validation, patience)
    if memory_limit < 1:
        raise ValueError(f"memory_limit={memory_limit} must be at least 1 MiB.")
    with plain_warnings():
        result = runs.train(
            settings, out, resume=resume, draws=draws, monitor=monitor, save_every=save_every,
            memory_limit=memory_limit * 2**20, tensorboard=tensorboard,
        )  # fmt: skip
    _say(result, as_json)


def evaluate(
    run: Folder,
    draws: Draws = 16,
    steps: Annotated[int | None, typer.Option(help="Solve in so many steps instead of those trained with.")] = None,
    best: Best = False,
    as_json: Json = False,
) -> None:
    """Score a run's model on the test part of its data."""
    made, model, likelihood = runs.open_run(run, best=best)
    with plain_warnings():
        scores = runs.score(made, model, likelihood, draws, steps)
    _say({**scores, "draws": draws}, as_json)


def predict(
    run: Folder,
    inputs: Annotated[Path, typer.Argument(help="A .npy file of examples, as those the run was trained on.")],
    out: Annotated[Path, typer.Option(help="The .npy file to write.")] = Path("predictions.npy"),
    force: Annotated[bool, typer.Option("--force", help="Replace the file to write, if it is there.")] = False,
    draws: Draws = 16,
    seed: Annotated[int, typer.Option(help="Names the draws.")] = 0,
    best: Best = False,
) -> None:
    """Predict with a run's model: class probabilities, or means and standard deviations, one row an example."""
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
        first = getattr(made.model.layers[0], "module", None)
        if isinstance(first, Affine):
            first.warn_if_unlike(np.asarray(x[:ROWS_TO_JUDGE]))
        samples = draws_of(model, x, draws=draws, key=key_of(seed), draws_at_once=made.preset.draws_at_once)
    centers = np.asarray(likelihood.center(samples))
    if isinstance(likelihood, Categorical):
        table, meaning = centers.mean(0), "the probability of each class"
    else:
        noise = np.asarray(likelihood.variance(samples)).mean(0)
        table = np.concatenate([centers.mean(0), np.sqrt(centers.var(0) + noise)], axis=1)
        meaning = "the mean of each target, then its standard deviation"
    save_array(out, table)
    print(f"{out}: {table.shape[0]} rows of {table.shape[1]}, {meaning}.")


def _say(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:16}{value:.5g}" if isinstance(value, float) else f"{name:16}{value}")
