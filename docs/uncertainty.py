"""Draw docs/uncertainty.png: a forecast that is right and one that is too sure of itself, as the plots show them.

    python docs/uncertainty.py

Both are simulated, so that the truth is known:   label ~ Bernoulli(sigmoid(z)), z ~ N(0, 2²)   and   y ~ N(0, 1).
The forecasts are sigmoid(z) and N(0, 1), and, too sure, sigmoid(2.5 z) and N(0, 0.6²).
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from sdebnn import metrics, plots

EXAMPLES, DRAWS = 2000, 200
LEVELS = np.linspace(0.1, 0.9, 9)


def draw(path: Path) -> None:
    """Calibration, PIT and coverage of both forecasts, one in each row."""
    rng = np.random.default_rng(0)
    z, y = rng.normal(0, 2, EXAMPLES), rng.normal(size=(EXAMPLES, 1))
    labels = (rng.uniform(size=EXAMPLES) < 1 / (1 + np.exp(-z))).astype(int)
    figure, rows = plt.subplots(2, 3, figsize=(13, 7.6), layout="constrained")
    for name, factor, spread, (left, middle, right) in (("right", 1, 1.0, rows[0]), ("too sure", 2.5, 0.6, rows[1])):
        p = 1 / (1 + np.exp(-factor * z))
        targets = rng.normal(0, spread, (DRAWS, EXAMPLES, 1))
        plots.reliability_diagram(left, np.stack([1 - p, p], -1)[None], labels)
        plots.pit_histogram(middle, metrics.pit(targets, y))
        observed = np.array([float(metrics.coverage(targets, y, float(level))) for level in LEVELS])
        plots.coverage_curve(right, LEVELS, observed, examples=EXAMPLES)
        left.set_title(f"a forecast that is {name}", loc="left", fontsize=11)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".png"))
