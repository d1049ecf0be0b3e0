"""Several devices as one mesh: its axis "data" divides the examples, its axis "draw" the draws of the weights.

Parameters are on all devices. Each device computes its share of the bound, for its examples and its draws, and the
gradient of that share. In a training step only the sum of these over the mesh is communicated, all at once. Which
numbers are drawn does not depend on the mesh, so that the answer does not, but for rounding.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, PyTree

from sdebnn.checks import check_count, shown

DATA, DRAW = "data", "draw"
DIVIDED_FROM = 2**24  # numbers of an array


def make_mesh(data: int | None = None, draw: int = 1, *, devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh of ``data`` times ``draw`` devices; by default of all devices, which then divide the examples.

        mesh = make_mesh()
        samples = predict(model, x, draws=4, key=key, mesh=mesh)

    ``fit``, ``predict`` and ``evaluate`` take a mesh. ``make_mesh(4, 2)`` needs eight devices: each step divides its
    examples into four parts, and the draws of each part into two. ``devices`` is a list of devices of JAX; by default
    they are those of all processes.
    """
    found = list(jax.devices() if devices is None else devices)
    if not found or not all(isinstance(device, jax.Device) for device in found):
        raise ValueError(f"devices={shown(devices)} must be devices of JAX, such as jax.devices()[:4].")
    check_count("draw", draw)
    if data is None:
        if len(found) % draw:
            raise ValueError(f"draw={draw} does not divide {len(found)} devices: pass data, too, or another number.")
        data = len(found) // draw
    check_count("data", data)
    if data * draw > len(found):
        raise ValueError(
            f"a mesh of {data} x {draw} needs {data * draw} devices, and there are {len(found)}: choose fewer."
        )
    return _mesh(found[: data * draw], data, draw)


def _mesh(devices: Sequence[Any], data: int, draw: int) -> Mesh:
    grid = np.array(devices, dtype=object).reshape(data, draw)
    return Mesh(grid, (DATA, DRAW), axis_types=(AxisType.Auto, AxisType.Auto))


def check_mesh(mesh: object) -> Mesh:
    """The mesh with both axes, if it is one."""
    if not isinstance(mesh, Mesh) or not set(mesh.axis_names) <= {DATA, DRAW}:
        raise ValueError(f"mesh={shown(mesh)} is no mesh with the axes data and draw: pass sdebnn.make_mesh(4, 2).")
    sizes = dict(mesh.shape)
    if mesh.axis_names == (DRAW, DATA):
        mesh = Mesh(mesh.devices.T, (DATA, DRAW))
    return _mesh(list(mesh.devices.flat), sizes.get(DATA, 1), sizes.get(DRAW, 1))


def training_mesh(mesh: Mesh | None, arrays: PyTree, batch: int, draws: int, *, can_share: bool = True) -> Mesh | None:
    """The mesh on which batches of so many examples, each with so many draws, are trained; None for one device.

    By default it has as many devices as can share the examples and the draws equally. ``arrays`` that are committed to
    a device stay there. If ``can_share`` is False, the solver of the model needs a device for itself.
    """
    if mesh is None:
        if can_share:
            return _default(arrays, batch, draws)
        if jax.process_count() == 1:
            return None
    mesh = None if mesh is None else check_mesh(mesh)
    if not can_share and (mesh is None or mesh.size > 1):
        raise ValueError("adaptive steps cannot be trained on several devices: train with FixedGrid, or on one device.")
    assert mesh is not None
    for name, axis, count in (("examples", DATA, batch), ("draws", DRAW, draws)):
        if count % mesh.shape[axis]:
            raise ValueError(
                f"mesh has {mesh.shape[axis]} devices on its axis {axis}, which do not divide {count} {name}: choose "
                f"a number of devices that does, or other {name} for a step."
            )
    owners = {device.process_index for device in mesh.devices.flat}
    if len(owners) < jax.process_count():
        raise ValueError(
            f"mesh has devices of {len(owners)} of {jax.process_count()} processes: give each at least one, or leave "
            "mesh out."
        )
    return mesh if mesh.size > 1 else None


