"""Downloads, from a server on this machine: whole and right, or one line and nothing on disk."""

import fcntl
import os
import resource
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import files
import numpy as np
import pytest

from sdebnn.data import CATALOGUE, File, download, get, load, transfer

pytest.importorskip("requests")


class Quiet(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """Connections that the client gives up are no news."""


class Server:
    """Serves files from memory, and misbehaves as it is told: ``ways`` are by file, and called with the handler."""

    def __init__(self):
        self.files, self.asked, self.ways, self.closed = {}, [], {}, threading.Event()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.lstrip("/")
                owner.asked.append(name)
                blob = owner.files.get(name)
                if blob is None:
                    return self.send_error(404)
                owner.ways.get(name, owner.send)(self, blob)
                return None

            def log_message(self, *args):
                pass

        self.server = Quiet(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def send(self, handler, blob, **headers):
        headers = {"Content-Length": len(blob)} | {name.replace("_", "-"): value for name, value in headers.items()}
        handler.send_response(200)
        for name, value in headers.items():
            if value is not None:
                handler.send_header(name, str(value))
        handler.end_headers()
        handler.wfile.write(blob)

    def trickle(self, handler, blob):
        """A byte every 10 ms, for as long as anyone listens."""
        for byte in blob:
            if self.closed.wait(0.01):
                return
            handler.wfile.write(bytes([byte]))
            handler.wfile.flush()

    def close(self):
        self.closed.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(transfer, "FIRST_WAIT_SECONDS", 0.01)
    made = Server()
    yield made
    made.close()


def publish(monkeypatch, name, blobs, **changes):
    """Make these the published files of a data set, and change other fields of its row."""
    known = {file: File(len(blob), files.md5(blob)) for file, blob in blobs.items()}
    entry = CATALOGUE[name]
    monkeypatch.setitem(CATALOGUE, name, entry._replace(source=entry.source._replace(files=known), **changes))


@pytest.fixture
def mnist(server, monkeypatch):
    """A small MNIST on the server, its digests the published ones."""
    server.files, digests, arrays = files.mnist_files()
    publish(monkeypatch, "mnist", server.files, digests=digests, shape=(9, 7, 1))
    return arrays


def test_downloaded_files_are_the_published_ones(server, mnist, tmp_path, capfd):
    assert get("mnist", tmp_path, base=server.base) == tmp_path / "mnist"
    assert files.everything_under(tmp_path / "mnist") == server.files
    loaded = load("mnist", folder=tmp_path)
    assert np.array_equal(loaded.train.x[..., 0], mnist[0])
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "train-images-idx3-ubyte.gz" in shown.err


def test_complete_files_are_not_downloaded_again(server, mnist, tmp_path):
    get("mnist", tmp_path, base=server.base)
    server.asked.clear()
    get("mnist", tmp_path, base=server.base + "/")
    assert server.asked == []
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"damaged")
    (tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz").unlink()
    get("mnist", tmp_path, base=server.base)
    assert server.asked == ["t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"]
    assert files.everything_under(tmp_path / "mnist") == server.files


def test_a_set_that_is_complete_in_another_format_is_not_downloaded(server, mnist, tmp_path):
    files.write(tmp_path / "mnist", files.mnist_files(zipped=False)[0])
    get("mnist", tmp_path, base=server.base)
    assert server.asked == []


def failure(name, folder, base) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        get(name, folder, base=base)
    assert "\n" not in str(caught.value)
    return str(caught.value)


FIRST, THIRD = "train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz"


def another(blob: bytes) -> bytes:
    return bytes([blob[0] ^ 1]) + blob[1:]


def way(**headers):
    """An answer with other headers than it should have."""
    return lambda server: server.ways.update({THIRD: lambda handler, blob: server.send(handler, blob, **headers)})


def status(code, **headers):
    def answer(handler, blob):
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def sent(change, **headers):
    """An answer with another body than it should have, of the declared length unless the headers say otherwise."""
    return lambda server: server.ways.update(
        {THIRD: lambda handler, blob: server.send(handler, change(blob), **({"Content_Length": len(blob)} | headers))}
    )


HARMS = {
    "missing": (lambda server: server.files.pop(THIRD), "answered 404: check the address", 1),
    "no content": (lambda server: server.ways.update({THIRD: status(204)}), "answered 204: check the address", 1),
    "another file": (lambda server: server.files.update({THIRD: b"other"}), "a Content-Length of '5' instead of", 1),
    "nothing": (lambda server: server.files.update({THIRD: b""}), "a Content-Length of '0' instead of", 1),
    "another digest": (sent(another), "is not the published file: its md5 is", 1),
    "negative length": (way(Content_Length="-5"), "declares the Content-Length '-5', which is not a number", 1),
    "length a word": (way(Content_Length="many"), "declares the Content-Length 'many', which is not a number", 1),
    "length too long": (way(Content_Length=10**30), "a Content-Length of '1000000000000000000000000000000'", 1),
    "length of 5000 digits": (way(Content_Length="1" * 5000), "a Content-Length of '111", 1),
    "more than declared": (sent(lambda blob: blob[:-1] + b"!" * 99), "is not the published file: its md5 is", 1),
    "more, undeclared": (sent(lambda blob: blob + b"!", Content_Length=None), "it has more than", 1),
    "less than declared": (sent(lambda blob: blob[: len(blob) // 2]), "broke off after", 4),
    "less, undeclared": (sent(lambda blob: blob[:-1], Content_Length=None), "broke off after", 4),
    "busy": (lambda server: server.ways.update({THIRD: status(503)}), "answered 503: try later", 4),
    "too many requests": (lambda server: server.ways.update({THIRD: status(429)}), "answered 429: try later", 4),
    "a redirect elsewhere": (
        lambda server: server.ways.update({THIRD: status(302, Location="file:///etc/passwd")}),
        "cannot be fetched (InvalidSchema",
        1,
    ),
}


@pytest.mark.parametrize("case", HARMS)
def test_a_failed_download_leaves_no_file_and_complete_files_are_kept(case, server, mnist, tmp_path):
    harm, line, tries = HARMS[case]
    whole = dict(server.files)
    harm(server)
    message = failure("mnist", tmp_path, server.base)
    assert message.startswith(f"{server.base}/{THIRD}")
    assert line in message
    assert server.asked.count(THIRD) == tries
    first = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")
    assert files.everything_under(tmp_path) == {f"mnist/{name}": whole[name] for name in first}
    server.files, server.ways = whole, {}
    server.asked.clear()
    get("mnist", tmp_path, base=server.base)
    assert server.asked == [THIRD, "t10k-labels-idx1-ubyte.gz"]


@pytest.mark.parametrize("bad", [status(500), status(429), "cut", "reset"])
def test_a_transient_failure_is_attempted_again(bad, server, mnist, tmp_path):
    def answer(handler, blob):
        if server.asked.count(THIRD) == transfer.ATTEMPTS:
            server.send(handler, blob)
        elif bad == "cut":
            server.send(handler, blob[:9], Content_Length=len(blob))
        elif bad != "reset":
            bad(handler, blob)

    server.ways[THIRD] = answer
    get("mnist", tmp_path, base=server.base)
    assert files.everything_under(tmp_path / "mnist") == server.files


@pytest.mark.parametrize(
    ("asked", "waits"), [(None, [1, 2, 4]), ("3", [3, 3, 4]), ("99999", [60, 60, 60]), ("soon", [1, 2, 4])]
)
def test_the_wait_doubles_after_each_attempt_and_a_server_may_ask_for_more(
    asked, waits, server, mnist, tmp_path, monkeypatch
):
    slept = []
    monkeypatch.setattr(transfer, "FIRST_WAIT_SECONDS", 1.0)
    monkeypatch.setattr(transfer.time, "sleep", slept.append)
    server.ways[FIRST] = status(429, **({"Retry_After": asked} if asked else {}))
    failure("mnist", tmp_path, server.base)
    assert slept == waits


def trickled_body(server, handler, blob):
    server.send(handler, b"", Content_Length=len(blob))
    server.trickle(handler, blob)


def trickled_headers(server, handler, blob):
    server.trickle(handler, b"HTTP/1.0 200 OK\r\nX-Filler: " + bytes([65]) * 50_000)


def trickled_chunk_size(server, handler, blob):
    server.send(handler, b"", Content_Length=None, Transfer_Encoding="chunked")
    server.trickle(handler, b"0" * 50_000)


@pytest.mark.parametrize("slow", [trickled_body, trickled_headers, trickled_chunk_size])
@pytest.mark.parametrize(
    ("limits", "line", "tries"),
    [
        ({"WINDOW_SECONDS": 0.2}, "sent fewer than 10000 bytes per second for 0.2 seconds", 4),
        ({"BASE_SECONDS": 0.3, "EXPECTED_BYTES_PER_SECOND": 1e9}, "took longer than the 0 seconds allowed for", 1),
    ],
)
def test_a_server_that_sends_single_bytes_slowly_is_given_up(
    slow, limits, line, tries, server, mnist, tmp_path, monkeypatch
):
    for name, value in limits.items():
        monkeypatch.setattr(transfer, name, value)
    server.ways[FIRST] = lambda handler, blob: slow(server, handler, blob)
    start = time.monotonic()
    assert line in failure("mnist", tmp_path, server.base)
    assert time.monotonic() - start < 5
    assert server.asked == [FIRST] * tries
    assert files.everything_under(tmp_path) == {}


def test_the_time_limit_grows_with_the_size_of_the_file():
    assert 600 < transfer._allowed_seconds(File(4_542, "")) < 601
    assert 15 * 3600 < transfer._allowed_seconds(File(2_918_471_680, "")) < 17 * 3600


def test_a_response_that_never_ends_is_cut_off(server, mnist, tmp_path):
    def endless(handler, blob):
        server.send(handler, blob, Content_Length=None)
        while not server.closed.is_set():
            handler.wfile.write(bytes(10_000))

    server.ways[FIRST] = endless
    assert f"it has more than {len(server.files[FIRST])} bytes" in failure("mnist", tmp_path, server.base)
    assert files.everything_under(tmp_path) == {}


def test_a_file_declared_as_content_encoding_is_not_decoded(server, mnist, tmp_path):
    server.ways[FIRST] = lambda handler, blob: server.send(handler, blob, Content_Encoding="gzip")
    get("mnist", tmp_path, base=server.base)
    assert files.everything_under(tmp_path / "mnist") == server.files


def test_every_published_address_is_https_and_every_file_has_a_size_and_a_digest():
    for source in filter(None, (entry.source for entry in CATALOGUE.values())):
        assert source.address.startswith("https://")
        for size, md5 in source.files.values():
            assert size > 0
            assert len(bytes.fromhex(md5)) == 16


def test_unfinished_files_of_killed_processes_are_removed_and_locked_ones_are_kept(server, mnist, tmp_path):
    get("mnist", tmp_path, base=server.base)
    left, used = (tmp_path / "mnist" / f"{FIRST}.{letter * 16}.part" for letter in "ab")
    for path in (left, used):
        path.write_bytes(b"some of it")
        os.utime(path, (0, 0))
    with used.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        get("mnist", tmp_path, base=server.base)
        assert not left.exists()
        assert used.exists()
    get("mnist", tmp_path, base=server.base)
    assert files.everything_under(tmp_path / "mnist") == server.files


def test_a_killed_process_leaves_only_an_unfinished_file(server, mnist, tmp_path):
    halted = threading.Event()

    def half(handler, blob):
        server.send(handler, blob[:99], Content_Length=len(blob))
        handler.wfile.flush()
        halted.set()
        server.closed.wait()

    server.ways[FIRST] = half
    file = File(len(server.files[FIRST]), files.md5(server.files[FIRST]))
    code = (
        "from pathlib import Path; from sdebnn.data import transfer; import sys; transfer.CHUNK_BYTES = 9;"
        f"transfer.fetch(sys.argv[1], Path(sys.argv[2]), transfer.File({file.size}, '{file.md5}'), lambda n: None)"
    )
    command = [sys.executable, "-c", code, f"{server.base}/{FIRST}", str(tmp_path / FIRST)]
    with subprocess.Popen(command) as process:
        assert halted.wait(60)
        process.kill()
    left = list(tmp_path.iterdir())
    assert [path.suffix for path in left] == [".part"]
    os.utime(left[0], (0, 0))
    download.remove_parts(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_no_file(server, mnist, tmp_path):
    def interrupt(received):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transfer.fetch(f"{server.base}/{FIRST}", tmp_path / FIRST, CATALOGUE["mnist"].source.files[FIRST], interrupt)
    assert files.everything_under(tmp_path) == {}


def test_two_simultaneous_downloads_of_one_file_leave_it_intact(server, mnist, tmp_path):
    both = threading.Barrier(2)

    def in_step(handler, blob):
        server.send(handler, b"", Content_Length=len(blob))
        for at in range(0, len(blob), 100):
            both.wait(10)
            handler.wfile.write(blob[at : at + 100])

    server.ways = dict.fromkeys(server.files, in_step)
    threads = [threading.Thread(target=get, args=("mnist", tmp_path), kwargs={"base": server.base}) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.asked) == 8
    assert files.everything_under(tmp_path / "mnist") == server.files


def test_anything_but_a_regular_file_is_refused_and_not_replaced(server, mnist, tmp_path):
    (tmp_path / "mnist").mkdir()
    os.mkfifo(tmp_path / "mnist" / FIRST)
    assert f"{FIRST} is a pipe, a socket or a device" in failure("mnist", tmp_path, server.base)
    assert (tmp_path / "mnist" / FIRST).is_fifo()
    assert server.asked == []


def test_downloaded_files_have_the_usual_permissions(server, mnist, tmp_path):
    (tmp_path / "other").write_text("")
    get("mnist", tmp_path, base=server.base)
    assert {path.stat().st_mode for path in (tmp_path / "mnist").iterdir()} == {(tmp_path / "other").stat().st_mode}


def test_a_damaged_file_is_kept_if_the_download_fails(server, mnist, tmp_path):
    server.files[FIRST] = another(server.files[FIRST])
    files.write(tmp_path / "mnist", {"train-images-idx3-ubyte.gz": b"mine"})
    assert "is not the published file" in failure("mnist", tmp_path, server.base)
    assert files.everything_under(tmp_path) == {"mnist/train-images-idx3-ubyte.gz": b"mine"}


def test_an_unreachable_server_is_a_one_line_error(mnist, tmp_path):
    message = failure("mnist", tmp_path, "http://127.0.0.1:9")
    assert message.startswith(f"http://127.0.0.1:9/{FIRST} cannot be reached (ConnectionError): check the network")
    assert files.everything_under(tmp_path) == {}


@pytest.mark.parametrize(
    "base", ["", " ", "no address", "ftx://127.0.0.1", "file:///etc", "http://", "https:/host", "http://[::1", 7]
)
def test_a_malformed_address_is_refused(base, server, mnist, tmp_path, monkeypatch):
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)  # as a user has it
    message = failure("mnist", tmp_path, base)
    assert message.startswith(f"base={base!r} is not a web address: pass one such as 'https://")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_name_is_refused(server):
    assert failure("mnist", "", server.base) == "folder='' must be a path, such as 'data'."


def test_a_full_disk_leaves_no_file(server, mnist, monkeypatch, tmp_path):
    blob = bytes(400_000)
    server.files["train-images-idx3-ubyte.gz"] = blob
    publish(monkeypatch, "mnist", server.files)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))  # a write beyond fails, as on a full disk
    try:
        message = failure("mnist", tmp_path, server.base)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert message == f"{tmp_path / 'mnist'} cannot be written: File too large."
    assert files.everything_under(tmp_path) == {}


def test_a_file_in_place_of_the_folder_is_a_one_line_error(server, mnist, tmp_path):
    (tmp_path / "data").write_text("not a folder")
    assert "data/mnist cannot be written" in failure("mnist", tmp_path / "data", server.base)


def test_without_requests_the_error_says_what_to_install(mnist, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "requests", None)
    assert failure("mnist", tmp_path, None) == "downloads need requests: pip install 'sdebnn[data]'."


def test_unknown_names_are_refused(tmp_path):
    assert "name='imagenet' is unknown: choose one of 'toy'" in failure("imagenet", tmp_path, None)


def test_the_archive_of_cifar10_is_read_without_unpacking(server, monkeypatch, tmp_path):
    server.files, digests, arrays = files.cifar_files("bin", packed=True)
    publish(monkeypatch, "cifar10", server.files, digests=digests)
    get("cifar10", tmp_path, base=server.base)
    assert np.array_equal(load("cifar10", folder=tmp_path).train.x, arrays[0])


@pytest.fixture
def corrupted(server, monkeypatch):
    """A small CIFAR-10-C whose archive also holds what has no place in it."""
    x, y = files.pictures(3, 15, 32, 32, 3)
    made = {"fog.npy": files.npy(x), "labels.npy": files.npy(y)}
    digests = {name: files.md5(blob) for name, blob in made.items()}

    def serve(members):
        blob = files.tar({"../evil.npy": b"!", "/evil.npy": b"!", "CIFAR-10-C/../../evil.npy": b"!", **members})
        server.files = {"CIFAR-10-C.tar": blob}
        publish(monkeypatch, "cifar10c", server.files, digests=digests)

    return {f"CIFAR-10-C/{name}": blob for name, blob in made.items()}, serve


def test_an_archive_is_unpacked_to_the_published_files_and_no_others(server, corrupted, tmp_path):
    made, serve = corrupted
    serve(made)
    get("cifar10c", tmp_path / "data", base=server.base)
    assert files.everything_under(tmp_path) == {f"data/{name}": blob for name, blob in made.items()}
    assert len(load("cifar10c/fog/1", folder=tmp_path / "data", parts=("test",)).test.x) == 3
    server.asked.clear()
    get("cifar10c", tmp_path / "data", base=server.base)
    assert server.asked == []


@pytest.mark.parametrize(
    ("members", "line"),
    [
        ({}, "does not contain CIFAR-10-C/fog.npy"),
        ({"CIFAR-10-C/fog.npy": b"other"}, "fog.npy in "),
    ],
)
def test_an_archive_of_other_files_is_not_unpacked(members, line, server, corrupted, tmp_path):
    _, serve = corrupted
    serve(members)
    assert line in failure("cifar10c", tmp_path, server.base)
    assert list(files.everything_under(tmp_path)) == ["CIFAR-10-C/CIFAR-10-C.tar"]


def test_an_archive_that_another_process_has_unpacked_is_not_an_error(server, corrupted, tmp_path, monkeypatch):
    made, serve = corrupted
    serve(made)
    unpack = download._unpack

    def unpacked_before(*arguments):
        unpack(*arguments)
        unpack(*arguments)

    monkeypatch.setattr(download, "_unpack", unpacked_before)
    get("cifar10c", tmp_path, base=server.base)
    assert files.everything_under(tmp_path) == made
