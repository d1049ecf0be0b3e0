"""One file from an address: with the published size and digest, or not at all.

A server may be slow, break off, send something else, or never end. Its answer is read by a thread of its own, so that
the limits below hold whatever the server does: a file of n bytes may take ALLOWANCE + n / AVERAGE seconds, all tries
together, and in each window of WINDOW seconds it must come at SLOWEST bytes a second or more.
"""

import fcntl
import hashlib
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from sdebnn.checks import shown
from sdebnn.files import PART

TRIES = 4
FIRST_WAIT = 1.0  # seconds before the second try; doubled before each later one
LONGEST_WAIT = 60.0  # seconds, even if the server asks for more with Retry-After
SILENCE = 30.0  # seconds to wait for a connection, or for the next byte
SLOWEST = 10_000
WINDOW = 60.0
ALLOWANCE = 600.0
AVERAGE = 50_000
CHUNK = 2**14
QUEUED = 64  # chunks that wait to be written while the disk is slower than the network


class File(NamedTuple):
    """A published file: its size in bytes, and its md5."""

    size: int
    md5: str


class TransientError(Exception):
    """A failure that may pass, with the number of seconds that the server asks us to wait before the next try."""

    def __init__(self, words: str, wait: float = 0.0):
        super().__init__(words)
        self.wait = wait


def fetch(url: str, path: Path, file: File, tell: Callable[[int], None]) -> None:
    """Bring a file from an address to ``path``, and call ``tell`` with the number of bytes received so far.

    A failure that may pass is tried again, after longer and longer waits. A failure leaves nothing behind, and whatever
    was at ``path`` stays there.
    """
    deadline, wait = time.monotonic() + _allowed(file), FIRST_WAIT
    for tried in range(1, TRIES + 1):
        try:
            with partial(path) as out:
                _receive(url, out, file, deadline, tell)
            return
        except TransientError as error:
            pause = max(wait, min(error.wait, LONGEST_WAIT))
            if tried == TRIES or time.monotonic() + pause > deadline:
                raise ValueError(f"{url} {error}") from None
        time.sleep(pause)
        wait *= 2


@contextmanager
def partial(path: Path) -> Iterator[BinaryIO]:
    """A new file under a temporary name: it gets the name ``path`` at the end, or is removed after an error."""
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}{PART}")
    try:
        with part.open("xb") as out:
            fcntl.flock(out, fcntl.LOCK_EX)  # until it is closed: no other process takes it for a file left behind
            yield out
            out.flush()
            os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _allowed(file: File) -> float:
    return ALLOWANCE + file.size / AVERAGE


def _receive(url: str, out: BinaryIO, file: File, deadline: float, tell: Callable[[int], None]) -> None:
    """Write what an address sends, if it is the published file and comes in time."""
    digest, received, window_bytes, window_end = hashlib.md5(usedforsecurity=False), 0, 0, time.monotonic() + WINDOW
    with closing(_Answer(url, file.size)) as answer:
        while True:
            now = time.monotonic()
            if now >= deadline:
                raise ValueError(
                    f"{url} took longer than the {_allowed(file):.0f} seconds allowed for its {file.size} bytes: "
                    "try later, or pass another address as base."
                )
            if now >= window_end:
                if received - window_bytes < SLOWEST * WINDOW:
                    raise TransientError(
                        f"sent fewer than {SLOWEST} bytes a second for {WINDOW:g} seconds: "
                        "try later, or pass another address as base."
                    )
                window_bytes, window_end = received, now + WINDOW
            chunk = answer.next_chunk(min(deadline, window_end) - now)
            if chunk == b"":
                break
            if chunk is None:
                continue
            received += len(chunk)
            if received > file.size:
                raise ValueError(
                    f"{url} is not the published file: it has more than {file.size} bytes, and nothing of it was "
                    "kept. Pass another address as base."
                )
            digest.update(chunk)
            out.write(chunk)
            tell(received)
    if received < file.size:
        raise TransientError(
            f"broke off after {received} of {file.size} bytes: run it again, files that are complete are kept."
        )
    if digest.hexdigest() != file.md5:
        raise ValueError(
            f"{url} is not the published file: its md5 is {digest.hexdigest()} instead of {file.md5}, and nothing of "
            "it was kept. Pass another address as base."
        )


class _Answer:
    """What an address sends, read by a thread: a server that sends a byte now and then keeps a plain read waiting."""

    def __init__(self, url: str, size: int):
        self._chunks: queue.Queue[bytes | Exception] = queue.Queue(QUEUED)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(url, size), daemon=True)
        self._thread.start()

    def next_chunk(self, within: float) -> bytes | None:
        """The next bytes, b"" at the end, or None if there were none within so many seconds."""
        try:
            item = self._chunks.get(timeout=within)
        except queue.Empty:
            return None
        if isinstance(item, Exception):
            raise item
        return item

    def close(self) -> None:
        """Let the thread stop at the next byte; if none comes, it does not keep the program from ending."""
        self._closed.set()

    def _read(self, url: str, size: int) -> None:
        try:
            with closing(_body(url, size)) as chunks:
                if not all(map(self._put, chunks)):
                    return
            self._put(b"")
        except Exception as error:  # raised again by whoever waits for the next chunk
            self._put(error)

    def _put(self, item: bytes | Exception) -> bool:
        while not self._closed.is_set():
            try:
                self._chunks.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False


def _body(url: str, size: int) -> Generator[bytes, None, None]:
    """The bytes that an address sends, if it answers with a file of the right size."""
    import requests
    import urllib3

    try:
        with requests.get(url, stream=True, timeout=SILENCE, headers={"Accept-Encoding": "identity"}) as answer:
            _check_answer(url, answer, size)
            # Not decoded: some servers call a .gz file an encoding, and unpacked it would have another digest.
            while chunk := answer.raw.read(CHUNK, decode_content=False):
                yield chunk
    except urllib3.exceptions.HTTPError:
        return  # The body broke off; ``_receive`` sees that bytes are missing. Earlier errors are those of requests.
    except requests.exceptions.SSLError:
        raise ValueError(f"{url} has no certificate that can be trusted: check the address and the clock.") from None
    except (requests.exceptions.ConnectionError, requests.exceptions.Timeout) as error:
        raise TransientError(
            f"cannot be reached ({type(error).__name__}): check the network, or pass another address as base."
        ) from None
    except (
        OSError,
        UnicodeError,
    ) as error:  # all others that requests has, and bad settings such as REQUESTS_CA_BUNDLE
        raise ValueError(
            f"{url} cannot be fetched ({type(error).__name__}: {shown(str(error))}): "
            "check the address and the settings of the network."
        ) from None


def _check_answer(url: str, answer: Any, size: int) -> None:
    """Refuse an answer that is not a file of the published size."""
    status, length = answer.status_code, answer.headers.get("Content-Length")
    if status in (408, 429) or status >= 500:
        asked = answer.headers.get("Retry-After", "")
        wait = float(asked) if asked.isascii() and asked.isdigit() else 0.0
        raise TransientError(f"answered {status}: try later, or pass another address as base.", wait)
    if status != 200:
        raise ValueError(f"{url} answered {status}: check the address, or pass another one as base.")
    if length is None:
        return
    if not (length.isascii() and length.isdigit()):
        raise ValueError(
            f"{url} declares the Content-Length {shown(length)}, which is not a number of bytes: "
            "pass another address as base."
        )
    if length.lstrip("0") != str(size):
        raise ValueError(
            f"{url} is not the published file: it declares a Content-Length of {shown(length)} instead of {size}. "
            "Pass another address as base."
        )
