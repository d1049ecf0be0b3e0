"""The folder of a run: its checkpoints, of which the last few are kept, and its metrics.

checkpoints/step-00001200.safetensors, .json    parameters, optimiser, EMA, best, history, step, key
metrics.jsonl                                   one line of JSON for each call of the training program
data-digests.json                               digests of the data, by file, so that large files are read only once
"""

import contextlib
import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from sdebnn import hosts
from sdebnn.files import PART, FolderLock, contents, remove_parts, write_whole
from sdebnn.fingerprints import kept_digest
from sdebnn.records import (
    OBJECT,
    YES_OR_NO,
    Rules,
    broken,
    check_finite,
    load_tree,
    named,
    number,
    one_of,
    or_none,
    read_record,
    record_bytes,
    save_tree,
    whole,
)

CHECKPOINT_KIND = "training checkpoint, version 3"
DIGESTS_KIND = "digests of data, version 1"
DIGESTS_FILE = "data-digests.json"
CHECKPOINT_RULES: Rules = {
    "step": whole(),
    "seconds": number(0.0),
    "stopped": YES_OR_NO,
    "waited": whole(),
    "best_value": or_none(number()),
    "best_step": whole(),
    "answer": one_of("parameters", "ema", "best"),
    "good": YES_OR_NO,
    "settings": OBJECT,
    "configuration": OBJECT,
    "versions": OBJECT,
}


class RunFolder:
    """The folder of a run. Use it as a context manager: inside, it is locked, so that only one run writes to it.

    Of several processes that train one model, only the first one locks the folder and writes to it.

    If the folder is deleted meanwhile, the next save creates it again, with the files given to ``write``.
    """

    def __init__(self, path: Path, *, keep: int = 2, tensorboard: bool = False):
        self.path, self.keep = Path(path), keep
        self.checkpoints = self.path / "checkpoints"
        self.metrics = self.path / "metrics.jsonl"
        self.tensorboard = tensorboard
        self._lock = FolderLock(self.path)
        self._remembered: dict[str, bytes] = {}  # files to write again if the folder is deleted
        self._new: list[str] = []  # those of them that did not exist before
        self._board: Any = None
        if tensorboard and importlib.util.find_spec("tensorboardX") is None:
            raise ValueError("tensorboard=True needs tensorboardX: pip install 'sdebnn[logging]'.")

    def __enter__(self) -> "RunFolder":
        hosts.from_first(self._take)
        return self

    def _take(self) -> None:
        self._lock.__enter__()
        remove_parts(self.path)

    def __exit__(self, *_: object) -> None:
        if self._board is not None:
            self._board.close()
        if not hosts.is_first():
            return
        # If there is no checkpoint, remove the files that were written before the first step.
        if self._lock.is_held and not self.steps():
            for name in self._new:
                (self.path / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.checkpoints.rmdir()
            self._lock.abandon()
        self._lock.__exit__()

    def write(self, name: str, data: bytes) -> None:
        """Write a file of the run. It is written again if the folder is deleted."""
        if not hosts.is_first():
            return
        if not (self.path / name).exists():
            self._new.append(name)
        write_whole(self.path / name, data)
        self._remembered[name] = data

    def remember(self, name: str) -> None:
        """Remember an existing file, so that it is written again if the folder is deleted."""
        if hosts.is_first():
            self._remembered[name] = contents(self.path / name)

    def steps(self) -> list[int]:
        """The steps of the complete checkpoints, in order."""
        return saved_steps(self.path)

    def save(self, step: int, tree: PyTree, facts: dict[str, Any]) -> None:
        """Write a checkpoint, then remove old ones. The last ``keep`` and the last good one stay."""
        if not hosts.is_first():
            return
        self.hold()
        before = [s for s in self.steps() if s != step]
        save_tree(self._pair(step), tree, CHECKPOINT_KIND, facts)
        kept = {step, *before[len(before) - (self.keep - 1) :]}
        if not facts["good"]:
            kept.update([s for s in before if self.is_good(s)][-1:])
        for old in set(before) - kept:
            # The record is removed first: a checkpoint counts as complete if its record exists.
            self._pair(old).with_suffix(".json").unlink(missing_ok=True)
            self._pair(old).with_suffix(".safetensors").unlink(missing_ok=True)
        complete = {self._pair(s).name for s in self.steps()}
        for file in self.checkpoints.iterdir():  # left behind by a process that was killed during a save
            if file.name.endswith(PART) or (file.suffix == ".safetensors" and file.stem not in complete):
                file.unlink(missing_ok=True)

    def hold(self) -> None:
        """Make sure that the folder exists, is locked by this process, and holds all files of the run."""
        if not hosts.is_first():
            return
        self._lock.hold()
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        for name, data in self._remembered.items():
            if not (self.path / name).exists():
                write_whole(self.path / name, data)

    def is_good(self, step: int) -> bool:
        """Whether the ELBO of a checkpoint's parameters was computed and found good."""
        try:
            return self.facts(step)["good"]
        except ValueError:
            return False

    def load(self, step: int, like: PyTree) -> tuple[PyTree, dict[str, Any]]:
        """The arrays of a checkpoint, in a tree with the structure of ``like``, and the facts saved with them."""
        tree, facts = load_tree(self._pair(step), like, CHECKPOINT_KIND, CHECKPOINT_RULES)
        trained = {name: tree[name] for name in ("parameters", "ema", "best")}
        check_finite(self._pair(step).with_suffix(".safetensors"), named(trained))
        return tree, facts

    def facts(self, step: int) -> dict[str, Any]:
        """The facts saved with a checkpoint: its step, settings, versions and so on."""
        return _facts(self.path, step)

    def digests(self, **parts: tuple[Any, Any] | None) -> dict[str, list[str] | None]:
        """Digests of inputs and targets by name. Digests of files that have not changed are taken from the folder."""
        kept: dict[str, str] = {}
        with contextlib.suppress(ValueError, OSError):  # a missing or damaged record is written again
            kept = read_record(self.path / DIGESTS_FILE, DIGESTS_KIND, {"digests": OBJECT})["digests"]
        self._digests = dict(kept)
        found = {
            name: None if part is None else [kept_digest(array, self._digests) for array in part]
            for name, part in parts.items()
        }
        self._digests_changed = self._digests != kept
        return found

    def keep_digests(self) -> None:
        """Save the result of ``digests``, so that large files are read only once."""
        if self._digests_changed:
            self.write(DIGESTS_FILE, record_bytes(DIGESTS_KIND, {"digests": self._digests}))

    def log(self, row: dict[str, Any]) -> None:
        """Append a row to the metrics, and to TensorBoard if wanted."""
        if not hosts.is_first():
            return
        line = json.dumps({name: _plain(value) for name, value in row.items()})
        with open(self.metrics, "a") as file:
            file.write(line + "\n")
        if self.tensorboard and self._board is None:
            from tensorboardX import SummaryWriter

            self._board = SummaryWriter(str(self.path / "tensorboard"))
        if self._board is not None:
            for name, value in row.items():
                if isinstance(value, int | float) and name != "step" and math.isfinite(value):
                    self._board.add_scalar(name, value, row["step"])

    def rewind(self, step: int) -> None:
        """Remove the metrics of steps after this one, which will be run again."""
        if not hosts.is_first() or not self.metrics.exists():
            return
        kept = []
        for line in contents(self.metrics).decode(errors="replace").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):  # not a row of metrics
                if json.loads(line)["step"] <= step:
                    kept.append(line)
        write_whole(self.metrics, "".join(line + "\n" for line in kept).encode())

    def _pair(self, step: int) -> Path:
        return _pair(self.path, step)


