"""Downloads, from a server on this machine: whole and right, or one line and nothing on disk."""

import resource
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import files
import numpy as np
import pytest

from sdebnn.data import download, get, images, published

pytest.importorskip("pooch")


class Server:
    """Serves files from memory, and misbehaves as it is told."""

    def __init__(self):
        self.files, self.asked, self.cut = {}, [], set()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.lstrip("/")
                owner.asked.append(name)
                blob = owner.files.get(name)
                if blob is None:
                    return self.send_error(404)
                self.send_response(200)
                self.send_header("Content-Length", str(len(blob)))
                self.end_headers()
                self.wfile.write(blob[: len(blob) // 2] if name in owner.cut else blob)
                return None

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    made = Server()
    yield made
    made.close()


@pytest.fixture
def mnist(server, monkeypatch):
    """A small MNIST on the server, its digests the published ones."""
    server.files, digests, arrays = files.mnist_files()
    monkeypatch.setitem(published.DIGESTS, "mnist", digests)
    sources = {name: files.md5(blob) for name, blob in server.files.items()}
    monkeypatch.setitem(download.SOURCES, "mnist", download.SOURCES["mnist"]._replace(files=sources))
    return arrays


def test_what_was_fetched_is_what_was_published(server, mnist, tmp_path, capfd):
    assert get("mnist", tmp_path, base=server.base) == tmp_path / "mnist"
    assert files.everything_under(tmp_path / "mnist") == server.files
    loaded = images.mnist(tmp_path)
    assert np.array_equal(loaded.train.x[..., 0], mnist[0])
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "train-images-idx3-ubyte.gz" in shown.err


def test_what_is_there_and_whole_is_not_fetched_again(server, mnist, tmp_path):
    get("mnist", tmp_path, base=server.base)
    server.asked.clear()
    get("mnist", tmp_path, base=server.base + "/")
    assert server.asked == []
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"damaged")
    (tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz").unlink()
    get("mnist", tmp_path, base=server.base)
    assert server.asked == ["t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"]
    assert files.everything_under(tmp_path / "mnist") == server.files


def test_a_set_that_is_whole_in_another_form_is_not_fetched(server, mnist, tmp_path):
    files.write(tmp_path / "mnist", files.mnist_files(zipped=False)[0])
    get("mnist", tmp_path, base=server.base)
    assert server.asked == []


def failure(name, folder, base) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        get(name, folder, base=base)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("harm", "line"),
    [
        (lambda server: server.files.pop("t10k-images-idx3-ubyte.gz"), "answered 404"),
        (lambda server: server.files.update({"t10k-images-idx3-ubyte.gz": b"other"}), "is not the published file"),
        (lambda server: server.files.update({"t10k-images-idx3-ubyte.gz": b""}), "is not the published file"),
        (lambda server: server.cut.add("t10k-images-idx3-ubyte.gz"), "broke off: run it again"),
    ],
)
def test_a_file_that_does_not_come_whole_leaves_nothing_and_the_rest_is_kept(harm, line, server, mnist, tmp_path):
    whole = dict(server.files)
    harm(server)
    message = failure("mnist", tmp_path, server.base)
    assert message.startswith(f"{server.base}/t10k-images-idx3-ubyte.gz")
    assert line in message
    first = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")
    assert files.everything_under(tmp_path) == {f"mnist/{name}": whole[name] for name in first}
    server.files, server.cut = whole, set()
    server.asked.clear()
    get("mnist", tmp_path, base=server.base)
    assert server.asked == ["t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"]


def test_a_damaged_file_is_kept_when_no_better_one_comes(server, mnist, tmp_path):
    server.files["train-images-idx3-ubyte.gz"] = b"other"
    files.write(tmp_path / "mnist", {"train-images-idx3-ubyte.gz": b"mine"})
    assert "is not the published file" in failure("mnist", tmp_path, server.base)
    assert files.everything_under(tmp_path) == {"mnist/train-images-idx3-ubyte.gz": b"mine"}


@pytest.mark.parametrize("base", ["http://127.0.0.1:9", "no address", "ftx://127.0.0.1"])
def test_a_server_that_is_not_there_is_one_line(base, mnist, tmp_path):
    message = failure("mnist", tmp_path, base)
    assert message.startswith(f"{base}/train-images-idx3-ubyte.gz cannot be")
    assert files.everything_under(tmp_path) == {}


def test_a_disk_that_takes_no_more_leaves_nothing(server, mnist, monkeypatch, tmp_path):
    blob = bytes(400_000)
    server.files["train-images-idx3-ubyte.gz"] = blob
    known = download.SOURCES["mnist"]
    changed = known._replace(files={**known.files, "train-images-idx3-ubyte.gz": files.md5(blob)})
    monkeypatch.setitem(download.SOURCES, "mnist", changed)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))  # a write beyond fails, as on a full disk
    try:
        message = failure("mnist", tmp_path, server.base)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert message == f"{tmp_path / 'mnist'} cannot be written: File too large."
    assert files.everything_under(tmp_path) == {}


