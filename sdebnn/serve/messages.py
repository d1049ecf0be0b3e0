"""The bodies of requests and responses. What a client sends is not trusted."""

import json
from typing import Any, NoReturn

import numpy as np
from starlette.exceptions import HTTPException

from sdebnn.checks import shown
from sdebnn.columns import Columns
from sdebnn.forecasters import Forecaster
from sdebnn.serve.batching import Answer

FIELDS = ("rows", "coverage")
FAR = 3.0  # a distance from the training data of which the client is warned
TOO_DEEP = "the JSON is nested too deeply: send the rows as /model describes them."


def read_request(body: bytearray, forecaster: Forecaster, most_rows: int) -> tuple[list[Any], float]:
    """The rows and the coverage that a body holds, checked."""
    try:
        content = json.loads(body, parse_constant=_refuse_constant)
    except RecursionError:
        raise HTTPException(400, TOO_DEEP) from None
    except ValueError as error:  # of syntax or encoding
        raise HTTPException(400, f'the body is no valid JSON ({error}): send {{"rows": [...]}}.') from None
    if not isinstance(content, dict) or "rows" not in content:
        raise HTTPException(422, f"the body is {shown(content)}: send an object with the field rows.")
    unknown = next((name for name in content if name not in FIELDS), None)
    if unknown is not None:
        raise HTTPException(422, f"{shown(unknown)} is no field of a request: send rows and, if you like, coverage.")
    rows, coverage = content["rows"], content.get("coverage", 0.95)
    if isinstance(rows, list) and len(rows) > most_rows:
        raise HTTPException(413, f"the request has {len(rows)} rows, more than {most_rows}: send them in parts.")
    if isinstance(coverage, bool) or not isinstance(coverage, int | float) or not 0 < coverage < 1:
        raise HTTPException(422, f"coverage={shown(coverage)} must be a number between 0 and 1, such as 0.95.")
    try:
        forecaster.from_json(rows)
    except RecursionError:
        raise HTTPException(400, TOO_DEEP) from None
    except (ValueError, OverflowError) as error:
        raise HTTPException(422, str(error)) from None
    return rows, float(coverage)


def encoded(answers: list[Answer]) -> bytes:
    """The forecasts of one request as JSON. Numbers that are not finite become null."""
    columns = {name: np.concatenate([answer.columns[name] for answer in answers]) for name in answers[0].columns}
    cells = [_cells(column) for column in columns.values()]
    forecasts = [dict(zip(columns, row, strict=True)) for row in zip(*cells, strict=True)]
    words = list(dict.fromkeys(words for answer in answers for words in answer.warnings))
    content = {"forecasts": forecasts, "warnings": [*_unlike(columns), *words]}
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def _unlike(columns: Columns) -> list[str]:
    """A warning if rows are unlike the training data."""
    unlike = columns.get("unlike", np.zeros(1))
    far = int((unlike > FAR).sum())
    if not far:
        return []
    return [
        f"{far} of {len(unlike)} rows are unlike the training data, row {int(unlike.argmax()) + 1} most of all: check "
        "their units, and trust these forecasts less."
    ]


def _cells(column: np.ndarray) -> list[Any]:
    if column.dtype.kind != "f" or np.isfinite(column).all():
        return column.tolist()
    return [value if finite else None for value, finite in zip(column.tolist(), np.isfinite(column), strict=True)]


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON; write null for a missing value")
