"""Conditioned read-outs: exact given the features, the prior without data, and the same under every solver."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from small_models import KEY, QUIET, arrays, over_keys

import sdebnn
from sdebnn import Adaptive, Categorical, FixedGrid, Gaussian, fit, predict
from sdebnn.models.readout import SPEED
from sdebnn.nn import SDEBNN, ConditionedReadout, Deterministic, map_blocks, prior_of, refined
from sdebnn.train import Objective
from sdebnn.train.objective import elbo

X = jnp.array([[-1.0], [0.2], [0.9], [1.5]])
Y = jnp.array([[0.8], [0.1], [-0.4], [-1.1]])
NOISE = 0.3


class Powers(eqx.Module):
    """Two features of x."""

    def __call__(self, x):
        return jnp.concatenate([x, x**2])


def line(kl="analytic", scale=2.0, **options):
    """A read-out of fixed features, conditioned on the four observations."""
    model = ConditionedReadout(Deterministic(Powers()), 1, scale=scale, kl=kl, **options)
    return model.before_training(Gaussian(NOISE), (X, Y))


def design(x):
    x = np.asarray(x, float)[:, 0]
    return np.column_stack([x, x**2, np.ones(len(x))])


def exact_posterior(x, scale=2.0):
    """Mean and covariance of the function at x, and the log evidence, of the linear model."""
    mean, phi, at = float(Y.mean()), scale * design(X), scale * design(x)
    total = phi @ phi.T + NOISE**2 * np.eye(4)
    gain = at @ phi.T @ np.linalg.inv(total)
    evidence = stats.multivariate_normal(np.full(4, mean), total).logpdf(np.asarray(Y, float)[:, 0])
    return mean + gain @ (np.asarray(Y, float)[:, 0] - mean), at @ at.T - gain @ phi @ at.T, evidence


def test_draws_have_the_mean_and_the_covariance_of_the_exact_posterior():
    x, draws = jnp.array([[-2.0], [0.0], [1.2]]), 20000
    mean, covariance, _ = exact_posterior(x)
    functions = over_keys(line(), x, draws)[0][..., 0]
    variances = np.diag(covariance)
    assert np.all(np.abs(functions.mean(0) - mean) < 4 * np.sqrt(variances / draws))
    assert np.all(np.abs(np.cov(functions.T) - covariance) < 4 * np.sqrt(2 * np.outer(variances, variances) / draws))


@pytest.mark.parametrize("kl", ["full", "stl"])
def test_at_the_data_the_bound_is_the_log_evidence_on_every_draw(kl):
    outputs, nats = over_keys(line(kl), X, 8)
    log_likelihood = stats.norm(np.asarray(Y, float), NOISE).logpdf(outputs).sum((1, 2))
    np.testing.assert_allclose(log_likelihood - nats, exact_posterior(X)[2], atol=1e-3)


def test_the_analytic_kl_is_the_mean_of_the_log_ratio():
    analytic = over_keys(line(), X, 2)[1]
    sampled = over_keys(line("full"), X, 4000)[1]
    assert analytic[0] == analytic[1]
    assert abs(sampled.mean() - analytic[0]) < 4 * sampled.std() / np.sqrt(4000)


def test_stl_has_no_gradient_at_the_exact_posterior():
    def slope(kl):
        def loss(model):
            return elbo(model, Gaussian(NOISE), X, Y, key=KEY).elbo

        found = eqx.filter_grad(loss)(line(kl))
        return np.concatenate([arrays(each)[0].ravel() for each in (found.shift, found.log_noise)])

    assert np.abs(slope("stl")).max() < 1e-3
    assert np.abs(slope("full")).max() > 0.1


def test_an_inferred_scale_is_charged_and_a_given_one_is_not():
    given, inferred = line(), line(scale=None)
    assert given.amplitude is None
    moved = eqx.tree_at(
        lambda m: (m.amplitude.mean, m.amplitude.log_std), inferred, (jnp.array([0.7]), jnp.array([-50.0]))
    )
    scale = float(np.exp(0.7) * 2 * np.asarray(Y).std())  # of a law without spread
    own = 0.5 * (0.7**2 - 1) + 50.0
    np.testing.assert_allclose(moved(X, key=KEY)[1], line(scale=scale)(X, key=KEY)[1] + own, rtol=1e-4)


GRID = FixedGrid(4)


def small(solver=GRID, kl="analytic"):
    model = SDEBNN.mlp(1, 1, width=6, solver=solver, kl=kl, key=KEY)
    return model.before_training(Gaussian(NOISE), (X, Y))


def test_a_key_names_one_function_whatever_else_is_in_the_batch():
    whole, kl = small()(X, key=KEY)
    part, same = small()(X[1:2], key=KEY)
    np.testing.assert_allclose(whole[1:2], part, atol=1e-5)
    np.testing.assert_allclose(kl, same, rtol=1e-5)


def test_before_any_data_a_net_is_its_prior_and_has_no_kl():
    model = prior_of(small())
    outputs, kl = model(X, key=KEY)
    assert abs(float(kl)) < 1e-5
    new = prior_of(SDEBNN.mlp(1, 1, width=6, solver=FixedGrid(4), key=KEY))
    assert model.points.shape[0] == new.points.shape[0] == 0
    far, prior = (np.median(np.abs(over_keys(each, X + 1000, 400)[0])) for each in (small(), model))
    assert 0.2 < far / prior < 5  # there the data say nothing
    assert np.isfinite(np.asarray(outputs)).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "solver",
    [FixedGrid(4, "ralston3"), FixedGrid(4, "reversible_heun"), Adaptive(1e-2)],
    ids=lambda solver: solver.description,
)
def test_under_every_solver_the_net_passes_through_nearly_exact_data(solver):
    model = SDEBNN.mlp(1, 1, width=16, solver=solver, key=KEY).before_training(Gaussian(0.01), (X, Y))
    outputs, kl = over_keys(model, X, 8)
    assert np.abs(outputs - np.asarray(Y)).max() < 0.05
    assert np.isfinite(kl).all()


@pytest.mark.slow
def test_draws_converge_to_one_function_as_the_grid_is_refined():
    model, x = small(FixedGrid(4, "heun")), jnp.linspace(-2, 2, 5)[:, None]
    fine = refined(model, steps=256)(x, key=KEY)[0]
    errors = [float(jnp.abs(refined(model, steps=n)(x, key=KEY)[0] - fine).max()) for n in (4, 16, 64)]
    assert errors[2] < errors[1] < errors[0]
    assert errors[2] < 0.1


@pytest.mark.slow
def test_the_gradient_does_not_depend_on_how_it_is_computed():
    def gradient(solver):
        @eqx.filter_jit
        @eqx.filter_grad
        def slope(model):
            outputs, kl = model(X, key=KEY)
            return jnp.sum(outputs**2) + kl

        return arrays(slope(map_blocks(lambda block: block.with_solver(solver), small())))

    stored = gradient(FixedGrid(4, "reversible_heun", "backprop"))
    undone = gradient(FixedGrid(4, "reversible_heun", "reversible"))
    for a, b in zip(stored, undone, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3 * max(1.0, np.abs(a).max(initial=0)))


@pytest.mark.slow
@pytest.mark.parametrize("kl", ["full", "stl"])
def test_the_estimators_of_a_whole_net_agree_in_the_mean(kl):
    # Same key, same draws: the difference is the martingale of the path and of the coefficients, of mean zero.
    plain, other = over_keys(small(), X, 2000)[1], over_keys(small(kl=kl), X, 2000)[1]
    assert abs((other - plain).mean()) < 4 * (other - plain).std() / np.sqrt(2000)


@pytest.mark.slow
def test_training_does_not_disturb_nearly_exact_data():
    x = jnp.linspace(-2, 2, 12)[:, None]
    y = jnp.sin(x)
    model = SDEBNN.mlp(1, 1, width=16, solver=FixedGrid(2), key=KEY)
    fitted = fit(model, Gaussian(1e-3), x, y, epochs=30, objective=Objective(draws=1), **QUIET)
    elbo = fitted.history["elbo"]
    assert elbo[-5:].mean() > elbo[:5].mean() - 5
    assert np.abs(np.asarray(predict(fitted.model, x, draws=16, key=KEY)).mean(0) - np.asarray(y)).max() < 5e-3


@pytest.mark.slow
def test_classes_are_learned_too():
    x = jax.random.normal(KEY, (60, 2))
    y = (jnp.sum(x**2, axis=1) > 1.5).astype(int)
    model = SDEBNN.mlp(2, 2, width=16, solver=FixedGrid(2), key=KEY)
    fitted = fit(model, Categorical(), x, y, epochs=40, objective=Objective(draws=1), **QUIET)
    probabilities = jax.nn.softmax(predict(fitted.model, x, draws=32, key=KEY)).mean(0)
    assert (probabilities.argmax(1) == y).mean() > 0.9


def test_of_inputs_that_are_not_vectors_some_rows_become_points():
    class Pooled(eqx.Module):
        def __call__(self, x):
            return jnp.stack([x.mean(), x.std()])

    images = jax.random.normal(KEY, (9, 4, 4))
    model = ConditionedReadout(Deterministic(Pooled()), 1, count=5).before_training(
        Gaussian(NOISE), (images, images.mean((1, 2))[:, None])
    )
    assert model.points.shape == (5, 4, 4)
    rows = {row.tobytes() for row in np.asarray(images)}
    assert all(point.tobytes() in rows for point in np.asarray(model.points))
    np.testing.assert_allclose(np.exp(SPEED * model.log_noise) * model.unit**2, NOISE**2, rtol=1e-4)
    assert np.isfinite(np.asarray(model(images, key=KEY)[0])).all()


def test_the_description_names_the_pseudo_observations_and_the_body():
    text = str(sdebnn.describe(small(), X))
    assert "conditioned on 4 pseudo-observations" in text
    assert "SDEBlock of Waves" in text


def test_no_outputs_are_refused():
    with pytest.raises(ValueError, match="outputs=0"):
        ConditionedReadout(Deterministic(Powers()), 0)
