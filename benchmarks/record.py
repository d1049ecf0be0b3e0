"""Write the JSON file of a benchmark, with the command, the machine and the versions."""

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import diffrax
import jax

import sdebnn


def write(path: Path, command: str, **tables: Any) -> None:
    about = {
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "device": jax.devices()[0].device_kind,
        "cores": os.cpu_count(),
        "versions": {
            "sdebnn": sdebnn.__version__,
            "jax": jax.__version__,
            "diffrax": diffrax.__version__,
            "python": platform.python_version(),
        },
    }
    path.write_text(json.dumps({**about, **tables}, indent=2) + "\n")
