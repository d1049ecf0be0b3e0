"""What is asked of a sweep, and ``sweep.json``, which keeps it."""

from pathlib import Path
from typing import Any, NamedTuple

from sdebnn.checks import shown
from sdebnn.records import (
    OBJECT,
    TEXT,
    YES_OR_NO,
    Rules,
    broken,
    check_same_settings,
    or_none,
    read_record,
    write_record,
)
from sdebnn.sweeps.space import Space, from_json, to_json

KIND = "sweep of sdebnn, version 1"
FILE = "sweep.json"
RULES: Rules = {
    "of_table": YES_OR_NO,
    "settings": OBJECT,
    "space": OBJECT,
    "prune": YES_OR_NO,
    "digest": TEXT,
    "storage": or_none(TEXT),
}
REMEDY = "use the same, or choose another folder"


class Sweep(NamedTuple):
    """The settings that all trials share, and the space from which the others are taken.

    ``settings`` are those of ``runs.Settings``, or of ``TableSettings`` if ``of_table``. ``digest`` is of the data.
    """

    of_table: bool
    settings: dict[str, Any]
    space: Space
    prune: bool
    digest: str

    def facts(self) -> dict[str, Any]:
        """This sweep as JSON."""
        return {**self._asdict(), "space": to_json(self.space)}

    def check_same(self, place: str, saved: "Sweep") -> None:
        """Refuse to go on with a sweep over another space, with other settings or data."""
        if self.of_table != saved.of_table or self.digest != saved.digest:
            raise ValueError(
                f"{place} is a sweep on other data than {shown(self.settings['data'])}, or these have changed: restore "
                "them, or choose another folder."
            )
        check_same_settings(Path(place), saved._compared(), self._compared(), REMEDY)

    def _compared(self) -> dict[str, Any]:
        """What must be the same, by name. Data are compared by their contents, for they may have been moved."""
        settings = {name: value for name, value in self.settings.items() if name != "data"}
        space = " ".join(f"{name}={part}" for name, part in sorted(self.space.items()))
        return {"space": space, "prune": self.prune, **settings}


def from_facts(facts: dict[str, Any]) -> Sweep:
    """The sweep that ``facts`` describes."""
    return Sweep(facts["of_table"], facts["settings"], from_json(facts["space"]), facts["prune"], facts["digest"])


def is_sweep(folder: Path) -> bool:
    """Whether a folder holds a sweep."""
    return (folder / FILE).is_file()


def read_sweep(folder: Path) -> tuple[Sweep, str | None]:
    """The sweep in a folder, and its storage without the password; None is a file in the folder."""
    if not is_sweep(folder):
        raise ValueError(f"{folder} is no sweep: there is no {FILE} in it; make one with sdebnn sweep --data.")
    facts = read_record(folder / FILE, KIND, RULES)
    try:
        return from_facts(facts), facts["storage"]
    except (TypeError, AttributeError):
        raise broken(folder / FILE, "describes no space") from None


def write_sweep(folder: Path, sweep: Sweep, storage: str | None) -> None:
    """Keep a sweep in its folder."""
    write_record(folder / FILE, KIND, {**sweep.facts(), "storage": storage})
