"""Commands that several processes run together: joining the others, and leaving when one of them is lost."""

import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def joined(command: Callable[P, R]) -> Callable[P, R]:
    """The command; if its options say so, it first joins the other processes. JAX must not have been used before."""

    @functools.wraps(command)
    def with_others(*given: P.args, **named: P.kwargs) -> R:
        coordinator, processes, process = (named.get(name) for name in ("coordinator", "processes", "process"))
        cluster = bool(named.get("cluster"))
        if not cluster and coordinator is None and processes is None and process is None:
            return command(*given, **named)
        if cluster and any(each is not None for each in (coordinator, processes, process)):
            raise ValueError("--cluster finds the others itself: leave out --coordinator, --processes and --process.")
        from sdebnn import hosts

        if cluster:
            hosts.connect()
        else:
            hosts.connect(coordinator, processes, process)  # pyright: ignore[reportArgumentType]
        try:
            with hosts.lost_process_errors():
                return command(*given, **named)
        except hosts.LostProcessError as error:
            hosts.exit_now(str(error))
        except (ValueError, OSError) as error:
            if "--debug" in sys.argv or hosts.count() == 1:
                raise
            # A usual exit would wait for the other processes, and be aborted after half a minute.
            print(f"sdebnn: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
            os._exit(2)

    return with_others
