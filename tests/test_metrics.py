"""Scores of forecasts against scikit-learn, torchmetrics, brute force and their definitions."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics
from scipy import special, stats

from sdebnn import metrics

SAMPLES = jnp.array([[[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], [[0.7, 0.3], [0.2, 0.8], [0.4, 0.6]]])
PROBS = np.array([[0.8, 0.2], [0.4, 0.6], [0.3, 0.7]])  # their mean, by hand
LABELS = jnp.array([0, 0, 1])


def test_accuracy_and_brier_by_hand():
    assert metrics.accuracy(SAMPLES, LABELS) == pytest.approx(2 / 3)
    truth = np.eye(2)[np.asarray(LABELS)]
    assert metrics.brier(SAMPLES, LABELS) == pytest.approx(((PROBS - truth) ** 2).sum(-1).mean())


def test_nll_by_hand():
    log_probs = jnp.log(jnp.array([[0.9, 0.6, 0.8], [0.7, 0.2, 0.6]]))
    assert metrics.nll(log_probs) == pytest.approx(-np.log([0.8, 0.4, 0.7]).mean(), rel=1e-5)


def test_ece_by_hand():
    # confidences 0.8, 0.6, 0.7 in bins of their own: |1 - 0.8| + |0 - 0.6| + |1 - 0.7|, over 3
    assert metrics.ece(SAMPLES, LABELS) == pytest.approx((0.2 + 0.6 + 0.3) / 3, rel=1e-5)
    # in one bin the signs cancel: |2 - 2.1| / 3
    assert metrics.ece(SAMPLES, LABELS, bins=1) == pytest.approx(0.1 / 3, rel=1e-4)


def test_a_confidence_on_either_side_of_an_edge_falls_into_its_own_bin():
    # Just below 0.8 wrong, just above right: apart |0 - 0.7999| and |1 - 0.8001|, together |1 - 1.6| would cancel.
    confidence = jnp.array([0.7999, 0.8001])
    samples = jnp.stack([confidence, 1 - confidence], -1)[None]
    assert metrics.ece(samples, jnp.array([1, 0])) == pytest.approx((0.7999 + 0.1999) / 2, rel=1e-4)


def test_ece_of_a_calibrated_forecast_is_sampling_noise():
    key, label_key = jax.random.split(jax.random.key(0))
    confidence = jax.random.uniform(key, (20000,), minval=0.5)
    correct = jax.random.uniform(label_key, (20000,)) < confidence
    samples = jnp.stack([confidence, 1 - confidence], -1)[None]
    labels = jnp.where(correct, 0, 1)
    # each of 5 bins has 4000 examples: a standard error of at most 0.5 / sqrt(4000)
    assert metrics.ece(samples, labels) < 4 * 0.5 / np.sqrt(4000)


def test_rmse_scores_the_mean_of_the_draws():
    samples = jnp.array([[[0.0], [2.0]], [[2.0], [4.0]]])
    assert metrics.rmse(samples, jnp.array([[1.0], [5.0]])) == pytest.approx(np.sqrt(2.0))


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_coverage_of_the_true_law_is_its_level(level):
    key, target_key = jax.random.split(jax.random.key(0))
    samples, y = jax.random.normal(key, (1000, 2000, 1)), jax.random.normal(target_key, (2000, 1))
    assert abs(metrics.coverage(samples, y, level) - level) < 4 * np.sqrt(level * (1 - level) / 2000)
    narrow = metrics.coverage(samples / 2, y, level)
    expected = 2 * stats.norm.cdf(stats.norm.ppf((1 + level) / 2) / 2) - 1
    assert abs(narrow - expected) < 0.04


# Draws, examples, and how much more than 95 % is covered: exact from 39 draws on. With fewer, the ends lie beyond all
# draws, where a normal law falls off faster than the exponential tail that is assumed there.
FEW_AND_MANY = [(10, 20_000, 0.009), (20, 20_000, 0.004), (39, 20_000, 0.0), (100, 20_000, 0.0), (1000, 4000, 0.0)]


@pytest.mark.parametrize(("draws", "examples", "excess"), FEW_AND_MANY)
def test_a_perfect_forecast_has_nominal_coverage_for_any_number_of_draws(draws, examples, excess):
    """One more normal draw beside so many: 4 standard errors over the examples."""
    values = np.random.default_rng(draws).normal(size=(draws + 1, examples, 1)).astype(np.float32)
    covered = metrics.coverage(values[1:], values[0])
    assert abs(covered - 0.95 - excess) < 4 * np.sqrt(0.95 * 0.05 / examples)


@pytest.mark.parametrize("draws", [2, 3, 10, 38])
def test_extrapolation_is_exact_for_an_exponential_tail(draws):
    """P(one more > upper end) = E[exp(-upper end)] = 2.5 % of standard exponentials: 4 standard errors of 100,000."""
    samples = np.random.default_rng(0).exponential(size=(draws, 100_000))
    beyond = np.exp(-metrics.interval(samples, 0.95)[1])
    assert abs(beyond.mean() - 0.025) < 4 * beyond.std() / np.sqrt(100_000)
    # The lower end is that of the same samples turned round.
    np.testing.assert_allclose(metrics.interval(-samples, 0.95)[0], -metrics.interval(samples, 0.95)[1], rtol=1e-12)


@pytest.mark.parametrize("level", [0.2, 0.5, 0.9, 0.95])
def test_intervals_are_weibull_quantiles(level):
    samples = np.random.default_rng(0).normal(size=(57, 4, 3))
    expected = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2], axis=0, method="weibull")
    np.testing.assert_allclose(metrics.interval(samples, level), expected, rtol=1e-12)
    traced = jax.jit(lambda samples: metrics.interval(samples, level))(samples)
    np.testing.assert_allclose(traced, expected, rtol=1e-5)


@pytest.mark.usefixtures("_as_a_user")
def test_one_draw_has_no_interval(refused):
    refused(lambda: metrics.coverage(np.zeros((1, 3, 1)), np.zeros((3, 1))), r"samples have shape \(1, 3, 1\)")
    refused(lambda: metrics.interval(np.zeros((5, 3)), 1.0), "level=1.0")


def test_crps_of_normal_samples_is_its_closed_form():
    """σ (z (2Φ(z) - 1) + 2φ(z) - 1/√π), z = (y - μ)/σ; 20,000 draws, a standard error of about 0.01."""
    mean, std = np.array([0.0, 1.0, -3.0]), np.array([1.0, 0.5, 2.0])
    y = np.array([[0.3], [2.0], [-3.0]])
    samples = mean[:, None] + std[:, None] * np.random.default_rng(0).normal(size=(20_000, 3, 1))
    z = (y[:, 0] - mean) / std
    exact = std * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))
    np.testing.assert_allclose(metrics.crps(samples, y), exact.mean(), atol=4 * 0.01)


def test_crps_of_few_draws_is_the_mean_over_pairs():
    samples, y = np.array([0.0, 1.0, 3.0])[:, None, None], np.array([[1.0]])
    pairs = [abs(a - b) for a in (0, 1, 3) for b in (0, 1, 3) if a != b]
    np.testing.assert_allclose(metrics.crps(samples, y), (1 + 0 + 2) / 3 - 0.5 * np.mean(pairs), rtol=1e-6)
    with pytest.raises(ValueError, match="two draws"):
        metrics.crps(samples[:1], y)


def test_weights_are_repetitions_in_the_nll():
    log_probs = np.log(np.array([[0.2, 0.5], [0.6, 0.1]]))
    twice = metrics.nll(log_probs[:, [0, 1, 1]])
    np.testing.assert_allclose(metrics.nll(log_probs, np.array([1.0, 2.0])), twice, rtol=1e-6)


@pytest.mark.usefixtures("_as_a_user")
def test_weights_of_another_length_are_refused():
    with pytest.raises(ValueError, match="weights"):
        metrics.nll(np.zeros((2, 2)), np.ones(3))


def forecasts(examples=400, classes=4, draws=5, seed=0):
    """Probabilities of several draws, and labels that follow a flatter law than they claim."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(1, examples, classes)) + 0.5 * rng.normal(size=(draws, examples, classes))
    samples = special.softmax(logits, -1)
    flat = special.softmax(0.6 * logits[0], -1)
    labels = (flat.cumsum(-1) > rng.uniform(size=(examples, 1))).argmax(-1)
    return samples, labels


