"""Tables and figures of the paper, each as rows that are run one by one, a JSON file, and a drawing made from it alone.

A file of this folder that is named after a table or a figure defines ``EXPERIMENT``. ``sdebnn reproduce ID`` runs its
rows, saves after each, and skips those that are saved with the same settings. With ``--draw`` it only draws.
"""

import datetime
import importlib
import io
import json
import platform
import re
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import diffrax
import jax
import matplotlib
import numpy as np
from matplotlib.figure import Figure

import sdebnn
from sdebnn.checks import check_choice, shown
from sdebnn.files import FolderLock, contents, made_folder, write_whole

matplotlib.use("agg")

FOLDER = Path(__file__).resolve().parent
ID = re.compile(r"(fig|table)\d+|partial|ablation")
DIGITS = 6  # of the numbers in a file
MAX_RESULT_BYTES = 2**24

Scale = Literal["smoke", "full"]
SCALES: tuple[Scale, ...] = ("smoke", "full")
Settings = dict[str, Any]  # of a row: numbers, words, and lists of them
Found = dict[str, Any]  # what a row measured: numbers, words, and lists of them


class Table(NamedTuple):
    """A table: its headings, and its rows of text."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


class Finding(NamedTuple):
    """Whether the paper's claim holds here, and why; None if these rows cannot tell."""

    holds: bool | None
    words: str


class Experiment(ABC):
    """A table or a figure of the paper.

    To write one, subclass it in a file named after the ID, and set ``EXPERIMENT = MyFigure()`` there:

        class MyFigure(Experiment):
            title = "Figure 0: the area of a circle"
            claim = "The area is 3.14."

            def rows(self, scale):
                return {"darts": {"count": 100 if scale == "smoke" else 10_000, "seed": 0}}

            def run(self, settings):
                darts = np.random.default_rng(settings["seed"]).uniform(-1, 1, (settings["count"], 2))
                return {"area": 4 * np.mean((darts**2).sum(1) < 1)}

            def finding(self, found):
                return Finding(abs(found["darts"]["area"] - 3.14) < 0.1, f"It is {found['darts']['area']:.2f}.")

    ``found`` are the rows that are finished, in order; ``table`` and ``picture`` show them.
    """

    title: str
    claim: str  # what the paper says
    shares: tuple[str, ...] = ()  # IDs of others with some of the same rows, which are then not run again

    @abstractmethod
    def rows(self, scale: Scale) -> dict[str, Settings]:
        """The settings of every row, by its name. A row is run again only if they change."""

    @abstractmethod
    def run(self, settings: Settings) -> Found:
        """What one row measures."""

    @abstractmethod
    def finding(self, found: dict[str, Found]) -> Finding:
        """Whether the claim holds, once all rows are finished."""

    def table(self, found: dict[str, Found]) -> Table | None:
        """The numbers, beside those of the paper."""
        return None

    def picture(self, found: dict[str, Found]) -> Figure | None:
        """The picture."""
        return None


def check_scale(scale: str) -> None:
    """Refuse an unknown scale."""
    check_choice("scale", scale, SCALES)


def names() -> list[str]:
    """The IDs of all tables and figures, in the order of the paper."""
    found = [path.stem for path in FOLDER.glob("*.py") if ID.fullmatch(path.stem)]
    return sorted(found, key=lambda name: (re.sub(r"\d", "", name), int(re.sub(r"\D", "", name) or 0)))


def experiment(name: str) -> Experiment:
    """The table or figure with this ID."""
    check_choice("ID", name, tuple(names()))
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    return importlib.import_module(name).EXPERIMENT


def file_of(name: str, out: Path) -> Path:
    """The results of an experiment."""
    return out / f"{name}.json"


