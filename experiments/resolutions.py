"""A trained net at other resolutions of its solver, and how reliable its confidence is: for figures 6, 11 and 12."""

import warnings
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes
from reproduction import Found, Settings
from trained_nets import class_scores, trained

import sdebnn
from sdebnn import metrics
from sdebnn.data import Part
from sdebnn.plots import BLUE

BINS = 10
Resolution = dict[str, Any]  # {"steps": 20}, {"rtol": 1e-2}, or {} for that of training


def settings_of(net: Settings, resolutions: list[Resolution], images: int) -> Settings:
    """The settings of a row: a net, and how it is solved on the first test images."""
    return {"net": net, "resolutions": resolutions, "images": images}


def at_resolutions(settings: Settings) -> Found:
    """Scores, evaluations and reliability at each resolution. All have the same Brownian paths."""
    found, count = trained(settings["net"]), settings["images"]
    images = Part(found.test.x[:count], np.asarray(found.test.y[:count]))
    rows = []
    for resolution in settings["resolutions"]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*was trained on a grid of")
            logits, evaluations = sdebnn.predict(
                found.fit.model, images.x, draws=found.draws, key=jax.random.key(settings["net"]["seed"]),
                draws_at_once=1, return_evaluations=True, **resolution,
            )  # fmt: skip
        probs = np.asarray(found.likelihood.center(logits))
        reliability = metrics.reliability(probs, images.y, BINS)
        rows.append(
            {**resolution, **class_scores(probs, images.y), "evaluations": float(np.mean(evaluations)),
             "reliability": reliability._asdict()}
        )  # fmt: skip
    return {"at": rows}


def draw_reliability(axes: Axes, row: Found, title: str) -> None:
    """Accuracy against confidence in bins, as in the paper: bars, and the diagonal of a calibrated forecast."""
    bins = row["reliability"]
    axes.bar(bins["confidence"], bins["accuracy"], width=0.8 / BINS, color=BLUE, alpha=0.7)
    axes.plot([0, 1], [0, 1], color="#444", linewidth=1)
    axes.set(
        xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy",
        title=f"{title}\naccuracy {row['accuracy']:.1%}, ECE {row['ece']:.2%}",
    )  # fmt: skip
