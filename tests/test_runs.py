"""Runs by the command line: from a name to a trained model that is found again, scored and asked."""

import json
import shutil
import subprocess
import sys

import equinox as eqx
import jax
import numpy as np
import pytest
from files import moons_file

from sdebnn import SDEBNN, cli, runs
from sdebnn.data import home, load
from sdebnn.presets import About, preset
from sdebnn.train import engine


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """Two moons in a file of arrays."""
    return moons_file(tmp_path_factory.mktemp("vectors") / "moons.npz")


@pytest.fixture(scope="module")
def moons(vectors):
    """A short run on two moons, and what it printed."""
    out = vectors.parent / "run"
    command = [sys.executable, "-m", "sdebnn", "train", "--data", vectors, "--epochs", "30", "--out", out, "--json"]
    return out, subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
def test_training_prints_the_test_scores_as_the_last_line(moons):
    out, done = moons
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert 0.7 < last["accuracy"] <= 1
    assert {"nll", "ece", "brier", "kl", "draws", "fit_seconds", "versions", "settings"} <= set(last)
    assert json.loads((out / "result.json").read_text()) == last
    assert {"run.json", "metrics.jsonl", "checkpoints", "result.json"} <= {path.name for path in out.iterdir()}
    assert "effective temperature 1" in done.stderr


def test_a_run_scores_the_same_when_it_is_opened_again_or_resumed(moons, vectors, capsys):
    out, done = moons
    last = json.loads(done.stdout.splitlines()[-1])
    cli.app(["evaluate", str(out), "--draws", "16", "--json"], standalone_mode=False)
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])
    for name in ("accuracy", "nll", "ece", "kl"):
        assert scores[name] == pytest.approx(last[name], rel=1e-6)
    command = ["train", "--data", str(vectors), "--epochs", "30", "--out", str(out), "--resume"]
    cli.app(command, standalone_mode=False)
    assert f"{last['nll']:.5g}" in capsys.readouterr().out


