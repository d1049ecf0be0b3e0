"""Forecasts over HTTP are those of ``predict``, whoever else asks; bad requests are refused; no request is lost."""

import asyncio
import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from sdebnn import runs
from sdebnn.cli.serving import serve
from sdebnn.forecasters import Forecaster, open_forecaster
from sdebnn.serve import Limits, app_of, bound_socket
from sdebnn.serve.batching import batch_sizes
from sdebnn.tables.runs import TableSettings, train_table

JSON = {"Content-Type": "application/json"}
SERVE = "import sys, typer; from sdebnn.cli.serving import serve; typer.run(serve)"


class Server:
    """A server in a process of its own."""

    def __init__(self, code, *arguments):
        command = [sys.executable, "-c", code, *map(str, arguments)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        first = self.process.stdout.readline()
        found = re.search(r"at http://127\.0\.0\.1:(\d+);", first)
        if found is None:
            self.process.kill()
            raise AssertionError(first + self.process.communicate()[1])
        self.port = int(found[1])

    def connection(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=50)

    def ask(self, method, path, body=None, headers=JSON):
        """The status and the content of one response."""
        with contextlib.closing(self.connection()) as connection:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())

    def predict(self, rows, **others):
        status, content = self.ask("POST", "/predict", json.dumps({"rows": rows, **others}))
        assert status == 200, content
        return content

    def stop(self, number=signal.SIGTERM):
        """The exit code, the lines printed since the first, and what is on stderr."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=50)
        return self.process.returncode, out.splitlines(), err


@contextlib.contextmanager
def serving(code, *arguments):
    server = Server(code, *arguments)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.communicate()


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A run of a small table."""
    folder, random = tmp_path_factory.mktemp("table"), np.random.default_rng(0)
    x, colour = random.uniform(-2, 2, 60), random.choice(["red", "green"], 60)
    y = 3 * x + (colour == "red") + 0.1 * random.normal(size=60)
    lines = [f"{a:.4f},{b},{c:.4f}\n" for a, b, c in zip(x, colour, y, strict=True)]
    (folder / "table.csv").write_text("x,colour,y\n" + "".join(lines))
    train_table(TableSettings(str(folder / "table.csv"), members=2), folder / "run", progress=False)
    return folder / "run"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A run of small images, and some of them."""
    folder, random = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    y = random.integers(0, 3, 60)
    x = np.clip(random.normal(60 + 60 * y[:, None, None, None], 20, (60, 8, 8, 1)), 0, 255).astype(np.uint8)
    np.savez(folder / "images.npz", x=x, y=y)
    settings = runs.Settings(str(folder / "images.npz"), epochs=1, members=1)
    runs.train(settings, folder / "run", progress=False)
    return folder / "run", x[:6].tolist()


@pytest.fixture(scope="module")
def server(table):
    """A server of the table."""
    options = ("--port", 0, "--max-rows", 100, "--max-bytes", 20_000, "--max-batch", 16)
    with serving(SERVE, table, *options) as server:
        yield server


def rows_of(count):
    return [{"x": round(-2 + 4 * i / count, 3), "colour": ("red", "green")[i % 2]} for i in range(count)]


def same(found, expected):
    """Whether forecasts agree up to the rounding errors of batches of other sizes."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert list(one) == list(other)
        for name, value in one.items():
            if isinstance(value, str):
                assert value == other[name]
            else:
                assert value == pytest.approx(other[name], rel=1e-6, abs=1e-6), name
    return True


def forecasts_of(run, rows, **how):
    """What ``predict`` would write for each of these rows alone."""
    forecaster = open_forecaster(run)
    each = [forecaster.forecast(forecaster.from_json([row]), where="rows", **how) for row in rows]
    return [{name: column.tolist()[0] for name, column in columns.items()} for columns in each]


