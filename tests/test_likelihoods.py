import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from sdebnn import Categorical, Cauchy, Gaussian, Laplace, StudentT, Weighted

LAWS = [
    (lambda **k: Gaussian(0.7, **k), stats.norm(scale=0.7)),
    (lambda **k: Laplace(0.7, **k), stats.laplace(scale=0.7)),
    (lambda **k: Cauchy(0.7, **k), stats.cauchy(scale=0.7)),
    (lambda **k: StudentT(4.0, 0.7, **k), stats.t(4, scale=0.7)),
]


@pytest.mark.parametrize(("make", "law"), LAWS)
def test_densities_match_scipy_and_add_up_over_targets(make, law):
    outputs, y = np.array([[0.0, 1.0], [2.0, -3.0]]), np.array([[0.3, -1.0], [9.0, -3.0]])
    expected = law.logpdf(y - outputs).sum(-1)
    np.testing.assert_allclose(make().log_prob(jnp.asarray(outputs), jnp.asarray(y)), expected, rtol=1e-5)
    np.testing.assert_allclose(make(learn=True).log_prob(jnp.asarray(outputs), jnp.asarray(y)), expected, rtol=1e-5)


@pytest.mark.parametrize(("make", "law"), LAWS)
def test_samples_follow_the_density(make, law):
    samples = make().sample(jnp.full((4000, 1), 1.5), key=jax.random.key(0))
    # One test in a thousand would fail by chance; the seed is fixed.
    assert stats.kstest(np.ravel(samples) - 1.5, law.cdf).pvalue > 1e-3


@pytest.mark.parametrize(("make", "_"), LAWS)
def test_only_a_learned_scale_is_a_parameter(make, _):
    count = [len(jax.tree.leaves(eqx.filter(make(learn=learn), eqx.is_inexact_array))) for learn in (False, True)]
    assert count == [0, 1]


def test_heteroscedastic_noise_is_read_from_the_second_half_of_the_outputs():
    outputs, y = jnp.array([[0.5, 0.0], [0.5, 3.0]]), jnp.array([[1.0], [1.0]])
    scale = np.log1p(np.exp([0.0, 3.0]))
    np.testing.assert_allclose(Gaussian(scale=None).log_prob(outputs, y), stats.norm.logpdf(1.0, 0.5, scale), rtol=1e-4)
    assert np.array_equal(Gaussian(scale=None).center(outputs), [[0.5], [0.5]])


def test_categorical_is_the_log_softmax_of_the_label_over_any_leading_axes():
    logits = jnp.array([[[1.0, 2.0, -1.0], [0.0, 0.0, 5.0]], [[3.0, 0.0, 0.0], [1.0, 1.0, 1.0]]])
    labels = jnp.array([1, 2])
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = np.log([[probs[d, e, labels[e]] for e in range(2)] for d in range(2)])
    np.testing.assert_allclose(Categorical().log_prob(logits, labels), expected, rtol=1e-5)
    np.testing.assert_allclose(Categorical().center(logits), probs, rtol=1e-5)


def test_sampled_classes_come_as_often_as_their_probability_says():
    logits = jnp.log(jnp.array([0.2, 0.5, 0.3]))
    labels = Categorical().sample(jnp.broadcast_to(logits, (4000, 3)), key=jax.random.key(0))
    counts = np.bincount(np.asarray(labels), minlength=3)
    assert stats.chisquare(counts, 4000 * np.array([0.2, 0.5, 0.3])).pvalue > 1e-3


def test_a_weight_is_how_often_a_row_counts():
    outputs = jax.random.normal(jax.random.key(0), (3, 4))
    y = jnp.array([[0.1, 2.0], [-1.0, 0.0], [3.0, 1.0]])
    weight = jnp.array([2.0, 0.0, 0.5])
    plain = Gaussian(None).log_prob(outputs, y)
    weighted = Weighted(Gaussian(None)).log_prob(outputs, jnp.column_stack([y, weight]))
    np.testing.assert_allclose(weighted, weight * plain, rtol=1e-6)
    labels = jnp.array([3, 0, 1])
    columns = jnp.column_stack([labels.astype(float), weight])
    of_classes = Weighted(Categorical()).log_prob(outputs, columns)
    np.testing.assert_allclose(of_classes, weight * Categorical().log_prob(outputs, labels), rtol=1e-6)
    with pytest.raises(ValueError, match="last column"):
        Weighted(Gaussian(1.0)).log_prob(outputs[:, :1], y[:, :1])


def test_a_forecast_knows_no_weights():
    outputs, key = jax.random.normal(jax.random.key(0), (3, 2)), jax.random.key(1)
    plain, weighted = Gaussian(None), Weighted(Gaussian(None))
    for name in ("center", "variance"):
        np.testing.assert_array_equal(getattr(weighted, name)(outputs), getattr(plain, name)(outputs))
    np.testing.assert_array_equal(weighted.sample(outputs, key=key), plain.sample(outputs, key=key))
