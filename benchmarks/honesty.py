"""Is the uncertainty of ``SDEBNN.mlp`` honest on small data? Fits of 50 small regressions, beside long HMC and a GP.

ours   ``fit(SDEBNN.mlp(1, 1, key=key), Gaussian(noise), x, y, key=key)``
HMC    of the same finite net, over everything that is random in it (``honesty_hmc.py``)
GP     exact, with the kernel to which our prior tends for wide nets, ``waves.wide_net_covariance`` of
       (x - center) / length times scale²; its length and scale maximise the evidence

    python benchmarks/honesty.py fit --out FOLDER [--part 0 --parts 1]  # several parts can run at once
    python benchmarks/honesty_hmc.py --out FOLDER                       # on a GPU
    python benchmarks/honesty.py report --out FOLDER                    # writes honesty.json and honesty.png
"""

import argparse
import json
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import record
from honesty_problems import FAMILIES, PROBLEMS, SIZES, ZONES, Problem, band, problem, scores, waves_with_gap
from jax import lax

import sdebnn
from sdebnn.nn import ConditionedReadout, blocks
from sdebnn.waves import wide_net_covariance

DRAWS, SEEDS = 512, 20
SYSTEMS = ("ours", "HMC", "GP")
COVERED = 0.9  # a zone counts as covered if the band contains the truth at this share of its points
COMMAND = "python benchmarks/honesty.py fit --out FOLDER; python benchmarks/honesty_hmc.py --out FOLDER; " + (
    "python benchmarks/honesty.py report --out FOLDER"
)