def test_forecasts_of_a_table_are_those_of_each_row_alone(server, table):
    rows = rows_of(40)  # three batches, of which the last is padded
    content = server.predict(rows)
    assert same(content["forecasts"], forecasts_of(table, rows))
    assert content["warnings"] == []
    narrow = server.predict(rows[:2], coverage=0.5)["forecasts"]
    assert same(narrow, forecasts_of(table, rows[:2], coverage=0.5))
    assert narrow[0]["lower"] > content["forecasts"][0]["lower"]


@pytest.mark.slow
def test_forecasts_of_images_are_those_of_each_image_alone(images):
    run, rows = images
    with serving(SERVE, run, "--port", 0, "--max-batch", 4) as server:
        assert same(server.predict(rows)["forecasts"], forecasts_of(run, rows))
        status, content = server.ask("POST", "/predict", json.dumps({"rows": [[[0.5]]]}))
        assert status == 422
        assert "where a list of 8 is needed" in content["error"]
        status, content = server.ask("POST", "/predict", json.dumps({"rows": [[[[10**400]] * 8] * 8]}))
        assert status == 422
        assert server.stop(signal.SIGINT)[0] == 0


def test_50_requests_at_once_are_answered_as_one_by_one(server):
    asked = [rows_of(50)[i : i + 1 + i % 3] for i in range(50)]
    alone = [server.predict(rows)["forecasts"] for rows in asked]
    with ThreadPoolExecutor(50) as threads:
        together = list(threads.map(lambda rows: server.predict(rows)["forecasts"], asked))
    for one, other in zip(together, alone, strict=True):
        assert same(one, other)


def test_health_and_model_tell_what_a_client_needs(server):
    assert server.ask("GET", "/health") == (200, {"status": "ok"})
    status, facts = server.ask("GET", "/model")
    assert status == 200
    assert facts["contract"]["target"] == "y"
    assert [column["name"] for column in facts["contract"]["columns"]] == ["x", "colour"]
    assert facts["limits"] == {"rows": 100, "bytes": 20_000}
    assert {"sdebnn", "jax", "python"} <= facts["versions"].keys()


ROW = '{"x": 1, "colour": "red"}'
# Python 3.13 can read JSON of this depth.
DEEP = (400, "nested too deeply") if sys.version_info < (3, 13) else (422, "send an object")


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "words"),
    [
        ("GET", "/forecast", None, {}, 404, "use POST /predict"),
        ("GET", "/predict/", None, {}, 404, "use POST /predict"),
        ("GET", "/predict", None, {}, 405, "use POST /predict"),
        ("POST", "/health", "{}", JSON, 405, "GET /health"),
        ("POST", "/predict", "{}", {"Content-Type": "text/plain"}, 415, "application/json"),
        ("POST", "/predict", "{}", {}, 415, "application/json"),
        ("POST", "/predict", "{}", {**JSON, "Content-Encoding": "gzip"}, 415, "without compression"),
        ("POST", "/predict", "{", JSON, 400, "no valid JSON"),
        ("POST", "/predict", "", JSON, 400, "no valid JSON"),
        ("POST", "/predict", b"\xff{}", JSON, 400, "no valid JSON"),
        ("POST", "/predict", f'{{"rows": [{ROW}], "x": NaN}}', JSON, 400, "NaN is no JSON"),
        ("POST", "/predict", '{"rows": [{"x": -Infinity}]}', JSON, 400, "-Infinity is no JSON"),
        ("POST", "/predict", '{"rows": [{"x": 1e999, "colour": null}]}', JSON, 422, "finite numbers"),
        ("POST", "/predict", '{"rows": [{"x": ' + 5000 * "9" + "}]}", JSON, 400, "no valid JSON"),
        ("POST", "/predict", 9000 * "[" + 9000 * "]", JSON, *DEEP),
        ("POST", "/predict", '{"rows": [{"x": ' + 900 * "[" + 900 * "]" + "}]}", JSON, (400, 422), ":"),
        ("POST", "/predict", "[]", JSON, 422, "the field rows"),
        ("POST", "/predict", '{"rows": 3}', JSON, 422, "must be a list"),
        ("POST", "/predict", '{"rows": []}', JSON, 422, "at least one"),
        ("POST", "/predict", '{"rows": [{"z": 1}]}', JSON, 422, "no row has the column"),
        ("POST", "/predict", '{"rows": [{"x": "one", "colour": null}]}', JSON, 422, "'one'"),
        ("POST", "/predict", '{"rows": [{"\\ud800": 1}]}', JSON, 422, "no row has the column"),
        ("POST", "/predict", f'{{"rows": [{ROW}], "draws": 3}}', JSON, 422, "'draws' is no field"),
        ("POST", "/predict", f'{{"rows": [{ROW}], "coverage": 1}}', JSON, 422, "coverage=1 must be"),
        ("POST", "/predict", f'{{"rows": [{ROW}], "coverage": true}}', JSON, 422, "coverage=True must be"),
        ("POST", "/predict", f'{{"rows": [{", ".join(101 * [ROW])}]}}', JSON, 413, "101 rows, more than 100"),
        ("POST", "/predict", 20_001 * " ", JSON, 413, "larger than 20000 bytes"),
        ("POST", "/predict", "", {**JSON, "Content-Length": str(2**40)}, 413, "larger than 20000 bytes"),
        ("POST", "/predict", iter(3000 * [b"        "]), JSON, 413, "larger than 20000 bytes"),
    ],
)
def test_a_bad_request_is_refused_in_one_line(server, method, path, body, headers, status, words):
    found, content = server.ask(method, path, body, headers)
    assert found in (status if isinstance(status, tuple) else (status,)), content
    assert list(content) == ["error"]
    assert words in content["error"]
    assert "\n" not in content["error"]
    assert "Traceback" not in content["error"]
    assert server.ask("GET", "/health")[0] == 200


