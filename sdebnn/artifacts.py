"""Fitted estimators as files: one safetensors file each, of numbers and words, nothing that runs when it is read.

The digest in a file detects damage, not forgery. So what was read is checked part by part before an estimator is built
from it, and nothing is allocated that is larger than the file itself accounts for.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from sdebnn.checks import shown
from sdebnn.estimators import SDEBNNClassifier, SDEBNNRegressor
from sdebnn.estimators.estimator import Estimator
from sdebnn.estimators.net import STATE, Net
from sdebnn.estimators.regressor import NOISES
from sdebnn.estimators.table import Encoding, Scaling
from sdebnn.records import (
    OBJECT,
    TEXT,
    Rule,
    Rules,
    broken,
    check_finite,
    check_record,
    load_one,
    named,
    number,
    one_of,
    or_none,
    save_one,
    whole,
)

KIND = "estimator of sdebnn, version 1"
LONGEST_WORD = 2**16  # letters of a label or a column's name
FLAG = Rule("true or false", lambda value: isinstance(value, bool) or value in (0, 1))
COUNT = whole(1, 2**40)
PARAMETERS: Rules = {
    **dict.fromkeys(("members", "width", "steps", "max_iter", "n_iter_no_change", "draws"), COUNT),
    **{name: number() for name in ("sigma", "kl_weight", "learning_rate", "validation_fraction")},
    **dict.fromkeys(("early_stopping", "conformal", "warm_start"), FLAG),
    "calibration_fraction": number(),
    "batch_size": or_none(COUNT),
}
FITTED: Rules = {
    "n_features_in_": whole(1, 2**30),
    "seed_": whole(0, 2**31),
    "draws_": COUNT,
    "n_iter_": whole(0),
    "calibration_": number(0.0),
    "scores_": Rule("numbers in order", lambda value: value is None or _numbers(value)),
    "net_": Rule("the sizes of a net", lambda value: isinstance(value, Net)),
    "encoding_": Rule("an encoding of columns", lambda value: isinstance(value, Encoding)),
    "y_scaling_": Rule("a scaling of targets", lambda value: isinstance(value, Scaling)),
    "members_": OBJECT,
}
OF_CLASS: dict[str, Rules] = {
    "SDEBNNRegressor": {"noise": TEXT, "noise_": one_of(*NOISES), "flat_": FLAG},
    "SDEBNNClassifier": {"classes_": Rule("two labels or more", lambda v: isinstance(v, np.ndarray) and v.size > 1)},
}
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
    arrays, words = load_one(path, KIND, {"class": one_of(*CLASSES), "state": OBJECT})
    try:
        state = {key: _put_together(value, arrays) for key, value in words["state"].items()}
        _check_state(path, words["class"], state)
        estimator = CLASSES[words["class"]].__new__(CLASSES[words["class"]])
        estimator.__setstate__(state)
    except ValueError as error:
        raise error if str(path) in str(error) else broken(path, f"holds no estimator ({error})") from None
    except (TypeError, KeyError, AttributeError, IndexError, RecursionError, OverflowError) as error:
        raise broken(path, f"holds a record that makes no estimator ({type(error).__name__})") from None
    return estimator


def _check_state(path: Path, of: str, state: dict[str, Any]) -> None:
    """Refuse what cannot be the state of a fitted estimator."""
    check_record(path, state, {**PARAMETERS, **FITTED, **OF_CLASS[of]})
    net, encoding, scaling, members = (state[name] for name in ("net_", "encoding_", "y_scaling_", "members_"))
    check_record(path, net._asdict(), {**dict.fromkeys(Net._fields, COUNT), "sigma": number(0.0)})
    features, targets = state["n_features_in_"], net.outputs // 2 if of == "SDEBNNRegressor" else 1
    shapes = {
        "encoding_.columns.center": (encoding.columns, (features,)),
        "encoding_.bins.center": (encoding.bins, (features * net.bins,)),
        "y_scaling_.center": (scaling, (targets,)),
    }
    for name, (part, shape) in shapes.items():
        if not isinstance(part, Scaling) or not all(_numbers(a) and a.shape == shape for a in part):
            raise broken(path, f"has another {name} than numbers of shape {shape}")
        check_finite(path, {name: part.center})
    if not _numbers(encoding.knots) or encoding.knots.shape != (features, net.bins + 1) or features > net.features:
        raise broken(path, f"has another encoding_.knots than those of {features} columns")
    if of == "SDEBNNClassifier" and state["classes_"].shape != (net.outputs,):
        raise broken(path, f"has other classes_ than one for each of {net.outputs} outputs")
    _check_members(path, net, members)


def _check_members(path: Path, net: Net, members: dict[str, np.ndarray]) -> None:
    """Refuse arrays that are not those of so many nets, or that are not finite."""
    if not members or not all(isinstance(name, str) and _numbers(array) for name, array in members.items()):
        raise broken(path, "holds no arrays of members_")
    # A net of these sizes is only laid out if the arrays in the file can be its own.
    there, state = sum(array.size for array in members.values()), STATE[0]
    if max(state * net.features * net.bins, 2 * state * net.width, state * net.outputs) > there:
        raise broken(path, f"has net_={shown(net)}, which needs more numbers than the {there} of its members_")
    count = len({name.partition(".")[0] for name in members})
    one = named(eqx.filter(eqx.filter_eval_shape(net.model, jax.random.key(0)), lambda leaf: hasattr(leaf, "dtype")))
    wanted = {f"{i}.{name}": leaf.shape for i in range(count) for name, leaf in one.items()}
    if wanted != {name: array.shape for name, array in members.items()}:
        raise broken(path, f"holds other arrays in members_ than {count} nets of {shown(net)} have")
    check_finite(path, members)


def _numbers(value: Any) -> bool:
    return isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.floating) and not np.isnan(value).any()


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
        case {"words": list(words), "dtype": str(dtype)}:
            if not all(isinstance(word, str) and len(word) <= LONGEST_WORD for word in words):
                raise ValueError(f"{shown(words)} are not all words")
            if dtype != "|O" and not re.fullmatch(r"[<>]U[0-9]{1,5}", dtype):
                raise ValueError(f"{shown(dtype)} is no type of words")
            return np.array(words, dtype=object if dtype == "|O" else dtype)
        case {"array": str(name)}:
            return arrays[name]
        case {"tuple": str(name), "fields": list(fields)}:
            return TUPLES[name](*(_put_together(part, arrays) for part in fields))
        case {"dict": list(pairs)}:
            return {name: _put_together(part, arrays) for name, part in pairs}
    return value["value"]
