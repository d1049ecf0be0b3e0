"""Runs of nets opened for forecasts: columns, distances, data of one's own, and folders that were damaged."""

import json
import shutil
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from scipy import optimize, stats

from sdebnn import Gaussian, Validation, cli, fit, metrics, runs
from sdebnn.data import Distance, features, held_out, load
from sdebnn.forecasters import Examples, Forecaster, NetForecaster, _class_numbers, open_forecaster
from sdebnn.nn import AbstractModel, Solution
from sdebnn.prediction import predict
from sdebnn.presets import About
from sdebnn.runs import Unlike
from sdebnn.train import saved_answer, saved_best
from sdebnn.train.validation import validation_scores

CLASSES = ("dark", "light", "striped")


def pictures(count, seed):
    """Images of three kinds, 8 by 8, and their labels."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 3
    x = rng.integers(0, 60, (count, 8, 8, 1)) + np.array([0, 180, 0])[y][:, None, None, None]
    x[y == 2, ::2] += 150
    return x.astype(np.uint8), y


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A net of three kinds of images, trained for one epoch, whose data are gone."""
    root = tmp_path_factory.mktemp("nets")
    x, y = pictures(90, 0)
    np.savez(root / "data.npz", x=x, y=np.array(CLASSES)[y])
    runs.train(runs.Settings(str(root / "data.npz"), epochs=1, validation=0.0), root / "run", progress=False)
    (root / "data.npz").unlink()
    return root / "run"


@pytest.fixture(scope="module")
def forecaster(run):
    return open_forecaster(run)


def test_columns_are_those_of_the_averaged_draws(forecaster):
    assert isinstance(forecaster, Forecaster)
    assert isinstance(forecaster, NetForecaster)
    x, _ = pictures(7, 1)
    found = forecaster.forecast(forecaster.from_json(x.tolist()), where="x")
    samples = np.asarray(predict(forecaster.model, x, draws=16, key=jax.random.key(0), draws_at_once=1), float)
    proba = np.exp(samples) / np.exp(samples).sum(-1, keepdims=True)
    mean = proba.mean(0)
    for number, name in enumerate(CLASSES):
        np.testing.assert_allclose(found[f"p({name})"], mean[:, number], rtol=1e-5)
    assert found["label"].tolist() == [CLASSES[i] for i in mean.argmax(1)]
    np.testing.assert_allclose(found["probability"], mean.max(1), rtol=1e-5)
    whole = -(mean * np.log(mean)).sum(1)
    np.testing.assert_allclose(found["entropy"], whole, rtol=1e-4)
    parts = whole + (proba * np.log(proba)).sum(-1).mean(0)
    np.testing.assert_allclose(found["entropy_reducible"], parts, atol=1e-5)


def test_other_images_are_further_from_those_of_training(forecaster):
    x, _ = pictures(60, 2)
    noise = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 1)).astype(np.uint8)
    assert forecaster.distances.states is not None
    by_pixels = Unlike(forecaster.distances.inputs)
    for distances in (forecaster.distances, by_pixels):
        like, unlike = (distances.of(forecaster.model, each) for each in (x, noise))
        assert (like < 1.5).mean() > 0.9
        assert (unlike > 1.5).all()


def test_distance_of_images_is_mahalanobis_of_tiles_and_contrast():
    x = np.random.default_rng(0).integers(0, 256, (50, 8, 8, 2)).astype(np.uint8)
    matrix = features(x)
    assert matrix.shape == (50, 16 * 2 + 4)
    np.testing.assert_allclose(matrix[:, :2], x[:, :2, :2].mean((1, 2)), rtol=1e-6)
    down = np.abs(np.diff(x.astype(float), axis=1)).mean((1, 2))
    np.testing.assert_allclose(matrix[:, -4:-2], np.log1p(down), rtol=1e-6)


def test_data_of_one_s_own_are_read_from_every_kind_of_file(forecaster, tmp_path):
    x, y = pictures(6, 3)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x, y=np.array(CLASSES)[y])
    for i, (image, label) in enumerate(zip(x, y, strict=True)):
        folder = tmp_path / "classes" / CLASSES[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(folder / f"{i}.png")
    first = forecaster.forecast(forecaster.read(tmp_path / "x.npy"), where="x")
    second = forecaster.forecast(forecaster.read(tmp_path / "x.npz"), where="x")
    third = forecaster.forecast(forecaster.read(tmp_path / "classes"), where="x")
    np.testing.assert_array_equal(first["entropy"], second["entropy"])
    order = [int(name.split("/")[1].split(".")[0]) for name in third["file"]]
    np.testing.assert_array_equal(first["entropy"][order], third["entropy"])
    of_file, of_folder = forecaster.scores(tmp_path / "x.npz"), forecaster.scores(tmp_path / "classes")
    assert of_file["nll"] == pytest.approx(of_folder["nll"], rel=1e-6)
    proba = np.column_stack([first[f"p({name})"] for name in CLASSES])
    assert of_file["accuracy"] == pytest.approx(float(metrics.accuracy(proba[None], y)))


def test_a_table_is_refused_by_a_net_of_images(forecaster, tmp_path):
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"rows\.csv holds no images: pass a picture"):
        forecaster.read(tmp_path / "rows.csv")


