"""Laplace's approximation of the last layer against exact posteriors and Hessians."""

import equinox as eqx
import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import KEY, QUIET, covariances, over_keys, say_nothing

from sdebnn import Categorical, Cauchy, Gaussian, Objective, Optimizer, fit
from sdebnn.baselines import LastLayerLaplace

pytestmark = pytest.mark.usefixtures("_compiled_in_haste")


def identity(x):
    return x


def test_laplace_is_exact_for_a_linear_gaussian_model():
    # correlated features, so that the weights are correlated
    x = jax.random.normal(KEY, (30, 2)) @ jnp.array([[1.0, 0.8], [0.0, 0.6]]) + 1.0
    y = x @ jnp.array([[1.0, -0.5], [0.3, 2.0]]) + 0.4 * jax.random.normal(jax.random.key(1), (30, 2))
    model = LastLayerLaplace(identity, 2, 2, prior_std=0.8, key=KEY)
    fitted = fit(
        model,
        Gaussian(0.4),
        x,
        y,
        epochs=1000,
        objective=Objective(draws=1),
        optimizer=Optimizer(learning_rate=5e-2),
        **QUIET,
    ).model
    phi = np.column_stack([np.asarray(x, float) / np.sqrt(2), np.ones(30)])
    prior = np.zeros(3), 0.8**2 * np.eye(3)
    laws = [exact.gaussian_posterior(*prior, phi, 0.4, np.asarray(y[:, k], float)) for k in (0, 1)]
    mean, cov = np.stack([law[0] for law in laws], axis=1), np.kron(laws[0][1], np.eye(2))
    np.testing.assert_allclose(fitted.w, mean, atol=2e-3)
    factor = np.asarray(fitted.factor.value, float)
    np.testing.assert_allclose(np.linalg.inv(factor @ factor.T), cov, rtol=1e-3, atol=1e-6)
    # φ of the points 0 and (1, -2), at which draws are compared
    at = np.array([[0.0, 0.0, 1.0], [1 / np.sqrt(2), -2 / np.sqrt(2), 1.0]])
    outputs, kl = over_keys(fitted, jnp.array([[0.0, 0.0], [1.0, -2.0]]), 4000)
    center = at @ np.asarray(fitted.w, float)
    assert exact.within(outputs, center)
    assert exact.within(covariances(outputs, center), np.stack([at @ laws[0][1] @ at.T] * 2))
    expected = exact.gaussian_kl(np.ravel(fitted.w), cov, np.zeros(6), 0.64 * np.eye(6))
    np.testing.assert_allclose(kl, expected, rtol=1e-4)


def test_the_precision_of_laplace_is_the_hessian_of_the_log_joint():
    x = jax.random.normal(KEY, (12, 2))
    labels = jax.random.randint(jax.random.key(1), (12,), 0, 3)
    net = eqx.nn.MLP(2, 4, 3, 1, key=KEY)
    fitted = fit(LastLayerLaplace(net, 4, 3, prior_std=0.5, key=KEY), Categorical(), x, labels, epochs=3, **QUIET).model
    phi = jnp.column_stack([jax.vmap(fitted.features.module)(x) / 2, jnp.ones(12)])

    def log_joint(w):
        log_p = jax.nn.log_softmax(phi @ w.reshape(5, 3))
        return log_p[jnp.arange(12), labels].sum() - 0.5 * jnp.sum(w**2) / 0.5**2

    factor = np.asarray(fitted.factor.value)
    expected = -jax.jit(jax.hessian(log_joint))(fitted.w.ravel())
    np.testing.assert_allclose(factor @ factor.T, expected, rtol=1e-3, atol=1e-4)


def test_laplace_ignores_negative_curvature_of_the_likelihood():
    x = jnp.zeros((2, 1))
    y = jnp.array([[0.2], [3.0]])  # Cauchy's log density is concave only up to ±1
    model = eqx.tree_at(lambda m: m.w, LastLayerLaplace(identity, 1, 1, key=KEY), jnp.zeros((2, 1)))
    after = model.after_training(Cauchy(1.0), (x, y), validation=None, key=KEY, say=say_nothing)
    factor = np.asarray(after.factor.value)
    inner = 2 * (1 - 0.2**2) / (1 + 0.2**2) ** 2
    np.testing.assert_allclose(factor @ factor.T, np.diag([1.0, 1.0 + inner]), rtol=1e-5)
