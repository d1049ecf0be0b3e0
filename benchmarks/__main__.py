"""Compare training and prediction with torchsde, diffrax as documented and a bare ``lax.scan``: a table, and JSON.

All use the same net, weights, noise dimension, batch and steps (``jobs.py``), each in a process of its own
(``jax_worker.py``, ``torch_worker.py``). On a CPU the processes take turns, so that other load affects all of them, and
ratios are medians over the turns; a GPU is used by one process at a time. The mean losses must agree within four
standard errors (plus a thousandth on a GPU, whose products are rounded), otherwise there is no table. A training step
is the loss, its gradient and Adam; a prediction is one call that takes one batch through the job's draws. Useful
arithmetic is that of the hidden units (``jobs.gflop``); the ceiling is a large matrix product, timed in the same run.
On a GPU, the jobs are the paper's nets: ours in bfloat16, with and without sdebnn-hopper (if it is installed), and in
float32 like the others; then whole epochs of ``fit`` and a prediction of 10,000 images with 16 draws
(``fit_worker.py``). On other devices, they are the toy and the wide job, and the growth of cost with the number of
weights and steps (``growth.py``).

    python benchmarks [--jobs toy wide] [--by sdebnn "bare lax.scan"] [--turns 15] [--at-once 1] [--patience 600]
                      [--json FILE] [--torch-python PYTHON]
"""

import argparse
import json
import math
import os
import shlex
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import record
from growth import growth
from jobs import ON_CPU, ON_GPU, Job, exported, gflop
from rich.console import Console
from rich.table import Table
from worker_io import Worker

OURS = ("sdebnn", "sdebnn, XLA alone", "sdebnn, float32")  # only the first, unless on a GPU
PEERS = ("bare lax.scan", "diffrax, as documented", "torchsde")
# Presets as a user trains them: the preset, the data, the batch size, and whether w_0 is inferred.
FITS = {
    "fit paper mnist 128": ("paper", "mnist", "128"),
    "fit paper mnist 128 inferred": ("paper", "mnist", "128", "inferred"),
    "fit paper cifar 128": ("paper", "cifar", "128"),
    "fit paper cifar 128 inferred": ("paper", "cifar", "128", "inferred"),
    "fit ours mnist 512": ("ours", "mnist", "512"),
    "fit ours mnist 512 inferred": ("ours", "mnist", "512", "inferred"),
    "fit ours cifar 256": ("ours", "cifar", "256"),
    "fit ours cifar 512": ("ours", "cifar", "512"),
    "fit ours cifar 512 inferred": ("ours", "cifar", "512", "inferred"),
}
Rows = dict[str, dict[str, Any]]

console = Console(width=None if sys.stdout.isatty() else 170)


def ceiling(gpu: bool) -> float:
    """TFLOP/s of a large matrix product: bfloat16 on a GPU, float32 elsewhere."""
    size, dtype = (8192, jnp.bfloat16) if gpu else (2048, jnp.float32)
    a = jax.random.normal(jax.random.key(0), (size, size)).astype(dtype)
    product = jax.jit(lambda a: a @ a)
    best = math.inf
    for _ in range(10):
        product(a).block_until_ready()
        clock = time.perf_counter()
        product(a).block_until_ready()
        best = min(best, time.perf_counter() - clock)
    return 2 * size**3 / best / 1e12


def started(job: Job, gpu: bool, options: argparse.Namespace) -> Iterator[tuple[dict[str, Worker], Rows]]:
    """The workers of a job that are ready, and their compile times, for each group that compiles at the same time."""
    with tempfile.TemporaryDirectory() as folder:
        about, arrays = exported(job)
        Path(folder, "about.json").write_text(json.dumps(about))
        np.savez(Path(folder, "arrays.npz"), **{name: np.asarray(value) for name, value in arrays.items()})
        names = [who for who in (*OURS, *PEERS) if who in options.by]
        for some in (names[i : i + options.at_once] for i in range(0, len(names), options.at_once)):
            console.print(f"[dim]{job.name}: {'; '.join(some)}: compiling[/dim]")
            workers, rows = {who: _worker(who, job, folder, options) for who in some}, {}
            for who, worker in list(workers.items()):
                ready = worker.ready()
                if isinstance(ready, str):
                    console.print(f"{job.name}: no row for {who}: {ready}", markup=False)
                    workers.pop(who).close()
                else:
                    rows[who] = ready
            yield workers, rows


