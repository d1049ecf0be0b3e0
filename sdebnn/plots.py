"""Plots of samples. Each function draws on given axes; none opens or saves a figure."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from sdebnn.metrics import interval
from sdebnn.metrics.classes import Numbers

try:
    from matplotlib.axes import Axes
    from matplotlib.colors import to_rgb
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] != "matplotlib":
        raise
    raise ImportError("sdebnn.plots needs Matplotlib: pip install 'sdebnn[plot]'.") from None


BLUE = "#2a6f97"
COLOURS = ("#e07a5f", "#3d9970", "#8a5fbf", "#d9a21b", "#c2417c", "#2b8cbe", "#7f8c3a")
LEVELS = (0.95, 0.8, 0.6, 0.4, 0.2)


def bands(
    axes: Axes,
    x: Float[Numbers, " point"],
    samples: Float[Numbers, "draw point"],
    *,
    levels: Sequence[float] = LEVELS,
    colour: str = BLUE,
) -> None:
    """Nested credible intervals of the samples at every point (``metrics.interval``), darkest in the middle."""
    paper, ink = np.ones(3), np.array(to_rgb(colour))
    for i, level in enumerate(sorted(levels, reverse=True)):
        low, high = interval(np.asarray(samples), level)
        share = 0.16 + 0.6 * i / max(1, len(levels) - 1)
        label = f"{level:.0%} of predictions" if i == 0 else None
        axes.fill_between(
            np.asarray(x), low, high, color=tuple(paper + share * (ink - paper)), linewidth=0, zorder=1, label=label
        )


def draws(
    axes: Axes,
    x: Float[Numbers, " point"],
    samples: Float[Numbers, "draw point"],
    *,
    colours: Sequence[str] = COLOURS,
) -> None:
    """One line for each sampled function."""
    for i, sample in enumerate(np.asarray(samples)):
        axes.plot(np.asarray(x), sample, color=colours[i % len(colours)], linewidth=1.1, alpha=0.9, zorder=2)


def observations(axes: Axes, x: Float[Numbers, " example"], y: Float[Numbers, " example"], label: str = "data") -> None:
    """The data as dots, with a white edge so that they are visible on any band."""
    axes.scatter(
        np.asarray(x), np.asarray(y), s=9, color="#1b1b1e", edgecolor="white", linewidth=0.3, zorder=4, label=label
    )


def trajectories(
    axes: Axes,
    t: Float[Numbers, " time"],
    states: Float[Numbers, "draw time example"],
    *,
    lines: int = 5,
    colours: Sequence[str] = COLOURS,
) -> None:
    """One hidden unit over depth: a colour for each input, shaded intervals over draws, and a few draws as lines."""
    depth, values = np.asarray(t), np.asarray(states)
    for i in range(values.shape[2]):
        colour = colours[i % len(colours)]
        for level, alpha in ((0.95, 0.14), (0.7, 0.16), (0.4, 0.2)) if len(values) > 1 else ():
            low, high = interval(values[:, :, i], level)
            axes.fill_between(depth, low, high, color=colour, alpha=alpha, linewidth=0)
        axes.plot(depth, values[:lines, :, i].T, color=colour, linewidth=0.9, alpha=0.9)
        axes.scatter(depth[:1], values[0, :1, i], s=14, color=colour, zorder=3)


def label(axes: Axes, title: str, x_label: str, y_label: str = "") -> None:
    """Set title and labels, and remove the upper and the right edge of the frame."""
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.spines[["top", "right"]].set_visible(False)
