"""A report of one run or of several beside each other: one HTML page that needs nothing else."""

import datetime
from collections.abc import Sequence
from pathlib import Path

from sdebnn import __version__
from sdebnn.files import write_whole
from sdebnn.reports import sections
from sdebnn.reports.comparing import side_by_side
from sdebnn.reports.illustrations import illustrations
from sdebnn.reports.page import MAX_BYTES, Section, page
from sdebnn.reports.subjects import Subject, subject
from sdebnn.reports.sweeping import sweep_sections
from sdebnn.sweeps import is_sweep

__all__ = ["Subject", "report", "subject", "write_report"]


def report(runs: Sequence[Path]) -> str:
    """The page about some runs, or about one sweep.

        from pathlib import Path

        from sdebnn.reports import report

        page = report([Path("model")])  # a folder that sdebnn train made

    It is HTML, and needs no other file. All runs must predict classes, or all numbers.
    """
    if not runs:
        raise ValueError("no run was given: pass the folder of at least one.")
    if any(map(is_sweep, runs)):
        return _sweep_page(runs)
    subjects = [subject(run) for run in runs]
    if len({each.has_classes for each in subjects}) > 1:
        raise ValueError("some of these runs predict classes and others numbers: write a report of each kind.")
    if len({each.label for each in subjects}) < len(subjects):
        subjects = [each._replace(name=f"{each.name} ({i})") for i, each in enumerate(subjects, start=1)]
    parts: list[Section] = [sections.how_it_did(subjects), sections.what_was_trained(subjects)]
    if len(subjects) > 1:
        parts.append(side_by_side(subjects))
    parts += [illustrations(each) for each in subjects]
    other = sections.elsewhere(subjects)
    parts += [*([] if other is None else [other]), sections.trust(subjects), sections.repeating(subjects)]
    title = f"Report of {', '.join(each.name for each in subjects)}"
    return page(title, _about(), parts)


def _sweep_page(folders: Sequence[Path]) -> str:
    if len(folders) > 1:
        raise ValueError("a sweep has a page of its own: pass its folder alone, or the folders of some of its trials.")
    return page(f"Sweep {folders[0].resolve().name}", _about(), sweep_sections(folders[0]))


def _about() -> str:
    return f"sdebnn {__version__}, {datetime.date.today().isoformat()}"


def write_report(runs: Sequence[Path], out: Path) -> int:
    """Write the page about some runs, and return its size in bytes.

        from pathlib import Path

        from sdebnn.reports import write_report

        size = write_report([Path("model")], Path("report.html"))

    On the command line: ``sdebnn report model --out report.html``.
    """
    text = report(runs).encode()
    if len(text) > MAX_BYTES:
        raise ValueError(f"the page would have {len(text):,} bytes, more than {MAX_BYTES:,}: report on fewer runs.")
    write_whole(out, text)
    return len(text)
