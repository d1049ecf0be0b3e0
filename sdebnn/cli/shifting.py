"""The scores of ``sdebnn evaluate`` on corruptions, on other sets of images, and at other resolutions."""

import json
import sys
from pathlib import Path
from typing import Any

from sdebnn import runs, shifts
from sdebnn.files import write_whole
from sdebnn.forecasters import NetForecaster, open_forecaster
from sdebnn.runs.settings import read_run


def shifted_scores(
    run: Path, data: Path | None, draws: int | None, best: bool, *, corruptions: bool, ood: list[str],
    relative_to: Path | None, steps: list[int], rtol: list[float],
) -> dict[str, Any]:  # fmt: skip
    """All that was asked for. What is on the test part is also kept in the folder of the run.

    Before long work, a run to compare with is refused if it has no scores on the same images.
    """
    known = None if relative_to is None else _to_compare_with(run, relative_to, data)
    net = open_forecaster(run, draws=draws, best=best)
    assert isinstance(net, NetForecaster)
    if data is None:
        net = net._replace(key=runs.score_key(runs.read_settings(run).seed))  # the draws of the scores that a run keeps
    part = runs.scored_part(run, runs.read_settings(run)) if data is None else net.labelled(data)
    model = {"epochs": sum(runs.read_stages(run)), "draws": net.draws, "best": best}
    found: dict[str, Any] = {"model": model, "clean": net.scores_of(part)}
    strange = None
    if steps or rtol:
        found["resolutions"] = shifts.resolution_scores(net, part, steps=steps, rtol=rtol)
    if ood:
        strange = shifts.strange_scores(net, part, ood, say=_say)
        found["ood"] = strange.detection
    if corruptions:
        found["corruptions"] = shifts.corruption_scores(net, part, relative_to=known, say=_say)
    if data is None:
        shown = {} if strange is None else {"entropies": strange.entropies}
        before = shifts.known_shifts(run)  # just before it is written: another process may have added to it
        if before.get("model") != model:
            before = {}
        kept = {**before, **found, **shown}
        write_whole(run / shifts.SHIFTS_FILE, (json.dumps(kept, indent=1) + "\n").encode())
    return found


def _to_compare_with(run: Path, other: Path, data: Path | None) -> dict[str, Any]:
    """The scores of another run on the corruptions of the same test part."""
    if data is not None:
        raise ValueError("--relative-to compares with scores on the test part, and --data is given: leave one out.")
    if not (other / "run.json").is_file():
        raise ValueError(f"relative_to={other} is no folder of a run: pass one that sdebnn train made.")
    known = shifts.known_shifts(other).get("corruptions")
    if known is None:
        raise ValueError(f"{other} has no scores on corruptions: evaluate it with --corruptions first.")
    ours, theirs = (read_run(each)["fingerprint"].split()[2:] for each in (run, other))
    if ours != theirs:
        raise ValueError(f"{other} was tested on other examples than {run}: compare runs of one data set.")
    return known


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def lines(found: dict[str, Any]) -> list[str]:
    """The scores as a table."""
    rows = [["", *shifts.SCORES], ["clean", *(found["clean"].get(name) for name in shifts.SCORES)]]
    if "corruptions" in found:
        of = found["corruptions"]
        rows += [[f"severity {i}", *each.values()] for i, each in enumerate(of["by_severity"], start=1)]
        rows += [
            [name, *(sum(cell[score] for cell in cells) / len(cells) for score in shifts.SCORES)]
            for name, cells in of["by_corruption"].items()
        ]
        rows.append(["mean of corruptions", *of["mean"].values()])
        if "mean_corruption_error" in of:
            rows.append(["mean corruption error", of["mean_corruption_error"]])
    for each in found.get("resolutions", []):
        name = "steps" if "steps" in each else "rtol"
        rows.append([f"{name} {each[name]:g}", *(each.get(score) for score in shifts.SCORES)])
    if "ood" in found:
        rows.append(["", *(f"AUROC by {score}" for score in next(iter(found["ood"].values())))])
        rows += [[name, *(of["auroc"] for of in scores.values())] for name, scores in found["ood"].items()]
    return ["  ".join(_cell(cell, i) for i, cell in enumerate(row)).rstrip() for row in rows]


def _cell(value: Any, column: int) -> str:
    text = "" if value is None else value if isinstance(value, str) else f"{value:.4f}"
    return f"{text:24}" if column == 0 else f"{text:>18}"
