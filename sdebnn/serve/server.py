"""A uvicorn server that answers every request it has received before it stops."""

import asyncio
import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import cast

import uvicorn
from starlette.applications import Starlette

from sdebnn.serve.app import Service

SIGNALS = (signal.SIGINT, signal.SIGTERM)
LAST_CALL = 0.3  # seconds in which open connections may still send a request, after the first signal
STOP_SECONDS = 30  # to answer the requests that were received
KEEP_ALIVE = 60  # seconds after which an idle connection is closed


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket with this address. It does not accept connections yet."""
    if not 0 <= port < 2**16:
        raise ValueError(f"port={port} must be a whole number from 0 (any free port) to {2**16 - 1}.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise ValueError(f"host={host!r} is not known here: pass an address of this machine, or 127.0.0.1.") from None
    sock = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # elsewhere, two servers could then have the same address
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _cannot_listen(host, port, error) from None
    return sock


def _cannot_listen(host: str, port: int, error: OSError) -> ValueError:
    if error.errno == errno.EADDRINUSE:
        return ValueError(f"port {port} of {host} is in use: choose another with --port, or 0 for a free one.")
    if isinstance(error, PermissionError):
        return ValueError(f"port {port} of {host} needs more rights: choose one from 1024 on with --port.")
    return ValueError(f"{host}:{port} cannot be used ({error.strerror}): pass an address of this machine as --host.")


def url_of(sock: socket.socket) -> str:
    """The address of a bound socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """Stops at the first SIGTERM or SIGINT, once every request is answered. The second terminates the process."""

    def __init__(self, config: uvicorn.Config, service: Service, started: Callable[[], None]):
        super().__init__(config)
        self._service, self._say_started = service, started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        await super().startup(sockets)
        self._say_started()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Handle signals here. Unlike uvicorn's own method, this does not raise them again at the end."""
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop, and let the next signal terminate the process."""
        self.should_exit = True
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, answer what was sent, and ask clients to close their connections.

        A client that keeps its connection open may be sending a request at this moment. So connections stay open for
        a short time, in which each answer tells its client that it was the last.
        """
        waiting = [each for sock in sockets or [] for each in _accepted(sock)]
        for server in self.servers:
            server.close()
        self._service.stopping = True
        for each in waiting:
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, each)
        await asyncio.sleep(LAST_CALL)
        await super().shutdown(sockets)

    def _protocol(self) -> asyncio.Protocol:
        """The protocol of one connection, as in uvicorn's ``startup``."""
        protocol = cast(Callable[..., asyncio.Protocol], self.config.http_protocol_class)
        return protocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)


def _accepted(sock: socket.socket) -> list[socket.socket]:
    """The connections that the system has accepted and uvicorn has not. Closing the socket would reset them."""
    found = []
    with suppress(BlockingIOError):
        while True:
            found.append(sock.accept()[0])
    return found


def answer_requests(
    app: Starlette,
    sock: socket.socket,
    *,
    say: Callable[[str], None] = print,
    log_requests: bool = False,
    debug: bool = False,
    stop_seconds: int = STOP_SECONDS,
) -> None:
    """Serve an application of ``app_of`` until SIGTERM or SIGINT. This must run in the main thread.

    ``say`` is called with one line at the start and one at the end.
    """
    service: Service = app.state.service
    service.batcher.warm_up()  # here, where an error is seen; the lifespan does not repeat it
    config = uvicorn.Config(
        app, loop="asyncio", http="h11", ws="none", lifespan="on", log_config=None, server_header=False,
        log_level="error" if debug else "critical", timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=stop_seconds,
    )  # fmt: skip
    if log_requests:
        access = logging.getLogger("uvicorn.access")
        access.addHandler(logging.StreamHandler())
        access.setLevel(logging.INFO)
    (host, port), url = sock.getsockname()[:2], url_of(sock)
    server = Server(config, service, lambda: say(f"serving {service.name} at {url}; stop with Ctrl-C."))
    try:
        server.run([sock])
    except OSError as error:  # another process has begun to listen meanwhile
        raise _cannot_listen(host, port, error) from None
    count = server.server_state.total_requests
    if service.given_up:
        say(f"{service.given_up} of {count} requests were given up after {stop_seconds} s.")
        sys.stdout.flush()
        os._exit(1)  # the thread of the model may be in a long forecast, for which Python would wait
    say(f"served {count} requests.")
