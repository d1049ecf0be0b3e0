"""Download one file. It is kept only if it has the published size and digest.

A server may be slow, break off, send another file, or never stop sending. Its response is read in a separate thread, so
that the time limits below hold in every case: a file of n bytes may take BASE_SECONDS + n / EXPECTED_BYTES_PER_SECOND
seconds over all attempts, and must arrive at MIN_BYTES_PER_SECOND or more in every window of WINDOW_SECONDS.
"""

import fcntl
import hashlib
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from sdebnn.checks import shown
from sdebnn.data.entry import File
from sdebnn.files import PART

if TYPE_CHECKING:
    import requests

ATTEMPTS = 4
FIRST_WAIT_SECONDS = 1.0  # before the second attempt; doubled before each later one
MAX_WAIT_SECONDS = 60.0  # even if the server asks for more with Retry-After
TIMEOUT_SECONDS = 30.0  # for a connection, and for the next byte
MIN_BYTES_PER_SECOND = 10_000
WINDOW_SECONDS = 60.0
BASE_SECONDS = 600.0
EXPECTED_BYTES_PER_SECOND = 50_000
CHUNK_BYTES = 2**14
QUEUE_CHUNKS = 64  # received chunks that may wait for the disk


class TransientError(Exception):
    """A failure after which another attempt may succeed, and the seconds that the server asks us to wait."""

    def __init__(self, message: str, wait: float = 0.0):
        super().__init__(message)
        self.wait = wait


def fetch(url: str, path: Path, file: File, on_progress: Callable[[int], None]) -> None:
    """Download a file to ``path``, and call ``on_progress`` with the number of bytes received so far.

    After a transient failure the download is attempted again, after increasing waits. A failed download leaves no
    files behind, and does not change what was at ``path`` before.
    """
    deadline, wait = time.monotonic() + _allowed_seconds(file), FIRST_WAIT_SECONDS
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with partial(path) as out:
                _receive(url, out, file, deadline, on_progress)
            return
        except TransientError as error:
            pause = max(wait, min(error.wait, MAX_WAIT_SECONDS))
            if attempt == ATTEMPTS or time.monotonic() + pause > deadline:
                raise ValueError(f"{url} {error}") from None
        time.sleep(pause)
        wait *= 2


@contextmanager
def partial(path: Path) -> Generator[BinaryIO]:
    """A new file with a temporary name. It is renamed to ``path`` at the end, or removed after an error."""
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}{PART}")
    try:
        with part.open("xb") as out:
            fcntl.flock(out, fcntl.LOCK_EX)  # until it is closed, so that no other process removes it as abandoned
            yield out
            out.flush()
            os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _allowed_seconds(file: File) -> float:
    return BASE_SECONDS + file.size / EXPECTED_BYTES_PER_SECOND


def _receive(url: str, out: BinaryIO, file: File, deadline: float, on_progress: Callable[[int], None]) -> None:
    """Write what an address sends, if it is the published file and arrives in time."""
    digest, received = hashlib.md5(usedforsecurity=False), 0
    window_bytes, window_end = 0, time.monotonic() + WINDOW_SECONDS
    with closing(_Response(url, file.size)) as response:
        while True:
            now = time.monotonic()
            if now >= deadline:
                raise ValueError(
                    f"{url} took longer than the {_allowed_seconds(file):.0f} seconds allowed for {file.size} bytes: "
                    "try later, or pass another address as base."
                )
            if now >= window_end:
                if received - window_bytes < MIN_BYTES_PER_SECOND * WINDOW_SECONDS:
                    raise TransientError(
                        f"sent fewer than {MIN_BYTES_PER_SECOND} bytes per second for {WINDOW_SECONDS:g} seconds: "
                        "try later, or pass another address as base."
                    )
                window_bytes, window_end = received, now + WINDOW_SECONDS
            chunk = response.next_chunk(min(deadline, window_end) - now)
            if chunk == b"":
                break
            if chunk is None:
                continue
            received += len(chunk)
            if received > file.size:
                raise ValueError(
                    f"{url} is not the published file: it has more than {file.size} bytes. The download was "
                    "discarded; pass another address as base."
                )
            digest.update(chunk)
            out.write(chunk)
            on_progress(received)
    if received < file.size:
        raise TransientError(f"broke off after {received} of {file.size} bytes: run it again; complete files are kept.")
    if digest.hexdigest() != file.md5:
        raise ValueError(
            f"{url} is not the published file: its md5 is {digest.hexdigest()} instead of {file.md5}. The "
            "download was discarded; pass another address as base."
        )


class _Response:
    """The response of a server, read in a thread: a server that sends single bytes would block a plain read."""

    def __init__(self, url: str, size: int):
        self._chunks: queue.Queue[bytes | Exception] = queue.Queue(QUEUE_CHUNKS)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(url, size), daemon=True)
        self._thread.start()

    def next_chunk(self, within: float) -> bytes | None:
        """The next bytes, b"" at the end, or None if none arrived within this many seconds."""
        try:
            item = self._chunks.get(timeout=within)
        except queue.Empty:
            return None
        if isinstance(item, Exception):
            raise item
        return item

    def close(self) -> None:
        """Stop the thread at the next byte. It is a daemon thread, so it does not keep the program from ending."""
        self._closed.set()

    def _read(self, url: str, size: int) -> None:
        try:
            with closing(_body(url, size)) as chunks:
                if not all(map(self._put, chunks)):
                    return
            self._put(b"")
        except Exception as error:  # raised again in next_chunk
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
    """The bytes that an address sends, if it responds with a file of the right size."""
    import requests
    import urllib3

    try:
        with requests.get(
            url, stream=True, timeout=TIMEOUT_SECONDS, headers={"Accept-Encoding": "identity"}
        ) as response:
            _check_response(url, response, size)
            # Not decoded: some servers declare a .gz file as encoded, and the unpacked bytes have another digest.
            while chunk := response.raw.read(CHUNK_BYTES, decode_content=False):
                yield chunk
    except urllib3.exceptions.HTTPError:
        return  # The body broke off, and ``_receive`` notices the missing bytes. Earlier errors are those of requests.
    except requests.exceptions.SSLError:
        raise ValueError(f"{url} has no valid certificate: check the address and the clock.") from None
    except (requests.exceptions.ConnectionError, requests.exceptions.Timeout) as error:
        raise TransientError(
            f"cannot be reached ({type(error).__name__}): check the network, or pass another address as base."
        ) from None
    except (OSError, UnicodeError) as error:  # other errors of requests, and bad settings such as REQUESTS_CA_BUNDLE
        raise ValueError(
            f"{url} cannot be fetched ({type(error).__name__}: {shown(str(error))}): "
            "check the address and the network settings."
        ) from None


def _check_response(url: str, response: "requests.Response", size: int) -> None:
    """Refuse a response that is not a file of the published size."""
    status, length = response.status_code, response.headers.get("Content-Length")
    if status in (408, 429) or status >= 500:
        asked = response.headers.get("Retry-After", "")
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
