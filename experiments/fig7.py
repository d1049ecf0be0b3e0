"""Figure 7: accuracy and calibration under the 19 corruptions of CIFAR-10-C, at five severities."""

from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from reproduction import Experiment, Finding, Found, Scale, Settings, Table
from trained_nets import PAPER_KL, class_scores, is_charged, net, trained

from sdebnn import plots
from sdebnn.corruptions import NAMES, SEVERITIES, cached

MODELS = ("ResNet32", "MFVI ResNet32", "ODEnet", "MFVI ODEnet (Bayesian neural ODE)", "SDE-BNN", "SDE-BNN + STL")
SDE = ("SDE-BNN", "SDE-BNN + STL")
SCORES = ("accuracy", "ece", "brier")


class Corruptions(Experiment):
    title = "Figure 7: accuracy and calibration under corruption"
    claim = "SDE-BNNs are more accurate and better calibrated under corruption than non-Bayesian and mean-field nets."

    def rows(self, scale: Scale) -> dict[str, Settings]:
        full = scale == "full"
        data, seeds, models = ("cifar10", 3, MODELS) if full else ("digits", 1, ("ResNet32", "SDE-BNN"))
        how: dict[str, Any] = {
            "images": 1000 if full else 40, "names": list(NAMES) if full else ["gaussian_noise", "brightness"],
            "severities": list(SEVERITIES) if full else [1, 5],
        }  # fmt: skip
        return {
            f"{name}, seed {seed}": {
                "net": net(data, name, seed, kl_weight=PAPER_KL if is_charged(name) else None),
                **how,
            }
            for name in models
            for seed in range(seeds)
        }

    def run(self, settings: Settings) -> Found:
        found, seed = trained(settings["net"]), settings["net"]["seed"]
        x, y = (np.asarray(part[: settings["images"]]) for part in found.test)

        def scores(images: np.ndarray) -> list[float]:
            scored = class_scores(found.samples(images, seed), y)
            return [scored[name] for name in SCORES]

        return {
            "clean": scores(x),
            "corrupted": [[scores(cached(x, name, severity)) for name in settings["names"]]
                          for severity in settings["severities"]],
        }  # fmt: skip

    def finding(self, found: dict[str, Found]) -> Finding:
        means = {name: _mean(found, name) for name in models_of(found)}
        others = [values for name, values in means.items() if name not in SDE]
        ours = means["SDE-BNN"]
        words = "; ".join(
            f"{name} {100 * accuracy:.1f} % and {100 * ece:.1f} %" for name, (accuracy, ece, _) in means.items()
        )
        holds = all(ours[0] > values[0] and ours[1] < values[1] for values in others)
        return Finding(bool(holds), f"Accuracy and ECE in the mean over corruptions: {words}.")

    def table(self, found: dict[str, Found]) -> Table:
        rows = []
        for name in models_of(found):
            clean = np.mean([row["clean"] for row in rows_of(found, name)], axis=0)
            values = np.array([np.mean(row["corrupted"], axis=(0, 1)) for row in rows_of(found, name)])
            cells = [f"{mean:.3f}" for mean in values.mean(0)]
            if len(values) > 1:
                spreads = values.std(0, ddof=1)
                cells = [f"{text} ± {spread:.3f}" for text, spread in zip(cells, spreads, strict=True)]
            rows.append([name, *(f"{value:.3f}" for value in clean), *cells])
        heads = [f"{score}, {kind}" for kind in ("clean", "corrupted") for score in ("accuracy", "ECE", "Brier")]
        return Table(("net", *heads), rows)

    def picture(self, found: dict[str, Found]) -> Figure:
        figure, panels = plt.subplots(1, 2, figsize=(13, 4.2), layout="constrained")
        for axes, score, words in zip(panels, (0, 1), ("accuracy (share)", "ECE (share)"), strict=True):
            plots.severity(axes, {name: by_severity(found, name, score) for name in models_of(found)}, score=words)
        return figure


def models_of(found: dict[str, Found]) -> list[str]:
    """The models that these rows are of, in order."""
    return list(dict.fromkeys(name.rpartition(",")[0] for name in found))


def rows_of(found: dict[str, Found], model: str) -> list[Found]:
    """The rows of a model, by seed."""
    return [row for name, row in found.items() if name.rpartition(",")[0] == model]


def by_severity(found: dict[str, Found], model: str, score: int) -> list[np.ndarray]:
    """A score of all seeds and corruptions at each severity; without corruption first."""
    rows = rows_of(found, model)
    corrupted = np.array([row["corrupted"] for row in rows])[..., score]
    return [np.array([row["clean"][score] for row in rows]), *(each.ravel() for each in corrupted.swapaxes(0, 1))]


def _mean(found: dict[str, Found], model: str) -> np.ndarray:
    """The scores in the mean over seeds, severities and corruptions."""
    return np.mean([np.mean(row["corrupted"], axis=(0, 1)) for row in rows_of(found, model)], axis=0)


EXPERIMENT = Corruptions()
