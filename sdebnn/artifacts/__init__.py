"""Fitted models and estimators as files: each is one safetensors file of numbers and text.

Loading runs no code from a file. The digest in it detects damage, not forgery, so that every part is checked before an
object is built from it, and no array is allocated that is larger than the file accounts for.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from sdebnn.artifacts.models import load_model, save_model
from sdebnn.checks import shown
from sdebnn.contract import AbstractModel
from sdebnn.files import check_regular
from sdebnn.train import Fit

KIND = "estimator of sdebnn, version 3"  # of estimators; that of models is in models.py
MAX_HEADER_BYTES = 2**24
Place = str | os.PathLike[str]


def save(thing: Any, path: Place, *, inputs: Any = None) -> None:
    """Write a model, the result of ``fit``, or a fitted estimator to a file, which ``load`` reads on any machine.

        fitted = fit(model, Gaussian(0.1), x, y, key=key, epochs=20)
        save(fitted, "net.safetensors", inputs=x)
        model, likelihood, history = load("net.safetensors")

    The predictions stay the same. A file may hold classes and functions of sdebnn, of ``equinox.nn`` and of ``jax.nn``
    by name, and your own if they are defined at the top of a module; ``load`` says what it needs for them. Of
    ``inputs``, only the shape of an example is stored, with which ``load`` checks that the model is whole.

    An existing file is replaced. If saving fails, it is kept.
    """
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"{path} cannot be a file: choose a name in an existing folder.")
    if isinstance(thing, Fit | AbstractModel):
        save_model(thing, path, inputs)
        return
    estimators = _estimators()
    if estimators is None or not isinstance(thing, estimators.Estimator):
        raise ValueError(
            f"{shown(thing)} is none of the things that can be saved: pass a model, a fit or an estimator."
        )
    if inputs is not None:
        raise ValueError(
            f"inputs={shown(inputs)} are of no use with an estimator, which knows its own: leave them out."
        )
    estimators.save_estimator(thing, path)


def load(path: Place, *, modules: Sequence[str] = (), like: AbstractModel | Fit | None = None) -> Any:
    """The model, fit or estimator that ``save`` wrote.

        save(model, "net.safetensors")
        same = load("net.safetensors")

    Loading runs no code from the file. ``modules`` are modules of your own whose classes and functions the file may
    name; they are imported. ``like`` is a model, or a fit, built as the saved one was: its arrays are replaced by those
    of the file. It is needed for what has no name, such as a lambda.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: pass a file that sdebnn.save wrote; sdebnn predict uses runs.")
    if not path.is_file():
        raise ValueError(f"{path} is not there: pass a file that sdebnn.save wrote.")
    if like is not None and not isinstance(like, AbstractModel | Fit):
        raise ValueError(f"like={shown(like)} is no model: pass one built as the saved one was, or a fit with it.")
    try:
        kind = _kind(path)
        if kind.startswith("model of sdebnn"):
            return load_model(path, modules, like)
        if not kind.startswith("estimator of sdebnn"):
            raise ValueError(
                f"{path} is of the kind {shown(kind)}, and this sdebnn knows models and estimators: pass what "
                "sdebnn.save wrote, or update sdebnn if it is newer."
            )
        if modules or like is not None:
            raise ValueError(f"{path} holds an estimator: leave out modules and like.")
        estimators = _estimators()
        if estimators is None:
            raise ImportError(f"{path} holds an estimator, which needs scikit-learn: pip install 'sdebnn[sklearn]'.")
        return estimators.load_estimator(path)
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply to be a file of sdebnn: save it again.") from None


def _kind(path: Path) -> str:
    """The kind of a file, which its header says."""
    check_regular(path)
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = file.read(size) if size <= MAX_HEADER_BYTES else b""
    try:
        return str(json.loads(json.loads(header)["__metadata__"]["record"])["kind"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is not a file of sdebnn.save, or it is truncated: save it again.") from None


def _estimators() -> ModuleType | None:
    """The part of this package that needs scikit-learn; None without it."""
    try:
        from sdebnn.artifacts import estimators
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "sklearn":
            raise
        return None
    return estimators
