"""UCI regressions in their standard splits: our regressor compared with common alternatives, in one run.

ours            ``sdebnn.SDEBNNRegressor()`` with its defaults
deep ensemble   five MLPs of two layers of 50 units, mean and noise of every row, early stopping on a fifth of the rows
MFVI            an MLP of one layer of 50 units with mean-field Gaussians, mean and noise of every row, KL weight 1
                without a warm-up, which makes it worse on yacht
GP              scikit-learn's, one length scale for each column, and noise; tuned on at most 1500 rows, fitted to all
random forest   scikit-learn's, 500 trees; a normal around their mean, with the trees' variance plus a tenth of the
                out-of-bag error (so that it is never zero)
NGBoost         normal; the best number of rounds on a held-out fifth, then fitted to all rows

Every system gives a mixture, from which all scores are computed in the same way. Each result is written as soon as it
is known, and a run that was stopped can be continued. At the end, means over splits and their standard errors are
written as a table, as JSON and as a picture.

    SDEBNN_DATA=... python benchmarks/tabular.py [--splits 20] [--sets yacht,concrete] [--json FILE]
"""

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import record
from scipy import stats

import sdebnn
from sdebnn import Batches, Objective, Optimizer, Validation
from sdebnn.data import load
from sdebnn.estimators.forecast import Forecast

SETS = {"concrete": "concrete", "yacht": "yacht", "wine": "wine-quality-red", "power": "power-plant"}
STEPS, UNITS, MEMBERS, DRAWS = 2000, 50, 5, 100
Data = tuple[np.ndarray, np.ndarray, np.ndarray]  # inputs and targets to learn from, inputs to predict


def standardised(
    x: np.ndarray, y: np.ndarray, at: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float, float]:
    spread = np.where(x.std(0) > 0, x.std(0), 1.0)
    return (x - x.mean(0)) / spread, (y - y.mean()) / y.std(), (at - x.mean(0)) / spread, y.mean(), y.std()


def normal(mean: np.ndarray, std: np.ndarray) -> Forecast:
    return Forecast(stats.norm(), mean[None, :, None], std[None, :, None])


def ours(data: Data, seed: int) -> Forecast:
    x, y, at = data
    model = sdebnn.SDEBNNRegressor(random_state=seed).fit(x, y)
    forecasts = list(model._forecasts(at))
    return Forecast(forecasts[0].law, *(np.concatenate([f[i] for f in forecasts], axis=1) for i in (1, 2)))


def of_net(model: object, at: np.ndarray, center: float, spread: float, seed: int) -> Forecast:
    samples = sdebnn.predict(model, at, draws=DRAWS, key=jax.random.key(seed))
    law = sdebnn.Gaussian(None)
    location, scale = (np.asarray(of(samples), np.float64) for of in (law.center, law.scale))
    return Forecast(stats.norm(), center + spread * location, spread * scale)