def _worker(who: str, job: Job, folder: str, options: argparse.Namespace) -> Worker:
    if who == "torchsde":
        return Worker(options.torch_python, "torch_worker.py", folder, patience=options.patience)
    arguments = job.kind, str(job.batch), str(job.draws), who
    return Worker(sys.executable, "jax_worker.py", *arguments, patience=options.patience)


def measured(job: Job, gpu: bool, options: argparse.Namespace) -> Rows:
    """The rows of a job. Workers take turns on a CPU, and run one after the other on a GPU.

    On a GPU, a group of workers finishes before the next group compiles, because together they may fill its memory.
    """
    rows: Rows = {}
    times, losses = defaultdict(list), defaultdict(list)
    waiting: dict[str, Worker] = {}

    def ask(some: dict[str, Worker]) -> None:
        for who, why in _ask_in_turn(some, options.turns, times, losses).items():
            console.print(f"{job.name}: no row for {who}: {why}", markup=False)
            del rows[who]

    for workers, new in started(job, gpu, options):
        rows |= new
        if gpu:
            for who, worker in workers.items():
                ask({who: worker})
        else:
            waiting |= workers
    if not gpu:
        ask(waiting)
    _fill(job, rows, times, losses)
    return rows


def _fill(job: Job, rows: Rows, times: dict, losses: dict) -> None:
    """Add medians, mean losses and, if sdebnn has a row, ratios to it."""
    arithmetic = gflop(job)
    for who, row in rows.items():
        row["train_ms"], row["predict_ms"] = (float(np.median(times[what, who])) for what in ("train", "predict"))
        row["images_s"] = 1e3 * job.batch / row["train_ms"]
        row["tflops"] = arithmetic / row["train_ms"]
        for what in ("train", "predict") if "sdebnn" in rows else ():
            row[f"{what}_ratio"] = float(np.median(np.array(times[what, who]) / np.array(times[what, "sdebnn"])))
        means, counts = np.array(losses[who]).T
        row["loss"] = float(np.average(means, weights=counts))
        spread = np.sum(counts * (means - row["loss"]) ** 2) / (len(means) - 1)  # variance of the loss of one step
        row["loss_error"] = math.sqrt(spread / counts.sum())


def _ask_in_turn(workers: dict[str, Worker], turns: int, times: dict, losses: dict) -> dict[str, str]:
    """Run each worker ``turns`` times for about a quarter of a second, then close it; returns errors of dead ones."""
    counts, dead = {}, {}
    for turn in range(turns + 2):  # the first two warm up, and determine the number of steps in a turn
        for what in ("train", "predict"):
            for who, worker in workers.items():
                if who in dead:
                    continue
                count = counts.get((what, who), 1)
                try:
                    said = worker.ask(what, count)
                except ChildProcessError as error:
                    dead[who] = str(error)
                    continue
                losses[who] += [(loss, count / len(said["losses"])) for loss in said["losses"]]
                if turn == 1:
                    counts[what, who] = max(1, min(200, round(250 / said["ms"])))
                elif turn > 1:
                    times[what, who].append(said["ms"])
    for worker in workers.values():
        worker.close()
    return dead


def check(job: Job, rows: Rows, gpu: bool) -> None:
    """Stop unless all losses have the same mean as that of a peer."""
    peer = next((who for who in PEERS if who in rows), None)
    if peer is None:
        console.print(f"{job.name}: no peer has a row, so the losses are not checked.", markup=False)
        return
    first = rows[peer]
    for who, row in rows.items():
        allowed = 4 * math.hypot(row["loss_error"], first["loss_error"])
        allowed += 1e-3 * abs(first["loss"]) if gpu else 0  # bfloat16, and the tensor cores' float32
        if not abs(row["loss"] - first["loss"]) <= allowed:
            raise SystemExit(
                f"{job.name}: the loss of {who} is {row['loss']:.2f} ± {row['loss_error']:.2f}, that of {peer} "
                f"{first['loss']:.2f} ± {first['loss_error']:.2f}: they do not compute the same."
            )


