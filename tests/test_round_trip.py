"""From a table to a model that leaves home: trained, moved, opened by somebody else, loaded, exported and served."""

import contextlib
import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import sdebnn
from sdebnn.export import load_exported
from sdebnn.tables.runs import open_table

NOBODY = 65534


def as_somebody_else(home):
    """Arguments of ``subprocess.run`` for another user, or at least another home, if this one may not change."""
    environment = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    options = {"env": environment, "cwd": home, "capture_output": True, "text": True}
    if os.getuid() == 0:
        probe = [sys.executable, "-c", "import sdebnn, os; os.listdir('.')"]
        with contextlib.suppress(OSError):  # Python itself may be in a folder that is closed to others
            if subprocess.run(probe, user=NOBODY, **options).returncode == 0:
                options["user"] = NOBODY
    return options


def columns(path):
    with path.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


def ask(address, path, body=None):
    request = urllib.request.Request(
        address + path, None if body is None else json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


@pytest.mark.slow
def test_a_model_goes_round(tmp_path):
    rng = np.random.default_rng(0)
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    x = rng.normal(size=(120, 2))
    y = 2 * x[:, 0] - x[:, 1] + 0.2 * rng.normal(size=120)
    lines = [f"{a:.4f},{b:.4f},{'red' if a > b else 'blue'},{c:.4f}" for (a, b), c in zip(x, y, strict=True)]
    (here / "t.csv").write_text("a,b,colour,y\n" + "\n".join(lines) + "\n")
    (here / "new.csv").write_text("colour,b,a\nred,0.5,1.0\nblue,0.25,-0.5\n")

    def sdebnn_command(*arguments, **options):
        command = [sys.executable, "-m", "sdebnn", *map(str, arguments)]
        done = subprocess.run(command, **{"capture_output": True, "text": True, **options})
        assert done.returncode == 0, done.stderr
        return done

    sdebnn_command("train", "--data", "t.csv", "--members", "2", "--out", "run", cwd=here)
    sdebnn_command("predict", "run", "new.csv", "--out", "first.csv", cwd=here)
    first = columns(here / "first.csv")

    # Moved as an archive to another folder; the training file is gone, and the folder can only be read.
    archive = shutil.make_archive(str(tmp_path / "sent"), "zip", here / "run")
    (here / "t.csv").unlink()
    shutil.unpack_archive(archive, there / "received")
    shutil.copy(here / "new.csv", there / "new.csv")
    for path in (tmp_path, *there.rglob("*"), there):
        path.chmod(0o755 if path.is_dir() else 0o644)
    out = there / "out"
    out.mkdir(mode=0o777)
    out.chmod(0o777)
    user = as_somebody_else(out)
    sdebnn_command("predict", there / "received", there / "new.csv", "--out", out / "second.csv", **user)
    second = columns(out / "second.csv")
    assert first.keys() == second.keys()
    for name, column in first.items():
        np.testing.assert_array_equal(column, second[name])

    # Loaded in Python: the estimator of the run is a file of its own.
    estimator = sdebnn.load(there / "received" / "model.safetensors")
    model = open_table(there / "received")
    matrix = model.inputs(model.read(there / "new.csv"), where="new.csv")
    np.testing.assert_allclose(estimator.predict(matrix), first["y"], rtol=1e-12)

    # Exported by somebody else, in both formats.
    for suffix in (".onnx", ".stablehlo"):
        file = out / f"model{suffix}"
        sdebnn_command("export", there / "received", "--out", file, **user)
        found = load_exported(file)(matrix.astype(np.float32))
        for name, output in (("y", "mean"), ("std", "std"), ("lower", "lower"), ("upper", "upper")):
            np.testing.assert_allclose(found[output], first[name], atol=1e-5 * y.std())

    # Served by uvicorn, and stopped.
    started = subprocess.Popen(
        [sys.executable, "-m", "sdebnn", "serve", there / "received", "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        said = started.stdout.readline()
        address = next(word for word in said.split() if word.startswith("http")).rstrip(".,:;")
        assert ask(address, "/health") == {"status": "ok"}
        assert ask(address, "/model")["contract"]["target"] == "y"
        rows = [{"colour": "red", "b": 0.5, "a": 1.0}, {"colour": "blue", "b": 0.25, "a": -0.5}]
        answer = ask(address, "/predict", {"rows": rows})
        for name, column in first.items():
            np.testing.assert_allclose([each[name] for each in answer["forecasts"]], column, rtol=1e-6)
        started.send_signal(signal.SIGTERM)
        assert started.wait(60) == 0
    finally:
        started.kill()
        started.stdout.close()
    assert Path(archive).exists()
