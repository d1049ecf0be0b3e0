"""Figure 9: error, calibration and Brier score under corruption by model, and the Brier score by severity."""

import numpy as np
from fig7 import SDE, Corruptions, by_severity, models_of, rows_of
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from reproduction import Finding, Found

from sdebnn.plots import COLOURS, severity


class ByModel(Corruptions):
    title = "Figure 9: error, calibration and Brier score under corruption, by model"
    claim = "SDE-BNNs outperform nets of fixed depth in error, ECE and Brier score under corruption."
    shares = ("fig7",)

    def finding(self, found: dict[str, Found]) -> Finding:
        values = {name: np.mean(_of_seeds(found, name), axis=0) for name in models_of(found)}
        fixed = [value for name, value in values.items() if "ResNet" in name]
        ours = [value for name, value in values.items() if name in SDE]
        holds = all((mine < other).all() for mine in ours for other in fixed)
        words = "; ".join(f"{name} {a:.3f}, {b:.3f}, {c:.3f}" for name, (a, b, c) in values.items())
        return Finding(bool(holds), f"Error, ECE and Brier score in the mean over corruptions: {words}.")

    def picture(self, found: dict[str, Found]) -> Figure:
        figure, panels = plt.subplots(1, 4, figsize=(16, 4.4), layout="constrained")
        models = models_of(found)
        for number, (axes, name) in enumerate(zip(panels, ("error", "ECE", "Brier score"), strict=False)):
            for place, model in enumerate(models):
                values = np.array(_of_seeds(found, model))[:, number]
                axes.bar(place, values.mean(), color=COLOURS[place % len(COLOURS)], alpha=0.8)
                axes.plot([place] * len(values), values, "k.", markersize=4)
            axes.set_xticks(range(len(models)), models, rotation=40, ha="right")
            axes.set(title=f"{name}, mean over corruptions")
        severity(panels[3], {name: by_severity(found, name, 2) for name in models}, score="Brier score")
        return figure


def _of_seeds(found: dict[str, Found], model: str) -> list[np.ndarray]:
    """Error, ECE and Brier score of each seed, in the mean over severities and corruptions."""
    means = [np.mean(row["corrupted"], axis=(0, 1)) for row in rows_of(found, model)]
    return [np.array([1 - accuracy, ece, brier]) for accuracy, ece, brier in means]


EXPERIMENT = ByModel()