def binned_error(p, happened, bins, by_mass):
    """|frequency - mean probability| in bins, weighted by their counts: a loop over bins."""
    order = np.argsort(p, kind="stable")
    if by_mass:
        groups = np.array_split(order, bins)
    else:
        groups = [np.flatnonzero(np.minimum(np.floor(p * bins), bins - 1) == b) for b in range(bins)]
    return sum(abs(happened[g].sum() - p[g].sum()) for g in groups) / len(p)


@pytest.mark.parametrize("bins", [1, 10, 15, 37])
@pytest.mark.parametrize("binning", ["width", "mass"])
def test_calibration_errors_by_brute_force(bins, binning):
    samples, labels = forecasts()
    probs = samples.mean(0)
    correct = (probs.argmax(-1) == labels).astype(float)
    top = binned_error(probs.max(-1), correct, bins, binning == "mass")
    assert metrics.ece(samples, labels, bins, binning) == pytest.approx(top, rel=1e-4)
    each = [binned_error(probs[:, k], (labels == k).astype(float), bins, binning == "mass") for k in range(4)]
    assert metrics.classwise_ece(samples, labels, bins, binning) == pytest.approx(np.mean(each))
    curve = metrics.reliability(samples, labels, bins, binning)
    assert curve.examples.sum() == len(labels)
    by_curve = np.sum(curve.examples * np.abs(curve.accuracy - curve.confidence)) / len(labels)
    assert by_curve == pytest.approx(top, rel=1e-4)


