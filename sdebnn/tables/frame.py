"""A table as it stands in a file: named columns, each of numbers or of words, with cells that may be missing."""

import os
import re
import shlex
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sdebnn.checks import shown
from sdebnn.data import text

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})  # in lower case
MONTH = (
    r"(jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sept?(ember)?|oct(ober)?|nov(ember)?"
    r"|dec(ember)?)\.?"
)
DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}([T ].*)?"
    r"|(19|20)\d\d[-/](0?[1-9]|1[0-2])"
    rf"|(\d{{1,2}}\.?[- ])?{MONTH}[- ,]+(\d{{1,2}},? +)?(\d\d|(19|20)\d\d)"
    r"|(19|20)\d\d[-/ ]?(Q[1-4]|W\d{1,2}(-[1-7])?)|(Q[1-4]|W\d{1,2})[-/ ]?(19|20)\d\d"  # quarters and weeks
    r"|\d{1,2}:\d{2}(:\d{2})?(\.\d+)?( ?[ap]\.?m\.?)?",
    re.IGNORECASE,
)
# A number in a form that is not read: with a unit, a currency, a decimal comma, or separators of thousands.
CURRENCY = (
    r"([$€£¥₹₩₽₺₪₫₴]|USD|EUR|GBP|JPY|CNY|RMB|CHF|CAD|AUD|NZD|INR|BRL|MXN|ZAR|SEK|NOK|DKK|PLN|CZK|HUF|TRY|RUB|KRW|SGD"
    r"|HKD|Rs\.?|kr\.?|zł)"
)
UNIT = (
    r"([mcdk]m|[mk]g|lbs?|oz|ft|mi|miles?|ml|[mk]?m[²2³3]|sq\.? ?(ft|m)|km/h|kmh|mph|k?cal|k?wh|kw|hp|[mg]hz"
    r"|[kmgt]i?b|days?|weeks?|months?|years?|yrs?|hours?|hrs?|min(ute)?s?|sec(ond)?s?)"
)
NUMBER = r"[-+]?\d+([ ,.'_]\d{3})*([.,]\d+)?"
NUMBER_LIKE = re.compile(
    rf"[-+]?({CURRENCY}\s?)?{NUMBER}(\s?{CURRENCY}|\s?[%‰°]|\s?°[CF]|\s[mglsh]|\s{UNIT})?", re.IGNORECASE
)
MEASURED = re.compile(NUMBER + UNIT, re.IGNORECASE)  # which may also be a name, if there is only one
CODE = re.compile(r"0\d+")  # whole numbers with a leading zero, such as zip codes
MOSTLY = 0.5  # a column with a larger share of numbers is meant as numbers, of dates as dates
MAX_CELLS = 2**28


class Frame(NamedTuple):
    """Columns of equal length by name: float64 with NaN where a number is missing, or objects, str or None."""

    columns: dict[str, np.ndarray]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.columns.values())))

    def at(self, index: np.ndarray) -> "Frame":
        """Some of the rows."""
        return Frame({name: column[index] for name, column in self.columns.items()})

    def without(self, *names: str) -> "Frame":
        """All columns but some."""
        return Frame({name: column for name, column in self.columns.items() if name not in names})


def as_word(value: float) -> str:
    """A number as a word: a whole number without a point, any other with all its digits."""
    return str(int(value)) if value == round(value) and abs(value) < 1e15 else repr(float(value))


def is_words(column: np.ndarray) -> bool:
    """Whether a column of a frame holds words."""
    return column.dtype == object


def read_frame(
    path: str | os.PathLike[str], *, words: Collection[str] = (), used: Collection[str] | None = None
) -> Frame:
    """The table in a text file whose first line names the columns, separated by commas, semicolons or tabs.

    A column of decimal numbers becomes numbers, any other column words. Cells that are empty, or hold NA, nan, null,
    none or ?, are missing. Columns of dates are refused, and so are columns of numbers with a few cells that are none,
    and of numbers in another form. Columns in ``words`` hold words, whatever they look like; if ``used`` is given, all
    others than these do, too.
    """
    needed = None if used is None else frozenset(used)
    kinds = partial(_is_known_as_words, frozenset(words), needed)
    return text.parsed(Path(path), partial(text.cells, keep_empty=True), partial(_parse, kinds, needed))


def _is_known_as_words(words: frozenset[str], used: frozenset[str] | None, name: str) -> bool:
    return name in words or (used is not None and name not in used)


