"""The progress display: the effective temperature once, then a bar with the time left, loss, KL and accuracy."""

import contextlib
import math
import sys
import time
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task
from rich.table import Column
from rich.text import Text

BAR_WIDTH = 10  # characters
ENOUGH = 5.0  # seconds of training from which the rest is estimated
LONG = 60.0  # seconds; what will take longer is said in words, once


class _Stream:
    """Standard error, without its errors: a closed pipe or terminal must not end a training run."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


def _console() -> Console:
    stream: Any = _Stream()
    console = Console(file=stream)
    if not console.is_terminal:
        console.width = 120
    return console


def say(words: str, *, show: bool) -> None:
    """Print a line on standard error, if wanted."""
    if show:
        _console().print(words, highlight=False)


class _Line(ProgressColumn):
    """The bar, the time left and the numbers as one text, of which a narrow terminal cuts off only the end."""

    def render(self, task: Task) -> Text:
        """The line of a task."""
        filled = int(BAR_WIDTH * task.percentage / 100)
        left = "-:--:--" if task.time_remaining is None else str(timedelta(seconds=int(task.time_remaining)))
        words = f"{task.percentage:3.0f}%  {left} left  {task.description}"
        return Text.assemble(("━" * filled, "green"), ("━" * (BAR_WIDTH - filled), "dim"), f" {words}")


class Display:
    """A progress bar on standard error, if wanted."""

    def __init__(self, show: bool, total: int, kl_weight: float, kl_warmup: float, examples: int):
        self.show, self.total = show, total
        self.console = _console()
        self.about = _about(kl_weight, kl_warmup, examples)
        self.bar = Progress(_Line(Column(no_wrap=True)), console=self.console, disable=not show)
        self.task = self.bar.add_task("compiling", total=total)
        self.held_out = ""
        self.updates, self.first = 0, (0, 0.0)  # the step from which the rest is estimated, and when it was shown
        self.estimated = False

    def __enter__(self) -> "Display":
        self.say(self.about)
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def say(self, words: str) -> None:
        """Print a line above the bar."""
        if self.show:
            self.console.print(words, highlight=False)

    def resumed(self, step: int) -> None:
        """Start the bar at the step of a checkpoint."""
        self.say(f"Resumed at step {step} of {self.total}.")
        self.bar.update(self.task, completed=step)

    def update(self, step: int, row: dict[str, Any]) -> None:
        """Move the bar to a step and show its row of metrics."""
        words = f"loss {row['loss']:.4f}  KL {row['kl']:.1f}"
        if not math.isnan(row["accuracy"]):
            words += f"  accuracy {row['accuracy']:.1%}"
        if "validation_nll" in row:
            self.held_out = f"  held out {row['validation_nll']:.4f}"
            if not math.isnan(row["validation_accuracy"]):
                self.held_out += f" {row['validation_accuracy']:.1%}"
        words += self.held_out
        if row["skipped"]:
            words += f"  skipped {row['skipped']}"
        self.bar.update(self.task, description=words, completed=step)
        self._estimate(step)

    def _estimate(self, step: int) -> None:
        """Say how long the rest will take, once it is known and if it is long. The first steps include compilation."""
        self.updates += 1
        if self.updates <= 2:  # later ones compile nothing
            self.first = step, time.monotonic()
        elif not self.estimated and step > self.first[0] and time.monotonic() - self.first[1] > ENOUGH:
            left = (self.total - step) * (time.monotonic() - self.first[1]) / (step - self.first[0])
            self.estimated = True
            if left > LONG:
                self.say(f"About {left / 60:.0f} minutes left." if left > 90 else "About a minute left.")


def _about(kl_weight: float, kl_warmup: float, examples: int) -> str:
    meaning = "the ELBO" if kl_weight == 1 else "a tempered posterior"
    words = f"KL weight {kl_weight:g} ({meaning}), effective temperature {kl_weight:g}, {examples} examples"
    return words + (f"; warmed up over the first {kl_warmup:.0%} of the run" if kl_warmup else "")
