"""Compiled functions that keep a bounded number of programs, and know the platform they are compiled for.

A function is compiled once for each combination of argument shapes, and JAX keeps every such program for as long as the
function lives: a process that fits many tables of different shapes grows by some 50 MB for each. Here all programs of
a function are dropped once there are too many; a shape that comes again is compiled again.
"""

import contextlib
import ctypes
import functools
import gc
import time
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import equinox as eqx

from sdebnn.checks import check_process
from sdebnn.devices import platform_of, tracing_for

PROGRAMS_KEPT = 8  # for each function
LONG_COMPILE = 2.0  # seconds, after which unused memory is returned to the system; that takes a twentieth of a second

P = ParamSpec("P")
R = TypeVar("R")


class _FullError(Exception):
    """Raised while a function is traced for one shape more than are kept: the others are dropped first."""


class Compiled(Generic[P, R]):
    """A function compiled by ``eqx.filter_jit``, which keeps the programs of at most ``PROGRAMS_KEPT`` shapes."""

    def __init__(self, function: Callable[P, R], options: dict[str, Any]):
        functools.update_wrapper(self, function)
        self._traces = 0

        # The platform travels with the first argument, which is the one that is not donated if the others are.
        def traced(first: tuple[str, object], *arguments: object, **named: object) -> R:
            if self._traces >= PROGRAMS_KEPT:
                raise _FullError
            self._traces += 1  # JAX runs this line only when it traces
            with tracing_for(first[0]):
                return function(first[1], *arguments, **named)  # pyright: ignore[reportCallIssue]

        self.program = eqx.filter_jit(functools.wraps(function)(traced), **options)

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        """The function's result, compiled for these shapes if it was not before."""
        check_process()
        first, *others = arguments
        given = (platform_of((arguments, named)), first)
        before, clock = self._traces, time.perf_counter()
        try:
            return self.program(given, *others, **named)
        except _FullError:
            self._traces = before = 0
            _forget(self.program)
            return self.program(given, *others, **named)
        finally:
            if self._traces != before and time.perf_counter() - clock > LONG_COMPILE:
                _return_memory()


def compiled(function: Callable[P, R], **options: Any) -> Compiled[P, R]:
    """The function, compiled; ``options`` are those of ``eqx.filter_jit``."""
    return Compiled(function, options)


def _forget(program: object) -> None:
    """Drop all programs of a function."""
    jitted = getattr(program, "_cached", None)  # what Equinox wraps: JAX's own caches hold the programs
    if jitted is not None:
        jitted.clear_cache()
    gc.collect()
    _return_memory()


def _return_memory() -> None:
    """Return unused memory to the system, where the C library can: a long compilation leaves hundreds of megabytes."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
