"""Runs over time and over damage to the inputs: learning curves, and scores against the severity of corruption."""

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from sdebnn.metrics.classes import Numbers
from sdebnn.plots.elements import end_labels, label_axes, look, vector

SeverityScores = Float[Numbers, "severity member"] | Sequence[Float[Numbers, " _"]]
START = 0.05  # of the time, which may be left out of the height of learning curves
WORDS = {
    "loss": "loss (nats per example)", "nll": "NLL (nats per example)", "elbo": "ELBO (nats)", "kl": "KL (nats)",
    "accuracy": "accuracy (share)", "log_likelihood": "log-likelihood (nats)", "gradient_norm": "norm of the gradient",
}  # fmt: skip


def severity(axes: Axes, scores: Mapping[str, SeverityScores], *, score: str = "accuracy (share)") -> None:
    """A score against the severity of corruption: median, quartiles (thick) and extremes (thin) of each run.

        one = np.array([[0.97, 0.96], [0.91, 0.93], [0.82, 0.87]])  # severity, corruption
        five = np.array([[0.98, 0.97], [0.94, 0.94], [0.86, 0.90]])
        plots.severity(axes, {"one net": one, "five nets": five})

    For each run, row i holds the scores at severity i, of all seeds and corruptions; row 0 is without corruption. Rows
    may differ in length.
    """
    if not scores:
        raise ValueError("scores={} holds no run: pass a dict of the name of each run and its scores.")
    ends: list[tuple[float, float, str, str]] = []
    for number, (name, rows) in enumerate(scores.items()):
        if not len(rows):
            raise ValueError(f"scores[{name!r}] holds no severity: pass one row of scores for each.")
        found = [vector(f"scores[{name!r}][{i}]", np.asarray(row)) for i, row in enumerate(rows)]
        low, first, middle, third, high = np.array([np.quantile(row, np.linspace(0, 1, 5)) for row in found]).T
        shift = 0.11 * (number - (len(scores) - 1) / 2)
        x, (colour, line, marker) = np.arange(len(found)) + shift, look(number)
        axes.vlines(x, low, high, color=colour, linewidth=0.8, zorder=2, gid="extremes")
        axes.vlines(x, first, third, color=colour, linewidth=3.2, zorder=2.5, gid="quartiles")
        axes.plot(
            x, middle, color=colour, linestyle=line, linewidth=0.9, marker=marker, markersize=5.5,
            markeredgecolor="white", markeredgewidth=0.7, zorder=3,
        )  # fmt: skip
        ends.append((len(found) - 1 + 0.11 * (len(scores) - 1) / 2, float(middle[-1]), name, colour))
    axes.set_xticks(range(max(len(rows) for rows in scores.values())))
    label_axes(axes, "severity of corruption (0: none)", score)
    end_labels(axes, ends)


def learning_curves(
    axes: Axes,
    rows: Sequence[Mapping[str, Any]],
    *,
    column: str = "loss",
    validation_column: str | None = "validation_nll",
) -> None:
    """A column of metrics.jsonl and one of the validation against epochs, each labelled with its last value.

        import json
        from pathlib import Path

        fit(model, likelihood, x, y, key=key, epochs=20, checkpoints=Checkpoints("run"))
        rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
        plots.learning_curves(axes, rows)

    Rows without a number in a column are left out of its curve. If the first twentieth of the time would take most of
    the height of the axes, the height leaves it out. ``elbo`` is of all training examples, and
    ``validation_elbo`` of one example. Logarithmic scales are set before the call.
    """
    time = "epoch" if any(_is_number(row.get("epoch")) for row in rows) else "step"
    ends: list[tuple[float, float, str, str]] = []
    for number, (name, word) in enumerate(((column, "training"), (validation_column or "", "validation"))):
        points = [(row[time], row[name]) for row in rows if _is_number(row.get(time)) and _is_number(row.get(name))]
        if not points:
            continue
        (x, y), (colour, _, marker) = np.array(points, float).T, look(1 - number)
        axes.plot(
            x, y, color=colour, linewidth=1.1, zorder=2 + number, marker=marker if number or len(x) == 1 else None,
            markersize=4.5, markeredgecolor="white", markeredgewidth=0.5, markevery=max(1, len(x) // 20),
        )  # fmt: skip
        ends.append((float(x[-1]), float(y[-1]), f"{word} {y[-1]:.4g}", colour))
    if not ends:
        known = sorted({key for row in rows for key, value in row.items() if _is_number(value)} - {"epoch", "step"})
        raise ValueError(
            f"no row holds a number for {column!r} or {validation_column!r}: choose from {', '.join(known) or 'none'}."
        )
    _leave_out_the_start(axes)
    if max(x for x, _, _, _ in ends) >= 5:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    label_axes(axes, time, WORDS.get(column, column.replace("_", " ")))
    end_labels(axes, ends)


def _leave_out_the_start(axes: Axes) -> None:
    """Set the height of axes with a linear scale by the later values, if those have less than a quarter of it."""
    points = np.concatenate([np.asarray(line.get_xydata(), float) for line in axes.lines])
    late = points[points[:, 0] >= START * points[:, 0].max(), 1]
    low, high = late.min(), late.max()
    if axes.get_yscale() == "linear" and 0 < high - low < 0.25 * np.ptp(points[:, 1]):
        axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and bool(np.isfinite(float(value)))
