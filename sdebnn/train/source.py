"""Where batches come from: data that live on the device, or rows read as they are needed.

``batches(step, stop)`` gives those of the steps from ``step`` to ``stop``, which are of one epoch, or take all examples
each; ``at_most`` is how many steps one call may take.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from sdebnn.data.dataset import Rows
from sdebnn.train.loop import Batches, Job, epoch_order
from sdebnn.train.objective import is_resident


class _Ordered:
    """The order of examples, epoch by epoch; the same whether they are streamed or not."""

    def __init__(self, x: Any, y: Any, key: PRNGKeyArray, job: Job):
        self.x, self.y, self.key, self.job = x, y, key, job
        self.steps_an_epoch = job.examples // job.batch_size
        self.at_most = job.records
        self.epoch, self.order = -1, jnp.zeros((0, 0), jnp.int32)

    def _order_at(self, step: int) -> Array:
        epoch = step // self.steps_an_epoch
        if epoch != self.epoch:
            number = jnp.asarray(epoch, jnp.int32)
            self.order = epoch_order(self.key, number, self.job.examples, self.job.batch_size)
            self.epoch = epoch
        return self.order

    @property
    def _first(self) -> int:
        return self.epoch * self.steps_an_epoch


class Resident(_Ordered):
    """All examples on the device."""

    def batches(self, step: int, stop: int) -> Batches:
        """All rows, and which of them each step of the epoch takes."""
        if self.job.batch_size == self.job.examples:
            return Batches(self.x, self.y, None, jnp.zeros((), jnp.int32))
        order = self._order_at(step)
        return Batches(self.x, self.y, order, jnp.asarray(self._first, jnp.int32))

    def sample(self, rows: int) -> tuple[Array, Array]:
        """The first rows."""
        return self.x[:rows], self.y[:rows]


class Streamed(_Ordered):
    """Examples on disk or in the host's memory, of which a call is given those that it takes."""

    def __init__(self, x: Any, y: Any, key: PRNGKeyArray, job: Job, memory_limit: int):
        super().__init__(x, np.asarray(y), key, job)
        row = np.dtype(x.dtype).itemsize * int(np.prod(x.shape[1:]))
        # What one call reads is there up to three times: as read, filled up with zeros, and on the device.
        self.at_most = max(1, min(job.records, memory_limit // (3 * row * job.batch_size)))
        if row * job.batch_size > memory_limit:
            raise ValueError(
                f"one batch of {job.batch_size} examples takes {row * job.batch_size} bytes, more than "
                f"memory_limit={memory_limit}: lower batch_size, or raise the limit."
            )
        self.numbers = jnp.arange(self.at_most * job.batch_size).reshape(self.at_most, job.batch_size)

    def batches(self, step: int, stop: int) -> Batches:
        """The rows of these steps, in order, and zeros for as many as the longest call has."""
        order = np.asarray(self._order_at(step))
        begin = step - self._first
        rows = order[begin : begin + max(1, stop - step)].ravel()
        x = self._read(rows)
        gap = self.numbers.size - len(rows)
        if gap:
            x = np.concatenate([x, np.zeros((gap, *x.shape[1:]), x.dtype)])
        y = np.concatenate([self.y[rows], np.zeros((gap, *self.y.shape[1:]), self.y.dtype)])
        return Batches(jnp.asarray(x), jnp.asarray(y), self.numbers, jnp.asarray(step, jnp.int32))

    def sample(self, rows: int) -> tuple[Array, Array]:
        """The first rows."""
        return jnp.asarray(self._read(np.arange(rows))), jnp.asarray(self.y[:rows])

    def _read(self, rows: np.ndarray) -> np.ndarray:
        # In the order they lie in: a disk reads forwards.
        ascending = np.argsort(rows, kind="stable")
        x = np.empty((len(rows), *self.x.shape[1:]), self.x.dtype)
        x[ascending] = self.x[rows[ascending]]
        if np.issubdtype(x.dtype, np.floating) and not np.isfinite(x).all():
            row = rows[np.nonzero(~np.isfinite(x).reshape(len(x), -1).all(1))[0][0]]
            if isinstance(self.x, Rows):  # of a split: the user knows the row of the whole
                row = self.x.origin(row)[0]
            raise ValueError(f"x holds NaN or infinite values, the first found in row {row}: remove or impute them.")
        return x


Source = Resident | Streamed


def source_of(x: Any, y: Array, key: PRNGKeyArray, job: Job, memory_limit: int) -> Source:
    """The source that suits the data: on the device if they are there."""
    return Resident(x, y, key, job) if is_resident(x) else Streamed(x, y, key, job, memory_limit)
