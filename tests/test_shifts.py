"""Scores on corruptions and strange images, and at other resolutions of the solver."""

import json
import shutil
from functools import partial

import numpy as np
import pytest
import sklearn.metrics

from sdebnn import cli, metrics, predict, runs
from sdebnn.corruptions import NAMES, corrupted
from sdebnn.data import Part
from sdebnn.forecasters import open_forecaster
from sdebnn.runs.settings import run_bytes
from sdebnn.shifts import (
    corruption_scores,
    fitted_to,
    mean_corruption_error,
    other_images,
    resolution_scores,
    strange_scores,
)

pytestmark = pytest.mark.usefixtures("_compiled_in_haste")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A net of dark and light images, trained for two epochs; its data stay."""
    root = tmp_path_factory.mktemp("shifts")
    rng = np.random.default_rng(0)
    y = np.arange(120) % 2
    x = rng.integers(0, 120, (120, 8, 8, 1)) + 90 * y[:, None, None, None]
    np.savez(root / "data.npz", x=x.astype(np.uint8), y=y)
    settings = runs.Settings(str(root / "data.npz"), epochs=2, validation=0.0, test=0.25)
    runs.train(settings, root / "run", progress=False)
    return root / "run"


@pytest.fixture(scope="module")
def net(run):
    return open_forecaster(run, draws=4)


@pytest.fixture(scope="module")
def part(run):
    return runs.scored_part(run, runs.read_settings(run))


def test_corruptions_are_scored_cell_by_cell(net, part, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sdebnn.shifts.NAMES", ("contrast", "gaussian_noise"))
    found = corruption_scores(net, part)
    cell = net.scores_of(Part(corrupted(part.x, "contrast", 4), part.y))
    assert found["by_corruption"]["contrast"][3] == {name: cell[name] for name in ("accuracy", "nll", "ece")}
    grid = np.array([[each["nll"] for each in cells] for cells in found["by_corruption"].values()])
    np.testing.assert_allclose([each["nll"] for each in found["by_severity"]], grid.mean(0))
    assert found["mean"]["nll"] == pytest.approx(grid.mean())
    assert set(found["by_corruption"]) < set(NAMES)


def test_the_mean_corruption_error_is_a_mean_of_ratios(refused):
    def cells(*accuracy):
        return [{"accuracy": each} for each in accuracy]

    ours, theirs = {"a": cells(0.9, 0.8), "b": cells(0.5, 0.5)}, {"a": cells(0.8, 0.7), "b": cells(0.5, 0.0)}
    assert mean_corruption_error(ours, {"by_corruption": theirs}) == pytest.approx((0.3 / 0.5 + 1.0 / 1.5) / 2)
    refused(lambda: mean_corruption_error(ours, {}), "no scores on corruptions")
    perfect = {"a": cells(1, 1), "b": cells(1, 1)}
    refused(lambda: mean_corruption_error(ours, {"by_corruption": perfect}), "makes no error")


def test_strange_images_are_told_apart_by_three_scores(net, part):
    found = strange_scores(net, part, ["noise", "shuffled"]).detection["noise"]
    noise = other_images("noise", part.x)
    samples = [net.likelihood.center(predict(net.model, x, draws=4, key=net.key)) for x in (part.x, noise)]
    entropy = [metrics.entropy_split(np.asarray(each)).total for each in samples]
    truth = np.r_[np.zeros(len(part.x)), np.ones(len(noise))]
    known = sklearn.metrics.roc_auc_score(truth, np.concatenate(entropy))
    assert found["entropy"]["auroc"] == pytest.approx(known, abs=0.02)  # draws differ by rounding between programs
    assert set(found) == {"entropy", "reducible", "unlike"}


def test_sets_that_are_made_have_the_shape_of_the_images(net, part):
    for name in ("noise", "textures", "shuffled"):
        made = other_images(name, part.x)
        assert (made.shape, made.dtype) == (part.x.shape, np.uint8)
        assert np.array_equal(made, other_images(name, part.x))
    shuffled = other_images("shuffled", part.x)
    np.testing.assert_array_equal(
        np.sort(shuffled.reshape(len(shuffled), -1)), np.sort(part.x.reshape(len(shuffled), -1))
    )
    assert not np.array_equal(shuffled, part.x)
    textures = other_images("textures", part.x).astype(float)
    steps = np.abs(np.diff(textures, axis=1)).mean() / textures.std()
    assert steps < 0.8  # white noise has 2 / sqrt(pi) = 1.13


def test_images_of_another_shape_are_cropped_padded_and_coloured(refused):
    grey = np.arange(2 * 28 * 28, dtype=np.uint8).reshape(2, 28, 28, 1)
    padded = fitted_to(grey, (32, 32, 3))
    np.testing.assert_array_equal(padded[:, 2:30, 2:30], np.repeat(grey, 3, -1))
    assert not padded[:, :2].any()
    colour = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    cropped = fitted_to(colour, (28, 28, 1))
    luma = np.rint(colour[:, 2:30, 2:30] @ [0.299, 0.587, 0.114])
    np.testing.assert_array_equal(cropped[..., 0], luma)
    refused(lambda: fitted_to(colour.astype(float), (8, 8, 1)), "pass bytes")


@pytest.mark.filterwarnings("ignore:steps=8")
def test_resolutions_are_those_of_evaluate(net, part):
    found = resolution_scores(net, part, steps=[4, 8])
    assert [each["steps"] for each in found] == [4, 8]
    assert found[0]["nll"] == pytest.approx(net.scores_of(part)["nll"], rel=1e-5)  # trained with four steps
    assert found[1]["evaluations"] == 2 * found[0]["evaluations"]


@pytest.mark.filterwarnings("ignore:steps=2")
def test_the_command_keeps_what_it_found_and_prints_one_table(run, tmp_path, capsys, refused, monkeypatch):
    command = ["evaluate", str(run), "--draws", "4", "--ood", "noise", "--steps", "2,4"]
    cli.app([*command, "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"model", "clean", "resolutions", "ood"}
    kept = json.loads((run / "shifts.json").read_text())
    entropies = kept.pop("entropies")
    assert kept == found
    told = sklearn.metrics.roc_auc_score([0] * 30 + [1] * 30, entropies["test"] + entropies["noise"])
    assert told == pytest.approx(found["ood"]["noise"]["entropy"]["auroc"], abs=0.02)  # rounded to five digits
    cli.app(command, standalone_mode=False)
    said = capsys.readouterr().out
    assert "AUROC by entropy" in said
    assert "steps 2" in said

    def command_of(*more):
        return lambda: cli.app(["evaluate", str(run), *more], standalone_mode=False)

    refused(command_of("--steps", "2,x"), r"steps=2,x must be positive numbers")
    refused(command_of("--rtol", "-1"), r"rtol=-1 must be positive")
    refused(command_of("--ood", "nowhere"), "ood='nowhere' is no data set")
    refused(command_of("--relative-to", str(run)), "add --corruptions")
    monkeypatch.setattr("sdebnn.shifts.corruption_scores", pytest.fail)  # refused before the long work
    against = partial(command_of, "--corruptions", "--relative-to")
    refused(against(str(run.parent)), "is no folder of a run")
    refused(against(str(run)), "has no scores on corruptions: evaluate it with --corruptions first")
    refused(against(str(run), "--data", "x.npz"), "and --data is given")
    other = tmp_path / "other"
    shutil.copytree(run, other)
    (other / "shifts.json").write_text(json.dumps({"corruptions": {"by_corruption": {}}}))
    record = json.loads((other / "run.json").read_text())
    facts = {"fingerprint": f"{record['fingerprint'][:-1]}x", "about": runs.read_about(other)._asdict()}
    (other / "run.json").write_bytes(run_bytes(runs.read_settings(other), (2,), facts))
    refused(against(str(other)), "was tested on other examples")


@pytest.mark.filterwarnings("ignore:steps=2")
def test_scores_of_a_model_are_not_kept_beside_those_of_another(run, tmp_path, capsys):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (copy / "shifts.json").write_text(json.dumps({"model": {"epochs": 1}, "corruptions": {}, "entropies": {}}))
    cli.app(["evaluate", str(copy), "--draws", "2", "--steps", "2,4", "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == {"epochs": 2, "draws": 2, "best": False}
    assert json.loads((copy / "shifts.json").read_text()) == found


def test_what_was_found_may_be_damaged_and_is_refused_in_words(run, tmp_path, refused):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (copy / "shifts.json").write_text("[")
    refused(lambda: cli.app(["evaluate", str(copy), "--ood", "noise"], standalone_mode=False), "is damaged")
