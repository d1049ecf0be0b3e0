"""Files that each version of the format wrote load for ever, and give the same predictions on every machine."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

import sdebnn
from sdebnn.artifacts import KIND as ESTIMATOR_KIND
from sdebnn.artifacts.models import KIND as MODEL_KIND
from sdebnn.artifacts.names import ADDED_FIELDS, RENAMED

pytestmark = pytest.mark.usefixtures("_compiled_in_haste")
FOLDER = Path(__file__).parent / "artifacts"
FILES = sorted(FOLDER.glob("*.safetensors"))


@pytest.fixture(scope="module")
def make():
    """The script that wrote the files."""
    spec = importlib.util.spec_from_file_location("make", FOLDER / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_of_the_past_gives_the_predictions_of_the_past(path, make):
    with np.load(path.with_suffix(".npz")) as beside:
        x, said = beside["x"], beside["said"]
    np.testing.assert_allclose(make.predictions(sdebnn.load(path), x), said, rtol=1e-5, atol=1e-5)


def test_every_version_is_there(make):
    """A new version of a format needs new files, beside the old ones."""
    assert ESTIMATOR_KIND.endswith(f"version {make.VERSIONS['estimator']}")
    assert MODEL_KIND.endswith(f"version {make.VERSIONS['model']}")
    now = {f"{version}-{name}" for version, makers in make.FILES.items() for name in makers}
    old = {f"estimator-3-{name}" for name in ("regressor", "gp", "classifier")}
    old |= {f"model-1-{name}" for name in ("our_net", "views", "mlp", "ensemble")}
    assert {path.stem for path in FILES} == now | old


def test_no_class_of_a_file_has_changed_without_a_word(make):
    """A field that was added needs its value in older files, and a class that was renamed its old name."""
    first, now = json.loads(make.FIELDS.read_text()), make.fields()
    for name, fields in first.items():
        name = RENAMED.get(name, name)
        assert name in now, f"{name} is gone: add it to RENAMED"
        assert set(now[name]) == set(fields) | set(ADDED_FIELDS.get(name, {})), f"{name}: see ADDED_FIELDS"
    assert set(now) - set(RENAMED.values()) <= set(first), "run tests/artifacts/make.py, which adds new classes"
