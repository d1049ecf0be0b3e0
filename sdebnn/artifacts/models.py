"""Models, and the results of ``fit``, as files: one safetensors file, with a description of the model in its header.

The header is the record of ``save_one``, with

    model, likelihood, history     as ``encoding`` describes; the last two are null if a model was saved alone
    inputs, outputs                the shapes of a batch of one example, if ``save`` was given inputs; else null
    made_with                      versions of libraries
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import sdebnn
from sdebnn.artifacts.decoding import Decoder, difference
from sdebnn.artifacts.encoding import DTYPES, MAX_PARTS, Parts, encoded, first_line, is_too_large
from sdebnn.artifacts.names import Names, NeedsHelpError
from sdebnn.checks import as_inputs, shown
from sdebnn.contract import AbstractModel, check_likelihood, check_model
from sdebnn.records import OBJECT, Rule, broken, load_one, or_none, save_one
from sdebnn.train import Fit

KIND = "model of sdebnn, version 1"
MAX_AXES, MAX_INPUTS = 16, 2**24  # axes and numbers of an example whose shape is stored and checked
RULES = {
    "model": OBJECT,
    **dict.fromkeys(("likelihood", "history", "inputs"), or_none(OBJECT)),
    "outputs": Rule("a shape, or null", lambda value: value is None or isinstance(value, list)),
    "made_with": OBJECT,
}


def save_model(thing: AbstractModel | Fit, path: Path, inputs: Any = None) -> None:
    """Write a model or a fit."""
    model, likelihood, history = thing if isinstance(thing, Fit) else (thing, None, None)
    parts = Parts({}, {})
    words: dict[str, Any] = {"model": encoded(check_model(model), "model", parts), "likelihood": None, "history": None}
    if isinstance(thing, Fit):
        words["likelihood"] = encoded(check_likelihood(likelihood), "likelihood", parts)
        words["history"] = encoded(_check_history(history), "history", parts)
    words["inputs"], words["outputs"] = _traced_shapes(model, inputs)
    words["made_with"] = {"sdebnn": sdebnn.__version__, "jax": jax.__version__, "equinox": eqx.__version__}
    if is_too_large(words):
        raise ValueError(f"{type(model).__name__} has more than {MAX_PARTS} parts: keep large tables in arrays.")
    save_one(path, parts.arrays, KIND, words)


def load_model(path: Path, modules: Sequence[str], like: AbstractModel | Fit | None) -> AbstractModel | Fit:
    """Read what ``save_model`` wrote."""
    names = Names(modules)
    arrays, words = load_one(path, KIND, RULES)
    given = Parts({}, {})
    if like is not None:
        _check_like(path, like, words, arrays, given)
    try:
        if is_too_large(words):
            raise ValueError(f"has more than {MAX_PARTS} parts")
        decoder = Decoder(arrays, names, given.objects)
        model = check_model(decoder.part(words["model"], "model"))
        loaded = model
        if words["likelihood"] is not None:
            likelihood = check_likelihood(decoder.part(words["likelihood"], "likelihood"))
            loaded = Fit(model, likelihood, _check_history(decoder.part(words["history"], "history")))
        if decoder.arrays:
            raise ValueError(f"holds an array {shown(min(decoder.arrays))} that belongs to no part of the model")
        _check_shapes(model, words["inputs"], words["outputs"])
    except NeedsHelpError as error:
        raise ValueError(f"{path} {error}.") from None
    except ValueError as error:
        raise broken(path, first_line(error)) from None
    return loaded


def _check_like(
    path: Path, like: AbstractModel | Fit, words: dict[str, Any], arrays: dict[str, np.ndarray], given: Parts
) -> None:
    """Refuse a model to load into whose structure differs from that in the file; its parts are added to ``given``."""
    pair = {"model": like.model, "likelihood": like.likelihood} if isinstance(like, Fit) else {"model": like}
    check_model(pair["model"])
    for name, part in pair.items():
        found = difference(words[name], encoded(part, name, given), name)
        if found is not None:
            raise ValueError(f"{path} holds another model: {found}; build like as the model was when it was saved.")
    for name, array in given.arrays.items():
        saved = arrays.get(name)
        if saved is None or (saved.shape, saved.dtype) != (array.shape, array.dtype):
            there = "nothing" if saved is None else f"{saved.dtype} {saved.shape}"
            raise ValueError(
                f"{path} holds another model: {name} is {there} in the file and {array.dtype} {array.shape} in like; "
                "build like as the model was when it was saved."
            )


def _check_history(history: Any) -> dict[str, np.ndarray]:
    if not isinstance(history, dict) or not all(isinstance(column, np.ndarray) for column in history.values()):
        raise ValueError(f"history={shown(history)} is not one: pass a dict of NumPy arrays, such as {{}}.")
    return history


def _traced_shapes(model: AbstractModel, inputs: Any) -> tuple[dict[str, Any] | None, list[int] | None]:
    """The shape and type of one example in a batch, and the shape of its outputs; None if no inputs are given."""
    if inputs is None:
        return None, None
    row = as_inputs("inputs", inputs[:1])
    if row.size > MAX_INPUTS or row.ndim > MAX_AXES:
        raise ValueError(f"inputs: an example has shape {row.shape[1:]}, too many numbers or axes: leave inputs out.")
    outputs = output_shape(model, jax.ShapeDtypeStruct(row.shape, row.dtype))
    return {"shape": list(row.shape), "dtype": str(row.dtype)}, list(outputs.shape)


def _check_shapes(model: AbstractModel, inputs: Any, outputs: Any) -> None:
    """Refuse a model that does not map such inputs to outputs of such a shape. Nothing is computed."""
    if inputs is None:
        return
    shape, dtype = inputs.get("shape"), inputs.get("dtype")
    sizes: list[int] = shape if isinstance(shape, list) else [0]
    usual = len(sizes) <= MAX_AXES and all(type(size) is int and 0 < size <= MAX_INPUTS for size in sizes)
    if not usual or math.prod(sizes) > MAX_INPUTS:
        raise ValueError(f"has inputs of shape {shown(shape)}")
    if not isinstance(dtype, str) or dtype not in {str(each) for each in DTYPES}:
        raise ValueError(f"has inputs of dtype {shown(dtype)}")
    try:
        # The type may be wider than this process computes in.
        found = output_shape(model, jax.ShapeDtypeStruct(tuple(sizes), jax.dtypes.canonicalize_dtype(jnp.dtype(dtype))))
    except Exception as error:  # whatever a user's own module may raise
        raise ValueError(f"holds a model that refuses its own inputs ({first_line(error)})") from None
    if list(found.shape) != outputs:
        raise ValueError(f"holds a model with outputs of shape {list(found.shape)}, not {shown(outputs)}")


def output_shape(model: AbstractModel, row: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """The shape and type of the outputs for a batch of this shape. Nothing is computed."""
    return jax.eval_shape(lambda x, key: model.solve(x, key=key).outputs, row, jax.random.key(0))
