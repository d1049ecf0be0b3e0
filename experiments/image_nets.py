"""CIFAR-10 or MNIST by our net and its optimiser: one setting changed at a time.

    python experiments/image_nets.py [NAME=SETTING=VALUE,...  ...] [--out FOLDER] [--probabilities FOLDER]
    python experiments/image_nets.py ROW ... --corruptions           also score under corruptions, not of the test part
    python experiments/image_nets.py --mix FILE.npz FILE.npz ...        score the mean of saved probabilities

Rows train on 90 % of the training part and are scored on the rest. SDEBNN_DATA names the folder of the data.
"""

import argparse
import datetime
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sdebnn import (
    OU,
    SDEBNN,
    Batches,
    Categorical,
    Checkpoints,
    FixedGrid,
    Objective,
    Optimizer,
    fit,
    metrics,
    our_net,
    save,
)
from sdebnn.contract import draw_keys, solutions
from sdebnn.corruptions import NAMES, SEVERITIES, cached
from sdebnn.data import DataSet, Part, RandomMixing, RandomView, held_out, load, pixel_statistics
from sdebnn.models import Views, blocks
from sdebnn.processes import NoDrift
from sdebnn.train import grouped_muon

BASE = {
    "data": "cifar10", "channels": 64, "blocks": 2, "steps": 2, "gain": 2.0, "sigma": 0.2, "drift": True,
    "batch_size": 512, "rate": 4e-2, "muon": True, "epochs": 10, "ema": 0.99, "seed": 0, "cutout": 11,
    "compute": "bfloat16", "rows": 50_000, "shift": 2, "turn": 0, "stretch": 0, "mix": 0.0, "rounds": 3,
    "strength": 4.0, "finest": 16.0,
}  # fmt: skip
CORRUPTED_ROWS = 500
CURVE = ("epoch", "seconds", "loss", "kl", "accuracy", "gradient_norm", "validation_nll", "validation_accuracy")


def net_of(row: dict[str, Any], data: DataSet, *, key: jax.Array) -> SDEBNN:
    shape, looks = pixel_statistics(data)
    photos = shape[2] > 1
    return our_net(
        shape, 10, channels=[row["channels"] * 2**scale for scale in range(3 if photos else 2)],
        stem_stride=1 if photos else 2, blocks=row["blocks"], gain=row["gain"],
        drift=(1, 64, 1) if row["drift"] else NoDrift(), prior=OU(sigma=row["sigma"]),
        solver=FixedGrid(row["steps"], gradient="backprop", unroll=row["steps"]), compute=row["compute"], key=key,
        **looks,
    )  # fmt: skip


def forecast(model: SDEBNN, x: np.ndarray, draws: int, *, key: jax.Array) -> tuple[np.ndarray, float]:
    """Log-probabilities, "draw example class", and the KL in nats."""
    draw = partial(solutions, model, keys=draw_keys(key, draws, model), at_once=1)
    parts = [draw(jnp.asarray(x[i : i + 1000], float)) for i in range(0, len(x), 1000)]
    logits = jnp.concatenate([part.outputs for part in parts], axis=1)
    return np.asarray(jax.nn.log_softmax(logits)), float(parts[0].kl.mean())


