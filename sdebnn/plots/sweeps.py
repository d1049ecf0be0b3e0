"""Sweeps: the scores of trials in their order, what they depend on, and the values of all trials beside each other."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from sdebnn.metrics.classes import Numbers
from sdebnn.plots.elements import BLUE, GREY, INK, SINGLE_HUE, SMALL, label_axes, vector, vectors

ROOM = 0.06  # above and below the values of a parameter
MAX_WORD = 14  # characters of a name or a value beside an axis
MISSING = -0.16  # where trials without a value are drawn


def sweep_history(
    axes: Axes, numbers: Numbers, scores: Numbers, stopped: Sequence[bool], *, score: str = "validation NLL"
) -> None:
    """The score of each trial, and the best so far as a line. Trials that were stopped early are hollow.

        numbers, scores = np.arange(4), np.array([0.61, 0.48, 0.83, 0.44])
        plots.sweep_history(axes, numbers, scores, stopped=[False, False, True, False])

    If a few scores are far above the others, the height of the axes leaves them out, with a mark at the upper edge.
    """
    x, y = vectors(numbers=numbers, scores=scores)
    if len(y) != len(stopped):
        raise ValueError(f"there are {len(y)} scores and {len(stopped)} marks in stopped: pass one mark for each.")
    hollow, order = np.asarray(stopped, bool), np.argsort(x)
    done = order[~hollow[order]]
    if len(done):
        best = np.minimum.accumulate(y[done])
        ends = [*x[done], max(x.max(), x[done][-1])]
        axes.step(ends, [*best, best[-1]], where="post", color=INK, linewidth=1.1, zorder=2, label="best so far")
    top = _upper_end(y)
    for number, (chosen, words) in enumerate(((~hollow, "complete"), (hollow, "stopped early"))):
        inside, beyond = chosen & (y <= top), chosen & (y > top)
        look: dict[str, Any] = {"edgecolors": BLUE, "facecolors": "white" if number else BLUE, "linewidths": 1.0}
        axes.scatter(x[inside], y[inside], s=22, zorder=3, label=words if chosen.any() else None, **look)
        axes.scatter(x[beyond], np.full(beyond.sum(), top), s=26, marker="^", zorder=3, clip_on=False, **look)
    low = float(y.min())
    axes.set_ylim(low - 0.06 * max(top - low, 1e-12), top + 0.02 * max(top - low, 1e-12))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    label_axes(axes, "trial", score)
    axes.legend(frameon=False, fontsize=SMALL, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)


def _upper_end(y: np.ndarray) -> float:
    """The height above which scores are outliers: three interquartile ranges above the third quartile."""
    first, third = np.quantile(y, [0.25, 0.75])
    inside = y[y <= third + 3 * (third - first)]
    return float(inside.max())


def importances(axes: Axes, shares: Mapping[str, float]) -> None:
    """The share of the variance of the score that each parameter explains, as bars.

        plots.importances(axes, {"learning rate": 0.6, "width": 0.3, "sigma": 0.1})

    ``sdebnn report`` draws them for a sweep.
    """
    if not shares:
        raise ValueError("shares={} holds no parameter: pass a dict of the name of each and its share.")
    names, values = list(shares)[::-1], vector("shares", np.array(list(shares.values())[::-1]))
    axes.barh(range(len(names)), values, height=0.55, color=BLUE)
    for place, value in enumerate(values):
        axes.annotate(
            f"{100 * value:.0f} %", (float(value), place), xytext=(4, 0), textcoords="offset points", va="center",
            fontsize=SMALL, color=INK,
        )  # fmt: skip
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xlim(0, 1.15 * float(values.max()) or 1.0)
    label_axes(axes, "share of the variance of the score", "")
    axes.xaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")


def parallel_coordinates(
    axes: Axes,
    trials: Sequence[Mapping[str, Any]],
    scores: Numbers,
    *,
    logarithmic: Sequence[str] = (),
    score: str = "validation NLL",
) -> None:
    """The values of each trial as a line through one upright axis for each parameter; the last axis is the score.

        widths, rates = [16, 32, 64, 32], [0.1, 0.01, 0.001, 0.03]
        trials = [{"width": width, "rate": rate} for width, rate in zip(widths, rates)]
        scores = np.array([0.61, 0.48, 0.83, 0.44])
        plots.parallel_coordinates(axes, trials, scores, logarithmic=["rate"])

    Numbers are drawn to scale, logarithmically if asked for, and words and truth values as places. Darker and thicker
    lines have better scores by rank, and the best has dots. Trials without a value of a parameter pass below its axis.
    """
    y = vector("scores", scores)
    if len(y) != len(trials):
        raise ValueError(f"there are {len(trials)} trials and {len(y)} scores: pass one score for each trial.")
    names = list(dict.fromkeys(name for trial in trials for name in trial))
    columns = [_placed([trial.get(name) for trial in trials], name in logarithmic) for name in names]
    top = _upper_end(y)
    heights_of_scores, ticks = _placed(list(map(float, np.minimum(y, top))), False)
    columns.append((heights_of_scores, [*ticks[:-1], (ticks[-1][0], f"≥ {ticks[-1][1]}")] if y.max() > top else ticks))
    rank = np.argsort(np.argsort(y)) / max(1, len(y) - 1)  # 0 is the best
    for i in np.argsort(-y):
        heights = [column[i] for column, _ in columns]
        share = 1 - float(rank[i])
        axes.plot(
            range(len(columns)), heights, zorder=2 + share, marker="o" if i == int(np.argmin(y)) else None,
            markersize=5, markeredgecolor="white", clip_on=False, gid=f"density-trial-{i}", **_look_of(share),
        )  # fmt: skip
    for place, (name, (_, ticks)) in enumerate(zip([*names, score], columns, strict=True)):
        _upright(axes, place, name, ticks)
    axes.set_xlim(-0.15, len(columns) - 0.85)
    axes.set_ylim(MISSING - 0.02 if any((column == MISSING).any() for column, _ in columns) else -0.02, 1.02)
    axes.axis("off")
    words = {1.0: "best", 0.75: "best quarter", 0.5: "median", 0.0: "worst"}
    handles = [Line2D([], [], label=label, **_look_of(share)) for share, label in words.items()]
    legend = axes.legend(
        handles=handles, frameon=False, fontsize=SMALL, ncols=4, loc="upper center", bbox_to_anchor=(0.5, 0)
    )  # fmt: skip
    for i, handle in enumerate(legend.get_lines()):
        handle.set_gid(f"density-legend-{i}")


def _look_of(share: float) -> dict[str, Any]:
    """How a trial is drawn that is better than this share of the others."""
    return {"color": SINGLE_HUE(share), "linewidth": 0.7 + 1.5 * share**3}


def _placed(values: Sequence[Any], is_log: bool) -> tuple[np.ndarray, list[tuple[float, str]]]:
    """The height of each value on an axis from 0 to 1, and the ticks of the axis."""
    known = [value for value in values if value is not None]
    missing = [(MISSING, "none")] if len(known) < len(values) else []
    are_numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)
    distinct = sorted(set(known), key=lambda value: value if are_numbers else str(value))
    if not are_numbers or (len(distinct) <= 6 and len(known) > len(distinct)):  # a choice
        places = {value: (i + 0.5) / len(distinct) for i, value in enumerate(distinct)}
        heights = [MISSING if value is None else places[value] for value in values]
        return np.array(heights), [*missing, *((place, _word(value)) for value, place in places.items())]
    numbers = np.array(known, float)
    scaled = np.log10(numbers) if is_log else numbers
    low, width = scaled.min(), np.ptp(scaled) or 1.0
    found = iter(ROOM + (1 - 2 * ROOM) * (scaled - low) / width)
    heights = [MISSING if value is None else float(next(found)) for value in values]
    ticks = []
    for share in np.linspace(0, 1, 5 if np.ptp(scaled) else 1):
        value = low + share * width
        ticks.append((ROOM + (1 - 2 * ROOM) * share, f"{10**value if is_log else value:.3g}"))
    return np.array(heights), [*missing, *ticks]


def _word(value: object) -> str:
    words = str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
    return words if len(words) <= MAX_WORD else f"{words[: MAX_WORD - 3]}..."


def _upright(axes: Axes, place: int, name: str, ticks: Sequence[tuple[float, str]]) -> None:
    """Draw one axis with its ticks and its name."""
    axes.vlines(place, 0, 1, color=GREY, linewidth=0.9, zorder=3.5)
    for height, words in ticks:
        axes.annotate(
            words, (place, height), xytext=(4, 0), textcoords="offset points", va="center", fontsize=SMALL, color=INK,
            zorder=4, bbox={"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.6},
        )  # fmt: skip
    axes.annotate(
        name.replace("_", " "), (place, 1), xytext=(0, 6), textcoords="offset points", ha="center", va="bottom",
        fontsize=SMALL + 1, color=INK,
    )  # fmt: skip