def _parse(
    known_as_words: Callable[[str], bool], used: frozenset[str] | None, path: Path, lines: text.Lines
) -> Frame:  # fmt: skip
    names: list[str] = []
    cells: list[list[str]] = []
    numbers: list[int] = []
    empty = 0  # the number of an empty line, of which only the last ones are allowed
    for line, row in lines:
        stripped = [cell.strip() for cell in row]
        if not row or (len(row) == 1 != len(names) and not stripped[0]):
            empty = empty or (line if names else 0)
            continue
        if empty:
            raise ValueError(
                f"{path} line {empty} is empty: remove it, or write its separators if all cells are missing."
            )
        if not names:
            names = _checked_names(path, stripped, used)
            cells = [[] for _ in names]
            continue
        if len(row) != len(names):
            raise ValueError(
                f"{path} line {line} has {len(row)} values, and the first line names {len(names)} columns."
            )
        numbers.append(line)
        if len(numbers) * len(names) > MAX_CELLS:
            raise ValueError(f"{path} has more than {MAX_CELLS} cells: train on some of its rows.")
        for column, cell in zip(cells, stripped, strict=True):
            column.append(cell)
    if not numbers:
        raise ValueError(f"{path} has no rows below its first line, which names the columns.")
    return Frame({
        name: _words(column) if known_as_words(name) else _column(path, name, column, numbers, _option(name, used))
        for name, column in zip(names, cells, strict=True)
    })  # fmt: skip


def _checked_names(path: Path, names: list[str], used: frozenset[str] | None) -> list[str]:
    """The names of the columns. Those that are not used may be empty, or occur twice, and get a name by their place."""
    if any(text.numbers([name]) is not None for name in names if used is None or name in used):
        raise ValueError(
            f"{path} has numbers in its first line, {shown(names)}: name the columns there, such as height,weight."
        )
    unclear = {name for name in names if not name or names.count(name) > 1}
    for name in unclear:
        if used is None or name in used:
            raise ValueError(f"{path} has the column name {shown(name)} in its first line twice or empty: name each.")
    taken = set(names)
    found = []
    for place, name in enumerate(names, start=1):
        if name in unclear:
            name = f"column {place}"
            while name in taken:
                name += " "
        found.append(name)
    return found


def _option(name: str, used: frozenset[str] | None) -> tuple[str, ...]:
    """The remedy that takes a column as words, which training has."""
    return (f"add --words {shlex.quote(name)} to take the column as words",) if used is None else ()


def _either(*ways: str) -> str:
    """Several remedies as one sentence."""
    return " or ".join(filter(None, (", ".join(ways[:-1]) + "," * (len(ways) > 1), ways[-1])))


def _column(path: Path, name: str, cells: list[str], lines: list[int], as_words: tuple[str, ...]) -> np.ndarray:
    missing = np.array([cell.lower() in MISSING for cell in cells])
    values = [None if gone else text.numbers([cell]) for cell, gone in zip(cells, missing, strict=True)]
    is_number = np.array([value is not None for value in values])
    known = max(1, int((~missing).sum()))
    if _are_codes(cells, known):
        return _words(cells)
    if is_number.sum() == (~missing).sum():  # also a column that is missing throughout
        return np.array([np.nan if value is None else value[0] for value in values], np.float64)
    if is_number.sum() > MOSTLY * known:
        row = int(np.argmax(~missing & ~is_number))
        remedy = _either(
            "write it as a decimal number such as 1000.5", "leave the cell empty if it is missing", *as_words
        )  # fmt: skip
        if _is_large(cells[row]):
            remedy = f"it is beyond the range of 32-bit floats: {_either('choose another unit', *as_words)}"
        raise ValueError(
            f"{path} line {lines[row]}, column {shown(name)} holds {shown(cells[row])}, and most of its cells are "
            f"numbers: {remedy}."
        )
    there = [cell for cell, gone in zip(cells, missing, strict=True) if not gone]
    dates = [cell for cell in there if DATE.fullmatch(cell)]
    if len(dates) > MOSTLY * known:
        numbers = "replace them by numbers that matter, such as the year, the month or the days since a first day"
        raise ValueError(
            f"{path} column {shown(name)} holds dates or times such as {shown(dates[0])}: "
            f"{_either(numbers, 'remove the column', *as_words)}."
        )
    alike, measured = ([cell for cell in there if form.fullmatch(cell)] for form in (NUMBER_LIKE, MEASURED))
    if len({*alike, *measured}) > 1:
        alike += measured
    if len(alike) > MOSTLY * known:
        cell = next((cell for cell in alike if text.numbers([cell]) is None), alike[0])
        plain = "write it as a decimal number such as 1000.5, without units or separators of thousands"
        raise ValueError(
            f"{path} column {shown(name)} holds {shown(cell)}, which looks like a number in another form: "
            f"{_either(plain, *as_words)}."
        )
    return _words(cells)


def _are_codes(cells: list[str], known: int) -> bool:
    """Whether digits name things: whether many have a leading zero, and all are whole numbers of one length."""
    there = [cell for cell in cells if cell.lower() not in MISSING]
    zeros = sum(CODE.fullmatch(cell) is not None for cell in there)
    return bool(zeros) and all(cell.isdigit() for cell in there) and len({len(cell) for cell in there}) == 1 < known


def _is_large(cell: str) -> bool:
    """Whether a cell is a decimal number, but too large."""
    try:
        return abs(float(cell)) > text.FLOAT32_MAX
    except ValueError:
        return False


def _words(cells: list[str]) -> np.ndarray:
    return np.array([None if cell.lower() in MISSING else cell for cell in cells], object)
