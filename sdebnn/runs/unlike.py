"""How unlike the training data an example is, as a run keeps it: by its pixels or columns, and by its hidden states.

RUN/inputs.safetensors   the distance of inputs, written before the training
RUN/states.safetensors   for nets of images, the distance of hidden states, written after it
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from sdebnn.contract import AbstractModel
from sdebnn.data import Distance, Inputs, features
from sdebnn.presets import About
from sdebnn.records import broken, check_finite, load_one, number, one_bytes, read_result, whole
from sdebnn.strangeness import LayerDistance, StateDistance

INPUTS_KIND, INPUTS_FILE = "inputs of a net, version 1", "inputs.safetensors"
STATES_KIND, STATES_FILE = "states of a net, version 1", "states.safetensors"
STATE_RULES = {"limit": number(), "layers": whole(1, 1000), "epochs": whole(1)}
ROWS_AT_ONCE = 1000


class Unlike(NamedTuple):
    """How far examples are from those of training: 99 % of those have at most 1.

    By hidden states if they were measured, and otherwise by the inputs themselves.
    """

    inputs: Distance
    states: StateDistance | None = None

    def of(self, model: AbstractModel, x: Inputs) -> np.ndarray:
        """The distance of each example, as the model sees it."""
        rows = range(0, x.shape[0], ROWS_AT_ONCE)
        return np.concatenate([self._of(model, np.asarray(x[i : i + ROWS_AT_ONCE])) for i in rows])

    def _of(self, model: AbstractModel, x: np.ndarray) -> np.ndarray:
        return self.inputs.to(features(x)) if self.states is None else self.states.to(model, x)


def inputs_bytes(distance: Distance) -> bytes:
    """The file with the distance of inputs."""
    arrays = {name: getattr(distance, name) for name in ("center", "spread", "factor")}
    return one_bytes(arrays, INPUTS_KIND, {"limit": distance.limit})


def states_bytes(distance: StateDistance, epochs: int) -> bytes:
    """The file with the distance of hidden states after so many epochs."""
    arrays = {"key": distance.key}
    for i, layer in enumerate(distance.layers):
        arrays |= {f"{i}.{name}": np.asarray(getattr(layer, name), np.float32) for name in LayerDistance._fields}
    return one_bytes(arrays, STATES_KIND, {"limit": distance.limit, "layers": len(distance.layers), "epochs": epochs})


def read_unlike(out: Path, about: About, epochs: int | None) -> Unlike:
    """The distances of a run. Those of states are used if they were measured after so many epochs; None: never."""
    return Unlike(_read_inputs(out, about), None if epochs is None else _read_states(out, epochs))


def _read_inputs(out: Path, about: About) -> Distance:
    file = out / INPUTS_FILE
    if not file.is_file():
        raise ValueError(f"{out} is not a whole run: {file.name} is missing; restore it, or train the run again.")
    arrays, facts = load_one(file, INPUTS_KIND, {"limit": number(0.0)})
    check_finite(file, arrays)
    size = features(np.zeros((1, *about.shape), np.uint8)).shape[1]
    distance = Distance.from_arrays(arrays, facts["limit"], size)
    if distance is None:
        raise broken(file, f"does not compare examples of shape {about.shape}")
    return distance


def _read_states(out: Path, epochs: int) -> StateDistance | None:
    """The distance of hidden states; None if a run keeps none, or of another model than its last."""
    file, result = out / STATES_FILE, out / "result.json"
    if not file.is_file():
        if result.is_file() and read_result(result).get("unlike_by") == "states":
            raise ValueError(f"{out} is not a whole run: {file.name} is missing; restore it, or train the run again.")
        return None
    arrays, facts = load_one(file, STATES_KIND, STATE_RULES)
    if facts["epochs"] != epochs:
        return None
    key = arrays.pop("key", np.zeros(0))
    check_finite(file, arrays)
    layers = [_layer(arrays, number) for number in range(facts["layers"])]
    found = tuple(layer for layer in layers if layer is not None)
    if arrays or len(found) != len(layers) or key.dtype != np.uint32 or key.shape != (2,):
        raise broken(file, "does not compare hidden states")
    return StateDistance(found, facts["limit"], key)


def _layer(arrays: dict[str, np.ndarray], number: int) -> LayerDistance | None:
    """The distance of one layer, taken out of the arrays; None if they do not fit together."""
    taken = [arrays.pop(f"{number}.{name}", np.zeros(0)) for name in LayerDistance._fields]
    projection, means, factors, center, spread = taken
    if projection.ndim != 2 or means.ndim != 2 or not all(array.size for array in taken):
        return None
    classes, dim = means.shape
    shapes = {(classes, dim, dim), (1, dim, dim)}
    if projection.shape[1] != dim or factors.shape not in shapes or center.shape or spread.shape:
        return None
    return LayerDistance(projection, means, factors, float(center), float(spread)) if spread > 0 else None
