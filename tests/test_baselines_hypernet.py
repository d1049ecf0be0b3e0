"""The Bayesian hypernet: the density of its weights."""

import equinox as eqx
import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import KEY, over_keys, shaken

from sdebnn.baselines import Hypernet

pytestmark = pytest.mark.usefixtures("_compiled_in_haste")


def flow(module, **how):
    return shaken(Hypernet(module, 0.3, couplings=3, width=4, prior_std=1.5, key=KEY, **how), size=0.4)


@pytest.mark.parametrize("inputs", [3, 4])  # with the bias: an even and an odd number of weights
def test_the_density_of_a_hypernet_follows_from_its_jacobian(inputs):
    model = flow(eqx.nn.Linear(inputs, 1, key=KEY))
    noise = jax.random.normal(jax.random.key(1), (20, inputs + 1))

    def by_autodiff(noise):
        _, log_det = jnp.linalg.slogdet(jax.jacfwd(lambda e: model.push(e)[0])(noise))
        return jnp.sum(jax.scipy.stats.norm.logpdf(noise)) - log_det

    @jax.jit
    def densities(noise):
        w, log_det = model.push(noise)
        return by_autodiff(noise), jnp.sum(jax.scipy.stats.norm.logpdf(noise)) - log_det, model.log_prob(w), log_det

    expected, pushed, pulled, log_dets = jax.vmap(densities)(noise)
    assert np.std(log_dets) > 0.05  # the flow is no longer linear
    np.testing.assert_allclose(pushed, expected, atol=1e-4)
    np.testing.assert_allclose(pulled, expected, atol=1e-3)
    drawn, log_q = model.draw(key=KEY)
    assert float(log_q) == pytest.approx(float(model.log_prob(drawn)), abs=1e-3)


def test_the_density_of_two_weights_integrates_to_one():
    model = flow(eqx.nn.Linear(2, 1, use_bias=False, key=KEY))
    w = np.asarray(jax.jit(jax.vmap(lambda key: model.draw(key=key)[0]))(jax.random.split(KEY, 2000)))
    axes = [np.linspace(c - 12 * s, c + 12 * s, 401) for c, s in zip(w.mean(0), w.std(0), strict=True)]
    grid = jnp.stack(jnp.meshgrid(*axes, indexing="ij"), axis=-1)
    density = np.exp(np.asarray(jax.jit(jax.vmap(jax.vmap(model.log_prob)))(grid), float))
    cell = np.prod([a[1] - a[0] for a in axes])
    assert density.sum() * cell == pytest.approx(1.0, abs=2e-3)
    # the mean of the density is the mean of the draws
    mean = np.einsum("ij,ijk->k", density, np.asarray(grid, float)) * cell
    assert exact.within(w, mean)


def test_the_kl_of_a_new_hypernet_is_that_of_a_factorised_normal_law():
    linear = eqx.nn.Linear(2, 1, key=KEY)
    model = Hypernet(linear, 0.3, prior_std=1.5, key=KEY)
    mean = np.concatenate([np.sqrt(2) * np.asarray(linear.weight[0], float), np.asarray(linear.bias, float)])
    _, kl = over_keys(model, jnp.ones((1, 2)), 20000)
    assert exact.within(kl, sum(exact.normal_kl(m, 0.3, 0.0, 1.5) for m in mean))
