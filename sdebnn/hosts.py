"""Several processes that train one model together, on one host or on many.

Every process runs the same program on the same data with the same settings. The first one alone reads and writes the
folder of a run, and prints. Between calls of the compiled steps the processes agree on what comes next. If one of them
is lost, or stuck, the others end within a minute, and the run is resumed from its last checkpoint.
"""

import contextlib
import hashlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, NoReturn

import jax
import numpy as np
from jaxtyping import Int, PyTree

from sdebnn.checks import check_count, shown

HEARTBEAT = 50  # seconds without a sign of life, after which JAX ends the other processes
STUCK_AFTER = 40.0  # seconds that a process waits for the others, beyond what the work takes
SHUTDOWN = 30  # seconds that a process that ends waits for the others to end
EXIT_CODE = 75  # "try again", of sysexits.h
# What JAX says when another process is gone. Errors of its collective operations arrive as ValueErrors, too.
LOST = re.compile(
    r"^(UNKNOWN|INTERNAL|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED)\b"
    r".*(gloo|nccl|connection|coordination|peer|socket)",
    re.I | re.S,
)


class LostProcessError(RuntimeError):
    """Another process of the run has ended. Resume it from its last checkpoint.

        checkpoints = Checkpoints("run", resume=True)
        try:
            fitted = fit(model, likelihood, x, y, key=key, epochs=20, checkpoints=checkpoints)
        except sdebnn.hosts.LostProcessError:
            print("Start all processes again.")

    ``fit`` raises it if JAX notices the loss. A process that waits in vain for the others ends with the exit code 75.
    """


def connect(coordinator: str | None = None, processes: int | None = None, process: int | None = None) -> None:
    """Join the other processes of a run, before anything is computed. All must call it.

        sdebnn.hosts.connect("10.0.0.1:1234", processes=4, process=0)

    Process 0 listens at this address. Without arguments, the addresses come from SLURM, MPI or a TPU pod; under SLURM
    and MPI, each process then has the device of its number on the host.
    """
    given = (coordinator, processes, process)
    if any(each is None for each in given) and any(each is not None for each in given):
        raise ValueError("coordinator, processes and process belong together: pass all three, or none of them.")
    if coordinator is not None and processes is not None and process is not None:
        host, _, port = coordinator.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"coordinator={shown(coordinator)} is no address: pass HOST:PORT, such as 10.0.0.1:1234.")
        check_count("processes", processes)
        check_count("process", process, least=0)
        if process >= processes:
            raise ValueError(f"process={process} must be below processes={processes}: they count from 0.")
    try:
        jax.distributed.initialize(
            coordinator, processes, process, heartbeat_timeout_seconds=HEARTBEAT, shutdown_timeout_seconds=SHUTDOWN,
            # What is given must not be mixed with what a cluster says, such as one device for each process.
            cluster_detection_method=None if coordinator is None else "deactivate",
        )  # fmt: skip
    except ValueError as error:  # nothing says which processes there are
        raise ValueError(
            f"no cluster was found ({str(error).rstrip('.')}): start by srun or mpirun, or pass "
            "coordinator, processes and process."
        ) from None
    except RuntimeError as error:
        raise ValueError(
            f"process {process} could not join the others: {str(error).splitlines()[0].rstrip('.')}. Start all "
            "processes within five minutes, with the same coordinator, and before anything is computed."
        ) from None


def count() -> int:
    """The number of processes.

        print(f"{sdebnn.hosts.count()} processes train together")

    It is 1 unless ``connect`` was called.
    """
    return jax.process_count()


def is_first() -> bool:
    """Whether this is the process that writes and prints.

        if sdebnn.hosts.is_first():
            print("This line is printed once.")

    It is the process with the number 0.
    """
    return jax.process_index() == 0


def wait_for_all(what: str) -> None:
    """Wait until every process is here.

        if sdebnn.hosts.is_first():
            np.save("x.npy", x)
        sdebnn.hosts.wait_for_all("x is written")

    ``what`` is a name for this place in the program, the same in all processes.
    """
    if count() > 1:
        _utils().sync_global_devices(what)


