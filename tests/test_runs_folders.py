"""Folders of runs under attack: races, deletions, closed pipes, files that are no files, records that were edited."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from files import moons_file

from sdebnn import cli, forecasters, runs
from sdebnn.files import LOCK, FolderLock, remove_parts, write_whole
from sdebnn.records import write_record
from sdebnn.train import RunFolder


def sdebnn(*arguments, **how):
    """The command line in a process of its own, while the test goes on."""
    command = [sys.executable, "-m", "sdebnn", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how)


@pytest.fixture
def refused(monkeypatch, capfd):
    """A check that a command is refused in one line of such words."""

    def check(words, *arguments):
        monkeypatch.setattr(sys, "argv", ["sdebnn", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        said = capfd.readouterr().err
        assert stop.value.code == 2, said
        assert words in said
        assert len(said.strip().splitlines()) == 1, said

    return check


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """Two moons in a file of arrays."""
    return moons_file(tmp_path_factory.mktemp("vectors") / "moons.npz")


@pytest.fixture(scope="module")
def short(vectors):
    """The arguments of a short training."""
    return ("--data", vectors, "--epochs", "2")


@pytest.fixture(scope="module")
def run(vectors):
    """A short run."""
    out = vectors.parent / "moons"
    runs.train(runs.Settings(str(vectors), epochs=2), out, progress=False)
    return out


def contents_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def race(folders, patience, gate, outcomes):
    """Train in each folder as soon as the gate opens, and report whether it was refused.

    Runs of different patience are not the same run, but share one compiled program.
    """
    for folder in folders:
        gate.wait()
        try:
            runs.train(runs.Settings("moons", epochs=2, patience=patience), folder, draws=1, progress=False)
        except ValueError as error:
            outcomes.put((folder.name, patience, str(error)))
        else:
            outcomes.put((folder.name, patience, None))


@pytest.mark.usefixtures("run")  # whose program both processes find
@pytest.mark.slow
def test_of_two_trainings_in_one_folder_one_is_refused_and_the_other_is_whole(tmp_path):
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["sdebnn.runs"])
    folders = [tmp_path / str(number) for number in range(10)]
    gate, outcomes = processes.Barrier(2), processes.Queue()
    both = [processes.Process(target=race, args=(folders, patience, gate, outcomes)) for patience in (1, 2)]
    for process in both:
        process.start()
    found = {}
    for _ in range(2 * len(folders)):
        folder, patience, error = outcomes.get(timeout=300)
        found.setdefault(folder, {})[patience] = error
    for process in both:
        process.join()
    for folder in folders:
        winners = [patience for patience, error in found[folder.name].items() if error is None]
        assert len(winners) == 1, found
        loser = found[folder.name][3 - winners[0]]
        assert "in use by another process" in loser or "holds a run already" in loser
        made, _, _ = runs.open_run(folder)
        assert made.settings.patience == winners[0]
        assert json.loads((folder / "result.json").read_text())["settings"]["patience"] == winners[0]


def test_a_refused_resume_writes_no_settings_beside_checkpoints(run, refused, tmp_path, short):
    moved = (run / "run.json").rename(tmp_path / "run.json")
    before = contents_of(run)
    try:
        refused("no run.json", "train", *short, "--seed", "7", "--out", run, "--resume")
        assert contents_of(run) == before
    finally:
        moved.rename(run / "run.json")


def test_writers_of_one_file_never_tear_it(tmp_path):
    file = tmp_path / "f"
    code = "import sys; from pathlib import Path; from sdebnn.files import write_whole\n" + (
        "for _ in range(150): write_whole(Path(sys.argv[1]), sys.argv[2].encode() * 200_000)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, file, letter]) for letter in "ab"]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        if file.exists():
            data = file.read_bytes()
            assert len(data) == 200_000
            assert len(set(data)) == 1
            seen.add(data[:1])
    assert all(writer.returncode == 0 for writer in writers)
    assert seen == {b"a", b"b"}
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_what_a_killed_writer_left_is_removed_and_what_is_in_use_is_not(tmp_path, monkeypatch):
    left = tmp_path / f"f.{'0' * 16}.part"
    young, other = tmp_path / f"f.{'1' * 16}.part", tmp_path / "mine.part"
    for path in (left, young, other):
        path.write_bytes(b"x")
    os.utime(left, (time.time() - 120,) * 2)
    os.utime(other, (time.time() - 120,) * 2)
    write_whole(tmp_path / "f", b"whole")
    assert {path.name for path in tmp_path.iterdir()} == {"f", young.name, "mine.part"}
    monkeypatch.setattr("sdebnn.files.STALE_SECONDS", 0.0)
    with open(young) as held:
        import fcntl

        fcntl.flock(held, fcntl.LOCK_EX)
        remove_parts(tmp_path)
        assert young.exists()
    remove_parts(tmp_path)
    assert not young.exists()


def test_a_lock_holds_until_it_is_let_go_and_an_unused_folder_goes_with_it(tmp_path):
    folder = tmp_path / "new"
    with FolderLock(folder) as lock:
        with pytest.raises(ValueError, match="in use"):
            FolderLock(folder).__enter__()
        lock.abandon()
    assert not folder.exists()
    with FolderLock(folder) as lock:
        (folder / "f").touch()
        lock.abandon()
    assert {path.name for path in folder.iterdir()} == {"f", LOCK}


def test_output_that_nobody_reads_does_not_stop_a_training(tmp_path, short):
    process = sdebnn("train", *short, "--out", tmp_path / "run")
    process.stderr.readline()  # it has begun; then both ends are closed, as by head
    process.stderr.close()
    process.stdout.close()
    assert process.wait(timeout=300) in (0, 1)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["accuracy"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("_signals_heard")
def test_a_hang_up_saves_first(tmp_path, vectors):
    process = sdebnn("train", "--data", vectors, "--epochs", "100000", "--out", tmp_path / "run")
    try:
        deadline = time.monotonic() + 120
        while not (tmp_path / "run" / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGHUP
    runs.open_run(tmp_path / "run")


def test_predictions_are_refused_before_the_work_where_they_could_not_be_written(run, tmp_path, refused, monkeypatch):
    x = tmp_path / "x.npy"
    np.save(x, np.zeros((3, 2)))
    monkeypatch.setattr(forecasters, "open_run", lambda *_, **__: pytest.fail("the work has begun"))
    there = tmp_path / "p.npy"
    there.write_bytes(b"kept")
    refused("add --force", "predict", run, x, "--out", there)
    refused("the file of the inputs", "predict", run, x, "--out", x, "--force")
    (tmp_path / "link.npy").symlink_to(x)
    refused("the file of the inputs", "predict", run, x, "--out", tmp_path / "link.npy", "--force")
    refused("in an existing folder", "predict", run, x, "--out", tmp_path / "none" / "p.npy")
    refused("choose one of '.csv', '.npy'", "predict", run, x, "--out", tmp_path / "p.txt")
    assert there.read_bytes() == b"kept"
    monkeypatch.undo()
    np.save(tmp_path / "wide.npy", np.zeros((3, 5)))
    refused("trained on examples of (2,)", "predict", run, tmp_path / "wide.npy", "--out", tmp_path / "q.npy")
    table = tmp_path / "x.csv"
    table.write_text("a,b\n1,2\n")
    refused("is not a .npy file", "predict", run, table, "--out", tmp_path / "q.npy")
    os.mkfifo(tmp_path / "pipe.npy")
    refused("a pipe, a socket or a device", "predict", run, tmp_path / "pipe.npy", "--out", tmp_path / "q.npy")
    assert x.stat().st_size == 176


def test_predictions_replace_a_file_when_told_to(run, tmp_path):
    x, out = tmp_path / "x.npy", tmp_path / "p.npy"
    np.save(x, np.zeros((3, 2), np.float32))
    out.write_bytes(b"old")
    cli.app(["predict", str(run), str(x), "--out", str(out), "--force"], standalone_mode=False)
    assert np.load(out).shape == (3, 6)


@pytest.mark.parametrize("name", ["run.json", "checkpoints/{}.json", "checkpoints/{}.safetensors"])
def test_a_pipe_in_the_place_of_a_file_of_a_run_is_refused(run, name, refused):
    last = sorted(path.stem for path in (run / "checkpoints").glob("*.json"))[-1]
    file = run / name.format(last)
    kept = file.rename(run.parent / "kept")
    os.mkfifo(file)
    try:
        refused(file.name, "evaluate", run, "--draws", "4")  # the scores that the run keeps would need no checkpoint
    finally:
        file.unlink()
        kept.rename(file)


EDITS = {  # of run.json, each with the seal that goes with it
    "a number for a name": {"data": 5},
    "no seed": {"seed": ...},
    "a seed below zero": {"seed": -1},
    "a word for a number": {"seed": "seven"},
    "a preset without a name": {"preset": None},
    "a list": {"epochs": [1]},
    "more epochs than there is time": {"epochs": 10**30},
    "a weight that is no number": {"kl_weight": None},
    "a negative weight": {"kl_weight": -1.0},
    "a flag that is none": {"infer_w0": "yes"},
    "nothing about the data": {"about": ...},
    "a shape of words": {"about": {"name": "t", "shape": ["two"]}},
    "a share of everything": {"validation": "all"},
}


@pytest.mark.parametrize("name", EDITS)
def test_settings_that_were_edited_and_sealed_anew_are_refused(run, name, refused, short):
    file = run / "run.json"
    whole = file.read_bytes()
    words = json.loads(whole)
    kind = words.pop("kind")
    del words["seal"]
    for field, value in EDITS[name].items():
        if value is ...:
            del words[field]
        else:
            words[field] = value
    write_record(file, kind, words)
    try:
        for command in (("evaluate", run), ("info", run), ("train", *short, "--out", run, "--resume")):
            refused("run.json", *command)
    finally:
        file.write_bytes(whole)


def test_rows_in_errors_are_those_of_the_user_s_file(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(4000, 3)), np.arange(4000) % 2
    x[3123, 1] = np.nan
    for part in ("train", "test"):
        np.save(tmp_path / f"x_{part}.npy", x if part == "train" else np.zeros((10, 3)))
        np.save(tmp_path / f"y_{part}.npy", y if part == "train" else np.zeros(10, int))
    settings = runs.Settings(str(tmp_path), epochs=1)
    with pytest.raises(ValueError, match=r"the training part's x holds nan at index \(3123, 1\)"):
        runs.train(settings, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="row 3123"):  # read as it is needed, from the split that is trained on
        runs.train(settings, tmp_path / "run", progress=False, memory_limit=20_000)


def test_a_refused_command_leaves_no_folder(tmp_path, refused, monkeypatch, short):
    out = tmp_path / "run"
    refused("validation=1.5", "train", *short, "--validation", "1.5", "--out", out)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused("tensorboardX", "train", *short, "--tensorboard", "--out", out)
    monkeypatch.undo()
    refused("nonsense", "train", "--data", "nonsense", "--tensorboard", "--out", out)
    assert not out.exists()


def test_a_resumed_run_whose_folder_is_deleted_comes_back_whole(tmp_path, monkeypatch):
    out, settings = tmp_path / "run", runs.Settings("moons", epochs=3)
    log = RunFolder.log

    def stop(self, row):
        if row["epoch"] >= 2:
            raise RuntimeError

    def delete(self, row):
        log(self, row)
        monkeypatch.setattr(RunFolder, "log", log)
        shutil.rmtree(out)

    monkeypatch.setattr(RunFolder, "log", stop)
    with pytest.raises(RuntimeError):
        runs.train(settings, out, progress=False, save_every=0.0)
    monkeypatch.setattr(RunFolder, "log", delete)
    runs.train(settings, out, resume=True, progress=False, save_every=0.0)
    assert {"run.json", "result.json", "checkpoints"} <= {path.name for path in out.iterdir()}
    runs.open_run(out)


def test_a_device_that_is_not_there_is_one_line():
    process = sdebnn("info", env={**os.environ, "JAX_PLATFORMS": "cuda"})
    _, said = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "JAX_PLATFORMS='cuda'" in said
    assert len(said.strip().splitlines()) == 1, said


@pytest.mark.filterwarnings("default")
def test_inputs_on_another_scale_than_the_training_s_are_warned_of(run, tmp_path, capfd):
    x = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    for factor, warned in ((1, False), (1000, True)):
        np.save(tmp_path / "x.npy", factor * x)
        out = tmp_path / f"{factor}.npy"
        cli.app(["predict", str(run), str(tmp_path / "x.npy"), "--out", str(out)], standalone_mode=False)
        assert ("unlike the training data" in capfd.readouterr().err) == warned
