"""The section of a report that compares runs: over seeds, and with the first run on the same test examples."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from sdebnn.metrics import Estimate, bootstrap
from sdebnn.outcomes import ClassOutcomes
from sdebnn.reports import drawing
from sdebnn.reports.page import Cell, Section, figure, figures, paragraph, table
from sdebnn.reports.subjects import Subject

RESAMPLES = 1000


def seed_groups(subjects: list[Subject]) -> list[list[Subject]]:
    """The runs in groups whose settings differ at most in the seed."""
    groups: dict[str, list[Subject]] = {}
    for each in subjects:
        others = {name: value for name, value in each.settings.items() if name != "seed"}
        groups.setdefault(repr(sorted(others.items())), []).append(each)
    return list(groups.values())


def side_by_side(subjects: list[Subject]) -> Section:
    """The runs in one picture, what another seed changes, and how the others differ from the first run."""
    body = figures([figure(drawing.risk(subjects), "Errors of the most certain", "The lower the better.")])
    for group in seed_groups(subjects):
        if len({each.settings.get("seed") for each in group}) > 1:
            body += _over_seeds(group)
    return Section("Side by side", body + _differences(subjects))


def _over_seeds(group: list[Subject]) -> str:
    """The mean and the standard deviation of every score over runs that differ in their seed."""
    rows = []
    for name in group[0].scores:
        values = [each.scores[name].value for each in group if name in each.scores]
        if len(values) == len(group):
            mean, spread = float(np.mean(values)), float(np.std(values, ddof=1))
            rows.append([name, Cell(f"{mean:.4g}", mean), Cell(f"{spread:.2g}", spread)])
    names = ", ".join(each.name for each in group)
    words = f"Over the seeds of {names}: what another training, with the same settings, changes"
    return table(words, ["score", f"mean of {len(group)}", "standard deviation"], rows)


def _differences(subjects: list[Subject]) -> str:
    """How the runs differ from the first one; nothing if none has the same test examples."""
    first, rows = subjects[0], []
    for other in subjects[1:]:
        if _same_examples(first, other):
            for name, difference in differences(first, other).items():
                fewer = difference.upper < 0 or difference.lower > 0
                better = "higher" if name == "accuracy" else "lower"
                good = difference.value > 0 if better == "higher" else difference.value < 0
                verdict = ("better" if good else "worse") if fewer else "not told apart"
                cell = Cell(f"{difference.value:+.4g}", difference.value)
                interval = f"{difference.lower:+.4g} to {difference.upper:+.4g}"
                rows.append([f"{other.name}: {name}", cell, interval, verdict])
    if not rows:
        return ""
    words = (
        "Both runs forecast the same test examples, so that their differences are surer than their scores: the "
        "intervals (95 %) resample the examples, for both runs alike. They are about these trainings, not about others."
    )
    heads = ["run and score", f"minus {first.name}", "interval", "verdict"]
    return paragraph(words) + table(f"Differences from {first.name}", heads, rows)


def differences(first: Subject, other: Subject) -> dict[str, Estimate]:
    """The scores of a run minus those of the first one, with intervals over the examples that both forecast."""
    ours, theirs = _scored(other), _scored(first)
    return {name: _difference(score, ours[name][1], theirs[name][1]) for name, (score, _) in ours.items()}


def _difference(score: Any, ours: Float[np.ndarray, "..."], theirs: Float[np.ndarray, "..."]) -> Estimate:
    return bootstrap(lambda rows: score(ours[rows]) - score(theirs[rows]), len(ours), resamples=RESAMPLES)


def _scored(subject: Subject) -> dict[str, tuple[Callable[[np.ndarray], float], np.ndarray]]:
    """Scores as functions of a number for each example, and those numbers."""
    of = subject.outcomes
    if isinstance(of, ClassOutcomes):
        nll = -np.log(np.maximum(of.probs[np.arange(len(of.labels)), of.labels], 1e-300))
        return {"accuracy": (lambda wrong: 1 - wrong.mean(), of.wrong.astype(float)), "nll": (np.mean, nll)}
    squares = ((of.mean.mean(0) - of.y) ** 2).mean(-1)
    return {"rmse": (lambda each: np.sqrt(each.mean()), squares), "nll": (np.mean, -of.log_prob)}


def _same_examples(one: Subject, two: Subject) -> bool:
    """Whether two runs were tested on the same data, with the same targets in the same order."""
    first, second = (of.labels if isinstance(of, ClassOutcomes) else of.y for of in (one.outcomes, two.outcomes))
    return one.settings.get("data") == two.settings.get("data") and np.array_equal(first, second)
