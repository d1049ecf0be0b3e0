"""Weight processes other than the SDE-BNN's: BBVI for SDEs, and blocks that are random up to some depth."""

import equinox as eqx
import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from small_models import KEY, QUIET, shaken

from sdebnn import OU, FixedGrid, Gaussian, Normal, Objective, Optimizer, bayesianize, elbo, fit
from sdebnn.baselines import PartlyRandom, bbvi
from sdebnn.nn import TimeMLP

pytestmark = pytest.mark.usefixtures("_compiled_in_haste")

STEPS = 20


class Last(eqx.Module):
    """h_1 = h_0 + w at the last step, so that only the last weight of the path is observed."""

    w: jax.Array

    def __call__(self, t, h):
        return jnp.where(t > 1 - 1.5 / STEPS, STEPS * self.w, 0.0)


def test_bbvi_finds_the_exact_gaussian_posterior_over_paths():
    y, noise, ones = 1.4, 0.7, np.ones(STEPS)
    prior = exact.random_start(-ones, 0 * ones, 1.0, 1.0)
    seen = np.zeros((1, STEPS + 1))
    seen[0, STEPS - 1] = 1.0
    mean, cov, evidence = exact.gaussian_posterior(*prior, seen, noise, np.array([y]))
    stds = np.sqrt(np.diag(cov))
    # the posterior differs from the prior, from which training starts
    assert mean[STEPS - 1] > 0.6
    assert stds[STEPS - 1] < 0.75 * np.sqrt(prior[1][STEPS - 1, STEPS - 1])
    block = bbvi(
        Last(jnp.zeros(1)), knots=11, prior=OU(sigma=1.0), initial=Normal, solver=FixedGrid(STEPS), kl="stl", key=KEY
    )
    x, targets = jnp.zeros((1, 1)), jnp.full((1, 1), y)
    fitted = fit(
        block,
        Gaussian(noise),
        x,
        targets,
        epochs=200,
        objective=Objective(draws=32),
        optimizer=Optimizer(learning_rate=0.2),
        **QUIET,
    ).model

    @jax.jit
    @jax.vmap
    def drawn(key):
        return fitted.draw(key=key).w[:, 0], elbo(fitted, Gaussian(noise), x, targets, key=key).elbo

    paths, bounds = (np.asarray(part, float) for part in drawn(jax.random.split(jax.random.key(3), 20_000)))
    # 4 standard errors, plus the error of training and of steps of constant variance (exact: up to 9 % less)
    np.testing.assert_allclose(paths.mean(0), mean, atol=4 / np.sqrt(20_000) + 0.01)
    np.testing.assert_allclose(paths.std(0), stds, rtol=4 / np.sqrt(40_000) + 0.03)
    error = bounds.std() / np.sqrt(20_000)
    assert evidence - 0.02 < bounds.mean() < evidence + 4 * error


def partly(kl="analytic", method="euler", until=0.5):
    field = TimeMLP(2, (2,), key=KEY)
    block = bayesianize(
        field, prior=OU(sigma=0.7), drift=(3,), initial=Normal, solver=FixedGrid(8, method=method), kl=kl, key=KEY
    )
    return PartlyRandom(eqx.tree_at(lambda b: b.drift, block, shaken(block.drift)), until)


def test_beyond_until_the_weights_follow_the_drift_without_noise_or_kl():
    model, other = partly("full"), partly("analytic")
    block = model.block

    @eqx.filter_jit
    def drawn(h, key):
        path = model.draw(key=key)
        correction = jax.vmap(block.drift)(path.t[:-1], path.w[:-1])
        starts = block.initial.kl(), block.initial.log_ratio(path.w[0])

        def step(h, now):  # the same weights move the hidden units
            return h + eqx.combine(block.unravel(now[1]), block.field)(now[0], h) / 8, None

        by_hand, _ = lax.scan(step, h[0], (path.t[:-1], path.w[:-1]))
        return path, correction, starts, other.draw(key=key).kl, block.draw(key=key).w, by_hand, model(h, key=key)

    path, correction, starts, analytic, whole, by_hand, (outputs, charged) = drawn(jnp.ones((1, 2)), KEY)
    w = np.asarray(path.w, float)
    kicks = np.diff(w, axis=0) - (np.asarray(correction) - w[:-1]) / 8
    np.testing.assert_allclose(kicks[4:], 0.0, atol=1e-6)
    assert np.all(np.abs(kicks[:4]).max(1) > 0.1)
    np.testing.assert_allclose(path.w[:5], whole[:5], rtol=1e-5)  # the path of the block itself where it is random
    u = np.asarray(correction[:4], float) / 0.7
    energy = (0.5 * u**2).sum() / 8
    assert float(analytic) == pytest.approx(float(starts[0]) + energy, rel=1e-4)
    assert float(path.kl) == pytest.approx(float(starts[1]) + energy + (u * kicks[:4] / 0.7).sum(), rel=1e-4)
    assert float(charged) == pytest.approx(float(path.kl), rel=1e-5)
    np.testing.assert_allclose(outputs[0], by_hand, rtol=1e-4)


def test_a_block_that_is_random_to_depth_one_equals_the_block_itself():
    model = partly("full", "ralston3", until=1.0)
    h = jax.random.normal(KEY, (3, 2))
    solve = eqx.filter_jit(lambda model: model.solve(h, key=KEY, with_roughness=True))
    for ours, theirs in zip(solve(model), solve(model.block), strict=True):  # all parts of the solutions
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
