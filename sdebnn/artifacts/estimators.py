"""Fitted estimators as files: parameters, the sizes of the net and its arrays, and the encoding of the columns."""

import json
import re
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np

from sdebnn.artifacts import KIND
from sdebnn.checks import shown
from sdebnn.data import Standardiser
from sdebnn.estimators import SDEBNNClassifier, SDEBNNRegressor
from sdebnn.estimators.drawing import ensemble_shapes, is_shape
from sdebnn.estimators.estimator import Estimator
from sdebnn.estimators.gaussian_process import BOUNDS, MAX_ROWS, GaussianProcess
from sdebnn.estimators.net import MIN_STATE, NetSizes
from sdebnn.estimators.regressor import NOISES
from sdebnn.estimators.table import Encoding
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

MAX_TEXT_LENGTH = 2**16  # characters of a label or of the name of a column
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
    "temperature_": number(0.0),
    "scores_": Rule("an array of numbers", lambda value: value is None or _numbers(value)),
    "net_": Rule("the sizes of a net", lambda value: isinstance(value, NetSizes)),
    "encoding_": Rule("an encoding of columns", lambda value: isinstance(value, Encoding)),
    "y_scaling_": Rule("a scaling of targets", lambda value: isinstance(value, Standardiser)),
    "ensemble_": or_none(OBJECT),
}
OF_CLASS: dict[str, Rules] = {
    "SDEBNNRegressor": {
        "family": TEXT,
        "noise": TEXT,
        "noise_": one_of(*NOISES),
        "flat_": FLAG,
        "family_": one_of("ensemble", "gp"),
        "family_scores_": OBJECT,
        "gp_": Rule("a Gaussian process, or null", lambda v: v is None or isinstance(v, GaussianProcess)),
    },
    "SDEBNNClassifier": {"classes_": Rule("at least two labels", lambda v: isinstance(v, np.ndarray) and v.size > 1)},
}
CLASSES: dict[str, type[Estimator]] = {of.__name__: of for of in (SDEBNNClassifier, SDEBNNRegressor)}
TUPLES: dict[str, Any] = {of.__name__: of for of in (Encoding, GaussianProcess, NetSizes, Standardiser)}


def save_estimator(estimator: Estimator, path: Path) -> None:
    """Write a fitted estimator."""
    name = type(estimator).__name__
    if CLASSES.get(name) is not type(estimator):
        raise ValueError(f"{shown(estimator)} is none of {', '.join(CLASSES)}: pass a fitted one.")
    if not estimator.__sklearn_is_fitted__():
        raise ValueError(f"this {name} is not fitted yet: call fit first.")
    arrays: dict[str, np.ndarray] = {}
    facts = {key: _to_json(key, value, arrays) for key, value in estimator.__getstate__().items()}
    save_one(path, arrays, KIND, {"class": name, "state": facts})


def load_estimator(path: Path) -> Estimator:
    """Read what ``save_estimator`` wrote."""
    arrays, words = load_one(path, KIND, {"class": one_of(*CLASSES), "state": OBJECT})
    try:
        state = {key: _from_json(value, arrays) for key, value in words["state"].items()}
        _check_state(path, words["class"], state)
        estimator = CLASSES[words["class"]].__new__(CLASSES[words["class"]])
        estimator.__setstate__(state)
    except ValueError as error:
        raise error if str(path) in str(error) else broken(path, f"holds no estimator ({error})") from None
    except (TypeError, KeyError, AttributeError, IndexError, RecursionError, OverflowError) as error:
        raise broken(path, f"holds a record that makes no estimator ({type(error).__name__})") from None
    return estimator


def _check_state(path: Path, of: str, state: dict[str, Any]) -> None:
    """Refuse a state that no fitted estimator has."""
    check_record(path, state, {**PARAMETERS, **FITTED, **OF_CLASS[of]})
    net, encoding, scaling, ensemble = (state[name] for name in ("net_", "encoding_", "y_scaling_", "ensemble_"))
    check_record(path, net._asdict(), {**dict.fromkeys(NetSizes._fields, COUNT), "sigma": number(0.0)})
    features, targets = state["n_features_in_"], net.outputs // 2 if of == "SDEBNNRegressor" else 1
    shapes = {
        "encoding_.columns.center": (encoding.columns, (features,)),
        "encoding_.bins.center": (encoding.bins, (features * net.bins,)),
        "y_scaling_.center": (scaling, (targets,)),
    }
    for name, (part, shape) in shapes.items():
        if not isinstance(part, Standardiser) or not all(_numbers(a) and a.shape == shape for a in part):
            raise broken(path, f"has no numbers of shape {shape} in {name}")
        check_finite(path, {name: part.center})
    if not _numbers(encoding.knots) or encoding.knots.shape != (features, net.bins + 1) or features > net.features:
        raise broken(path, f"has no encoding_.knots for {features} columns")
    if of == "SDEBNNClassifier" and state["classes_"].shape != (net.outputs,):
        raise broken(path, f"does not have one of classes_ for each of {net.outputs} outputs")
    if of == "SDEBNNRegressor":
        check_record(path, state["family_scores_"], dict.fromkeys(state["family_scores_"], number()))
        _check_process(path, state, targets)
    if ensemble is not None:
        _check_ensemble(path, net, ensemble)
    elif state.get("family_") != "gp":
        raise broken(path, "holds no ensemble_")


