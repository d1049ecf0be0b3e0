"""How ``python benchmarks`` talks with the processes that do the work: one line of JSON each way.

A process of its own for each row keeps their memory and their threads apart. When one is ready it says so, with what
compiling took; then "train 5" means five steps at once, timed together.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from threading import Timer
from typing import Any


def answer(about: dict[str, Any], work: dict[str, Callable[[int], list[float]]]) -> None:
    """In the worker: say what compiling took, then do what each line asks for."""
    print("ready " + json.dumps(about), flush=True)
    for line in sys.stdin:
        what, count = line.split()
        clock = time.perf_counter()
        losses = work[what](int(count))
        elapsed = time.perf_counter() - clock
        print("did " + json.dumps({"ms": 1e3 * elapsed / int(count), "losses": losses}), flush=True)


class Worker:
    """In the parent: a process that can be asked; killed, if it is not ready after ``patience`` seconds."""

    def __init__(self, python: str, script: str, *arguments: str, patience: float | None = None):
        # A pipe that nobody reads would fill up, and hold the worker.
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [python, str(Path(__file__).with_name(script)), *arguments],
            env={**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},  # several share a GPU
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
        )  # fmt: skip
        self.patience = Timer(patience, self.process.kill) if patience else None
        if self.patience:
            self.patience.start()

    def ready(self) -> dict[str, Any] | str:
        """What compiling took; or why there is no such worker, in a line."""
        said = self._heard("ready")
        if self.patience:
            self.patience.cancel()
            if said is None and self.process.wait() == -signal.SIGKILL:
                return f"it was not ready after {self.patience.interval:.0f} s"
        return self._last_words() if said is None else said

    def ask(self, what: str, count: int) -> dict[str, Any]:
        """Milliseconds of each, and losses."""
        self.process.stdin.write(f"{what} {count}\n")
        self.process.stdin.flush()
        said = self._heard("did")
        if said is None:
            raise ChildProcessError(self._last_words())
        return said

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()

    def _last_words(self) -> str:
        self.process.wait()
        self.errors.seek(0)
        return (self.errors.read().strip().splitlines() or ["it said nothing"])[-1][:160]

    def _heard(self, word: str) -> dict[str, Any] | None:
        for line in self.process.stdout:
            if line.startswith(word + " "):
                return json.loads(line[len(word) :])
        return None