def test_calibration_error_agrees_with_torchmetrics():
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip("torchmetrics.functional.classification")
    samples, labels = forecasts(2000)
    theirs = functional.multiclass_calibration_error(
        torch.tensor(samples.mean(0)), torch.tensor(labels), num_classes=4, n_bins=15, norm="l1"
    )
    assert metrics.ece(samples, labels, 15) == pytest.approx(float(theirs), rel=1e-3)


def test_a_class_that_no_example_has_should_have_no_probability():
    samples = np.array([[[0.5, 0.2, 0.3], [0.2, 0.5, 0.3]]])
    # 0.5 and 0.2 of classes 0 and 1 are bins of their own; class 2 is said to be 0.3 twice.
    assert metrics.classwise_ece(samples, np.array([0, 1])) == pytest.approx((0.35 + 0.35 + 0.3) / 3)


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_the_parts_of_the_brier_score_add_up_to_it(binning):
    samples, labels = forecasts()
    parts = metrics.brier_parts(samples, labels, 12, binning)
    whole = parts.reliability - parts.resolution + parts.uncertainty + parts.within_bins
    assert whole == pytest.approx(float(metrics.brier(samples, labels)), rel=1e-5)
    assert parts.uncertainty == pytest.approx(sum(np.mean(labels == k) * np.mean(labels != k) for k in range(4)))
    # Forecasts of few values, each in a bin of its own: nothing is left inside the bins, and by hand for two classes:
    p, y = np.repeat([0.15, 0.55, 0.85], [20, 30, 50]), np.r_[np.arange(20) < 5, np.arange(30) < 15, np.arange(50) < 40]
    parts = metrics.brier_parts(np.stack([1 - p, p], -1)[None], y.astype(int), 10)
    frequency, base = np.array([0.25, 0.5, 0.8]), 0.6
    share = np.array([0.2, 0.3, 0.5])
    assert parts.reliability == pytest.approx(2 * share @ (np.array([0.15, 0.55, 0.85]) - frequency) ** 2)
    assert parts.resolution == pytest.approx(2 * share @ (frequency - base) ** 2)
    assert parts.within_bins == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("ties", [False, True])
