"""Communication between ``python benchmarks`` and its worker processes: one line of JSON each way.

Each row has a process of its own, so that memory and threads are separate. A worker announces that it is ready, with
its compile time. Then the command "train 5" asks for five steps, timed together.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any


def answer(about: dict[str, Any], work: dict[str, Callable[[int], list[float]]]) -> None:
    """In the worker: report the compile time, then carry out the command of each line."""
    print("ready " + json.dumps(about), flush=True)
    for line in sys.stdin:
        what, count = line.split()
        clock = time.perf_counter()
        losses = work[what](int(count))
        elapsed = time.perf_counter() - clock
        print("did " + json.dumps({"ms": 1e3 * elapsed / int(count), "losses": losses}), flush=True)


class Worker:
    """In the parent: a worker process. It is killed if it is not ready after ``patience`` seconds."""

    def __init__(self, python: str, script: str, *arguments: str, patience: float | None = None):
        # A pipe that is not read would fill up and block the worker.
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [python, str(Path(__file__).parent / script), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
        )  # fmt: skip
        self.patience, self.start = patience, time.monotonic()

    def ready(self) -> dict[str, Any] | str:
        """The worker's report on compilation, or one line that says why it failed."""
        heard = []
        reader = Thread(target=lambda: heard.append(self._heard("ready")), daemon=True)
        reader.start()
        # At least a second: it may have become ready while the parent waited for another worker.
        left = None if self.patience is None else max(1.0, self.start + self.patience - time.monotonic())
        reader.join(left)
        if reader.is_alive():
            self.process.kill()
            return f"it was not ready after {self.patience:.0f} s"
        return self._last_words() if heard[0] is None else heard[0]

    def ask(self, what: str, count: int) -> dict[str, Any]:
        """Milliseconds of a step or prediction, and losses."""
        try:
            self.process.stdin.write(f"{what} {count}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise ChildProcessError(self._last_words()) from None
        said = self._heard("did")
        if said is None:
            raise ChildProcessError(self._last_words())
        return said

    def close(self) -> None:
        """Wait until the process has ended; it takes no more commands."""
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()

    def _last_words(self) -> str:
        self.process.wait()
        self.errors.seek(0)
        return (self.errors.read().strip().splitlines() or ["no error message"])[-1][:160]

    def _heard(self, word: str) -> dict[str, Any] | None:
        for line in self.process.stdout:
            if line.startswith(word + " "):
                return json.loads(line[len(word) :])
        return None
