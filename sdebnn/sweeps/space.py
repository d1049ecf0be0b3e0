"""What a sweep varies: a range or a choice for each parameter.

learning_rate=1e-3..1e-1:log    sigma=0.1,0.2,0.5    batch_size=32..256:log    infer_w0=true,false
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from sdebnn import runs
from sdebnn.checks import check_choice, shown
from sdebnn.tables.kind import PARAMETERS as TABLE_PARAMETERS

Value = float | int | bool | str
Values = dict[str, Value]

NET_TYPES: dict[str, type] = {"infer_w0": bool, **runs.PARAMETERS, "kl_weight": float, "epochs": int, "members": int}
TABLE_TYPES: dict[str, type] = {**TABLE_PARAMETERS, "kl_weight": float, "members": int}
WORDS = {float: "a number", int: "a whole number", bool: "true or false", str: "a word"}
EXAMPLES = "learning_rate=1e-3..1e-1:log or sigma=0.1,0.2,0.5"
MAX_CHOICES = 1000


class Range(NamedTuple):
    """All numbers between two bounds; if ``log``, equally many in each order of magnitude."""

    low: float
    high: float
    log: bool = False

    @property
    def extremes(self) -> tuple[Value, ...]:
        """The values at the ends."""
        return self.low, self.high

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}{':log' if self.log else ''}"


class Choice(NamedTuple):
    """Some values."""

    values: tuple[Value, ...]

    @property
    def extremes(self) -> tuple[Value, ...]:
        """All of them."""
        return self.values

    def __str__(self) -> str:
        return ",".join(str(value).lower() if isinstance(value, bool) else str(value) for value in self.values)


Space = dict[str, Range | Choice]

# The paper's weights are not standardised, and ours are. A learning rate on standardised weights is larger by the ratio
# of the two units. By fan-in that is about 20 for the wide convolutions of the paper's nets (sqrt(9 * 32) = 17 to
# sqrt(9 * 64) = 24), and on MNIST it was found to be 40 by validation (``presets.paper``). So the paper's 1e-4 to 1e-3
# became 20 * 1e-4 to 40 * 1e-3. Sigma and the variance of the prior of w_0 are the paper's numbers, of our weights.
PAPER: Space = {
    "learning_rate": Range(2e-3, 4e-2, log=True),
    "sigma": Choice((0.1, 0.2, 0.5)),
    "prior_variance": Range(0.1, 0.44),
}
# Around the defaults of the estimators.
TABLE: Space = {
    "learning_rate": Range(5e-3, 8e-2, log=True),
    "sigma": Choice((0.003, 0.01, 0.03, 0.1)),
    "width": Choice((20, 50, 100)),
}
SPACES = {"paper": PAPER, "table": TABLE}


def named_space(name: str, *, of_table: bool) -> Space:
    """A space by its name: "paper" for nets, "table" for tables."""
    check_choice("space", name, tuple(SPACES))
    if (name == "table") != of_table:
        raise ValueError(f"space={name!r} is not for {'tables' if of_table else 'nets'}: leave it out, or use --param.")
    return SPACES[name]


def parsed(given: Iterable[str], types: dict[str, type]) -> Space:
    """The space that some words describe, such as ``sigma=0.1,0.2,0.5``."""
    found: Space = {}
    for words in given:
        name, equals, text = words.partition("=")
        if not equals or not text:
            raise ValueError(f"param={words!r} must be a range or a choice for a name, such as {EXAMPLES}.")
        if name not in types:
            raise ValueError(f"param={words!r}: {shown(name)} cannot be swept: choose one of {', '.join(types)}.")
        if name in found:
            raise ValueError(f"param={words!r} is the second for {name}: pass one for each name.")
        found[name] = _range(words, text, types[name]) if ".." in text else _choice(words, text, types[name])
    return found


def _range(words: str, text: str, kind: type) -> Range:
    bounds, _, scale = text.partition(":")
    ends = bounds.split("..")
    if len(ends) != 2 or scale not in ("", "log") or kind not in (float, int):
        raise ValueError(f"param={words!r} is no range of numbers: write one as learning_rate=1e-3..1e-1:log.")
    low, high = (_value(words, end, kind) for end in ends)
    assert not isinstance(low, str)
    assert not isinstance(high, str)
    if not low < high:
        raise ValueError(f"param={words!r} is an empty range: write the smaller number first.")
    if scale and low <= 0:
        raise ValueError(f"param={words!r} has a logarithmic scale, which needs bounds above 0: leave out :log.")
    return Range(low, high, scale == "log")


def _choice(words: str, text: str, kind: type) -> Choice:
    values = tuple(_value(words, each, kind) for each in text.split(","))
    if len(set(values)) < len(values) or len(values) > MAX_CHOICES:
        raise ValueError(f"param={words!r} holds a value twice, or more than {MAX_CHOICES}: list each once.")
    return Choice(values)


def _value(words: str, text: str, kind: type) -> Value:
    try:
        value = {"true": True, "false": False}[text.strip().lower()] if kind is bool else kind(text.strip())
    except (ValueError, KeyError):
        raise ValueError(f"param={words!r}: {shown(text)} is not {WORDS[kind]}: pass one for {words[:20]}.") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"param={words!r}: {shown(text)} is not finite: pass a number.")
    return value


def to_json(space: Space) -> dict[str, Any]:
    """A space as JSON."""
    return {
        name: part._asdict() if isinstance(part, Range) else list(part.values) for name, part in space.items()
    }  # fmt: skip


def from_json(words: dict[str, Any]) -> Space:
    """The inverse of ``to_json``."""
    return {
        name: Range(**part) if isinstance(part, dict) else Choice(tuple(part)) for name, part in words.items()
    }  # fmt: skip
