"""The folder of a run: its checkpoints, of which the last few are kept, and its metrics, a line of JSON each.

checkpoints/step-00001200.safetensors, .json    parameters, optimiser, EMA, best, history, step, random state
metrics.jsonl                                   how training went
"""

import contextlib
import fcntl
import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from sdebnn.files import PART, load_tree, read_facts, save_tree, write_whole

KIND = "training checkpoint, version 1"


class RunFolder:
    """A folder that one run at a time writes to. Use it as a context: it is locked until the end."""

    def __init__(self, path: Path, *, keep: int = 2, tensorboard: bool = False):
        self.path, self.keep = Path(path), keep
        self.checkpoints = self.path / "checkpoints"
        self.metrics = self.path / "metrics.jsonl"
        self.tensorboard = tensorboard
        if tensorboard and importlib.util.find_spec("tensorboardX") is None:
            raise ValueError("tensorboard=True needs tensorboardX: pip install 'sdebnn[logging]'.")

    def __enter__(self) -> "RunFolder":
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        self._lock = open(self.path / ".lock", "w")  # held for as long as the run lasts
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise ValueError(f"{self.path} is in use by another run: wait for it, or choose another folder.") from None
        self._board = None
        if self.tensorboard:
            from tensorboardX import SummaryWriter

            self._board = SummaryWriter(str(self.path / "tensorboard"))
        return self

    def __exit__(self, *_: object) -> None:
        if self._board is not None:
            self._board.close()
        self._lock.close()

    def steps(self) -> list[int]:
        """The steps of the checkpoints that are complete, in order."""
        return saved_steps(self.path)

    def save(self, step: int, tree: PyTree, facts: dict[str, Any]) -> None:
        """Write a checkpoint, then forget all but the last few. The one before stays whole whatever happens."""
        before = self.steps()
        save_tree(self._pair(step), tree, KIND, facts)
        for old in [s for s in before if s != step][: -(self.keep - 1) or None]:
            self._pair(old).with_suffix(".json").unlink(missing_ok=True)  # first: what it names is then no checkpoint
            self._pair(old).with_suffix(".safetensors").unlink(missing_ok=True)
        whole = {self._pair(s).name for s in self.steps()}
        for file in self.checkpoints.iterdir():  # what an earlier process, killed while it saved, left behind
            if file.name.endswith(PART) or (file.suffix == ".safetensors" and file.stem not in whole):
                file.unlink(missing_ok=True)

    def load(self, step: int, like: PyTree) -> tuple[PyTree, dict[str, Any]]:
        """The checkpoint of a step, as arrays in the places of those of ``like``, and the facts saved with it."""
        return load_tree(self._pair(step), like, KIND)

    def facts(self, step: int) -> dict[str, Any]:
        """The facts saved with a checkpoint."""
        return read_facts(self._pair(step).with_suffix(".json"), KIND)

    def log(self, row: dict[str, Any]) -> None:
        """Append a line to the metrics."""
        line = json.dumps({name: _plain(value) for name, value in row.items()})
        with open(self.metrics, "a") as file:
            file.write(line + "\n")
        if self._board is not None:
            for name, value in row.items():
                if isinstance(value, int | float) and name != "step" and math.isfinite(value):
                    self._board.add_scalar(name, value, row["step"])

    def rewind(self, step: int) -> None:
        """Forget the metrics of steps after this one: they are about to be run again."""
        if not self.metrics.exists():
            return
        kept = []
        for line in self.metrics.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):  # a line that was cut short
                if json.loads(line)["step"] <= step:
                    kept.append(line)
        write_whole(self.metrics, "".join(line + "\n" for line in kept).encode())

    def _pair(self, step: int) -> Path:
        return _pair(self.path, step)


def saved_steps(path: Path) -> list[int]:
    """The steps of the complete checkpoints in a run's folder, in order."""
    names = [file.stem.removeprefix("step-") for file in (Path(path) / "checkpoints").glob("step-*.json")]
    return sorted(int(name) for name in names if name.isdigit())


def saved_seconds(path: Path) -> float:
    """How long a run has trained so far, in all its sessions."""
    return round(read_facts(_pair(path, saved_steps(path)[-1]).with_suffix(".json"), KIND)["seconds"], 2)


def saved_answer(path: Path, like: PyTree, *, best: bool = False) -> PyTree:
    """The parameters that a run has reached, in the places of those of ``like``: its answer, or the best so far.

    The answer is what ``fit`` would return if the run ended there: the best with early stopping, else the average or
    the last. The best ride along in every checkpoint of a run with a validation part.
    """
    steps = saved_steps(path)
    if not steps:
        raise ValueError(f"{path} holds no checkpoint: train it first, with sdebnn train --out {path} --resume.")
    pair = _pair(path, steps[-1])
    facts = read_facts(pair.with_suffix(".json"), KIND)
    if best and not facts["best_step"]:
        raise ValueError(
            f"{path} was not validated so far, so that none of its parameters is the best: leave out best."
        )
    answer = "best" if best else facts["answer"]
    return jax.tree.map(jnp.asarray, load_tree(pair, {answer: like}, KIND, some=True)[0][answer])


def _pair(path: Path, step: int) -> Path:
    return Path(path) / "checkpoints" / f"step-{step:08d}"


def _plain(value: Any) -> Any:
    """A number as JSON has it: NaN and infinities have no name there."""
    if isinstance(value, jax.Array | np.generic | np.ndarray):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
