"""Figure 3: an OU prior and two Cauchy observations that contradict each other. The posterior over paths is bimodal.

The path at the two depths of observation, (z_0, z_1), is normal under the prior, so that quadrature over the plane
gives their exact posterior and the evidence; importance sampling of whole paths by brute force checks the quadrature.
Everything is that of the Euler chain on the grid, whose law is what the drifts are trained against.
"""

import math
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from paths import Known, ObservedPath, Shift
from reproduction import Experiment, Finding, Found, Scale, Settings, Table

import sdebnn
from sdebnn.integrate import FixedGrid, Posterior
from sdebnn.plots import BLUE, COLOURS
from sdebnn.processes import OU, AbstractDrift, DriftNet, LinearDrift

PRIOR, START = OU(rate=1.0, mean=0.0, sigma=1.0), 0.0
GRID = FixedGrid(40)
DEPTHS, OBSERVED, SCALE = np.array([0.75, 1.0]), np.array([-1.2, 1.2]), 0.1
KNOTS = 41
SIDE, LIMIT = 601, 4.0  # of the quadrature
CELLS = 24  # a side, of the histograms whose distance is the total variation
FAMILIES = {
    "mean-field": "drift b(t)", "linear": "drift a(t) z + b(t)", "net 4": "net of 2 layers of 4", "net 16": "of 16",
    "net 64": "of 64", "net 128": "3 layers of 128",
}  # fmt: skip
BRUTE = "brute force"


class BimodalPosterior(Experiment):
    title = "Figure 3: a bimodal posterior over paths"
    claim = "Neural SDEs can learn arbitrarily expressive approximate posteriors."

    def rows(self, scale: Scale) -> dict[str, Settings]:
        full = scale == "full"
        rows: dict[str, Settings] = {BRUTE: {"paths": 4_000_000 if full else 200_000, "seed": 0}}
        families = list(FAMILIES) if full else ["mean-field", "linear", "net 16"]
        training = {"steps": 6000 if full else 400, "draws": 256 if full else 64, "learning_rate": 5e-3}
        for family in families:
            for seed in range(3 if full else 1):
                rows[f"{family}, seed {seed}"] = {"family": family, "seed": seed, **training}
        return rows

    def run(self, settings: Settings) -> Found:
        return _fitted(settings) if "family" in settings else _brute_force(**settings)

    def finding(self, found: dict[str, Found]) -> Finding:
        gaps = _gaps(found)
        nets = [gap for name, gap in gaps.items() if name.startswith("net")]
        best, linear, shift = min(map(np.median, nets)), np.median(gaps["linear"]), np.median(gaps["mean-field"])
        distance = _best(found)["distance"]
        falls = all(np.median(b) <= np.median(a) + 0.01 for a, b in pairwise(nets))
        words = (
            f"The gap between bound and evidence is {shift:.2f} nats for the mean-field drift, {linear:.2f} for the "
            f"linear one, and {best:.3f} for the best net, whose joint law at the two depths is within {distance:.3f} "
            f"of the exact one in total variation. "
            + ("It falls with the size of the net." if falls else "It does not fall with every size of the net.")
        )
        return Finding(bool(best < 0.5 * min(linear, shift)), words)

    def table(self, found: dict[str, Found]) -> Table:
        brute = found[BRUTE]
        rows = [
            ["brute force", f"{brute['paths_effective']:.0f} effective paths", f"{brute['log_evidence']:.3f}", "",
             f"{brute['distance']:.3f}"],
            ["quadrature", "exact", f"{brute['quadrature']:.3f}", "", "0"],
        ]  # fmt: skip
        for family, words in FAMILIES.items():
            fits = _of(found, family)
            if fits:
                bound, gap = np.mean([fit["bound"] for fit in fits]), [fit["gap"] for fit in fits]
                rows.append(
                    [family, words, f"{bound:.3f}", ", ".join(f"{each:.3f}" for each in gap),
                     f"{np.mean([fit['distance'] for fit in fits]):.3f}"]
                )  # fmt: skip
        return Table(
            ("posterior", "what it is", "bound or log evidence", "gap in nats, by seed", "total variation"), rows
        )

    def picture(self, found: dict[str, Found]) -> Figure:
        figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
        best = _best(found)
        depths = np.linspace(0, 1, GRID.steps + 1)
        for path in best["paths"]:
            left.plot(depths, path, color=BLUE, alpha=0.35, linewidth=0.8)
        left.plot(DEPTHS, OBSERVED, "kx", markersize=9, markeredgewidth=2)
        left.set(xlabel="depth t", ylabel="z", title="Paths of the best net; crosses are observations")
        side, density = _posterior()
        middle.contour(side, side, density.T, levels=8, cmap="Greys", linewidths=1.0, vmin=-0.3 * density.max())
        middle.plot(*np.array(best["points"]).T, ".", color=BLUE, markersize=2.5, alpha=0.6)
        middle.set(
            xlim=(-2.5, 2.5), ylim=(-2.5, 2.5), xlabel=f"z at {DEPTHS[0]:g}", ylabel=f"z at {DEPTHS[1]:g}",
            title="Exact density (lines) and draws (dots)",
        )  # fmt: skip
        families = [family for family in FAMILIES if _of(found, family)]
        for place, family in enumerate(families):
            gaps = [max(fit["gap"], 1e-4) for fit in _of(found, family)]
            right.plot([place] * len(gaps), gaps, "o", color=COLOURS[0], alpha=0.8)
        right.set_yscale("log")
        right.set_xticks(range(len(families)), families, rotation=30)
        right.set(ylabel="nats", title="Log evidence minus bound")
        return figure


