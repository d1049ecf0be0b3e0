"""The documentation: the files and the names that it mentions exist, and the map is that of the package."""

import builtins
import contextlib
import importlib
import importlib.util
import inspect
import pkgutil
import re
from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics
from test_project import ORDER

import sdebnn
from sdebnn.cli import forecasting, reporting
from sdebnn.data import CATALOGUE
from sdebnn.integrate import METHODS
from sdebnn.presets import PRESETS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = ("", "sdebnn", "sdebnn/train", "sdebnn/data", "docs", "benchmarks")  # that a path may be relative to
# A distribution does not hold these folders: what pages name in them is tested in a checkout.
ABSENT = tuple(f"{folder}/" for folder in ("hopper", "results") if not (ROOT / folder).is_dir())
NOT_OURS = {  # files that commands or users write, and one that there must not be
    "x_train.npy", "y_train.npy", "x_test.npy", "y_test.npy", "run.json", "result.json", "metrics.jsonl", "utils.py",
    "x_train-00000.npy", "x_train-00001.npy",
}  # fmt: skip
FILE = re.compile(r"`([\w./-]+(?:\.(?:py|md|json|jsonl|npy|png|txt|toml)|/))`")
DOTTED = re.compile(r"\bsdebnn((?:\.[A-Za-z_]\w*)+)")
NAME = re.compile(r"^[A-Za-z_]\w*(?:\.\w+)*(?=\(|=|$)")
# Words of the mathematics, of commands and of other libraries that stand between backticks.
OTHER_NAMES = {
    "H_t", "NN_φ", "h_0", "h_1", "h_t", "u_k", "w_0", "w_1", "w_t", "exp", "lower", "upper", "unlike", "houses",
    "new", "coverage_95", "entropy", "entropy_reducible", "price", "probability", "std_noise", "std_reducible",
    "waited_for_data", "cross_val_score", "check_estimator", "sklearn", "BacksolveAdjoint", "SDEBNN_DATA",
    "XLA_FLAGS", "hopper", "jit", "python",
}  # fmt: skip
OTHER_PACKAGES = {"jax", "lax", "eqx", "equinox", "optax", "diffrax", "multiprocessing"}


def quoted(page):
    """The texts between backticks that are not blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page.read_text(), flags=re.S))


@pytest.fixture(scope="module")
def names():
    """What modules define, the methods and fields of classes, the arguments of functions, and the experiments."""
    found = {*dir(builtins), *(path.stem for path in (ROOT / "experiments").glob("*.py"))}
    for info in pkgutil.walk_packages(sdebnn.__path__, "sdebnn."):
        if info.name.endswith("__main__"):
            continue
        found |= set(info.name.split("."))
        for name, value in vars(importlib.import_module(info.name)).items():
            found.add(name)
            if isinstance(value, type):
                found |= {*dir(value), *getattr(value, "__dataclass_fields__", {}), *getattr(value, "_fields", ())}
            with contextlib.suppress(TypeError, ValueError):
                found |= set(inspect.signature(value).parameters)
    return found | set(CATALOGUE) | set(METHODS) | set(PRESETS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page):
    named = {name for name in FILE.findall(page.read_text()) if not name.startswith(ABSENT)} - NOT_OURS
    missing = {name for name in named if not any((ROOT / folder / name).exists() for folder in FOLDERS)}
    assert missing == set()
    named = [link.partition("#")[0] for link in re.findall(r"\]\(([^):]+)\)", page.read_text())]
    links = [(page.parent / link).resolve() for link in named]
    inside = [link for link in links if not str(link.relative_to(ROOT.resolve())).startswith(ABSENT)]
    assert [link for link in inside if not link.exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_dotted_name_that_a_page_uses_resolves(page):
    for path in DOTTED.findall(page.read_text()):
        if path in (".kernels",):  # a group of entry points
            continue
        value = sdebnn
        for name in path[1:].split("."):
            if name in ("toml", "py", "md", "safetensors"):
                break
            if not hasattr(value, name):
                importlib.import_module(f"{value.__name__}.{name}")
            value = getattr(value, name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_that_a_page_quotes_is_one_of_the_package(page, names):
    unknown = set()
    for text in quoted(page):
        found = NAME.match(text)
        if found is None or FILE.match(f"`{text}`") or found[0].split(".")[0] in OTHER_PACKAGES or len(found[0]) <= 2:
            continue
        unknown |= set(found[0].split(".")) - names
    assert unknown - OTHER_NAMES == set()


def test_the_map_lists_the_rooms_in_the_order_of_imports():
    rows = re.findall(r"^\| *\w* *\| `(\w+)(?:\.py|/)` \|", (ROOT / "docs" / "walk.md").read_text(), re.M)
    assert rows == ORDER


def test_the_picture_of_the_map_has_every_room_in_its_layer():
    spec = importlib.util.spec_from_file_location("walk", ROOT / "docs" / "walk.py")
    walk = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(walk)
    assert [room for rooms in walk.LAYERS.values() for room in sorted(rooms, key=ORDER.index)] == ORDER


def test_the_blocks_of_the_page_on_uncertainty_run_as_printed(monkeypatch):
    """The blocks of Python, one after the other; those of the shell are commands of ``sdebnn`` with options it has."""
    if not (ROOT / "results").is_dir():
        pytest.skip("results/ is not here: a distribution does not hold it")
    monkeypatch.chdir(ROOT)
    text, scope = (ROOT / "docs" / "uncertainty.md").read_text(), {}
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.S | re.M)
    assert len(blocks) >= 4
    for block in blocks:
        exec(compile(block, "uncertainty.md", "exec"), scope)
    labels, probs = scope["outcomes"].labels, scope["outcomes"].probs
    assert scope["accuracy"].value == pytest.approx(np.mean(probs.argmax(-1) == labels))
    assert scope["scores"]["ece15"].value == pytest.approx(float(scope["error"]), abs=1e-5)
    wrong = probs.argmax(-1) != labels
    found = sklearn.metrics.roc_auc_score(wrong, -(probs * np.log(np.maximum(probs, 1e-300))).sum(-1))
    assert scope["found"].auroc == pytest.approx(found)
    commands = {"evaluate": forecasting.evaluate, "report": reporting.report}
    for name, words in re.findall(r"^sdebnn (evaluate|report) ([^#\n]*)", text, re.M):
        known = {f"--{each.replace('_', '-')}" for each in inspect.signature(commands[name]).parameters}
        assert {word for word in words.split() if word.startswith("--")} <= known
