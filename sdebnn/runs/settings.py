"""The settings of a run, what its net knows about its data, and ``run.json``, which keeps both."""

from pathlib import Path
from typing import Any, NamedTuple

from sdebnn.checks import check_choice, check_count, check_level, check_positive, shown
from sdebnn.presets import PRESETS, About
from sdebnn.records import (
    OBJECT,
    TEXT,
    YES_OR_NO,
    Rule,
    Rules,
    broken,
    check_record,
    number,
    or_none,
    read_record,
    record_bytes,
    whole,
)

KIND = "run of sdebnn, version 5"
SEEDS = 2**32
MAX_STAGES = 100
WORDS = Rule("a list of words", lambda value: isinstance(value, list) and all(map(TEXT.holds, value)))
NUMBERS = Rule("a list of numbers", lambda value: isinstance(value, list) and all(map(number().holds, value)))
SHAPE = Rule("a list of sizes", lambda value: isinstance(value, list) and all(map(whole(1).holds, value)))
STAGES = Rule("a list of epochs", lambda value: SHAPE.holds(value) and 1 <= len(value) <= MAX_STAGES)
RULES: Rules = {
    "data": TEXT,
    "preset": TEXT,  # a later version may have other presets
    "infer_w0": YES_OR_NO,
    "seed": whole(0, SEEDS - 1),
    "epochs": or_none(whole(1)),
    "kl_weight": number(0.0),
    "validation": number(0.0),
    "patience": or_none(whole(1)),
    "members": or_none(whole(1)),
    "test": or_none(number(0.0)),
    "size": or_none(whole(4)),
    "stages": STAGES,
    "fingerprint": TEXT,
    "about": OBJECT,
}
# What older runs lack, and what it was.
# What a run may be given in place of the preset's own, and the types.
PARAMETERS: dict[str, type] = {
    "learning_rate": float, "sigma": float, "prior_variance": float, "batch_size": int, "ema": float
}  # fmt: skip
ADDED: dict[str, Any] = {"mixing": False, "net": None, **dict.fromkeys(PARAMETERS)}
ADDED_RULES: Rules = {
    "mixing": YES_OR_NO,
    "net": or_none(OBJECT),
    **dict.fromkeys(PARAMETERS, or_none(number(0.0))),
    "batch_size": or_none(whole(1)),
}
NUMBERS_ABOUT = ("center", "spread", "target_center", "target_spread")
ABOUT_RULES: Rules = {
    "name": TEXT,
    "shape": SHAPE,
    "classes": or_none(WORDS),
    "examples": whole(1),
    **dict.fromkeys(NUMBERS_ABOUT, NUMBERS),
}


class Settings(NamedTuple):
    """The settings of a run, which are saved in ``run.json``."""

    data: str
    preset: str = "ours"
    infer_w0: bool = False
    seed: int = 0
    epochs: int | None = None
    kl_weight: float = 1.0
    validation: float = 0.1
    patience: int | None = None
    members: int | None = None  # None: as many as the preset has
    test: float | None = None  # share of data that have no test part of their own; None: a tenth
    size: int | None = None  # side of pictures; None: as they are, or 32
    mixing: bool = False  # whether images are mixed in training
    learning_rate: float | None = None  # None, here and below: that of the preset
    sigma: float | None = None  # diffusion of the weights
    prior_variance: float | None = None  # of w_0, if it is inferred
    batch_size: int | None = None
    ema: float | None = None  # decay of the moving average of the parameters

    def check(self) -> None:
        """Refuse values that are not allowed."""
        check_choice("preset", self.preset, PRESETS)
        if not 0 <= self.seed < SEEDS:
            raise ValueError(f"seed={self.seed} must be a whole number from 0 to {SEEDS - 1}.")
        if not 0 <= self.validation < 1:
            raise ValueError(
                f"validation={shown(self.validation)} must be a share of the training part: a number from 0 (for none) "
                "to below 1, such as 0.1."
            )
        if self.epochs is not None:
            check_count("epochs", self.epochs)
        for name in ("patience", "members", "batch_size"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        check_positive("kl_weight", self.kl_weight, or_zero=True)
        for name in ("learning_rate", "sigma", "prior_variance"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        if self.ema is not None:
            check_level("ema", self.ema)
        if self.prior_variance is not None and not self.infer_w0:
            raise ValueError(
                f"prior_variance={shown(self.prior_variance)} is of w_0, which is a point: infer w_0 by --infer-w0."
            )


def read_run(out: Path) -> dict[str, Any]:
    """The record of a run."""
    file = out / "run.json"
    if not file.exists():
        raise ValueError(f"{out} is not a run: there is no {file.name} in it; make one with sdebnn train.")
    facts = {**ADDED, **read_record(file, KIND, RULES)}
    check_record(file, facts, ADDED_RULES)
    check_record(file, facts["about"], ABOUT_RULES)
    return facts


def run_bytes(settings: Settings, stages: tuple[int, ...], facts: dict[str, Any]) -> bytes:
    """The record of a run, as it is written."""
    return record_bytes(KIND, {**facts, **settings._asdict(), "stages": list(stages)})


def settings_of(facts: dict[str, Any]) -> Settings:
    """The settings in the record of a run."""
    return Settings(**{name: facts[name] for name in Settings._fields})


def read_settings(out: Path) -> Settings:
    """The settings of a run."""
    return settings_of(read_run(out))


def read_stages(out: Path) -> tuple[int, ...]:
    """The epochs of the first training of a run, and of those that went on from there."""
    return tuple(read_run(out)["stages"])


def read_about(out: Path) -> About:
    """What the net of a run knows about its data."""
    return about_of(out, read_run(out))


def about_of(out: Path, record: dict[str, Any]) -> About:
    """What the net of a run knows about its data, from the record of the run."""
    facts = record["about"]
    about = About(
        facts["name"], tuple(facts["shape"]), None if facts["classes"] is None else tuple(facts["classes"]),
        facts["examples"], *(tuple(facts[name]) for name in NUMBERS_ABOUT),
    )  # fmt: skip
    columns = about.shape[-1] if about.shape else 0
    if len(about.shape) not in (1, 3) or not len(about.center) == len(about.spread) == columns:
        raise broken(out / "run.json", "does not describe the data of a net")
    return about