def test_labels_are_classes_by_their_names_or_else_by_their_numbers(tmp_path):
    file, numbered, named = tmp_path / "t.npz", ("-1", "5", "10"), ("cat", "dog", "eel")
    assert _class_numbers(file, np.array([10, -1, 5, 5]), numbered).tolist() == [2, 0, 1, 1]
    assert _class_numbers(file, np.array(["10", "-1"]), numbered).tolist() == [2, 0]
    assert _class_numbers(file, np.array([2, 0]), named).tolist() == [2, 0]
    assert _class_numbers(file, np.array(["eel", "cat"]), named).tolist() == [2, 0]
    for strange, classes in ((0, numbered), ("2", named), (3, named), (-1, named)):
        with pytest.raises(ValueError, match=r"t\.npz: y holds .* none of the classes"):
            _class_numbers(file, np.array([strange]), classes)


@pytest.mark.slow
def test_a_run_on_labels_0_and_5_has_two_classes_and_is_scored_on_them(tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    y = np.where(x[:, 0] > 0, 5, 0)
    np.savez(tmp_path / "t.npz", x=x, y=y)
    result = runs.train(runs.Settings(str(tmp_path / "t.npz"), epochs=40), tmp_path / "run", progress=False)
    forecaster = open_forecaster(tmp_path / "run")
    columns = forecaster.forecast(forecaster.read(tmp_path / "t.npz"), where="t")
    assert {"p(0)", "p(5)"} == {name for name in columns if name.startswith("p(")}
    assert set(columns["label"]) == {"0", "5"}
    assert result["accuracy"] > 0.6
    right = np.mean(columns["label"] == y.astype(str))
    assert forecaster.scores(tmp_path / "t.npz")["accuracy"] == pytest.approx(right)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "at least one example"),
        ({}, "at least one example"),
        ([[1.0]], "a list of 8 is needed"),
        ([[[[1]] * 8] * 7], "a list of 8 is needed"),
        ([[[[1.5]] * 8] * 8], "whole numbers from 0 to 255"),
        ([[[[256]] * 8] * 8], "whole numbers from 0 to 255"),
        ([[[["7"]] * 8] * 8], "no finite number"),
        ([[[[True]] * 8] * 8], "no finite number"),
        ([[[[float("nan")]] * 8] * 8], "no finite number"),
    ],
)
def test_json_that_holds_no_images_is_refused_in_words(forecaster, rows, words):
    with pytest.raises(ValueError, match=words) as error:
        forecaster.from_json(rows)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_run_that_is_done_goes_on_from_its_end(tmp_path, capsys):
    x, y = pictures(90, 0)
    np.savez(tmp_path / "data.npz", x=x, y=np.array(CLASSES)[y])
    out, settings = tmp_path / "run", runs.Settings(str(tmp_path / "data.npz"), epochs=1, validation=0.2)
    runs.train(settings, out, progress=False)
    made, first, likelihood = runs.open_run(out)
    # An extension that is asked for, and has not begun: the scores are still those of before.
    with pytest.raises(ValueError, match="monitor"):
        runs.train(settings._replace(epochs=5), out, resume=True, progress=False, monitor=0)
    cli.app(["info", str(out), "--json"], standalone_mode=False)
    facts = json.loads(capsys.readouterr().out)
    assert (facts["epochs"], facts["state"]) == (5, "in training; the scores are those after 1 epochs")
    result = runs.train(settings._replace(epochs=3), out, resume=True, progress=False)
    assert (result["epochs"], runs.read_stages(out)) == (3, (1, 2))
    _, second, _ = runs.open_run(out)
    # The same by hand: a training of two epochs that starts with the weights of the first.
    part, rest = held_out(load(settings.data, test=settings.test).train, 0.2, seed=0)
    recipe = made.training.changed(epochs=2)
    batches = replace(recipe.batches, size=64, memory_limit=2**31)
    by_hand = fit(
        first, likelihood, *part, key=made.key(1), validation=Validation(*rest), progress=False,
        **recipe._replace(batches=batches).options(),
    )  # fmt: skip
    assert eqx.tree_equal(by_hand.model, second)
    # Its best is no worse than what it started from, by the same draws.
    start = validation_scores(
        first, likelihood, (rest.x, jnp.asarray(rest.y)), key=made.key(1), examples=len(part.x), draws_at_once=1
    )
    assert saved_best(out / "more-1") <= start.nll
    _, best, _ = runs.open_run(out, best=True)
    stages = [out, out / "more-1"]
    like = eqx.filter((best, likelihood), eqx.is_inexact_array)
    assert eqx.tree_equal(like, saved_answer(min(stages, key=saved_best), like, best=True))

    with pytest.raises(ValueError, match="less than the 3"):
        runs.train(settings._replace(epochs=2), out, resume=True, progress=False)
    # Stopped before the first checkpoint of the second stage: the first is not lost, and the second is trained again.
    shutil.rmtree(out / "more-1" / "checkpoints")
    (out / "more-1" / "metrics.jsonl").unlink()
    assert eqx.tree_equal(runs.open_run(out)[1], first)
    # Refused settings leave nothing behind that the next training would take for its own.
    with pytest.raises(ValueError, match="monitor"):
        runs.train(settings, tmp_path / "other", progress=False, monitor=0)
    assert not (tmp_path / "other").exists()
    # What was asked for and had not begun may also be changed.
    with pytest.raises(ValueError, match="monitor"):
        runs.train(settings._replace(epochs=30), out, resume=True, progress=False, monitor=0)
    runs.train(settings._replace(epochs=3), out, resume=True, progress=False)
    assert eqx.tree_equal(runs.open_run(out)[1], second)


