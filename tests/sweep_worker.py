"""A worker of a sweep in a process of its own, for a test that kills one. It logs each step that it trains.

    python sweep_worker.py DATA OUT LOG [KILLED_IN]

With KILLED_IN, it kills itself in its trial of that number, after the training and before the score is known.
"""

import os
import signal
import sys
from pathlib import Path

from sdebnn import runs, sweeps
from sdebnn.train.running import TrainingRun

EPOCHS, TRIALS = 3, 24  # an epoch is one step
SPACE = {"learning_rate": sweeps.Choice((0.01, 0.02))}


def settings(data):
    """The settings of all trials."""
    return runs.Settings(str(data), preset="fast", epochs=EPOCHS)


def work(data, out):
    """Work on the sweep until all is done."""
    nets = sweeps.Nets(settings(data))
    sweep = sweeps.Sweep(False, nets.settings, SPACE, True, nets.digest())
    return sweeps.work(sweep, nets, Path(out), trials=TRIALS, heartbeat=1)


def log_steps(log):
    """Append a line with the process and the trial for each step that is trained."""
    plain = TrainingRun._advance

    def advance(self, stop):
        before = self.step
        record = plain(self, stop)
        place = self.checkpointer.folder.path.name
        with open(log, "a") as file:
            file.write(f"{os.getpid()} {place}\n" * (self.step - before))
        return record

    TrainingRun._advance = advance


def be_killed(trial):
    """Kill this process when it has trained so many trials."""
    plain, count = runs.training.score, 0

    def score(*given, **named):
        nonlocal count
        count += 1
        if count == trial:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*given, **named)

    runs.training.score = score


if __name__ == "__main__":
    log_steps(sys.argv[3])
    if len(sys.argv) > 4:
        be_killed(int(sys.argv[4]))
    work(*sys.argv[1:3])
