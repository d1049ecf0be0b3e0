"""CIFAR-10 with norms inside the field, dh/dt = conv2(gelu(norm(conv1(gelu(norm(h)))))): one setting changed at a time.

    python experiments/norm_field.py [ROW ...] [--out results/exploration/norm-field] [--probabilities FOLDER]
    python experiments/norm_field.py --mix FILE.npz FILE.npz ...        score the mean of saved probabilities

Rows train on 90 % of the training part and are scored on the rest. SDEBNN_DATA names the folder of the data.
"""

import argparse
import datetime
import json
import math
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
    Deterministic,
    FixedGrid,
    Objective,
    Optimizer,
    Validation,
    bayesianize,
    fit,
    metrics,
)
from sdebnn.contract import draw_keys, solutions
from sdebnn.convolutions import Conv, GroupNorm, Pixels, TimeConvLayer, pooled
from sdebnn.data import RandomView, held_out, load, pixel_statistics
from sdebnn.fields import AbstractLayer, Readout
from sdebnn.models import SDEBlock
from sdebnn.processes import NoDrift
from sdebnn.train import grouped_adam

BASE = {
    "channels": 64, "blocks": 2, "steps": 2, "gain": 2.0, "sigma": 0.2, "drift": True, "batch_size": 512, "rate": 4e-2,
    "epochs": 10, "ema": 0.99, "seed": 0,
}  # fmt: skip
LONG = {"channels": 128, "epochs": 50, "ema": 0.998}
NOISELESS = {"sigma": 1e-3, "drift": False}  # the drift net's KL grows as 1 / sigma²
ROWS = {
    "base": {}, "w128": {"channels": 128}, "w32": {"channels": 32}, "b4": {"blocks": 4}, "b1": {"blocks": 1},
    "w128-b4": {"channels": 128, "blocks": 4}, "w32-b1": {"channels": 32, "blocks": 1}, "base-seed1": {"seed": 1},
    "sigma0": NOISELESS, "sigma0-drift": {"sigma": 1e-3}, "sigma0.05": {"sigma": 0.05}, "sigma0.4": {"sigma": 0.4},
    "steps4": {"steps": 4}, "steps8": {"steps": 8}, "batch128": {"batch_size": 128}, "batch1024": {"batch_size": 1024},
    "gain1": {"gain": 1.0}, "gain4": {"gain": 4.0}, "rate2e-2": {"rate": 2e-2}, "rate8e-2": {"rate": 8e-2},
    "rate16e-2": {"rate": 0.16}, "batch128-sigma0": {**NOISELESS, "batch_size": 128},
    "w128-batch128": {"channels": 128, "batch_size": 128}, "long-batch128": {**LONG, "batch_size": 128},
    **{f"long-batch128-seed{seed}": {**LONG, "batch_size": 128, "seed": seed} for seed in (1, 2, 3)},
    "long-batch256-rate8e-2": {**LONG, "batch_size": 256, "rate": 8e-2},
    "long-seed0": LONG, "long-seed1": {**LONG, "seed": 1}, "long-sigma0-seed0": {**LONG, **NOISELESS},
}  # fmt: skip
CURVE = ("epoch", "seconds", "loss", "kl", "accuracy", "gradient_norm", "validation_nll", "validation_accuracy")


class NormField(AbstractLayer):
    """conv2(gelu(norm2(conv1(gelu(norm1(h)))))); the last convolution starts at zero."""

    norm1: GroupNorm
    conv1: TimeConvLayer
    norm2: GroupNorm
    conv2: TimeConvLayer

    def __init__(self, channels: int, gain: float, *, key: jax.Array):
        first, second = jax.random.split(key)
        layer = partial(TimeConvLayer, channels, channels, time=False, bias_scale=0.1)
        self.norm1, self.norm2 = (GroupNorm(channels, activation=jax.nn.gelu) for _ in range(2))
        self.conv1 = layer(gain=math.sqrt(2), key=first)
        self.conv2 = jax.tree.map(jnp.zeros_like, layer(gain=gain, key=second))

    @property
    def takes_batch(self) -> bool:
        return True

    def __call__(self, t: Any, h: jax.Array) -> jax.Array:
        z = self.conv1(t, self.norm1(h).astype(jnp.bfloat16))
        return self.conv2(t, self.norm2(z).astype(jnp.bfloat16)).astype(h.dtype)


