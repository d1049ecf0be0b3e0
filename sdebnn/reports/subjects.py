"""What a report says about a run, read from its folder alone."""

import json
import shlex
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sdebnn.forecasters import net_contract, open_forecaster
from sdebnn.metrics import Estimate
from sdebnn.outcomes import ClassOutcomes, Outcomes, load_examples, load_outcomes
from sdebnn.records import read_record, read_result
from sdebnn.reports.depth import Depths, depths
from sdebnn.runs import PARAMETERS, read_about, read_settings, read_stages
from sdebnn.runs.run import stage_folder
from sdebnn.shifts import known_shifts
from sdebnn.tables.kind import KIND as TABLE_KIND
from sdebnn.tables.kind import PARAMETERS as TABLE_PARAMETERS
from sdebnn.tables.kind import is_table_run

MAX_CURVE_ROWS = 100_000
MAX_LABEL = 24  # characters


class Subject(NamedTuple):
    """A run, and what came of it."""

    name: str
    folder: Path
    result: dict[str, Any]  # of result.json
    outcomes: Outcomes
    scores: dict[str, Estimate]
    contract: dict[str, Any]  # what it takes, and what it predicts
    curve: list[dict[str, Any]]  # of metrics.jsonl
    examples: tuple[np.ndarray, np.ndarray] | None  # some of the examples, and their numbers
    settings: dict[str, Any]  # that were asked for
    command: str  # that makes it again
    shifts: dict[str, Any]  # of shifts.json: scores on corruptions, on strange images, at other resolutions
    depths: Depths | None  # weights and hidden units over depth, if the net is kept

    @property
    def label(self) -> str:
        """Its name in a picture, where there is little room: the end of a long one, for long names differ there."""
        return self.name if len(self.name) <= MAX_LABEL else f"...{self.name[-MAX_LABEL + 3 :]}"

    @property
    def are_images(self) -> bool:
        """Whether its examples are images."""
        return self.contract["kind"] == "images"

    @property
    def has_classes(self) -> bool:
        """Whether it predicts classes."""
        return isinstance(self.outcomes, ClassOutcomes)


def subject(run: Path) -> Subject:
    """What there is to say about a run that is done.

        from pathlib import Path

        from sdebnn.reports import subject

        about = subject(Path("model"))
        print(about.command, about.scores["rmse"])

    It is what a page is written from.
    """
    if not (run / "run.json").exists():
        raise ValueError(f"{run} is no folder of a run: pass one that sdebnn train made.")
    if not (run / "result.json").exists():
        raise ValueError(f"{run} has no scores yet: train it to its end, by sdebnn train with --resume.")
    result, outcomes, shifts = read_result(run / "result.json"), load_outcomes(run), known_shifts(run)
    if "model" in shifts and shifts["model"].get("epochs") != result.get("epochs"):
        shifts = {}  # of the model before it was trained for more epochs
    examples = load_examples(run, len(outcomes.labels if isinstance(outcomes, ClassOutcomes) else outcomes.y))
    return Subject(
        run.resolve().name, run, result, outcomes, outcomes.scores(), _contract(run), _curve(run),
        examples, _settings(run, result), _command(run, result), shifts,
        None if examples is None else depths(run, *examples, outcomes),
    )  # fmt: skip


def _contract(run: Path) -> dict[str, Any]:
    """What a run takes and predicts. The parameters of nets, which may be large, are not read."""
    return open_forecaster(run).contract if is_table_run(run) else net_contract(read_about(run))


def _curve(run: Path) -> list[dict[str, Any]]:
    """The rows of the training log of the first member, stage after stage; none for tables."""
    if is_table_run(run):
        return []
    rows: list[dict[str, Any]] = []
    before = 0.0
    for number in range(len(read_stages(run))):
        file = stage_folder(run, number) / "metrics.jsonl"
        if not file.is_file():
            continue
        stage = []
        for line in file.read_text(errors="replace").splitlines()[:MAX_CURVE_ROWS]:
            try:
                row = json.loads(line)
            except ValueError:  # a line that was cut off when the process was killed
                continue
            if isinstance(row, dict) and isinstance(row.get("epoch"), int | float):
                stage.append({**row, "epoch": before + row["epoch"]})
        rows += stage
        before = rows[-1]["epoch"] if rows else 0.0
    return rows


def _settings(run: Path, result: dict[str, Any]) -> dict[str, Any]:
    """What was asked for: the options of the command."""
    if is_table_run(run):
        return read_record(run / "run.json", TABLE_KIND, {})["asked"]
    return {**read_settings(run)._asdict(), "epochs": result.get("epochs")}


def command_of(run: Path) -> str:
    """The command that trains the same run again."""
    return _command(run, read_result(run / "result.json"))


def _command(run: Path, result: dict[str, Any]) -> str:
    """The command that trains the same again; of a run that went on, one for each stage."""
    settings = _settings(run, result)
    usual = {"preset": "ours", "validation": 0.1}
    stages: list[int] = []
    if is_table_run(run):
        usual = {"test": 0.1, "members": 5, "kl_weight": 1.0, "words": [], "validation": 0.0}
    else:
        stages = list(accumulate(read_stages(run)))
    data, out = (shlex.quote(str(name)) for name in (settings["data"], run.resolve().name))
    commands = []
    for number, each in enumerate([{"epochs": epochs} for epochs in stages] or [{}]):
        parts = [f"--data {data}", *_options({**settings, **each}, usual), f"--out {out}", *["--resume"] * (number > 0)]
        commands.append(" ".join(["sdebnn train", *parts]))
    return "\n".join(commands)


def _options(settings: dict[str, Any], usual: dict[str, Any]) -> list[str]:
    """Settings as options of the command, those left out that have their usual value."""
    usual = {"kl_weight": 1.0, "infer_w0": False, "seed": 0, "data": settings.get("data"), **usual}
    found = []
    for name, value in settings.items():
        if value is None or value is False or value == usual.get(name):
            continue
        option = f"--{name.replace('_', '-')}"
        if name in PARAMETERS or name in TABLE_PARAMETERS:
            option, value = "--param", f"{name}={value}"
        given = value if isinstance(value, list) else [value]
        found += [option if each is True else f"{option} {shlex.quote(str(each))}" for each in given]
    return found
