"""Seconds of a fit with default settings on the table ``concrete`` of UCI (927 rows, 8 columns), and its scores.

sdebnn      ``sdebnn.SDEBNNRegressor()``
GP          ``GaussianProcessRegressor`` of scikit-learn: one length scale for each column, and noise; the best of three
            searches for the hyperparameters
forest      ``RandomForestRegressor`` of scikit-learn, which gives no NLL
boosting    ``HistGradientBoostingRegressor`` of scikit-learn, which gives no NLL

Each has a process of its own. The first fit of a process is cold: it includes compilation, but not imports, and no
compiled programs are kept on disk. The other fits are on other splits, or from other random states. All processes take
turns, so that other load affects all of them. Seconds of the processor, added up over its cores, are less affected than
seconds of the clock. Scores are of the test rows of each split, in the units of the target.

    SDEBNN_DATA=FOLDER python benchmarks/estimator_speed.py [--splits 3] [--seeds 2] [--json FILE]
"""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

NAMES = ("sdebnn", "GP", "forest", "boosting")


def estimator(name: str, seed: int) -> Any:
    if name == "sdebnn":
        import sdebnn

        return sdebnn.SDEBNNRegressor(random_state=seed)
    if name == "GP":
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        shape = ConstantKernel(1.0, (1e-6, 1e6)) * RBF(np.ones(8), (1e-2, 1e4))
        kernel = shape + WhiteKernel(0.1, (1e-10, 1e2))
        process = GaussianProcessRegressor(kernel, n_restarts_optimizer=2, normalize_y=True, random_state=seed)
        return make_pipeline(StandardScaler(), process)
    from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor

    return (RandomForestRegressor if name == "forest" else HistGradientBoostingRegressor)(random_state=seed)


def fitted(name: str, split: int, seed: int) -> dict[str, Any]:
    """The seconds and the scores of one fit."""
    from sdebnn.data import load

    data = load(f"uci/concrete/{split}")
    x, y, at, known = (np.asarray(column, float) for column in (*data.train, *data.test))
    model, known = estimator(name, seed), known.ravel()
    clock, processor = time.perf_counter(), time.process_time()
    model.fit(x, y.ravel())
    seconds, cpu_seconds = time.perf_counter() - clock, time.process_time() - processor
    clock = time.perf_counter()
    mean = model.predict(at)
    row = {"seconds": seconds, "cpu_seconds": cpu_seconds, "predict_seconds": time.perf_counter() - clock}
    row = {key: round(value, 2) for key, value in row.items()}
    row |= {"split": split, "seed": seed, "rmse": round(float(np.sqrt(np.mean((mean - known) ** 2))), 3)}
    if name == "sdebnn":
        row |= {"nll": round(-float(model.log_prob(at, known).mean()), 3), "family": model.family_}
    elif name == "GP":
        mean, std = model.predict(at, return_std=True)
        row["nll"] = round(-float(stats.norm.logpdf(known, mean, std).mean()), 3)
    return row


def work(name: str) -> None:
    """In a worker process: answer each line, a split and a seed, by a line of JSON."""
    import sdebnn  # noqa: F401  # imports take no part in the times

    estimator(name, 0)
    warnings.simplefilter("ignore")  # such as kernel parameters at their bounds
    for line in sys.stdin:
        print(json.dumps(fitted(name, *map(int, line.split()))), flush=True)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The seconds of the first fit, medians over the others, and mean scores."""
    cold, warm = rows[0], rows[1:] or rows
    names = ("seconds", "cpu_seconds", "predict_seconds")
    found: dict[str, Any] = {f"cold_{name}": cold[name] for name in names}
    found |= {f"warm_{name}": round(float(np.median([row[name] for row in warm])), 2) for name in names}
    for name in ("rmse", "nll"):
        if name in cold:
            found[name] = round(float(np.mean([row[name] for row in rows])), 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", type=Path, default=Path(__file__).with_name("estimator_speed.json"))
    parser.add_argument("--work", choices=NAMES, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work:
        work(chosen.work)
        return
    import record

    load = os.getloadavg()[0]  # before this benchmark adds its own
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    workers = {
        name: subprocess.Popen(
            [sys.executable, __file__, "--work", name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )
        for name in NAMES
    }  # fmt: skip
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in NAMES}
    for split in range(chosen.splits):
        for seed in range(chosen.seeds):
            for name, worker in workers.items():
                assert worker.stdin is not None
                assert worker.stdout is not None
                worker.stdin.write(f"{split} {seed}\n")
                worker.stdin.flush()
                rows[name].append(json.loads(worker.stdout.readline()))
                print(name, json.dumps(rows[name][-1]), flush=True)
    for worker in workers.values():
        worker.communicate()
    summaries = {name: summary(each) for name, each in rows.items()}
    print(json.dumps(summaries, indent=2))
    command = "python benchmarks/estimator_speed.py"
    record.write(chosen.json, command, load_before=round(load, 1), summary=summaries, rows=rows)


if __name__ == "__main__":
    main()
