"""The reference: every public name is documented on one page, and the examples in the docstrings run.

An example is a block of a docstring that is indented by four spaces, after a blank line. Other blocks, such as tables
of parameters and equations, are told from examples by their syntax: an example can be parsed as statements of Python,
and calls or assigns something.
"""

import ast
import importlib
import inspect
import re
import shutil
import textwrap
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

import sdebnn
from sdebnn import baselines, integrate, likelihoods, metrics, nn, plots, processes
from sdebnn.tables.rows import TableSettings
from sdebnn.tables.runs import train_table

mpl.use("agg")
import matplotlib.pyplot as plt

pytestmark = pytest.mark.usefixtures("_compiled_in_haste")
REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
PUBLIC = (
    "sdebnn", "sdebnn.nn", "sdebnn.processes", "sdebnn.integrate", "sdebnn.likelihoods", "sdebnn.metrics",
    "sdebnn.baselines", "sdebnn.data", "sdebnn.plots", "sdebnn.train", "sdebnn.corruptions", "sdebnn.export",
    "sdebnn.reports",
)  # fmt: skip
# What functions return, and other types that users do not construct: the examples of functions show them.
RESULTS = {
    "sdebnn.Description", "sdebnn.Elbo", "sdebnn.UncertaintySources", "sdebnn.baselines.Diagnostics",
    "sdebnn.data.Request", "sdebnn.estimators.Interval", "sdebnn.estimators.classifier.ClassForecast",
    "sdebnn.estimators.estimator.Uncertainty", "sdebnn.estimators.regressor.NumberForecast",
    "sdebnn.export.ExportResult", "sdebnn.export.Exported", "sdebnn.forecasters.Forecaster",
    "sdebnn.integrate.Dynamics", "sdebnn.integrate.Noise", "sdebnn.integrate.Process", "sdebnn.integrate.Solution",
    "sdebnn.integrate.WeightPath", "sdebnn.likelihoods.Summary", "sdebnn.metrics.BrierParts",
    "sdebnn.metrics.Detection", "sdebnn.metrics.Estimate", "sdebnn.metrics.Reliability", "sdebnn.metrics.RiskCoverage",
    "sdebnn.metrics.Split", "sdebnn.reports.Subject", "sdebnn.train.EstimatorNoise", "sdebnn.train.Scores",
    "sdebnn.verify.Theorem",
}  # fmt: skip
# Public names that only the package itself needs, and aliases of types. They are on no page.
INTERNAL = {
    "sdebnn.data.Distance", "sdebnn.data.Inputs", "sdebnn.data.SelectedRows", "sdebnn.data.TrainingInputs",
    "sdebnn.data.as_arrays", "sdebnn.data.as_floats", "sdebnn.data.batch_dtype", "sdebnn.data.check_part",
    "sdebnn.data.evenly_spaced_rows", "sdebnn.data.features", "sdebnn.data.find", "sdebnn.data.is_here",
    "sdebnn.data.is_lazy", "sdebnn.data.is_resident", "sdebnn.data.name_of_row", "sdebnn.integrate.Hidden",
    "sdebnn.integrate.KLEstimator", "sdebnn.integrate.MethodName", "sdebnn.integrate.VectorField",
    "sdebnn.likelihoods.Outputs", "sdebnn.processes.Depth", "sdebnn.processes.Weights", "sdebnn.train.Recipe",
    "sdebnn.train.RunFolder", "sdebnn.train.ShouldStop", "sdebnn.train.member_folder", "sdebnn.train.member_key",
    "sdebnn.train.saved_answer", "sdebnn.train.saved_best", "sdebnn.train.saved_seconds",
}  # fmt: skip
SLOW = {  # names whose examples take three seconds or more, most of which is compilation
    "sdebnn.SDEBNNClassifier", "sdebnn.SDEBNNRegressor", "sdebnn.Validation", "sdebnn.Weighted", "sdebnn.baselines.GP",
    "sdebnn.baselines.HMC", "sdebnn.baselines.bayes_by_backprop", "sdebnn.fit", "sdebnn.train.estimator_noise",
    "sdebnn.train.grouped_muon",
}  # fmt: skip
NOT_RUN = {"sdebnn.data.get"}  # downloads
# Their examples find the folder of a run, ``model``.
OF_A_RUN = ("sdebnn.export", "sdebnn.forecasters", "sdebnn.outcomes.load_outcomes", "sdebnn.reports")


