"""The table of all systems: every row is there, runs under the same fit and predict, and what is done is kept."""

import json
import subprocess
import sys

import equinox as eqx
import jax
import numpy as np
import pytest

from sdebnn import data
from sdebnn.compare import Comparison, task_of
from sdebnn.data import DataSet, Part

KEY = jax.random.key(0)
SYSTEMS = {  # of the paper's tables, and what people use instead: how a row that is one of them begins
    "images": [
        "ResNet32", "ODEnet", "HyperODEnet", "MFVI ResNet32", "MFVI ODEnet", "MFVI HyperODEnet", "Deep Ensemble", "HMC",
        "Bayes by Backprop", "Bayesian hypernet", "BBVI for SDEs", "SDE-BNN", "SDE-BNN + STL", "SDE-BNN, w0 inferred",
        "SDE-BNN, w0 inferred + STL", "SDE-BNN, random to depth", "SDE-BNN, random in one layer", "Temperature scaling",
        "Laplace (last layer)", "MC dropout",
    ],
    "lines": [
        "GP (exact)", "HMC", "Deep Ensemble", "MFVI", "Bayes by Backprop", "Bayesian hypernet", "MC dropout",
        "Laplace (last layer)", "ODEnet", "HyperODEnet", "MFVI ODEnet", "MFVI HyperODEnet", "Bayesian neural ODE",
        "BBVI for SDEs", "SDE-BNN", "SDE-BNN + STL", "SDE-BNN, w0 inferred", "SDE-BNN, w0 inferred + STL",
        "SDE-BNN, random to depth", "SDE-BNN, random in one layer",
    ],
}  # fmt: skip


def some_images(examples: int = 40) -> DataSet:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (examples, 8, 8, 1), dtype=np.uint8)
    part = Part(x, rng.integers(0, 3, examples))
    return DataSet("some", part, part, ("a", "b", "c"))


def a_line(examples: int = 20) -> DataSet:
    x = np.linspace(10, 30, examples)[:, None]
    part = Part(x, 1000 + 50 * np.sin(x / 3))
    return DataSet("line", part, part, None)


@pytest.mark.parametrize(("kind", "make"), [("images", some_images), ("lines", a_line)])
def test_every_system_is_a_row_and_a_model_of_the_contract(kind, make):
    task = task_of(make(), 0)
    names = [row.name for row in task.rows]
    assert len(set(names)) == len(names)
    for system in SYSTEMS[kind]:
        assert any(name.startswith(system) for name in names), system
    x, outputs = task.test.x[:5], 3 if kind == "images" else 1
    for row in task.rows:

        def one(key, row=row):
            made, kl = row.net(key)(jax.numpy.asarray(x, float), key=key)
            return made, kl

        made, kl = eqx.filter_eval_shape(one, KEY)
        assert (made.shape, kl.shape) == ((5, outputs), ()), row.name


def test_scores_are_in_the_units_of_the_data(tmp_path):
    # An ODEnet that has learned nothing predicts about the mean: its error is about the targets' spread, not 1.
    table = Comparison(a_line(), tmp_path, only=["ODEnet"], epochs=1)
    scores = table.add(table.rows[0], progress=False)
    spread = float(np.std(a_line().train.y))
    assert spread / 3 < scores["rmse"] < 3 * spread
    # NLL of a normal law of standard deviation σ, at errors e: log σ + ½ log 2π + ½ mean e²/σ² in the data's units
    sigma = 0.1 * float(table.task.standardisers.y.spread[0])
    by_hand = np.log(sigma) + 0.5 * np.log(2 * np.pi) + 0.5 * (scores["rmse"] / sigma) ** 2
    assert scores["nll"] == pytest.approx(by_hand, rel=0.1)
    assert table.curve("ODEnet").shape == (2, 1000, 161)
    assert table.curve("ODEnet")[1].mean() == pytest.approx(np.mean(a_line().train.y), abs=3 * spread)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Two rows of a table, the first done before it was stopped."""
    out = tmp_path_factory.mktemp("table")
    rows = ["MFVI", "ODEnet"]
    table = Comparison(a_line(), out, only=rows, epochs=1)
    return out, rows, table.add(table.rows[0], progress=False)


@pytest.mark.slow
def test_a_table_that_was_stopped_goes_on_with_what_is_missing(begun):
    out, rows, first = begun
    with pytest.raises(ValueError, match=r"holds a comparison already: add --resume"):
        Comparison(a_line(), out, only=rows, epochs=1)
    with pytest.raises(ValueError, match=r"made with epochs=1, this run has 2"):
        Comparison(a_line(), out, only=rows, epochs=2, resume=True)
    with pytest.raises(ValueError, match=r"examples=18.* has 54"):
        Comparison(a_line(60), out, only=rows, epochs=1, resume=True)
    table = Comparison(a_line(), out, only=rows, epochs=1, resume=True)
    (missing,) = table.pending()
    second = table.add(missing, progress=False)
    assert [first["name"], second["name"]] == rows
    again = Comparison(a_line(), out, only=rows, epochs=1, resume=True)
    assert again.in_order() == [first, second]
    assert again.pending() == []


def test_classes_are_judged_by_what_suits_them(tmp_path):
    keys = jax.random.split(KEY)
    train, test = (Part(*map(np.asarray, data.toy.moons(60, key=k))) for k in keys)
    table = Comparison(DataSet("moons", train, test, ("0", "1")), tmp_path, only=["Temperature scaling"], epochs=1)
    assert "GP (exact)" not in [row.name for row in table.task.rows]
    scores = table.add(table.rows[0], progress=False)
    assert {"accuracy", "nll", "ece", "brier", "kl", "kl_weight", "parameters", "seconds"} <= set(scores)
    assert scores["parameters"] == 32 * 3 + 32 * 33 + 2 * 33 + 1  # an MLP of two hidden layers, and the temperature
    assert 0 < scores["seconds"] < 300


@pytest.mark.slow
def test_the_command_prints_one_json_object_and_keeps_the_picture(tmp_path):
    command = [
        sys.executable, "-m", "sdebnn", "compare", "--data", "toy", "--row", "GP (exact)", "--row", "MFVI", "--epochs",
        "2", "--out", str(tmp_path), "--json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    assert [row["name"] for row in said["rows"]] == ["GP (exact)", "MFVI"]
    assert "GP (exact)" in done.stderr
    assert (tmp_path / "posteriors.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "compare.json").read_text())["rows"] == said["rows"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "nowhere"], "data='nowhere' is unknown"),
        (["--data", "toy", "--row", "GP"], "row='GP' is not a row for toy: choose from GP (exact), HMC"),
        (["--data", "toy", "--epochs", "0"], "epochs=0"),
        (["--data", "toy", "--kl-weight", "-1"], "kl_weight=-1"),
        (["--data", "toy", "--seed", "-1"], "seed=-1"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(arguments, words, tmp_path, capsys, monkeypatch):
    from sdebnn import cli

    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["sdebnn", "compare", *arguments, "--out", str(out)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    said = capsys.readouterr().err
    assert (stop.value.code, said.count("\n")) == (2, 1)
    assert words in said
    assert not out.exists()
