"""Compiled programs kept in the user's cache folder, so that a command does not compile again what it compiled before.

Only on processors: a program for a GPU that was read back from such a folder failed once in its first step. The folder
is named after the processor, because its programs may use instructions that another one lacks.
"""

import contextlib
import functools
import hashlib
import os
import platform
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import jax

from sdebnn.data.storage import user_cache
from sdebnn.devices import platform as platform_in_use

P = ParamSpec("P")
R = TypeVar("R")
MIN_SECONDS = 0.0  # of a compilation that is worth a file: hundreds of small ones take as long as the large
MAX_BYTES = 2**29  # of the folder, before the oldest files are removed


def with_kept_programs(command: Callable[P, R]) -> Callable[P, R]:
    """The command, with programs kept unless JAX was told where, or not, to keep them."""

    @functools.wraps(command)
    def kept(*given: P.args, **named: P.kwargs) -> R:
        if "JAX_COMPILATION_CACHE_DIR" not in os.environ and jax.config.jax_compilation_cache_dir is None:  # pyright: ignore[reportAttributeAccessIssue]
            with contextlib.suppress(OSError):  # a home that cannot be written to
                _keep_programs()
        return command(*given, **named)

    return kept


def _keep_programs() -> None:
    if platform_in_use() != "cpu":
        return
    folder = user_cache() / "sdebnn-programs" / _processor()
    folder.mkdir(parents=True, exist_ok=True)
    _remove_oldest(folder)
    # A file that another process was killed while writing cannot be read; the program is then compiled again.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_SECONDS)


def _processor() -> str:
    """A name for processors with the same instructions."""
    words = platform.machine() + platform.processor()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        words += next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(words.encode()).hexdigest()[:12]


def _remove_oldest(folder: Path) -> None:
    """Remove the files that were written first, until the folder is small enough."""
    files = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process may remove it, too
            files.append((path.stat().st_mtime, path.stat().st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= MAX_BYTES:
            break
        path.unlink(missing_ok=True)
        total -= size
