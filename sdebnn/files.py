"""Files that are written whole or not at all, by any number of writers at once.

A file is written under a temporary name of its own in the same folder, then renamed: its name stands for the old
content or the new, never for a piece. A temporary file is locked while it is written, so that one left behind by a
process that was killed can be told from one in use, and removed. ``FolderLock`` keeps two processes from writing to one
folder at once.
"""

import contextlib
import errno
import fcntl
import io
import os
import re
import secrets
import stat
import time
from pathlib import Path
from typing import Any

import numpy as np

PART = ".part"  # how the name of an unfinished file ends
LOCK = ".lock"
STALE = 60.0  # seconds after which an unfinished file that nobody holds is removed


def check_regular(path: Path) -> None:
    """Refuse what is there but is not a regular file: opening a pipe blocks, and reading a device may never end."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, a socket or a device"
        raise ValueError(f"{path} is {kind}: pass a regular file.")


def contents(path: Path, most: int | None = None) -> bytes:
    """The bytes of a regular file, refused unread if there are more than ``most``."""
    check_regular(path)
    size = path.stat().st_size
    if most is not None and size > most:
        raise ValueError(f"{path} has {size} bytes, more than the {most} that such a file can have: it is damaged.")
    return path.read_bytes()


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that, whatever happens, its name stands for the old content or the new, never for a piece."""
    remove_parts(path.parent, path.name)
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}{PART}")
    try:
        with open(part, "xb") as file:
            with contextlib.suppress(OSError):  # some network drives have no locks
                fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed: no one takes it for a file left behind
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
        os.fsync(folder)  # the new name, too, outlives a power cut
    finally:
        os.close(folder)


def remove_parts(folder: Path, name: str | None = None) -> None:
    """Remove the unfinished files, of one name or of all, that processes which are gone have left in a folder."""
    pattern = re.compile(rf"{'.+' if name is None else re.escape(name)}\.[0-9a-f]{{16}}{re.escape(PART)}")
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if pattern.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_if_left(Path(entry.path))


def _remove_if_left(part: Path) -> None:
    # A writer creates its file a moment before it locks it: a young one is left alone.
    if time.time() - part.stat().st_mtime < STALE:
        return
    with open(part, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its writer lives
        part.unlink()


def save_array(path: Path, array: Any) -> None:
    """Write an array as a .npy file, whole or not at all."""
    file = io.BytesIO()
    np.save(file, np.asarray(array))
    write_whole(path, file.getvalue())


class FolderLock:
    """A folder that one process at a time may write to; a second one is refused at once.

    Use it as a context, around everything that reads or writes the folder. The lock is a file in it, held open: it ends
    with the process, however that ends.
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
        """Make sure that the folder is there and ours: someone may have deleted it since."""
        if not self.is_held:
            try:
                self._take()
            except ValueError:
                words = "the folder was deleted, and another process uses one of the same name"
                raise OSError(errno.EBUSY, words) from None

    def abandon(self) -> None:
        """Remove a folder that the lock made and that nothing was written to."""
        with contextlib.suppress(OSError):
            if self.is_held and self.is_new and set(os.listdir(self.folder)) <= {LOCK}:
                (self.folder / LOCK).unlink(missing_ok=True)
                self.folder.rmdir()

    def _take(self) -> None:
        while not self.is_held:
            self._release()
            self.folder.mkdir(parents=True, exist_ok=True)
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
                    f"{self.folder} cannot be locked ({error.strerror}): choose a folder on a drive that has locks."
                ) from None

    @property
    def is_held(self) -> bool:
        """Whether the folder is locked: the file that is locked is the one that others would find."""
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
