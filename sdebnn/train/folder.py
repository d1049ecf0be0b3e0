"""The folder of a run: its checkpoints, of which the last few are kept, and its metrics, a line of JSON each.

checkpoints/step-00001200.safetensors, .json    parameters, optimiser, EMA, best, history, step, random state
metrics.jsonl                                   how training went
data-digests.json                               digests of the data, by file, so that large files are read once
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

KIND = "training checkpoint, version 2"
DATA_KIND = "digests of data, version 1"
DIGESTS = "data-digests.json"
RULES: Rules = {
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
    """A folder that one run at a time writes to. Use it as a context: it is locked until the end.

    A folder that someone deletes meanwhile is made again, with the files given to ``write``, at the next save.
    """

    def __init__(self, path: Path, *, keep: int = 2, tensorboard: bool = False):
        self.path, self.keep = Path(path), keep
        self.checkpoints = self.path / "checkpoints"
        self.metrics = self.path / "metrics.jsonl"
        self.tensorboard = tensorboard
        self._lock = FolderLock(self.path)
        self._remembered: dict[str, bytes] = {}  # files that are written again if the folder is deleted
        self._new: list[str] = []  # those of them that were not there before
        self._board: Any = None
        if tensorboard and importlib.util.find_spec("tensorboardX") is None:
            raise ValueError("tensorboard=True needs tensorboardX: pip install 'sdebnn[logging]'.")

    def __enter__(self) -> "RunFolder":
        self._lock.__enter__()
        remove_parts(self.path)
        return self

    def __exit__(self, *_: object) -> None:
        if self._board is not None:
            self._board.close()
        # If nothing was trained, what was written before the first step is removed.
        if self._lock.is_held and not self.steps():
            for name in self._new:
                (self.path / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.checkpoints.rmdir()
            self._lock.abandon()
        self._lock.__exit__()

    def write(self, name: str, data: bytes) -> None:
        """Write a file of the run, which is written again if the folder is deleted."""
        if not (self.path / name).exists():
            self._new.append(name)
        write_whole(self.path / name, data)
        self._remembered[name] = data

    def remember(self, name: str) -> None:
        """Remember a file that is there, so that it is written again if the folder is deleted."""
        self._remembered[name] = contents(self.path / name)

    def steps(self) -> list[int]:
        """The steps of the checkpoints that are complete, in order."""
        return saved_steps(self.path)

    def save(self, step: int, tree: PyTree, facts: dict[str, Any]) -> None:
        """Write a checkpoint, then remove all but the last few, and the last one known to be good."""
        self.hold()
        before = [s for s in self.steps() if s != step]
        save_tree(self._pair(step), tree, KIND, facts)
        kept = {step, *before[len(before) - (self.keep - 1) :]}
        if not facts["good"]:
            kept.update([s for s in before if self.is_good(s)][-1:])
        for old in set(before) - kept:
            self._pair(old).with_suffix(".json").unlink(missing_ok=True)  # first: without it, there is no checkpoint
            self._pair(old).with_suffix(".safetensors").unlink(missing_ok=True)
        complete = {self._pair(s).name for s in self.steps()}
        for file in self.checkpoints.iterdir():  # what an earlier process, killed while it saved, left behind
            if file.name.endswith(PART) or (file.suffix == ".safetensors" and file.stem not in complete):
                file.unlink(missing_ok=True)

    def hold(self) -> None:
        """Make sure that the folder is there, ours and complete."""
        self._lock.hold()
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        for name, data in self._remembered.items():
            if not (self.path / name).exists():
                write_whole(self.path / name, data)

    def is_good(self, step: int) -> bool:
        """Whether a checkpoint holds parameters whose ELBO was tried and is good."""
        try:
            return self.facts(step)["good"]
        except ValueError:
            return False

    def load(self, step: int, like: PyTree) -> tuple[PyTree, dict[str, Any]]:
        """The checkpoint of a step, as arrays in the places of those of ``like``, and the facts saved with it."""
        tree, facts = load_tree(self._pair(step), like, KIND, RULES)
        trained = {name: tree[name] for name in ("parameters", "ema", "best")}
        check_finite(self._pair(step).with_suffix(".safetensors"), named(trained))
        return tree, facts

    def facts(self, step: int) -> dict[str, Any]:
        """The facts saved with a checkpoint."""
        return _facts(self.path, step)

    def digests(self, **parts: tuple[Any, Any] | None) -> dict[str, list[str] | None]:
        """Digests of inputs and targets by name; those of files that did not change are remembered in the folder."""
        kept: dict[str, str] = {}
        with contextlib.suppress(ValueError, OSError):  # a record that is not there, or is damaged, is made anew
            kept = read_record(self.path / DIGESTS, DATA_KIND, {"digests": OBJECT})["digests"]
        self._digests = dict(kept)
        found = {
            name: None if part is None else [kept_digest(array, self._digests) for array in part]
            for name, part in parts.items()
        }
        self._digests_changed = self._digests != kept
        return found

    def keep_digests(self) -> None:
        """Write down what ``digests`` found, so that large files are read once."""
        if self._digests_changed:
            self.write(DIGESTS, record_bytes(DATA_KIND, {"digests": self._digests}))

    def log(self, row: dict[str, Any]) -> None:
        """Append a line to the metrics."""
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
        """Remove the metrics of steps after this one: they are about to be run again."""
        if not self.metrics.exists():
            return
        kept = []
        for line in contents(self.metrics).decode(errors="replace").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):  # a line that is no row
                if json.loads(line)["step"] <= step:
                    kept.append(line)
        write_whole(self.metrics, "".join(line + "\n" for line in kept).encode())

    def _pair(self, step: int) -> Path:
        return _pair(self.path, step)


def saved_steps(path: Path) -> list[int]:
    """The steps of the complete checkpoints in a run's folder, in order."""
    names = [file.stem.removeprefix("step-") for file in (Path(path) / "checkpoints").glob("step-*.json")]
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def saved_seconds(path: Path) -> float:
    """How long a run has trained so far, in all its sessions."""
    return round(_facts(path, saved_steps(path)[-1])["seconds"], 2)


def saved_answer(path: Path, like: PyTree, *, best: bool = False) -> PyTree:
    """The parameters that a run has reached, in the places of those of ``like``: its answer, or the best so far.

    The answer is what ``fit`` would return if the run ended there: the best with early stopping, else the average or
    the last. The best are part of every checkpoint of a run with a validation part.
    """
    steps = saved_steps(path)
    if not steps:
        raise ValueError(f"{path} holds no checkpoint: train it first, with sdebnn train --out {path} --resume.")
    facts = _facts(path, steps[-1])
    if best and not facts["best_step"]:
        raise ValueError(
            f"{path} was not validated so far, so that none of its parameters is the best: leave out best."
        )
    answer, pair = "best" if best else facts["answer"], _pair(path, steps[-1])
    found = load_tree(pair, {answer: like}, KIND, RULES, some=True)[0][answer]
    check_finite(pair.with_suffix(".safetensors"), named({answer: found}))
    return jax.tree.map(jnp.asarray, found)


def _facts(path: Path, step: int) -> dict[str, Any]:
    file = _pair(path, step).with_suffix(".json")
    facts = read_record(file, KIND, RULES)
    if facts["step"] != step:
        raise broken(file, f"says that it is of step {facts['step']}")
    return facts


def _pair(path: Path, step: int) -> Path:
    return Path(path) / "checkpoints" / f"step-{step:08d}"


def _plain(value: Any) -> Any:
    """A number as JSON has it: NaN and infinities have no name there."""
    if isinstance(value, jax.Array | np.generic | np.ndarray):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