def from_all(numbers: Sequence[int]) -> Int[np.ndarray, "process number"]:
    """The whole numbers of every process.

        counts = sdebnn.hosts.from_all([len(x)])
        print(counts.sum())

    Each row holds those of one process. All processes must call it.
    """
    own = np.array(numbers, np.int32)
    return own[None] if count() == 1 else np.asarray(_utils().process_allgather(own)).reshape(count(), -1)


def from_first(make: Callable[[], Any]) -> Any:
    """What a function returns in the first process, which alone calls it: a value that JSON can represent.

        seed = sdebnn.hosts.from_first(lambda: int(np.random.default_rng().integers(1000)))

    Its errors are raised in all processes.
    """
    if count() == 1:
        return make()
    value, failure = None, None
    if is_first():
        try:
            value = make()
        except Exception as error:  # the others must not wait for what will not come
            failure = error
    words = json.dumps({"value": value, "error": None if failure is None else str(failure)}).encode()
    size = int(_from_first(np.array(len(words), np.int32)))
    found = json.loads(bytes(_from_first(np.frombuffer(words.ljust(size)[:size], np.uint8))))
    if failure is not None:
        raise failure
    if found["error"] is not None:
        raise ValueError(found["error"])
    return found["value"]


def tree_from_first(tree: PyTree[np.ndarray]) -> PyTree[np.ndarray]:
    """The arrays of the first process; those of the others must have the same shapes and types."""
    if count() == 1:
        return tree
    leaves, structure = jax.tree.flatten(jax.tree.map(np.asarray, tree))
    sent = bytes(_from_first(np.frombuffer(b"".join(leaf.tobytes() for leaf in leaves), np.uint8)))
    found, at = [], 0
    for leaf in leaves:
        part = sent[at : at + leaf.nbytes]
        found.append(np.frombuffer(part, leaf.dtype).reshape(leaf.shape).copy())
        at += leaf.nbytes
    return jax.tree.unflatten(structure, found)


def check_same(parts: dict[str, str]) -> None:
    """Refuse to go on, in all processes, if they differ in some part. All must pass parts of the same names."""
    own = [int.from_bytes(hashlib.sha256(words.encode()).digest()[:4], "big", signed=True) for words in parts.values()]
    found = from_all(own)
    same = (found == found[0]).all(0)
    if not same.all():
        names = [name for name, is_same in zip(parts, same, strict=True) if not is_same]
        raise ValueError(
            f"the processes of this run differ in their {', '.join(names)}: start all with the same program, settings "
            "and data."
        )


def _from_first(array: np.ndarray) -> np.ndarray:
    return np.asarray(_utils().broadcast_one_to_all(array))


def _utils() -> Any:
    from jax.experimental import multihost_utils

    return multihost_utils


@contextlib.contextmanager
def lost_process_errors() -> Generator[None]:
    """Turn the errors that JAX raises when another process is lost into one."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        if count() > 1 and LOST.match(str(error)):
            raise LostProcessError("another process of this run was lost.") from error
        raise


class Watchdog:
    """Ends this process if it waits too long: a thread looks at a deadline, which the work sets for every phase.

    A process that is stuck in a collective operation cannot be interrupted in another way. Without other processes,
    nothing is watched.
    """

    def __init__(self):
        self._deadline, self._allowed, self._last = float("inf"), 0.0, dict[str, float]()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Watchdog":
        if count() > 1:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join()

    @contextlib.contextmanager
    def phase(self, name: str, first: float) -> Generator[None]:
        """Allow a phase twice as long as it took last, and ``STUCK_AFTER``; ``first`` seconds for the first time."""
        before = self._last.get(name)
        began = time.monotonic()
        self._allowed = first if before is None else 2 * before + STUCK_AFTER
        self._deadline = began + self._allowed
        try:
            yield
        finally:
            self._deadline = float("inf")
            self._last[name] = time.monotonic() - began

    def _watch(self) -> None:
        while not self._done.wait(1.0):
            if time.monotonic() > self._deadline:
                exit_now(
                    f"nothing moved for {self._allowed:.0f} seconds: this process or another one of the run is stuck."
                )


def exit_now(words: str) -> NoReturn:
    """End this process at once. The usual way out would wait for processes that will not come."""
    with contextlib.suppress(OSError, ValueError):
        print(f"sdebnn: {words} This one ends: resume the run from its last checkpoint.", file=sys.stderr, flush=True)
    os._exit(EXIT_CODE)
