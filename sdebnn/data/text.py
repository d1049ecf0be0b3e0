"""Lines and cells of text files: what separates them, which of them are numbers, and what is wrong with them."""

import csv as comma
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO, TypeVar

import numpy as np

from sdebnn.files import check_regular

Lines = Iterator[tuple[int, list[str]]]  # line numbers and the cells of each line
FLOAT32_MAX = float(np.finfo(np.float32).max)
NOT_IN_A_NUMBER = re.compile(r"[^0-9eE.+\- \t]")  # float() also accepts 1_000, non-ASCII digits and nan
T = TypeVar("T")


def parsed(path: Path, cells_of: Callable[[TextIO], Lines], parse: Callable[[Path, Lines], T]) -> T:
    """What ``parse`` makes of the lines of a text file; an error says what is wrong with the file and where."""
    try:
        check_regular(path)
        with path.open(encoding="utf-8-sig", newline="") as stream:
            return parse(path, cells_of(stream))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text: {_first_foreign_byte(path)}; save it as UTF-8.") from None
    except _LineError as error:
        raise ValueError(f"{path} {error}.") from None


def cells(stream: TextIO, *, keep_empty: bool = False) -> Lines:
    """The cells of each line that is not empty; the first line determines the separator.

    With ``keep_empty``, lines without any cell are kept, too, if there is a separator.
    """
    first = next((line for line in stream if line.strip()), "")
    stream.seek(0)
    separator = next((mark for mark in ",;\t" if mark in first), None)
    if separator is None:
        yield from words(stream)
        return
    reader, line = comma.reader(stream, delimiter=separator, skipinitialspace=True), 1
    try:
        for found in reader:
            if keep_empty or any(map(str.strip, found)):
                yield line, found
            line = reader.line_num + 1  # a quoted cell may span several lines
    except comma.Error as error:
        wrong = str(error)
        if "field limit" in wrong:
            most = comma.field_size_limit()
            wrong = f"has a cell of more than {most} characters: close its quotation mark, or shorten it"
        raise _LineError(f"line {line} {wrong}") from None


def words(stream: TextIO) -> Lines:
    """The cells of each line that is not empty, separated by spaces and tabs."""
    for number, line in enumerate(stream, 1):
        # A space that is not ASCII may be part of a number, as in 1\u202f000.
        found = line.split() if line.isascii() else re.split("[ \t]+", line.strip(" \t\r\n"))
        if found:
            yield number, found


class _LineError(Exception):
    """A line that cannot be split into cells."""


def _first_foreign_byte(path: Path) -> str:
    """The place of the first byte that is not UTF-8. The decoder's own position is relative to its last chunk."""
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if number == 1 and line.startswith((b"\xff\xfe", b"\xfe\xff")):
                return "it starts like UTF-16"
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return f"line {number}, byte {error.start + 1} is 0x{line[error.start]:02x}"
    return "it is incomplete"


def numbers(cells: list[str]) -> list[float] | None:
    """The numbers of a row, or None if a cell is not a decimal number in the range of float32."""
    if NOT_IN_A_NUMBER.search("".join(cells)):
        return None
    try:
        row = list(map(float, cells))
    except ValueError:
        return None
    return row if max(row) <= FLOAT32_MAX and min(row) >= -FLOAT32_MAX else None


def is_header(cells: list[str]) -> bool:
    """Whether the first line is a header. A line with malformed numbers, such as 1_000, is a row with an error."""

    def is_number(cell: str) -> bool:
        try:
            float(cell)
        except ValueError:
            return False
        return True

    numbers = [cell for cell in cells if is_number(cell)]
    return len(numbers) < len(cells) and not any(any(map(str.isdigit, cell)) for cell in numbers)
