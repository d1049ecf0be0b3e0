"""Several processes train as one does. If one of them is lost or stuck, the others end, and the run is resumed."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sdebnn import hosts

WORKER = Path(__file__).parent / "several_worker.py"
ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(WORKER.parent.parent)}
MINUTE = 60.0


@contextlib.contextmanager
def started(processes, where, **given):
    """Processes that train one model together."""
    where.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        "scenario": "hosts", "processes": processes, "coordinator": f"127.0.0.1:{port}", "out": str(where),
        "epochs": 8, **given,
    }  # fmt: skip
    running = []
    for number in range(processes):
        with open(where / f"said-{number}", "w") as said:
            command = [sys.executable, str(WORKER), json.dumps({**common, "process": number})]
            running.append(subprocess.Popen(command, env=ENVIRONMENT, stdout=said, stderr=said))
    try:
        yield running
    finally:
        for each in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGCONT)
            each.kill()
            each.wait()


def trained(processes, where, **given):
    """What they found."""
    with started(processes, where, **given) as running:
        for number, each in enumerate(running):
            assert each.wait(timeout=240) == 0, (where / f"said-{number}").read_text()[-3000:]
    return dict(np.load(where / "found.npz")), json.loads((where / "facts.json").read_text())


def saved(folder, after=-1, within=120.0):
    """Wait for a checkpoint of a later step, and return its step."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        steps = [int(path.stem.removeprefix("step-")) for path in (folder / "checkpoints").glob("step-*.json")]
        if max(steps, default=-1) > after:
            return max(steps)
        time.sleep(0.1)
    raise AssertionError(f"no checkpoint after step {after} within {within} seconds")


def assert_same(found, expected):
    assert set(found) == set(expected)
    for name, numbers in expected.items():
        scale = max(np.abs(numbers).max(), 1e-30)
        np.testing.assert_allclose(found[name] / scale, numbers / scale, atol=1e-5, err_msg=name)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One process, undisturbed."""
    return trained(1, tmp_path_factory.mktemp("alone"))


def test_two_processes_train_as_one_does_and_each_reads_its_part(alone, tmp_path):
    found, facts = trained(2, tmp_path)
    assert_same(found, alone[0])
    assert facts["rows_read"] == alone[1]["rows_read"] / 2 + 16  # rows by which processes are compared


def test_processes_that_differ_are_all_refused(tmp_path):
    """In their data, their initial parameters, and their settings."""
    with started(2, tmp_path, differ=True) as running:
        assert [each.wait(timeout=240) for each in running] == [2, 2]
    for number in (0, 1):
        said = (tmp_path / f"said-{number}").read_text()
        assert "differ in their settings, optimizer, initial parameters, data: start all" in said, said
        assert "mesh has devices of 1 of 2 processes" in said


@pytest.mark.slow
def test_four_processes_with_two_devices_each_train_as_one_does(alone, tmp_path):
    assert_same(trained(4, tmp_path, devices=2)[0], alone[0])


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_lost_process_ends_the_others_and_the_run_resumes_on_any_number(alone, tmp_path, victim):
    """One of two is killed in the middle of an epoch. Those that resume reach the parameters of an undisturbed run."""
    run = tmp_path / "run"
    with started(2, tmp_path / "first", folder=str(run), seconds=0.2) as running:
        saved(run, after=saved(run))
        running[victim].kill()
        killed = time.monotonic()
        code = running[1 - victim].wait(timeout=MINUTE)
        assert time.monotonic() - killed < MINUTE
    said = (tmp_path / "first" / f"said-{1 - victim}").read_text()
    assert code != 0
    assert "another process of this run was lost" in said or "another task died" in said
    for processes in (1, 2, 4) if victim else (1,):
        copy = tmp_path / f"run-{processes}"
        shutil.copytree(run, copy)
        found, _ = trained(processes, tmp_path / f"resumed-{processes}", folder=str(copy))
        assert_same(found, alone[0])


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_process_ends_the_others_and_the_run_resumes(alone, tmp_path, victim):
    run = tmp_path / "run"
    with started(2, tmp_path / "first", folder=str(run), seconds=0.2) as running:
        saved(run)
        os.kill(running[victim].pid, signal.SIGSTOP)
        began = time.monotonic()
        assert running[1 - victim].wait(timeout=MINUTE) != 0
        assert time.monotonic() - began < MINUTE
    said = (tmp_path / "first" / f"said-{1 - victim}").read_text()
    assert "is stuck" in said or "another task died" in said
    assert_same(trained(2, tmp_path / "resumed", folder=str(run))[0], alone[0])


@pytest.mark.slow
def test_a_process_that_lives_but_does_not_go_on_ends_the_others(tmp_path):
    """Its signs of life arrive, so that JAX itself would wait for ever."""
    run = tmp_path / "run"
    with started(
        2, tmp_path / "first", folder=str(run), seconds=0.05, epochs=2000, stuck_after=40, limit=8.0
    ) as running:
        saved(run)
        began = time.monotonic()
        codes = [each.wait(timeout=2 * MINUTE) for each in running]
        assert time.monotonic() - began < 2 * MINUTE
    assert codes[0] != 0
    said = [(tmp_path / "first" / f"said-{number}").read_text() for number in (0, 1)]
    assert any("nothing moved for 8 seconds: this process or another one of the run is stuck" in each for each in said)
    assert all("This one ends: resume the run from its last checkpoint" in each for each in said)
    assert saved(run) > 0  # whole, so that the run can be resumed


def test_a_single_process_agrees_with_itself(refused):
    assert hosts.from_all([3, 4]).tolist() == [[3, 4]]
    assert hosts.from_first(lambda: {"a": 1}) == {"a": 1}
    tree = {"a": np.arange(3.0)}
    assert hosts.tree_from_first(tree) is tree
    hosts.wait_for_all("nothing")

    def fails():
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        hosts.from_first(fails)


def test_wrong_addresses_and_numbers_are_refused(refused):
    refused(lambda: hosts.connect("here", 2, 0), "coordinator='here' is no address: pass HOST:PORT")
    refused(lambda: hosts.connect("localhost:99999", 2, 0), "is no address")
    refused(lambda: hosts.connect("localhost:1234", 2, 2), "process=2 must be below processes=2")
    refused(lambda: hosts.connect("localhost:1234"), "belong together")
