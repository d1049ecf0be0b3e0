"""Figure 10: the posteriors of other Bayesian models on the toy set."""

import tempfile
from pathlib import Path

import numpy as np
from lines import NOISE, by_zone, data, data_set, truth
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from reproduction import Experiment, Finding, Found, Scale, Settings, Table

from sdebnn import metrics
from sdebnn.compare import Comparison
from sdebnn.plots import BLUE, COLOURS, observations

OURS = "SDE-BNN, conditioned read-out (ours)"
ROWS = ("GP (exact)", "Deep Ensemble", "MFVI", "HMC", "SDE-BNN, w0 inferred", OURS)


class OtherModels(Experiment):
    title = "Figure 10: other Bayesian models on the toy set"
    claim = "Other models learn different variances and extrapolations, whose bounds may be more or less reasonable."

    def rows(self, scale: Scale) -> dict[str, Settings]:
        rows = ROWS if scale == "full" else [row for row in ROWS if row != "HMC"]
        return {row: {"row": row, "seed": 0, "epochs": None if scale == "full" else 60} for row in rows}

    def run(self, settings: Settings) -> Found:
        with tempfile.TemporaryDirectory() as folder:
            table = Comparison(
                data_set(settings["seed"]), Path(folder), only=[settings["row"]], seed=settings["seed"],
                epochs=settings["epochs"], noise=NOISE,
            )  # fmt: skip
            scores = table.add(table.rows[0], progress=False)
            curve, x = table.curve(settings["row"]), table.points()
        low, high = (np.asarray(end) for end in metrics.interval(curve[1], 0.95))
        curve_of_data = truth(x)
        return {
            "nll": scores["nll"], "x": np.round(x, 3), "low": np.round(low, 3), "high": np.round(high, 3),
            "functions": np.round(curve[1][:5], 3), **by_zone("width", x, high - low),
            **by_zone("coverage", x, (low <= curve_of_data) & (curve_of_data <= high)),
        }  # fmt: skip

    def finding(self, found: dict[str, Found]) -> Finding:
        widths = {name: each["width_beyond"] / each["width_inside"] for name, each in found.items()}
        words = "; ".join(f"{name} {ratio:.1f}" for name, ratio in widths.items())
        return Finding(
            max(widths.values()) > 2 * min(widths.values()),
            f"Beyond the data the 95 % band is wider than among them by these factors: {words}.",
        )

    def table(self, found: dict[str, Found]) -> Table:
        names = [f"{kind}_{zone}" for kind in ("width", "coverage") for zone in ("inside", "beyond")]
        rows = [
            [name, f"{each['nll']:.3f}", *(f"{each[column]:.2f}" for column in names)] for name, each in found.items()
        ]
        heads = [f"{kind} {zone}" for kind in ("width", "covered") for zone in ("inside", "beyond")]
        return Table(("model", "NLL", *heads), rows)

    def picture(self, found: dict[str, Found]) -> Figure:
        figure, panels = plt.subplots(2, 3, figsize=(12, 6.5), sharex=True, sharey=True, layout="constrained")
        points = data(0)
        for axes in panels.flat[len(found) :]:
            axes.axis("off")
        for axes, (name, each) in zip(panels.flat, found.items(), strict=False):
            axes.fill_between(each["x"], each["low"], each["high"], color=BLUE, alpha=0.3, linewidth=0)
            for line, colour in zip(each["functions"], COLOURS, strict=False):
                axes.plot(each["x"], line, color=colour, linewidth=0.9)
            axes.plot(each["x"], truth(np.array(each["x"])), "--", color="#444", linewidth=1)
            observations(axes, points[0][:, 0], points[1][:, 0])
            axes.set(title=name, ylim=(-5, 5))
        return figure


EXPERIMENT = OtherModels()