def _default(arrays: PyTree, batch: int, draws: int) -> Mesh | None:
    several = jax.process_count() > 1
    devices = jax.devices() if several else jax.local_devices()
    if not several and (len(devices) == 1 or _is_placed(arrays)):
        return None
    shapes = [(data, _largest_divisor(draws, len(devices) // data)) for data in _divisors(batch, len(devices))]
    data, draw = max(shapes, key=lambda shape: (shape[0] * shape[1], shape[0]))
    if several and data * draw < len(devices):
        raise ValueError(
            f"{len(devices)} devices of {jax.process_count()} processes cannot share {batch} examples and {draws} "
            f"draws equally: choose a batch that is a multiple of {len(devices)}."
        )
    return _mesh(devices[: data * draw], data, draw) if data * draw > 1 else None


def prediction_mesh(mesh: Mesh | None, arrays: PyTree, examples: int) -> Mesh | None:
    """The mesh on which predictions are computed; None for one device. By default, this process's devices."""
    if mesh is not None:
        mesh = check_mesh(mesh)
        if all(device.process_index != jax.process_index() for device in mesh.devices.flat):
            raise ValueError("mesh has no device of this process: pass one that has, or leave mesh out.")
        return mesh if mesh.size > 1 else None
    devices = jax.local_devices()
    if len(devices) == 1 or examples < len(devices) or _is_placed(arrays):
        return None
    return _mesh(devices, len(devices), 1)


def _is_placed(arrays: PyTree) -> bool:
    """Whether a user has chosen a device, or the arrays are being traced."""
    if jax.config.jax_default_device is not None:  # pyright: ignore[reportAttributeAccessIssue]
        return True
    found = [leaf for leaf in jax.tree.leaves(arrays) if isinstance(leaf, jax.Array)]
    return any(isinstance(leaf, Tracer) or leaf.committed for leaf in found)


def _divisors(number: int, most: int) -> list[int]:
    return [each for each in range(1, max(1, most) + 1) if number % each == 0]


def _largest_divisor(number: int, most: int) -> int:
    return _divisors(number, most)[-1]


def is_local(mesh: Mesh) -> bool:
    """Whether all devices of a mesh belong to this process."""
    return all(device.process_index == jax.process_index() for device in mesh.devices.flat)


def divided(mesh: Mesh, *axes: str | None) -> NamedSharding:
    """The placement of an array whose axes are divided over these axes of the mesh."""
    return NamedSharding(mesh, PartitionSpec(*axes))


def on_mesh(tree: PyTree, mesh: Mesh | None, *axes: str | None) -> PyTree:
    """The arrays of a tree on a mesh: divided over some of its axes, or without them on all devices.

    Each process must pass the same values, and reads those of its own devices.
    """
    return tree if mesh is None else _placed(tree, mesh, lambda leaf: divided(mesh, *axes))


def stored(tree: PyTree, mesh: Mesh | None) -> PyTree:
    """The state of a training on a mesh: on all devices, but arrays of ``DIVIDED_FROM`` numbers are divided over them.

    The devices exchange the parameters among such arrays at the beginning of each step.
    """
    return tree if mesh is None else _placed(tree, mesh, lambda leaf: _storage(leaf.shape, mesh))


def kept_stored(tree: PyTree, mesh: Mesh | None) -> PyTree:
    """The same for arrays that are being traced."""
    if mesh is None:
        return tree
    return jax.tree.map(lambda leaf: lax.with_sharding_constraint(leaf, _storage(leaf.shape, mesh)), tree)


def _storage(shape: tuple[int, ...], mesh: Mesh) -> NamedSharding:
    parts = mesh.shape[DATA]
    if math.prod(shape) >= DIVIDED_FROM:
        for number, size in enumerate(shape):
            if size % parts == 0:
                return divided(mesh, *(None,) * number, DATA)
    return divided(mesh)


def gathered(tree: PyTree, mesh: Mesh | None) -> PyTree:
    """Arrays that every process can read as a whole."""
    if mesh is None or is_local(mesh):
        return tree
    return _everywhere(tree, mesh)


@partial(jax.jit, static_argnums=1)
def _everywhere(tree: PyTree, mesh: Mesh) -> PyTree:
    return jax.tree.map(lambda leaf: lax.with_sharding_constraint(leaf, divided(mesh)), tree)


def _placed(tree: PyTree, mesh: Mesh, placement_of: Callable[[Any], NamedSharding]) -> PyTree:
    def put(leaf: Any) -> Any:
        if not eqx.is_array(leaf):
            return leaf
        placement = placement_of(leaf)
        if isinstance(leaf, jax.Array):
            if leaf.sharding == placement:
                return leaf
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                return jax.random.wrap_key_data(put(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
        if is_local(mesh):
            return jax.device_put(leaf, placement)
        host = np.asarray(leaf)
        return jax.make_array_from_callback(host.shape, placement, lambda index: host[index])

    return jax.tree.map(put, tree)


def padded(array: Array, multiple: int) -> Array:
    """An array whose first axis is filled up to a multiple with copies of its first rows."""
    rows = array.shape[0] + -array.shape[0] % multiple
    return array if rows == array.shape[0] else array[jnp.arange(rows) % array.shape[0]]


class Share(NamedTuple):
    """The share of a device: one of ``examples`` parts of a batch, and of ``draws`` parts of its draws."""

    examples: int
    draws: int
    part: Int[Array, ""]  # of the draws

    @staticmethod
    def here(mesh: Mesh) -> "Share":
        """That of the device on which this is traced."""
        return Share(mesh.shape[DATA], mesh.shape[DRAW], lax.axis_index(DRAW))

    def of_keys(self, keys: Array) -> Array:
        """The keys of the draws."""
        return keys.reshape(self.draws, keys.size // self.draws)[self.part]

    @property
    def parts(self) -> int:
        """The number of devices."""
        return self.examples * self.draws


def total(tree: PyTree) -> PyTree:
    """The sum over all devices of the mesh, of all arrays of a tree in one message."""
    leaves, structure = jax.tree.flatten(tree)
    of_type: dict[Any, list[int]] = {}
    for number, leaf in enumerate(leaves):
        of_type.setdefault(leaf.dtype, []).append(number)
    for numbers in of_type.values():
        flat = lax.psum(jnp.concatenate([leaves[i].ravel() for i in numbers]), (DATA, DRAW))
        ends = np.cumsum([leaves[i].size for i in numbers])[:-1].tolist()
        for i, part in zip(numbers, jnp.split(flat, ends), strict=True):
            leaves[i] = part.reshape(leaves[i].shape)
    return jax.tree.unflatten(structure, leaves)
