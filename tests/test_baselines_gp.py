"""Gaussian processes, against the textbook formulas and scikit-learn."""

import equinox as eqx
import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor, kernels
from small_models import KEY, QUIET

from sdebnn import (
    Gaussian,
    Objective,
    Optimizer,
    elbo,
    fit,
    predict,
)
from sdebnn.baselines import GP

pytestmark = pytest.mark.usefixtures("_compiled_in_haste")


X = jax.random.uniform(KEY, (9, 2), minval=-2.0, maxval=2.0)


Y = jnp.stack([jnp.sin(2 * X[:, 0]) + X[:, 1], X[:, 0] * X[:, 1]], axis=1)


NEW = jnp.array([[0.0, 0.5], [1.0, -1.0], [-1.5, 0.2], [4.0, 4.0]])  # the last one far from the data


LENGTH, AMPLITUDE, NOISE = 1.3, 1.5, 0.3


KERNELS = ("rbf", "matern32", "matern52")


def gp(kernel, **how):
    return GP(X, Y, kernel=kernel, length=LENGTH, amplitude=AMPLITUDE, noise=NOISE, **how)


def dense(kernel, x=NEW):
    """The mean at some points and the covariance between them, by the textbook formula."""
    known = np.asarray(X, float)
    k = lambda a, b: exact.kernel(kernel, np.asarray(a, float), np.asarray(b, float), LENGTH, AMPLITUDE)  # noqa: E731
    gain = np.linalg.solve(k(known, known) + NOISE**2 * np.eye(len(known)), k(known, x)).T
    return gain @ np.asarray(Y, float), k(x, x) - gain @ k(known, x)


def peer(kernel, **how):
    shape = {
        "rbf": kernels.RBF(LENGTH),
        "matern32": kernels.Matern(LENGTH, nu=1.5),
        "matern52": kernels.Matern(LENGTH, nu=2.5),
    }[kernel]
    return GaussianProcessRegressor(kernels.ConstantKernel(AMPLITUDE**2) * shape, alpha=NOISE**2, optimizer=None, **how)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_gp_agrees_with_the_textbook_formula_and_with_scikit_learn(kernel):
    mean, cov = (np.asarray(part) for part in gp(kernel).posterior(NEW))
    for (their_mean, their_cov), law in (
        (dense(kernel), "dense"),
        (peer(kernel).fit(X, Y).predict(NEW, return_cov=True), "sklearn"),
    ):
        their_cov = their_cov[..., 0] if their_cov.ndim == 3 else their_cov  # one for each target, all equal
        np.testing.assert_allclose(mean, their_mean, atol=1e-4, err_msg=law)
        np.testing.assert_allclose(cov, their_cov, atol=1e-4, err_msg=law)
    evidence = sum(peer(kernel).fit(X, y).log_marginal_likelihood_value_ for y in np.asarray(Y).T)
    assert float(gp(kernel).log_evidence()) == pytest.approx(evidence, rel=1e-4)


@pytest.mark.parametrize("kernel", KERNELS)
def test_draws_of_the_gp_have_its_moments_and_its_bound_is_the_evidence(kernel):
    model = gp(kernel, features=32)
    mean, cov = dense(kernel)

    @jax.jit
    @jax.vmap
    def drawn(key):
        return model(NEW, key=key)[0], elbo(model, Gaussian(NOISE), X, Y, key=key).elbo

    outputs, bounds = drawn(jax.random.split(jax.random.key(1), 8000))
    assert exact.within(outputs, mean)
    off = np.asarray(outputs, float) - mean
    for one in (0, 1):
        for other in (0, 1):  # the targets are independent
            expected = cov if one == other else np.zeros_like(cov)
            assert exact.within(np.einsum("dn,dm->dnm", off[..., one], off[..., other]), expected)
    # the KL is in closed form, so only E[log p(y | f)] is estimated
    assert exact.within(bounds, float(model.log_evidence()))


WAVE = jnp.linspace(-2.0, 2.0, 15)[:, None]


NOISY = jnp.sin(2 * WAVE) + 0.3 * jax.random.normal(jax.random.key(4), WAVE.shape)


@pytest.fixture(scope="module")
def fitted_gp():
    start = GP(WAVE, NOISY, length=0.3, amplitude=0.5, noise=0.6, features=16)
    return start, fit(
        start,
        Gaussian(0.6, learn=True),
        WAVE,
        NOISY,
        epochs=200,
        objective=Objective(draws=16),
        optimizer=Optimizer(learning_rate=0.1),
        **QUIET,
    )


def test_fitting_a_gp_maximises_the_evidence(fitted_gp):
    start, (model, likelihood, history) = fitted_gp
    assert np.all(np.isfinite(history["elbo"]))
    theirs = GaussianProcessRegressor(
        kernels.ConstantKernel(1.0) * kernels.RBF(1.0) + kernels.WhiteKernel(0.1),
        n_restarts_optimizer=2,
        random_state=0,
    )
    best = theirs.fit(WAVE, NOISY[:, 0]).log_marginal_likelihood_value_
    assert float(start.log_evidence()) < best - 1
    assert best - 0.05 < float(model.log_evidence()) < best + 1e-2
    # the noise of the GP and that of the likelihood are two parameters, equal at the optimum of the ELBO
    assert float(likelihood.log_scale) == pytest.approx(float(model.log_noise), abs=0.1)
    # the data it holds are not trained
    assert np.array_equal(model.x.value, WAVE)
    assert np.array_equal(model.y.value, NOISY)


def test_the_parameters_of_a_gp_are_not_weakly_typed():
    # a weak type would change after one step, and the steps of fit would be compiled again
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(eqx.filter(gp("rbf"), eqx.is_inexact_array)))


def test_a_key_names_one_function_of_the_gp_for_every_batch(fitted_gp):
    model, x = fitted_gp[1].model, jnp.array([[0.1], [1.0], [-1.5], [5.0]])
    outputs = predict(model, x, draws=3, key=KEY)
    assert np.array_equal(outputs, predict(model, x, draws=3, key=KEY))
    others = predict(model, jnp.flip(x, 0).at[:3].add(0.7), draws=3, key=KEY)
    np.testing.assert_allclose(others[:, 3], outputs[:, 0], atol=1e-4)
    assert np.all(predict(model, x, draws=3, key=jax.random.key(1)) != outputs)
