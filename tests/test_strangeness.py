"""Distances of hidden states from those of training, against closed forms and scikit-learn's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import sdebnn
from sdebnn import strangeness
from sdebnn.models import SDEBNN, Deterministic, Ensemble
from sdebnn.strangeness import MAX_COVARIANCES, LayerDistance, StateDistance, summaries

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


@pytest.mark.parametrize("rows", [2, 5, 30, 98, 99, 144, 250])
def test_what_is_usual_is_exceeded_by_one_in_a_hundred_however_few_are_known(rows):
    """Of normal numbers, the mean probability of exceeding it: 1 %, or less by at most the step of a rank."""
    rng = np.random.default_rng(0)
    found = stats.norm.sf([strangeness._usual(rng.normal(size=rows)) for _ in range(20_000)])
    error = 4 * found.std() / np.sqrt(len(found))
    exact = 0.01 if rows < 99 else (rows + 1 - np.ceil(0.99 * (rows + 1))) / (rows + 1)
    assert abs(found.mean() - exact) < error
    assert 0.5 * 0.01 < exact <= 0.01


def test_examples_of_few_are_not_strange():
    """Fresh examples beyond 1, if few examples were known: in the mean over sets, not much more than 1 %."""
    fresh, _ = two_classes(1000, seed=1)
    for known, held in ((4, None), (12, None), (40, None), (400, 3), (400, 30)):
        shares = []
        for seed in range(2, 12):
            x, y = two_classes(known, seed=seed)
            others = None if held is None else two_classes(held, seed=100 + seed)[0]
            distance = StateDistance.of(passing(2.0), x, y, held_out=others, key=KEY)
            shares.append((distance.to(passing(2.0), fresh) > 1).mean())
        assert np.mean(shares) < 0.03


def test_every_class_may_have_a_single_example():
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    distance = StateDistance.of(passing(1.0), x, np.arange(60), key=KEY)
    assert distance.to(passing(1.0), np.zeros((1, 3)))[0] < 1 < distance.to(passing(1.0), np.full((1, 3), 9.0))[0]


def test_a_class_with_one_example_has_the_covariance_of_all():
    x, y = two_classes(20_000)
    x, y = np.vstack([x, [[40, 40, 40]]]).astype(np.float32), np.r_[y, 2]
    new = np.random.default_rng(1).normal(40, 3, (50, 3))
    found = np.exp(LayerDistance.of(x, y).logarithm(new))
    rest = np.vstack([x[y == each] - x[y == each].mean(0) for each in (0, 1)])
    inverse, away = np.linalg.inv(rest.T @ rest / (len(rest) - 2)), new - 40
    exact = np.sqrt(np.einsum("ni,ij,nj->n", away, inverse, away) / 3)
    np.testing.assert_allclose(found, exact, rtol=5e-3)


def test_many_classes_share_one_covariance():
    rng, classes = np.random.default_rng(0), MAX_COVARIANCES + 20
    mix = np.eye(4) + 0.5 * np.eye(4, k=1)
    means, y = rng.normal(size=(classes, 4)) * 2, np.arange(classes * 100) % classes
    x = (means[y] + rng.normal(size=(len(y), 4)) @ mix).astype(np.float32)
    layer, new = LayerDistance.of(x, y), rng.normal(size=(40, 4)) * 5
    assert layer.factors.shape == (1, 4, 4)
    centers = np.stack([x[y == each].mean(0) for each in range(classes)]).astype(float)
    rest = x - centers[y]
    inverse = np.linalg.inv(rest.T @ rest / (len(x) - classes))
    away = new[:, None] - centers
    exact = np.sqrt(np.einsum("nci,ij,ncj->nc", away, inverse, away).min(1) / 4)
    np.testing.assert_allclose(np.exp(layer.logarithm(new)), exact, rtol=1e-2)  # a ridge of 1e-3 on correlations


def test_examples_without_labels_are_one_class():
    x, _ = two_classes(100)
    none, one = (StateDistance.of(passing(1.0), x, y, key=KEY).to(passing(1.0), x) for y in (None, np.full(100, 3)))
    np.testing.assert_array_equal(none, one)


def test_rounding_of_a_constant_state_is_not_strange():
    """A device, or another size of batch, may round otherwise."""
    x = np.random.default_rng(0).normal(size=(2000, 3)).astype(np.float32)
    x[:, 0] = 1 + 1.2e-7 * (np.arange(2000) % 2)
    distance, rounded = StateDistance.of(passing(1.0), x, np.zeros(2000, int), key=KEY), x.copy()
    rounded[:, 0] = 1 + 5e-7
    np.testing.assert_allclose(distance.to(passing(1.0), rounded), distance.to(passing(1.0), x), rtol=0.5)
    rounded[:, 0] = 1.01
    assert (distance.to(passing(1.0), rounded) > 1).all()


def test_states_that_overflow_are_far_and_those_of_training_are_refused():
    x = np.random.default_rng(0).normal(size=(40, 4, 4, 3)).astype(np.float32)
    distance = StateDistance.of(passing(1.0), x, key=KEY)
    for factor in (1e25, 1e38):  # the variance over pixels overflows, or the state itself
        found = distance.to(passing(factor), x)
        assert np.isfinite(found).all()
        assert (found > 1e6).all()
    with pytest.raises(ValueError, match="hidden state 0 of the model is not finite"):
        StateDistance.of(passing(1e25), x, key=KEY)


def test_summaries_need_less_memory_after_an_error_of_the_device(monkeypatch):
    """The device is replaced by one that has room for three examples; the real summaries are computed."""
    real, x = strangeness._summaries, np.arange(5.0, dtype=np.float32)[:, None]

    def small(model, x, key):
        if len(x) > 3:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 byte.")
        return real(model, x, key)

    monkeypatch.setattr(strangeness, "_summaries", small)
    with pytest.warns(UserWarning, match="out of memory with 5 examples at once: it goes on with 2"):
        (found,) = summaries(passing(2.0), x, key=KEY)
    np.testing.assert_array_equal(found, 2 * x)


@pytest.mark.usefixtures("_compiled_in_haste")
def test_bfloat16_changes_distances_little():
    """A net that was trained on a GPU computes in bfloat16 there, and in float32 on a CPU."""
    rng = np.random.default_rng(0)
    x, new = rng.integers(0, 256, (200, 8, 8, 1)), rng.integers(0, 120, (100, 8, 8, 1))
    nets = {
        each: sdebnn.our_net((8, 8, 1), 3, channels=(4, 8), blocks=1, compute=each, key=KEY)
        for each in ("float32", "bfloat16")
    }
    exact = StateDistance.of(nets["float32"], x, key=KEY).to(nets["float32"], new)
    found = StateDistance.of(nets["bfloat16"], x, key=KEY).to(nets["float32"], new)
    assert stats.spearmanr(found, exact).statistic > 0.98
    np.testing.assert_allclose(np.log(found), np.log(exact), atol=1.0)


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
    with pytest.raises(ValueError, match=r"held_out has examples of shape \(2,\), and x of \(3,\)"):
        StateDistance.of(passing(1.0), x, y, held_out=x[:, :2], key=KEY)
    distance = StateDistance.of(passing(1.0), x, y, key=KEY)
    with pytest.raises(ValueError, match="pass at least one example"):
        distance.to(passing(1.0), x[:0])
    with pytest.raises(ValueError, match="not those from which distances were measured: pass the same"):
        distance.to(passing(1.0, 2.0), x)
