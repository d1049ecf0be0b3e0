"""Sampled functions of one input: credible bands, single draws, and the data."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from sdebnn.metrics import interval
from sdebnn.metrics.classes import Numbers
from sdebnn.plots.elements import BLUE, COLOURS, INK

LEVELS = (0.95, 0.8, 0.6, 0.4, 0.2)


def bands(
    axes: Axes,
    x: Float[Numbers, " point"],
    samples: Float[Numbers, "draw point"],
    *,
    levels: Sequence[float] = LEVELS,
    colour: str = BLUE,
) -> None:
    """Nested credible intervals of the samples at every point (``metrics.interval``), darkest in the middle.

        plots.bands(axes, x[:, 0], samples[..., 0], levels=(0.9, 0.5))
        plots.draws(axes, x[:, 0], samples[:5, :, 0])
        plots.observations(axes, x[:, 0], y[:, 0])

    The points ``x`` should be sorted. Samples of functions give the band of the function, and samples of y that of
    new measurements.
    """
    paper, ink = np.ones(3), np.array(to_rgb(colour))
    for i, level in enumerate(sorted(levels, reverse=True)):
        low, high = interval(np.asarray(samples), level)
        share = 0.16 + 0.6 * i / max(1, len(levels) - 1)
        label = f"{level:.0%} of predictions" if i == 0 else None
        axes.fill_between(
            np.asarray(x),
            low,
            high,
            color=tuple(paper + share * (ink - paper)),
            linewidth=0,
            zorder=1,
            label=label,
            gid=f"density-{i}",
        )


def draws(
    axes: Axes,
    x: Float[Numbers, " point"],
    samples: Float[Numbers, "draw point"],
    *,
    colours: Sequence[str] = COLOURS,
) -> None:
    """One line for each sampled function.

        plots.draws(axes, x[:, 0], samples[:5, :, 0])

    The points ``x`` should be sorted.
    """
    for i, sample in enumerate(np.asarray(samples)):
        axes.plot(np.asarray(x), sample, color=colours[i % len(colours)], linewidth=1.1, alpha=0.9, zorder=2)


def observations(axes: Axes, x: Float[Numbers, " example"], y: Float[Numbers, " example"], label: str = "data") -> None:
    """The data as dots, with a white edge so that they are visible on any band.

        plots.observations(axes, x[:, 0], y[:, 0])
        axes.legend()

    ``label`` is their name in the legend.
    """
    axes.scatter(np.asarray(x), np.asarray(y), s=9, color=INK, edgecolor="white", linewidth=0.3, zorder=4, label=label)
