"""Reversible Heun: where it is stable, what it does elsewhere, and that it is refused or seen there."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdebnn import OU, Adaptive, FixedGrid, Point, bayesianize, predict
from sdebnn.integrate import METHODS, Noise, Posterior
from sdebnn.integrate.stability import shadow_spread, warn_if_unstable
from sdebnn.nn import TimeMLP
from sdebnn.processes import AbstractDrift, LinearDrift, NoDrift

KEY = jax.random.key(5)
METHOD = METHODS["reversible_heun"]


class Contracting(Posterior):
    """Weights, and hidden units that are pulled to zero at a rate of their own."""

    pull: float = 1.0

    def unravel(self, w):
        return w

    def f_h(self, t, h, w):
        return -self.pull * h

    def all_euler_steps(self, arrays, h):
        return None


def ou(rate, drift=None, size=1):
    return Posterior(OU(rate, 0.0, 1.0), drift or NoDrift(), Point(jnp.ones(size)))


def step_matrix(process, dt, size=1):
    """The linear map of (y, ŷ) under one step without noise, and what a kick ΔB adds: both by differentiation."""

    def step(pair, dB):
        y, shadow = pair.reshape(2, size)
        start = METHOD.weights_start(process, y)._replace(shadow=shadow, known=process.drift(0.0, shadow))
        after, _ = METHOD.weights_step(process, start, 0.0, dt, Noise(jnp.full(size, dB), None))
        return jnp.concatenate([after.y, after.shadow])

    matrix, kick = jax.jacfwd(step, (0, 1))(jnp.zeros(2 * size), jnp.zeros(()))
    return np.asarray(matrix, float), np.asarray(kick, float)


@pytest.mark.parametrize("r", [0.05, 0.5, 2.0])
def test_under_contraction_one_eigenvalue_always_exceeds_one(r):
    matrix, _ = step_matrix(ou(10 * r), 0.1)
    np.testing.assert_allclose(matrix, [[1 - r, r**2 / 2], [2, -1 - r]], atol=1e-6)
    expected = [-r - np.sqrt(1 + r**2), -r + np.sqrt(1 + r**2)]
    np.testing.assert_allclose(np.sort(np.linalg.eigvals(matrix)), expected, atol=1e-5)
    assert np.linalg.det(matrix) == pytest.approx(-1, abs=1e-5)


class Turning(AbstractDrift):
    """A drift that is a matrix times the weights."""

    matrix: jax.Array

    def __call__(self, t, w):
        return self.matrix @ w


@pytest.mark.parametrize("angle", [0.3, 0.9, 1.5])
def test_rotations_are_stable_up_to_one_radian_a_step(angle):
    """The eigenvalues of a rotation are ±i angle; their stability region is the segment from -i to i."""
    turn = jnp.array([[0.0, -1.0], [1.0, 0.0]])
    matrix, _ = step_matrix(ou(0.0, Turning(10 * angle * turn), 2), 0.1, 2)
    largest = np.abs(np.linalg.eigvals(matrix)).max()
    assert largest == pytest.approx(1 if angle <= 1 else angle + np.sqrt(angle**2 - 1), rel=1e-5)


@pytest.mark.parametrize(("rate", "steps"), [(1.0, 1), (2.0, 20), (10.0, 20), (20.0, 1000)])
def test_the_shadow_s_spread_is_that_of_the_step_s_covariance(rate, steps):
    """Against P ← M P Mᵀ + k kᵀ dt, with M and k as above."""
    r, dt = rate / steps, 1 / steps
    matrix, kick = np.array([[1 - r, r**2 / 2], [2, -1 - r]]), np.array([1 - r / 2, 1.0])
    differentiated, differentiated_kick = step_matrix(ou(rate), dt)
    np.testing.assert_allclose(differentiated, matrix, atol=1e-6)
    np.testing.assert_allclose(differentiated_kick, kick, atol=1e-6)
    covariance = np.zeros((2, 2))
    for _ in range(steps):
        covariance = matrix @ covariance @ matrix.T + np.outer(kick, kick) * dt
    apart = np.array([-1.0, 1.0])
    exact = (1 - np.exp(-2 * rate)) / (2 * rate)
    assert shadow_spread(rate, steps) == pytest.approx(np.sqrt(apart @ covariance @ apart / exact), rel=1e-3)


def test_solves_have_the_spread_that_the_closed_form_predicts():
    """2048 draws: the standard error of a standard deviation is 1/64 of it, and 4 of them are allowed."""
    path = jax.jit(jax.vmap(lambda key: FixedGrid(20, "reversible_heun").weights(ou(2.0), key=key)))(
        jax.random.split(KEY, 2048)
    )
    std = float(OU(2.0, 0.0, 1.0).marginal(1.0, jnp.ones(1))[1][0])
    apart = np.asarray(path.stages[1][:, -1, 0] - path.w[:, -1, 0], float)
    assert apart.std() / std == pytest.approx(shadow_spread(2.0, 20), rel=4 / 64)


@pytest.mark.parametrize("steps", [1, 2, 20, 1000])
def test_the_default_rate_is_accepted_at_every_number_of_steps(steps):
    FixedGrid(steps, "reversible_heun").check_process(ou(OU().rate))


@pytest.mark.parametrize(("rate", "steps"), [(10.0, 20), (20.0, 1000), (1e4, 20)])
def test_a_prior_that_makes_it_unstable_is_refused_everywhere(refused, rate, steps):
    grid, process = FixedGrid(steps, "reversible_heun"), ou(rate)
    words = rf"rate={rate:g} .*unstable.*{steps} steps.*'heun' or 'ralston3'"
    refused(lambda: grid.weights(process, key=KEY), words)
    refused(lambda: grid.solve(Contracting(OU(rate), NoDrift(), Point(jnp.ones(1))), jnp.ones((2, 1)), key=KEY), words)
    field = TimeMLP(1, (2,), key=KEY)
    refused(lambda: bayesianize(field, prior=OU(rate), solver=grid, drift=(1,), key=KEY), words)
    law = Adaptive(solver=diffrax.ReversibleHeun())
    refused(lambda: bayesianize(field, prior=OU(rate), solver=law, drift=(1,), key=KEY), r"unstable.*diffrax\.ShARK")
    assert bayesianize(field, prior=OU(rate), solver=FixedGrid(20, "heun"), drift=(1,), key=KEY)


def test_a_drift_that_contracts_is_warned_of_when_weights_are_drawn():
    calm = LinearDrift(3, knots=2)
    strong = eqx.tree_at(lambda d: d.slope, calm, jnp.full((2, 3), -10.0))
    grid = FixedGrid(20, "reversible_heun")
    grid.weights(ou(1.0, calm, 3), key=KEY)
    with pytest.warns(RuntimeWarning, match=r"unstable here.*state's size.*'heun' or 'ralston3'"):
        grid.weights(ou(1.0, strong, 3), key=KEY)


@pytest.mark.parametrize("gradient", ["checkpoint", "reversible"])
@pytest.mark.parametrize(("pull", "stable"), [(1.0, True), (10.0, False)])
def test_hidden_units_that_contract_are_seen_by_the_distance_to_their_shadow(pull, stable, gradient):
    process = Contracting(OU(sigma=0.1), NoDrift(), Point(jnp.ones(3)), pull=pull)
    h0 = jnp.array([[1.0], [-0.5]])
    found = FixedGrid(20, "reversible_heun", gradient).solve(process, h0, key=KEY).shadow_distance
    if stable:
        assert 0 < float(found) < 0.1
        warn_if_unstable(found)
    else:
        with pytest.warns(RuntimeWarning, match="unstable here"):
            warn_if_unstable(found)
    assert FixedGrid(20).solve(process, h0, key=KEY).shadow_distance == 0


def test_predictions_of_a_net_that_contracts_are_warned_of():
    class Pulled(eqx.Module):
        rate: jax.Array

        def __call__(self, t, h):
            return -10.0 * h + 0 * self.rate

    block = bayesianize(
        Pulled(jnp.ones(1)), drift=(1,), solver=FixedGrid(20, "reversible_heun", "reversible"), key=KEY
    )  # fmt: skip
    with pytest.warns(RuntimeWarning, match="unstable here"):
        predict(block, jnp.ones((3, 1)), draws=2, key=KEY)