def deep_ensemble(data: Data, seed: int) -> Forecast:
    x, y, at, center, spread = standardised(*data)
    order = np.random.default_rng(seed).permutation(len(x))
    fifth, members = len(x) // MEMBERS, []
    for i in range(MEMBERS):
        held_out = order[i * fifth : (i + 1) * fifth]
        rest = np.setdiff1d(order, held_out)
        net = eqx.nn.MLP(x.shape[1], 2, UNITS, 2, activation=jax.nn.swish, key=jax.random.key(MEMBERS * seed + i))
        epochs = math.ceil(STEPS / (len(rest) // 128))
        fitted = sdebnn.fit(
            sdebnn.Deterministic(net), sdebnn.Gaussian(None), x[rest], y[rest, None], key=jax.random.key(i),
            epochs=epochs, batches=Batches(128), objective=Objective(draws=1),
            optimizer=Optimizer(learning_rate=1e-2, clip=100.0, ema=0.998),
            validation=Validation(x[held_out], y[held_out, None], every=max(1, epochs // 50), patience=10),
            progress=False,
        )  # fmt: skip
        members.append(fitted.model)
    return of_net(sdebnn.Ensemble(members), at, center, spread, seed)


def mfvi(data: Data, seed: int) -> Forecast:
    x, y, at, center, spread = standardised(*data)
    net = eqx.nn.MLP(x.shape[1], 2, UNITS, 1, activation=jax.nn.swish, key=jax.random.key(seed))
    fitted = sdebnn.fit(
        sdebnn.nn.MeanField(net), sdebnn.Gaussian(None), x, y[:, None], key=jax.random.key(seed),
        epochs=math.ceil(2 * STEPS / (len(x) // 128)), batches=Batches(128),
        objective=Objective(draws=2, kl_warmup=0.0),
        optimizer=Optimizer(learning_rate=1e-2, clip=100.0, ema=0.998), progress=False,
    )  # fmt: skip
    return of_net(fitted.model, at, center, spread, seed)


def gp(data: Data, seed: int) -> Forecast:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    x, y, at, center, spread = standardised(*data)
    some = np.random.default_rng(seed).permutation(len(x))[:1500]
    kernel = ConstantKernel(1.0) * RBF(np.ones(x.shape[1])) + WhiteKernel(0.1)
    tuned = GaussianProcessRegressor(kernel, random_state=seed).fit(x[some], y[some]).kernel_
    mean, std = GaussianProcessRegressor(tuned, optimizer=None).fit(x, y).predict(at, return_std=True)
    return normal(center + spread * mean, spread * std)


def random_forest(data: Data, seed: int) -> Forecast:
    from sklearn.ensemble import RandomForestRegressor

    x, y, at = data
    forest = RandomForestRegressor(500, n_jobs=2, oob_score=True, random_state=seed).fit(x, y)
    trees = np.stack([tree.predict(at) for tree in forest.estimators_])
    floor = 0.1 * np.mean((forest.oob_prediction_ - y) ** 2)
    return normal(trees.mean(0), np.sqrt(trees.var(0) + floor))


def ngboost(data: Data, seed: int) -> Forecast:
    from ngboost import NGBRegressor

    x, y, at = data
    order = np.random.default_rng(seed).permutation(len(x))
    held_out, rest = order[: len(x) // 5], order[len(x) // 5 :]
    settings = {"learning_rate": 0.01, "verbose": False, "random_state": seed}
    tried = NGBRegressor(n_estimators=2000, **settings)
    tried.fit(x[rest], y[rest], X_val=x[held_out], Y_val=y[held_out], early_stopping_rounds=50)
    rounds = (tried.best_val_loss_itr or 1999) + 1
    law = NGBRegressor(n_estimators=rounds, **settings).fit(x, y).pred_dist(at)
    return normal(law.params["loc"], law.params["scale"])


SYSTEMS: dict[str, Callable[[Data, int], Forecast]] = {
    "ours": ours, "deep ensemble": deep_ensemble, "MFVI": mfvi, "GP": gp, "random forest": random_forest,
    "NGBoost": ngboost,
}  # fmt: skip


def scores(forecast: Forecast, y: np.ndarray) -> dict[str, float]:
    random = np.random.RandomState(0)
    copies = -(-2000 // len(forecast.location))
    many = forecast._replace(**{name: np.repeat(getattr(forecast, name), copies, 0) for name in ("location", "scale")})
    low, high = forecast.quantile(0.025)[:, 0], forecast.quantile(0.975)[:, 0]
    return {
        "rmse": float(np.sqrt(np.mean((forecast.mean()[:, 0] - y) ** 2))),
        "nll": -float(forecast.log_prob(y[:, None]).mean()),
        "crps": float(sdebnn.metrics.crps(many.sample(random), y[:, None])),
        "coverage_95": float(np.mean((low <= y) & (y <= high))),
    }


def one(name: str, split: int, system: str) -> dict[str, object]:
    part = load(f"uci/{SETS[name]}/{split}")
    x, y, at = (np.asarray(array, np.float64) for array in (part.train.x, part.train.y[:, 0], part.test.x))
    clock = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as kernel parameters at their bounds
        forecast = SYSTEMS[system]((x, y, at), split)
    seconds = time.perf_counter() - clock
    words = {"set": name, "split": split, "system": system, "seconds": round(seconds, 2)}
    return words | scores(forecast, np.asarray(part.test.y[:, 0], np.float64))


def summary(rows: list[dict]) -> list[dict]:
    """Means over splits and their standard errors."""
    table = []
    for name in dict.fromkeys(row["set"] for row in rows):
        for system in SYSTEMS:
            mine = [row for row in rows if row["set"] == name and row["system"] == system]
            if mine:
                line = {"set": name, "system": system, "splits": len(mine)}
                for score in ("rmse", "nll", "crps", "coverage_95", "seconds"):
                    values = np.array([row[score] for row in mine])
                    error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
                    line[score] = [round(float(values.mean()), 4), round(float(error), 4)]
                table.append(line)
    return table


def shown(table: list[dict]) -> None:
    print(f"{'':10}{'':16}{'RMSE':>16}{'NLL':>17}{'CRPS':>17}{'coverage':>10}{'seconds':>9}")
    for line in table:
        numbers = "".join(f"{line[s][0]:>9.3f} ±{line[s][1]:6.3f}" for s in ("rmse", "nll", "crps"))
        print(f"{line['set']:10}{line['system']:16}{numbers}{line['coverage_95'][0]:>9.1%}{line['seconds'][0]:>9.1f}")


def picture(table: list[dict], path: Path) -> None:
    """NLL of every system on every set, with one standard error; the range of the best one is shaded."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(line["set"] for line in table))
    figure, all_axes = pyplot.subplots(
        1, len(names), figsize=(3 * len(names), 2.6), squeeze=False, layout="constrained"
    )
    for axes, name in zip(all_axes[0], names, strict=True):
        lines = [line for line in table if line["set"] == name]
        best, error = min(line["nll"] for line in lines)
        axes.axvspan(best - error, best + error, color="0.92")
        for i, line in enumerate(lines):
            mean, error = line["nll"]
            axes.errorbar(mean, -i, xerr=error, fmt="o", color="C3" if line["system"] == "ours" else "C0", capsize=3)
        axes.set_yticks(
            [-i for i in range(len(lines))], [line["system"] for line in lines] if axes is all_axes[0, 0] else []
        )
        axes.set_title(f"{name}, {lines[0]['splits']} splits", fontsize=10)
        axes.set_xlabel("NLL (nats per row), lower is better", fontsize=8)
        axes.tick_params(labelsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--json", type=Path, default=Path(__file__).with_name("tabular.json"))
    chosen = parser.parse_args()
    done = chosen.json.with_suffix(".jsonl")
    rows = [json.loads(line) for line in done.read_text().splitlines()] if done.exists() else []
    known = {(row["set"], row["split"], row["system"]) for row in rows}
    for split in range(chosen.splits):  # outermost, so that an early stop leaves results for all sets and systems
        for name in chosen.sets.split(","):
            for system in chosen.systems.split(","):
                if (name, split, system) not in known:
                    rows.append(one(name, split, system))
                    with done.open("a") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
                    last = rows[-1]
                    print(f"{name} {split} {system}: NLL {last['nll']:.3f}, {last['seconds']:.1f} s", flush=True)
    table = summary(rows)
    shown(table)
    record.write(chosen.json, "python benchmarks/tabular.py", table=table)
    picture(table, chosen.json.with_suffix(".png"))


if __name__ == "__main__":
    main()
