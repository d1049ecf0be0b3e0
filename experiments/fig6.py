"""Figure 6: NLL and ECE of a trained SDE-BNN against the tolerance of its solver at test time; reliability diagrams."""

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from reproduction import Experiment, Finding, Found, Scale, Settings, Table
from resolutions import at_resolutions, draw_reliability, settings_of
from trained_nets import PAPER_KL, net

from sdebnn.plots import COLOURS

ODE, SDE = "ODEnet", "SDE-BNN"
RTOL = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3)
STEPS = (2, 5, 10, 20, 40)


class Tolerance(Experiment):
    title = "Figure 6: the tolerance at test time, and reliability"
    claim = (
        "The tolerance at test time trades evaluations for NLL and ECE; the SDE-BNN is better calibrated than an "
        "ODEnet."
    )

    def rows(self, scale: Scale) -> dict[str, Settings]:
        full = scale == "full"
        data, images = ("cifar10", 2000) if full else ("digits", 100)
        resolutions = [{}, *({"steps": each} for each in (STEPS if full else (5, 20)))]
        resolutions += [{"rtol": each} for each in (RTOL if full else (1e-1, 1e-2))]
        seeds = range(3 if full else 1)
        sdes = {
            f"{SDE}, seed {seed}": settings_of(net(data, SDE, seed, kl_weight=PAPER_KL), resolutions, images)
            for seed in seeds
        }
        return {**{f"{ODE}, seed {seed}": settings_of(net(data, ODE, seed), [{}], images) for seed in seeds}, **sdes}

    def run(self, settings: Settings) -> Found:
        return at_resolutions(settings)

    def finding(self, found: dict[str, Found]) -> Finding:
        nll, ece = (_curve(found, "rtol", score)[1][[0, -1]] for score in ("nll", "ece"))
        ode, sde = (np.mean([row["at"][0]["ece"] for row in _of(found, name)]) for name in (ODE, SDE))
        return Finding(
            bool(nll[0] >= nll[1] and sde < ode),
            f"From the loosest to the tightest tolerance the NLL goes from {nll[0]:.3f} to {nll[1]:.3f} and the ECE "
            f"from {ece[0]:.2%} to {ece[1]:.2%}. On the grid of training the ECE is {sde:.2%}, and {ode:.2%} for "
            "the ODEnet.",
        )

    def table(self, found: dict[str, Found]) -> Table:
        rows = []
        for kind in ("steps", "rtol"):
            values, nll = _curve(found, kind, "nll")
            others = [_curve(found, kind, score)[1] for score in ("ece", "accuracy", "evaluations")]
            rows += [
                [f"{kind} {value:g}", f"{a:.4f}", f"{b:.2%}", f"{c:.2%}", f"{d:.0f}"]
                for value, a, b, c, d in zip(values, nll, *others, strict=True)
            ]
        return Table(("at test time", "NLL", "ECE", "accuracy", "evaluations"), rows)

    def picture(self, found: dict[str, Found]) -> Figure:
        figure, panels = plt.subplots(1, 4, figsize=(15, 3.9), layout="constrained")
        for axes, score, name in zip(panels, ("nll", "ece"), ("NLL", "ECE"), strict=False):
            for number, kind in enumerate(("rtol", "steps")):
                evaluations, values = (_curve(found, kind, each)[1] for each in ("evaluations", score))
                words = {"rtol": "adaptive, by tolerance", "steps": "fixed steps"}[kind]
                axes.plot(evaluations, values, "os"[number] + "-", color=COLOURS[number], label=words)
            trained = np.mean([row["at"][0]["evaluations"] for row in _of(found, SDE)])
            axes.axvline(trained, color="#888", linestyle=":", label="grid of training")
            axes.set(xscale="log", xlabel="evaluations of the field", title=f"{name} of the SDE-BNN")
        panels[0].legend()
        for axes, name in zip(panels[2:], (ODE, SDE), strict=True):
            draw_reliability(axes, _of(found, name)[0]["at"][0], name)
        return figure


def _of(found: dict[str, Found], name: str) -> list[Found]:
    """The rows of a net, by seed."""
    return [row for key, row in found.items() if key.startswith(f"{name},")]


def _curve(found: dict[str, Found], kind: str, score: str) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of steps or the tolerances, and the means over seeds of a score there."""
    rows = [[each for each in row["at"] if kind in each] for row in _of(found, SDE)]
    return np.array([each[kind] for each in rows[0]]), np.mean([[each[score] for each in row] for row in rows], axis=0)


EXPERIMENT = Tolerance()
