"""Latency and requests a second of ``sdebnn serve`` on the loopback interface, and what happens to requests at its end.

A table (the diabetes data of scikit-learn) and a net of images (its 8 by 8 digits) are trained for a short time, for
the forecasts need not be good. Each request holds one row. Clients send the next request when the last is answered.
Three ways are measured in the same run: the server, the server with batches of one row, and a loop that calls
``forecaster.forecast`` for one row at a time, without HTTP. Then SIGTERM is sent to a server with 64 clients, of which
half open a connection for each request. The clients run in one process beside the server, on the same cores.

    python benchmarks/serving.py [--seconds 8] [--json benchmarks/serving.json]
"""

import argparse
import asyncio
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import record
import starlette
import uvicorn
from sklearn.datasets import load_diabetes, load_digits

from sdebnn import runs
from sdebnn.forecasters import open_forecaster
from sdebnn.tables.runs import TableSettings, train_table

CLIENTS = (1, 16, 64)
MEMBERS = {"table": 2, "images": 1}
WARM_UP = 1.0  # seconds that are not counted
SERVE = "import typer; from sdebnn.cli.serving import serve; typer.run(serve)"
LOST = (ConnectionResetError, BrokenPipeError, asyncio.IncompleteReadError)


def table(folder: Path) -> list[Any]:
    """Train a run of a table, and return its rows as JSON."""
    x, y = load_diabetes(return_X_y=True)
    names = [f"x{i}" for i in range(x.shape[1])]
    np.savetxt(folder / "table.csv", np.column_stack([x, y]), "%.6f", ",", header=",".join([*names, "y"]), comments="")
    settings = TableSettings(str(folder / "table.csv"), members=MEMBERS["table"])
    train_table(settings, folder / "table", progress=False)
    return [dict(zip(names, row, strict=True)) for row in x.tolist()]


def images(folder: Path) -> list[Any]:
    """Train a run of images, and return them as JSON."""
    digits = load_digits()
    x = np.minimum(16 * digits.images, 255).astype(np.uint8)[..., None]
    np.savez(folder / "digits.npz", x=x, y=digits.target)
    settings = runs.Settings(str(folder / "digits.npz"), epochs=1, members=MEMBERS["images"])
    runs.train(settings, folder / "images", progress=False)
    return x[:200].tolist()