def fitted(name: str, patience: float) -> Rows:
    """The times of whole epochs of a preset, and of a prediction of 10,000 images with 16 draws; empty if it failed."""
    console.print(f"[dim]{name}: four epochs[/dim]")
    worker = Worker(sys.executable, "fit_worker.py", *FITS[name], patience=patience)
    ready = worker.ready()
    worker.close()
    if isinstance(ready, str):
        console.print(f"{name}: no row: {ready}", markup=False)
        return {}
    return {"sdebnn": {**ready, "tflops": ready["gflop"] / ready["train_ms"]}}


def table(results: dict[str, Rows], top: float, gpu: bool) -> Table:
    title = f"a training step, and a prediction (ceiling: {top:.3g} TFLOP/s of {'bfloat16' if gpu else 'float32'})"
    shown = Table(title=title, title_justify="left")
    columns = {
        "compile s": ("compile_s", ".1f"), "ms a step": ("train_ms", ".2f"), "× ours": ("train_ratio", ".2f"),
        "images/s": ("images_s", ",.0f"), "peak MiB": ("memory_mib", ".0f"), "TFLOP/s": ("tflops", ".3g"),
        "of ceiling": ("share", ".1%"), "predict ms": ("predict_ms", ".1f"), "× ours ": ("predict_ratio", ".2f"),
        "loss": ("loss", ".1f"), "± s.e.": ("loss_error", ".1f"), "epoch s": ("epoch_s", ".2f"),
    }  # fmt: skip
    if not gpu:
        del columns["epoch s"]
    shown.add_column("job")
    shown.add_column("by")
    for title in columns:
        shown.add_column(title, justify="right", no_wrap=True)
    for job, rows in results.items():
        for who, row in rows.items():
            cells = [format(row[name], form) if name in row else "" for name, form in columns.values()]
            shown.add_row(job, who, *cells)
        shown.add_section()
    return shown


def main() -> None:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # leaves the GPU's memory to the workers
    gpu = jax.default_backend() == "gpu"
    jobs = {job.name: job for job in (ON_GPU if gpu else ON_CPU)}
    names = [*jobs, *(FITS if gpu else ["growth"])]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", nargs="+", choices=names, default=names, metavar="JOB")
    everyone = (*OURS[: None if gpu else 1], *PEERS)
    parser.add_argument("--by", nargs="+", choices=everyone, default=everyone, metavar="WHO")
    parser.add_argument("--turns", type=int, default=15)
    at_once = "workers that compile at the same time: compile times are then not comparable, and memory is shared"
    parser.add_argument("--at-once", type=int, default=1, help=at_once)
    patience = "seconds that a row may take to compile, or that the epochs and predictions of a preset may take"
    parser.add_argument("--patience", type=float, default=600, help=patience)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--torch-python", default=sys.executable, help="an interpreter with torch and torchsde")
    options = parser.parse_args()
    load = os.getloadavg()[0]  # before this benchmark adds its own
    if load > 0.5 and not gpu:
        console.print(f"The machine is busy (load {load:.1f}): do not trust the times.")
    top, results, more = ceiling(gpu), {}, {}

    def keep() -> None:
        """Write the results so far, so that a run that is stopped loses nothing."""
        if options.json:
            about = {"load_before": load, "ceiling_tflops": top, "compiled_side_by_side": options.at_once}
            record.write(options.json, "python benchmarks " + shlex.join(sys.argv[1:]), **about, jobs=results, **more)

    for name in options.jobs:
        if name in jobs:
            results[name] = measured(jobs[name], gpu, options)
            check(jobs[name], results[name], gpu)
        elif name in FITS and "sdebnn" in options.by:
            results[name] = fitted(name, options.patience)
        elif name == "growth":
            more["growth"] = growth(console)
        for row in results.get(name, {}).values():
            row["share"] = row["tflops"] / top
        keep()
    if results:
        console.print(table(results, top, gpu))


if __name__ == "__main__":
    main()