def scores(log_probs: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Scores of the forecast that averages probabilities over the first axis."""
    probs = np.exp(log_probs)
    found = {"accuracy": metrics.accuracy(probs, y), "nll": metrics.nll(log_probs[:, np.arange(len(y)), y])}
    found |= {f"ece{bins}": metrics.ece(probs, y, bins) for bins in (10, 15)}
    return {name: round(float(value), 5) for name, value in found.items()}


def corrupted_scores(model: SDEBNN, part: Part, *, key: jax.Array) -> dict[str, Any]:
    """Mean scores over all corruptions of the first held-out images, by severity and in all; 4 draws."""
    x, y = part.x[:CORRUPTED_ROWS], part.y[:CORRUPTED_ROWS]
    cells = {
        (kind, severity): forecast(model, cached(x, kind, severity), draws=4, key=key)[0]
        for kind in NAMES
        for severity in SEVERITIES
    }
    by_severity = []
    for severity in SEVERITIES:
        pooled = np.concatenate([cells[kind, severity] for kind in NAMES], axis=1)
        by_severity.append(scores(pooled, np.tile(y, len(NAMES))))
    by_kind = {
        kind: round(float(np.mean([metrics.accuracy(np.exp(cells[kind, s]), y) for s in SEVERITIES])), 4)
        for kind in NAMES
    }
    mean = {score: round(float(np.mean([each[score] for each in by_severity])), 5) for score in by_severity[0]}
    return {"mean": mean, "by_severity": by_severity, "by_kind": by_kind}


def run(name: str, changes: dict[str, Any], probabilities: Path | None, corruptions: bool) -> dict[str, Any]:
    """Train one row, score it on the validation part and, if a folder is given, save it and its probabilities."""
    row = {**BASE, **changes}
    data = load(row["data"], parts=("train",))
    looks, (train, held) = pixel_statistics(data)[1], held_out(data.train, 0.1, seed=0)
    net_key, fit_key, draw_key = jax.random.split(jax.random.key(row["seed"]), 3)
    model = net_of(row, data, key=net_key)
    fill, photos = tuple(255 * mean for mean in looks["mean"]), row["data"] == "cifar10"
    view = (
        RandomView(4, flip=True, cutout=row["cutout"], fill=fill)
        if photos
        else RandomView(row["shift"], cutout=row["cutout"], fill=fill, turn=row["turn"], stretch=row["stretch"])
    )
    if row["mix"]:
        view = RandomMixing(
            view, share=row["mix"], rounds=row["rounds"], strength=row["strength"], finest=row["finest"]
        )
    with tempfile.TemporaryDirectory() as folder:
        model = fit(
            model, Categorical(), train.x[: row["rows"]], train.y[: row["rows"]], key=fit_key, epochs=row["epochs"],
            objective=Objective(draws=1, draws_at_once=1), batches=Batches(row["batch_size"], augment=view),
            optimizer=Optimizer(
                rule=partial(grouped_muon, row["rate"], orthogonal=row["muon"]), clip=1.0, ema=row["ema"]
            ),
            checkpoints=Checkpoints(folder, every=1e9),
        ).model  # fmt: skip
        log = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    held = Part(held.x[: row["rows"]], held.y[: row["rows"]])
    log_probs, kl = forecast(model, held.x, draws=16, key=draw_key)
    viewed = SDEBNN((Views(RandomView(1, flip=photos)), *model.layers))
    log_viewed, _ = forecast(viewed, held.x, draws=16, key=draw_key)
    if probabilities is not None:
        save(viewed, probabilities / f"{name}.safetensors")
        means = {"mean": log_probs, "viewed": log_viewed}
        np.savez(
            probabilities / f"{name}.npz", y=held.y,
            **{each: np.float16(np.log(np.exp(of).mean(0))) for each, of in means.items()},
        )  # fmt: skip
    found, single = scores(log_probs, held.y), [scores(draw[None], held.y) for draw in log_probs]
    epochs = [point for point in log if point["epoch"] == int(point["epoch"])]
    fall = max(point["accuracy"] for point in epochs) - epochs[-1]["accuracy"]
    under = {"corrupted": corrupted_scores(viewed, held, key=draw_key)} if corruptions else {}
    return {
        "row": name, "settings": row, **found, **under, "views": scores(log_viewed, held.y), "kl": round(kl, 2),
        "skipped_steps": log[-1]["skipped"],
        "one_draw": {score: round(float(np.mean([each[score] for each in single])), 5) for score in found},
        "collapsed": bool(found["accuracy"] < 0.5 or fall > 0.1), "compile_seconds": log[0]["seconds"],
        "seconds_an_epoch": round(float(np.median(np.diff([point["seconds"] for point in epochs]))), 3),
        "random_weights": sum(block.weights.size for block in blocks(model)),
        "device": jax.devices()[0].device_kind, "jax": jax.__version__, "date": str(datetime.date.today()),
        "curve": [{column: round(point[column], 5) for column in CURVE if column in point} for point in epochs],
    }  # fmt: skip


def _value(text: str) -> Any:
    """A number or true or false, or else a word."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", help="NAME=SETTING=VALUE,..., such as wide=channels=128,epochs=50")
    parser.add_argument("--out", type=Path, default=Path("results/exploration/image-nets"))
    parser.add_argument("--probabilities", type=Path)
    parser.add_argument("--corruptions", action="store_true")
    parser.add_argument("--mix", type=np.load, nargs="+")
    given = parser.parse_args()
    for which in ("mean", "viewed") if given.mix else ():
        print(which, scores(np.stack([file[which] for file in given.mix]).astype(np.float32), given.mix[0]["y"]))
    for each in given.rows:
        name, _, text = each.partition("=")
        changes = {k: _value(v) for k, v in (pair.split("=") for pair in text.split(",") if pair)}
        found = run(name, changes, given.probabilities, given.corruptions)
        print({k: v for k, v in found.items() if k != "curve"}, flush=True)
        (given.out / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