class Server:
    """``sdebnn serve`` in another process."""

    def __init__(self, run: Path, *options: str):
        clock = time.perf_counter()
        command = [sys.executable, "-c", SERVE, str(run), "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        found = re.search(r"http://127.0.0.1:(\d+);", self.process.stdout.readline())
        if found is None:
            raise SystemExit(f"{run} is not served")
        self.port, self.seconds = int(found[1]), time.perf_counter() - clock

    def stop(self) -> int:
        """The exit code after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


class Tally:
    """What clients saw."""

    def __init__(self, clients: int):
        self.times: list[tuple[float, float]] = []  # when a request was sent, and its latency
        self.answers = clients * [0]
        self.failed = self.lost = self.refused = 0
        self.is_done = False


def request_of(row: Any) -> bytes:
    body = json.dumps({"rows": [row]}).encode()
    head = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def client(port: int, requests: list[bytes], tally: Tally, index: int, keep: bool = True) -> None:
    """Send one request after another until all clients are done, or until the server refuses connections."""
    connection = None
    while not tally.is_done:
        if connection is None:
            try:
                connection = await asyncio.open_connection("127.0.0.1", port)
            except (ConnectionRefusedError, ConnectionResetError):  # nothing was sent
                tally.refused += 1
                return
        reader, writer = connection
        clock = time.perf_counter()
        try:
            writer.write(requests[tally.answers[index] % len(requests)])
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(head.split(b"content-length:")[1].split()[0]))
        except LOST:
            tally.lost += 1
            return
        tally.times.append((clock, time.perf_counter() - clock))
        tally.answers[index] += 1
        tally.failed += b" 200 " not in head.split(b"\r\n")[0]
        if b"connection: close" in head or not keep:
            writer.close()
            connection = None
    if connection is not None:
        connection[1].close()


def summary(latencies: list[float], rate: float) -> dict[str, float]:
    p50, p99 = (1e3 * np.quantile(latencies, [0.5, 0.99])).tolist()
    return {"p50 ms": round(p50, 2), "p99 ms": round(p99, 2), "requests a second": round(rate, 1)}


def under_load(port: int, requests: list[bytes], clients: int, seconds: float) -> dict[str, float]:
    """The latencies of so many clients.

    They are measured from when each client has one answer until each has three, or for so many seconds if that is
    longer.
    """

    async def run() -> tuple[Tally, float, float]:
        tally, start = Tally(clients), time.perf_counter()
        shifted = [requests[i:] + requests[:i] for i in range(clients)]
        tasks = [asyncio.create_task(client(port, each, tally, i)) for i, each in enumerate(shifted)]
        while min(tally.answers) < 1 or time.perf_counter() < start + WARM_UP:
            await asyncio.sleep(0.02)
        first = time.perf_counter()
        while min(tally.answers) < 3 or time.perf_counter() < first + seconds:
            await asyncio.sleep(0.02)
        tally.is_done, last = True, time.perf_counter()
        await asyncio.gather(*tasks)
        return tally, first, last

    tally, first, last = asyncio.run(run())
    if tally.failed or tally.lost or tally.refused:
        raise SystemExit(f"{tally.failed} requests failed, {tally.lost} were lost, {tally.refused} refused")
    answered = sum(first <= sent + latency <= last for sent, latency in tally.times)
    return summary([latency for sent, latency in tally.times if sent >= first], answered / (last - first))


def stopped_under_load(run: Path, requests: list[bytes]) -> dict[str, int | float]:
    """What becomes of the requests of 64 clients if the server is stopped."""
    server = Server(run)

    async def load() -> tuple[Tally, float, int]:
        tally = Tally(CLIENTS[-1])
        clients = [
            asyncio.create_task(client(server.port, requests, tally, i, keep=i % 2 == 0)) for i in range(CLIENTS[-1])
        ]
        await asyncio.sleep(2)
        clock = time.perf_counter()
        code = await asyncio.to_thread(server.stop)
        seconds = time.perf_counter() - clock
        await asyncio.gather(*clients)
        return tally, seconds, code

    tally, seconds, code = asyncio.run(load())
    return {
        "answered": len(tally.times),
        "lost": tally.lost,
        "failed": tally.failed,
        "exit code": code,
        "seconds to stop": round(seconds, 2),
    }


def bare_loop(run: Path, rows: list[Any], seconds: float) -> dict[str, float]:
    """Forecasts of one row at a time, in this process."""
    forecaster, latencies = open_forecaster(run), []
    forecaster.forecast(forecaster.from_json(rows[:1]), where="rows")
    start = time.perf_counter()
    while time.perf_counter() < start + seconds:
        row, clock = rows[len(latencies) % len(rows)], time.perf_counter()
        forecaster.forecast(forecaster.from_json([row]), where="rows")
        latencies.append(time.perf_counter() - clock)
    return summary(latencies, len(latencies) / (time.perf_counter() - start))


def measured(run: Path, rows: list[Any], seconds: float) -> dict[str, Any]:
    requests = [request_of(row) for row in rows]
    found: dict[str, Any] = {"bare loop": bare_loop(run, rows, seconds)}
    for name, options in (("server", ()), ("server without batching", ("--max-batch", "1"))):
        server = Server(run, *options)
        found[name] = {"seconds to start": round(server.seconds, 1)}
        for clients in CLIENTS:
            found[name][f"{clients} clients"] = under_load(server.port, requests, clients, seconds)
            print(run.name, name, f"{clients} clients", found[name][f"{clients} clients"], flush=True)
        server.stop()
    found["stopped with 64 clients"] = stopped_under_load(run, requests)
    print(run.name, "bare loop", found["bare loop"], "stopped", found["stopped with 64 clients"], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = {
            made.__name__: measured(folder / made.__name__, made(folder), options.seconds) for made in (table, images)
        }
    if options.json is not None:
        command = f"python benchmarks/serving.py --seconds {options.seconds:g} --json {options.json}"
        stack = {"starlette": starlette.__version__, "uvicorn": uvicorn.__version__}
        record.write(options.json, command, server=stack, members=MEMBERS, rows=found)


if __name__ == "__main__":
    main()
