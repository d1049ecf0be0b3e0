"""Scores of uncertainty: what they are good for, and what they are made of."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter

from sdebnn import metrics
from sdebnn.checks import check_array, check_count
from sdebnn.metrics.classes import Numbers
from sdebnn.plots.elements import (
    BLUE,
    GREY,
    SHADE,
    SINGLE_HUE,
    SMALL,
    check_between,
    in_percent,
    label_axes,
    legend_share,
    look,
    note,
    percent,
    vector,
    vectors,
)

SINGLE_DOTS = 2000  # most examples that are drawn one by one
STEADY = 0.05  # coverage from which on the risk sets the height of the axes


def risk_coverage_curve(
    axes: Axes, uncertainty: Float[Numbers, " example"], errors: Numbers, *, label: str, risk: str = "error rate"
) -> None:
    """Risk against coverage (``metrics.risk_coverage``), beside the ideal order (dotted) and a random one (level).

        entropy, wrong = metrics.entropy_split(probs[None]).total, probs.argmax(-1) != labels
        plots.risk_coverage_curve(axes, entropy, wrong, label="one net")

    Call it once for each run. The height of the axes leaves out the risk at coverage below 5 %, of few examples.
    """
    check_array("uncertainty", uncertainty)
    check_array("errors", errors)
    curve = metrics.risk_coverage(uncertainty, errors)
    wrong = np.asarray(errors, float)
    ideal = metrics.risk_coverage(wrong, wrong)
    colour, line, _ = look(sum(line.get_gid() == "run" for line in axes.lines))
    axes.plot(
        curve.coverage, curve.risk, color=colour, linestyle=line, linewidth=1.6, zorder=3, gid="run",
        label=f"{label}, AURC {curve.area:.3g}",
    )  # fmt: skip
    mean = float(wrong.mean())
    axes.plot([0, 1], [mean, mean], color=colour, linewidth=0.6, zorder=2, gid="random")
    axes.plot(ideal.coverage, ideal.risk, color=colour, linewidth=1, linestyle=(0, (1, 2)), zorder=2, gid="ideal")
    drawn = [line for line in axes.lines if line.get_gid() == "run"]
    references = [line for line in axes.lines if line.get_gid() in ("random", "ideal")][:2]
    top = max(_highest(line) for line in drawn) / (1 - legend_share(axes, len(drawn) + 1)) or 0.05
    axes.set(xlim=(0, 1.01), ylim=(-0.015 * top, top))
    label_axes(axes, "coverage (most certain first)", risk)
    percent(axes, x=True, y=risk == "error rate")
    axes.legend(
        [*drawn, *references], [*(str(line.get_label()) for line in drawn), "random order", "ideal order"],
        frameon=False, fontsize=SMALL, loc="upper left", handlelength=3.2, borderaxespad=0.2,
    )  # fmt: skip


def _highest(curve: Line2D) -> float:
    """The highest risk of a curve, from the coverage on at which it is steady."""
    coverage, risk = np.asarray(curve.get_xdata(), float), np.asarray(curve.get_ydata(), float)
    return float(risk[coverage >= STEADY].max())


def strangeness(
    axes: Axes,
    usual: Float[Numbers, " example"],
    others: Mapping[str, Float[Numbers, " _"]],
    *,
    name: str = "usual",
    bins: int | None = None,
    score: str = "uncertainty (nats)",
) -> None:
    """Densities of a score for usual examples (filled) and for other sets, with the AUROC of telling each apart.

        def entropy(images):
            logits = predict(net, images, draws=4, key=key)
            return metrics.entropy_split(Categorical().center(logits)).total

        plots.strangeness(axes, entropy(images), {"negatives": entropy(1 - images)})

    The density has a root scale, because the scores of usual examples often pile up at zero. By default the number of
    bins follows the size of the smallest set.
    """
    if not others:
        raise ValueError("others={} holds no set: pass a dict of the name of each set and its scores.")
    low = vector("usual", usual)
    sets = {other: vector(f"others[{other!r}]", values) for other, values in others.items()}
    if bins is None:
        bins = int(np.clip(2 * np.sqrt(min(map(len, [low, *sets.values()]))), 8, 40))
    check_count("bins", bins, least=2)
    every = np.concatenate([low, *sets.values()])
    start = 0.0 if 0 <= every.min() < 0.05 * every.max() else float(every.min())
    edges = np.histogram_bin_edges(every, bins, range=(start, float(every.max())))
    axes.set_yscale("function", functions=(lambda y: np.sqrt(np.maximum(y, 0)), np.square))
    density = np.histogram(low, edges, density=True)[0]
    axes.stairs(density, edges, fill=True, facecolor=SHADE, edgecolor=GREY, linewidth=0.8, zorder=1, label=name)
    highest = density.max()
    for number, (other, values) in enumerate(sets.items()):
        colour, line, _ = look(number)
        density = np.histogram(values, edges, density=True)[0]
        highest = max(highest, density.max())
        axes.stairs(
            density, edges, color=colour, linestyle=line, linewidth=1.5,
            zorder=2 + number, label=f"{other}, AUROC {metrics.detection(low, values).auroc:.3f}",
        )  # fmt: skip
    top = highest / (1 - legend_share(axes, len(sets) + 1)) ** 2
    axes.set(xlim=(edges[0], edges[-1] + 0.01 * (edges[-1] - edges[0])), ylim=(0, top))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_major_locator(FixedLocator(_root_ticks(float(highest))))
    axes.legend(frameon=False, fontsize=SMALL, loc="upper right", handlelength=3.2, borderaxespad=0.2)
    label_axes(axes, score, "density of examples (root scale)")


def _root_ticks(highest: float) -> list[float]:
    """Zero, and round numbers about equally far apart on a root scale."""
    ticks = [0.0]
    for step in (0.25, 0.5, 0.75, 1.0):
        at = highest * step**2
        unit = 10.0 ** np.floor(np.log10(at))
        ticks.append(float(max(k for k in (1, 2, 5) if k * unit <= at * (1 + 1e-9)) * unit))
    return sorted(set(ticks))


def uncertainty_split(
    axes: Axes,
    reducible: Float[Numbers, " example"],
    noise: Float[Numbers, " example"],
    *,
    unit: str = "nats",
) -> None:
    """Reducible uncertainty against noise (``metrics.Split``), a dot for each example.

        logits = predict(net, images, draws=4, key=key)
        split = metrics.entropy_split(Categorical().center(logits))
        plots.uncertainty_split(axes, split.reducible, split.noise)

    More than 2,000 examples are drawn as a density. On the thin line both are equal.
    """
    more, less = vectors(noise=noise, reducible=reducible)
    check_between("noise", more, 0.0, np.inf, "pass what metrics.entropy_split or variance_split returns")
    check_between("reducible", less, 0.0, np.inf, "pass what metrics.entropy_split or variance_split returns")
    total = float(np.sum(more + less))
    share = in_percent(float(less.sum()) / total if total else 0.0)
    words = f"{len(more):,} examples\n{share} of the sum is reducible\nline: both are equal"
    if len(more) <= SINGLE_DOTS:
        size = float(np.clip(3000 / len(more), 7, 30))
        axes.scatter(more, less, s=size, color=BLUE, edgecolor="white", linewidth=0.4, zorder=2)
    else:
        axes.hexbin(
            more, less, gridsize=50, bins="log", mincnt=1, cmap=SINGLE_HUE, linewidths=0.1, zorder=2, gid="density"
        )
    right, top = (1.05 * float(each.max()) or 1.0 for each in (more, less))
    axes.axline((0, 0), slope=1, color=GREY, linewidth=0.8, zorder=3)
    axes.set(xlim=(-0.02 * right, right), ylim=(-0.02 * top, top))
    label_axes(axes, f"noise ({unit})", f"reducible uncertainty ({unit})")
    note(axes, words, more, less)
