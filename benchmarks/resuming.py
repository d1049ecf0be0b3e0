"""Check that a run that is stopped and resumed in another process ends with the parameters of an uninterrupted run.

    python benchmarks/resuming.py ours cifar 256

``fit`` trains for three epochs of ten batches of random images: once without interruption, and once stopped by SIGTERM
in the second epoch and resumed. Prints a digest of the parameters of each, and fails if they differ.
"""

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any

import equinox as eqx
import fit_worker
import jax
import numpy as np

import sdebnn
from sdebnn.presets import About, preset
from sdebnn.train import RunFolder

EPOCHS, BATCHES = 3, 10


def train(name: str, kind: str, batch: int, folder: str, *, stop: bool, resume: bool) -> str:
    """Train, and return the digest of the parameters."""
    data, log = fit_worker.data(kind), RunFolder.log
    row = preset(name, About.of(data))

    def log_and_stop(place: RunFolder, line: dict[str, Any]) -> None:
        log(place, line)
        if line["step"] > BATCHES:
            os.kill(os.getpid(), signal.SIGTERM)

    if stop:
        RunFolder.log = log_and_stop
    how = {
        **row.training.changed(epochs=EPOCHS, batch_size=batch).options(),
        "checkpoints": sdebnn.Checkpoints(folder, resume=resume), "progress": False,
    }  # fmt: skip
    some = (part[: BATCHES * batch] for part in data.train)
    model = sdebnn.fit(row.net(jax.random.key(0)), row.likelihood, *some, key=jax.random.key(1), **how).model
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)):
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()


def in_a_process(*arguments: str, code: int = 0) -> str:
    """The output of another process, which must end with this exit code."""
    done = subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != code:
        raise SystemExit(f"{' '.join(arguments)}: exit code {done.returncode}, expected {code}")
    return done.stdout.strip()


def main() -> None:
    which, how = sys.argv[1:4], sys.argv[4:]
    if how:
        print(train(which[0], which[1], int(which[2]), how[0], stop=how[1] == "stop", resume=how[1] == "resume"))
        return
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        whole = in_a_process(*which, one, "whole")
        in_a_process(*which, other, "stop", code=128 + signal.SIGTERM)
        resumed = in_a_process(*which, other, "resume")
    print(f"whole    {whole}\nresumed  {resumed}")
    if whole != resumed:
        raise SystemExit("the parameters differ")


if __name__ == "__main__":
    main()
