"""Pictures of a report, as SVG inside the page: their ink, paper and shades are those of the page's theme."""

import hashlib
import io
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from sdebnn import metrics, plots
from sdebnn.outcomes import ClassOutcomes, NumberOutcomes
from sdebnn.plots.elements import BLUE, GREY, INK, RED, SERIES_COLOURS, SHADE, darker
from sdebnn.reports.subjects import Subject


def _dark(colour: str) -> str:
    """The shade in which a label beside a line of this colour is written."""
    red, green, blue = darker(colour)
    return to_hex((red, green, blue))


# Colours of the pictures, and what the page's style sheet puts in their place.
THEMED = {
    "#000000": "currentColor", INK: "currentColor", GREY: "var(--soft)", "#ffffff": "var(--paper)",
    SHADE: "var(--band)", SERIES_COLOURS[0]: "var(--deep)", BLUE: "var(--mark)", RED: "var(--wrong)",
    _dark(SERIES_COLOURS[0]): "var(--deep)", _dark(BLUE): "var(--mark)",
    _dark(SERIES_COLOURS[1]): "var(--warm)", _dark(SERIES_COLOURS[3]): "var(--gold)",
}  # fmt: skip
LEVELS = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99])
MAX_POINTS = 3000  # of a scatter, which a page draws one by one
MAX_CURVE_POINTS = 600


def svg(draw: Callable[[Axes], None], size: tuple[float, float] = (4.6, 3.5)) -> str:
    """A picture of one pair of axes."""
    figure = Figure(figsize=size, layout="constrained")
    draw(figure.add_subplot())
    return _written(figure)


