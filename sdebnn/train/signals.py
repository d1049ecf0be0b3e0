"""Signals that ask a run to stop are deferred until it has saved."""

import contextlib
import signal
import threading
from collections.abc import Generator


@contextlib.contextmanager
def deferred_signals(wanted: bool) -> Generator[list[int]]:
    """Collect Ctrl-C, SIGTERM and SIGHUP: the first signal is deferred, the second terminates the process.

    A signal that is ignored, as SIGHUP is under nohup, stays ignored. Signals can be deferred in the main thread only.
    """
    received: list[int] = []
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def receive(number: int, _: object) -> None:
        received.append(number)
        restore()

    for number in before:
        signal.signal(number, receive)
    try:
        yield received
    finally:
        restore()
