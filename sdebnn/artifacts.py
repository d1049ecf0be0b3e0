"""Fitted estimators as files: one safetensors file each, of numbers and words, nothing that runs when it is read."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from sdebnn.checks import shown
from sdebnn.estimators import SDEBNNClassifier, SDEBNNRegressor
from sdebnn.estimators.estimator import Estimator
from sdebnn.estimators.net import Net
from sdebnn.estimators.table import Encoding, Scaling
from sdebnn.files import load_one, save_one

KIND = "estimator of sdebnn, version 1"
CLASSES: dict[str, type[Estimator]] = {of.__name__: of for of in (SDEBNNClassifier, SDEBNNRegressor)}
TUPLES: dict[str, Any] = {of.__name__: of for of in (Encoding, Net, Scaling)}
Place = str | os.PathLike[str]


def save(estimator: Any, path: Place) -> None:
    """Write a fitted estimator to one file, whole or not at all; one that was there before is replaced.

    ``load`` gives it back, with the same predictions, on any machine.
    """
    name = type(estimator).__name__
    if CLASSES.get(name) is not type(estimator):
        raise ValueError(f"{shown(estimator)} is none of {', '.join(CLASSES)}: pass one that was fitted.")
    if not estimator.__sklearn_is_fitted__():
        raise ValueError(f"this {name} is not fitted yet: call fit first.")
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"{path} cannot be a file: choose a name in a folder that is there.")
    arrays: dict[str, np.ndarray] = {}
    facts = {key: _taken_apart(key, value, arrays) for key, value in estimator.__getstate__().items()}
    save_one(path, arrays, KIND, {"class": name, "state": facts})


def load(path: Place) -> Any:
    """The fitted estimator that ``save`` wrote."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} is not there: pass the file that sdebnn.save wrote.")
    arrays, words = load_one(path, KIND)
    estimator = CLASSES[words["class"]].__new__(CLASSES[words["class"]])
    estimator.__setstate__({key: _put_together(value, arrays) for key, value in words["state"].items()})
    return estimator


def _taken_apart(key: str, value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """A value as JSON can say it; the arrays in it go where they belong, and leave their names."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "OU":
        if not all(isinstance(word, str) for word in value.tolist()):
            raise ValueError(f"{key}={shown(value)} is not of words or numbers alone: save it by joblib instead.")
        return {"words": value.tolist(), "dtype": value.dtype.str}
    if isinstance(value, np.ndarray):
        arrays[key] = value
        return {"array": key}
    if type(value).__name__ in TUPLES:
        fields = [_taken_apart(f"{key}.{name}", part, arrays) for name, part in value._asdict().items()]
        return {"tuple": type(value).__name__, "fields": fields}
    if isinstance(value, dict):
        names = [name.item() if isinstance(name, np.generic) else name for name in value]
        parts = [_taken_apart(f"{key}.{name}", part, arrays) for name, part in zip(names, value.values(), strict=True)]
        return {"dict": [list(pair) for pair in zip(names, parts, strict=True)]}
    if isinstance(value, np.generic):
        value = value.item()
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"{key}={shown(value)} is neither a number nor a word: set it to one before saving, or save by joblib."
        ) from None
    return {"value": value}


def _put_together(value: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    match value:
        case {"words": words, "dtype": dtype}:
            return np.array(words, dtype=dtype)
        case {"array": name}:
            return arrays[name]
        case {"tuple": name, "fields": fields}:
            return TUPLES[name](*(_put_together(part, arrays) for part in fields))
        case {"dict": pairs}:
            return {name: _put_together(part, arrays) for name, part in pairs}
    return value["value"]