def test_damaged_run_folders_are_refused_in_words(run, tmp_path):
    """Each file of a run cut off at 20 places, with a bit changed at 20, and replaced by hostile contents."""
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    last = max((copy / "checkpoints").glob("*.json"), key=lambda path: int(path.stem.split("-")[-1]))
    names = ("run.json", "inputs.safetensors", "states.safetensors")
    files = [*(copy / name for name in names), last, last.with_suffix(".safetensors")]
    refused = 0
    for file in files:
        whole = file.read_bytes()
        places = [len(whole) * i // 20 for i in range(20)]
        hostile = [
            b"", b"null", b"[" * 100_000, (10 * 2**30).to_bytes(8, "little") + b"{}", b"{}" * 10,
            whole[:8] + b'{"../../etc/passwd":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}' + whole[8:],
        ]  # fmt: skip
        flipped = [whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in places]
        for blob in (*(whole[:at] for at in places), *flipped, *hostile):
            file.write_bytes(blob)
            with pytest.raises((ValueError, OSError)) as error:
                open_forecaster(copy)
            assert len(str(error.value).splitlines()) == 1
            refused += 1
        file.unlink()
        with pytest.raises((ValueError, OSError)):
            open_forecaster(copy)
        file.write_bytes(whole)
    assert refused >= 230
    open_forecaster(copy)


@pytest.mark.parametrize(("rows", "columns"), [(80, 54), (400, 54), (150, 600), (100, 2)])
def test_fresh_examples_of_the_same_kind_are_rarely_unlike(rows, columns):
    rng = np.random.default_rng(0)
    mix = rng.normal(size=(columns, columns)) / np.sqrt(columns) + np.eye(columns)
    distance = Distance.of(rng.normal(size=(rows, columns)) @ mix)
    fresh = distance.to(rng.normal(size=(1000, columns)) @ mix)
    assert (fresh > 1).mean() < 0.1
    assert (distance.to(20 * rng.normal(size=(100, columns)) @ mix) > 1).mean() > 0.9


def test_intervals_of_a_net_are_those_of_the_mixture_of_its_draws():
    """Two draws of the mean, 0 and 3, with noise of 1: the quantiles of the mixture, by SciPy."""

    class TwoMeans(AbstractModel):
        def solve(self, x, *, key, with_roughness=False):
            del with_roughness
            odd = jax.random.key_data(key)[-1] % 2
            return Solution(jnp.broadcast_to(3.0 * odd, (len(x), 1)), jnp.zeros(()))

    about = About("line", (1,), None, 10, (0.0,), (1.0,), (0.0,), (1.0,))
    distance = Distance.of(np.random.default_rng(0).normal(size=(50, 1)))
    net = NetForecaster(about, TwoMeans(), Gaussian(1.0), Unlike(distance), 64, jax.random.key(0), 16)
    columns = net.forecast(Examples(np.zeros((3, 1), np.float32)), where="x")
    means = np.asarray(predict(TwoMeans(), jnp.zeros((1, 1)), draws=64, key=jax.random.key(0)))[:, 0, 0]
    for name, level in (("lower", 0.025), ("upper", 0.975)):
        exact = optimize.brentq(lambda y, level=level: stats.norm.cdf(y - means).mean() - level, -5, 9)
        assert np.ptp(columns[name]) == 0  # the same noise for all rows
        # The standard error of such a quantile of 4032 draws is about 0.08.
        assert abs(columns[name][0] - exact) < 0.25
