"""The report of a sweep: how it went, what mattered, and which values were good."""

import shlex
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sdebnn import plots
from sdebnn.reports.drawing import svg
from sdebnn.reports.page import Cell, Section, escaped, figure, figures, paragraph, table
from sdebnn.reports.subjects import command_of
from sdebnn.sweeps import Range, Results, Row, Sweep, read_results, read_sweep, shown_value

MAX_LINES = 500  # trials in the picture of all values


def sweep_sections(folder: Path) -> list[Section]:
    """The sections of the page about a sweep."""
    (asked, _), found = read_sweep(folder), read_results(folder)
    best = found.best
    parts = [_how_it_went(asked, found), _what_mattered(asked, found)]
    return [*parts, _all_trials(found), *([] if best is None else [_the_best(folder, asked, best)])]


def _how_it_went(asked: Sweep, found: Results) -> Section:
    """Counts, the history, and the space."""
    counts = {"complete": found.count("complete"), "stopped early": found.count("pruned")}
    counts |= {"failed": found.count("failed"), "not done": found.count("running") + found.count("waiting")}
    words = f"{len(found.rows)} trials: {', '.join(f'{number} {name}' for name, number in counts.items() if number)}. "
    if found.best is not None:
        words += f"The best is trial {found.best.number}, with a validation NLL of {found.best.score:.4f} nats. "
    taken_over = sum(row.attempts > 1 for row in found.rows)
    if taken_over:
        words += f"{taken_over} went on after the process that ran them had stopped. "
    body = paragraph(words, "note") + paragraph(
        "The score is the NLL on examples of the training part that were held out from the training. The test part was "
        "not used to choose. The best of many trials is best partly by chance: its score on the test part is the one "
        "to believe."
    )
    scored = [row for row in found.rows if row.score is not None]
    if scored:
        numbers, scores = np.array([(row.number, row.score) for row in scored], float).T
        draw = partial(plots.sweep_history, numbers=numbers, scores=scores, stopped=[_stopped(row) for row in scored])
        words = "The score of each trial, and the best so far. Hollow ones were stopped early; triangles lie above."
        body += figures([figure(svg(draw), "Scores in the order of the trials", words)])
    rows = [[name, Cell(_in_words(part))] for name, part in asked.space.items()]
    return Section("How the sweep went", body + table("What was varied", ["parameter", "values"], rows, sorts=False))


def _what_mattered(asked: Sweep, found: Results) -> Section:
    """Importances, and the values of all trials."""
    if found.importances:
        words = "The share of the variance of the score over the space that each parameter explains by itself, by a "
        words += "forest fitted to the complete trials (fANOVA). Few trials say little about small shares."
        size = (4.6, 1.1 + 0.45 * len(found.importances))
        draw = partial(plots.importances, shares=found.importances)
        body = figures([figure(svg(draw, size), "Importance of the parameters", words)])
    else:
        body = paragraph("Too few trials are complete, or their values too alike, to say what mattered.")
    scored = [row for row in found.ranked if row.score is not None and row.state in ("complete", "pruned")]
    if scored:
        shown = scored[:MAX_LINES]
        logs = [name for name, part in asked.space.items() if isinstance(part, Range) and part.log]
        draw = partial(
            plots.parallel_coordinates, trials=[row.values for row in shown],
            scores=np.array([row.score for row in shown], float), logarithmic=logs,
        )  # fmt: skip
        words = "Each line is a trial, through its values to its score. Darker and thicker lines are better, by rank; "
        words += "the best has dots."
        body += figure(svg(draw, (9.2, 4.2)), "The values of all trials", words)
    return Section("What mattered", body)


def _all_trials(found: Results) -> Section:
    """The table of trials, best first."""
    names = list(dict.fromkeys(name for row in found.rows for name in row.values))
    rows = []
    for row in found.ranked:
        link = "#the-best-trial" if row == found.best else ""
        score = Cell("") if row.score is None else Cell(f"{row.score:.4f}", row.score)
        seconds = Cell("") if row.seconds is None else Cell(f"{row.seconds:.1f}", row.seconds)
        state = Cell("stopped early" if _stopped(row) else row.state, note=row.error)
        values = [_cell(row.values.get(name)) for name in names]
        rows.append([Cell(str(row.number), row.number, link=link), state, score, *values, seconds])
    heads = ["trial", "state", "validation NLL", *names, "seconds"]
    return Section("All trials", table("Trials, best first", heads, rows))


def _the_best(folder: Path, asked: Sweep, best: Row) -> Section:
    """The settings of the best trial, and how to use it and to train it again."""
    run = folder / best.folder
    settings = {**asked.settings, **best.values}
    rows = [[name, Cell(shown_value(value))] for name, value in settings.items() if value not in (None, [])]
    commands = [f"sdebnn report {shlex.quote(str(run))}", f"sdebnn evaluate {shlex.quote(str(run))}", command_of(run)]
    words = f"Trial {best.number} is the run {run}. The commands report on it, score it, and train it again."
    body = paragraph(words) + table("Its settings", ["setting", "value"], rows, sorts=False)
    lines = escaped("\n".join(commands))
    return Section("The best trial", f'{body}<pre tabindex="0" role="region" aria-label="Commands">{lines}</pre>')


def _stopped(row: Row) -> bool:
    return row.state == "pruned"


def _in_words(part: Any) -> str:
    """A range or a choice, as text."""
    if isinstance(part, Range):
        return f"from {part.low:g} to {part.high:g}{', logarithmic' if part.log else ''}"
    return ", ".join(shown_value(value) for value in part.values)


def _cell(value: Any) -> Cell:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return Cell(shown_value(value), value if is_number else None)
