"""Atomic writing of files, and locks on folders.

A file is written under a unique temporary name in the same folder and then renamed, so that its name refers to the old
contents or the new, never to a part of them. A temporary file is locked while it is written; one that is not locked was
left by a process that was killed, and is removed. ``FolderLock`` keeps two processes from writing to one folder.
"""

import contextlib
import errno
import fcntl
import io
import os
import re
import secrets
import stat
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

PART = ".part"  # suffix of unfinished files
LOCK = ".lock"
STALE_SECONDS = 60.0  # age at which an unfinished file that is not locked is removed


def check_regular(path: Path) -> None:
    """Refuse anything but a regular file: opening a pipe blocks, and reading a device may never end."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, a socket or a device"
        raise ValueError(f"{path} is {kind}: pass a regular file.")


def contents(path: Path, max_bytes: int | None = None) -> bytes:
    """The bytes of a regular file; a file of more than ``max_bytes`` is refused without being read."""
    check_regular(path)
    size = path.stat().st_size
    if max_bytes is not None and size > max_bytes:
        raise ValueError(f"{path} has {size} bytes, more than the {max_bytes} of a valid file: it is damaged.")
    return path.read_bytes()


def write_whole(path: Path, data: bytes) -> None:
    """Write a file atomically: even after a crash, its name refers to the old contents or the new."""
    remove_parts(path.parent, path.name)
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}{PART}")
    try:
        with open(part, "xb") as file:
            with contextlib.suppress(OSError):  # some network drives have no locks
                fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed, so that no process removes it as abandoned
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # so that the new name survives a power cut
    finally:
        os.close(folder)


def remove_parts(folder: Path, name: str | None = None) -> None:
    """Remove the unfinished files (of one name, or of all) that processes left in a folder when they ended."""
    pattern = re.compile(rf"{'.+' if name is None else re.escape(name)}\.[0-9a-f]{{16}}{re.escape(PART)}")
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if pattern.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_if_abandoned(Path(entry.path))


def _remove_if_abandoned(part: Path) -> None:
    # A writer locks its file shortly after it has created it, so that recent files are kept.
    if time.time() - part.stat().st_mtime < STALE_SECONDS:
        return
    with open(part, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its writer is running
        part.unlink()


def save_array(path: Path, array: ArrayLike) -> None:
    """Write an array as a .npy file, atomically."""
    file = io.BytesIO()
    np.save(file, np.asarray(array))
    write_whole(path, file.getvalue())


def made_folder(folder: Path) -> Path:
    """The folder, made if it was not there; an error in words if it cannot be made or written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"{folder} cannot be made or written to ({error.strerror}): choose another folder.") from None
    return folder


class FolderLock:
    """A lock on a folder: a second process that asks for it gets an error.

    Use it as a context manager around everything that reads or writes the folder. The lock is an open file in the
    folder, so that it is released when the process ends, even if it is killed.
    """

    def __init__(self, folder: Path):
        self.folder, self._file = Path(folder), None

    def __enter__(self) -> "FolderLock":
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"{self.folder} is a file: choose a folder.")
        self.is_new = not self.folder.exists()
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    def hold(self) -> None:
        """Take the lock again if the folder was deleted meanwhile."""
        if not self.is_held:
            try:
                self._take()
            except ValueError:
                message = "the folder was deleted, and another process uses one of the same name"
                raise OSError(errno.EBUSY, message) from None

    def abandon(self) -> None:
        """Remove the folder if the lock created it and nothing was written to it."""
        with contextlib.suppress(OSError):
            if self.is_held and self.is_new and set(os.listdir(self.folder)) <= {LOCK}:
                (self.folder / LOCK).unlink(missing_ok=True)
                self.folder.rmdir()

    def _take(self) -> None:
        while not self.is_held:
            self._release()
            made_folder(self.folder)
            self._file = open(self.folder / LOCK, "a+")  # noqa: SIM115  (open for as long as the lock is held)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._release()
                raise ValueError(
                    f"{self.folder} is in use by another process: wait for it, or choose another folder."
                ) from None
            except OSError as error:
                self._release()
                raise ValueError(
                    f"{self.folder} cannot be locked ({error.strerror}): choose a folder on a file system with locks."
                ) from None

    @property
    def is_held(self) -> bool:
        """Whether the locked file is still the one that is in the folder."""
        if self._file is None:
            return False
        try:
            there = os.stat(self.folder / LOCK)
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(self._file.fileno()))

    def _release(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None
