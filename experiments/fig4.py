"""Figure 4: the variance of three estimators of the gradient, for a posterior of an exponentiated Brownian motion.

The weights are a Brownian motion w, and what is seen are noisy values of exp(w_t) at four depths. A drift net is
trained, and on the way the variance of the gradient is measured under each estimator of the KL, with the same draws.

With one observation, at depth 1, the drift of the exact posterior is known but for an integral over a line:

    f_q - f_p = σ² d/dw log φ(t, w),   φ(t, w) = ∫ N(z; w, σ² (1 - t)) N(y; exp z, s²) dz

The rows "exact" have this drift, times a gain of 1, plus an offset of 0, and measure the variance of the gradient in
these two numbers. In the limit of small steps it vanishes for "stl", and for no other estimator.
"""

from typing import get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from paths import Known, ObservedPath
from reproduction import Experiment, Finding, Found, Scale, Settings, Table

import sdebnn
from sdebnn.integrate import FixedGrid, KLEstimator, Posterior
from sdebnn.plots import COLOURS
from sdebnn.processes import OU, AbstractDrift, DriftNet

ESTIMATORS: tuple[KLEstimator, ...] = get_args(KLEstimator)
PRIOR, START = OU(rate=0.0, sigma=1.0), 0.0
DEPTHS, NOISE = np.array([0.25, 0.5, 0.75, 1.0]), 0.5
PAPER_FACTOR = 4.0
STEPS = 40
NODES = 64  # of the integral over a line
CHUNK = 64  # gradients computed together


class GradientVariance(Experiment):
    title = "Figure 4: the variance of three gradient estimators"
    claim = "Sticking the landing reduces the variance by a factor of roughly 4, and to zero at the exact posterior."

    def rows(self, scale: Scale) -> dict[str, Settings]:
        full = scale == "full"
        stages, steps = (12, 250) if full else (3, 40)
        draws = 1024 if full else 64
        rows: dict[str, Settings] = {
            f"training, seed {seed}": {"seed": seed, "stages": stages, "steps": steps, "draws": draws}
            for seed in range(3 if full else 1)
        }
        for grid in (20, 80, 320, 1280) if full else (20, 80):
            rows[f"exact, {grid} steps"] = {"grid": grid, "draws": 4 * draws, "seed": 0}
        return rows

    def run(self, settings: Settings) -> Found:
        return _exact(**settings) if "grid" in settings else _training(**settings)

    def finding(self, found: dict[str, Found]) -> Finding:
        training, exact = _split(found)
        early, late = (np.median([row["analytic"][place] / row["stl"][place] for row in training]) for place in (0, -1))
        first, last = exact[0], exact[-1]
        falls = last["stl"] < 1.5 * first["stl"] * first["grid"] / last["grid"]
        full = np.median([row["full"][-1] / row["stl"][-1] for row in training])
        words = (
            f"At the prior, the variance with analytic is {early:.2g} times that with stl. At the end it is "
            f"{late:.2g} times, and that with full {full:.2g} times. At the exact posterior, stl falls from "
            f"{first['stl']:.2g} with {first['grid']} steps to {last['stl']:.2g} with {last['grid']}, while analytic "
            f"stays at {last['analytic']:.2g}."
        )
        return Finding(bool(late > PAPER_FACTOR / 2 and falls), words)

    def table(self, found: dict[str, Found]) -> Table:
        training, exact = _split(found)
        rows = []
        for name, place in (("at the prior", 0), ("in the middle", len(training[0]["step"]) // 2), ("at the end", -1)):
            values = [[row[each][place] for row in training] for each in ESTIMATORS]
            rows.append([f"training, {name}", *(f"{np.median(each):.3g}" for each in values), _ratio(values)])
        for row in exact:
            values = [[row[each]] for each in ESTIMATORS]
            rows.append(
                [f"exact posterior, {row['grid']} steps", *(f"{each[0]:.3g}" for each in values), _ratio(values)]
            )
        rows.append(["the paper", "", "", "", "roughly 4"])
        return Table(("variance of the gradient", *ESTIMATORS, "analytic / stl"), rows)

    def picture(self, found: dict[str, Found]) -> Figure:
        training, exact = _split(found)
        figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
        for number, name in enumerate(ESTIMATORS):
            look = {
                "color": COLOURS[number],
                "linestyle": ("-", "--", ":")[number],
                "marker": "os^"[number],
                "markersize": 4,
            }
            for row in training:
                left.plot(row["step"], row[name], **look, alpha=0.8, label=name if row is training[0] else None)
            right.plot([row["grid"] for row in exact], [row[name] for row in exact], **look, label=name)
        left.set(yscale="log", xlabel="training step", ylabel="variance, mean over parameters", title="While training")
        right.set(
            xscale="log", yscale="log", xlabel="steps of the grid", ylabel="variance",
            title="At the exact posterior of one observation",
        )  # fmt: skip
        left.legend()
        right.legend()
        return figure


def _split(found: dict[str, Found]) -> tuple[list[Found], list[Found]]:
    """The rows of a training, and those of the exact posterior."""
    return (
        [row for name, row in found.items() if name.startswith("training")],
        [row for name, row in found.items() if name.startswith("exact")],
    )


def _ratio(values: list[list[float]]) -> str:
    analytic, stl = (np.array(values[ESTIMATORS.index(name)]) for name in ("analytic", "stl"))
    return f"{np.median(analytic / stl):.3g}"


class ExactDrift(AbstractDrift):
    """The drift of the exact posterior if exp(w_1) is observed; ``gain`` and ``offset`` are its parameters."""

    gain: jax.Array
    offset: jax.Array
    y: float = eqx.field(static=True)

    def __call__(self, t, w):
        nodes, weights = (jnp.asarray(each) for each in np.polynomial.hermite_e.hermegauss(NODES))

        def log_phi(w):
            z = w + PRIOR.sigma * jnp.sqrt(jnp.maximum(1 - t, 1e-6)) * nodes
            return jax.scipy.special.logsumexp(-0.5 * ((self.y - jnp.exp(z)) / NOISE) ** 2, b=weights)

        return self.gain * PRIOR.sigma**2 * jax.grad(log_phi)(w[0])[None] + self.offset


def _model(drift: AbstractDrift, kl: KLEstimator, steps: int) -> ObservedPath:
    return ObservedPath(Posterior(PRIOR, drift, Known(START), kl), FixedGrid(steps))


class Exponential(sdebnn.Gaussian):
    """The likelihood of noisy values of exp(w)."""

    def log_prob(self, outputs, y):
        return super().log_prob(jnp.exp(outputs), y)


def _variance(drift: AbstractDrift, grid: int, depths: np.ndarray, y: np.ndarray, keys: jax.Array) -> dict[str, float]:
    """The variance of the gradient under each estimator, as a mean over the parameters of the drift."""
    return {name: float(_variance_of(drift, name, grid, depths[:, None], y[:, None], keys)) for name in ESTIMATORS}


@eqx.filter_jit
def _variance_of(drift: AbstractDrift, kl: KLEstimator, grid: int, x, y, keys: jax.Array) -> jax.Array:
    parameters, rest = eqx.partition(drift, eqx.is_inexact_array)

    def bound(parameters, key):
        outputs, nats = _model(eqx.combine(parameters, rest), kl, grid)(x, key=key)
        return jnp.sum(Exponential(NOISE).log_prob(outputs, y)) - nats

    def gradient(key):
        return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(jax.grad(bound)(parameters, key))])

    return jnp.mean(jnp.var(jax.lax.map(gradient, keys, batch_size=CHUNK), axis=0, ddof=1))


