"""MNIST and CIFAR-10 by the command line, on one GPU: each row of the table is one run and one JSON file.

    python experiments/images.py [ROW ...] [--out results] [--runs FOLDER] [--seed 0]
    python experiments/images.py --draw         only draw what is in results/

A file holds the command, versions, device, seed, seconds, scores on the test part (16 draws of each member), the KL in
nats and the learning curve of the first member. For a mixture it also holds the scores of its first members alone: the
first two of "best" are those of "ours". Settings were chosen on the validation part.
"""

import argparse
import datetime
import json
import subprocess
import sys
import time
from pathlib import Path

ALL = ["--validation", "0"]  # train on the whole training part
ROWS = {
    "mnist-fast": ["--data", "mnist", "--preset", "fast", *ALL],
    "mnist-ours": ["--data", "mnist", "--preset", "ours", *ALL],
    "mnist-best": ["--data", "mnist", "--preset", "best", *ALL],
    "mnist-ours-inferred": ["--data", "mnist", "--preset", "ours", "--infer-w0"],
    "mnist-paper": ["--data", "mnist", "--preset", "paper", "--epochs", "20"],
    "mnist-paper-inferred": ["--data", "mnist", "--preset", "paper", "--epochs", "20", "--infer-w0"],
    "cifar10-paper": ["--data", "cifar10", "--preset", "paper", "--epochs", "45"],
    "cifar10-fast": ["--data", "cifar10", "--preset", "fast", *ALL],
    "cifar10-ours": ["--data", "cifar10", "--preset", "ours", *ALL],
    "cifar10-best": ["--data", "cifar10", "--preset", "best", *ALL],
    "cifar10-ours-inferred": ["--data", "cifar10", "--preset", "ours", "--infer-w0"],
}
CURVE = ("epoch", "seconds", "loss", "kl", "accuracy", "validation_nll", "validation_accuracy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(ROWS)}; all, unless told")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draw", action="store_true")
    given = parser.parse_args()
    if unknown := set(given.rows) - set(ROWS):
        parser.error(f"no such row: {', '.join(unknown)}; choose from {', '.join(ROWS)}")
    for row in [] if given.draw else given.rows or ROWS:
        name = row if given.seed == 0 else f"{row}-seed{given.seed}"
        arguments = ["train", *ROWS[row], "--seed", str(given.seed), "--out", str(given.runs / name), "--json"]
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "sdebnn", *arguments], stdout=subprocess.PIPE, text=True, check=True
        )
        seconds = time.perf_counter() - began
        save(given.out / f"{name}.json", given.runs / name, ["sdebnn", *arguments], seconds, done.stdout)
    draw(given.out)


def save(file: Path, run: Path, command: list[str], seconds: float, stdout: str) -> None:
    """Gather what a run left behind into one file."""
    result = json.loads(stdout.strip().splitlines()[-1])
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    curve = [{name: row[name] for name in CURVE if name in row} for row in rows]
    record = {
        **mixtures(run),
        "command": " ".join(command),
        "date": datetime.date.today().isoformat(),
        "whole_command_seconds": round(seconds, 1),
        **result,
        "curve": curve[:: max(1, len(curve) // 100)],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{file}: accuracy {result['accuracy']:.4f}  ECE {result['ece']:.4f}  NLL {result['nll']:.4f}  "
          f"KL {result['kl']:.1f} nats  {seconds:.0f} s", flush=True)  # fmt: skip


def mixtures(run: Path) -> dict[str, list[dict[str, float]]]:
    """Scores on the test part of the mixtures of a run's first nets: of one, of two, and so on."""
    import jax
    import numpy as np

    from sdebnn import metrics, predict, runs
    from sdebnn.models import Ensemble

    made, model, _ = runs.open_run(run)
    if not isinstance(model, Ensemble):
        return {}
    x, y = runs.scored_part(run, made.settings)
    rows, found, total = np.arange(len(y)), [], np.zeros((len(y), 10))
    for count, net in enumerate(map(model.member, range(model.size)), start=1):
        logits = predict(net, x, draws=runs.DRAWS, key=jax.random.key(count), draws_at_once=1)
        total += np.asarray(jax.nn.softmax(logits)).mean(0)
        probs = total / total.sum(-1, keepdims=True)
        scores = {"accuracy": metrics.accuracy(probs[None], y), "nll": -np.log(probs[rows, y]).mean()}
        scores |= {f"ece{bins}": metrics.ece(probs[None], y, bins) for bins in (10, 15)}
        found.append({"members": count} | {name: round(float(value), 5) for name, value in scores.items()})
    return {"mixtures": found}


def draw(folder: Path) -> None:
    """Error in training against time, and the KL against the share of the run, of every row that is there."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure, (errors, nats) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for color, row in zip(plt.colormaps["tab20"].colors, ROWS, strict=False):
        file = folder / f"{row}.json"
        if not file.exists():
            continue
        record = json.loads(file.read_text())
        curve = [point for point in record["curve"] if point["epoch"] >= 1]
        times, wrong = [p["seconds"] for p in curve], [100 * (1 - p["accuracy"]) for p in curve]
        label = f"{row}: test {record['accuracy']:.2%}, ECE {record['ece']:.2%}"
        errors.semilogy(times, wrong, color=color, label=label)
        end = record["curve"][-1]["epoch"]
        nats.semilogy([p["epoch"] / end for p in curve], [max(p["kl"], 0.1) for p in curve], color=color)
    errors.set(
        title="Error on the images of training, as they are augmented (%)", xlabel="seconds, compilation included"
    )
    nats.set(title="KL in training (nats)", xlabel="share of the run")
    for axes in (errors, nats):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.2)
    figure.legend(*errors.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    figure.savefig(folder / "images.png", dpi=160)


if __name__ == "__main__":
    main()
