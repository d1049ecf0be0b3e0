"""Batches for the training loop: from data that are on the device, or from rows that are read when they are needed.

``batches(step, stop)`` returns the batches of the steps from ``step`` to ``stop``. They must belong to one epoch,
unless every step takes all examples. ``steps_a_call`` is the largest number of steps that one call may ask for.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key, PRNGKeyArray

from sdebnn.data import Inputs, SelectedRows
from sdebnn.programs import compiled


class StepBatches(NamedTuple):
    """The batches of one call: rows of x and y, and which of them each step takes."""

    x: Array
    y: Array
    order: Int[Array, "step row"] | None  # None if every step takes all rows
    first: Int[Array, ""]  # the step of the run that takes the first row of ``order``


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

    def __init__(self, examples: int, key: PRNGKeyArray, batch_size: int, steps_a_call: int):
        self.examples, self.key, self.batch_size, self.steps_a_call = examples, key, batch_size, steps_a_call
        self.steps_an_epoch = self.examples // batch_size
        self.epoch, self.order = -1, jnp.zeros((0, 0), jnp.int32)

    def _order_at(self, step: int) -> Array:
        epoch = step // self.steps_an_epoch
        if epoch != self.epoch:
            self.order = epoch_order(self.key, jnp.asarray(epoch, jnp.int32), self.examples, self.batch_size)
            self.epoch = epoch
        return self.order

    @property
    def _first(self) -> int:
        return self.epoch * self.steps_an_epoch


class Resident(_Shuffled):
    """Examples that are all on the device."""

    def __init__(self, x: Array, y: Array, key: PRNGKeyArray, batch_size: int, steps_a_call: int):
        super().__init__(x.shape[0], key, batch_size, steps_a_call)
        self.x, self.y = x, y

    def batches(self, step: int, stop: int) -> StepBatches:
        """All rows, and which of them each step of the epoch takes."""
        if self.batch_size == self.examples:
            return StepBatches(self.x, self.y, None, jnp.zeros((), jnp.int32))
        order = self._order_at(step)
        return StepBatches(self.x, self.y, order, jnp.asarray(self._first, jnp.int32))

    def sample(self, rows: int) -> tuple[Array, Array]:
        """The first rows."""
        return self.x[:rows], self.y[:rows]


class Streamed(_Shuffled):
    """Examples on disk or in host memory; each call is given only the rows that it uses."""

    def __init__(
        self, x: Inputs, y: Inputs, key: PRNGKeyArray, batch_size: int, steps_a_call: int, memory_limit: int
    ):  # fmt: skip
        row = np.dtype(x.dtype).itemsize * int(np.prod(x.shape[1:]))
        # The rows of one call exist up to three times: as read, padded with zeros, and on the device.
        steps_in_memory = max(1, min(steps_a_call, memory_limit // (3 * row * batch_size)))
        super().__init__(x.shape[0], key, batch_size, steps_in_memory)
        self.x, self.y = x, np.asarray(y)
        if row * batch_size > memory_limit:
            raise ValueError(
                f"one batch of {batch_size} examples takes {row * batch_size} bytes, more than "
                f"memory_limit={memory_limit}: lower batch_size, or raise the limit."
            )
        self.numbers = jnp.arange(steps_in_memory * batch_size).reshape(steps_in_memory, batch_size)

    def batches(self, step: int, stop: int) -> StepBatches:
        """The rows of these steps in order, padded with zeros to the length of the longest call."""
        order = np.asarray(self._order_at(step))
        begin = step - self._first
        rows = order[begin : begin + max(1, stop - step)].ravel()
        x = self._read(rows)
        gap = self.numbers.size - len(rows)
        if gap:
            x = np.concatenate([x, np.zeros((gap, *x.shape[1:]), x.dtype)])
        y = np.concatenate([self.y[rows], np.zeros((gap, *self.y.shape[1:]), self.y.dtype)])
        return StepBatches(jnp.asarray(x), jnp.asarray(y), self.numbers, jnp.asarray(step, jnp.int32))

    def sample(self, rows: int) -> tuple[Array, Array]:
        """The first rows."""
        return jnp.asarray(self._read(np.arange(rows))), jnp.asarray(self.y[:rows])

    def _read(self, rows: np.ndarray) -> np.ndarray:
        ascending = np.argsort(rows, kind="stable")  # a disk reads fastest in the order in which the rows are stored
        x = np.empty((len(rows), *self.x.shape[1:]), self.x.dtype)
        x[ascending] = self.x[rows[ascending]]
        if np.issubdtype(x.dtype, np.floating) and not np.isfinite(x).all():
            row = rows[np.nonzero(~np.isfinite(x).reshape(len(x), -1).all(1))[0][0]]
            if isinstance(self.x, SelectedRows):  # a split: report the row number in the user's own array
                row = self.x.origin(row)[0]
            raise ValueError(f"x holds NaN or infinite values, the first found in row {row}: remove or impute them.")
        return x


BatchSource = Resident | Streamed


def batch_source(
    x: Inputs, y: Array, key: PRNGKeyArray, *, batch_size: int, steps_a_call: int, memory_limit: int
) -> BatchSource:
    """The source of batches for these data: ``Resident`` if they are on the device, else ``Streamed``."""
    if isinstance(x, jax.Array):
        return Resident(x, y, key, batch_size, steps_a_call)
    return Streamed(x, y, key, batch_size, steps_a_call, memory_limit)