def reproduce(name: str, scale: Scale, out: Path, say: Callable[[str], None]) -> None:
    """Run the rows that are not finished. Each is saved when it is."""
    subject, folder = experiment(name), out / f".{name}"
    made_folder(out)
    with FolderLock(folder) as lock:  # two processes would overwrite each other's rows
        try:
            result = _started(file_of(name, out), name, scale)
            wanted = subject.rows(scale)
            kept = {row: result["rows"][row] for row in wanted if _is_done(result["rows"].get(row), wanted[row])}
            for number, (row, settings) in enumerate(wanted.items(), 1):
                if row in kept:
                    say(f"{row} ({number} of {len(wanted)}): finished before")
                    continue
                shared = _shared(subject, settings, scale, out)
                words = f"{row} ({number} of {len(wanted)})"
                say(words if shared is None else f"{words}: taken from {shared[0]}")
                kept[row] = _run(subject, settings) if shared is None else shared[1]
                result["rows"] = {each: kept[each] for each in wanted if each in kept}
                _write(file_of(name, out), result)
            result["rows"] = {each: kept[each] for each in wanted}
            _write(file_of(name, out), result)
        finally:
            lock.abandon()


def _run(subject: Experiment, settings: Settings) -> dict[str, Any]:
    """One row, run now."""
    began = time.perf_counter()
    found = rounded(subject.run(settings))
    return {"settings": settings, "seconds": round(time.perf_counter() - began, 1), **_about(), "found": found}


def _shared(subject: Experiment, settings: Settings, scale: Scale, out: Path) -> tuple[str, dict[str, Any]] | None:
    """The row of another experiment with the same settings, and the ID of that."""
    for other in subject.shares:
        if not file_of(other, out).exists():
            continue
        result = read(file_of(other, out))
        for row in result["rows"].values() if result["scale"] == scale else ():
            if _is_done(row, settings):
                return other, row
    return None


def draw(name: str, out: Path) -> Finding | None:
    """Draw the picture, if there is one, from the results alone; and say what was found, if all rows are finished."""
    subject, result = experiment(name), read(file_of(name, out))
    found = {row: each["found"] for row, each in result["rows"].items()}
    if set(found) != set(subject.rows(result["scale"])):
        return None
    picture = subject.picture(found)
    if picture is not None:
        drawn = io.BytesIO()
        picture.savefig(drawn, dpi=130, format="png", metadata={"Software": None})
        write_whole(out / f"{name}.png", drawn.getvalue())
    return subject.finding(found)


def read(path: Path) -> dict[str, Any]:
    """The results in a file."""
    if not path.exists():
        raise ValueError(f"{path} is not there: run sdebnn reproduce {path.stem} first.")
    try:
        found = json.loads(contents(path, MAX_RESULT_BYTES))
        if not (isinstance(found, dict) and found["scale"] in SCALES and isinstance(found["rows"], dict)):
            raise KeyError
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no results ({shown(str(error))}): move it away, and run it again.") from None
    return found


def rounded(value: Any) -> Any:
    """The same numbers with few digits, as JSON can hold them; NaN and infinite ones are None."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    if isinstance(value, np.ndarray | jax.Array):
        return rounded(np.asarray(value).tolist())
    if isinstance(value, float | np.floating):
        return float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def _started(path: Path, name: str, scale: Scale) -> dict[str, Any]:
    """The results so far, without those of another scale."""
    if path.exists():
        result = read(path)
        if result["scale"] == scale:
            return result
        if result["scale"] == "full":
            raise ValueError(f"{path} holds results of full scale, which would be lost: choose another folder as out.")
    return {"id": name, "scale": scale, "command": f"sdebnn reproduce {name} --scale {scale}", "rows": {}}


def _is_done(row: dict[str, Any] | None, settings: Settings) -> bool:
    return row is not None and row["settings"] == json.loads(json.dumps(settings))


def _about() -> dict[str, Any]:
    """Where and when a row was run."""
    versions = {each.__name__: each.__version__ for each in (sdebnn, jax, diffrax, np)}
    return {
        "date": datetime.date.today().isoformat(), "device": jax.devices()[0].device_kind,
        "versions": {"python": platform.python_version(), **versions},
    }  # fmt: skip


def _write(path: Path, result: dict[str, Any]) -> None:
    """Write the results, each row on a line."""
    about = {name: value for name, value in result.items() if name != "rows"}
    rows = [f" {json.dumps(name)}: {json.dumps(row)}" for name, row in result["rows"].items()]
    text = json.dumps(about, indent=1)[:-2] + ',\n "rows": {\n' + ",\n".join(rows) + "\n }\n}\n"
    write_whole(path, text.encode())
