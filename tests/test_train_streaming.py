"""Training on rows that are read ahead of the steps, compared with training on the same rows on the device."""

import json
import socket
import subprocess
import sys
import threading
import time
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from line_fits import HOW, KEY, LINE, weights

from sdebnn import Batches, Checkpoints, Gaussian, Optimizer, fit
from sdebnn.data import SelectedRows, ShardedRows
from sdebnn.train import running
from sdebnn.train.batches import BLOCKS_IN_MEMORY, Resident, Streamed, steps_a_block

ROWS, BATCH = 250, 8  # 31 steps an epoch, and two rows are left out
X = np.random.default_rng(0).normal(size=(ROWS, 2)).astype(np.float32)
Y = X @ np.array([[1.0], [-2.0]], np.float32) + 0.5
BATCH_BYTES = BATCH * 3 * 4
LIMITS = {1: 4 * BATCH_BYTES, 2: 8 * BATCH_BYTES, 4: 19 * BATCH_BYTES, 5: ROWS * 8 - 1}  # by the steps in a block
ADAM = optax.adam(1e-2)  # one object, so that runs find each other's program


class Watched:
    """Rows that are read from memory, with the numbers of those that were read. ``before`` is called before a read."""

    def __init__(self, array, before=lambda rows: None):
        self.array, self.before, self.read = array, before, []
        self.shape, self.dtype = array.shape, array.dtype

    def __getitem__(self, rows):
        self.before(rows)
        self.read.append(rows)
        return self.array[rows]


@pytest.fixture(autouse=True)
def _ends_its_threads():
    yield
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sdebnn-rows")]


@pytest.fixture
def opened():
    """A function that makes streamed sources, which are closed at the end."""
    made = []

    def make(x=X, y=Y, limit=LIMITS[4], batch=BATCH):
        made.append(Streamed(Watched(x) if isinstance(x, np.ndarray) else x, jnp.asarray(y), KEY, batch, limit))
        return made[-1]

    yield make
    for each in made:
        each.close()


def train(x=X, limit=2**31, folder=None, **changes):
    checkpoints = None if folder is None else Checkpoints(folder, resume=True, every=0.0)
    batches = Batches(BATCH, memory_limit=limit)
    how = {**HOW, "epochs": 2, "optimizer": Optimizer(rule=lambda steps: ADAM), **changes}
    return fit(LINE, Gaussian(1.0), x, Y, batches=batches, checkpoints=checkpoints, **how)


def bytes_of(fitted):
    return weights(fitted).tobytes(), np.asarray(fitted.model.module.bias).tobytes(), fitted.history["elbo"].tobytes()


@pytest.fixture(scope="module")
def resident():
    return bytes_of(train())


@pytest.mark.parametrize("steps", LIMITS)
def test_where_the_rows_are_does_not_change_a_bit_of_the_answer(steps, resident):
    assert bytes_of(train(Watched(X), LIMITS[steps])) == resident


@pytest.mark.parametrize("steps", LIMITS)
def test_each_step_has_the_same_rows_wherever_they_are(steps, opened):
    source, there = opened(limit=LIMITS[steps]), Resident(jnp.asarray(X), jnp.asarray(Y), KEY, BATCH, 31, None)
    assert source.steps_a_block == steps
    for step in (*range(3 * 31), 30, 31, 92, 0):  # in order, and then back and forth
        for one, two in zip(
            *(each.batches(step, step + 1).at(jnp.asarray(step)) for each in (source, there)), strict=True
        ):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("steps", LIMITS)
def test_calls_end_where_blocks_and_epochs_end(steps, opened):
    source = opened(limit=LIMITS[steps])
    ends = [*range(steps, 31, steps), 31]
    ends += [31 + end for end in ends]
    for step in range(62):
        assert source.latest_stop(step) == min(end for end in ends if end > step)


def test_the_next_block_is_read_while_this_one_is_in_use(opened):
    x = Watched(X)
    source = opened(x)
    source.batches(0, 1)
    began = time.monotonic()
    while sum(map(len, x.read)) < 8 * BATCH and time.monotonic() < began + 10:
        time.sleep(0.01)
    first = np.concatenate([np.asarray(source.batches(step, step + 1).at(jnp.asarray(step))[0]) for step in range(4)])
    rows = np.concatenate(x.read)
    assert len(rows) == len(np.unique(rows)) == 8 * BATCH  # this block and the next, and no more
    np.testing.assert_array_equal(np.sort(X[rows[: 4 * BATCH]], 0), np.sort(first, 0))


