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

import interrupted_run
import jax
import numpy as np
import optax
import pytest

from sdebnn import Gaussian, Laplace
from sdebnn.files import FolderLock
from sdebnn.records import parse, write_record
from sdebnn.train import RunFolder, grouped_muon, running, saved_steps
from sdebnn.train.checkpoints import CHECKPOINT_KIND


@pytest.fixture(scope="module")
def answer():
    """The parameters of a run that was never stopped, and never saved."""
    return interrupted_run.leaves(interrupted_run.train(None))


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
    step, delay = moment.randrange(1, interrupted_run.STEPS - 10), moment.uniform(0, 0.005)
    process = processes.Process(target=interrupted_run.die_slowly, args=(folder, cache))
    process.start()
    deadline = time.monotonic() + 120
    while max(saved_steps(folder), default=0) < step and process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.0005)
    time.sleep(delay)
    process.kill()
    process.join()
    return process.exitcode


@pytest.mark.slow
def test_a_run_killed_at_any_moment_resumes_to_the_identical_parameters(processes, answer, memory, cache):
    folders = [memory / str(seed) for seed in range(20)]
    with ThreadPoolExecutor(2) as pool:
        codes = list(pool.map(lambda f: killed_at_a_random_moment(processes, f, cache, int(f.name)), folders))
    assert codes.count(-signal.SIGKILL) >= 18  # one may just have finished, where a core is slow to look
    reached = [saved_steps(folder)[-1] for folder in folders]
    assert len(set(reached)) > 8
    assert min(reached) < interrupted_run.STEPS
    for folder in folders:
        assert interrupted_run.leaves(interrupted_run.train(folder, resume=True)) == answer, folder.name


@pytest.mark.slow
def test_a_run_killed_inside_a_save_resumes_to_the_identical_parameters(processes, answer, memory, cache):
    # A save syncs and renames the arrays, then the record, then removes what is too old: twelve points in a row.
    for number in range(21, 33):
        process = processes.Process(target=interrupted_run.die_at, args=(memory, cache, number))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    fitted = interrupted_run.train(memory, resume=True)
    assert interrupted_run.leaves(fitted) == answer
    assert not list((memory / "checkpoints").glob("*.part"))
    assert np.isfinite(fitted.history["elbo"]).all()  # the history, too, has no gap


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.usefixtures("_signals_heard")
def test_a_signal_saves_first_and_loses_nothing(number, answer, memory, monkeypatch):
    heard = []

    def interrupt(self, row):
        if row["step"] == 35:
            heard.append(row["step"])
            os.kill(os.getpid(), number)

    monkeypatch.setattr(RunFolder, "log", interrupt)
    monkeypatch.setattr(running, "SECONDS_A_CALL", 0.0)
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit):
        interrupted_run.train(memory)
    assert heard == [35]
    assert saved_steps(memory)[-1] == 35
    assert signal.getsignal(number) is before
    monkeypatch.undo()
    assert interrupted_run.leaves(interrupted_run.train(memory, resume=True)) == answer


def stopped_at(folder, step):
    """A run that was stopped after some step."""

    def leave(self, row):
        if row["step"] >= step:
            raise RuntimeError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "SECONDS_A_CALL", 0.0)
        patch.setattr(RunFolder, "log", leave)
        with pytest.raises(RuntimeError):
            interrupted_run.train(folder)
    return saved_steps(folder)[-1]