def test_detection_agrees_with_scikit_learn(ties):
    rng = np.random.default_rng(0)
    usual, strange = rng.normal(size=300), rng.normal(1, 1.5, size=170)
    if ties:
        usual, strange = np.round(usual, 0), np.round(strange, 0)
    found = metrics.detection(usual, strange)
    y, scores = np.r_[np.zeros(300), np.ones(170)], np.r_[usual, strange]
    assert found.auroc == pytest.approx(sklearn.metrics.roc_auc_score(y, scores))
    assert found.aupr_strange == pytest.approx(sklearn.metrics.average_precision_score(y, scores))
    assert found.aupr_usual == pytest.approx(sklearn.metrics.average_precision_score(1 - y, -scores))
    # Usual ones as the positives, as the literature has it: the first threshold that keeps 95 % of them.
    passed, kept, _ = sklearn.metrics.roc_curve(1 - y, -scores, drop_intermediate=False)
    assert found.fpr_at_95 == pytest.approx(passed[np.argmax(kept >= 0.95 - 1e-12)])
    swapped = metrics.detection(strange, usual)
    assert swapped.auroc == pytest.approx(1 - found.auroc)


def test_risk_and_coverage_by_brute_force():
    rng = np.random.default_rng(0)
    uncertainty, wrong = rng.uniform(size=50), rng.uniform(size=50) < 0.3
    curve = metrics.risk_coverage(uncertainty, wrong)
    order = np.argsort(uncertainty)
    risks = [wrong[order[:k]].mean() for k in range(1, 51)]
    np.testing.assert_allclose(curve.risk, risks)
    np.testing.assert_allclose(curve.coverage, np.arange(1, 51) / 50)
    assert curve.area == pytest.approx(np.mean(risks))
    assert curve.accuracy_at(0.5) == pytest.approx(1 - risks[24])
    assert curve.accuracy_at(1.0) == pytest.approx(1 - wrong.mean())
    # Equal uncertainty: the mean over random orders.
    tied = np.repeat([0.0, 1.0], 25)
    each = []
    for _ in range(4000):
        shuffled = rng.permutation(25)
        each.append(np.cumsum(np.r_[wrong[:25][shuffled], wrong[25:][shuffled]]) / np.arange(1, 51))
    error = np.std(each, axis=0) / np.sqrt(4000)
    assert np.all(np.abs(metrics.risk_coverage(tied, wrong).risk - np.mean(each, axis=0)) <= 5 * error + 1e-9)


def test_interval_scores_and_pinball_losses_by_their_definitions():
    rng = np.random.default_rng(0)
    y, low = rng.normal(size=(200, 2)), rng.normal(-1, 1, size=(200, 2))
    high = low + rng.uniform(0, 3, size=(200, 2))
    by_loop = [
        (h - a) + (2 / 0.2) * ((a - v) if v < a else (v - h) if v > h else 0.0)
        for a, h, v in zip(low.ravel(), high.ravel(), y.ravel(), strict=True)
    ]
    assert metrics.interval_score(low, high, y, 0.8) == pytest.approx(np.mean(by_loop))
    levels, quantiles = np.array([0.1, 0.5, 0.9]), rng.normal(size=(3, 200, 2))
    theirs = [
        sklearn.metrics.mean_pinball_loss(y, quantiles[i], alpha=level) for i, level in enumerate(levels)
    ]  # fmt: skip
    assert metrics.pinball(quantiles, y, levels) == pytest.approx(np.mean(theirs))
    # The interval score is the mean of two pinball losses, in other units.
    ends = np.stack([low, high])
    assert metrics.interval_score(low, high, y, 0.8) == pytest.approx(
        2 * 2 / 0.2 * metrics.pinball(ends, y, np.array([0.1, 0.9]))
    )


