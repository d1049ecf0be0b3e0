"""The scripts in examples/ run as they are, and find what they should."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# A number that each script prints, and the least and the largest that it may be.
FOUND = {
    "curve.py": (r"at (\d+)%", 80, 100),
    "images.py": (r"accuracy: ([\d.]+)", 0.97, 1.0),
    "own_module.py": (r"root mean squared error: ([\d.]+)", 0.05, 0.2),
    "table.py": (r"90 % intervals: ([\d.]+)", 0.8, 0.98),
}


def test_every_example_is_listed_and_tested():
    listed = re.findall(r"^\| `(\w+\.py)` \|", (ROOT / "examples" / "README.md").read_text(), re.M)
    assert sorted(listed) == sorted(FOUND) == [each.name for each in EXAMPLES]


@pytest.mark.slow
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_as_it_is(script, tmp_path):
    environment = {**os.environ, "MPLBACKEND": "agg", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", str(script)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    pattern, least, most = FOUND[script.name]
    found = re.search(pattern, done.stdout)
    assert found is not None, done.stdout
    assert least <= float(found[1]) <= most, done.stdout
