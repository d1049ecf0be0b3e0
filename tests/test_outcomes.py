"""Forecasts beside what came true: their scores by definition, and their file."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics
from hostile import assert_refused
from scipy import special, stats
from test_files import mutations

from sdebnn import Categorical, Gaussian
from sdebnn.outcomes import (
    OUTCOMES_FILE,
    ClassOutcomes,
    NumberOutcomes,
    load_outcomes,
    outcomes_of,
    save_outcomes,
    telling_rows,
)
from sdebnn.records import load_one, save_one

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def classes():
    """Forecasts of three classes by five draws for 300 examples, overconfident."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(1, 300, 3)) + 0.5 * rng.normal(size=(5, 300, 3))
    flat = special.softmax(0.6 * logits[0], -1)
    labels = (flat.cumsum(-1) > rng.uniform(size=(300, 1))).argmax(-1)
    return outcomes_of(Categorical(), jnp.asarray(logits, jnp.float32), jnp.asarray(labels), ("a", "b", "c"), key=KEY)


@pytest.fixture(scope="module")
def numbers():
    """Forecasts of a number by eight draws for 400 examples, with noise of 0.5 that is known."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=(400, 1))
    means = jnp.asarray(y + 0.5 * rng.normal(size=(400, 1)) + 0.2 * rng.normal(size=(8, 400, 1)), jnp.float32)
    return outcomes_of(Gaussian(0.5), means, jnp.asarray(y, jnp.float32), key=KEY)


def test_scores_of_classes_are_those_of_scikit_learn(classes):
    scores, probs = classes.scores(), np.asarray(classes.samples, float).mean(0)
    probs /= probs.sum(-1, keepdims=True)  # they are in float32
    assert scores["accuracy"].value == pytest.approx(sklearn.metrics.accuracy_score(classes.labels, probs.argmax(-1)))
    assert scores["nll"].value == pytest.approx(sklearn.metrics.log_loss(classes.labels, probs), rel=1e-5)
    uncertainty = stats.entropy(probs, axis=-1)
    wrong = probs.argmax(-1) != classes.labels
    auroc = sklearn.metrics.roc_auc_score(wrong, uncertainty)
    assert scores["auroc_of_mistakes"].value == pytest.approx(auroc, abs=1e-6)
    kept = np.argsort(uncertainty)[:270]
    assert scores["accuracy_of_90"].value == pytest.approx(1 - wrong[kept].mean())
    # The interval of a mean, by its standard error.
    error = 1.96 * np.sqrt(np.mean(wrong) * np.mean(~wrong) / 300)
    assert scores["accuracy"].upper - scores["accuracy"].lower == pytest.approx(2 * error, rel=0.25)
    assert all(found.lower <= found.upper for found in scores.values())


def test_where_nothing_is_wrong_no_mistakes_are_detected():
    samples = np.tile(np.array([[0.9, 0.1], [0.2, 0.8]], np.float32), (3, 1, 1))
    assert "auroc_of_mistakes" not in ClassOutcomes(samples, np.array([0, 1]), ("a", "b")).scores(20)


def test_scores_of_numbers_follow_from_the_law_of_the_forecast(numbers):
    scores, y = numbers.scores(), numbers.y[:, 0].astype(float)
    means = numbers.mean[:, :, 0].astype(float)
    assert scores["rmse"].value == pytest.approx(np.sqrt(np.mean((means.mean(0) - y) ** 2)), rel=1e-5)
    nll = -np.log(stats.norm(means, 0.5).pdf(y).mean(0)).mean()
    assert scores["nll"].value == pytest.approx(nll, rel=1e-4)
    assert scores["std_reducible"].value == pytest.approx(np.sqrt(means.var(0).mean()), rel=1e-5)
    assert scores["std"].value == pytest.approx(np.sqrt(means.var(0).mean() + 0.25), rel=1e-5)
    # 200 draws of y: the interval of the mixture itself, up to the noise of its ends.
    covered = scores["coverage_95"]
    expected = 2 * stats.norm.cdf(1.96 * np.hypot(0.5, 0.2) / np.hypot(0.5, 0.2 / np.sqrt(8))) - 1  # 0.963
    assert covered.lower < expected < covered.upper
    exact = np.mean([2 * 1.96 * np.hypot(0.5, spread) for spread in means.std(0)])
    assert scores["width_95"].value == pytest.approx(exact, rel=0.05)


def test_outcomes_are_the_same_after_they_were_saved(classes, numbers, tmp_path):
    for each in (classes, numbers):
        save_outcomes(tmp_path, each)
        again = load_outcomes(tmp_path)
        assert type(again) is type(each)
        assert again.names == each.names
        for name in set(each._fields) - {"names", "unlike"}:
            np.testing.assert_allclose(getattr(again, name), getattr(each, name), rtol=1e-6)
        assert again.unlike is None
    save_outcomes(tmp_path, numbers._replace(unlike=np.arange(400.0)))
    np.testing.assert_array_equal(load_outcomes(tmp_path).unlike, np.arange(400))


@pytest.mark.usefixtures("bounded")
def test_damaged_and_forged_outcomes_are_refused(classes, tmp_path):
    with pytest.raises(ValueError, match="holds no outcomes"):
        load_outcomes(tmp_path)
    save_outcomes(tmp_path, classes)
    path = tmp_path / OUTCOMES_FILE
    whole = path.read_bytes()
    for name, data in mutations(whole, 60, seed=0):
        path.write_bytes(data)
        assert_refused(lambda path: load_outcomes(path.parent), path, name)
    kind, good = "forecasts and outcomes, version 1", {"samples": classes.samples, "labels": classes.labels}
    forged = {
        "no labels": {"samples": classes.samples},
        "labels of others": {**good, "labels": classes.labels[:-1]},
        "a class too many": {**good, "labels": classes.labels + 1},
        "NaN": {**good, "samples": np.full_like(classes.samples, np.nan)},
        "no draws": {**good, "samples": classes.samples[:0]},
        "labels of floats": {**good, "labels": classes.labels.astype(np.float32)},
        "distances of others": {**good, "unlike": np.ones(7, np.float32)},
        "one more": {**good, "y": classes.labels},
    }
    for name, arrays in forged.items():
        save_one(path, arrays, kind, {"names": list(classes.names)})
        assert_refused(lambda path: load_outcomes(path.parent), path, name)
    save_one(path, good, kind, {"names": ["a", "b"]})
    assert_refused(lambda path: load_outcomes(path.parent), path, "two names")
    assert load_one(path, kind, {})[1]["names"] == ["a", "b"]


def test_number_outcomes_of_two_targets_have_two_names():
    means = jnp.zeros((3, 10, 2))
    found = outcomes_of(Gaussian(1.0), means, jnp.ones((10, 2)), key=KEY)
    assert isinstance(found, NumberOutcomes)
    assert found.names == ("y1", "y2")
    assert found.targets.shape == (201, 10, 2)
    assert abs(found.targets.std() - 1) < 5 / np.sqrt(2 * found.targets.size)


def test_what_does_not_fit_together_is_refused_when_it_is_made(refused):
    logits, key = jnp.zeros((2, 3, 4)), jax.random.key(0)
    refused(lambda: outcomes_of(Categorical(), logits, jnp.array([0, 1, 4]), key=key), "labels beyond the classes")
    refused(lambda: outcomes_of(Categorical(), logits, jnp.array([0, 1]), key=key), "do not fit together")
    refused(lambda: outcomes_of(Categorical(), logits, jnp.array([0.0, 1, 2]), key=key), "labels beyond the classes")
    refused(lambda: outcomes_of(Categorical(), logits, jnp.array([0, 1, 2]), ["a"], key=key), "for 1 classes")


def test_right_answers_to_all_of_few_questions_leave_room_for_doubt():
    samples = np.tile(np.eye(2), (2, 9, 1))
    found = ClassOutcomes(samples, np.arange(18) % 2, ("a", "b")).scores(20)
    for name, answered in (("accuracy", 18), ("accuracy_of_90", 17)):
        assert found[name].value == found[name].upper == 1
        assert found[name].lower == pytest.approx(0.025 ** (1 / answered))  # all right with probability p^18


def test_forged_probabilities_are_refused(classes, tmp_path):
    save_outcomes(tmp_path, classes._replace(samples=2 * classes.samples))
    with pytest.raises(ValueError, match="no probabilities"):
        load_outcomes(tmp_path)


def test_an_example_to_look_at_is_shown_once():
    """The only mistake is the surest mistake and the least certain example, too."""
    confidence = np.array([0.9, 0.55, 0.8, 0.7])
    samples = np.stack([confidence, 1 - confidence], -1)[None].astype(np.float32)
    outcomes = ClassOutcomes(samples, np.array([0, 1, 0, 0]), ("a", "b"))
    assert telling_rows(outcomes, 2).tolist() == [1, 3, 0, 2]
