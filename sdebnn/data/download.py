"""Fetch published data sets: each file whole and with its published digest, or not at all."""

import errno
import hashlib
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from sdebnn.checks import check_choice
from sdebnn.data import images, published


class Source(NamedTuple):
    """Where a set is published: its address, the files there by their md5, and the folder that they go to."""

    address: str
    files: dict[str, str]
    folder: str


SOURCES = {
    "mnist": Source(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
        "mnist",
    ),
    "fashion-mnist": Source(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
        "fashion-mnist",
    ),
    "cifar10": Source(
        "https://www.cs.toronto.edu/~kriz",
        {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
        "cifar10",
    ),
    "cifar10c": Source(
        "https://zenodo.org/records/2535967/files",
        {"CIFAR-10-C.tar": "56bf5dcef84df0e2308c6dcbcbbd8499"},
        "CIFAR-10-C",
    ),
}


def get(name: str, folder: str | os.PathLike[str] | None = None, *, base: str | None = None) -> Path:
    """Fetch what is missing or damaged of a set, and return the folder that it lies in.

    ``folder`` is as for the readers; ``base`` is another address that has the same files.
    """
    check_choice("name", name, tuple(SOURCES))
    source, root = SOURCES[name], published.home(folder)
    target = root / source.folder
    if is_here(name, root):
        return target
    with _one_line(target), _progress() as progress:
        for file, md5 in source.files.items():
            _fetch(f"{(base or source.address).rstrip('/')}/{file}", target / file, md5, progress)
            if name == "cifar10c":  # the others are read as they come
                _unpack(target / file, target, progress)
    return target


def is_here(name: str, root: Path) -> bool:
    """Whether the set is there, in any form that its reader accepts."""
    readers = {"mnist": images.mnist, "fashion-mnist": images.fashion_mnist, "cifar10": images.cifar10}
    try:
        if name == "cifar10c":
            for file, md5 in published.DIGESTS[name].items():
                images.saved(root / SOURCES[name].folder / file, md5)
        else:
            readers[name](root)
    except (ValueError, OSError):
        return False
    return True


def _fetch(url: str, path: Path, md5: str, progress: Progress) -> None:
    """A file from an address, unless it is there and whole. It takes its name when its digest is known to be right."""
    try:
        import pooch
        import requests  # which pooch depends on
    except ImportError:
        raise ValueError("downloads need pooch: pip install 'sdebnn[data]'.") from None

    def stream(url: str, output: Any, _: Any) -> None:
        as_it_is = {"Accept-Encoding": "identity"}  # unpacked on the way, a .gz would have another digest
        with requests.get(url, stream=True, timeout=30, headers=as_it_is) as response, open(output, "wb") as out:
            response.raise_for_status()
            task = progress.add_task(path.name, total=int(response.headers.get("Content-Length", 0)) or None)
            for chunk in response.iter_content(2**17):
                out.write(chunk)
                progress.update(task, advance=len(chunk))

    downloader: Any = stream
    log = pooch.get_logger()
    level = log.level
    log.setLevel("WARNING")  # the bar says it
    try:
        pooch.retrieve(url, f"md5:{md5}", path.name, path.parent, downloader=downloader)
    except requests.HTTPError as error:
        answer = error.response.status_code if error.response is not None else "an error"
        raise ValueError(f"{url} answered {answer}: try later, or pass another address as base.") from None
    except requests.exceptions.ChunkedEncodingError:
        raise ValueError(f"{url} broke off: run it again, files that are whole are kept.") from None
    except requests.RequestException as error:
        raise ValueError(f"{url} cannot be reached ({type(error).__name__}): check the network.") from None
    except ValueError:  # of all that pooch raises so, only a digest that differs is left
        raise ValueError(f"{url} is not the published file, its md5 is not {md5}: nothing of it was kept.") from None
    finally:
        log.setLevel(level)


def _unpack(archive: Path, folder: Path, progress: Progress) -> None:
    """Take the published files, and no other, out of a tar archive, then delete it."""
    wanted = {f"CIFAR-10-C/{file}": md5 for file, md5 in published.DIGESTS["cifar10c"].items()}
    task = progress.add_task(f"unpacking {archive.name}", total=archive.stat().st_size)
    with tarfile.open(archive, "r:") as tar:
        for member in tar:
            stream = tar.extractfile(member) if member.name in wanted and member.isreg() else None
            if stream is None:
                continue
            path = folder / Path(member.name).name
            part, digest = path.with_name(path.name + ".part"), hashlib.md5(usedforsecurity=False)
            try:
                with part.open("wb") as out:
                    while chunk := stream.read(2**20):
                        digest.update(chunk)
                        out.write(chunk)
                        progress.update(task, advance=len(chunk))
                if digest.hexdigest() != wanted.pop(member.name):
                    raise ValueError(f"{archive} holds another {path.name} than the published one.")
                os.replace(part, path)
            finally:
                part.unlink(missing_ok=True)
    if wanted:
        raise ValueError(f"{archive} lacks {min(wanted)}.")
    archive.unlink()


@contextmanager
def _one_line(folder: Path) -> Iterator[None]:
    """Say in one line that a folder cannot be written, or an archive not be read."""
    try:
        yield
    except tarfile.TarError as error:
        raise ValueError(f"{folder} holds an archive that cannot be unpacked: {error}. Delete it.") from None
    except OSError as error:
        full = " Free some space, or choose another folder." if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise ValueError(f"{folder} cannot be written: {error.strerror or error}.{full}") from None


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True))