def _check_process(path: Path, state: dict[str, Any], targets: int) -> None:
    """Refuse a Gaussian process that does not fit the rest of the state, or whose numbers no fit gives."""
    process, features = state["gp_"], state["n_features_in_"]
    if (process is None) != (state["family_"] == "ensemble"):
        raise broken(path, f"has family_={state['family_']!r}, and does not have the gp_ of that family")
    if process is None:
        return
    rows = len(process.x) if isinstance(process.x, np.ndarray) and process.x.ndim else 0
    shapes = ((rows, features), (rows, targets), (rows,), (targets, features + 3))
    for name, array, shape in zip(process._fields, process, shapes, strict=True):
        if not 1 <= rows <= MAX_ROWS or not _numbers(array) or array.shape != shape:
            raise broken(path, f"has no numbers of shape {shape} in gp_.{name}")
    check_finite(path, {f"gp_.{name}": array for name, array in process._asdict().items()})
    limits = np.log([BOUNDS["length"]] * features + [BOUNDS[name] for name in ("scale", "trend", "noise")])
    inside = (limits[:, 0] - 1e-9 <= process.log_parameters) & (process.log_parameters <= limits[:, 1] + 1e-9)
    if not inside.all() or not (process.weight > 0).all():
        raise broken(path, "has hyperparameters or weights in gp_ that are out of bounds")


def _check_ensemble(path: Path, net: NetSizes, arrays: dict[str, np.ndarray]) -> None:
    """Refuse arrays that are not those of an ensemble of such nets, or that are not finite."""
    if not arrays or not all(isinstance(name, str) and _numbers(array) for name, array in arrays.items()):
        raise broken(path, "holds no arrays of ensemble_")
    # Shapes of nets are only computed if the file holds enough numbers for such a net.
    total = sum(array.size for array in arrays.values())
    if max(MIN_STATE * net.features * net.bins, 2 * MIN_STATE * net.width, MIN_STATE * net.outputs) > total:
        raise broken(path, f"has net_={shown(net)}, which needs more numbers than the {total} of its ensemble_")
    size = min(len(array) if array.ndim else 0 for array in arrays.values())
    if size < 1:
        raise broken(path, "holds an ensemble_ without members")
    wanted = named(eqx.filter(ensemble_shapes(net, size), is_shape))
    if {name: leaf.shape for name, leaf in wanted.items()} != {name: array.shape for name, array in arrays.items()}:
        raise broken(path, f"holds other arrays in ensemble_ than {size} of {shown(net)} have")
    check_finite(path, arrays)


def _numbers(value: object) -> bool:
    return isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.floating) and not np.isnan(value).any()


def _to_json(key: str, value: object, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """A value as JSON. Its arrays are put into ``arrays``, and the JSON has their names."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "OU":
        if not all(isinstance(word, str) for word in value.tolist()):
            raise ValueError(f"{key}={shown(value)} holds other things than strings: save it by joblib instead.")
        return {"words": value.tolist(), "dtype": value.dtype.str}
    if isinstance(value, np.ndarray):
        arrays[key] = value
        return {"array": key}
    if isinstance(value, Encoding | GaussianProcess | NetSizes | Standardiser):
        fields = [_to_json(f"{key}.{name}", part, arrays) for name, part in value._asdict().items()]
        return {"tuple": type(value).__name__, "fields": fields}
    if isinstance(value, dict):
        names = [name.item() if isinstance(name, np.generic) else name for name in value]
        parts = [_to_json(f"{key}.{name}", part, arrays) for name, part in zip(names, value.values(), strict=True)]
        return {"dict": [list(pair) for pair in zip(names, parts, strict=True)]}
    if isinstance(value, np.generic):
        value = value.item()
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"{key}={shown(value)} is neither a number nor a string: set it to one before saving, or save by joblib."
        ) from None
    return {"value": value}


def _from_json(value: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    """The value that ``_to_json`` was given."""
    match value:
        case {"words": list(words), "dtype": str(dtype)}:
            if not all(isinstance(word, str) and len(word) <= MAX_TEXT_LENGTH for word in words):
                raise ValueError(f"{shown(words)} are not all strings")
            if dtype != "|O" and not re.fullmatch(r"[<>]U[0-9]{1,5}", dtype):
                raise ValueError(f"{shown(dtype)} is no type of strings")
            return np.array(words, dtype=object if dtype == "|O" else dtype)
        case {"array": str(name)}:
            return arrays[name]
        case {"tuple": str(name), "fields": list(fields)}:
            return TUPLES[name](*(_from_json(part, arrays) for part in fields))
        case {"dict": list(pairs)}:
            return {name: _from_json(part, arrays) for name, part in pairs}
        case _:
            return value["value"]
