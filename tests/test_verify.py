"""The suite that users run, run here: each theorem must hold, and a broken one must be seen to fail."""

import jax
import jax.numpy as jnp
import pytest

from sdebnn import FixedGrid, verify


@pytest.mark.parametrize("group", verify.SUITE, ids=lambda group: group.__name__)
@pytest.mark.slow
def test_every_theorem_holds(group):
    key = jax.random.fold_in(jax.random.key(0), verify.SUITE.index(group))
    results = list(group(key))
    assert results
    assert [theorem for theorem in results if not theorem.passed] == []


def test_nan_never_passes():
    assert not verify.Theorem("a number", float("nan"), 0.0, 1.0).passed


@pytest.fixture
def _fresh_caches():
    """What is patched must be traced anew, and what was traced so forgotten."""
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.mark.usefixtures("_fresh_caches")
def test_the_suite_sees_a_drift_of_the_wrong_sign(monkeypatch):
    right = verify.ExactDrift.__call__
    monkeypatch.setattr(verify.ExactDrift, "__call__", lambda self, t, w: -right(self, t, w))
    assert not all(theorem.passed for theorem in verify.evidence(jax.random.key(0)))


@pytest.mark.usefixtures("_fresh_caches")
def test_the_suite_sees_a_horizon_that_is_not_one(monkeypatch):
    times = FixedGrid.times
    monkeypatch.setattr(FixedGrid, "times", lambda self, dtype=float: 0.53 * times(self, dtype))
    failed = [theorem.name for theorem in verify.marginals(jax.random.key(0)) if not theorem.passed]
    assert "the horizon is exactly 1" in failed


@pytest.mark.usefixtures("_fresh_caches")
def test_the_suite_sees_a_missing_half_in_the_kl(monkeypatch):
    weights = FixedGrid.weights

    def doubled(self, process, *, key):
        path = weights(self, process, key=key)
        return path._replace(kl=2 * path.kl)

    monkeypatch.setattr(FixedGrid, "weights", doubled)
    failed = [theorem.name for theorem in verify.path_kl(jax.random.key(0)) if not theorem.passed]
    assert "KL between two OU paths (analytic)" in failed


def test_the_exact_posterior_of_an_inferred_start_is_conjugate():
    problem = verify.LinearGaussian()
    (_, law), evidence = verify.posterior_if_w0_is_inferred(problem)
    # On a grid: prior N(0, 1) times the likelihood of y given w_0.
    grid = jnp.linspace(-6.0, 6.0, 20001)
    mean, variance = problem.ahead(0.0, grid)
    density = jnp.exp(-0.5 * grid**2 - 0.5 * jnp.log(2 * jnp.pi) + verify.log_normal(problem.y, mean, variance))
    assert evidence == pytest.approx(float(jnp.log(density.sum() * (grid[1] - grid[0]))), abs=1e-3)
    density /= density.sum()
    center = jnp.sum(grid * density)
    assert float(law.mean[0]) == pytest.approx(float(center), abs=1e-4)
    assert float(jnp.exp(law.log_std[0])) == pytest.approx(
        float(jnp.sqrt(jnp.sum((grid - center) ** 2 * density))), abs=1e-4
    )