def test_predictions_are_written_as_columns_of_the_file_s_kind(moons, tmp_path, capsys):
    out, _ = moons
    x = np.random.default_rng(0).normal(size=(7, 2))
    np.save(tmp_path / "inputs.npy", x)
    file = tmp_path / "p.npy"
    cli.app(["predict", str(out), str(tmp_path / "inputs.npy"), "--out", str(file)], standalone_mode=False)
    said = capsys.readouterr().out
    assert "7 rows of probability, p(0), p(1), entropy, entropy_reducible, unlike" in said
    table = np.load(file)  # the columns of numbers
    np.testing.assert_allclose(table[:, 1:3].sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(table[:, 0], table[:, 1:3].max(1))
    entropy = -(table[:, 1:3] * np.log(table[:, 1:3])).sum(1)
    np.testing.assert_allclose(table[:, 3], entropy, rtol=1e-5)
    assert np.all((table[:, 4] >= 0) & (table[:, 4] <= table[:, 3]))
    command = ["predict", out, tmp_path / "inputs.npy", "--out", tmp_path / "p.csv", "--json"]
    cli.app(list(map(str, command)), standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["rows"] == 7
    written = np.genfromtxt(tmp_path / "p.csv", delimiter=",", names=True, dtype=None, encoding="utf-8")
    np.testing.assert_allclose(written["p0"], table[:, 1])
    assert set(written["label"]) <= {0, 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inputs.npy", "p.csv", "p.npy"]


@pytest.mark.slow
def test_a_csv_trains_and_is_predicted_as_a_csv(tmp_path, capsys):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3)) * [1, 100, 1e-3] + [0, 5000, 0]
    y = 1000 + 50 * x[:, 0] + rng.normal(size=300)
    np.savetxt(tmp_path / "t.csv", np.column_stack([x, y]), delimiter=",", header="a,b,c,y", comments="")
    out, file = tmp_path / "run", tmp_path / "t.csv"
    cli.app(["train", "--data", str(file), "--members", "2", "--out", str(out), "--json"], standalone_mode=False)
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert scores["rmse"] < 3 < np.std(y)
    file.unlink()
    np.savetxt(tmp_path / "new.csv", x[:5, ::-1], delimiter=",", header="c,b,a", comments="")
    cli.app(
        ["predict", str(out), str(tmp_path / "new.csv"), "--out", str(tmp_path / "p.csv")], standalone_mode=False
    )  # fmt: skip
    assert "5 rows of y, std" in capsys.readouterr().out
    table = np.genfromtxt(tmp_path / "p.csv", delimiter=",", names=True)
    np.testing.assert_allclose(table["y"], y[:5], atol=5)
    assert np.all((table["lower"] < table["y"]) & (table["y"] < table["upper"]))
    cli.app(["evaluate", str(out), "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["rmse"] == scores["rmse"]
    cli.app(["info", str(out), "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["task"] == "regression"


def test_info_and_data_list_say_what_there_is(moons, vectors, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("SDEBNN_DATA", str(tmp_path))
    cli.app(["info"], standalone_mode=False)
    said = capsys.readouterr().out
    for words in (jax.__version__, "cpu", str(tmp_path), "paper"):
        assert words in said
    cli.app(["info", str(moons[0]), "--json"], standalone_mode=False)
    facts = json.loads(capsys.readouterr().out)
    assert facts["data"] == str(vectors)
    assert facts["checkpoints at steps"]
    assert facts["accuracy"] > 0.7
    cli.app(["info", str(moons[0]), "--layers"], standalone_mode=False)
    shown = capsys.readouterr().out
    assert "SDEBlock of TimeMLP" in shown
    assert "20 steps of euler; two loops" in shown
    cli.app(["data", "list"], standalone_mode=False)
    listed = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert {"wave", "moons", "digits", "mnist", "fashion-mnist", "cifar10", "uci/NAME/SPLIT"} <= set(listed)
    assert "to get" in listed["mnist"]
    assert "built in" in listed["digits"]


@pytest.mark.usefixtures("_as_a_user")
def test_mistakes_are_one_line_and_leave_nothing_behind(moons, vectors, tmp_path, capfd, monkeypatch):
    out, _ = moons
    new = tmp_path / "new"
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    text = tmp_path / "x.npy"
    text.write_text("not an array")
    monkeypatch.setenv("SDEBNN_DATA", str(tmp_path))
    for arguments, words in (
        (("train", "--data", "nonsense", "--out", new), "choose one of"),
        (("train", "--data", "mnist", "--out", new), "sdebnn data get mnist"),
        (("train", "--data", vectors, "--preset", "worst", "--out", new), "'best', 'paper'"),
        (("train", "--data", vectors, "--preset", "paper", "--out", new), "is for images"),
        (("train", "--data", vectors, "--epochs", "0", "--out", new), "epochs=0"),
        (("train", "--data", "moons", "--members", "0", "--out", new), "members=0"),
        (("train", "--data", "moons", "--target", "y", "--out", new), "is for tables of your own"),
        (("train", "--data", "moons", "--epochs", "3", "--out", new), "moons is a table"),
        (("train", "--data", "uci/concrete/0", "--preset", "best", "--out", new), "uci/concrete/0 is a table"),
        (("train", "--data", "moons", "--test", "0.2", "--out", new), "has its own test part"),
        (("train", "--data", "houses.csv", "--epochs", "3", "--out", new), "houses.csv is a table"),
        (("train", "--data", "houses.csv", "--out", new), "houses.csv cannot be read"),
        (("train", "--data", "houses.csv", "--members", "0", "--out", new), "members=0"),
        (("evaluate", out, "--data", text), "holds no targets"),
        (("train", "--data", "moons", "--size", "16", "--out", new), "is for data of your own"),
        (("evaluate", out, "--draws", "0"), "draws=0"),
        (("train", "--data", vectors, "--validation", "2", "--out", new), "validation=2.0"),
        (("train", "--data", vectors, "--epochs", "30", "--out", out), "holds a run already"),
        (("train", "--data", vectors, "--epochs", "29", "--out", out, "--resume"), "less than the 30"),
        (("evaluate", foreign), "is not a run"),
        (("predict", out, text), "x.npy"),
        (("predict", out, tmp_path / "none.npy"), "none.npy"),
        (("data", "get", "imagenet"), "name='imagenet'"),
        (("predict", "--bogus"), "No such option: --bogus"),
        (("train", "--data", "moons"), "Missing option '--out': see sdebnn train --help"),
        (("nonsense",), "No such command 'nonsense'"),
        (("train", "--data", vectors, "--epochs", "1", "--out", text / "inside"), "cannot be made or written to"),
        (("demo", "--out", text / "inside"), "cannot be made or written to"),
        (("report", foreign, "--out", tmp_path / "r.html"), "is no folder of a run"),
    ):
        monkeypatch.setattr(sys, "argv", ["sdebnn", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        said = capfd.readouterr().err
        assert stop.value.code == 2, (arguments, said)
        assert words in said
        assert len(said.strip().splitlines()) == 1, said
    assert not new.exists()


def own(folder, x, y):
    folder.mkdir()
    for part in ("train", "test"):
        np.save(folder / f"x_{part}.npy", x)
        np.save(folder / f"y_{part}.npy", y)
    return folder


def test_data_that_cannot_be_trained_on_are_refused_before_training_and_the_folder_stays_free(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    bad = x.copy()
    bad[7, 1] = np.nan
    train = lambda data: runs.train(runs.Settings(str(data), epochs=1), tmp_path / "run", progress=False)  # noqa: E731
    with pytest.raises(ValueError, match=r"the training part's x holds nan at index \(7, 1\)"):
        train(own(tmp_path / "bad", bad, y))
    with pytest.raises(ValueError, match="save them as uint8"):
        train(own(tmp_path / "floats", np.zeros((40, 8, 8, 1)), y))
    assert not (tmp_path / "run" / "run.json").exists()
    assert 0 <= train(own(tmp_path / "good", x, y))["accuracy"] <= 1


def test_a_net_is_not_made_from_other_data_than_it_was_trained_on(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    data = own(tmp_path / "data", x, y)
    runs.train(runs.Settings(str(data), epochs=1), tmp_path / "run", progress=False)
    run, model, _ = runs.open_run(tmp_path / "run")
    np.save(data / "x_train.npy", 10 * x + 3)
    again, same, _ = runs.open_run(tmp_path / "run")  # which does not read them
    assert again.about == run.about
    assert eqx.tree_equal(model, same)
    with pytest.raises(ValueError, match="the data have changed"):
        runs.train(run.settings, tmp_path / "run", resume=True, progress=False)
    np.save(data / "x_test.npy", x + 1)
    with pytest.raises(ValueError, match="the test part"):
        runs.scored_part(tmp_path / "run", run.settings)
    shutil.rmtree(data)
    assert eqx.tree_equal(model, runs.open_run(tmp_path / "run")[1])


@pytest.mark.slow
def test_digits_reach_ninety_six_percent(tmp_path):
    result = runs.train(runs.Settings("digits", epochs=20), tmp_path / "run", progress=False)
    assert result["accuracy"] >= 0.96


def test_mnist_is_read_and_its_net_takes_a_step(tmp_path):
    if not (home() / "mnist").exists():
        pytest.skip("no MNIST in SDEBNN_DATA")
    data = load("mnist")
    run = runs.make(runs.Settings("mnist", "paper"), About.of(data))
    assert data.train.x.shape == (60_000, 28, 28, 1)
    outputs, _ = run.model(jax.numpy.asarray(data.test.x[:2]), key=run.key())
    assert np.isfinite(outputs).all()
    pixels = run.model.layers[0].module  # the mean and spread of MNIST that everyone quotes, from one row in six
    assert pixels.mean[0] == pytest.approx(0.1307, abs=2e-3)
    assert pixels.std[0] == pytest.approx(0.3081, abs=2e-3)


def small_images(folder):
    rng = np.random.default_rng(0)
    y = np.arange(96) % 3
    x = rng.integers(0, 60, (96, 8, 8, 1)).astype(np.uint8)
    x[np.arange(96), 2 * y, 4] = 255  # the row of a bright pixel is the class
    return own(folder, x, y)


@pytest.mark.slow
def test_a_mixture_that_was_stopped_in_its_second_member_resumes_to_the_same_result(tmp_path, monkeypatch):
    settings = runs.Settings(str(small_images(tmp_path / "data")), epochs=2, members=2)
    whole = runs.train(settings, tmp_path / "whole", progress=False)
    calls = []

    def stopped(*given, **how):
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*given, **how)

    real = engine.fit
    with monkeypatch.context() as patched:
        patched.setattr(engine, "fit", stopped)
        with pytest.raises(KeyboardInterrupt):
            runs.train(settings, tmp_path / "run", progress=False)
    _, model, _ = runs.open_run(tmp_path / "run")
    assert isinstance(model, SDEBNN)  # the first member, which was finished
    with pytest.raises(ValueError, match="--resume"):
        runs.train(settings, tmp_path / "run", progress=False)
    result = runs.train(settings, tmp_path / "run", resume=True, progress=False)
    for name in ("nll", "accuracy", "kl", "elbo"):
        assert result[name] == whole[name]
    assert result["members"] == 2
    assert result["draws"] == 32
    run, mixture, likelihood = runs.open_run(tmp_path / "run")
    assert mixture.size == 2
    part = runs.scored_part(tmp_path / "run", settings)
    assert runs.score(run, part, mixture, likelihood, None).scores["nll"] == result["nll"]


@pytest.mark.slow
def test_members_of_a_table_are_trained_together(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40.0)[:, None]
    settings = runs.Settings(str(own(tmp_path / "data", x, y)), epochs=1, members=2)
    result = runs.train(settings, tmp_path / "run", progress=False)
    assert result["members"] == 2
    assert not list((tmp_path / "run").glob("member-*"))
    _, mixture, _ = runs.open_run(tmp_path / "run")
    assert mixture.size == 2


def test_targets_of_other_spreads_that_share_one_noise_are_warned_of():
    about = About("t", (2,), None, 50, (0.0, 0.0), (1.0, 1.0), (0.0, 0.0), (1.0, 100.0))
    with pytest.warns(UserWarning, match="spreads from 1 to 100, and one noise for all"):
        preset("ours", about)
    preset("ours", about._replace(target_spread=(1.0, 9.0)))


def test_a_short_run_on_few_examples_is_validated_too(tmp_path):
    """``fit`` validates every 50 epochs if a batch is all examples, after the end of such a run."""
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    settings = runs.Settings(str(own(tmp_path / "data", x, y)), epochs=5)
    runs.train(settings, tmp_path / "run", progress=False)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert sum("validation_nll" in row for row in rows) == 5
    runs.open_run(tmp_path / "run", best=True)
