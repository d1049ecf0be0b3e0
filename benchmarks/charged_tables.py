"""The charged posterior on UCI tables: ``SDEBNN.mlp`` with everything random and KL weight 1, beside MFVI and a GP.

Two nets of 128 waves, conditioned on all rows up to 1024 and on 256 summaries of more, with Student's t noise whose
scale is an output of the net; 4 steps of Heun's method over depth. Inputs are the standardised columns and their normal
scores. Their mixture is a posterior whose bound is at least the mean of theirs. MFVI and the GP are those of
``tabular.py``, on the same splits. All choices were made on splits 0 and 1.

    SDEBNN_DATA=... python benchmarks/charged_tables.py [--splits 5,6,7] [--sets yacht,concrete] [--json FILE]
"""

import argparse
import json
import math
import time
from pathlib import Path

import jax
import numpy as np
import record
from scipy import stats
from sklearn.preprocessing import QuantileTransformer
from tabular import SETS, gp, mfvi, standardised

import sdebnn
from sdebnn import Batches, FixedGrid, Objective, Optimizer, StudentT
from sdebnn.data import load
from sdebnn.estimators.forecast import Forecast

MEMBERS, DRAWS, BATCH, DF = 2, 64, 256, 5.0
STEPS = {"yacht": 1200}  # 800 for the others


def with_scores(x: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each standardised column, and the normal quantile of its rank among the rows to learn from."""
    ranks = QuantileTransformer(n_quantiles=min(1000, len(x)), output_distribution="normal").fit(x)
    scores = ranks.transform(x)
    spread = np.where(scores.std(0) > 0, scores.std(0), 1.0)
    return tuple(np.c_[rows, (ranks.transform(rows) - scores.mean(0)) / spread] for rows in (x, at))


def member(x: np.ndarray, y: np.ndarray, at: np.ndarray, steps: int, seed: int) -> dict[str, object]:
    """One fit: locations and scales at new rows, "draw row", and the bound in nats of the standardised targets."""
    keys = jax.random.split(jax.random.key(seed), 3)
    points = len(x) if len(x) <= 1024 else 256
    model = sdebnn.SDEBNN.mlp(
        x.shape[1], 2, width=128, points=points, solver=FixedGrid(4, "heun"), key=keys[0]
    )  # fmt: skip
    law = StudentT(DF, None)
    fitted = sdebnn.fit(
        model, law, x.astype(np.float32), y.astype(np.float32)[:, None], key=keys[1], batches=Batches(BATCH),
        epochs=math.ceil(steps / (len(x) // min(BATCH, len(x)))), objective=Objective(draws=1),
        optimizer=Optimizer(0.03), progress=False,
    )  # fmt: skip
    samples = sdebnn.predict(fitted.model, at.astype(np.float32), draws=DRAWS, key=keys[2])
    location, scale = (np.asarray(of(samples), np.float64)[..., 0] for of in (law.center, law.scale))
    scores = sdebnn.evaluate(
        fitted.model, law, x.astype(np.float32), y.astype(np.float32)[:, None], draws=DRAWS, key=keys[2]
    )
    inside = sdebnn.predict(fitted.model, x.astype(np.float32), draws=DRAWS, key=keys[2])
    fit = float(law.log_prob(inside, y.astype(np.float32)[:, None]).sum(1).mean())
    return {"location": location, "scale": scale, "elbo": fit - scores["kl"], "kl": scores["kl"]}


def charged(x: np.ndarray, y: np.ndarray, at: np.ndarray, y_at: np.ndarray, steps: int) -> dict[str, object]:
    """Scores of the mixture, bounds of its members, and how much of the spread of the mean is within a member."""
    z, t, z_at, center, spread = standardised(x, y, at)
    z, z_at = with_scores(z, z_at)
    clock = time.perf_counter()
    members = [member(z, t, z_at, steps, seed) for seed in range(MEMBERS)]
    seconds = time.perf_counter() - clock

    def nll(*some: dict) -> float:
        location, scale = (np.concatenate([each[name] for each in some]) for name in ("location", "scale"))
        forecast = Forecast(stats.t(DF), center + spread * location[..., None], spread * scale[..., None])
        return float(-forecast.log_prob(y_at[:, None]).mean())

    locations = np.stack([each["location"] for each in members])  # member draw row
    within, between = locations.var(1).mean(), locations.mean(1).var(0).mean()
    return {
        "nll": nll(*members), "nll of each member": [nll(each) for each in members],
        "rmse": float(spread * np.sqrt(np.mean((locations.mean((0, 1)) - (y_at - center) / spread) ** 2))),
        # In the units of the targets.
        "elbo": [each["elbo"] - len(y) * math.log(spread) for each in members], "kl": [each["kl"] for each in members],
        "share of the variance of the mean within a member": float(within / (within + between)),
        "spread of the mean, in units of the targets'": float(np.sqrt(within + between)), "seconds": round(seconds),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", default="5,6,7")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--json", type=Path, default=Path(__file__).with_suffix(".json"))
    chosen = parser.parse_args()
    rows = json.loads(chosen.json.read_text())["rows"] if chosen.json.exists() else []
    for split in map(int, chosen.splits.split(",")):
        for name in chosen.sets.split(","):
            if any(row["set"] == name and row["split"] == split for row in rows):
                continue
            data = load(f"uci/{SETS[name]}/{split}")
            (x, y), (at, y_at) = (
                tuple(np.asarray(part[i], np.float64) for i in (0, 1)) for part in (data.train, data.test)
            )
            y, y_at = y[:, 0], y_at[:, 0]
            row = {"set": name, "split": split, "charged": charged(x, y, at, y_at, STEPS.get(name, 800))}
            for system, of in (("MFVI", mfvi), ("GP", gp)):
                row[system] = {"nll": float(-of((x, y, at), split).log_prob(y_at[:, None]).mean())}
            rows.append(row)
            print(
                name, split, {system: round(row[system]["nll"], 3) for system in ("charged", "MFVI", "GP")}, flush=True
            )
            record.write(chosen.json, f"python benchmarks/charged_tables.py --splits {chosen.splits}", rows=rows)


if __name__ == "__main__":
    main()