def _of(found: dict[str, Found], family: str) -> list[Found]:
    """The fits of a family, over seeds."""
    return [each for name, each in found.items() if name.startswith(f"{family},")]


def _gaps(found: dict[str, Found]) -> dict[str, list[float]]:
    return {family: [fit["gap"] for fit in _of(found, family)] for family in FAMILIES if _of(found, family)}


def _best(found: dict[str, Found]) -> Found:
    """The fit with the smallest gap."""
    return min((each for name, each in found.items() if name != BRUTE), key=lambda fit: fit["gap"])


def _moments() -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the prior's Euler chain at the two depths."""
    rate, dt = float(PRIOR.rate), 1 / GRID.steps
    shrink, added = 1 - rate * dt, float(PRIOR.sigma) ** 2 * dt
    steps = np.round(DEPTHS * GRID.steps).astype(int)
    variances = added * (1 - shrink ** (2 * steps)) / (1 - shrink**2)
    both = variances[0] * shrink ** (steps[1] - steps[0])
    return START * shrink**steps, np.array([[variances[0], both], [both, variances[1]]])


def _log_likelihood(z: np.ndarray) -> np.ndarray:
    return (-np.log(np.pi * SCALE) - np.log1p(((z - OBSERVED) / SCALE) ** 2)).sum(-1)


def _joint() -> tuple[np.ndarray, np.ndarray]:
    """The side of the grid, and log p(z_0, z_1) p(y | z_0, z_1) on it."""
    mean, covariance = _moments()
    side = np.linspace(-LIMIT, LIMIT, SIDE)
    z = np.stack(np.meshgrid(side, side, indexing="ij"), -1)
    away = z - mean
    prior = -0.5 * np.einsum("...i,ij,...j", away, np.linalg.inv(covariance), away)
    return side, prior - 0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1] + _log_likelihood(z)


def _log_evidence() -> float:
    side, joint = _joint()
    return float(np.log(np.exp(joint).sum() * (side[1] - side[0]) ** 2))


