"""An example that a forecaster takes, made from its contract."""

from typing import Any

import numpy as np


def example_of(contract: dict[str, Any]) -> Any:
    """A row as JSON: medians and the first words of a table, or zeros; None for a kind that is not known here."""
    match contract:
        case {"kind": "table", "columns": columns}:
            return {column["name"]: _cell(column) for column in columns}
        case {"kind": "images" | "vectors", "shape": shape}:
            return np.zeros(shape, int).tolist()
        case _:
            return None


def _cell(column: dict[str, Any]) -> float | str | None:
    return column["if_missing"] if column["kind"] == "number" else column["words"][0]
