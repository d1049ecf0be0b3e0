"""Figure 8: what augmenting the state by zeros does. A net on a line without it draws only monotonic functions."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
from lines import DRAWS, GRID, LONGER, curves, draw_curves, fitted, paper_net, scores
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from reproduction import Experiment, Finding, Found, Scale, Settings, Table

import sdebnn
from sdebnn.plots import label, trajectories

SIZES = (0, 1, 2, 4)
INPUTS = np.array([[-1.6], [-0.8], [0.0], [0.8], [1.6]], np.float32)
STEPS = 40  # of the grid on which monotonicity is judged: paths of few Euler steps may cross


class Augmentation(Experiment):
    title = "Figure 8: augmenting the state"
    claim = "Without augmentation every sampled function is monotonic; two more dimensions are enough."

    def rows(self, scale: Scale) -> dict[str, Settings]:
        full = scale == "full"
        training = LONGER if full else {**LONGER, "epochs": 200}
        return {
            f"{size} zeros, seed {seed}": {"augment": size, "seed": seed, **training}
            for size in (SIZES if full else (0, 2))
            for seed in range(3 if full else 1)
        }

    def run(self, settings: Settings) -> Found:
        seed, key = settings["seed"], jax.random.key(settings["seed"])
        fit = fitted(paper_net(key, settings["augment"]), seed, settings)
        found = curves(fit.model, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the net was trained on another grid
            fine = np.asarray(sdebnn.predict(fit.model, GRID, draws=DRAWS, key=key, steps=STEPS))[..., 0]
        rises = np.diff(fine, axis=1) > 0
        last = slice(-max(1, settings["epochs"] // 10), None)
        shown = {"states": _states(fit.model, key)} if (settings["augment"], seed) == (2, 0) else {}
        return {
            **found, **scores(found), "monotonic": float(np.mean(rises.all(1) | ~rises.any(1))),
            "elbo": float(np.mean(fit.history["elbo"][last])), **shown,
        }  # fmt: skip

    def finding(self, found: dict[str, Found]) -> Finding:
        none, two = _fits(found, 0), _fits(found, 2)
        share = min(fit["monotonic"] for fit in none)
        words = (
            f"Without zeros {share:.0%} of the functions are monotonic and the error is "
            f"{np.mean([fit['rmse'] for fit in none]):.2f}; with two, "
            f"{np.mean([fit['monotonic'] for fit in two]):.0%} and {np.mean([fit['rmse'] for fit in two]):.2f}."
        )
        better = np.mean([fit["elbo"] for fit in two]) > np.mean([fit["elbo"] for fit in none])
        return Finding(bool(share == 1 and better), words)

    def table(self, found: dict[str, Found]) -> Table:
        rows = []
        for size in SIZES:
            fits = _fits(found, size)
            if fits:
                rows.append(
                    [str(size), *(f"{np.mean([fit[name] for fit in fits]):.{digits}f}"
                     for name, digits in (("elbo", 1), ("rmse", 3), ("monotonic", 2), ("coverage_inside", 2)))]
                )  # fmt: skip
        return Table(("zeros", "ELBO", "RMSE", "share of monotonic draws", "covered inside"), rows)

    def picture(self, found: dict[str, Found]) -> Figure:
        figure, panels = plt.subplots(2, 3, figsize=(12, 6.5), layout="constrained")
        draw_curves(panels[0, 0], found["0 zeros, seed 0"], "Functions without zeros")
        draw_curves(panels[0, 1], found["2 zeros, seed 0"], "Functions with two zeros")
        panels[0, 2].axis("off")
        states = np.array(found["2 zeros, seed 0"]["states"])
        names = ("First unit: the input", "Second unit: begins at zero", "Third unit: begins at zero")
        for number, (axes, name) in enumerate(zip(panels[1], names, strict=True)):
            trajectories(axes, np.linspace(0, 1, states.shape[1]), states[..., number], lines=2)
            label(axes, name, "depth t", "hidden unit")
        return figure


def _states(model: sdebnn.SDEBNN, key: jax.Array) -> np.ndarray:
    """Hidden states of some inputs over depth, "draw depth input unit"."""
    augment, block, _ = model.layers
    h0, _ = augment(jnp.asarray(INPUTS), key=key)
    block = block.with_solver(block.solver.with_steps(STEPS))
    states = jax.vmap(lambda key: block.trajectory(h0, key=key)[0])(jax.random.split(key, 60))
    return np.round(np.asarray(states)[:, ::2], 2)


def _fits(found: dict[str, Found], size: int) -> list[Found]:
    return [each for name, each in found.items() if name.startswith(f"{size} zeros")]


EXPERIMENT = Augmentation()
