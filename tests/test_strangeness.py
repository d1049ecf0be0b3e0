"""Distances of hidden states from those of training, against closed forms and scikit-learn's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import sdebnn
from sdebnn.models import SDEBNN, Deterministic, Ensemble
from sdebnn.strangeness import LayerDistance, StateDistance, summaries

KEY = jax.random.key(0)


class Scaled(sdebnn.nn.AbstractModel):
    """A layer with one parameter, by which it multiplies its inputs."""

    factor: jax.Array

    def solve(self, x, *, key, with_roughness=False):
        del key, with_roughness
        return sdebnn.nn.Solution(self.factor * x, jnp.zeros(()))


def passing(*factors):
    """Layers that multiply, and a last one whose outputs are no state."""
    return SDEBNN((*(Scaled(jnp.asarray(each)) for each in factors), Deterministic(jnp.sum)))


def two_classes(count, seed=0):
    """Normal vectors of two classes with their own means and covariances."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 2
    x = rng.normal(size=(count, 3))
    x = np.where(y[:, None] == 0, x @ np.array([[1, 0.5, 0], [0, 1, 0], [0, 0, 2.0]]), 6 + 0.3 * x)
    return x.astype(np.float32), y


def test_the_distance_of_a_layer_is_that_of_mahalanobis_from_the_nearest_class():
    x, y = two_classes(20_000)
    new = np.random.default_rng(1).normal(3, 4, (50, 3))
    found = np.exp(LayerDistance.of(x, y).logarithm(new))
    exact = []
    for each in (0, 1):
        rest = new - x[y == each].mean(0)
        inverse = np.linalg.inv(np.cov(x[y == each].T))
        exact.append(np.sqrt(np.einsum("ni,ij,nj->n", rest, inverse, rest) / 3))
    # A ridge of 1e-3 on correlations of up to 0.45, and covariances shrunk by 1e-4.
    np.testing.assert_allclose(found, np.min(exact, axis=0), rtol=5e-3)


def test_fresh_examples_exceed_one_as_rarely_as_stated():
    x, y = two_classes(4000)
    fresh, _ = two_classes(4000, seed=1)
    distance = StateDistance.of(passing(2.0), x, y, key=KEY)
    share = (distance.to(passing(2.0), fresh) > 1).mean()
    # 1 % of 4000; the limit is itself a quantile of 4000 examples.
    assert abs(share - 0.01) < 4 * np.sqrt(2 * 0.01 * 0.99 / 4000)
    held, _ = two_classes(4000, seed=2)
    distance = StateDistance.of(passing(2.0), x, y, held_out=held, key=KEY)
    assert abs((distance.to(passing(2.0), fresh) > 1).mean() - 0.01) < 4 * np.sqrt(2 * 0.01 * 0.99 / 4000)


def test_the_mean_over_layers_of_standardised_logarithms_orders_examples():
    """One layer: the order of the distances is that of chi-squared tails, the same for any scale of the states."""
    x, y = np.random.default_rng(0).normal(size=(2000, 4)).astype(np.float32), np.zeros(2000, int)
    new = np.random.default_rng(1).normal(size=(300, 4)) * np.linspace(0.1, 5, 300)[:, None]
    one, both = (StateDistance.of(passing(*f), x, y, key=KEY).to(passing(*f), new) for f in ((1.0,), (1.0, 7.0)))
    tails = stats.chi2.sf((new**2).sum(1), 4)
    assert stats.spearmanr(-tails, one).statistic > 0.99
    np.testing.assert_allclose(both, one, rtol=1e-3)  # a second layer that is a multiple of the first adds nothing


def test_states_of_images_are_summarised_by_mean_and_spread_of_channels():
    x = np.random.default_rng(0).normal(size=(7, 4, 5, 3)).astype(np.float32)
    (found,) = summaries(passing(2.0), x, key=KEY, batch_size=3)
    np.testing.assert_allclose(found, np.hstack([2 * x.mean((1, 2)), 2 * x.std((1, 2))]), rtol=1e-4, atol=1e-6)


def test_states_are_those_of_the_function_that_a_key_names():
    net = sdebnn.our_net((8, 8, 1), 3, channels=(4, 8), blocks=1, compute="float32", key=KEY)
    x = jnp.asarray(np.random.default_rng(0).integers(0, 256, (2, 8, 8, 1)), float)
    states = net.states(x, key=KEY)
    # A convolution, a block, a norm, a convolution, a block and a norm.
    assert [each.shape[1:] for each in states] == [(8, 8, 4)] * 3 + [(4, 4, 8)] * 3
    outputs = jnp.mean(states[-1], axis=(1, 2))
    np.testing.assert_allclose(net.layers[-1].solve(outputs, key=KEY).outputs, net(x, key=KEY)[0], rtol=1e-5)
    several = Ensemble([net, net])
    assert all(map(np.array_equal, several.states(x, key=KEY), states))


def test_few_examples_classes_with_one_and_constant_states_have_finite_distances():
    x = np.random.default_rng(0).normal(size=(30, 100)).astype(np.float32)
    x[:, 5] = 3.0
    distance = StateDistance.of(passing(1.0), x, np.array([7] + [2] * 29), key=KEY)
    usual, changed, far = x.copy(), x.copy(), np.full((1, 100), 1e30, np.float32)
    changed[:, 5] = 4.0
    found = [distance.to(passing(1.0), each) for each in (usual, changed, far)]
    assert all(np.isfinite(each).all() for each in found)
    assert (found[1] > found[0]).all()
    assert found[2] > 1


def test_what_has_no_states_or_others_is_refused():
    x, y = two_classes(40)
    with pytest.raises(ValueError, match="Deterministic has no hidden states: pass a net"):
        StateDistance.of(Deterministic(jnp.sum), x, y, key=KEY)
    with pytest.raises(ValueError, match=r"labels have shape \(40,\) of float64"):
        StateDistance.of(passing(1.0), x, y + 0.5, key=KEY)
    distance = StateDistance.of(passing(1.0), x, y, key=KEY)
    with pytest.raises(ValueError, match="not those from which distances were measured: pass the same"):
        distance.to(passing(1.0, 2.0), x)