def _training(seed: int, stages: int, steps: int, draws: int) -> Found:
    """Train a net, and measure the variances before each stage and at the end."""
    keys = jax.random.split(jax.random.key(seed), 4)
    brownian = FixedGrid(STEPS).weights(Posterior(PRIOR, DriftNet(1, (4,), key=keys[0]), Known(START)), key=keys[0])
    seen = np.exp(np.asarray(brownian.w)[np.round(DEPTHS * STEPS).astype(int), 0])
    y = seen + NOISE * np.asarray(jax.random.normal(keys[1], seen.shape))
    drift: AbstractDrift = DriftNet(1, (32, 32), key=keys[2])
    found: Found = {"step": [], **{name: [] for name in ESTIMATORS}, "elbo": []}
    for stage in range(stages + 1):
        found["step"].append(stage * steps)
        for name, variance in _variance(drift, STEPS, DEPTHS, y, jax.random.split(keys[3], draws)).items():
            found[name].append(variance)
        if stage < stages:
            fitted = sdebnn.fit(
                _model(drift, "stl", STEPS), Exponential(NOISE), DEPTHS[:, None], y[:, None], epochs=steps,
                key=jax.random.fold_in(keys[3], stage), progress=False,
                objective=sdebnn.Objective(draws=64, kl_warmup=0.0),
                optimizer=sdebnn.Optimizer(5e-3 * 0.75**stage, clip=10.0),
            )  # fmt: skip
            drift = fitted.model.posterior.drift
            found["elbo"].append(float(np.mean(fitted.history["elbo"][-steps // 5 :])))
    return found


def _exact(grid: int, draws: int, seed: int) -> Found:
    y = 1.5
    drift = ExactDrift(jnp.ones(()), jnp.zeros(1), y)
    keys = jax.random.split(jax.random.key(seed), draws)
    return {"grid": grid, **_variance(drift, grid, np.array([1.0]), np.array([y]), keys)}


EXPERIMENT = GradientVariance()
