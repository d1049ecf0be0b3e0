"""Where data sets are stored on this machine, and whether a file is the one that was published."""

import hashlib
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from sdebnn.checks import shown
from sdebnn.files import check_regular

Folder = str | os.PathLike[str] | None


def home(folder: Folder = None) -> Path:
    """The folder of all data sets: ``folder``, else the environment variable SDEBNN_DATA, else the user's cache.

        print(sdebnn.data.home())
        print(sdebnn.data.home("~/data"))

    Data sets of the catalogue are read from there, and downloaded to there.
    """
    if folder is not None:
        if not isinstance(folder, str | os.PathLike) or folder == "":
            raise ValueError(f"folder={shown(folder)} must be a path, such as 'data'.")
        return Path(folder).expanduser()
    if given := os.environ.get("SDEBNN_DATA"):
        return Path(given).expanduser()
    return user_cache() / "sdebnn"


def user_cache() -> Path:
    """The folder in which programs of this user keep what can be made or fetched again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def file_md5(path: Path) -> str:
    """The md5 of a regular file, which is read in blocks."""
    check_regular(path)
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def check_digest(where: str, blob: bytes | memoryview, md5: str) -> None:
    """Refuse contents that differ from the published ones."""
    found = hashlib.md5(blob, usedforsecurity=False).hexdigest()
    if found != md5:
        raise ValueError(f"{where} is damaged or not the published file: its md5 is {found}, it should be {md5}.")


@contextmanager
def fetch_hint(name: str) -> Generator[None]:
    """Add to an error about a file of a published data set the command that fetches it."""
    try:
        yield
    except FileNotFoundError as error:
        raise ValueError(f"{error} Run: sdebnn data get {name}") from None
    except ValueError as error:
        raise ValueError(f"{error} Delete it and run: sdebnn data get {name}") from None
