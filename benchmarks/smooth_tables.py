"""Smooth targets with little noise: the families of our regressor compared with an exact Gaussian process.

auto            ``sdebnn.SDEBNNRegressor()`` with its defaults, which fits both families and chooses one
ensemble        the ensemble that the same fit trained; ``family="ensemble"`` trains the same one
GP              scikit-learn's, one length scale for each column, and noise; the best of three searches for the
                hyperparameters, within wide bounds

A table has 400 rows to learn from and 1000 to predict. Its noise is normal, with a standard deviation that is a share
of the target's: 0.01 for Friedman's three functions and the map of 16 inputs, 0.001 for the map of 6 inputs, and 0.0001
for the linear map of 8 inputs and for the angle of a damped pendulum, as a function of its start and its constants.

All scores are of standardised targets, so that they can be compared between tables. Each result is written as soon as
it is known, and a run that was stopped can be continued.

    python benchmarks/smooth_tables.py [--seeds 2] [--tables linear,pendulum] [--json FILE]
"""

import argparse
import copy
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import record
from scipy import stats
from sklearn.datasets import make_friedman1, make_friedman2, make_friedman3

import sdebnn

TRAIN, TEST = 400, 1000
Data = tuple[np.ndarray, np.ndarray]


def friedman(make: Callable[..., Data]) -> Callable[[np.random.Generator], Data]:
    return lambda random: make(TRAIN + TEST, random_state=int(random.integers(2**31)))


def map_of_6(random: np.random.Generator) -> Data:
    x = random.uniform(-1, 1, (TRAIN + TEST, 6))
    return x, np.sin(2 * x[:, 0] + x[:, 1]) * np.cos(x[:, 2]) + x[:, 3] ** 2 * x[:, 4] + 0.5 * x[:, 5]


def map_of_16(random: np.random.Generator) -> Data:
    x = random.normal(size=(TRAIN + TEST, 16))
    return x, np.tanh(x @ random.normal(size=(16, 3)) / 4).sum(1)


def linear(random: np.random.Generator) -> Data:
    x = random.normal(size=(TRAIN + TEST, 8))
    return x, x @ random.normal(size=8)


def pendulum(random: np.random.Generator) -> Data:
    """The angle after three seconds, by 300 steps of Runge-Kutta."""
    low, high = np.array([[-1.5, -1.0, 0.0, 1.0], [1.5, 1.0, 0.5, 2.0]])
    x = random.uniform(low, high, (TRAIN + TEST, 4))
    state, step = x[:, :2].T, 0.01

    def slope(state: np.ndarray) -> np.ndarray:
        angle, speed = state
        return np.stack([speed, -(x[:, 3] ** 2) * np.sin(angle) - x[:, 2] * speed])

    for _ in range(300):
        a = slope(state)
        b = slope(state + step / 2 * a)
        c = slope(state + step / 2 * b)
        state = state + step / 6 * (a + 2 * b + 2 * c + slope(state + step * c))
    return x, state[0]


TABLES: dict[str, tuple[Callable[[np.random.Generator], Data], float]] = {
    "Friedman 1": (friedman(make_friedman1), 1e-2),
    "Friedman 2": (friedman(make_friedman2), 1e-2),
    "Friedman 3": (friedman(make_friedman3), 1e-2),
    "map of 6": (map_of_6, 1e-3),
    "map of 16": (map_of_16, 1e-2),
    "linear": (linear, 1e-4),
    "pendulum": (pendulum, 1e-4),
}


def table(name: str, seed: int) -> Data:
    """Inputs and targets, each standardised by the rows to learn from."""
    random = np.random.default_rng(seed)
    make, noise = TABLES[name]
    x, y = make(random)
    y = y + noise * y.std() * random.normal(size=len(y))
    return (x - x[:TRAIN].mean(0)) / x[:TRAIN].std(0), (y - y[:TRAIN].mean()) / y[:TRAIN].std()


def ours(x: np.ndarray, y: np.ndarray, seed: int) -> dict[str, dict[str, object]]:
    clock = time.perf_counter()
    model = sdebnn.SDEBNNRegressor(random_state=seed).fit(x[:TRAIN], y[:TRAIN])
    seconds = round(time.perf_counter() - clock, 1)
    ensemble = copy.copy(model)
    ensemble.family_, ensemble.gp_ = "ensemble", None
    facts = {"family": model.family_, "held_out": model.family_scores_, "seconds": seconds}
    at, known = x[TRAIN:], y[TRAIN:]
    return {
        name: scores(np.asarray(each.predict(at)), each.log_prob(at, known), known) | more
        for name, each, more in (("auto", model, facts), ("ensemble", ensemble, {}))
    }


def gp(x: np.ndarray, y: np.ndarray, seed: int) -> dict[str, dict[str, object]]:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    shape = ConstantKernel(1.0, (1e-6, 1e6)) * RBF(np.ones(x.shape[1]), (1e-2, 1e4))
    kernel = shape + WhiteKernel(0.1, (1e-10, 1e2))
    clock = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as kernel parameters at their bounds
        model = GaussianProcessRegressor(kernel, n_restarts_optimizer=2, random_state=seed).fit(x[:TRAIN], y[:TRAIN])
    seconds = round(time.perf_counter() - clock, 1)
    mean, std = model.predict(x[TRAIN:], return_std=True)
    known = y[TRAIN:]
    return {"GP": scores(mean, stats.norm.logpdf(known, mean, std), known) | {"seconds": seconds}}


def scores(mean: np.ndarray, log_prob: np.ndarray, known: np.ndarray) -> dict[str, object]:
    rmse = float(np.sqrt(np.mean((mean - known) ** 2)))
    return {"rmse": float(f"{rmse:.3g}"), "nll": round(-float(log_prob.mean()), 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--json", type=Path, default=Path(__file__).with_name("smooth_tables.json"))
    chosen = parser.parse_args()
    done = chosen.json.with_suffix(".jsonl")
    rows = [json.loads(line) for line in done.read_text().splitlines()] if done.exists() else []
    known = {(row["table"], row["seed"]) for row in rows}
    for seed in range(chosen.seeds):  # outermost, so that an early stop leaves results for all tables
        for name in chosen.tables.split(","):
            if (name, seed) not in known:
                x, y = table(name, seed)
                rows.append({"table": name, "seed": seed, **gp(x, y, seed), **ours(x, y, seed)})
                with done.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
                print(json.dumps(rows[-1]), flush=True)
    record.write(chosen.json, "python benchmarks/smooth_tables.py", rows=rows)


if __name__ == "__main__":
    main()
