"""The benchmarks compare like with like: every peer computes the same loss, and one that does not is refused."""

import importlib
import importlib.util
import json
import math
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest

from sdebnn.models import map_blocks
from sdebnn.nets import our_net

FOLDER = Path(__file__).parents[1] / "benchmarks"
DRAWS = 200


@pytest.fixture(scope="module")
def benchmarks():
    """Its modules, by name; they import each other as scripts do."""
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module
    sys.path.remove(str(FOLDER))


@pytest.mark.slow
def test_peers_compute_our_loss_in_distribution(benchmarks):
    """Means over 200 draws of the weights, within four standard errors."""
    job, worker = benchmarks("jobs").Job("toy", 4, 1), benchmarks("jax_worker")
    found = {}
    for who in ("sdebnn", "bare lax.scan", "diffrax, as documented"):
        train, _, parameters = worker.programs(who, job)
        state = worker.optimizer(who).init(parameters)
        losses = jax.jit(jax.vmap(lambda key: train(parameters, state, key)[0]))  # noqa: B023
        values = np.asarray(losses(jax.random.split(jax.random.key(7), DRAWS)))
        found[who] = values.mean(), values.std() / math.sqrt(DRAWS)
    mean, error = found["bare lax.scan"]
    for who, (other, its_error) in found.items():
        assert abs(other - mean) < 4 * math.hypot(error, its_error), who


