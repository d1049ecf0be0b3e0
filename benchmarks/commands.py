"""Seconds of commands in fresh processes: the first time, and the second, when compiled programs are kept.

    python benchmarks/commands.py [--json FILE]

Each pair starts with an empty cache folder of its own, and the second command writes to another folder than the first.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import record

TRAIN = ["train", "--data", "digits", "--epochs", "2"]


def seconds(arguments: list[str], home: Path) -> float:
    """The seconds of one command."""
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "sdebnn", *arguments], env={**os.environ, "XDG_CACHE_HOME": str(home)}, cwd=home,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    return round(time.perf_counter() - start, 2)


def table(path: Path) -> Path:
    """A table of 400 rows."""
    x = np.random.default_rng(0).normal(size=(400, 5))
    y = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2]
    np.savetxt(path, np.column_stack([x, y]), delimiter=",", header="a,b,c,d,e,y", comments="")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=Path(__file__).with_suffix(".json"))
    given = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        csv = table(root / "t.csv")
        pairs = {
            "sdebnn --help": (["--help"], ["--help"]),
            "sdebnn demo": (["demo", "--out", "d1"], ["demo", "--out", "d2"]),
            "sdebnn train --data digits --epochs 2": ([*TRAIN, "--out", "i1"], [*TRAIN, "--out", "i2"]),
            "sdebnn train --data t.csv": (
                ["train", "--data", str(csv), "--out", "t1"], ["train", "--data", str(csv), "--out", "t2"]
            ),
        }  # fmt: skip
        for number, (name, (first, second)) in enumerate(pairs.items()):
            home = root / str(number)
            home.mkdir()
            found[name] = {"first": seconds(first, home), "second": seconds(second, home)}
            print(f"{name:40} {found[name]['first']:7.2f} s {found[name]['second']:7.2f} s", flush=True)
        home = root / "predict"
        home.mkdir()
        run = root / "3" / "t1"
        found["sdebnn predict"] = {
            time: seconds(["predict", str(run), str(csv), "--out", f"{time}.csv"], home) for time in ("first", "second")
        }
        print(found["sdebnn predict"])
    record.write(given.json, "python benchmarks/commands.py", seconds=found)


if __name__ == "__main__":
    main()
