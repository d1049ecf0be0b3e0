"""Run the blocks of a page in order, and keep what they print and draw.

The blocks ```python of a page share one process and one namespace, the blocks ```sh are commands for bash; all have one
empty folder as current directory. A page is run again only if it, the package or the pinned versions have changed.

    python docs/building/execution.py PAGE.md RESULT.json      what a process does that runs one page
"""

import base64
import contextlib
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "docs"
BLOCK = re.compile(r"^```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^```$", re.S | re.M)
EXECUTED = ("python", "sh")
TIME_LIMIT = 600  # seconds for a page


class Block(NamedTuple):
    """A block of code that is executed, and where it ends in its page."""

    language: str
    code: str
    start: int
    end: int


class Output(NamedTuple):
    """What a block printed, its figures as PNG, and a description of each figure."""

    text: str
    figures: list[bytes]
    descriptions: list[str]


class PageError(Exception):
    """A block of a page failed."""


def blocks_of(text: str) -> list[Block]:
    """The blocks of a page that are executed, in order."""
    found = BLOCK.finditer(text)
    return [Block(each["language"], each["code"], *each.span()) for each in found if each["language"] in EXECUTED]


def outputs_of(page: Path) -> list[Output]:
    """What the blocks of a page print and draw, from the cache if nothing has changed."""
    kept = CACHE / f"{page.stem}-{_digest(page)}.json"
    if not kept.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        for old in CACHE.glob(f"{page.stem}-*.json"):
            old.unlink()
        written = kept.with_suffix(f".{os.getpid()}")
        command = [sys.executable, str(Path(__file__).resolve()), str(page), str(written)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT)
        if done.returncode:
            written.unlink(missing_ok=True)
            raise PageError(f"{page.name}: {(done.stderr or done.stdout)[-4000:]}")
        written.rename(kept)
    found = json.loads(kept.read_text())
    return [Output(each["text"], [*map(base64.b64decode, each["figures"])], each["descriptions"]) for each in found]


def _digest(page: Path) -> str:
    """A digest of all that the outputs of a page depend on."""
    found = hashlib.sha256()
    for path in (page, Path(__file__), ROOT / "requirements.txt", *sorted((ROOT / "sdebnn").rglob("*.py"))):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


# What follows runs in the process of a page.


def _run(page: Path, result: Path) -> None:
    os.environ |= {
        "MPLBACKEND": "agg", "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    sys.path[0] = str(ROOT)  # instead of the folder of this file
    blocks = blocks_of(page.read_text())
    outputs: list[dict[str, Any]] = []
    scope: dict[str, Any] = {"__name__": "__main__"}
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for number, block in enumerate(blocks):
            began = time.perf_counter()
            text = _shell(block.code) if block.language == "sh" else _python(block.code, f"block {number + 1}", scope)
            figures = [*_figures()] if block.language == "python" else []
            outputs.append(
                {"text": text, "figures": [each[0] for each in figures], "descriptions": [each[1] for each in figures]}
            )
            print(f"block {number + 1}: {time.perf_counter() - began:.1f} s", flush=True)
    result.write_text(json.dumps(outputs))


def _python(code: str, name: str, scope: dict[str, Any]) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
        exec(compile(code, name, "exec"), scope)
    return said.getvalue()


def _shell(code: str) -> str:
    done = subprocess.run(["bash", "-e", "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise PageError(f"{code}{done.stdout}{done.stderr}")
    return done.stdout


def _figures() -> Iterator[tuple[str, str]]:
    """The open figures as PNG in base 64, and their descriptions; they are closed."""
    if "matplotlib.pyplot" not in sys.modules:
        return
    import matplotlib.pyplot as plt

    for number in plt.get_fignums():
        figure, drawn = plt.figure(number), io.BytesIO()
        figure.savefig(drawn, dpi=110, bbox_inches="tight")
        plt.close(figure)
        yield base64.b64encode(drawn.getvalue()).decode(), _description(figure.axes)


def _description(axes: Any) -> str:
    """What a figure shows, in words: the titles of its axes, or what they show against what."""
    words = [
        each.get_title("left") or each.get_title() or f"{each.get_ylabel()} against {each.get_xlabel()}"
        for each in axes
        if each.get_title("left") or each.get_title() or each.get_xlabel()
    ]
    return "; ".join(dict.fromkeys(" ".join(each.split()) for each in words)) or "Figure"


if __name__ == "__main__":
    _run(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
