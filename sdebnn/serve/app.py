"""The ASGI application.

POST /predict    {"rows": [...], "coverage": 0.95} -> {"forecasts": [{column: value, ...}, ...], "warnings": [...]}
GET /health      {"status": "ok"}, once the model is compiled
GET /model       the contract of the forecaster, the limits, and the versions

An error is {"error": one line}, with a status from 400 on.
"""

import asyncio
import json
import platform
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import jax
import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from sdebnn import __version__
from sdebnn.forecasters import Forecaster
from sdebnn.serve.batching import Answer, Batcher
from sdebnn.serve.limits import Limits, Load
from sdebnn.serve.messages import encoded, read_request


class Service:
    """What the answers to all requests share."""

    def __init__(self, forecaster: Forecaster, name: str, limits: Limits):
        limits.check()
        self.forecaster, self.name, self.limits = forecaster, name, limits
        self.batcher, self.load = Batcher(forecaster, limits.batch), Load(limits)
        self.stopping = False  # set by the server; clients are then asked to close their connections
        self.given_up = 0  # requests that took too long when the server was stopped
        # Bodies are read and written in a thread of their own, because large ones would block the event loop.
        self._thread = ThreadPoolExecutor(1, "messages")

    @asynccontextmanager
    async def running(self, _: Starlette) -> AsyncGenerator[None]:
        """The lifespan of the application. It begins once the model is compiled."""
        loop = asyncio.get_running_loop()
        if not self.batcher.is_warm:
            await loop.run_in_executor(self._thread, self.batcher.warm_up)
        forecasting = loop.create_task(self.batcher.run())
        try:
            yield
        finally:
            forecasting.cancel()
            self.batcher.close()
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def predict(self, request: Request) -> Response:
        """The forecasts of the rows of a request."""
        _check_type(request)
        self.load.add_request()
        body = bytearray()
        try:
            await self._receive(request, body)
            in_thread = asyncio.get_running_loop().run_in_executor
            rows, coverage = await in_thread(self._thread, read_request, body, self.forecaster, self.limits.rows)
            answers = await self._forecast(rows, coverage)
            return self.answer(200, await in_thread(self._thread, encoded, answers))
        except asyncio.CancelledError:  # by the server, if it must stop
            self.given_up += 1
            raise HTTPException(503, "the server is being stopped: ask again later.", {"Retry-After": "10"}) from None
        finally:
            self.load.remove(len(body))

    async def _receive(self, request: Request, body: bytearray) -> None:
        """Append the body of a request to ``body``, at most as much as is allowed."""
        most = self.limits.bytes
        too_large = HTTPException(413, f"the body is larger than {most} bytes: send fewer rows in each request.")
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > most:
            raise too_large
        try:
            async with asyncio.timeout(self.limits.seconds):
                async for chunk in request.stream():
                    body.extend(chunk)
                    self.load.add_bytes(len(chunk))
                    if len(body) > most:
                        raise too_large
        except TimeoutError:
            seconds = f"{self.limits.seconds:g}"
            raise HTTPException(408, f"the body was not complete after {seconds} s: send it faster.") from None
        except ClientDisconnect:
            raise HTTPException(400, "the client closed the connection.") from None

    async def _forecast(self, rows: list[Any], coverage: float) -> list[Answer]:
        try:
            return await self.batcher.forecast(rows, coverage)
        except ValueError as error:
            raise HTTPException(422, _one_line(error)) from None

    async def health(self, _: Request) -> Response:
        """That the server is ready."""
        return self.answer(200, b'{"status":"ok"}')

    async def model(self, _: Request) -> Response:
        """What the model takes and predicts."""
        versions = {"sdebnn": __version__, "jax": jax.__version__, "numpy": np.__version__}
        facts = {
            "name": self.name,
            "contract": self.forecaster.contract,
            "limits": {"rows": self.limits.rows, "bytes": self.limits.bytes},
            "versions": {**versions, "python": platform.python_version()},
            "device": jax.devices()[0].device_kind,
        }
        return self.answer(200, json.dumps(facts).encode())

    async def refused(self, request: Request, error: Exception) -> Response:
        """The answer to a request that is refused."""
        assert isinstance(error, HTTPException)
        words = error.detail
        if error.status_code in (404, 405):  # raised by Starlette, with few words
            words = f"there is no {request.method} {request.url.path}: use POST /predict, GET /health or GET /model."
        body = json.dumps({"error": _one_line(words)}).encode()
        return self.answer(error.status_code, body, dict(error.headers or {}))

    async def failed(self, _: Request, error: Exception) -> Response:
        """The answer if there is a mistake in the server; Starlette raises the error again, for the server's log."""
        words = f"the server failed with {type(error).__name__}: start it with --debug to see where."
        return self.answer(500, json.dumps({"error": words}).encode())

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> Response:
        """A response with JSON."""
        closing = {"Connection": "close"} if self.stopping else {}
        return Response(body, status, {**(headers or {}), **closing}, "application/json")


def app_of(forecaster: Forecaster, *, name: str = "model", limits: Limits | None = None) -> Starlette:
    """The application that serves a forecaster, for an ASGI server of your own.

        app = app_of(open_forecaster(Path("runs/houses")))

    It must run in one process with one event loop, which supports the lifespan protocol.
    """
    service = Service(forecaster, name, limits or Limits())
    app = Starlette(
        routes=[
            Route("/predict", service.predict, methods=["POST"]),
            Route("/health", service.health),
            Route("/model", service.model),
        ],
        exception_handlers={HTTPException: service.refused, Exception: service.failed},
        lifespan=service.running,
    )
    app.router.redirect_slashes = False
    app.state.service = service
    return app


def _check_type(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, f"the content type is {kind!r}: send JSON with Content-Type: application/json.")
    packing = request.headers.get("content-encoding", "identity").lower()
    if packing != "identity":
        raise HTTPException(415, f"the content encoding is {packing!r}: send the body without compression.")


def _one_line(words: object) -> str:
    return " ".join(str(words).split())
