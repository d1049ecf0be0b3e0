"""What every damaged or forged file must meet: a refusal in one short line, and soon."""

import re
import time
from pathlib import Path

import pytest

MOST_MEMORY = 500_000  # kilobytes


def assert_refused(load, path, name):
    """That a file is refused by its name in one line; ``name`` says what is wrong with it."""
    began = time.perf_counter()
    with pytest.raises(ValueError, match=re.escape(path.stem)) as error:
        load(path)
    message = str(error.value)
    assert len(message.splitlines()) == 1, name
    assert len(message) < 1000, name
    assert message.endswith("."), name
    assert time.perf_counter() - began < 10, name


def peak():
    """The most memory that this process has taken, in kilobytes."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])  # pyright: ignore
