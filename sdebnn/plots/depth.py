"""Weights and hidden units over depth."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from sdebnn.checks import check_array, check_count
from sdebnn.metrics import interval
from sdebnn.metrics.classes import Numbers
from sdebnn.plots.elements import COLOURS, INK, SINGLE_HUE, label_axes, vector


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


def densities(
    axes: Axes,
    depth: Float[Numbers, " time"],
    values: Float[Numbers, "draw time *unit"],
    *,
    lines: int = 3,
    bins: int | None = None,
    quantity: str = "weight",
) -> None:
    """The density of a weight or hidden unit at each depth, and a few draws as lines.

    Units on a third axis are counted as further draws. Each column is divided by its highest density, because the
    density at depth zero may be a point. By default the number of bins follows the number of draws.
    """
    check_count("lines", lines, least=0)
    check_array("values", values, least_ndim=2)
    times, found = vector("depth", depth), np.asarray(values, float)
    if found.ndim > 3 or found.shape[1] != len(times) or len(times) < 2:
        raise ValueError(
            f"values have shape {found.shape} and depth has {len(times)} entries: pass (draws, times) or "
            "(draws, times, units), with at least two times."
        )
    if not (np.diff(times) > 0).all():
        raise ValueError(f"depth is not ascending at index {int(np.argmax(np.diff(times) <= 0)) + 1}: sort it first.")
    paths = found if found.ndim == 2 else np.moveaxis(found, 2, 1).reshape(-1, len(times))
    if bins is None:
        bins = int(np.clip(3 * len(paths) ** (1 / 3), 8, 80))
    check_count("bins", bins, least=2)
    edges = np.histogram_bin_edges(paths, bins)
    counts = np.stack([np.histogram(column, edges)[0] for column in paths.T], axis=1).astype(float)
    counts /= counts.max(axis=0)
    middles = (times[1:] + times[:-1]) / 2
    axes.pcolormesh(
        np.concatenate([times[:1], middles, times[-1:]]), edges, np.ma.masked_equal(counts, 0), cmap=SINGLE_HUE,
        vmin=0, vmax=1, rasterized=True, zorder=1,
    )  # fmt: skip
    chosen = np.linspace(0, len(paths) - 1, min(lines, len(paths))).astype(int)
    for i, line in enumerate(paths[chosen]):
        axes.plot(times, line, color="white", linewidth=2.0, zorder=2, gid="halo")
        axes.plot(times, line, color=INK, linewidth=0.9, linestyle=("-", "--", ":")[i % 3], zorder=3, gid="draw")
    axes.set_xlim(times[0], times[-1])
    label_axes(axes, "depth t", quantity)
