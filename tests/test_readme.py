"""The front page: all of its blocks, run as they are printed, in an environment that has only what they install."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
# Runs the blocks of Python one after the other, as a notebook would.
NOTEBOOK = """
import json, sys, traceback
scope = {"__name__": "__main__"}
for line in sys.stdin:
    try:
        exec(compile(json.loads(line), "README.md", "exec"), scope)
        said = ""
    except BaseException:
        said = traceback.format_exc()
    print("\\n" + json.dumps({"error": said}), flush=True)
"""


def blocks():
    """The language and the text of every block, in order."""
    return [
        (language, textwrap.dedent(code))
        for language, code in re.findall(r"^ *```(\w*)\n(.*?)^ *```$", README, re.S | re.M)
    ]


def test_every_block_can_be_run():
    assert len(blocks()) >= 8
    assert {language for language, _ in blocks()} == {"sh", "python"}


def files_of_a_user(folder):
    """A table of houses with words and missing cells, and pictures of two kinds."""
    rng = np.random.default_rng(0)
    rows = [(rng.integers(40, 200), rng.choice(["north", "south"]), rng.uniform(0, 90)) for _ in range(80)]
    lines = [
        f"{area},{side},{'' if age < 5 else round(age)},{3 * area + 40 * (side == 'south') - age:.1f}"
        for area, side, age in rows
    ]
    (folder / "houses.csv").write_text("area,side,age,price\n" + "\n".join(lines) + "\n")
    (folder / "new.csv").write_text("side,age,area\nsouth,10,100\nnorth,,50\n")
    for number in range(60):
        kind, new = ("cat", "dog")[number % 2], number >= 54
        place = folder / "new_photos" if new else folder / "photos" / kind
        place.mkdir(parents=True, exist_ok=True)
        pixels = rng.normal(70 if kind == "cat" else 180, 20, (*rng.integers(30, 60, 2), 3))
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(place / f"{kind}{number}.jpg")


@pytest.mark.slow
def test_all_blocks_run_as_printed_with_what_they_install(tmp_path):
    home = tmp_path / "sdebnn"
    home.mkdir()
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("needs a clone made by git")
    for name in tracked.stdout.splitlines():
        if (ROOT / name).is_file():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, home / name)
    files_of_a_user(home)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    kept = ("HOME", "LANG", "TMPDIR", "PIP_CACHE_DIR", "PIP_INDEX_URL", "PIP_CONFIG_FILE", "SSL_CERT_FILE")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment["PATH"] = f"{tmp_path / 'env' / 'bin'}:/usr/local/bin:/usr/bin:/bin"
    environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    if "PIP_CACHE_DIR" not in environment and "HOME" in environment:
        environment["PIP_CACHE_DIR"] = str(Path(environment["HOME"]) / ".cache" / "pip")
    notebook = None
    for language, code in blocks():
        if language == "sh":
            done = subprocess.run(
                ["bash", "-e", "-c", code], cwd=home, env=environment, capture_output=True, text=True, timeout=900
            )
            assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
            continue
        if notebook is None:
            notebook = subprocess.Popen(
                [tmp_path / "env" / "bin" / "python", "-c", NOTEBOOK], cwd=tmp_path, env=environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        notebook.stdin.write(json.dumps(code) + "\n")
        notebook.stdin.flush()
        while not (line := notebook.stdout.readline()).startswith('{"error"'):
            assert line, f"{code}\nended the process"
        assert json.loads(line)["error"] == "", code
    notebook.stdin.close()
    assert notebook.wait() == 0
    notebook.stdout.close()
    table = np.genfromtxt(home / "forecasts.csv", delimiter=",", names=True)
    assert set(table.dtype.names) == {"price", "std", "std_reducible", "std_noise", "lower", "upper", "unlike"}
    np.testing.assert_allclose(table["price"], [330, 150], atol=40)
    labels = np.genfromtxt(home / "labels.csv", delimiter=",", names=True, dtype=None, encoding="utf-8")
    assert len(labels) == 6
    for made in ("model.onnx", "report.html", "demo/predictive.png"):
        assert (home / made).stat().st_size > 0, made