def test_the_pit_of_a_right_forecast_is_uniform_and_ties_do_not_matter():
    rng = np.random.default_rng(0)
    samples, y = rng.normal(size=(20, 3000, 1)), rng.normal(size=(3000, 1))
    assert stats.kstest(metrics.pit(samples, y)[:, 0], "uniform").pvalue > 1e-3
    counts, seen = rng.poisson(2, size=(20, 3000, 1)).astype(float), rng.poisson(2, size=(3000, 1)).astype(float)
    assert stats.kstest(metrics.pit(counts, seen)[:, 0], "uniform").pvalue > 1e-3
    narrow = metrics.pit(samples / 2, y)[:, 0]
    assert stats.kstest(narrow, "uniform").pvalue < 1e-6
    np.testing.assert_array_equal(metrics.pit(samples, y, seed=3), metrics.pit(samples, y, seed=3))


def test_uncertainty_is_split_into_its_two_parts():
    samples, _ = forecasts()
    total, reducible, noise = metrics.entropy_split(samples)
    np.testing.assert_allclose(total, stats.entropy(samples.mean(0), axis=-1), rtol=1e-5)
    np.testing.assert_allclose(noise, stats.entropy(samples, axis=-1).mean(0), rtol=1e-5)
    np.testing.assert_allclose(reducible + noise, total, rtol=1e-5)
    # The mutual information of the label and the draw, from their joint law.
    joint = samples / len(samples)
    product = joint.sum(0, keepdims=True) * joint.sum(-1, keepdims=True)
    np.testing.assert_allclose(reducible, (joint * np.log(joint / product)).sum((0, 2)), rtol=1e-3, atol=1e-6)
    certain = np.tile(np.eye(4)[None, :2], (3, 1, 1))
    assert np.all(np.asarray(metrics.entropy_split(certain)) == 0)

    rng = np.random.default_rng(0)
    means, stds = rng.normal(size=(6, 3, 1)), rng.uniform(0.5, 2, size=(6, 3, 1))
    split = metrics.variance_split(means, stds**2)
    draws = means[rng.integers(6, size=400_000)] + stds[0] * 0  # of the means alone
    np.testing.assert_allclose(split.reducible, draws.var(0), rtol=0.02)
    picked = rng.integers(6, size=400_000)
    y = means[picked] + stds[picked] * rng.normal(size=(400_000, 3, 1))
    np.testing.assert_allclose(split.total, y.var(0), rtol=0.02)  # relative standard error at most 0.004


def test_a_bootstrap_interval_has_the_coverage_that_it_says():
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(200):
        wrong = rng.uniform(size=120) < 0.3
        found = metrics.bootstrap(lambda rows, wrong=wrong: wrong[rows].mean(), 120, level=0.9, resamples=200)
        assert found.value == wrong.mean()
        covered.append(found.lower <= 0.3 <= found.upper)
    assert abs(np.mean(covered) - 0.9) < 4 * np.sqrt(0.9 * 0.1 / 200) + 0.02  # percentiles of 120 examples are narrow
    usual, strange = rng.normal(size=80), rng.normal(1, 1, size=60)
    both = metrics.bootstrap(
        lambda a, b: metrics.detection(usual[a], strange[b]).auroc, 80, 60, resamples=300, seed=1
    )  # fmt: skip
    expected = stats.norm.cdf(1 / np.sqrt(2))
    assert both.lower < expected < both.upper
    assert 0.05 < both.upper - both.lower < 0.3  # Hanley and McNeil: a standard error of 0.042


@pytest.mark.parametrize(("hits", "count"), [(0, 1), (1, 1), (0, 18), (18, 18), (7, 18), (950, 1000)])
def test_the_interval_of_a_share_is_that_of_scipy(hits, count):
    found = metrics.share(np.arange(count) < hits, 0.9)
    expected = stats.binomtest(hits, count).proportion_ci(0.9, "exact")
    np.testing.assert_allclose(found, (hits / count, expected.low, expected.high), atol=1e-12)


def test_one_example_says_nothing_about_others():
    assert metrics.bootstrap(lambda rows: 0.25, 1) == (0.25, -np.inf, np.inf)
    assert metrics.bootstrap(lambda a, b: 0.25, 40, 1) == (0.25, -np.inf, np.inf)
    assert np.isfinite(metrics.bootstrap(lambda rows: rows.mean(), 2)).all()


