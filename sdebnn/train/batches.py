"""Batches for the training loop: from data that are on the device, or from rows that are read ahead of the steps.

A source has ``batches(step, stop)``, the batches of the steps from ``step`` to ``stop``, which is at most
``latest_stop(step)``. The order of the examples depends only on the key, so that a run does not depend on where its
data are stored, on how much memory there is, or on the devices.
"""

import math
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from threading import Event
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Int, Key, PRNGKeyArray

from sdebnn.data import Inputs, name_of_row
from sdebnn.meshes import DATA, divided, on_mesh
from sdebnn.programs import compiled

BLOCKS_IN_MEMORY = 4  # the block in use and the next, each once on the host and once on the device
BYTES_A_READ = 2**21  # of rows that are read together; between two reads the thread can be stopped


class AllRows(NamedTuple):
    """The batches of steps that all take all rows."""

    x: Array
    y: Array

    def at(self, step: Int[Array, ""]) -> tuple[Array, Array]:
        """The batch of a step of the run."""
        return self.x, self.y


class ChosenRows(NamedTuple):
    """The batches of some steps: all rows, and which of them each step takes."""

    x: Array
    y: Array
    order: Int[Array, "step row"]
    first: Int[Array, ""]  # the step of the run that takes the first row of ``order``

    def at(self, step: Int[Array, ""]) -> tuple[Array, Array]:
        """The batch of a step of the run."""
        rows = self.order[step - self.first]
        return self.x[rows], self.y[rows]


class RowsByStep(NamedTuple):
    """The batches of some steps, one after the other: the first axis of x and y counts steps, the second rows."""

    x: Array
    y: Array
    first: Int[Array, ""]  # the step of the run to which the first batch belongs

    def at(self, step: Int[Array, ""]) -> tuple[Array, Array]:
        """The batch of a step of the run."""
        number = step - self.first
        x, y = (lax.dynamic_index_in_dim(array, number, keepdims=False) for array in (self.x, self.y))
        return x, y


StepBatches = AllRows | ChosenRows | RowsByStep


def epoch_keys(key: PRNGKeyArray, epoch: Int[Array, ""] | int) -> Key[Array, "2"]:
    """Two keys for an epoch: one for the order of its examples, one for the draws of its steps."""
    return jax.random.split(jax.random.fold_in(key, epoch))


@compiled
def epoch_order(key: PRNGKeyArray, epoch: Int[Array, ""], examples: int, batch: int) -> Int[Array, "step row"]:
    """The examples that each step of an epoch takes. Examples that do not fill a batch are left out of this epoch."""
    steps = examples // batch
    order = jax.random.permutation(epoch_keys(key, epoch)[0], examples)
    return order[: steps * batch].reshape(steps, batch)


class _Shuffled:
    """Examples in a new order each epoch. The order does not depend on where the examples are stored."""

    def __init__(self, examples: int, key: PRNGKeyArray, batch_size: int, mesh: Mesh | None):
        self.examples, self.key, self.batch_size, self.mesh = examples, key, batch_size, mesh
        self.steps_an_epoch = examples // batch_size
        self.waited = 0.0  # seconds that the run has waited for rows, without those before its first step

    def _order(self, epoch: int) -> Int[Array, "step row"]:
        return epoch_order(self.key, jnp.asarray(epoch, jnp.int32), self.examples, self.batch_size)

    def close(self) -> None:
        """Release what the source holds open."""


