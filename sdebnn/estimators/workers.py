"""Threads for the parts of a fit that do not depend on each other.

JAX and LAPACK release the lock of the interpreter while they compute, so threads use several cores.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from types import TracebackType
from typing import Concatenate, ParamSpec, TypeVar

import jax

P = ParamSpec("P")
R = TypeVar("R")


def cores() -> int:
    """The number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """A pool of threads. If its ``with`` block raises an exception, such as an interrupt, all tasks end early.

    The first argument of a task is a function that the task calls now and then. It raises ``CancelledError`` if the
    task should end.
    """

    def __init__(self, count: int):
        self._pool = ThreadPoolExecutor(count)
        self._cancelled = threading.Event()

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        if kind is not None:
            self._cancelled.set()
        self._pool.shutdown(cancel_futures=kind is not None)

    def start(
        self, task: Callable[Concatenate[Callable[[], None], P], R], *arguments: P.args, **named: P.kwargs
    ) -> Future[R]:
        """Start a task as soon as a thread is free."""
        device, double = jax.config.jax_default_device, jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]

        def run() -> R:
            with jax.default_device(device), jax.enable_x64(double):  # a thread does not inherit them
                return task(self._check, *arguments, **named)

        return self._pool.submit(run)

    def _check(self) -> None:
        if self._cancelled.is_set():
            raise CancelledError
