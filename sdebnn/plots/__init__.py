"""Plots of forecasts and their uncertainty. Each function draws on given axes; none opens or saves a figure."""

try:
    import matplotlib as _matplotlib  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] != "matplotlib":
        raise
    raise ImportError("sdebnn.plots needs Matplotlib: pip install 'sdebnn[plot]'.") from None

from sdebnn.plots.classes import pictures, reliability_diagram
from sdebnn.plots.depth import densities, trajectories
from sdebnn.plots.elements import BLUE, COLOURS, label
from sdebnn.plots.functions import LEVELS, bands, draws, observations
from sdebnn.plots.numbers import coverage_curve, pit_histogram, predicted
from sdebnn.plots.runs import learning_curves, severity
from sdebnn.plots.sweeps import importances, parallel_coordinates, sweep_history
from sdebnn.plots.uncertainty import risk_coverage_curve, strangeness, uncertainty_split

__all__ = [
    "BLUE", "COLOURS", "LEVELS", "bands", "coverage_curve", "densities", "draws", "importances", "label",
    "learning_curves", "observations", "parallel_coordinates", "pictures", "pit_histogram", "predicted",
    "reliability_diagram", "risk_coverage_curve", "severity", "strangeness", "sweep_history", "trajectories",
    "uncertainty_split",
]  # fmt: skip
