"""The benchmarks compare like with like: every peer computes the same loss, and one that does not is refused."""

import importlib
import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
DRAWS = 200


@pytest.fixture(scope="module")
def benchmarks():
    """Its modules, by name; they import each other as scripts do."""
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module
    sys.path.remove(str(FOLDER))


def test_peers_compute_our_loss_in_distribution(benchmarks):
    """Means over 200 draws of the weights, within four standard errors."""
    job, worker = benchmarks("jobs").Job("toy", 4, 1), benchmarks("jax_worker")
    found = {}
    for who in ("sdebnn", "bare lax.scan", "diffrax, as documented"):
        train, _, parameters = worker.programs(who, job)
        state = worker.optax.adam(1e-3).init(parameters)
        losses = jax.jit(jax.vmap(lambda key: train(parameters, state, key)[0]))  # noqa: B023
        values = np.asarray(losses(jax.random.split(jax.random.key(7), DRAWS)))
        found[who] = values.mean(), values.std() / math.sqrt(DRAWS)
    mean, error = found["bare lax.scan"]
    for who, (other, its_error) in found.items():
        assert abs(other - mean) < 4 * math.hypot(error, its_error), who


def test_a_peer_with_another_loss_is_refused(benchmarks):
    spec = importlib.util.spec_from_file_location("benchmarks_main", FOLDER / "__main__.py")
    main = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(main)
    job = benchmarks("jobs").Job("toy", 4, 1)
    rows = {who: {"loss": 100.0, "loss_error": 1.0} for who in ("sdebnn", "bare lax.scan")}
    main.check(job, rows, gpu=False)
    rows["sdebnn"]["loss"] = 106.0
    with pytest.raises(SystemExit, match="not the same work"):
        main.check(job, rows, gpu=False)


def test_useful_arithmetic_is_counted(benchmarks):
    """By hand: two operations a weight of a product and example, three passes, all steps and draws."""
    jobs = benchmarks("jobs")
    by_hand = 3 * 20 * 20 * 2 * 40 * (4 * 32 + 32 * 32 + 32 * 3)
    assert jobs.gflop(jobs.Job("toy", 40, 20)) == pytest.approx(by_hand / 1e9)
    pixels = 28 * 28
    layers = pixels * 9 * (3 * 32 + 32 * 32 / 4 + 32 * 32 / 4 + 32 * 3)
    read_out = pixels * 3 * 10
    assert jobs.gflop(jobs.Job("mnist", 2, 1)) == pytest.approx(3 * 2 * 2 * (20 * layers + read_out) / 1e9)


@pytest.mark.skipif(importlib.util.find_spec("torchsde") is None, reason="torchsde is not installed: see make bench")
@pytest.mark.parametrize("kind", ["toy", "mnist"])
def test_torchsde_solves_the_same_net(benchmarks, tmp_path, kind):
    job, worker = benchmarks("jobs").Job(kind, 3, 1), benchmarks("jax_worker")
    about, arrays = benchmarks("jobs").exported(job)
    (tmp_path / "about.json").write_text(json.dumps(about))
    np.savez(tmp_path / "arrays.npz", **{name: np.asarray(value) for name, value in arrays.items()})
    asked = subprocess.run(
        [sys.executable, str(FOLDER / "torch_worker.py"), str(tmp_path)],
        input="train 40\n", capture_output=True, text=True, check=True,
    )  # fmt: skip
    theirs = np.array(json.loads(asked.stdout.splitlines()[-1].removeprefix("did"))["losses"])
    train, _, parameters = worker.programs("sdebnn", job)
    state = worker.optax.adam(1e-3).init(parameters)
    step = jax.jit(lambda key: train(parameters, state, key)[0])
    ours = np.array([step(key) for key in jax.random.split(jax.random.key(7), 40)])
    error = math.hypot(ours.std(), theirs.std()) / math.sqrt(40)
    assert abs(ours.mean() - theirs.mean()) < 4 * error
