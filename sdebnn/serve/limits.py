"""How much a server accepts, and how much it holds at once."""

from typing import NamedTuple

from starlette.exceptions import HTTPException

from sdebnn.checks import check_count, check_positive


class Limits(NamedTuple):
    """The limits of a server.

    rows              rows of one request
    bytes             bytes of the body of one request
    batch             rows that are forecast together; 1 turns batching off
    requests          requests that are received and not answered yet
    seconds           time to receive the body of a request
    """

    rows: int = 1024
    bytes: int = 2**23
    batch: int = 64
    requests: int = 256
    seconds: float = 10.0

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the bodies of all requests that are not answered yet."""
        return 8 * self.bytes

    def check(self) -> None:
        """Refuse values that are not allowed."""
        for name in ("rows", "bytes", "batch", "requests"):
            check_count(name, getattr(self, name))
        check_positive("seconds", self.seconds)


class Load:
    """The number of requests that are received and not answered yet, and the bytes of their bodies."""

    def __init__(self, limits: Limits):
        self.limits, self.requests, self.bytes = limits, 0, 0

    def add_request(self) -> None:
        """Count one more request, or refuse it."""
        if self.requests >= self.limits.requests:
            raise _busy(f"{self.requests} requests are waiting")
        self.requests += 1

    def add_bytes(self, count: int) -> None:
        """Count more bytes of a body, and refuse its request if there are too many."""
        self.bytes += count
        if self.bytes > self.limits.waiting_bytes:
            raise _busy("the requests that are waiting are too large together")

    def remove(self, count: int) -> None:
        """Forget a request with so many bytes."""
        self.requests -= 1
        self.bytes -= count


def _busy(why: str) -> HTTPException:
    return HTTPException(503, f"the server is busy, {why}: try again in a second.", {"Retry-After": "1"})
