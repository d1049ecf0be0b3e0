"""Fetch published data sets: each file complete and with its published digest, or not at all."""

import errno
import hashlib
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from sdebnn.checks import check_choice, shown
from sdebnn.data import images, published
from sdebnn.data.transfer import File, fetch, partial
from sdebnn.files import check_regular, remove_parts


class Source(NamedTuple):
    """Where a set is published: its address, the files there, and the folder that they go to."""

    address: str
    files: dict[str, File]
    folder: str


SOURCES = {
    "mnist": Source(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        {
            "train-images-idx3-ubyte.gz": File(9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            "train-labels-idx1-ubyte.gz": File(28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
            "t10k-images-idx3-ubyte.gz": File(1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
            "t10k-labels-idx1-ubyte.gz": File(4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
        },
        "mnist",
    ),
    "fashion-mnist": Source(
        # The publisher's repository at one commit: its address in S3 is a website endpoint, which has no https.
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion",
        {
            "train-images-idx3-ubyte.gz": File(26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            "train-labels-idx1-ubyte.gz": File(29_515, "25c81989df183df01b3e8a0aad5dffbe"),
            "t10k-images-idx3-ubyte.gz": File(4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
            "t10k-labels-idx1-ubyte.gz": File(5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
        },
        "fashion-mnist",
    ),
    "cifar10": Source(
        "https://www.cs.toronto.edu/~kriz",
        {"cifar-10-binary.tar.gz": File(170_052_171, "c32a1d4ab5d03f1284b67883e8d87530")},
        "cifar10",
    ),
    "cifar10c": Source(
        "https://zenodo.org/records/2535967/files",
        {"CIFAR-10-C.tar": File(2_918_471_680, "56bf5dcef84df0e2308c6dcbcbbd8499")},
        "CIFAR-10-C",
    ),
}


def get(name: str, folder: str | os.PathLike[str] | None = None, *, base: str | None = None) -> Path:
    """Fetch what is missing or damaged of a set, and return the folder that it lies in.

    ``folder`` is as for the readers; ``base`` is another address that has the same files.
    """
    check_choice("name", name, tuple(SOURCES))
    source, root = SOURCES[name], published.home(folder)
    address = source.address if base is None else _address(base)
    target = root / source.folder
    remove_parts(target)
    if is_here(name, root):
        return target
    _check_requests()
    with _one_line(target), _progress() as progress:
        target.mkdir(parents=True, exist_ok=True)
        for file, known in source.files.items():
            if not _is_complete(target / file, known):
                bar = progress.add_task(file, total=known.size)
                fetch(f"{address}/{file}", target / file, known, lambda n, bar=bar: progress.update(bar, completed=n))
            if name == "cifar10c":  # the others are read as they come
                try:
                    _unpack(target / file, target, progress)
                except FileNotFoundError:  # another process has unpacked it and removed the archive
                    if not is_here(name, root):
                        raise
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


def _address(base: str) -> str:
    """An address of the user's own, without a slash at its end."""
    try:
        parts = urlsplit(base) if isinstance(base, str) else None
        sound = parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:  # such as a bracket that is not closed
        sound = False
    if not sound:
        raise ValueError(
            f"base={shown(base)} is not an address: pass one such as 'https://example.org/mnist', or leave it out."
        )
    return base.rstrip("/")


def _check_requests() -> None:
    try:
        import requests  # noqa: F401
    except ImportError:
        raise ValueError("downloads need requests: pip install 'sdebnn[data]'.") from None


def _is_complete(path: Path, known: File) -> bool:
    """Whether a file is there as it was published."""
    try:
        check_regular(path)
    except FileNotFoundError:
        return False
    if path.stat().st_size != known.size:
        return False
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest() == known.md5


def _unpack(archive: Path, folder: Path, progress: Progress) -> None:
    """Take the published files, and no other, out of a tar archive, then delete it."""
    wanted = {f"CIFAR-10-C/{file}": md5 for file, md5 in published.DIGESTS["cifar10c"].items()}
    task = progress.add_task(f"unpacking {archive.name}", total=archive.stat().st_size)
    with tarfile.open(archive, "r:") as tar:
        for member in tar:
            stream = tar.extractfile(member) if member.name in wanted and member.isreg() else None
            if stream is None:
                continue
            path, digest = folder / Path(member.name).name, hashlib.md5(usedforsecurity=False)
            with partial(path) as out:
                while chunk := stream.read(2**20):
                    digest.update(chunk)
                    out.write(chunk)
                    progress.update(task, advance=len(chunk))
                if digest.hexdigest() != wanted.pop(member.name):
                    raise ValueError(f"{archive} holds another {path.name} than the published one: delete {archive}.")
    if wanted:
        raise ValueError(f"{archive} lacks {min(wanted)}: delete it.")
    archive.unlink(missing_ok=True)


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