def resolved(dotted):
    """The object with a dotted name. If a module and an object in a package share it, as ``bbvi``, the object."""
    parts = dotted.split(".")
    for count in range(max(1, len(parts) - 1), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for name in parts[count:]:
            if not hasattr(value, name):  # a module that is not imported yet
                importlib.import_module(f"{value.__name__}.{name}")
            value = getattr(value, name)
        return value
    raise AssertionError(f"{dotted} is no name of the package")


def documented():
    """The names that the pages of the reference document, each with its page."""
    pages = sorted(REFERENCE.glob("*.md"))
    return [(name, page.name) for page in pages for name in re.findall(r"^::: ([\w.]+)", page.read_text(), re.M)]


def examples(value):
    """The examples in the docstrings of an object and, of a class, of its own public methods, in order."""
    docstrings = [getattr(value, "__doc__", None)]
    if isinstance(value, type):
        members = [getattr(value, name) for name in vars(value) if not name.startswith("_")]
        docstrings += [each.__doc__ for each in members if inspect.isroutine(each) or isinstance(each, property)]
    return [code for docstring in docstrings for code in code_of(docstring or "")]


def code_of(docstring):
    """The indented blocks of a docstring that are statements of Python."""
    lines = inspect.cleandoc(docstring).splitlines()
    blocks, inside = [], False
    for number, line in enumerate(lines):
        if line.startswith("    ") and not inside and number and not lines[number - 1].strip():
            blocks.append([])
            inside = True
        inside = inside and (line.startswith("    ") or not line.strip())
        if inside:
            blocks[-1].append(line)
    return [code for code in (textwrap.dedent("\n".join(block)) for block in blocks) if is_code(code)]


def is_code(text):
    """Whether a text is statements of Python that call or assign something."""
    try:
        nodes = [*ast.walk(ast.parse(text))]
    except SyntaxError:
        return False
    return any(isinstance(node, ast.Call | ast.Assign | ast.AnnAssign) for node in nodes)


NAMES = [name for name, _ in documented()]


class Field(eqx.Module):
    """A field dh/dt = tanh(A h)."""

    layer: eqx.nn.Linear

    def __call__(self, t, h):
        return jax.nn.tanh(self.layer(h))


@pytest.fixture(scope="module")
def names():
    """What every example can use."""
    found = {"jax": jax, "jnp": jnp, "np": np, "eqx": eqx, "sdebnn": sdebnn, "plots": plots}
    for room in (nn, processes, integrate, likelihoods, metrics, baselines, sdebnn):
        found |= {name: getattr(room, name) for name in room.__all__}
    key = jax.random.key(0)
    keys = jax.random.split(key, 16)
    random = np.random.default_rng(0)
    x = jnp.linspace(-2, 2, 40)[:, None]
    model = sdebnn.SDEBNN.mlp(
        1, 1, width=8, points=8, candidates=2, solver=sdebnn.FixedGrid(2, "heun", unroll=1), key=keys[0]
    )
    images = jax.random.uniform(keys[1], (8, 8, 8, 3))
    field = nn.TimeConv(3, (4,) * 3, key=keys[2])
    solver = sdebnn.FixedGrid(2, unroll=1)
    net = nn.SDEBNN((
        nn.bayesianize(field, drift=(8,), solver=solver, key=keys[3]), nn.Deterministic(nn.pooled),
        nn.Deterministic(nn.Readout(3, 3, key=keys[4])),
    ))  # fmt: skip
    X = random.normal(size=(60, 3))
    noise = random.normal(size=60)
    return found | {
        "key": key, "keys": keys, "x": x, "y": jnp.sin(2 * x) + 0.1 * jax.random.normal(keys[5], x.shape),
        "images": images, "labels": jnp.arange(8) % 3, "model": model, "net": net, "field": Field(
            eqx.nn.Linear(4, 4, key=keys[6])
        ),
        "likelihood": sdebnn.Gaussian(0.1), "samples": sdebnn.predict(model, x, draws=4, key=key),
        "probs": jax.nn.softmax(jax.random.normal(keys[7], (8, 3))), "X": X, "target": X[:, 0] + 0.1 * noise,
        "classes": (X[:, 1] > 0).astype(int) + (X[:, 2] > 0),
    }  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run of a table."""
    folder = tmp_path_factory.mktemp("run")
    area, side = np.arange(40, 100), np.where(np.arange(60) % 3, "north", "south")
    noise = np.random.default_rng(0).normal(0, 5, 60)
    rows = [f"{a},{s},{3 * a + 40 * (s == 'south') + e}" for a, s, e in zip(area, side, noise, strict=True)]
    (folder / "houses.csv").write_text("\n".join(["area,side,price", *rows]))
    settings = TableSettings(str(folder / "houses.csv"), target="price", family="gp")
    train_table(settings, folder / "model", progress=False)
    return folder / "model"


def write_photos(folder):
    for number in range(8):
        path = folder / "photos" / ("cat", "dog")[number % 2]
        path.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((20, 20, 3), 30 * number, np.uint8)).save(path / f"{number}.png")


def write_arrays(folder):
    (folder / "arrays").mkdir()
    random = np.random.default_rng(0)
    for part in ("train", "test"):
        np.save(folder / "arrays" / f"x_{part}.npy", random.normal(size=(10, 3)))
        np.save(folder / "arrays" / f"y_{part}.npy", np.arange(10) % 2)


# The user's own files, by the names that examples use for them.
OWN_FILES = {
    "photos": write_photos,
    "arrays": write_arrays,
    "table.npz": lambda folder: np.savez(folder / "table.npz", x=np.ones((20, 3)), y=np.arange(20) % 2),
    "wine.csv": lambda folder: (folder / "wine.csv").write_text("acid,sugar,quality\n" + "0.7,9,5\n0.3,8,6\n" * 9),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in NAMES])
def test_the_examples_of_a_name_run(name, names, tmp_path, monkeypatch, request):
    codes = [compile(code, f"<example of {name}>", "exec") for code in examples(resolved(name))]
    if name in NOT_RUN:
        return
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SDEBNN_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(jax.distributed, "initialize", lambda *address, **options: None)
    for file, write in OWN_FILES.items():
        if any(file in code.co_consts for code in codes):
            write(tmp_path)
    if name.startswith(OF_A_RUN):
        shutil.copytree(request.getfixturevalue("run"), tmp_path / "model")
    if name.startswith("sdebnn.export"):
        request.getfixturevalue("_as_a_user")  # the shape checks of jaxtyping take no symbolic sizes
    _, axes = plt.subplots()
    scope = {"__name__": "example", **names, "axes": axes}
    try:
        for code in codes:
            exec(code, scope)
    finally:
        plt.close("all")


def test_every_documented_name_has_an_example():
    results = {id(resolved(name)) for name in RESULTS}
    values = {name: resolved(name) for name in NAMES}
    without = {name for name, value in values.items() if not inspect.ismodule(value) and not examples(value)}
    assert {name for name in without if id(values[name]) not in results} == set()
    assert results == {id(values[name]) for name in without}


def test_the_site_shows_the_object_of_a_name_and_not_a_module_that_shares_it():
    """The site reads the source, where the module comes first: write ``sdebnn.baselines.bbvi.bbvi`` on the page."""
    package = pytest.importorskip("griffe").load("sdebnn", search_paths=[str(REFERENCE.parents[1])])
    found = {name: package[name.removeprefix("sdebnn.")] for name in NAMES if "." in name}
    modules = {name for name, each in found.items() if (each.final_target if each.is_alias else each).is_module}
    assert {name for name in modules if not inspect.ismodule(resolved(name))} == set()


def test_every_public_name_is_documented_on_one_page():
    pages = {}
    for name, page in documented():
        pages.setdefault(id(resolved(name)), []).append(f"{page}: {name}")
    internal = {id(resolved(name)) for name in INTERNAL}
    public = {}
    for room in map(importlib.import_module, PUBLIC):
        values = {f"{room.__name__}.{name}": getattr(room, name) for name in room.__all__}
        public |= {id(value): name for name, value in values.items() if callable(value)}
    assert {name for value, name in public.items() if value not in pages and value not in internal} == set()
    assert [places for places in pages.values() if len(places) > 1] == []
    assert {name for value, name in public.items() if value in pages and value in internal} == set()
