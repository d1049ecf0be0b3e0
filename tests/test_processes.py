import equinox as eqx
import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

from sdebnn import OU, Normal, Point
from sdebnn.processes import DriftNet, LinearDrift


@pytest.mark.parametrize(("rate", "mean", "t"), [(1.0, 0.0, 0.5), (1.0, 0.0, 1.0), (2.5, -0.7, 0.3), (1e-6, 0.0, 1.0)])
def test_ou_marginals_solve_the_moment_equations(rate, mean, t):
    ours = OU(rate=rate, mean=mean, sigma=0.6).marginal(t, jnp.array([1.2]))
    np.testing.assert_allclose(np.ravel(ours), exact.ou_moments(rate, mean, 0.6, 1.2, t), rtol=2e-3)


def test_ou_at_rate_zero_is_brownian_motion():
    mean, std = OU(rate=0.0, sigma=0.6).marginal(0.25, jnp.array([1.2]))
    np.testing.assert_allclose([mean[0], std[0]], [1.2, 0.3], rtol=1e-6)


@pytest.mark.parametrize("t", [0.0, 0.04, 1.0])
@pytest.mark.parametrize("rate", [0.0, 1e-6, 1e-3, 0.3, 0.6, 5.0])
def test_the_slopes_of_the_marginal_in_its_rate_are_exact(rate, t):
    """With v = ∫ exp(-2 rate s) ds by quadrature, and its derivatives in rate: std = σ √v. At rate 0, -σ t^1.5 / 2."""
    v, dv, ddv = (
        integrate.quad(lambda s: (-2 * s) ** k * np.exp(-2 * rate * s), 0, t)[0]  # noqa: B023
        for k in (0, 1, 2)
    )
    slope, bend = (0.5 * dv / np.sqrt(v), 0.5 * ddv / np.sqrt(v) - 0.25 * dv**2 / v**1.5) if t else (0.0, 0.0)
    if rate == 0:
        assert slope == pytest.approx(-(t**1.5) / 2)

    def std(rate):
        return OU(rate=rate, sigma=0.6).marginal(t, jnp.zeros(()))[1]

    at = jnp.asarray(rate)
    np.testing.assert_allclose(std(at), 0.6 * np.sqrt(v), rtol=1e-6)
    np.testing.assert_allclose(jax.grad(std)(at), 0.6 * slope, rtol=2e-5)
    np.testing.assert_allclose(jax.grad(jax.grad(std))(at), 0.6 * bend, rtol=2e-4)


def test_a_rate_below_zero_is_brought_back_to_zero():
    prior = OU(rate=jnp.array([0.5, 0.0]), mean=jnp.ones(2))
    moved = eqx.tree_at(lambda p: p.rate, prior, prior.rate - 0.2)
    np.testing.assert_allclose(eqx.filter_jit(OU.constrained)(moved).rate, [0.3, 0.0])
    assert eqx.tree_equal(prior.constrained(), prior)
    fixed = OU(rate=1.0)
    assert fixed.constrained() is fixed


def test_a_sigma_under_which_no_weight_can_move_is_remarked_on():
    with pytest.warns(UserWarning, match=r"sigma=1e-06.*5e\+09 nats.*0.01 to 1.*ODEBlock") as caught:
        OU(sigma=1e-6)
    assert len(caught) == 1
    OU(sigma=1e-3)  # rarely of use, but the KL can pay for it: warnings are errors here


def test_rate_and_mean_are_parameters_if_given_as_arrays():
    fixed = eqx.filter(OU(rate=1.0, mean=0.0), eqx.is_inexact_array)
    trained = eqx.filter(OU(rate=jnp.array(1.0), mean=jnp.zeros(3)), eqx.is_inexact_array)
    assert [len(jax.tree.leaves(tree)) for tree in (fixed, trained)] == [0, 2]


def test_the_drift_net_is_zero_at_first_everywhere_and_can_leave_zero():
    net = DriftNet(5, (7, 3), key=jax.random.key(0))
    t, w = jax.random.uniform(jax.random.key(1), (20,)), 3 * jax.random.normal(jax.random.key(2), (20, 5))
    assert not np.any(jax.vmap(net)(t, w))
    gradient = eqx.filter_grad(lambda net: jnp.sum(jax.vmap(net)(t, w)))(net)
    assert np.any(gradient.layers[-1].weight)
    assert np.any(gradient.layers[-1].shift)


@pytest.mark.parametrize(("size", "width"), [(2, 3), (12, 3), (12, 11)])  # the second is computed as one product
def test_the_drift_net_is_the_concat_squash_formula(size, width):
    net = DriftNet(size, (width,), key=jax.random.key(0))
    leaves, structure = jax.tree.flatten(net)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    leaves = [jax.random.normal(k, p.shape) if eqx.is_array(p) else p for k, p in zip(keys, leaves, strict=True)]
    net = jax.tree.unflatten(structure, leaves)
    w, t = np.linspace(0.3, -1.1, size), 0.7

    def layer(c, x):
        gate = 1 / (1 + np.exp(-(np.asarray(c.gate) * t + np.asarray(c.gate_bias))))
        return (np.asarray(c.weight) @ x + np.asarray(c.bias)) * gate + np.asarray(c.shift) * t

    expected = layer(net.layers[1], np.tanh(layer(net.layers[0], w)))
    np.testing.assert_allclose(net(t, jnp.asarray(w)), expected, rtol=1e-5)


def test_the_linear_drift_interpolates_its_knots():
    drift = LinearDrift(1, knots=4)
    assert not np.any(drift(0.4, jnp.ones(1)))
    slopes, offsets = np.array([1.0, -2.0, 0.5, 3.0]), np.array([0.0, 1.0, 1.0, -1.0])
    drift = eqx.tree_at(lambda d: (d.slope, d.offset), drift, (jnp.array(slopes)[:, None], jnp.array(offsets)[:, None]))
    for t in (0.0, 0.2, 1 / 3, 0.9, 1.0):
        knots = np.linspace(0, 1, 4)
        expected = np.interp(t, knots, slopes) * 1.5 + np.interp(t, knots, offsets)
        np.testing.assert_allclose(drift(t, jnp.array([1.5])), [expected], rtol=1e-5, atol=1e-6)


def test_the_kl_of_an_inferred_start_is_the_integral_it_stands_for():
    law = Normal(jnp.array([0.4, -1.0]), 0.3, prior_mean=0.2, prior_std=0.7)
    expected = sum(exact.normal_kl(m, 0.3, 0.2, 0.7) for m in (0.4, -1.0))
    np.testing.assert_allclose(law.kl(), expected, rtol=1e-5)


def test_the_log_ratio_of_an_inferred_start_averages_to_its_kl():
    law = Normal(jnp.array([0.4, -1.0]), 0.3, prior_std=0.7)
    w0 = jax.vmap(lambda key: law.sample(key=key))(jax.random.split(jax.random.key(0), 4096))
    ratios = np.asarray(jax.vmap(law.log_ratio)(w0), dtype=float)
    assert abs(ratios.mean() - law.kl()) < 4 * ratios.std() / 64


def test_a_point_has_no_spread_and_no_kl():
    law = Point(jnp.array([0.4, -1.0]))
    assert np.array_equal(law.sample(key=jax.random.key(0)), law.value)
    assert law.kl() == law.log_ratio(law.value) == 0