def _posterior() -> tuple[np.ndarray, np.ndarray]:
    """The side of the grid, and the exact posterior density on it."""
    side, joint = _joint()
    return side, np.exp(joint - _log_evidence())


def _distance(points: np.ndarray, weights: np.ndarray) -> float:
    """Total variation between weighted points and the exact posterior, both in cells of the plane."""
    side, density = _posterior()
    edges = np.linspace(-3, 3, CELLS + 1)
    z = np.meshgrid(side, side, indexing="ij")
    exact, *_ = np.histogram2d(z[0].ravel(), z[1].ravel(), (edges, edges), weights=density.ravel() / density.sum())
    drawn, *_ = np.histogram2d(*points.T, (edges, edges), weights=weights / weights.sum())
    return float(0.5 * (np.abs(exact - drawn).sum() + abs(exact.sum() - drawn.sum())))


def _brute_force(paths: int, seed: int) -> Found:
    """Importance sampling: whole paths of the prior, weighted by the likelihood."""
    rng, z, seen = np.random.default_rng(seed), np.full(paths, START), []
    dt = 1 / GRID.steps
    for step in range(1, GRID.steps + 1):
        z = z - PRIOR.rate * z * dt + PRIOR.sigma * math.sqrt(dt) * rng.normal(size=paths)
        if step / GRID.steps in DEPTHS:
            seen.append(z)
    points = np.stack(seen, -1)
    weights = np.exp(_log_likelihood(points))
    evidence = weights.mean()
    return {
        "log_evidence": np.log(evidence), "standard_error": weights.std() / math.sqrt(paths) / evidence,
        "quadrature": _log_evidence(), "paths_effective": weights.sum() ** 2 / (weights**2).sum(),
        "distance": _distance(points, weights),
    }  # fmt: skip


def _drift(family: str, key: jax.Array) -> AbstractDrift:
    if family == "mean-field":
        return Shift(jnp.zeros((KNOTS, 1)))
    if family == "linear":
        return LinearDrift(1, KNOTS)
    width = int(family.removeprefix("net "))
    return DriftNet(1, (width,) * (3 if width == 128 else 2), key=key)


def _fitted(settings: Settings) -> Found:
    """Train one drift, and compare its draws with the exact posterior."""
    keys = jax.random.split(jax.random.key(settings["seed"]), 3)
    model = ObservedPath(Posterior(PRIOR, _drift(settings["family"], keys[0]), Known(START), "stl"), GRID)
    steps = settings["steps"]
    fitted = sdebnn.fit(
        model, sdebnn.Cauchy(SCALE), DEPTHS[:, None], OBSERVED[:, None], key=keys[1], epochs=steps, progress=False,
        objective=sdebnn.Objective(draws=settings["draws"], kl_warmup=0.3),
        optimizer=sdebnn.Optimizer(settings["learning_rate"], clip=10.0),
    )  # fmt: skip
    analytic = eqx.tree_at(
        lambda model: model.posterior, fitted.model,
        Posterior(PRIOR, fitted.model.posterior.drift, Known(START), "analytic"),
    )  # fmt: skip
    draws = jax.random.split(keys[2], 20_000)
    x = jnp.asarray(DEPTHS)[:, None]
    points, kl = eqx.filter_jit(jax.vmap(lambda key: analytic(x, key=key)))(draws)
    points = np.asarray(points[..., 0], float)
    value = _log_likelihood(points) - np.asarray(kl, float)
    grid = jnp.linspace(0, 1, GRID.steps + 1)[:, None]
    paths = jax.vmap(lambda key: analytic(grid, key=key)[0][:, 0])(draws[:25])
    return {
        "bound": value.mean(), "standard_error": value.std() / math.sqrt(len(value)),
        "gap": _log_evidence() - value.mean(), "distance": _distance(points, np.ones(len(points))),
        "paths": np.round(paths, 3), "points": np.round(points[:600], 3),
    }  # fmt: skip


EXPERIMENT = BimodalPosterior()
