"""Resuming is invisible, whatever stopped the run and whenever."""

import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import victim

from sdebnn.train import running, saved_steps


@pytest.fixture(scope="module")
def answer():
    """The parameters of a run that was never stopped, and never saved."""
    return victim.leaves(victim.train(None))


@pytest.fixture
def memory(tmp_path):
    """A folder in memory, if there is one: where a sync takes no time, a run gets far in a second."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def processes():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sdebnn"])  # so that a process starts at once
    return context


def killed_at_a_random_moment(processes, folder, cache, seed):
    """Start a run in a process of its own, and kill it a few milliseconds after it reached some step."""
    moment = random.Random(seed)
    step, delay = moment.randrange(1, victim.STEPS - 10), moment.uniform(0, 0.005)
    process = processes.Process(target=victim.die_slowly, args=(folder, cache))
    process.start()
    deadline = time.monotonic() + 120
    while max(saved_steps(folder), default=0) < step and process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.0005)
    time.sleep(delay)
    process.kill()
    process.join()
    return process.exitcode


def test_a_run_killed_at_any_moment_resumes_to_the_identical_parameters(processes, answer, memory, cache):
    folders = [memory / str(seed) for seed in range(20)]
    with ThreadPoolExecutor(2) as pool:
        codes = list(pool.map(lambda f: killed_at_a_random_moment(processes, f, cache, int(f.name)), folders))
    assert codes.count(-signal.SIGKILL) >= 18  # one may just have finished, where a core is slow to look
    reached = [saved_steps(folder)[-1] for folder in folders]
    assert len(set(reached)) > 8
    assert min(reached) < victim.STEPS
    for folder in folders:
        assert victim.leaves(victim.train(folder, resume=True)) == answer, folder.name


def test_a_run_killed_inside_a_save_resumes_to_the_identical_parameters(processes, answer, memory, cache):
    # A save syncs and renames the arrays, then the record, then removes what is too old: twelve points in a row.
    for number in range(21, 33):
        process = processes.Process(target=victim.die_at, args=(memory, cache, number))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    fitted = victim.train(memory, resume=True)
    assert victim.leaves(fitted) == answer
    assert not list((memory / "checkpoints").glob("*.part"))
    assert np.isfinite(fitted.history["elbo"]).all()  # the history, too, has no gap


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_first_and_loses_nothing(number, answer, memory, monkeypatch):
    heard = []

    def interrupt(self, row):
        if row["step"] == 35:
            heard.append(row["step"])
            os.kill(os.getpid(), number)

    monkeypatch.setattr(running.RunFolder, "log", interrupt)
    monkeypatch.setattr(running, "SECONDS_A_CALL", 0.0)
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit):
        victim.train(memory)
    assert heard == [35]
    assert saved_steps(memory)[-1] == 35
    assert signal.getsignal(number) is before
    monkeypatch.undo()
    assert victim.leaves(victim.train(memory, resume=True)) == answer


def stopped_at(folder, step):
    """A run that was stopped after some step."""

    def leave(self, row):
        if row["step"] >= step:
            raise RuntimeError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "SECONDS_A_CALL", 0.0)
        patch.setattr(running.RunFolder, "log", leave)
        with pytest.raises(RuntimeError):
            victim.train(folder)
    return saved_steps(folder)[-1]


def test_where_a_file_may_grow_no_more_training_goes_on_and_the_checkpoint_before_is_whole(answer, memory):
    step = stopped_at(memory, 20)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with warnings.catch_warnings(record=True) as said, pytest.raises(OSError, match="Make room, then resume"):
            warnings.simplefilter("always")
            victim.train(memory, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert any(f"the checkpoint of step {step} is whole" in str(w.message) for w in said)
    assert saved_steps(memory)[-1] == step
    assert not list((memory / "checkpoints").glob("*.part"))
    assert victim.leaves(victim.train(memory, resume=True)) == answer


def test_a_full_disk_keeps_the_previous_checkpoint(answer, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no leave to mount a small disk")
    try:
        step = stopped_at(small / "run", 20)
        filler = small / "filler"
        with pytest.raises(OSError, match="No space left"), open(filler, "wb", buffering=0) as file:
            while file.write(bytes(1024)):
                pass
        with warnings.catch_warnings(), pytest.raises(OSError, match="No space left"):
            warnings.simplefilter("ignore")
            victim.train(small / "run", resume=True)
        assert saved_steps(small / "run")[-1] == step
        filler.unlink()
        assert victim.leaves(victim.train(small / "run", resume=True)) == answer
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_the_metrics_of_a_resumed_run_have_every_step_once_and_in_order(memory):
    stopped_at(memory, 20)
    with open(memory / "metrics.jsonl", "a") as file:
        file.write('{"step": 19, "loss": 1.0}\n{"step": 88, "loss": 1.0}\n{"step": 2')  # run ahead, and cut short
    victim.train(memory, resume=True)
    steps = [json.loads(line)["step"] for line in (memory / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps))
    assert steps[-1] == victim.STEPS


def test_a_run_killed_before_its_first_checkpoint_starts_anew_and_its_metrics_too(answer, memory):
    (memory / "metrics.jsonl").write_text('{"step": 5, "loss": 1.0}\n')
    assert victim.leaves(victim.train(memory, resume=True)) == answer
    assert json.loads((memory / "metrics.jsonl").read_text().splitlines()[0])["step"] == 1


def test_a_signal_during_the_last_save_is_heard(memory, monkeypatch):
    save = running.RunFolder.save

    def interrupted(self, step, *rest):
        if step == victim.STEPS:
            os.kill(os.getpid(), signal.SIGINT)
        save(self, step, *rest)

    monkeypatch.setattr(running.RunFolder, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        victim.train(memory)
    assert saved_steps(memory)[-1] == victim.STEPS


def test_a_finished_run_resumes_to_itself_and_only_the_last_checkpoints_are_kept(answer, memory):
    assert victim.leaves(victim.train(memory, keep=3)) == answer
    files = sorted(path.name for path in (memory / "checkpoints").iterdir())
    assert len(files) == 6
    assert files[-1] == f"step-{victim.STEPS:08d}.safetensors"
    assert victim.leaves(victim.train(memory, resume=True)) == answer


def test_a_folder_in_use_or_of_another_run_is_refused(memory):
    stopped_at(memory, 10)
    with pytest.raises(ValueError, match="holds a run already"):
        victim.train(memory)
    with pytest.raises(ValueError, match="patience=None, this run has 3"):
        victim.train(memory, resume=True, patience=3)
    with running.RunFolder(memory), pytest.raises(ValueError, match="in use by another run"):
        victim.train(memory, resume=True)
