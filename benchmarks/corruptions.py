"""Seconds of all 95 cells of corrupted images: 19 corruptions at 5 severities.

    python benchmarks/corruptions.py [--images 10000] [--json FILE]

The images are 32 x 32 x 3 random bytes; the time does not depend on their values. The first severity of a corruption
includes the compilation of its program, which all severities share (spatter has two). Nothing is stored.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import record

from sdebnn.corruptions import NAMES, SEVERITIES, corrupted


def seconds(images: np.ndarray, name: str) -> list[float]:
    """The seconds of each severity."""
    found = []
    for severity in SEVERITIES:
        start = time.perf_counter()
        corrupted(images, name, severity)
        found.append(round(time.perf_counter() - start, 3))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds of all 95 cells of corrupted images.")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--json", type=Path, default=Path(__file__).with_suffix(".json"))
    given = parser.parse_args()
    images = np.random.default_rng(0).integers(0, 256, (given.images, 32, 32, 3), np.uint8)
    found, start = {}, time.perf_counter()
    for name in NAMES:
        found[name] = seconds(images, name)
        print(f"{name:18}" + "".join(f"{second:8.2f}" for second in found[name]), flush=True)
    total = round(time.perf_counter() - start, 1)
    print(f"{'all':18}{total:8.1f} s")
    command = f"python benchmarks/corruptions.py --images {given.images}"
    record.write(given.json, command, images=given.images, seconds=found, total=total)


if __name__ == "__main__":
    main()
