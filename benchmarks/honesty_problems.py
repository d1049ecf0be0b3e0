"""Random one-dimensional regressions, and the scores of a posterior's functions on them.

In units of the range of the data, inputs are uniform on [0, 1] without a gap. The functions do not follow our prior:

matern   a draw of a Gaussian process with a Matérn kernel (3/2 or 5/2), of length 0.15 to 0.6
sine     0.8 to 2.5 periods, and a linear trend
kinks    piecewise linear between normal values at random knots, a quarter apart on average; half of them with a jump

Inputs and targets are then scaled and shifted to random units. The noise, which is known, has 0.05 to 0.3 times the
size of the function.
"""

from typing import NamedTuple

import numpy as np
from numpy.random import RandomState

PROBLEMS = 50
SIZES = (20, 50, 100, 200)  # of the data; few, so that fits share programs
FAMILIES = ("matern", "sine", "kinks")
HELD_OUT, GRID = 200, 50  # points inside the data; points in the gap, and on each side beyond the data
ZONES = {
    "inside": slice(0, HELD_OUT), "gap": slice(HELD_OUT, HELD_OUT + GRID), "beyond": slice(HELD_OUT + GRID, None),
}  # fmt: skip


class Problem(NamedTuple):
    """``at`` holds the inputs of all zones in turn: held out inside the data, in the gap, to the left, to the right."""

    name: str
    family: str
    x: np.ndarray
    y: np.ndarray
    noise: float
    at: np.ndarray
    truth: np.ndarray
    y_at: np.ndarray  # noisy


def matern(u: np.ndarray, random: RandomState) -> np.ndarray:
    length, smooth = np.exp(random.uniform(np.log(0.15), np.log(0.6))), random.rand() < 0.5
    d = np.abs(u[:, None] - u) / length * np.sqrt(5 if smooth else 3)
    kernel = (1 + d + d**2 / 3 if smooth else 1 + d) * np.exp(-d)
    return np.linalg.cholesky(kernel + 1e-8 * np.eye(len(u))) @ random.randn(len(u))


def sine(u: np.ndarray, random: RandomState) -> np.ndarray:
    periods, phase, trend = random.uniform(0.8, 2.5), random.uniform(0, 2 * np.pi), random.uniform(-1.5, 1.5)
    return np.sin(2 * np.pi * periods * u + phase) + trend * (u - 0.5)


def kinks(u: np.ndarray, random: RandomState) -> np.ndarray:
    knots = np.sort(np.r_[-1, random.uniform(-1, 2, 11), 2])
    values, place, jump = random.randn(len(knots)), random.rand(), random.randn() * (random.rand() < 0.5)
    return np.interp(u, knots, values) + jump * (u > place)


def problem(number: int) -> Problem:
    """One of the 50, or of as many as there are numbers: families and sizes take turns."""
    random = RandomState(1000 + number)
    family, size = FAMILIES[number % 3], SIZES[number % 4]
    gap = random.uniform(0.3, 0.7) + random.uniform(0.15, 0.35) * np.array([-0.5, 0.5])

    def inputs(count: int) -> np.ndarray:
        u = random.uniform(0, 1 - (gap[1] - gap[0]), count)
        return np.where(u < gap[0], u, u + gap[1] - gap[0])

    grids = np.linspace(*gap, GRID), np.linspace(-1, 0, GRID), np.linspace(1, 2, GRID)
    u = np.concatenate([inputs(size), inputs(HELD_OUT), *grids])
    f = {"matern": matern, "sine": sine, "kinks": kinks}[family](u, random)
    share = np.exp(random.uniform(np.log(0.05), np.log(0.3)))
    units, scale = 10 ** random.uniform(-2, 3), 10 ** random.uniform(-2, 2)
    x, f = units * (u + 3 * random.randn()), scale * (f + 3 * random.randn())
    noise = float(scale * share)
    y = f + noise * random.randn(len(f))
    return Problem(f"{number}", family, x[:size], y[:size], noise, x[size:], f[size:], y[size:])


def waves_with_gap(points: int = 40) -> Problem:
    """40 points of sin(3x) + 0.3x with noise 0.1, on which we try many seeds."""

    def truth(x: np.ndarray) -> np.ndarray:
        return np.sin(3 * x) + 0.3 * x

    random, half, noise = RandomState(0), points // 2, 0.1
    x = np.r_[random.uniform(-2, -0.7, half), random.uniform(0.7, 2, half)]
    y = truth(x) + noise * random.randn(points)
    inside = np.sign(random.randn(HELD_OUT)) * random.uniform(0.7, 2, HELD_OUT)
    at = np.concatenate([inside, np.linspace(-0.7, 0.7, GRID), np.linspace(-6, -2, GRID), np.linspace(2, 6, GRID)])
    return Problem("waves", "sine", x, y, noise, at, truth(at), truth(at) + noise * random.randn(len(at)))


def scores(functions: np.ndarray, of: Problem) -> dict[str, dict[str, float]]:
    """Width, coverage of the truth and NLL of noisy held-out points by zone, from draws of functions, "draw point"."""
    low, high = np.quantile(functions, [0.025, 0.975], axis=0)
    covered, sd = (low <= of.truth) & (of.truth <= high), functions.std(0)
    each = -0.5 * ((of.y_at - functions) / of.noise) ** 2  # of the mixture over draws
    top = each.max(0)
    nll = 0.5 * np.log(2 * np.pi * of.noise**2) - top - np.log(np.exp(each - top).mean(0))
    error = (functions.mean(0) - of.truth) ** 2
    return {
        zone: {
            "sd": float(sd[at].mean()), "coverage": float(covered[at].mean()), "nll": float(nll[at].mean()),
            "rmse": float(np.sqrt(error[at].mean())),
        }
        for zone, at in ZONES.items()
    }  # fmt: skip


def band(functions: np.ndarray) -> list[list[float]]:
    """The 2.5 %, 50 % and 97.5 % quantiles at every point."""
    return np.quantile(functions, [0.025, 0.5, 0.975], axis=0).astype(float).tolist()