def test_where_a_file_may_grow_no_more_training_goes_on_and_the_checkpoint_before_is_whole(answer, memory):
    step = stopped_at(memory, 20)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with warnings.catch_warnings(record=True) as said, pytest.raises(OSError, match="Free some space, then resume"):
            warnings.simplefilter("always")
            interrupted_run.train(memory, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert any(f"the checkpoint of step {step} is intact" in str(w.message) for w in said)
    assert saved_steps(memory)[-1] == step
    assert not list((memory / "checkpoints").glob("*.part"))
    assert interrupted_run.leaves(interrupted_run.train(memory, resume=True)) == answer


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
            interrupted_run.train(small / "run", resume=True)
        assert saved_steps(small / "run")[-1] == step
        filler.unlink()
        assert interrupted_run.leaves(interrupted_run.train(small / "run", resume=True)) == answer
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_the_metrics_of_a_resumed_run_have_every_step_once_and_in_order(memory):
    stopped_at(memory, 20)
    with open(memory / "metrics.jsonl", "a") as file:
        file.write('{"step": 19, "loss": 1.0}\n{"step": 48, "loss": 1.0}\n{"step": 2')  # run ahead, and cut short
    interrupted_run.train(memory, resume=True)
    steps = [json.loads(line)["step"] for line in (memory / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps))
    assert steps[-1] == interrupted_run.STEPS


def test_a_run_killed_before_its_first_checkpoint_starts_anew_and_its_metrics_too(answer, memory):
    (memory / "metrics.jsonl").write_text('{"step": 5, "loss": 1.0}\n')
    assert interrupted_run.leaves(interrupted_run.train(memory, resume=True)) == answer
    assert json.loads((memory / "metrics.jsonl").read_text().splitlines()[0])["step"] == 1


@pytest.mark.usefixtures("_signals_heard")
def test_a_signal_during_the_last_save_is_heard(memory, monkeypatch):
    save = RunFolder.save

    def interrupted(self, step, *rest):
        if step == interrupted_run.STEPS:
            os.kill(os.getpid(), signal.SIGINT)
        save(self, step, *rest)

    monkeypatch.setattr(RunFolder, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        interrupted_run.train(memory)
    assert saved_steps(memory)[-1] == interrupted_run.STEPS


def test_a_finished_run_resumes_to_itself_and_only_the_last_checkpoints_are_kept(answer, memory):
    assert interrupted_run.leaves(interrupted_run.train(memory, keep=3)) == answer
    files = sorted(path.name for path in (memory / "checkpoints").iterdir())
    assert len(files) == 6
    assert files[-1] == f"step-{interrupted_run.STEPS:08d}.safetensors"
    assert interrupted_run.leaves(interrupted_run.train(memory, resume=True)) == answer


def test_a_signal_that_is_ignored_stays_ignored(memory, answer, monkeypatch):
    def hang_up(self, row):
        if row["step"] == 35:
            os.kill(os.getpid(), signal.SIGHUP)

    monkeypatch.setattr(RunFolder, "log", hang_up)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        assert interrupted_run.leaves(interrupted_run.train(memory)) == answer
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_folder_in_use_or_of_another_run_is_refused(memory):
    stopped_at(memory, 10)
    with pytest.raises(ValueError, match="holds a run already"):
        interrupted_run.train(memory)
    with pytest.raises(ValueError, match="patience=None, this run has 3"):
        interrupted_run.train(memory, resume=True, patience=3)
    with RunFolder(memory), pytest.raises(ValueError, match="in use by another process"):
        interrupted_run.train(memory, resume=True)


CHANGES = {  # of a run, each of which makes it another
    "the likelihood": (
        {"likelihood": Laplace(0.1, learn=True)},
        "likelihood=sdebnn.Gaussian, this run has sdebnn.Lap",
    ),
    "its scale": ({"likelihood": Gaussian(0.2)}, "log_scale="),
    "the optimiser": ({"rule": optax.nadam(3e-3)}, "nesterov=False, this run has True"),
    "its rate": ({"rule": optax.adam(4e-3)}, "step_size=-0.003, this run has -0.004"),
    "the augmentation": ({"augment": lambda x, key: x}, "augment"),
    "the activation": ({"activation": jax.nn.tanh}, "activation=jax.relu, this run has jax.tanh"),
    "the last row of the data": ({"last": 1e-3}, "data="),
    "the last row of the validation": ({"last_held_out": 1e-3}, "validation="),
    "the warm-up": ({"kl_warmup": 0.4}, "kl_warmup=0.5, this run has 0.4"),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    interrupted_run.train(folder)
    return folder


@pytest.mark.parametrize("name", CHANGES)
def test_a_run_is_not_resumed_as_another(name, finished):
    change, words = CHANGES[name]
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    with pytest.raises(ValueError, match=words) as refused:
        interrupted_run.train(finished, resume=True, **change)
    assert "\n" not in str(refused.value)
    assert before == {path: path.stat().st_mtime_ns for path in finished.rglob("*")}


def resealed(folder, change, kind=CHECKPOINT_KIND):
    """Write the last record of a run again, with other facts and the seal that goes with them."""
    file = folder / "checkpoints" / f"step-{saved_steps(folder)[-1]:08d}.json"
    words = json.loads(file.read_text())
    del words["seal"], words["kind"]
    change(words)
    write_record(file, kind, words)


def test_another_version_of_sdebnn_is_refused_and_another_of_jax_warned_of(answer, memory):
    interrupted_run.train(memory)
    resealed(memory, lambda words: words["versions"].update(jax="0.1.2"))
    with pytest.warns(UserWarning, match=r"jax=0\.1\.2 and resumes with"):
        assert interrupted_run.leaves(interrupted_run.train(memory, resume=True)) == answer
    resealed(memory, lambda words: words["versions"].update(sdebnn="0.0.1"))
    with pytest.raises(ValueError, match=r"sdebnn=0\.0\.1"):
        interrupted_run.train(memory, resume=True)


def test_a_checkpoint_of_an_older_format_is_refused_in_one_line(memory):
    stopped_at(memory, 10)
    resealed(memory, lambda words: None, "training checkpoint, version 2")
    with pytest.raises(ValueError, match=r"is not of the kind 'training checkpoint, version 3'") as refused:
        interrupted_run.train(memory, resume=True)
    assert "\n" not in str(refused.value)


OPTIMIZERS = {  # by the prefixes of the arrays that look like the parameters
    "default": (None, ("optimizer.0.mu", "optimizer.0.nu")),
    "preset": (lambda steps: grouped_muon(1e-2, steps), ("optimizer.0.mu", "optimizer.0.nu")),
    "user": (optax.sgd(1e-2, momentum=0.9), ("optimizer.0.trace",)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_checkpoint_names_every_array_by_its_parameter(name, clip, tmp_path):
    rule, prefixes = OPTIMIZERS[name]
    interrupted_run.train(tmp_path, rule=rule, clip=clip, epochs=1)
    arrays = parse((tmp_path / "checkpoints" / "step-00000005.safetensors").read_bytes())
    shapes = {path.removeprefix("parameters."): a.shape for path, a in arrays.items() if path.startswith("parameters.")}
    assert shapes == {"0.law.mean": (25,), "0.law.log_std": (25,), "1.log_scale": ()}
    inner = [prefix.replace("optimizer.", "optimizer.1." if clip else "optimizer.") for prefix in prefixes]
    for prefix in ("ema", "best", *inner):
        assert {path: arrays[f"{prefix}.{path}"].shape for path in shapes} == shapes
    assert not any("[" in path for path in arrays)


def test_the_same_data_in_memory_and_on_disk_are_the_same_data(answer, memory):
    stopped_at(memory, 20)
    np.save(memory / "x.npy", np.asarray(interrupted_run.data()[0][:50]))
    streamed = np.load(memory / "x.npy", mmap_mode="r")
    assert interrupted_run.leaves(interrupted_run.train(memory, resume=True, x=streamed, memory_limit=1000)) == answer
    changed = np.array(streamed)
    changed[-1] += 1e-3
    np.save(memory / "x.npy", changed)
    with pytest.raises(ValueError, match="data="):
        interrupted_run.train(memory, resume=True, x=np.load(memory / "x.npy", mmap_mode="r"), memory_limit=1000)


def test_a_folder_that_is_deleted_is_made_again_and_the_run_can_be_resumed(answer, memory, monkeypatch):
    log = RunFolder.log
    folder = memory / "run"

    def delete(self, row):
        log(self, row)
        if row["step"] == 40:
            shutil.rmtree(folder)
            monkeypatch.setattr(RunFolder, "log", log)

    monkeypatch.setattr(RunFolder, "log", delete)
    assert interrupted_run.leaves(interrupted_run.train(folder)) == answer
    assert saved_steps(folder)[-1] == interrupted_run.STEPS
    assert interrupted_run.leaves(interrupted_run.train(folder, resume=True)) == answer


def test_a_folder_that_another_run_has_taken_meanwhile_is_left_to_it(memory, monkeypatch):
    folder, taken = memory / "run", []

    def delete(self, row):
        if row["step"] == 40:
            shutil.rmtree(folder)
            taken.append(FolderLock(folder).__enter__())

    monkeypatch.setattr(RunFolder, "log", delete)
    with (
        pytest.warns(UserWarning, match="uses one of the same name"),
        pytest.raises(OSError, match="Fix this"),
    ):
        interrupted_run.train(folder)
    assert [path.name for path in folder.iterdir()] == [".lock"]
    taken[0].__exit__()


def test_metrics_with_absurd_nesting_do_not_stop_a_resume(answer, memory):
    stopped_at(memory, 20)
    with open(memory / "metrics.jsonl", "a") as file:
        file.write("[" * 100_000 + "\n")
    assert interrupted_run.leaves(interrupted_run.train(memory, resume=True)) == answer
