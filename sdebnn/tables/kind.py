"""Whether a folder holds a run of a table, and what such a run may be given, without scikit-learn."""

import json
from pathlib import Path

from sdebnn.records import MAX_RECORD_BYTES

KIND = "run of a table by sdebnn, version 1"
# Parameters of the estimators that a run may be given, and their types.
PARAMETERS: dict[str, type] = {
    "learning_rate": float, "sigma": float, "batch_size": int, "width": int, "steps": int, "max_iter": int,
    "noise": str, "family": str,
}  # fmt: skip


def is_table_run(out: Path) -> bool:
    """Whether a folder holds a run of a table, intact or not."""
    file = out / "run.json"
    try:
        if not file.is_file() or file.stat().st_size > MAX_RECORD_BYTES:
            return False
        return str(json.loads(file.read_bytes())["kind"]).startswith("run of a table")
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False
