"""Saving the checkpoints of a run, and resuming from the last one if the run is the same.

A run is the same if its settings, its data (by digest), the version of sdebnn, and all that the model, the likelihood,
the optimiser and the augmentation are made of are the same.
"""

import errno
import sys
import warnings
from functools import cache
from importlib.metadata import version
from typing import Any

import jax
from jaxtyping import PyTree

from sdebnn import hosts
from sdebnn.fingerprints import difference
from sdebnn.records import check_same_settings
from sdebnn.train.checkpoints import RunFolder


class Checkpointer:
    """Writes the checkpoints of one run to its folder, and finds the one to resume from."""

    def __init__(self, folder: RunFolder, settings: dict[str, Any], configuration: dict[str, dict[str, str]]):
        self.folder, self.settings, self.configuration = folder, settings, configuration

    def resumable(self, resume: bool, data: dict[str, tuple[Any, Any] | None]) -> dict[str, Any] | None:
        """What was saved with the last checkpoint, or None if there is none; another run is refused.

        Digests of ``data`` become part of the settings. All rows are read for them, so everything else is compared
        first.
        """
        steps = self.folder.steps()
        if steps and not resume:
            raise ValueError(
                f"{self.folder.path} holds a run already, at step {steps[-1]}: resume it (resume=True, --resume), or "
                "choose another folder."
            )
        saved = self.folder.facts(steps[-1]) if steps else None
        if saved is not None:
            self._check_same(saved)
        self.settings.update(self.folder.digests(**data))
        if saved is not None:
            self._check_same(saved)
            self._warn_of_versions(saved["versions"])
        self.folder.keep_digests()
        return saved

    def save(self, tree: PyTree, facts: dict[str, Any], *, final: bool) -> None:
        """Write a checkpoint. If that fails, warn and let training continue, unless this is the final save."""
        step = facts["step"]
        facts = {
            **facts, "settings": self.settings, "configuration": self.configuration, "versions": _versions()
        }  # fmt: skip
        try:
            self.folder.save(step, tree, facts)
        except OSError as error:
            steps = self.folder.steps()
            kept = f"the checkpoint of step {steps[-1]} is intact" if steps else "there is no earlier checkpoint"
            words = f"could not save step {step} in {self.folder.checkpoints}: {error.strerror}; {kept}"
            if final:
                full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
                raise OSError(f"{words}. {'Free some space' if full else 'Fix this'}, then resume.") from None
            warnings.warn(f"{words}, and training continues.", stacklevel=5)

    def tree_at(self, step: int, like: PyTree) -> PyTree:
        """The arrays of a checkpoint, which the first process reads for all."""
        found = like

        def read() -> None:
            nonlocal found
            found = self.folder.load(step, like)[0]

        hosts.from_first(read)
        return hosts.tree_from_first(found)

    def last_good(self, like: PyTree) -> tuple[int, PyTree] | None:
        """The last checkpoint with a good ELBO: its step and its arrays; None if there is none."""
        folder = self.folder
        step = hosts.from_first(lambda: next((s for s in reversed(folder.steps()) if folder.is_good(s)), None))
        return None if step is None else (step, self.tree_at(step, like))

    def _check_same(self, saved: dict[str, Any]) -> None:
        """Refuse to resume a run that differs from this one, and name the difference."""
        versions, saved_versions = _versions(), saved["versions"]
        before: dict[str, Any] = {**saved["settings"], "sdebnn": saved_versions.get("sdebnn")}
        now: dict[str, Any] = {**self.settings, "sdebnn": versions["sdebnn"]}
        same_python = saved_versions.get("python") == versions["python"]  # a function's code differs between versions
        for name, parts in self.configuration.items():
            other = difference(saved["configuration"].get(name) or {}, parts, code=same_python)
            if other is not None:
                where = f"{name}.{other[0]}".rstrip(".")
                before[where], now[where] = other[1:]
        check_same_settings(self.folder.path, before, now, "use the same, or choose another folder")

    def _warn_of_versions(self, before: dict[str, str]) -> None:
        now = _versions()
        for name in ("jax", "optax", "equinox", "diffrax", "device"):
            if before.get(name) != now[name]:
                warnings.warn(
                    f"{self.folder.path} was trained with {name}={before.get(name)} and resumes with {now[name]}: its "
                    "numbers may differ in the last digits from those of an uninterrupted run.",
                    stacklevel=5,
                )


@cache  # reading them takes longer than writing a small checkpoint
def _versions() -> dict[str, str]:
    from sdebnn import __version__

    return {
        "sdebnn": __version__, **{name: version(name) for name in ("jax", "optax", "equinox", "diffrax", "numpy")},
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}", "device": jax.devices()[0].device_kind,
    }  # fmt: skip
