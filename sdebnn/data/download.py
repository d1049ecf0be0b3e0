"""Download published data sets. A file is kept only if it is complete and has its published digest."""

import errno
import hashlib
import importlib
import tarfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from sdebnn.checks import check_choice, shown
from sdebnn.data import storage
from sdebnn.data.catalogue import CATALOGUE, load
from sdebnn.data.entry import Entry, File, Source
from sdebnn.data.transfer import fetch, partial
from sdebnn.files import check_regular, remove_parts


def get(name: str | Entry, folder: storage.Folder = None, *, base: str | None = None) -> Path:
    """Download the missing or damaged files of a data set, and return the folder that holds them.

        folder = sdebnn.data.get("mnist")
        mnist = sdebnn.data.load("mnist")

    ``name`` is a name of the catalogue or a row of your own; ``folder`` is the folder of all data sets, as in ``load``;
    ``base`` is another address with the same files.
    """
    if not isinstance(name, Entry):
        check_choice("name", name, tuple(CATALOGUE))
    entry = name if isinstance(name, Entry) else CATALOGUE[name]
    if entry.source is None:
        raise ValueError(f"{entry.name} is not published as files: there is nothing to download.")
    root = storage.home(folder)
    address = entry.source.address if base is None else _address(base)
    target = entry.folder(root)
    remove_parts(target)
    if is_here(entry, root):
        return target
    _check_requests()
    with _one_line(target), _progress() as progress:
        target.mkdir(parents=True, exist_ok=True)
        _fetch_all(entry, entry.source, address, root, progress)
    return target


def _fetch_all(entry: Entry, source: Source, address: str, root: Path, progress: Progress) -> None:
    """Download every file that is missing or damaged, and unpack the archives of a source that asks for it."""
    target = entry.folder(root)
    for file, known in source.files.items():
        if not _is_complete(target / file, known):
            bar = progress.add_task(file, total=known.size)
            fetch(f"{address}/{file}", target / file, known, lambda n, bar=bar: progress.update(bar, completed=n))
        if source.unpack:
            try:
                _unpack(target / file, target, entry.digests, progress)
            except FileNotFoundError:  # another process has unpacked and deleted the archive
                if not is_here(entry, root):
                    raise


def is_here(entry: Entry, root: Path) -> bool:
    """Whether a data set can be read from a folder, in any of the formats that its reader accepts."""
    if entry.source is None:
        return entry.built_in or entry.folder(root).is_dir()
    try:
        if entry.source.unpack:
            return all(storage.file_md5(entry.folder(root) / file) == md5 for file, md5 in entry.digests.items())
        load(entry, folder=root)
    except (ValueError, OSError):
        return False
    return True


def _address(base: str) -> str:
    """An address that the user gave, without the slash at its end."""
    try:
        parts = urlsplit(base) if isinstance(base, str) else None
        sound = parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:  # for example a bracket that is not closed
        sound = False
    if not sound:
        raise ValueError(
            f"base={shown(base)} is not a web address: pass one such as 'https://example.org/data', or leave it out."
        )
    return base.rstrip("/")


def _check_requests() -> None:
    try:
        importlib.import_module("requests")
    except ImportError:
        raise ValueError("downloads need requests: pip install 'sdebnn[data]'.") from None


def _is_complete(path: Path, known: File) -> bool:
    """Whether a file exists and is the published one."""
    if not path.exists():
        return False
    check_regular(path)
    return path.stat().st_size == known.size and storage.file_md5(path) == known.md5


def _unpack(archive: Path, folder: Path, digests: Mapping[str, str], progress: Progress) -> None:
    """Unpack the published files of a tar archive, and no others, from the folder in it that is named like ours."""
    wanted = {f"{folder.name}/{file}": md5 for file, md5 in digests.items()}
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
                    raise ValueError(f"{path.name} in {archive} is not the published file: delete {archive}.")
    if wanted:
        raise ValueError(f"{archive} does not contain {min(wanted)}: delete it.")
    archive.unlink(missing_ok=True)


@contextmanager
def _one_line(folder: Path) -> Generator[None]:
    """Turn the errors of writing a folder and of reading an archive into one line."""
    try:
        yield
    except tarfile.TarError as error:
        raise ValueError(f"{folder} holds an archive that cannot be unpacked ({error}): delete it.") from None
    except OSError as error:
        full = " Free some space, or choose another folder." if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise ValueError(f"{folder} cannot be written: {error.strerror or error}.{full}") from None


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True))
