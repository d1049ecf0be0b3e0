"""What came of a sweep: ``trials.json``, with a row for each trial, written after each of them."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from sdebnn.files import write_whole
from sdebnn.records import read_result
from sdebnn.sweeps.space import Values

FILE = "trials.json"


class Row(NamedTuple):
    """A trial: its place in the sweep, its state, its values, and its score.

    The state is "complete", "pruned", "failed", "running" or "waiting". The score of a pruned trial is that of its last
    validation.
    """

    number: int
    state: str
    values: Values
    score: float | None
    curve: tuple[tuple[int, float], ...]  # the epochs of its validations, and the NLL
    seconds: float | None
    attempts: int  # more than one if its worker was stopped or killed
    folder: str
    error: str = ""


class Results(NamedTuple):
    """The trials of a sweep, in their order, and the share of the variance of the score that each parameter explains.

    ``importances`` is empty while there are too few complete trials.
    """

    rows: tuple[Row, ...]
    importances: dict[str, float]

    @property
    def ranked(self) -> list[Row]:
        """The trials, best first: complete ones by their score, then pruned ones, then others."""
        order = {"complete": 0, "pruned": 1, "running": 2, "waiting": 3, "failed": 4}
        return sorted(self.rows, key=lambda row: (order[row.state], row.score or 0.0, row.number))

    @property
    def best(self) -> Row | None:
        """The complete trial with the lowest score."""
        first = self.ranked[:1]
        return first[0] if first and first[0].state == "complete" else None

    def count(self, state: str) -> int:
        """The number of trials in a state."""
        return sum(row.state == state for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """The results as JSON."""
        return {"trials": [row._asdict() for row in self.rows], "importances": self.importances}


def write_results(folder: Path, results: Results) -> None:
    """Keep the results in the folder of the sweep."""
    write_whole(folder / FILE, (json.dumps(results.to_json(), indent=1) + "\n").encode())


def read_results(folder: Path) -> Results:
    """The results in the folder of a sweep."""
    if not (folder / FILE).is_file():
        raise ValueError(f"{folder} has no trials yet: run its command, sdebnn sweep --out {folder}.")
    try:
        found = read_result(folder / FILE)
        rows = [Row(**row) for row in found["trials"]]
        rows = [row._replace(curve=tuple((int(epoch), float(nll)) for epoch, nll in row.curve)) for row in rows]
        return Results(tuple(rows), dict(found["importances"]))
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"{folder / FILE} is damaged: run sdebnn sweep --out {folder} to write it again.") from None


def table(results: Results) -> list[list[str]]:
    """The trials as lines of text, best first, below the names of the columns."""
    names = list(dict.fromkeys(name for row in results.rows for name in row.values))
    lines = [["trial", "state", "validation NLL", *names, "seconds"]]
    for row in results.ranked:
        values = [shown_value(row.values.get(name)) for name in names]
        score = "" if row.score is None else f"{row.score:.4f}"
        seconds = "" if row.seconds is None else f"{row.seconds:.1f}"
        lines.append([str(row.number), row.state, score, *values, seconds])
    return lines


def shown_value(value: object) -> str:
    """A value of a parameter as text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)