def test_waiting_is_counted_from_the_second_block_on(opened):
    delay = [0.3]
    source = opened(Watched(X, lambda rows: time.sleep(delay[0])))
    source.batches(0, 1)
    assert source.waited == 0.0
    source.batches(4, 5)
    before = source.waited
    assert 0.2 < before < 5.0
    time.sleep(0.5)  # as if the device trained, for longer than it takes to read
    source.batches(8, 9)
    assert source.waited - before < 0.1


def test_blocks_are_as_long_as_the_limit_allows_and_equally_long():
    for epoch in (1, 7, 31, 390):
        for limit in range(BLOCKS_IN_MEMORY * 100, 60_000, 700):
            steps = steps_a_block(epoch, 100, 1, limit)
            blocks = -(-epoch // steps)
            assert BLOCKS_IN_MEMORY * steps * 100 <= limit
            assert blocks == -(-epoch // min(epoch, limit // (BLOCKS_IN_MEMORY * 100)))  # no more than it needs
            assert steps - 1 < epoch / blocks <= steps
    with pytest.raises(ValueError, match=r"4 batches of 10 examples.* 400 bytes.*memory_limit=399: lower batch_size"):
        steps_a_block(7, 100, 10, 399)


def test_an_epoch_takes_no_more_memory_than_the_limit(tmp_path, opened):
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.uint8, (4000, 10_000))  # 40 MB of a sparse file
    limit = 10 * 2**20
    source = opened(x, np.zeros((4000, 1), np.float32), limit, batch=20)
    tracemalloc.start()
    for step in range(0, 200, source.steps_a_block):
        source.batches(step, step + 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert limit / 8 < peak < limit


def test_a_bad_row_stops_the_run_when_it_is_needed_and_what_was_learned_before_is_kept(tmp_path):
    order = Resident(jnp.asarray(X), jnp.asarray(Y), KEY, BATCH, 31, None).batches(0, 1).order
    row = int(order[14, 3])  # of the fourth block
    bad = X.copy()
    bad[row, 1] = np.inf
    x = ShardedRows([bad[:100], bad[100:]], ["one.npy", "two.npy"])
    name = f"row {row} (row {row % 100} of one.npy)" if row < 100 else f"row {row} (row {row - 100} of two.npy)"
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        train(x, LIMITS[4], tmp_path)
    assert str(refused.value) == (
        f"x holds NaN or infinite values, the first found in {name}: remove or impute them."
    )  # fmt: skip
    saved = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert saved[-1] == 12


def test_a_file_that_vanishes_stops_the_run_when_it_is_needed():
    def read(rows):
        if threading.current_thread() is not threading.main_thread() and len(seen) > 3:
            raise FileNotFoundError("x-00003.npy is missing.")
        seen.append(rows)

    seen = []
    with pytest.raises(FileNotFoundError, match=r"x-00003\.npy is missing"):
        train(Watched(X, read), LIMITS[4])


def test_a_run_resumes_inside_a_block(tmp_path, resident, monkeypatch):
    on_disk = Watched(X)
    log = running.TrainingRun._report

    def leave(self, before, record):
        log(self, before, record)
        if self.step >= 6:
            self._save(final=False, good=True)
            raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(running, "SECONDS_A_CALL", 0.0)
        patch.setattr(running.TrainingRun, "_report", leave)
        with pytest.raises(RuntimeError):
            train(on_disk, LIMITS[4], tmp_path)
    assert bytes_of(train(on_disk, LIMITS[5], tmp_path)) == resident  # with blocks of another length
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows][:7] == [1, 2, 3, 4, 5, 6, 7]
    assert all(row["waited_for_data"] >= 0 for row in rows)


def test_a_selection_of_shards_trains_as_its_rows(tmp_path, resident):
    order = np.random.default_rng(1).permutation(ROWS)
    stored = np.empty_like(X)
    stored[order] = X
    names = []
    for number, part in enumerate(np.split(stored, [70, 90, 200])):
        names.append(tmp_path / f"x-{number:05d}.npy")
        np.save(names[-1], part)
    rows = ShardedRows([np.load(name, mmap_mode="r") for name in names], list(map(str, names)))
    assert bytes_of(train(SelectedRows(rows, order), LIMITS[4])) == resident


def test_double_precision_reaches_the_device():
    x = X.astype(np.float64) / 3
    with jax.enable_x64(True):
        source = Streamed(Watched(x), jnp.asarray(Y, jnp.float64), KEY, BATCH, 2 * LIMITS[4])
        block = source.batches(0, 1)
        source.close()
    assert block.x.dtype == block.y.dtype == np.float64
    rows = np.asarray(block.x).reshape(-1, 2)
    assert all((row == x).all(1).any() for row in rows)


def test_a_number_that_overflows_in_single_precision_is_refused(opened):
    x = X.astype(np.float64)
    x[5] = 1e300
    with pytest.raises(ValueError, match="row 5"):
        opened(Watched(x)).sample(10)


ON_A_MESH = """
import sys
sys.path.insert(0, "tests")
import jax
jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize("localhost:" + sys.argv[1], 2, int(sys.argv[2]))
import numpy as np
from jax.sharding import PartitionSpec
from test_train_streaming import BATCH, KEY, LIMITS, X, Y, Resident, Streamed, Watched, jnp
from sdebnn.meshes import make_mesh

mesh, rows = make_mesh(2, 2), Watched(X)  # each process has the two devices that share the draws of half a batch
streamed = Streamed(rows, jnp.asarray(Y), KEY, BATCH, LIMITS[4], mesh)
resident = Resident(jnp.asarray(X), jnp.asarray(Y), KEY, BATCH, 31, mesh)
alone = Resident(jnp.asarray(X), jnp.asarray(Y), KEY, BATCH, 31, None)
for first in range(0, 62, 31):
    for step in range(first, first + 31, 4):
        block, stop = streamed.batches(step, step + 1), streamed.latest_stop(step)
        assert block.x.sharding.spec == PartitionSpec(None, "data"), block.x.sharding
        steps = [alone.batches(at, at + 1).at(jnp.asarray(at)) for at in range(step, stop)]
        for number, found in enumerate((block.x, block.y)):
            expected = np.stack([each[number] for each in steps])
            for shard in found.addressable_shards:
                own = expected[(slice(None), *shard.index[1:])]
                np.testing.assert_array_equal(np.asarray(shard.data)[: stop - step], own)
                assert shard.data.shape[:2] == (4, BATCH // 2)
    chosen = resident.batches(first, first + 1)
    assert all(part.sharding.is_fully_replicated for part in chosen)
    np.testing.assert_array_equal(chosen.order, alone.batches(first, first + 1).order)
streamed.close()
assert len(rows.read[0]) == len(np.unique(rows.read[0])) == 4 * BATCH // 2  # half of the first block, and only once
"""


def test_each_process_reads_the_rows_of_its_own_devices_once_and_they_are_those_of_one_device():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    run = [sys.executable, "-c", ON_A_MESH, port]
    pair = [subprocess.Popen([*run, str(i)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for i in (0, 1)]
    said = [each.communicate(timeout=120)[1] for each in pair]
    assert [each.returncode for each in pair] == [0, 0], "\n".join(said)


def test_training_goes_on_while_the_rows_are_read(tmp_path):
    # Sixteen blocks that take 20 ms each to read, and steps of 20 ms, four in a block: only the first is waited for.
    def slow(x):
        return jax.pure_callback(lambda x: (time.sleep(0.02), x)[1], jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    augment = lambda x, *, key: slow(x)  # noqa: E731
    fit(
        LINE, Gaussian(1.0), Watched(X, lambda rows: time.sleep(0.02)), Y, **{**HOW, "epochs": 2},
        batches=Batches(BATCH, augment=augment, memory_limit=LIMITS[4]), checkpoints=Checkpoints(tmp_path),
    )  # fmt: skip
    last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["waited_for_data"] < 0.1 * last["seconds"]