def test_infinite_scores_are_the_highest_and_the_lowest():
    rng = np.random.default_rng(3)
    usual, strange = rng.normal(size=50), rng.normal(1, 1, 40)
    usual[:6], usual[6:9], strange[:8], strange[8:10] = -np.inf, np.inf, np.inf, -np.inf
    finite = [np.clip(each, -1e3, 1e3) for each in (usual, strange)]
    np.testing.assert_allclose(metrics.detection(usual, strange), metrics.detection(*finite))
    truth, scores = np.repeat([0, 1], [50, 40]), np.concatenate(finite)
    found = metrics.detection(usual, strange)
    assert found.auroc == pytest.approx(sklearn.metrics.roc_auc_score(truth, scores))
    assert found.aupr_strange == pytest.approx(sklearn.metrics.average_precision_score(truth, scores))
    assert found.aupr_usual == pytest.approx(sklearn.metrics.average_precision_score(1 - truth, -scores))


def test_stated_conventions_at_the_edges():
    assert metrics.nll(np.full((2, 1), -np.inf)) == np.inf  # what was held impossible, and happened
    assert metrics.accuracy(np.full((1, 1, 2), 0.5), np.array([1])) == 0  # of equal probabilities, the first is said
    assert metrics.accuracy(np.full((1, 1, 2), 0.5), np.array([0])) == 1
    assert metrics.interval_score(Y - np.inf, Y + np.inf, Y) == np.inf
    total, reducible, noise = metrics.entropy_split(P)  # of one draw, all is noise
    np.testing.assert_allclose(total, stats.entropy(P[0], axis=-1))
    assert (reducible == 0).all()
    assert (noise == total).all()
    assert metrics.variance_split(D, np.full(D.shape, np.inf)).noise.max() == np.inf  # Cauchy's


