"""Regression on a line, for the paper's toy figures: the problem, the nets, and what is kept of a fitted one."""

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes

import sdebnn
from sdebnn import metrics
from sdebnn.data import DataSet, Part, toy
from sdebnn.integrate import FixedGrid
from sdebnn.plots import BLUE, COLOURS, observations
from sdebnn.processes import OU

EXAMPLES, NOISE = 40, toy.WAVE_NOISE
EDGE = toy.WAVE_RANGE[1]
GRID = np.linspace(-2 * EDGE, 2 * EDGE, 121, dtype=np.float32)[:, None]
DRAWS = 400
LEVELS = (0.95, 0.8, 0.6, 0.4, 0.2)
PAPER = {"epochs": 800, "learning_rate": 1e-3, "kl_weight": 1e-3, "draws": 20}
LONGER = {"epochs": 5000, "learning_rate": 1e-2, "kl_weight": 1.0, "draws": 4}


def truth(x: np.ndarray) -> np.ndarray:
    """The curve on which the points lie, but for their noise."""
    return np.asarray(toy.wave_mean(jnp.asarray(x)))


def data(seed: int) -> tuple[jax.Array, jax.Array]:
    """40 points of a curve that is not monotonic."""
    return toy.wave(EXAMPLES, key=jax.random.key(1000 + seed))


def data_set(seed: int) -> DataSet:
    """The same 40 points as a data set, with 400 others as its test part."""
    train, test = data(seed), toy.wave(400, key=jax.random.key(500 + seed))
    return DataSet("line", *(Part(*map(np.asarray, part)) for part in (train, test)), None)


def paper_net(key: jax.Array, augment: int = 2) -> sdebnn.SDEBNN:
    """The net of the paper's table of settings: fields of 32 swish units, drifts of 32, sigma 0.2, 10 steps."""
    return sdebnn.SDEBNN.paper_mlp(
        1, 1, widths=(32,), augment=augment, prior=OU(sigma=0.2), drift=(32,), solver=FixedGrid(10), key=key
    )


def fitted(net: sdebnn.nn.AbstractModel, seed: int, training: dict) -> sdebnn.Fit:
    """The net, trained on the data of a seed."""
    return sdebnn.fit(
        net, sdebnn.Gaussian(NOISE), *data(seed), key=jax.random.key(seed), epochs=training["epochs"], progress=False,
        objective=sdebnn.Objective(draws=training["draws"], kl_weight=training["kl_weight"]),
        optimizer=sdebnn.Optimizer(training["learning_rate"], clip=100.0),
    )  # fmt: skip


def curves(model: sdebnn.nn.AbstractModel, seed: int) -> dict[str, list]:
    """The intervals of the functions that a model draws on the grid, and five of them."""
    samples = np.asarray(sdebnn.predict(model, GRID, draws=DRAWS, key=jax.random.key(2000 + seed)))[..., 0]
    bands = [[np.round(end, 3) for end in metrics.interval(samples, level)] for level in LEVELS]
    return {"bands": bands, "functions": np.round(samples[:5], 3)}


def scores(found: dict[str, list]) -> dict[str, float]:
    """Error, width and coverage of the 95 % interval of the function, among the data and one half range beyond."""
    low, high = map(np.asarray, found["bands"][0])
    middle = (np.asarray(found["bands"][-1][0]) + np.asarray(found["bands"][-1][1])) / 2
    curve, inside = truth(GRID[:, 0]), np.abs(GRID[:, 0]) <= EDGE
    return {
        "rmse": float(np.sqrt(np.mean((middle - curve)[inside] ** 2))),
        **by_zone("coverage", GRID[:, 0], (low <= curve) & (curve <= high)), **by_zone("width", GRID[:, 0], high - low),
    }  # fmt: skip


def by_zone(name: str, x: np.ndarray, values: np.ndarray) -> dict[str, float]:
    """The mean of some values among the data, and one half range beyond."""
    zones = {"inside": np.abs(x) <= EDGE, "beyond": (np.abs(x) > EDGE) & (np.abs(x) <= 1.5 * EDGE)}
    return {f"{name}_{zone}": float(values[where].mean()) for zone, where in zones.items()}


def draw_curves(axes: Axes, found: dict[str, list], title: str, seed: int | None = 0) -> None:
    """The intervals, the functions and, if a seed is given, its data."""
    x = GRID[:, 0]
    for number, (low, high) in enumerate(found["bands"]):
        axes.fill_between(x, low, high, color=BLUE, alpha=0.13, linewidth=0, zorder=number)
    for line, colour in zip(found["functions"], COLOURS, strict=False):
        axes.plot(x, line, color=colour, linewidth=0.9, zorder=8)
    axes.plot(x, truth(x), "--", color="#444", linewidth=1, zorder=7)
    if seed is not None:
        points = data(seed)
        observations(axes, points[0][:, 0], points[1][:, 0])
    axes.set(title=title, xlabel="x", ylim=(-4, 4), xlim=(x[0], x[-1]))