def test_warnings_are_for_their_request_and_are_not_printed(table):
    odd = [{"x": 500.0, "colour": "red"}, {"x": None, "colour": "mauve"}]
    with serving(SERVE, table, "--port", 0, "--max-batch", 8) as server:
        with ThreadPoolExecutor(12) as threads:
            found = list(threads.map(lambda i: server.predict(odd if i % 4 == 0 else rows_of(2)), range(12)))
        for i, content in enumerate(found):
            words = " ".join(content["warnings"])
            if i % 4:
                assert words == ""
            else:
                assert "unlike the training data, row 1 most of all" in words
                assert "'mauve'" in words
                assert "1 number is missing in column 'x'" in words
        code, lines, err = server.stop()
    assert (code, lines, err) == (0, ["served 12 requests."], "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_stopped_answers_every_request_first(table, number):
    """Some are in the queue, others are sent on open connections while the server stops."""
    asked = threading.Barrier(25)
    body = json.dumps({"rows": rows_of(30)})

    def ask_twice(server):
        with contextlib.closing(server.connection()) as connection:
            connection.request("GET", "/health")
            assert connection.getresponse().read()
            asked.wait()
            connection.request("POST", "/predict", body, JSON)
            response = connection.getresponse()
            assert len(json.loads(response.read())["forecasts"]) == 30
            return response.status

    with serving(SERVE, table, "--port", 0, "--max-batch", 16) as server, ThreadPoolExecutor(24) as threads:
        answers = [threads.submit(ask_twice, server) for _ in range(24)]
        asked.wait()
        clock = time.monotonic()
        code, lines, err = server.stop(number)
        assert time.monotonic() - clock < 20
        assert [answer.result() for answer in answers] == 24 * [200]
        assert (code, lines, err) == (0, ["served 48 requests."], "")
        with pytest.raises(ConnectionRefusedError):
            server.ask("GET", "/health")


class Doubles(Forecaster):
    """A forecaster that doubles numbers, and waits for ``may_go`` first."""

    contract = {"kind": "numbers"}  # noqa: RUF012

    def __init__(self):
        self.calls, self.may_go = [], threading.Event()
        self.may_go.set()

    def from_json(self, rows):
        if not all(isinstance(row, int) for row in rows):
            raise ValueError("a row is no number: send numbers.")
        return np.array(rows)

    def forecast(self, inputs, *, where, coverage=0.95):
        self.calls.append((inputs.tolist(), coverage))
        self.may_go.wait(20)
        if (inputs == 13).any():
            raise ValueError("13 has no forecast: send another.")
        if (inputs == 14).any():
            raise KeyError("secret")
        if (inputs == 15).any():
            warnings.warn(f"{where} has 15.", stacklevel=2)
        return {"y": np.where(inputs == 16, np.nan, 2.0 * inputs), "unlike": np.zeros(len(inputs))}


async def asked(app, content, path="/predict", method="POST", more_body=False):
    """The status, the content and the headers of the response of an application."""
    sent, body = [], json.dumps(content).encode()
    scope = {
        "type": "http", "method": method, "path": path, "query_string": b"", "scheme": "http", "root_path": "",
        "headers": [(b"content-type", b"application/json")], "server": ("127.0.0.1", 80),
    }  # fmt: skip
    parts = [{"type": "http.request", "body": body, "more_body": more_body}]

    async def receive():
        return parts.pop() if parts else await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    with contextlib.suppress(KeyError):  # raised again after the response, for the log of the server
        await app(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], json.loads(sent[1]["body"]), headers


def answers_while_busy(forecaster, requests, limits=None):
    """The answers to requests that arrive while the forecaster is busy with another."""

    async def ask_all():
        app = app_of(forecaster, limits=limits)
        async with app.router.lifespan_context(app):
            forecaster.may_go.clear()
            first = asyncio.create_task(asked(app, {"rows": [0]}))
            while not forecaster.calls:
                await asyncio.sleep(0.01)
            others = [asyncio.create_task(asked(app, request)) for request in requests]
            await asyncio.sleep(0.3)  # all are in the queue, or refused
            assert (await asked(app, {}, "/health", "GET"))[:2] == (200, {"status": "ok"})
            forecaster.may_go.set()
            assert (await first)[0] == 200
            return [await each for each in others]

    return asyncio.run(ask_all())


def test_requests_that_arrive_while_the_model_is_busy_are_forecast_together():
    forecaster = Doubles()
    asked = [{"rows": [i, 10 * i]} for i in range(1, 4)] + [{"rows": [7], "coverage": 0.5}, {"rows": [8]}]
    answers = answers_while_busy(forecaster, asked, Limits(batch=16))
    values = [[forecast["y"] for forecast in content["forecasts"]] for _, content, _ in answers]
    assert values == [[2.0 * row for row in each["rows"]] for each in asked]
    assert forecaster.calls[0] == ([0], 0.95)
    assert forecaster.calls[1] == ([1, 10, 2, 20, 3, 30, 8] + 9 * [1], 0.95)
    assert forecaster.calls[2:] == [([7], 0.5)]


def test_no_batch_is_larger_than_the_limit_and_sizes_are_few():
    forecaster = Doubles()
    answers = answers_while_busy(forecaster, [{"rows": 20 * [3]}, {"rows": 3 * [5]}], Limits(batch=8))
    assert [len(content["forecasts"]) for _, content, _ in answers] == [20, 3]
    assert [len(rows) for rows, _ in forecaster.calls] == [1, 8, 8, 8]
    assert batch_sizes(64) == [1, 4, 16, 64]
    assert batch_sizes(10) == [1, 4, 10]
    assert batch_sizes(1) == [1]


def test_a_request_that_fails_or_warns_leaves_its_companions_alone():
    answers = answers_while_busy(Doubles(), [{"rows": [i]} for i in (12, 13, 14, 15, 16, "a")])
    assert [status for status, _, _ in answers] == [200, 422, 500, 200, 200, 422]
    (_, good, _), (_, refused, _), (_, failed, _), (_, warned, _), (_, lost, _), _ = answers
    assert good == {"forecasts": [{"y": 24.0, "unlike": 0.0}], "warnings": []}
    assert refused == {"error": "13 has no forecast: send another."}
    assert failed["error"].startswith("the server failed with KeyError")
    assert "secret" not in failed["error"]
    assert warned["warnings"] == ["rows has 15."]
    assert lost == {"forecasts": [{"y": None, "unlike": 0.0}], "warnings": []}


def test_a_server_with_too_many_requests_is_busy():
    answers = answers_while_busy(Doubles(), [{"rows": [i]} for i in range(6)], Limits(requests=4))
    assert [status for status, _, _ in answers] == 3 * [200] + 3 * [503]
    assert answers[-1][2]["retry-after"] == "1"
    assert "try again" in answers[-1][1]["error"]
    large = [{"rows": 60 * [1000 + i]} for i in range(10)]
    statuses = [status for status, _, _ in answers_while_busy(Doubles(), large, Limits(bytes=400))]
    assert statuses.count(503) == 2  # eight times the bytes of the largest body hold eight of these
    assert statuses.count(200) == 8


def test_a_body_that_never_ends_is_given_up():
    async def ask_slowly():
        app = app_of(Doubles(), limits=Limits(seconds=0.1))
        async with app.router.lifespan_context(app):
            answer = await asked(app, {}, more_body=True)
            assert app.state.service.load.requests == app.state.service.load.bytes == 0
            return answer

    status, content, _ = asyncio.run(ask_slowly())
    assert status == 408
    assert "not complete after 0.1 s" in content["error"]


SLOW = """
import sys, time
import numpy as np
from sdebnn.serve import answer_requests, app_of, bound_socket

class Slow:
    contract = {"kind": "numbers"}
    def from_json(self, rows): return np.array(rows)
    def forecast(self, inputs, *, where, coverage=0.95):
        time.sleep(inputs.max())
        return {"y": inputs}

say = lambda words: print(words, flush=True)
answer_requests(app_of(Slow()), bound_socket("127.0.0.1", 0), say=say, stop_seconds=int(sys.argv[1]))
"""


def test_a_forecast_that_takes_too_long_ends_with_the_limit_or_the_second_signal():
    with serving(SLOW, 1) as limited, serving(SLOW, 50) as patient, ThreadPoolExecutor(2) as threads:
        lost = [threads.submit(each.ask, "POST", "/predict", '{"rows": [40]}') for each in (limited, patient)]
        time.sleep(1)
        clock = time.monotonic()
        code, lines, _ = limited.stop()
        assert (code, lines) == (1, ["1 of 1 requests were given up after 1 s."])
        patient.process.send_signal(signal.SIGTERM)
        time.sleep(1)
        assert patient.process.poll() is None
        assert patient.stop()[0] == -signal.SIGTERM
        assert time.monotonic() - clock < 20
        status, content = lost[0].result()
        assert status == 503
        assert "stopped" in content["error"]
        with pytest.raises(http.client.RemoteDisconnected):
            lost[1].result()


def test_an_address_that_cannot_be_used_is_refused_before_the_run_is_opened(refused):
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        refused(lambda: serve(Path("nothing"), port=port), f"port {port} of 127.0.0.1 is in use: choose another")
    refused(lambda: serve(Path("nothing"), port=70_000), "port=70000 must be")
    refused(lambda: serve(Path("nothing"), host="no such host", port=0), "host='no such host' is not known here")
    refused(lambda: serve(Path("nothing"), host="192.0.2.1", port=0), "192.0.2.1:0 cannot be used")
    with bound_socket("127.0.0.1", 0) as free:
        assert free.getsockname()[1] > 0


def test_limits_and_the_missing_extra_are_refused(refused, monkeypatch):
    refused(lambda: app_of(Doubles(), limits=Limits(rows=0)), "rows=0 must be")
    monkeypatch.delitem(sys.modules, "sdebnn.serve")
    monkeypatch.delitem(sys.modules, "sdebnn.serve.app")
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    refused(lambda: serve(Path("nothing")), r"serving needs Starlette and uvicorn: pip install 'sdebnn\[serve\]'")
