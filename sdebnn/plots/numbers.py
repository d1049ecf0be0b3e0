"""Forecasts of numbers: the PIT, the coverage of intervals, and predictions beside the truth."""

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from sdebnn.checks import check_array, check_count, check_level
from sdebnn.metrics.classes import Numbers
from sdebnn.plots.elements import (
    BLUE,
    GREY,
    INK,
    RED,
    SHADE,
    SINGLE_HUE,
    SMALL,
    chance_band,
    check_between,
    diagonal,
    in_percent,
    label_axes,
    note,
    percent,
    vectors,
)

SINGLE_INTERVALS = 400  # most examples whose intervals are drawn one by one
WINDOWS = 40  # of equal width, in the running medians of many intervals
WINDOW_LEAST = 10  # fewest examples of which a median is drawn


def pit_histogram(axes: Axes, values: Float[Numbers, "*shape"], *, bins: int = 20) -> None:
    """Shares of the PIT (``metrics.pit``) in equal bins, and the 95 % band of such a share if the PIT is uniform.

        ranks = metrics.pit(likelihood.sample(samples, key=key), y)
        plots.pit_histogram(axes, ranks, bins=10)

    The band is of each bin by itself (binomial). A hump in the middle shows forecasts that are too wide, high ends show
    forecasts that are too narrow, and a slope shows a bias.
    """
    check_count("bins", bins, least=2)
    check_array("values", values)
    found = np.asarray(values, float).ravel()
    check_between("values", found, 0.0, 1.0, "pass what metrics.pit returns")
    edges = np.linspace(0, 1, bins + 1)
    share = np.histogram(found, edges)[0] / len(found)
    low, high = (float(end) for end in chance_band(len(found), 1 / bins))
    axes.bar(edges[:-1], share, 1 / bins, align="edge", color="#9dbfd4", edgecolor="white", linewidth=0.8, zorder=1)
    axes.axhspan(low, high, color=GREY, alpha=0.28, linewidth=0, zorder=2)
    axes.axhline(1 / bins, color=INK, linewidth=0.8, zorder=3)
    axes.annotate(
        "uniform,\n95 % band", (1, 1 / bins), xytext=(4, 0), textcoords="offset points", va="center", fontsize=SMALL,
        color=GREY, annotation_clip=False,
    )  # fmt: skip
    axes.set(xlim=(0, 1), ylim=(0, 1.12 * max(float(share.max()), high)))
    percent(axes, y=True)
    label_axes(axes, "PIT of the true value", f"share of {len(found):,} values")


def coverage_curve(
    axes: Axes, levels: Float[Numbers, " level"], observed: Float[Numbers, " level"], *, examples: int
) -> None:
    """Observed against nominal coverage of intervals, as ``metrics.coverage`` finds it at each level.

        levels = np.array([0.2, 0.4, 0.6, 0.8])
        measurements = likelihood.sample(samples, key=key)
        observed = np.array([metrics.coverage(measurements, y, level) for level in levels])
        plots.coverage_curve(axes, levels, observed, examples=len(y))

    The band contains the observed coverage at a level with a probability of at least 95 % if the intervals are right
    (binomial, of independent ``examples``).
    """
    check_count("examples", examples)
    nominal, found = vectors(levels=levels, observed=observed)
    check_between("levels", nominal, 0.0, 1.0, "pass shares such as 0.95")
    check_between("observed", found, 0.0, 1.0, "pass shares such as 0.93")
    grid = np.linspace(0, 1, 1001)
    axes.fill_between(grid, *chance_band(examples, grid), color=SHADE, linewidth=0, zorder=1, gid="chance")
    diagonal(axes, "intervals too wide", "intervals too narrow")
    order = np.argsort(nominal)
    axes.plot(
        nominal[order], found[order], "o-", color=BLUE, linewidth=0.9, markersize=4.5, markeredgecolor="white",
        markeredgewidth=0.6, zorder=3, clip_on=False,
    )  # fmt: skip
    axes.set(xlim=(0, 1.02), ylim=(0, 1.02), xticks=np.linspace(0, 1, 6), yticks=np.linspace(0, 1, 6))
    percent(axes, x=True, y=True)
    label_axes(axes, "nominal coverage", f"observed coverage of {examples:,} values")


def predicted(
    axes: Axes,
    mean: Float[Numbers, " example"],
    lower: Float[Numbers, " example"],
    upper: Float[Numbers, " example"],
    y: Float[Numbers, " example"],
    *,
    level: float = 0.95,
    unit: str = "",
) -> None:
    """True values against predicted ones, with an interval of the true value at each prediction.

        measurements = likelihood.sample(samples, key=key)[..., 0]
        lower, upper = metrics.interval(measurements, 0.9)
        plots.predicted(axes, samples.mean(0)[:, 0], lower, upper, y[:, 0], level=0.9, unit="m")

    Up to 400 examples are drawn one by one, and those outside their interval as diamonds. More are drawn as a density,
    with the medians of the ends of the intervals in windows of equal width.
    """
    check_level("level", level)
    at, low, high, true = vectors(mean=mean, lower=lower, upper=upper, y=y)
    if (low > high).any():
        raise ValueError(f"lower={low[low > high][0]:g} is above upper={high[low > high][0]:g}: pass them in order.")
    inside = (low <= true) & (true <= high)
    contain = f"contain {in_percent(float(inside.mean()))} of {len(true):,}"
    if len(true) <= SINGLE_INTERVALS:
        _single_intervals(axes, at, low, high, true, inside)
        words = f"{100 * level:g} % intervals {contain}" + ("" if inside.all() else "\n(diamonds: outside)")
        drawn = np.concatenate([at, at, at]), np.concatenate([low, high, true])
    else:
        axes.hexbin(
            at,
            true,
            gridsize=40 if len(true) < 5000 else 60,
            bins="log",
            mincnt=1,
            cmap=SINGLE_HUE,
            linewidths=0.1,
            zorder=1,
            gid="density",
        )
        group = np.searchsorted(np.linspace(at.min(), at.max(), WINDOWS + 1)[1:-1], at, side="right")
        rows = [group == i for i in range(WINDOWS) if np.sum(group == i) >= WINDOW_LEAST]
        x, *ends = (np.array([np.median(each[some]) for some in rows]) for each in (at, low, high))
        for end in ends:
            axes.plot(x, end, color=INK, linewidth=1.1, linestyle="--", zorder=3, gid="interval")
        words = f"{100 * level:g} % intervals (dashed: median)\n{contain} examples"
        drawn = np.concatenate([at, x, x]), np.concatenate([true, *ends])
    axes.axline((float(at.mean()), float(at.mean())), slope=1, color=GREY, linewidth=0.8, zorder=2)
    label_axes(axes, f"predicted{f' ({unit})' if unit else ''}", f"true{f' ({unit})' if unit else ''}")
    note(axes, words, *drawn)


def _single_intervals(
    axes: Axes,
    at: Float[np.ndarray, " example"],
    low: Float[np.ndarray, " example"],
    high: Float[np.ndarray, " example"],
    true: Float[np.ndarray, " example"],
    inside: np.ndarray,
) -> None:
    """A bar for each interval, and the true values on them."""
    axes.vlines(at, low, high, color="#a9c4d6", linewidth=float(np.clip(200 / len(at), 0.8, 3)), zorder=1)
    axes.scatter(at[inside], true[inside], s=12, color=INK, edgecolor="white", linewidth=0.4, zorder=4)
    if not inside.all():
        axes.scatter(
            at[~inside], true[~inside], s=30, marker="D", facecolor="white", edgecolor=RED, linewidth=1.3, zorder=5
        )
