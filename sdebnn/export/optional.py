"""Packages that only exported programs need."""

import importlib
from typing import Any


def optional_module(name: str) -> Any:
    """A package of the extra ``export``."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise ValueError(f"exported programs need {name}: pip install 'sdebnn[export]'.") from None