P = np.array([[[0.9, 0.1], [0.3, 0.7]]])
D, Y = np.random.default_rng(1).normal(size=(6, 2, 1)), np.zeros((2, 1))
BAD = {
    "no strange examples": (lambda: metrics.detection(np.ones(3), np.ones(0)), "strange has shape (0,)"),
    "NaN in a score": (lambda: metrics.detection(np.ones(3), np.array([1.0, np.nan])), "strange holds NaN"),
    "errors of others": (lambda: metrics.risk_coverage(np.ones(3), np.ones(4)), "errors has shape (4,)"),
    "coverage of none": (lambda: metrics.risk_coverage(np.ones(3), np.ones(3)).accuracy_at(0.0), "coverage=0.0"),
    "ends in another order": (
        lambda: metrics.interval_score(np.ones((2, 1)), np.zeros((2, 1)), np.ones((2, 1))), "lower=1 is above upper=0",
    ),
    "a level of 95": (lambda: metrics.interval_score(*np.zeros((3, 2, 1)), level=95.0), "level=95.0"),
    "a level of 1": (
        lambda: metrics.pinball(np.zeros((1, 2, 1)), np.zeros((2, 1)), np.ones(1)), "level=1.0",
    ),
    "binning": (lambda: metrics.ece(*forecasts(), binning="size"), "binning='size'"),  # pyright: ignore
    "NaN in a forecast": (lambda: metrics.classwise_ece(np.full((1, 2, 2), np.nan), np.zeros(2, int)), "NaN"),
    "label out of range": (lambda: metrics.brier_parts(forecasts()[0], np.full(400, 4)), "class 4"),
    "probabilities of 2": (lambda: metrics.reliability(2 * forecasts()[0], forecasts()[1]), "add up to 1"),
    "no examples to draw": (lambda: metrics.bootstrap(lambda: 0.0), "len(labels)"),
    "splits of other shapes": (lambda: metrics.variance_split(np.ones((2, 2, 1)), np.ones((2, 3, 1))), "(2, 3, 1)"),
    "one draw": (lambda: metrics.entropy_split(np.ones((2, 2))), "(draws, examples, classes)"),
    "labels of floats": (lambda: metrics.accuracy(P, np.zeros(2)), "labels are of float64"),
    "labels of truth": (lambda: metrics.ece(P, np.zeros(2, bool)), "labels are of bool"),
    "a list of labels": (lambda: metrics.reliability(P, [0, 1]), "labels are of list"),
    "a list of samples": (lambda: metrics.brier(P.tolist(), np.zeros(2, int)), "samples is a list"),
    "truth as probabilities": (lambda: metrics.brier(P > 0.5, np.zeros(2, int)), "samples has dtype bool"),
    "no examples": (lambda: metrics.ece(P[:, :0], np.zeros(0, int)), "shape (1, 0, 2)"),
    "negative probabilities": (lambda: metrics.accuracy(np.array([[[-0.5, 1.5]]]), np.zeros(1, int)), "add up to 1"),
    "a label below 0": (lambda: metrics.accuracy(P, np.array([0, -1])), "class -1"),
    "entropy of NaN": (lambda: metrics.entropy_split(P * np.nan), "NaN"),
    "entropy of logits": (lambda: metrics.entropy_split(P * 3), "add up to 1"),
    "a negative variance": (lambda: metrics.variance_split(D, -np.ones(D.shape)), "variances NaN or numbers below 0"),
    "means of NaN": (lambda: metrics.variance_split(D * np.nan, D), "means hold NaN"),
    "log-probabilities of NaN": (lambda: metrics.nll(np.full((2, 3), np.nan)), "log_probs hold NaN"),
    "an infinite density": (lambda: metrics.nll(np.full((2, 3), np.inf)), "log_probs hold NaN or inf"),
    "a negative weight": (lambda: metrics.nll(np.zeros((2, 3)), np.array([1.0, -1, 1])), "weights must be finite"),
    "no weight": (lambda: metrics.nll(np.zeros((2, 3)), np.zeros(3)), "not all 0"),
    "rmse of NaN": (lambda: metrics.rmse(D * np.nan, Y), "samples holds NaN"),
    "coverage of NaN": (lambda: metrics.coverage(D, Y * np.nan), "y holds NaN"),
    "pit of NaN": (lambda: metrics.pit(D, Y * np.nan), "y holds NaN"),
    "pit of an infinite draw": (lambda: metrics.pit(np.where(D.max() == D, np.inf, D), Y), "samples holds NaN"),
    "crps of an infinite draw": (lambda: metrics.crps(np.where(D.max() == D, np.inf, D), Y), "samples holds NaN"),
    "crps of truth": (lambda: metrics.crps(D > 0, Y), "samples has dtype bool"),
    "an interval of NaN": (lambda: metrics.interval(D * np.nan), "samples holds NaN"),
    "an interval score of NaN": (lambda: metrics.interval_score(Y * np.nan, Y, Y), "lower or upper hold NaN"),
    "quantiles of NaN": (lambda: metrics.pinball(D[:2] * np.nan, Y, np.array([0.1, 0.9])), "quantiles hold NaN"),
    "no quantile": (lambda: metrics.pinball(D[:0], Y, np.zeros(0)), "quantiles have shape (0, 2, 1)"),
    "accuracy of losses": (
        lambda: metrics.risk_coverage(np.arange(3.0), np.array([5.0, 6, 7])).accuracy_at(1.0), "have no accuracy",
    ),
    "a score that is NaN": (lambda: metrics.bootstrap(lambda rows: np.nan, 3), "the score of some examples is NaN"),
    "a score that may be NaN": (
        lambda: metrics.bootstrap(lambda rows: 1.0 if 0 in rows else np.nan, 3), "the score of some examples is NaN",
    ),
    "one resample": (lambda: metrics.bootstrap(lambda rows: 1.0, 3, resamples=1), "resamples=1"),
    "a share of numbers": (lambda: metrics.share(np.ones(3)), "hits have shape (3,) of float64"),
    "a share of none": (lambda: metrics.share(np.zeros(0, bool)), "hits have shape (0,)"),
}  # fmt: skip


@pytest.mark.usefixtures("_as_a_user")
@pytest.mark.parametrize("name", BAD)
def test_what_has_no_score_is_refused_in_words(name):
    call, words = BAD[name]
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        call()
    assert "\n" not in str(error.value)