@pytest.fixture(scope="module")
def main(benchmarks):
    """The command itself, as a module."""
    spec = importlib.util.spec_from_file_location("benchmarks_main", FOLDER / "__main__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_peer_with_another_loss_is_refused(benchmarks, main):
    job = benchmarks("jobs").Job("toy", 4, 1)
    rows = {who: {"loss": 100.0, "loss_error": 1.0} for who in ("sdebnn", "bare lax.scan")}
    main.check(job, rows, gpu=False)
    rows["sdebnn"]["loss"] = 106.0
    with pytest.raises(SystemExit, match="do not compute the same"):
        main.check(job, rows, gpu=False)
    rows["torchsde"] = rows.pop("bare lax.scan")  # which had no memory left
    with pytest.raises(SystemExit, match=r"that of torchsde 100\.00 ± 1\.00: they do not compute the same"):
        main.check(job, rows, gpu=False)


def test_a_row_that_is_missing_costs_no_other(benchmarks, main, capsys):
    """Peers may run out of memory where ours does not: what was measured is kept."""
    job = benchmarks("jobs").Job("toy", 4, 1)
    losses = defaultdict(lambda: [(1.0, 3), (1.0, 3)])
    times = {(what, who): 2 * [ms] for what in ("train", "predict") for who, ms in (("sdebnn", 2.0), ("torchsde", 5.0))}
    ours = {"sdebnn": {}}
    main._fill(job, ours, times, losses)
    assert ours["sdebnn"]["train_ms"] == 2.0
    main.check(job, ours, gpu=True)
    assert "no peer has a row" in capsys.readouterr().out
    peers = {"torchsde": {}}
    main._fill(job, peers, times, losses)
    assert peers["torchsde"]["train_ms"] == 5.0
    assert "train_ratio" not in peers["torchsde"]


class Peer:
    """A worker that answers twice, or for ever."""

    def __init__(self, lives):
        self.lives, self.closed = lives, False

    def ask(self, what, count):
        self.lives -= 1
        if self.lives < 0:
            raise ChildProcessError("out of memory")
        return {"ms": 250.0, "losses": [1.0]}

    def close(self):
        self.closed = True


def test_a_peer_that_dies_in_its_turn_costs_no_other(main):
    workers, times, losses = {"quick": Peer(99), "mortal": Peer(2)}, defaultdict(list), defaultdict(list)
    assert main._ask_in_turn(workers, 3, times, losses) == {"mortal": "out of memory"}
    assert times["train", "quick"] == times["predict", "quick"] == 3 * [250.0]
    assert all(worker.closed for worker in workers.values())


def test_useful_arithmetic_is_counted(benchmarks):
    """By hand: two operations a weight of a product and example, three passes, all steps and draws."""
    jobs = benchmarks("jobs")
    by_hand = 3 * 20 * 20 * 2 * 40 * (4 * 32 + 32 * 32 + 32 * 3)
    assert jobs.gflop(jobs.Job("toy", 40, 20)) == pytest.approx(by_hand / 1e9)
    pixels = 28 * 28
    layers = pixels * 9 * (3 * 32 + 32 * 32 / 4 + 32 * 32 / 4 + 32 * 3)
    read_out = pixels * 3 * 10
    assert jobs.gflop(jobs.Job("mnist", 2, 1)) == pytest.approx(3 * 2 * 2 * (20 * layers + read_out) / 1e9)


@pytest.mark.parametrize("inferred", [(), (1,)])
def test_useful_arithmetic_of_our_nets_is_counted_wherever_their_paths_begin(benchmarks, inferred):
    net = our_net((16, 16, 3), 10, channels=(8, 16), infer_w0_of=inferred, key=jax.random.key(0))
    stem, down, fields = 256 * 9 * 8 * 8, 64 * 9 * 8 * 16, 2 * 2 * 2 * 9 * (256 * 8 * 8 + 64 * 16 * 16)
    by_hand = 3 * 2 * 2 * (stem + down + fields + 16 * 10)
    assert benchmarks("jobs").gflop_of(net, np.zeros((2, 16, 16, 3), np.float32), 1) == pytest.approx(by_hand / 1e9)


PROGRAM = """
import json, sys
import numpy as np, torch
import torch_worker
about = json.loads(open("about.json").read())
with np.load("arrays.npz") as file:
    arrays = {name: torch.from_numpy(file[name]) for name in file.files}
x, _ = arrays.pop("x"), arrays.pop("y")
torch.set_num_threads(2)
with torch.no_grad():
    np.save("outputs.npy", torch_worker.Net(about, arrays)(x)[0].numpy())
"""


@pytest.mark.skipif(importlib.util.find_spec("torchsde") is None, reason="torchsde is not installed: see make bench")
@pytest.mark.parametrize("kind", ["toy", "mnist"])
def test_torchsde_solves_the_same_net(benchmarks, tmp_path, kind):
    """Without noise both are one function: a kernel turned round, a border or the time channel forgotten shows."""
    jobs, worker = benchmarks("jobs"), benchmarks("jax_worker")
    job = jobs.Job(kind, 3, 1)
    about, arrays = jobs.exported(job)
    for layer in about["layers"]:
        layer |= {"sigma": 1e-7} if layer["kind"] == "block" else {}
    (tmp_path / "about.json").write_text(json.dumps(about))
    np.savez(tmp_path / "arrays.npz", **{name: np.asarray(value) for name, value in arrays.items()})
    subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(FOLDER)}, check=True
    )
    model, _, x, _ = jobs.problem(job)
    quiet = map_blocks(lambda block: eqx.tree_at(lambda b: b.prior.sigma, block, 1e-7), model)
    ours = jax.jit(lambda x: worker.by_hand(worker.bare_scan, quiet, x, jax.random.key(0))[0])(x)
    np.testing.assert_allclose(np.load(tmp_path / "outputs.npy")[0], ours, rtol=1e-4, atol=1e-4)


def test_a_worker_is_given_up_if_it_is_not_ready_in_time_and_no_other(benchmarks, tmp_path):
    """One that was ready while another was waited for still is; one that died says why, whatever killed it."""
    worker_io = benchmarks("worker_io")
    script = tmp_path / "worker.py"
    script.write_text(
        "import os, sys, time\n"
        "if sys.argv[1] == 'dead': print('no memory left', file=sys.stderr, flush=True); os.kill(os.getpid(), 9)\n"
        "if sys.argv[1] == 'slow': time.sleep(60)\n"
        "print('ready {}', flush=True); sys.stdin.readline(); print('did {}', flush=True)\n"
    )
    slow, quick, dead = (
        worker_io.Worker(sys.executable, str(script), how, patience=3) for how in ("slow", "quick", "dead")
    )
    assert slow.ready() == "it was not ready after 3 s"
    assert quick.ready() == {}
    assert quick.ask("train", 1) == {}
    assert dead.ready() == "no memory left"
    with pytest.raises(ChildProcessError):
        slow.ask("train", 1)
    for worker in (slow, quick, dead):
        worker.close()
