"""The choice among candidates: nearer to the exact posterior, with a bound that holds, and one function for a key."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from small_models import KEY, over_keys

import sdebnn
from sdebnn import Adaptive, FixedGrid, Gaussian, predict
from sdebnn.integrate import Solution
from sdebnn.nn import SDEBNN, AbstractModel, ConditionedReadout, refined
from sdebnn.train.objective import elbo

X = jnp.array([[-1.0], [0.4], [0.9], [1.6]])
Y = jnp.array([[-0.9], [0.9], [1.0], [0.1]])
AT = jnp.array([[-2.0], [0.0], [1.3]])
NOISE, SCALE = 0.2, 1.0
MEAN, STD = 0.6, 0.8  # of q; the prior is standard normal


class Wave(AbstractModel):
    """The feature sin(e^ξ x) with ξ ~ N(MEAN, STD²), far from the posterior of ξ."""

    def as_candidate(self):
        return self

    def solve(self, x, *, key, with_roughness=False):
        xi = MEAN + STD * jax.random.normal(key)
        log_ratio = 0.5 * (xi**2 - ((xi - MEAN) / STD) ** 2) - jnp.log(STD)
        return Solution(jnp.sin(jnp.exp(xi) * x), log_ratio)


def readout(candidates, body=Wave, scale=SCALE):
    model = ConditionedReadout(body(), 1, scale=scale, candidates=candidates, kl="full")
    return model.before_training(Gaussian(NOISE), (X, Y))


def exact():
    """Mean and variance of the function at AT, and the log evidence, by quadrature over ξ."""
    grid = np.linspace(-6, 6, 4001)
    y, offset = np.asarray(Y, float)[:, 0], float(Y.mean())

    def given(xi):
        phi, at = (
            SCALE * np.column_stack([np.sin(np.exp(xi) * np.asarray(x, float)[:, 0]), np.ones(len(x))]) for x in (X, AT)
        )
        total = phi @ phi.T + NOISE**2 * np.eye(4)
        gain = at @ phi.T @ np.linalg.inv(total)
        density = stats.multivariate_normal(np.full(4, offset), total).logpdf(y)
        return density + stats.norm.logpdf(xi), offset + gain @ (y - offset), np.diag(at @ at.T - gain @ phi @ at.T)

    logs, means, variances = map(np.array, zip(*map(given, grid), strict=True))
    evidence = np.log(np.exp(logs - logs.max()).sum() * (grid[1] - grid[0])) + logs.max()
    weights = np.exp(logs - logs.max())[:, None] / np.exp(logs - logs.max()).sum()
    mean = (weights * means).sum(0)
    return mean, (weights * (variances + means**2)).sum(0) - mean**2, evidence


def bounds(model, draws):
    """log p(y | f) - KL of every draw."""
    outputs, kl = over_keys(model, X, draws)
    return stats.norm(np.asarray(Y, float), NOISE).logpdf(outputs).sum((1, 2)) - kl


def test_with_many_candidates_draws_have_the_moments_of_the_exact_posterior():
    draws = 4000
    mean, variance, _ = exact()
    functions = over_keys(readout(200), AT, draws)[0][..., 0]
    # The bias of the choice is of the order 1 / candidates.
    assert np.all(np.abs(functions.mean(0) - mean) < (4 / np.sqrt(draws) + 0.03) * np.sqrt(variance))
    assert np.all(np.abs(functions.var(0) / variance - 1) < 4 * np.sqrt(2 / draws) + 0.1)
    alone = over_keys(readout(1), AT, draws)[0][..., 0]
    assert np.abs(alone.var(0) / variance - 1).max() > 0.5


def test_the_bound_grows_with_the_candidates_and_tends_to_the_evidence():
    found = {count: bounds(readout(count), 2000) for count in (1, 4, 200)}
    evidence = exact()[2]
    means = {count: each.mean() for count, each in found.items()}
    errors = {count: each.std() / np.sqrt(2000) for count, each in found.items()}
    assert means[1] + 4 * errors[1] < means[4] < means[200] - 4 * errors[4]
    assert evidence - 0.05 - 4 * errors[200] < means[200] < evidence + 4 * errors[200]


def test_a_drawn_scale_is_chosen_too():
    # log scale ~ N(0, 1) around twice the spread of the targets; the evidence is by quadrature, at a known feature.
    class Line(Wave):
        def solve(self, x, *, key, with_roughness=False):
            return Solution(x, jnp.zeros(()))

    y, unit = np.asarray(Y, float)[:, 0], 2 * float(Y.std())
    design = np.column_stack([np.asarray(X, float)[:, 0], np.ones(4)])

    def density(s):
        total = (unit * np.exp(s)) ** 2 * design @ design.T + NOISE**2 * np.eye(4)
        return stats.norm.pdf(s) * stats.multivariate_normal(np.full(4, y.mean()), total).pdf(y)

    evidence = np.log(quad(density, -5, 5)[0])
    wide = eqx.tree_at(lambda m: m.amplitude.log_std, readout(200, Line, scale=None), jnp.zeros(1))
    found = bounds(wide, 1000)
    assert abs(found.mean() - evidence) < 0.05 + 4 * found.std() / np.sqrt(1000)


def test_a_candidate_that_is_not_finite_is_not_taken():
    class Broken(Wave):
        def solve(self, x, *, key, with_roughness=False):
            whole = super().solve(x, key=key)
            return whole._replace(outputs=jnp.where(jax.random.bernoulli(key, 0.3), jnp.nan, whole.outputs))

    assert np.isnan(over_keys(readout(1, Broken), X, 100)[0]).any()
    outputs, kl = over_keys(readout(16, Broken), X, 100)
    assert np.isfinite(outputs).all()
    assert np.isfinite(kl).all()


GRID = FixedGrid(4, "heun")


def small(candidates=8, solver=GRID):
    model = SDEBNN.mlp(1, 1, width=6, candidates=candidates, solver=solver, key=KEY)
    return model.before_training(Gaussian(NOISE), (X, Y))


def test_training_draws_one_candidate():
    terms = [elbo(model, Gaussian(NOISE), X, Y, key=KEY).elbo for model in (small(8), small(1))]
    np.testing.assert_array_equal(*terms)


def test_a_choice_does_not_change_when_the_solver_is_refined():
    def choices(model):
        taken = jax.vmap(lambda key: jax.random.key_data(model._choice(key).key))
        return np.asarray(jax.jit(taken)(jax.random.split(KEY, 100)))

    assert len(np.unique(choices(small()), axis=0)) == 100
    np.testing.assert_array_equal(choices(small()), choices(refined(small(), steps=6)))


def test_draws_do_not_depend_on_how_many_are_computed_at_once():
    one, some, all_ = (
        np.asarray(predict(small(), AT, draws=7, draws_at_once=count, key=KEY)) for count in (1, 3, 7)
    )  # 3 does not divide 7: the last round is filled up
    assert len(np.unique(all_[:, 0, 0])) == 7
    np.testing.assert_allclose(some, all_, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(one, all_, rtol=1e-4, atol=1e-4)


def test_without_a_density_of_the_draws_there_is_no_choice_and_the_description_says_which():
    adaptive = small(solver=Adaptive(1e-2))
    assert "candidates" not in str(sdebnn.describe(adaptive, X))
    assert "one of 8 candidates" in str(sdebnn.describe(small(), X))
    one = eqx.tree_at(lambda model: model.candidates, adaptive, 1)
    np.testing.assert_array_equal(adaptive(X, key=KEY)[0], one(X, key=KEY)[0])


def test_no_candidates_are_refused():
    with pytest.raises(ValueError, match="candidates=0"):
        SDEBNN.mlp(1, 1, candidates=0, key=KEY)
