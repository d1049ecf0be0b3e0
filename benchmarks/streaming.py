"""Compare training on data that are read ahead of the steps with training on the same data on the device.

    python benchmarks/streaming.py --json benchmarks/streaming.json

Random images are saved as .npy shards, and ``fit`` may keep a tenth of their bytes in memory. A streamed and a resident
training of one net with one key run in one process and take turns of five seconds, the length of a call of ``fit``.
The pages of the files that the system has cached are dropped twice a second, so that rows are read from the disk.
Prints the ratio of their steps per second, and per second of processor time, in each pair of turns, the seconds for
which the run waited for rows, and whether the parameters agree. Processor time includes that of the thread that reads,
and is disturbed less by other programs.
"""

import argparse
import json
import mmap
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, Event, Thread
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import optax
import record

import sdebnn
from sdebnn.data import Part, ShardedRows, load
from sdebnn.nets import our_net
from sdebnn.train import RunFolder

SIDE, CLASSES, SHARDS = 32, 10, 8
SECONDS_A_TURN = 5.0
NAMES = ("resident", "streamed")
ADAM = optax.adam(1e-3)  # one object, so that all trainings use one program


class Spent(NamedTuple):
    """Steps, and the seconds and the seconds of processor time that they took."""

    steps: int
    seconds: float
    processor: float

    @staticmethod
    def until(step: int) -> "Spent":
        return Spent(step, time.perf_counter(), time.process_time())

    def since(self, begin: "Spent") -> "Spent":
        return Spent(*(now - then for now, then in zip(self, begin, strict=True)))


class Turns:
    """Lets two trainings run one after the other, five seconds each, and keeps what was done in each turn."""

    def __init__(self) -> None:
        self.condition, self.running = Condition(), NAMES[0]
        self.ended: set[str] = set()
        self.done: dict[str, list[Spent]] = {name: [] for name in NAMES}
        self.waited = 0.0

    def wait(self, name: str) -> None:
        """Wait for a turn."""
        with self.condition:
            self.condition.wait_for(lambda: self.running == name)

    def hand_over(self, name: str) -> None:
        """End a turn; the other training is next if it has not ended."""
        with self.condition:
            other = NAMES[1 - NAMES.index(name)]
            self.running = name if other in self.ended else other
            self.condition.notify_all()

    def end(self, name: str) -> None:
        """End a training."""
        self.ended.add(name)
        self.hand_over(name)


class Log(RunFolder):
    """The folder of a training that lets the other run once it has logged the last steps of its turn."""

    def __init__(self, path: Path, name: str, turns: Turns):
        super().__init__(path)
        self.name, self.turns = name, turns
        self.begin: Spent | None = None

    def log(self, row: dict[str, Any]) -> None:
        super().log(row)
        self.turns.waited = row.get("waited_for_data", self.turns.waited)
        if self.begin is not None:
            spent = Spent.until(row["step"]).since(self.begin)
            if spent.seconds < SECONDS_A_TURN:
                return
            self.turns.done[self.name].append(spent)
        self.turns.hand_over(self.name)
        self.turns.wait(self.name)
        self.begin = Spent.until(row["step"])


def save_shards(folder: Path, examples: int) -> None:
    """Random images with labels that depend on their brightness; the test part is empty but for two rows."""
    rng = np.random.default_rng(0)
    for number, rows in enumerate(np.array_split(np.arange(examples), SHARDS)):
        y = rows % CLASSES
        x = rng.integers(0, 156, (len(rows), SIDE, SIDE, 3), np.uint8) + (10 * y).astype(np.uint8)[:, None, None, None]
        np.save(folder / f"x_train-{number:05d}.npy", x)
        np.save(folder / f"y_train-{number:05d}.npy", y)
    np.save(folder / "x_test.npy", np.zeros((CLASSES, SIDE, SIDE, 3), np.uint8))
    np.save(folder / "y_test.npy", np.arange(CLASSES))


