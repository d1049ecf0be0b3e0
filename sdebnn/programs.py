"""Compiled functions that keep a bounded number of programs.

A function is compiled once for each shape of its arguments, and JAX keeps every such program for as long as the
function lives: a process that fits many tables of different shapes grows by some 50 MB for each. Here the programs of a
function are dropped together when there are too many; a shape that comes again is compiled again.
"""

import contextlib
import ctypes
import functools
import gc
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx

from sdebnn.checks import check_process

PROGRAMS_KEPT = 8  # of one function
LONG_COMPILE = 2.0  # seconds: returning memory takes a twentieth of one


class _FullError(Exception):
    """Raised while a function is traced for one shape more than are kept: the others are dropped first."""


def compiled(function: Callable[..., Any] | None = None, **how: Any) -> Any:
    """``eqx.filter_jit``, keeping the programs of ``PROGRAMS_KEPT`` shapes at most. A decorator, or called with one."""
    if function is None:
        return functools.partial(compiled, **how)
    traces = 0

    @functools.wraps(function)
    def traced(*arguments: Any, **named: Any) -> Any:
        nonlocal traces
        if traces >= PROGRAMS_KEPT:
            raise _FullError
        traces += 1  # JAX runs this line when it compiles, and only then
        return function(*arguments, **named)

    program = eqx.filter_jit(traced, **how)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        nonlocal traces
        check_process()
        before, clock = traces, time.perf_counter()
        try:
            return program(*arguments, **named)
        except _FullError:
            traces = before = 0
            _forget(program)
            return program(*arguments, **named)
        finally:
            if traces != before and time.perf_counter() - clock > LONG_COMPILE:
                _give_back()

    call.program = program  # pyright: ignore[reportFunctionMemberAccess, reportAttributeAccessIssue]
    return call


def _forget(program: Any) -> None:
    """Drop the programs of a function."""
    jitted = getattr(program, "_cached", None)  # what Equinox wraps; JAX's own caches hold its programs, too
    if jitted is not None:
        jitted.clear_cache()
    gc.collect()
    _give_back()


def _give_back() -> None:
    """Return unused memory to the system, where the C library can: a long compile leaves hundreds of megabytes."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