def member_folder(path: Path, number: int) -> Path:
    """The folder of one of several models that were trained one after the other; that of the first is the run's."""
    return path / f"member-{number}" if number else path


def saved_steps(path: Path) -> list[int]:
    """The steps of the complete checkpoints in a run's folder, in order.

        from pathlib import Path

        from sdebnn.train import saved_steps

        fit(model, likelihood, x, y, key=key, epochs=20, checkpoints=Checkpoints("run"))
        print(saved_steps(Path("run")))

    ``Checkpoints(keep=...)`` says how many are kept.
    """
    names = [file.stem.removeprefix("step-") for file in (Path(path) / "checkpoints").glob("step-*.json")]
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def saved_seconds(path: Path) -> float:
    """The training time of a run so far in seconds, including what came before a resume."""
    return round(_facts(path, saved_steps(path)[-1])["seconds"], 2)


def saved_best(path: Path) -> float:
    """The best validation score so far, of which lower is better; infinity before the first validation."""
    value = _facts(path, saved_steps(path)[-1])["best_value"]
    return math.inf if value is None else value


def saved_answer(path: Path, like: PyTree, *, best: bool = False) -> PyTree:
    """The parameters of the last checkpoint, in a tree with the structure of ``like``.

    They are what ``fit`` would return if the run ended there: the best ones with early stopping, else the moving
    average, else the last ones. ``best=True`` returns the best ones of a run with validation in any case.
    """
    steps = saved_steps(path)
    if not steps:
        raise ValueError(f"{path} holds no checkpoint: train first, with sdebnn train --out {path} --resume.")
    facts = _facts(path, steps[-1])
    if best and facts["best_value"] is None:
        raise ValueError(
            f"{path} has not been validated yet, so no parameters are known to be the best: leave out best."
        )
    answer, pair = "best" if best else facts["answer"], _pair(path, steps[-1])
    found = load_tree(pair, {answer: like}, CHECKPOINT_KIND, CHECKPOINT_RULES, some=True)[0][answer]
    check_finite(pair.with_suffix(".safetensors"), named({answer: found}))
    return jax.tree.map(jnp.asarray, found)


def _facts(path: Path, step: int) -> dict[str, Any]:
    file = _pair(path, step).with_suffix(".json")
    facts = read_record(file, CHECKPOINT_KIND, CHECKPOINT_RULES)
    if facts["step"] != step:
        raise broken(file, f"says that its step is {facts['step']}")
    return facts


def _pair(path: Path, step: int) -> Path:
    return Path(path) / "checkpoints" / f"step-{step:08d}"


def _plain(value: Any) -> Any:
    """A value that JSON can represent: NaN and infinity become None."""
    if isinstance(value, jax.Array | np.generic | np.ndarray):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