@contextmanager
def dropped_pages(rows: ShardedRows) -> Iterator[None]:
    """Drop the cached pages of the files twice a second."""
    over = Event()

    def drop() -> None:
        while not over.wait(0.5):
            for shard, name in zip(rows.shards, rows.names, strict=True):
                shard.base.madvise(mmap.MADV_DONTNEED)
                with open(name, "rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    thread = Thread(target=drop)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def train(name: str, part: Part, turns: Turns, arguments: argparse.Namespace) -> list[np.ndarray]:
    """The parameters after a training; the first step, for which the program is compiled, is not counted."""
    channels, size = tuple(arguments.channels), part.x.size * part.x.dtype.itemsize
    limit = size // 10 if name == "streamed" else size
    net = our_net((SIDE, SIDE, 3), CLASSES, channels=channels, blocks=1, compute="float32", key=jax.random.key(0))
    turns.wait(name)
    try:
        with tempfile.TemporaryDirectory() as folder, Log(Path(folder), name, turns) as log:
            fitted = sdebnn.fit(
                net, sdebnn.Categorical(), part.x, part.y, key=jax.random.key(1), epochs=arguments.epochs,
                objective=sdebnn.Objective(draws=1), batches=sdebnn.Batches(arguments.batch, memory_limit=limit),
                optimizer=sdebnn.Optimizer(rule=ADAM), checkpoints=sdebnn.Checkpoints(log), progress=False,
            )  # fmt: skip
    finally:
        turns.end(name)
    return [np.array(leaf) for leaf in jax.tree.leaves(eqx.filter(fitted.model, eqx.is_inexact_array))]


def compare(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """The rates of both trainings in each pair of turns, and what else is compared."""
    part, turns = load(str(folder)).train, Turns()
    assert isinstance(part.x, ShardedRows)
    with dropped_pages(part.x), ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(train, name, part, turns, arguments) for name in NAMES]
        resident, streamed = (job.result() for job in jobs)
    pairs = list(zip(turns.done["resident"], turns.done["streamed"], strict=False))
    return {
        "bytes": part.x.size, "memory_limit": part.x.size // 10,
        "steps": arguments.epochs * (len(part.x) // arguments.batch), "pairs of turns": len(pairs),
        "streamed to resident, steps a second": ratio(pairs, 1),
        "streamed to resident, steps a second of processor time": ratio(pairs, 2),
        "seconds waited for data": turns.waited,
        "parameters are equal bit for bit": all(map(np.array_equal, resident, streamed)),
        "largest difference": max(float(np.abs(a - b).max()) for a, b in zip(resident, streamed, strict=True)),
        "milliseconds a step": {
            name: [round(1000 * spent.seconds / spent.steps, 2) for spent in turns.done[name]] for name in NAMES
        },
    }  # fmt: skip


def ratio(pairs: list[tuple[Spent, Spent]], clock: int) -> dict[str, float | list[float]]:
    """The rate of streamed steps over that of resident ones by a clock: median and quartiles of the pairs."""
    found = [there[0] / there[clock] * here[clock] / here[0] for here, there in pairs]
    low, median, high = (round(each, 4) for each in statistics.quantiles(found, n=4))
    return {"median": median, "quartiles": [low, high]}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--examples", type=int, default=100_000)
    options.add_argument("--batch", type=int, default=16)
    options.add_argument("--channels", type=int, nargs="+", default=[16, 32])
    options.add_argument("--epochs", type=int, default=1)
    options.add_argument("--json", type=Path, help="write the table to this file")
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        save_shards(Path(name), arguments.examples)
        found = compare(Path(name), arguments)
    print(json.dumps(found, indent=2))
    if arguments.json:
        sizes = {name: getattr(arguments, name) for name in ("examples", "batch", "channels", "epochs")}
        record.write(arguments.json, " ".join(["python", *sys.argv]), sizes=sizes, **found)


if __name__ == "__main__":
    main()