def norm_net(row: dict[str, Any], pixels: Pixels, *, key: jax.Array) -> SDEBNN:
    """Three scales of blocks, with strided convolutions between; only the convolutions of the blocks are random."""
    keys, width = iter(jax.random.split(key, 100)), row["channels"]
    norm, conv = partial(GroupNorm, activation=jax.nn.gelu), partial(Conv, compute="bfloat16")
    solver = FixedGrid(row["steps"], gradient="backprop", unroll=row["steps"])
    random = partial(bayesianize, where=lambda f: (f.conv1, f.conv2), prior=OU(sigma=row["sigma"]), solver=solver)
    layers: list[Any] = [pixels, conv(8, width, key=next(keys))]
    for scale in range(3):
        if scale:
            layers += [norm(width), conv(width, 2 * width, stride=2, key=next(keys))]
            width *= 2
        for _ in range(row["blocks"]):
            field = NormField(width, row["gain"], key=next(keys))
            layers.append(random(field, drift=(1, 64, 1) if row["drift"] else NoDrift(), key=next(keys)))
    layers += [norm(width), pooled, Readout(width, 10, key=next(keys))]
    return SDEBNN(tuple(layer if isinstance(layer, SDEBlock) else Deterministic(layer) for layer in layers))


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


def run(name: str, probabilities: Path | None) -> dict[str, Any]:
    """Train one row, score it on the validation part and, if a folder is given, save its probabilities there."""
    row, data = {**BASE, **ROWS[name]}, load("cifar10", parts=("train",))
    (shape, looks), (train, held) = pixel_statistics(data), held_out(data.train, 0.1, seed=0)
    net_key, fit_key, draw_key = jax.random.split(jax.random.key(row["seed"]), 3)
    model = norm_net(row, Pixels(shape, looks["mean"], looks["std"], 8 - shape[2]), key=net_key)
    view = RandomView(4, flip=True, cutout=11, fill=tuple(255 * mean for mean in looks["mean"]))
    with tempfile.TemporaryDirectory() as folder:
        model = fit(
            model, Categorical(), *train, key=fit_key, epochs=row["epochs"],
            objective=Objective(draws=1, draws_at_once=1), batches=Batches(row["batch_size"], augment=view),
            optimizer=Optimizer(rule=partial(grouped_adam, row["rate"]), clip=1.0, ema=row["ema"]),
            validation=Validation(*held, every=5) if row["epochs"] > 10 else None,
            checkpoints=Checkpoints(folder, every=1e9),
        ).model  # fmt: skip
        log = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    log_probs, kl = forecast(model, held.x, draws=16, key=draw_key)
    if probabilities is not None:
        np.savez(probabilities / f"{name}.npz", mean=np.float16(np.log(np.exp(log_probs).mean(0))), y=held.y)
    found, single = scores(log_probs, held.y), [scores(draw[None], held.y) for draw in log_probs]
    epochs = [point for point in log if point["epoch"] == int(point["epoch"])]
    fall = max(point["accuracy"] for point in epochs) - epochs[-1]["accuracy"]
    return {
        "row": name, "settings": row, **found, "kl": round(kl, 2), "skipped_steps": log[-1]["skipped"],
        "one_draw": {score: round(float(np.mean([each[score] for each in single])), 5) for score in found},
        "collapsed": bool(found["accuracy"] < 0.5 or fall > 0.1), "compile_seconds": log[0]["seconds"],
        "seconds_an_epoch": round(float(np.median(np.diff([point["seconds"] for point in epochs]))), 3),
        "random_weights": sum(layer.weights.size for layer in model.layers if isinstance(layer, SDEBlock)),
        "device": jax.devices()[0].device_kind, "jax": jax.__version__, "date": str(datetime.date.today()),
        "curve": [{column: round(point[column], 5) for column in CURVE if column in point} for point in epochs],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(ROWS)}; all, unless told")
    parser.add_argument("--out", type=Path, default=Path("results/exploration/norm-field"))
    parser.add_argument("--probabilities", type=Path)
    parser.add_argument("--mix", type=np.load, nargs="+")
    given = parser.parse_args()
    if given.mix:
        print(scores(np.stack([file["mean"] for file in given.mix]).astype(np.float32), given.mix[0]["y"]))
    for name in [] if given.mix else given.rows or ROWS:
        (given.out / f"{name}.json").write_text(json.dumps(run(name, given.probabilities), indent=1) + "\n")


if __name__ == "__main__":
    main()
