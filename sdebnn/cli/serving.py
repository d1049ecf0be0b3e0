"""``sdebnn serve``: answer requests for forecasts over HTTP."""

import functools
import importlib
import json
import sys
from typing import Annotated, Any

import typer

from sdebnn.cli.common import check_suits, key_of, plain_warnings
from sdebnn.cli.forecasting import BestOption, Draws, RunArgument
from sdebnn.forecasters import open_forecaster
from sdebnn.tables.kind import is_table_run

NEEDED = ("starlette", "uvicorn", "anyio", "h11", "click")


def serve(
    run: RunArgument,
    host: Annotated[str, typer.Option(help="The address to listen at; 0.0.0.0 is all of them.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen at; 0 is any free one.")] = 8000,
    max_rows: Annotated[int, typer.Option(help="Rows of one request, at most.")] = 1024,
    max_bytes: Annotated[int, typer.Option(help="Bytes of one request, at most.")] = 2**23,
    max_batch: Annotated[int, typer.Option(help="Rows that are forecast together, at most.")] = 64,
    draws: Draws = None,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    best: BestOption = False,
    log_requests: Annotated[bool, typer.Option("--log-requests", help="Print a line for each request.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each line as one JSON object.")] = False,
) -> None:
    """Serve a run's model over HTTP: JSON in, forecasts with their uncertainty out.

    POST /predict takes {"rows": [...]}, with rows as GET /model describes them. GET /health answers once the model is
    ready. Requests that arrive at the same time are forecast together. On SIGTERM or Ctrl-C, all requests that were
    received are answered first.
    """
    key_of(seed)
    if is_table_run(run):
        others = {"--seed": seed != 0, "--best": best}
        check_suits(others, f"is for runs of images and arrays, and {run} is one of a table")
    serving = _serving()
    limits = serving.Limits(max_rows, max_bytes, max_batch)
    with serving.bound_socket(host, port) as sock, plain_warnings():
        forecaster = open_forecaster(run, draws=draws, seed=seed, best=best)
        app = serving.app_of(forecaster, name=run.name, limits=limits)
        say = functools.partial(_say, serving.url_of(sock), as_json)
        serving.answer_requests(app, sock, say=say, log_requests=log_requests, debug="--debug" in sys.argv)


def _say(url: str, as_json: bool, words: str) -> None:
    print(json.dumps({"url": url, "message": words}) if as_json else words, flush=True)


def _serving() -> Any:
    try:
        return importlib.import_module("sdebnn.serve")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in NEEDED:
            raise
        raise ValueError("serving needs Starlette and uvicorn: pip install 'sdebnn[serve]'.") from None
