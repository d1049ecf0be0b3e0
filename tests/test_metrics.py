import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

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