class Resident(_Shuffled):
    """Examples that are all on the device, or on every device of the mesh."""

    def __init__(self, x: Array, y: Array, key: PRNGKeyArray, batch_size: int, steps_a_call: int, mesh: Mesh | None):
        super().__init__(x.shape[0], key, batch_size, mesh)
        self.x, self.y, self.steps_a_call = on_mesh(x, mesh), on_mesh(y, mesh), steps_a_call
        self.epoch, self.order = -1, jnp.zeros((0, 0), jnp.int32)

    def batches(self, step: int, stop: int) -> AllRows | ChosenRows:
        """All rows, and which of them each step of the epoch takes."""
        if self.batch_size == self.examples:
            return AllRows(self.x, self.y)
        epoch = step // self.steps_an_epoch
        if epoch != self.epoch:
            self.epoch, self.order = epoch, on_mesh(self._order(epoch), self.mesh)
        first = on_mesh(jnp.asarray(epoch * self.steps_an_epoch, jnp.int32), self.mesh)
        return ChosenRows(self.x, self.y, self.order, first)

    def latest_stop(self, step: int) -> int:
        """The step at which a call that begins at ``step`` ends at the latest: the end of its epoch if it has one."""
        if self.batch_size == self.examples:
            return step + self.steps_a_call
        return (step // self.steps_an_epoch + 1) * self.steps_an_epoch

    def sample(self, rows: int) -> tuple[Array, Array]:
        """The first rows."""
        return self.x[:rows], self.y[:rows]


class Streamed(_Shuffled):
    """Examples on disk or in host memory. A thread reads the rows of the next steps while the device trains.

    The steps of an epoch are divided into blocks of equal length. While the steps of one block run, the rows of the
    next are read and sent to the device. With a mesh, a process reads only the rows of its own devices; the limit is
    that of the whole block, so that all processes have the same blocks. All rows are read in that one thread.
    """

    def __init__(
        self, x: Inputs, y: Array, key: PRNGKeyArray, batch_size: int, memory_limit: int, mesh: Mesh | None = None
    ):  # fmt: skip
        super().__init__(x.shape[0], key, batch_size, mesh)
        self.x, self.y = x, np.asarray(y)
        self.dtype = np.dtype(jax.dtypes.canonicalize_dtype(x.dtype))
        batch_bytes = batch_size * (_row_bytes(x.shape, self.dtype) + _row_bytes(self.y.shape, self.y.dtype))
        self.steps_a_block = steps_a_block(self.steps_an_epoch, batch_bytes, batch_size, memory_limit)
        self.blocks_an_epoch = math.ceil(self.steps_an_epoch / self.steps_a_block)
        self._number, self._block = -1, None  # the block in use
        self._next_number, self._next = -1, None  # the block that is being read, or was
        self._closed = Event()
        # These settings of JAX may differ between threads: the reader uses those of the thread that trains.
        config: Any = jax.config  # its attributes are not declared
        self._settings = config.jax_default_device, config.jax_enable_x64
        self._epoch, self._order_of_epoch = -1, jnp.zeros((0, 0), jnp.int32)
        self._reader = ThreadPoolExecutor(1, "sdebnn-rows")

    def batches(self, step: int, stop: int) -> RowsByStep:
        """The block of rows to which these steps belong. It is padded with zeros if an epoch ends before it."""
        number = self._block_number(step)
        if self._block is None or number != self._number:
            clock, is_first = time.perf_counter(), self._block is None
            block = self._requested(number).result()
            if not is_first:
                self.waited += time.perf_counter() - clock
            self._number, self._block = number, block
            self._next_number, self._next = number + 1, self._submitted(number + 1)
        return self._block

    def latest_stop(self, step: int) -> int:
        """The step at which a call that begins at ``step`` ends at the latest: the end of its block."""
        epoch, block = divmod(self._block_number(step), self.blocks_an_epoch)
        return epoch * self.steps_an_epoch + min((block + 1) * self.steps_a_block, self.steps_an_epoch)

    def sample(self, rows: int) -> tuple[Array, Array]:
        """The first rows."""
        x = self._reader.submit(self._rows, np.arange(rows)).result()
        return on_mesh(jnp.asarray(x), self.mesh), on_mesh(jnp.asarray(self.y[:rows]), self.mesh)

    def close(self) -> None:
        """End the thread, after the read that it is at."""
        self._closed.set()
        self._reader.shutdown(cancel_futures=True)
        self._block = self._next = None

    def _block_number(self, step: int) -> int:
        """The number of the block to which a step belongs, counted from the first block of the run."""
        epoch, step_of_epoch = divmod(step, self.steps_an_epoch)
        return epoch * self.blocks_an_epoch + step_of_epoch // self.steps_a_block

    def _requested(self, number: int) -> Future[RowsByStep]:
        coming, self._next = self._next, None
        if coming is not None and self._next_number == number:
            return coming
        if coming is not None:
            coming.cancel()
        return self._submitted(number)

    def _submitted(self, number: int) -> Future[RowsByStep]:
        # The device computes the order while this thread goes on, and the reader waits for it.
        epoch, block = divmod(number, self.blocks_an_epoch)
        if epoch != self._epoch:
            self._epoch, self._order_of_epoch = epoch, self._order(epoch)
        begin = block * self.steps_a_block
        return self._reader.submit(self._read, self._order_of_epoch, begin, epoch * self.steps_an_epoch + begin)

    # What follows runs in the thread that reads.

    def _read(self, order: Int[Array, "step row"], begin: int, first: int) -> RowsByStep:
        """The block whose first step has the number ``begin`` in its epoch and ``first`` in the run."""
        device, wide = self._settings
        rows = np.asarray(order)[begin : begin + self.steps_a_block]
        with jax.default_device(device), jax.enable_x64(wide):
            x = self._placed(rows, self.x.shape[1:], self._rows)
            y = self._placed(rows, self.y.shape[1:], lambda rows: self.y[rows])
            block = RowsByStep(x, y, on_mesh(jnp.asarray(first, jnp.int32), self.mesh))
            return jax.block_until_ready(block)

    def _placed(
        self, rows: np.ndarray, shape: tuple[int, ...], values: Callable[[np.ndarray], np.ndarray]
    ) -> Array:  # fmt: skip
        """The values of these rows "step row" on the device or devices, padded to the length of a block."""

        def padded(part: np.ndarray) -> np.ndarray:
            steps, size = part.shape
            found = values(part.ravel()).reshape(steps, size, *shape)
            gap = self.steps_a_block - steps
            return np.concatenate([found, np.zeros((gap, size, *shape), found.dtype)]) if gap else found

        if self.mesh is None:
            return jnp.asarray(padded(rows))
        # Devices that share the draws of a batch have the same examples, which are read once.
        kept: dict[tuple[int, int, int], np.ndarray] = {}

        def of_device(index: Any) -> np.ndarray:  # of one slice for each axis
            columns = index[1].indices(self.batch_size)
            if columns not in kept:
                kept[columns] = padded(rows[:, index[1]])
            return kept[columns]

        placement = divided(self.mesh, None, DATA)
        return jax.make_array_from_callback((self.steps_a_block, self.batch_size, *shape), placement, of_device)

    def _rows(self, rows: np.ndarray) -> np.ndarray:
        """These rows of x, read a few at a time in the order in which they are stored."""
        found = np.empty((len(rows), *self.x.shape[1:]), self.dtype)
        ascending = np.argsort(rows, kind="stable")
        together = max(1, BYTES_A_READ // max(1, _row_bytes(self.x.shape, np.dtype(self.x.dtype))))
        for i in range(0, len(rows), together):
            if self._closed.is_set():
                raise CancelledError
            some = ascending[i : i + together]
            with np.errstate(over="ignore"):
                part = np.asarray(self.x[rows[some]]).astype(self.dtype, copy=False)
            self._check(part, rows[some])
            found[some] = part
        return found

    def _check(self, part: np.ndarray, rows: np.ndarray) -> None:
        if not jnp.issubdtype(part.dtype, jnp.inexact) or np.isfinite(part).all():
            return
        row = int(rows[np.nonzero(~np.isfinite(part).reshape(len(part), -1).all(1))[0][0]])
        raise ValueError(
            f"x holds NaN or infinite values, the first found in {name_of_row(self.x, row)}: remove or impute them."
        )


BatchSource = Resident | Streamed


def batch_source(
    x: Inputs,
    y: Array,
    key: PRNGKeyArray,
    *,
    batch_size: int,
    steps_a_call: int,
    memory_limit: int,
    mesh: Mesh | None = None,
) -> BatchSource:
    """The source of batches for these data: ``Resident`` if they are on the device, else ``Streamed``."""
    if isinstance(x, jax.Array):
        return Resident(x, y, key, batch_size, steps_a_call, mesh)
    return Streamed(x, y, key, batch_size, memory_limit, mesh)


def steps_a_block(steps_an_epoch: int, batch_bytes: int, batch_size: int, memory_limit: int) -> int:
    """The number of steps whose rows are read together: an epoch in as few equal blocks as the limit allows."""
    if BLOCKS_IN_MEMORY * batch_bytes > memory_limit:
        raise ValueError(
            f"{BLOCKS_IN_MEMORY} batches of {batch_size} examples, which reading ahead keeps in memory, take "
            f"{BLOCKS_IN_MEMORY * batch_bytes} bytes, more than memory_limit={memory_limit}: lower batch_size, or "
            "raise the limit."
        )
    # A short block at the end of an epoch would leave too little time to read the block after it.
    blocks = math.ceil(steps_an_epoch / (memory_limit // (BLOCKS_IN_MEMORY * batch_bytes)))
    return math.ceil(steps_an_epoch / blocks)


def _row_bytes(shape: tuple[int, ...], dtype: np.dtype) -> int:
    return dtype.itemsize * math.prod(shape[1:])