class KnownNoise(sdebnn.Gaussian):
    """``Gaussian(noise)`` whose noise is an argument of the compiled program, so that problems share it."""

    def __init__(self, noise: float):
        super().__init__(noise, learn=True)

    def _split(self, outputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        location, scale = super()._split(outputs)
        return location, lax.stop_gradient(scale)  # so that it is not trained


@eqx.filter_jit
def draws(model: ConditionedReadout, x: jax.Array, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Functions at x and their KLs."""
    return lax.map(lambda key: model(x, key=key), keys, batch_size=64)


def scored(model: ConditionedReadout, of: Problem, seed: int, key: jax.Array) -> dict[str, object]:
    """The scores of a fit, its bound from many draws, and the length and scale that it has inferred."""
    # As many rows for every problem, so that they share a program.
    at = jnp.asarray(np.r_[np.resize(of.x, max(SIZES)), of.at][:, None], jnp.float32)
    outputs, kl = map(np.asarray, draws(model, at, jax.random.split(key, DRAWS)))
    functions = np.asarray(outputs[..., 0], np.float64)
    here, there = functions[:, : len(of.x)], functions[:, max(SIZES) :]
    each = -0.5 * ((of.y - here) / of.noise) ** 2 - 0.5 * np.log(2 * np.pi * of.noise**2)
    bound, block = each.sum(1) - kl, blocks(model)[0]
    length = np.exp(block.field.log_length[0] + block.initial.mean[-1])
    learned = {"length": length, "scale": model.unit[0] * np.exp(model.amplitude.mean[0])}
    return {
        "problem": of.name, "family": of.family, "points": len(of.x), "noise": of.noise, "seed": seed,
        "elbo": float(bound.mean()), "elbo_error": float(bound.std() / np.sqrt(DRAWS)), "kl": float(kl.mean()),
        **{name: float(value) for name, value in learned.items()},
        "zones": scores(there, of), "band": band(there),
    }  # fmt: skip


def ours(of: Problem, seed: int) -> dict[str, object]:
    """One fit."""
    keys = jax.random.split(jax.random.key(seed), 3)
    x, y = (np.asarray(column, np.float32)[:, None] for column in (of.x, of.y))
    clock = time.perf_counter()
    model = sdebnn.SDEBNN.mlp(1, 1, key=keys[0])
    fitted = sdebnn.fit(model, KnownNoise(of.noise), x, y, key=keys[1], progress=False)
    assert isinstance(fitted.model, ConditionedReadout)
    return {"seconds": round(time.perf_counter() - clock, 1)} | scored(fitted.model, of, seed, keys[2])


def gp(of: Problem) -> dict[str, object]:
    """The exact GP: its scores, its evidence and its hyperparameters."""
    from scipy import linalg, optimize

    center, spread, offset, size = of.x.mean(), of.x.std(), of.y.mean(), of.y.std()

    def kernel(logs: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a, b = ((x[:, None] - center) / np.exp(logs[0]) for x in (a, b))
        return np.exp(2 * logs[1]) * wide_net_covariance(a, b)

    def solved(logs: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        factor = linalg.cholesky(kernel(logs, of.x, of.x) + of.noise**2 * np.eye(len(of.x)), lower=True)
        white = linalg.solve_triangular(factor, of.y - offset, lower=True)
        nats = -0.5 * white @ white - np.log(np.diag(factor)).sum() - 0.5 * len(of.x) * np.log(2 * np.pi)
        return nats, factor, white

    starts = [np.log([spread * share, size]) for share in (0.1, 0.3, 1.0)]
    bounds = [np.log(spread) + np.array([-5, 3]), np.log(size) + np.array([-4, 4])]
    found = min(
        (optimize.minimize(lambda logs: -solved(logs)[0], start, method="L-BFGS-B", bounds=bounds) for start in starts),
        key=lambda result: result.fun,
    ).x
    nats, factor, white = solved(found)
    gain = linalg.solve_triangular(factor, kernel(found, of.x, of.at), lower=True)
    values, vectors = linalg.eigh(kernel(found, of.at, of.at) - gain.T @ gain)
    noise = np.random.RandomState(0).randn(4 * DRAWS, len(of.at))
    functions = offset + gain.T @ white + noise @ (vectors * np.sqrt(np.maximum(values, 0))).T
    return {
        "problem": of.name, "evidence": float(nats), "length": float(np.exp(found[0])),
        "scale": float(np.exp(found[1])), "zones": scores(functions, of), "band": band(functions),
    }  # fmt: skip


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def own_rows(folder: Path) -> list[dict]:
    return [row for path in sorted(folder.glob("ours-*.jsonl")) for row in rows(path)]


def fits(folder: Path, part: int, parts: int) -> None:
    """Fit a part of the jobs, a line for each fit; jobs of equal size follow each other and share a program."""
    done = {(row["problem"], row["seed"]) for row in own_rows(folder)}
    jobs = [(problem(i), i) for i in range(PROBLEMS)] + [(waves_with_gap(), seed) for seed in range(SEEDS)]
    jobs.sort(key=lambda job: len(job[0].x))
    for of, seed in jobs[part * len(jobs) // parts : (part + 1) * len(jobs) // parts]:
        if (of.name, seed) not in done:
            row = ours(of, seed)
            with (folder / f"ours-{part}.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{of.name} {of.family} {len(of.x)} {seed}: {row['seconds']} s, ELBO {row['elbo']:.1f}", flush=True)


def table(folder: Path) -> list[dict]:
    """One row for each problem that has a fit and chains: what identifies it, and the three systems."""
    chains = {row["problem"]: row for row in rows(folder / "hmc.jsonl")}
    fitted = {row["problem"]: row for row in own_rows(folder) if row["problem"] != "waves"}
    numbers = sorted((int(name) for name in fitted if name in chains), key=lambda number: (number % 4, number))
    facts = ("problem", "family", "points", "noise")
    return [
        {fact: fitted[str(i)][fact] for fact in facts}
        | {"ours": fitted[str(i)], "HMC": chains[str(i)], "GP": gp(problem(i))}
        for i in numbers
    ]


def underfits(row: dict) -> bool:
    """Whether the residuals have more than twice the variance of the noise."""
    expected = -0.5 * np.log(2 * np.pi * row["noise"] ** 2) - 1
    return bool((row["elbo"] + row["kl"]) / row["points"] < expected)


def collapsed(row: dict) -> bool:
    """As ``fit`` defines it: a KL below one nat, and targets that are not explained."""
    return row["kl"] < 1 and underfits(row)


def column(of: list[dict], system: str, zone: str, score: str) -> np.ndarray:
    return np.array([row[system]["zones"][zone][score] for row in of])


def mean_and_error(values: np.ndarray) -> list[float]:
    return [round(float(values.mean()), 4), round(float(values.std(ddof=1) / np.sqrt(len(values))), 4)]


def slope(x: np.ndarray, y: np.ndarray) -> list[float]:
    """Of a least-squares line, and its standard error."""
    law, covariance = np.polyfit(x, y, 1, cov=True)
    return [round(float(law[0]), 3), round(float(np.sqrt(covariance[0, 0])), 3)]


def summary(of: list[dict], seeds: list[dict], evidence: dict[str, float]) -> dict[str, object]:
    """What the targets ask for."""
    points = np.log([row["points"] for row in of])
    noise = np.array([row["noise"] for row in of])
    zones: dict[str, object] = {}
    for zone in ZONES:
        ratio = column(of, "ours", zone, "sd") / column(of, "HMC", zone, "sd")
        zones[zone] = {
            "width, ours / HMC: quantiles 10, 50, 90 %": np.quantile(ratio, [0.1, 0.5, 0.9]).round(3).tolist(),
            "width, ours / HMC: by points": {
                str(size): round(float(np.median(ratio[[row["points"] == size for row in of]])), 3) for size in SIZES
            },
            "share of problems within": {str(most): float(np.mean(ratio <= most)) for most in (1.3, 1.5)},
        } | {
            system: {
                "mean coverage": mean_and_error(column(of, system, zone, "coverage")),
                "covered problems": float(np.mean(column(of, system, zone, "coverage") >= COVERED)),
                "NLL above HMC": mean_and_error(column(of, system, zone, "nll") - column(of, "HMC", zone, "nll")),
                "RMSE / noise": mean_and_error(column(of, system, zone, "rmse") / noise),
            }
            for system in SYSTEMS
        }  # fmt: skip
    widths = {system: np.log(column(of, system, "inside", "sd") / noise) for system in SYSTEMS}
    gaps = np.array([row["HMC"]["evidence"] - row["ours"]["elbo"] for row in of])
    elbos = np.array([row["elbo"] for row in seeds])
    return {
        "problems": len(of),
        "zones": zones,
        "slope of log width inside on log points": {name: slope(points, width) for name, width in widths.items()}
        | {"ours / HMC": slope(points, widths["ours"] - widths["HMC"])},
        "evidence - ELBO: quantiles 10, 50, 90 %": np.quantile(gaps, [0.1, 0.5, 0.9]).round(1).tolist(),
        "collapsed problems": sum(collapsed(row["ours"]) for row in of),
        "problems with residuals above twice the noise's variance": [
            row["problem"] for row in of if underfits(row["ours"])
        ],
        "seconds of a fit: median, most": [
            float(f([row["ours"]["seconds"] for row in of])) for f in (np.median, np.max)
        ],
        "HMC": {
            "largest R-hat of f, by problem: quantiles 50, 90, 100 %": np.quantile(
                [row["HMC"]["r_hat_max"] for row in of], [0.5, 0.9, 1.0]
            ).round(3).tolist(),
            "problems whose largest R-hat exceeds 1.1": [
                row["problem"] for row in of if row["HMC"]["r_hat_max"] > 1.1
            ],
            "acceptance: least, median": np.quantile(
                [row["HMC"]["acceptance"] for row in of], [0, 0.5]
            ).round(2).tolist(),
        },
        "one problem, many seeds": {
            "seeds": len(seeds),
            "collapsed": sum(collapsed(row) for row in seeds),
            "ELBO: least, mean, most": [round(float(f(elbos)), 2) for f in (np.min, np.mean, np.max)],
            "log evidence, and its standard error": [evidence["evidence"], evidence["error"]],
        },
    }  # fmt: skip


def picture(of: list[dict], path: Path) -> None:
    """Widths against HMC's, coverage of three systems, and three bands."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    colors = {"ours": "C3", "HMC": "0.2", "GP": "C0"}
    figure, axes = pyplot.subplots(2, 3, figsize=(12, 6.4), layout="constrained")
    random = np.random.RandomState(0)
    widths, fall, coverage = axes[0]
    for i, zone in enumerate(ZONES):
        ratio = column(of, "ours", zone, "sd") / column(of, "HMC", zone, "sd")
        for j, size in enumerate(SIZES):
            mine = ratio[[row["points"] == size for row in of]]
            x = j + (i - 1) * 0.25
            widths.plot(x + random.uniform(-0.06, 0.06, len(mine)), mine, ".", color=f"C{i + 4}", alpha=0.5, ms=5)
            label = zone if j == 0 else None
            widths.plot(x, np.median(mine), "_", color=f"C{i + 4}", ms=16, mew=3, label=label)
    widths.axhline(1, color="0.2", lw=1)
    widths.axhline(1.3, color="0.6", lw=1, ls=":")
    widths.set_xticks(range(len(SIZES)), [str(size) for size in SIZES])
    widths.set(
        title="width of the band, ours / HMC (median marked)", xlabel="points", yscale="log", yticks=(0.5, 1, 1.3, 2)
    )
    widths.set_yticks((0.5, 1, 1.3, 2), ("0.5", "1", "1.3", "2"))
    widths.minorticks_off()
    widths.legend(fontsize=8)
    points = np.array([row["points"] for row in of])
    for system in SYSTEMS:
        width = column(of, system, "inside", "sd") / np.array([row["noise"] for row in of])
        law = np.polyfit(np.log(points), np.log(width), 1)
        fall.loglog(points * np.exp(random.uniform(-0.08, 0.08, len(of))), width, ".", color=colors[system], alpha=0.4)
        fall.loglog(
            SIZES, np.exp(np.polyval(law, np.log(SIZES))), color=colors[system], label=f"{system}, slope {law[0]:.2f}"
        )
    fall.set(title="width inside the data / noise", xlabel="points")
    fall.set_xticks(SIZES, [str(size) for size in SIZES])
    fall.minorticks_off()
    fall.legend(fontsize=8)
    for i, system in enumerate(SYSTEMS):
        for j, zone in enumerate(ZONES):
            values = column(of, system, zone, "coverage")
            mean, error = mean_and_error(values)
            label = system if j == 0 else None
            coverage.bar(j + (i - 1) * 0.26, mean, 0.24, color=colors[system], yerr=error, label=label)
            share = np.mean(values >= COVERED)
            coverage.text(j + (i - 1) * 0.26, 0.03, f"{share:.0%}", ha="center", color="white", fontsize=8)
    coverage.axhline(0.95, color="0.6", lw=1, ls=":")
    coverage.set_xticks(range(len(ZONES)), list(ZONES))
    coverage.set(title="share of the truth inside the 95 % band", ylim=(0, 1.2), yticks=(0, 0.5, 0.95))
    coverage.set_xlabel(f"in bars: problems with a share of at least {COVERED:.0%}")
    coverage.legend(fontsize=8, loc="upper center", ncols=3)
    for ax, family in zip(axes[1], FAMILIES, strict=True):
        row = next(row for row in of if row["family"] == family and row["points"] == 50)
        example, order = problem(int(row["problem"])), np.argsort(problem(int(row["problem"])).at)
        at = example.at[order]
        low, middle, high = (np.array(line)[order] for line in row["ours"]["band"])
        ax.fill_between(at, low, high, color="C3", alpha=0.25, lw=0, label="ours, 95 %")
        ax.plot(at, middle, color="C3", lw=1)
        for line in (row["HMC"]["band"][0], row["HMC"]["band"][2]):
            ax.plot(
                at,
                np.array(line)[order],
                color="0.2",
                lw=1,
                label="HMC, 95 %" if line is row["HMC"]["band"][0] else None,
            )
        ax.plot(at, example.truth[order], color="C2", lw=1.2, ls="--", label="truth")
        ax.plot(example.x, example.y, "k.", ms=3)
        ax.set(title=f"{family}, {row['points']} points (problem {row['problem']})", xlabel="x")
    axes[1, 0].legend(fontsize=8)
    figure.savefig(path, dpi=110)


def report(folder: Path, path: Path) -> None:
    of, seeds = table(folder), [row for row in own_rows(folder) if row["problem"] == "waves"]
    evidence = json.loads((folder / "evidence.json").read_text())
    told = summary(of, seeds, evidence)
    print(json.dumps(told, indent=1))
    picture(of, path.with_suffix(".png"))
    for row in (*seeds, *(row[system] for row in of for system in SYSTEMS)):
        del row["band"]
    first = rows(folder / "hmc.jsonl")[0]
    gpu = {"device": first["device"], "jax": first["jax"]}
    record.write(path, COMMAND, HMC=gpu, summary=told, problems=of, seeds=seeds, evidence=evidence)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["fit", "report"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    if chosen.what == "fit":
        fits(chosen.out, chosen.part, chosen.parts)
    else:
        report(chosen.out, Path(__file__).with_suffix(".json"))


if __name__ == "__main__":
    main()
