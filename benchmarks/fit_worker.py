"""Time a preset on a GPU as a user trains it: ``python fit_worker.py PRESET KIND BATCH [inferred]`` prints JSON.

``fit`` runs for four epochs on 50,000 (mnist: 60,000) random images, with augmentation. The epoch time is the fastest
after the first epoch, by ``fit``'s own clock, and the compile time is the extra time of the first epoch. Then
``predict`` runs on 10,000 images with 16 draws.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
import worker_io
from jobs import gflop_of

import sdebnn
from sdebnn.data import DataSet, Part
from sdebnn.models import blocks
from sdebnn.presets import About, preset


def data(kind: str) -> DataSet:
    """Random bytes in the shape of a data set, because the contents do not affect the time."""
    random = np.random.default_rng(0)
    shape, examples = ((28, 28, 1), 60_000) if kind == "mnist" else ((32, 32, 3), 50_000)

    def part(n: int) -> Part:
        return Part(random.integers(0, 256, (n, *shape), dtype=np.uint8), random.integers(0, 10, n))

    return DataSet(kind, part(examples), part(10_000), tuple(map(str, range(10))))


def main() -> None:
    name, kind, batch = sys.argv[1], sys.argv[2], int(sys.argv[3])
    random = data(kind)
    row = preset(name, About.of(random), infer_w0="inferred" in sys.argv[4:])
    clock = time.perf_counter()
    model, recipe = row.net(jax.random.key(0)), row.training.changed(epochs=4, batch_size=batch)
    made = time.perf_counter() - clock
    with tempfile.TemporaryDirectory() as folder:
        how = {**recipe.options(), "checkpoints": sdebnn.Checkpoints(folder), "progress": False}
        sdebnn.fit(model, row.likelihood, *random.train, key=jax.random.key(1), **how)
        lines = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
    ends = [max(line["seconds"] for line in lines if line["epoch"] <= epoch) for epoch in (1, 2, 3, 4)]
    first, *others = np.diff([0.0, *ends])
    steps = len(random.train.x) // batch
    row_said = {
        "made_s": made, "epoch_s": min(others), "compile_s": first - min(others), "train_ms": 1e3 * min(others) / steps,
        "images_s": len(random.train.x) / min(others),
        "weights": sum(block.weights.size for block in blocks(model)),
        "gflop": gflop_of(model, random.train.x[:batch].astype(np.float32), 1),
    }  # fmt: skip
    stats = jax.devices()[0].memory_stats() or {}
    row_said["memory_mib"] = stats.get("peak_bytes_in_use", 0) / 2**20

    def predicted() -> float:
        clock = time.perf_counter()
        samples = sdebnn.predict(model, random.test.x, draws=16, draws_at_once=1, key=jax.random.key(2))
        jax.block_until_ready(samples)
        return time.perf_counter() - clock

    first_time = predicted()
    row_said["predict_ms"] = 1e3 * min(predicted() for _ in range(3))
    row_said["predict_compile_s"] = first_time - row_said["predict_ms"] / 1e3
    worker_io.answer(row_said, {})


if __name__ == "__main__":
    main()