def pictures(subject: Subject) -> str | None:
    """The examples that tell most, as a grid; None if there are none."""
    outcomes = subject.outcomes
    if subject.examples is None or not subject.are_images or not isinstance(outcomes, ClassOutcomes):
        return None
    x, rows = subject.examples
    columns = 8
    figure = Figure(figsize=(9.2, 1.5 * -(-len(rows) // columns)), layout="constrained")
    panels = [figure.add_subplot(-(-len(rows) // columns), columns, i + 1) for i in range(len(rows))]
    probs = outcomes.probs[rows]
    plots.pictures(panels, x, probs.argmax(-1), outcomes.labels[rows], probs.max(-1), names=outcomes.names)
    return _written(figure)


def _written(figure: Figure) -> str:
    FigureCanvasSVG(figure)
    stream = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "sdebnn", "font.family": "sans-serif"}):
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None}, dpi=110)
    text = stream.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.S)
    for colour, themed in THEMED.items():
        text = text.replace(colour, themed)
    text = re.sub(r'(<image\b[^>]*?) id="[^"]*"', r"\1", text)  # equal images have equal names, which nothing refers to
    # Names of parts are those of no other picture on the page; the page decides on the size.
    own = hashlib.sha256(text.encode()).hexdigest()[:8]
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{own}-", text)
    count = Counter[str]()

    def named(found: re.Match[str]) -> str:
        count[found[1]] += 1
        again = "" if count[found[1]] == 1 else f"-again-{count[found[1]]}"
        return f'id="{own}-{found[1]}{again}"'

    text = re.sub(r'\bid="([^"]*)"', named, text)
    head, rest = text.split(">", 1)
    return re.sub(r' (width|height)="[^"]*"', "", head) + ">" + rest


def reliability(subject: Subject) -> str:
    """Accuracy against confidence."""
    outcomes = subject.outcomes
    assert isinstance(outcomes, ClassOutcomes)
    return svg(lambda axes: plots.reliability_diagram(axes, outcomes.probs[None], outcomes.labels))


def risk(subjects: list[Subject]) -> str:
    """The error of those most certain, of every run: the error rate, or the mean absolute error of the first target."""

    def draw(axes: Axes) -> None:
        for each in subjects:
            of = each.outcomes
            if isinstance(of, ClassOutcomes):
                plots.risk_coverage_curve(axes, metrics.entropy_split(of.samples).total, of.wrong, label=each.label)
            else:
                doubt = np.sqrt(metrics.variance_split(of.mean, of.variance).total[:, 0])
                error = np.abs(of.mean.mean(0) - of.y)[:, 0]
                plots.risk_coverage_curve(axes, doubt, error, label=each.label, risk="mean absolute error")

    return svg(draw)


def right_and_wrong(outcomes: ClassOutcomes) -> str | None:
    """The uncertainty of right and of wrong answers; None if there are no two kinds of them."""
    total, wrong = metrics.entropy_split(outcomes.samples).total, outcomes.wrong
    if wrong.all() or not wrong.any():
        return None
    return svg(lambda axes: plots.strangeness(
        axes, total[~wrong], {"wrong": total[wrong]}, name="right", score="entropy of the forecast (nats)"
    ))  # fmt: skip


def in_and_out(subject: Subject) -> str:
    """The uncertainty of test images and of other images."""
    known = {name: np.array(values) for name, values in subject.shifts["entropies"].items()}
    usual = known.pop("test")
    return svg(lambda axes: plots.strangeness(axes, usual, known, name="test", score="entropy of the forecast (nats)"))


def severity(groups: Sequence[list[Subject]], score: str, words: str) -> str:
    """A score against the severity of corruption, of all runs of a group together."""

    def rows(of: dict[str, Any]) -> np.ndarray:
        cells = of["corruptions"]["by_corruption"].values()
        return np.array([[of["clean"][score]] * len(cells), *([cell[i][score] for cell in cells] for i in range(5))])

    known = {}
    for group in groups:
        seeds = f" and {len(group) - 1} more" if len(group) > 1 else ""
        known[f"{group[0].label}{seeds}"] = np.concatenate([rows(each.shifts) for each in group], axis=1)
    return svg(partial(plots.severity, scores=known, score=words))


def split(subject: Subject) -> str:
    """The two parts of the uncertainty of examples."""
    outcomes = subject.outcomes
    if isinstance(outcomes, ClassOutcomes):
        _, reducible, noise = metrics.entropy_split(outcomes.samples)
        return svg(lambda axes: plots.uncertainty_split(axes, reducible, noise))
    _, reducible, noise = metrics.variance_split(outcomes.mean, outcomes.variance)
    return svg(
        lambda axes: plots.uncertainty_split(
            axes, np.sqrt(reducible[:, 0]), np.sqrt(noise[:, 0]), unit=f"std of {outcomes.names[0]:.14}"
        )
    )


def pit(outcomes: NumberOutcomes) -> str:
    """The histogram of the PIT."""
    return svg(partial(plots.pit_histogram, values=metrics.pit(outcomes.targets, outcomes.y)))


def coverage(outcomes: NumberOutcomes) -> str:
    """Observed against nominal coverage."""
    observed = np.array([float(metrics.coverage(outcomes.targets, outcomes.y, float(level))) for level in LEVELS])
    return svg(partial(plots.coverage_curve, levels=LEVELS, observed=observed, examples=outcomes.y.size))


def predicted(outcomes: NumberOutcomes) -> str:
    """Predicted against true values of the first target."""
    low, high = outcomes.interval()
    arrays = [outcomes.mean.mean(0)[:, 0], low[:, 0], high[:, 0], outcomes.y[:, 0]]
    some = np.random.default_rng(0).permutation(len(outcomes.y))[:MAX_POINTS]
    mean, low, high, y = (array[some] for array in arrays)
    return svg(lambda axes: plots.predicted(axes, mean, low, high, y, unit=outcomes.names[0]))


def line(subject: Subject) -> str | None:
    """A regression on a line: its band against the only input; None if there are more."""
    outcomes = subject.outcomes
    if not isinstance(outcomes, NumberOutcomes) or subject.examples is None or subject.examples[0].shape[1:] != (1,):
        return None
    x, rows = subject.examples
    order = np.argsort(x[:, 0])
    at, rows = x[order, 0].astype(float), rows[order]

    def draw(axes: Axes) -> None:
        plots.bands(axes, at, outcomes.targets[:, rows, 0])
        plots.observations(axes, at, outcomes.y[rows, 0], label="test data")
        plots.label(axes, "", "x", outcomes.names[0])
        for i, handle in enumerate(axes.legend(frameon=False, fontsize=8).get_patches()):
            handle.set_gid(f"density-legend-{i}")

    return svg(draw, (9.2, 3.6))


def over_depth(subject: Subject) -> str | None:
    """Some weights, and some hidden units for two examples, as densities over depth; None if they are not known."""
    found = subject.depths
    if found is None:
        return None
    figure = Figure(figsize=(9.2, 6.6), layout="constrained")
    panels = figure.subplots(3, max(len(found.chosen_weights), len(found.chosen_units)), sharex=True, squeeze=False)
    for axes, number, values in zip(panels[0], found.chosen_weights, np.moveaxis(found.weights, 2, 0), strict=False):
        plots.densities(axes, found.t, values, quantity="")
        axes.set_title(f"weight {number:,}", fontsize=9)
    for column, number, values in zip(panels[1:].T, found.chosen_units, np.moveaxis(found.units, 3, 0), strict=False):
        for axes, example, words in zip(column, np.moveaxis(values, 2, 0), ("surest", "least sure"), strict=True):
            plots.densities(axes, found.t, example, quantity="")
            axes.set_title(f"unit {number:,}, {words}", fontsize=9)
        ends = np.array([axes.get_ylim() for axes in column])  # one scale, so that the spreads can be compared
        for axes in column:
            axes.set_ylim(ends.min(), ends.max())
    for axes in panels[:-1].ravel():
        axes.set_xlabel("")
    for axes in panels.ravel():
        axes.set_visible(axes.has_data())
    return _written(figure)


def curves(subject: Subject) -> list[tuple[str, str]]:
    """The learning curves that the log has, each with its name."""
    wanted = [
        ("Loss", "loss", "validation_nll"), ("Accuracy", "accuracy", "validation_accuracy"), ("KL in nats", "kl", None)
    ]  # fmt: skip
    found = []
    for name, column, validation in wanted:
        if any(isinstance(row.get(column), float) for row in subject.curve):
            rows = _thinned(subject.curve, column) + _thinned(subject.curve, validation or "")
            draw = partial(plots.learning_curves, rows=rows, column=column, validation_column=validation)
            found.append((name, svg(draw)))
    return found


def _thinned(rows: list[dict[str, Any]], column: str) -> list[dict[str, Any]]:
    """At most ``MAX_CURVE_POINTS`` rows with a number in a column, and nothing but that number; the last is kept."""
    filled = [{"epoch": row["epoch"], column: row[column]} for row in rows if isinstance(row.get(column), int | float)]
    step = -(-len(filled) // MAX_CURVE_POINTS) or 1
    return filled[::-step][::-1]
