"""Weights and hidden units over depth."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from sdebnn.checks import check_array, check_count
from sdebnn.metrics import interval
from sdebnn.metrics.classes import Numbers
from sdebnn.plots.elements import COLOURS, INK, SINGLE_HUE, label_axes, vector

COLUMNS, ROWS = 80, 100  # of the cells of a density
LEAST_SHARE = 0.02  # of the highest density at a depth, from which on it is drawn


def trajectories(
    axes: Axes,
    t: Float[Numbers, " time"],
    states: Float[Numbers, "draw time example"],
    *,
    lines: int = 5,
    colours: Sequence[str] = COLOURS,
) -> None:
    """One hidden unit over depth: a colour for each input, shaded intervals over draws, and a few draws as lines.

        block = bayesianize(field, prior=OU(sigma=0.5), solver=FixedGrid(10), key=key)
        inputs = jax.random.normal(key, (3, 4))
        states, _ = jax.vmap(lambda key: block.trajectory(inputs, key=key))(keys)
        plots.trajectories(axes, block.solver.times(), states[..., 0])  # the first hidden unit

    The intervals contain 95, 70 and 40 % of the draws. ``lines`` is the number of draws that are shown as lines.
    """
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
    quantity: str = "weight",
) -> None:
    """The density of a weight or hidden unit over depth, and a few draws as lines.

        block = bayesianize(field, prior=OU(sigma=0.5), solver=FixedGrid(10), key=key)
        paths = jax.vmap(lambda key: block.draw(key=key).w[:, 0])(keys)  # of the first weight
        plots.densities(axes, block.solver.times(), paths)

    Draws are straight between the given depths. At each of 80 depths, the density is that of a normal kernel around
    every draw (Silverman's bandwidth, and at least the height of a cell: the density at depth zero may be a point),
    divided by its highest value there. Below 2 % of that nothing is drawn. Units on a third axis are further draws.
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
    at = np.linspace(times[0], times[-1], COLUMNS)
    columns = np.array([np.interp(at, times, path) for path in paths]).T
    margin = 0.06 * (np.ptp(paths) or 1.0)
    rows = np.linspace(paths.min() - margin, paths.max() + margin, ROWS)
    shares = np.array([_kernel_density(column, rows) for column in columns]).T
    axes.pcolormesh(
        at, rows, np.ma.masked_less(shares, LEAST_SHARE), cmap=SINGLE_HUE, vmin=0, vmax=1, shading="nearest",
        rasterized=True, zorder=1,
    )  # fmt: skip
    chosen = np.linspace(0, len(paths) - 1, min(lines, len(paths))).astype(int)
    for i, line in enumerate(paths[chosen]):
        axes.plot(times, line, color="white", linewidth=2.0, zorder=2, gid="halo")
        axes.plot(times, line, color=INK, linewidth=0.9, linestyle=("-", "--", ":")[i % 3], zorder=3, gid="draw")
    axes.set(xlim=(times[0], times[-1]), ylim=(rows[0], rows[-1]))
    label_axes(axes, "depth t", quantity)


def _kernel_density(values: Float[np.ndarray, " draw"], at: Float[np.ndarray, " row"]) -> Float[np.ndarray, " row"]:
    """The density of some draws at given values, divided by its highest."""
    spread = values.std(ddof=1) if len(values) > 1 else 0.0
    bandwidth = max(spread * (0.75 * len(values)) ** -0.2, float(at[1] - at[0]))
    density = np.exp(-0.5 * ((at[:, None] - values) / bandwidth) ** 2).sum(1)
    return density / density.max()