def test_a_folder_that_is_a_file_is_one_line(server, mnist, tmp_path):
    (tmp_path / "data").write_text("not a folder")
    assert "data/mnist cannot be written" in failure("mnist", tmp_path / "data", server.base)


def test_without_pooch_the_line_says_what_to_install(mnist, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pooch", None)
    assert failure("mnist", tmp_path, None) == "downloads need pooch: pip install 'sdebnn[data]'."


def test_unknown_names_are_refused(tmp_path):
    assert "name='imagenet' is unknown: choose one of 'mnist'" in failure("imagenet", tmp_path, None)


def test_the_archive_of_cifar10_is_read_as_it_comes(server, monkeypatch, tmp_path):
    server.files, digests, arrays = files.cifar_files("bin", packed=True)
    monkeypatch.setitem(published.DIGESTS, "cifar10", digests)
    sources = {name: files.md5(blob) for name, blob in server.files.items()}
    monkeypatch.setitem(download.SOURCES, "cifar10", download.SOURCES["cifar10"]._replace(files=sources))
    get("cifar10", tmp_path, base=server.base)
    assert np.array_equal(images.cifar10(tmp_path).train.x, arrays[0])


@pytest.fixture
def corrupted(server, monkeypatch):
    """A small CIFAR-10-C whose archive also holds what has no place in it."""
    x, y = files.pictures(3, 15, 32, 32, 3)
    made = {"fog.npy": files.npy(x), "labels.npy": files.npy(y)}
    monkeypatch.setitem(published.DIGESTS, "cifar10c", {name: files.md5(blob) for name, blob in made.items()})

    def serve(members):
        blob = files.tar({"../evil.npy": b"!", "/evil.npy": b"!", "CIFAR-10-C/../../evil.npy": b"!", **members})
        server.files = {"CIFAR-10-C.tar": blob}
        sources = {"CIFAR-10-C.tar": files.md5(blob)}
        monkeypatch.setitem(download.SOURCES, "cifar10c", download.SOURCES["cifar10c"]._replace(files=sources))

    return {f"CIFAR-10-C/{name}": blob for name, blob in made.items()}, serve


def test_an_archive_is_unpacked_to_the_published_files_and_no_others(server, corrupted, tmp_path):
    made, serve = corrupted
    serve(made)
    get("cifar10c", tmp_path / "data", base=server.base)
    assert files.everything_under(tmp_path) == {f"data/{name}": blob for name, blob in made.items()}
    assert images.cifar10c("fog", 1, tmp_path / "data").x.shape == (3, 32, 32, 3)
    server.asked.clear()
    get("cifar10c", tmp_path / "data", base=server.base)
    assert server.asked == []


@pytest.mark.parametrize(
    ("members", "line"),
    [
        ({}, "lacks CIFAR-10-C/fog.npy"),
        ({"CIFAR-10-C/fog.npy": b"other"}, "holds another fog.npy than the published one"),
    ],
)
def test_an_archive_of_other_files_leaves_none_of_them(members, line, server, corrupted, tmp_path):
    _, serve = corrupted
    serve(members)
    assert line in failure("cifar10c", tmp_path, server.base)
    assert list(files.everything_under(tmp_path)) == ["CIFAR-10-C/CIFAR-10-C.tar"]
