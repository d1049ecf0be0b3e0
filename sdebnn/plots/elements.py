"""Colours, lines, labels and checks that the plots share."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.ticker import FuncFormatter
from scipy import stats

from sdebnn.checks import check_array, shown
from sdebnn.metrics.classes import Numbers

BLUE = "#2a6f97"
COLOURS = ("#e07a5f", "#3d9970", "#8a5fbf", "#d9a21b", "#c2417c", "#2b8cbe", "#7f8c3a")
INK = "#1b1b1e"
GREY = "#77777d"  # text and reference lines
SHADE = "#cddce6"  # bands of chance
RED = "#b5432a"  # what is wrong; it has another shape as well
SMALL = 8  # size of text inside the axes
SINGLE_HUE = LinearSegmentedColormap.from_list("sdebnn", ["#dde9f1", "#8db8d1", BLUE, "#0d2a40"])


class Look(NamedTuple):
    """Colour, line style and marker of one of several series."""

    colour: str
    line: str | tuple[int, tuple[float, ...]]
    marker: str


# Four colours that differ in lightness, and five line styles: twenty looks until one comes again.
SERIES_COLOURS = ("#12304f", "#e07a5f", "#2a6f97", "#e9b949")
SERIES_LINES = ("solid", (0, (5, 1.5)), (0, (6, 1.5, 1, 1.5)), (0, (1, 1.2)), (0, (9, 2)))
SERIES_MARKERS = ("o", "s", "^", "D", "v")


def look(number: int) -> Look:
    """How the series with this number is drawn; neighbours differ in lightness and in shape."""
    return Look(
        SERIES_COLOURS[number % len(SERIES_COLOURS)],
        SERIES_LINES[number % len(SERIES_LINES)],
        SERIES_MARKERS[number % len(SERIES_MARKERS)],
    )


def label(axes: Axes, title: str, x_label: str, y_label: str = "") -> None:
    """Set title and labels, and remove the upper and the right edge of the frame.

        plots.label(axes, "Posterior of the function", "x", "y")

    The title is on the left.
    """
    axes.set_title(title, loc="left", fontsize=11)
    _label_frame(axes, x_label, y_label)


def label_axes(axes: Axes, x_label: str, y_label: str) -> None:
    """``label`` that keeps the title, with small numbers at the ticks."""
    _label_frame(axes, x_label, y_label)
    axes.tick_params(labelsize=SMALL)


def _label_frame(axes: Axes, x_label: str, y_label: str) -> None:
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.spines[["top", "right"]].set_visible(False)


def percent(axes: Axes, *, x: bool = False, y: bool = False) -> None:
    """Write shares at the ticks as percent."""
    for axis, wanted in ((axes.xaxis, x), (axes.yaxis, y)):
        if wanted:
            axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))


def in_percent(share: float, digits: int = 1) -> str:
    """A share as text; only 0 and 1 themselves are written as 0 % and 100 %."""
    least = 10.0**-digits
    if share in (0, 1):
        return f"{100 * share:.0f} %"
    if 100 * share < least:
        return f"< {least:g} %"
    return f"{100 * share:.{digits}f} %" if 100 * share <= 100 - least else f"> {100 - least:g} %"


def chance_band(
    count: Int[np.ndarray, "*shape"] | int, p: Float[np.ndarray, "*shape"] | float, level: float = 0.95
) -> tuple[Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"]]:
    """Ends of the central interval of the share of successes among ``count`` trials of probability p (binomial)."""
    low, high = (np.asarray(stats.binom.ppf(q, count, p) / count) for q in ((1 - level) / 2, (1 + level) / 2))
    return low, high


def diagonal(axes: Axes, above: str, below: str) -> None:
    """A thin line where both axes agree, from 0 to 1, and what it means to lie above or below it."""
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, zorder=1.5)
    axes.text(0.02, 0.98, above, ha="left", va="top", fontsize=SMALL, color=GREY)
    axes.text(0.98, 0.02, below, ha="right", va="bottom", fontsize=SMALL, color=GREY)


def legend_share(axes: Axes, rows: int) -> float:
    """The share of the height of the axes that a legend with so many rows takes."""
    height = axes.get_window_extent().height * 72 / axes.figure.dpi
    return min(0.6, (1.55 * SMALL * rows + 12) / height)


def darker(colour: str) -> tuple[float, ...]:
    """The colour of the text that names a series of this colour: readable even if the colour is light."""
    return tuple(0.75 * part for part in to_rgb(colour))


def end_labels(axes: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write x, y, text and colour of each series to the right of its end, moved apart where they would overlap."""
    axes.autoscale_view()
    points = axes.transData.transform([(x, y) for x, y, _, _ in ends])[:, 1]
    points *= 72 / axes.figure.dpi
    order, gap = np.argsort(points, kind="stable"), 1.3 * SMALL
    placed = np.array(points[order])
    for i in range(1, len(placed)):
        placed[i] = max(placed[i], placed[i - 1] + gap)
    placed -= np.mean(placed - points[order])
    for place, i in zip(placed, order, strict=True):
        x, y, text, colour = ends[i]
        axes.annotate(
            text, (x, y), xytext=(7, place - points[i]), textcoords="offset points", va="center", fontsize=SMALL,
            color=darker(colour), annotation_clip=False,
        )  # fmt: skip


def note(axes: Axes, text: str, x: Float[np.ndarray, " point"], y: Float[np.ndarray, " point"]) -> None:
    """Write a text in the corner of the axes that holds the fewest of the points."""
    axes.autoscale_view()
    at = axes.transAxes.inverted().transform(axes.transData.transform(np.column_stack([x, y])))

    def crowd(corner: tuple[float, float]) -> int:
        return int(np.sum((np.abs(at[:, 0] - corner[0]) < 0.55) & (np.abs(at[:, 1] - corner[1]) < 0.16)))

    right, top = min([(0.0, 1.0), (1.0, 0.0), (1.0, 1.0), (0.0, 0.0)], key=crowd)
    axes.annotate(
        text, (right, top), xycoords="axes fraction", xytext=(-4 if right else 6, -3 if top else 5),
        textcoords="offset points", ha="right" if right else "left", va="top" if top else "bottom",
        fontsize=SMALL, color=INK, linespacing=1.4, zorder=6,
        bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1},
    )  # fmt: skip


def vector(name: str, values: Numbers) -> Float[np.ndarray, " entry"]:
    """The values as one row of finite numbers, in float64."""
    check_array(name, values)
    found = np.asarray(values, float)
    if found.ndim != 1:
        raise ValueError(f"{name} has shape {found.shape}: pass one number for each example, such as {name}.ravel().")
    return found


def vectors(**arrays: Numbers) -> tuple[Float[np.ndarray, " entry"], ...]:
    """Several rows of finite numbers, of one length."""
    found = {name: vector(name, values) for name, values in arrays.items()}
    if len({len(values) for values in found.values()}) > 1:
        lengths = ", ".join(f"{name} has {len(values)}" for name, values in found.items())
        raise ValueError(f"{lengths} numbers: pass as many for each.")
    return tuple(found.values())


def check_between(name: str, values: Float[np.ndarray, "*shape"], low: float, high: float, remedy: str) -> None:
    """Refuse values outside [low, high]."""
    wrong: Bool[np.ndarray, "*shape"] = (values < low) | (values > high)
    if wrong.any():
        raise ValueError(f"{name} holds {shown(float(values[wrong][0]))}, outside [{low:g}, {high:g}]: {remedy}.")
