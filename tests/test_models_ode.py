"""ODEnet and HyperODEnet against exact solutions of their equations."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, linalg
from small_models import KEY, Matrix, called, shaken

from sdebnn import FixedGrid
from sdebnn.baselines import HyperODEBlock
from sdebnn.nn import ODEBlock, TimeMLP

pytestmark = pytest.mark.usefixtures("_compiled_in_haste")


def test_a_linear_ode_net_computes_the_matrix_exponential():
    a = jax.random.normal(KEY, (3, 3))
    h0 = jax.random.normal(jax.random.key(1), (4, 3))
    truth = np.asarray(h0, float) @ linalg.expm(np.asarray(a, float)).T

    def error(grid):
        outputs, kl = called(ODEBlock(Matrix(a), solver=grid), h0)
        assert kl == 0
        return np.abs(outputs - truth).max()

    coarse, fine = error(FixedGrid(100)), error(FixedGrid(200))
    assert coarse / fine == pytest.approx(2.0, rel=0.05)  # halving the step halves Euler's error
    assert error(FixedGrid(40, method="ralston3")) < 4e-4 < 0.1 * fine


def test_the_weights_of_a_hyper_ode_net_solve_the_coupled_equations():
    block = shaken(HyperODEBlock(Matrix(jnp.eye(2)), drift=(3,), solver=FixedGrid(40, method="ralston3"), key=KEY))
    h0 = np.array([[0.4, -1.0], [1.0, 0.3]])

    def slopes(t, state):
        w, h = state[:4], state[4:].reshape(2, 2)
        # standardised by the fan-in of 2
        return np.concatenate(
            [np.asarray(block.drift(t, jnp.asarray(w))), (h @ (w.reshape(2, 2) / np.sqrt(2)).T).ravel()]
        )

    start = np.concatenate([block.value, h0.ravel()])
    truth = integrate.solve_ivp(slopes, (0, 1), start, rtol=1e-8, atol=1e-8).y[:, -1]
    assert np.abs(truth[:4] - start[:4]).min() > 0.05  # the weights move
    outputs, kl = called(block, jnp.asarray(h0))
    np.testing.assert_allclose(eqx.filter_jit(block.path)()[0][-1], truth[:4], atol=1e-4)
    np.testing.assert_allclose(outputs, truth[4:].reshape(2, 2), atol=1e-4)
    assert kl == 0


def test_a_hyper_ode_net_with_constant_weights_equals_an_ode_net():
    field, grid = TimeMLP(2, (3,), key=KEY), FixedGrid(4)
    h = jax.random.normal(KEY, (3, 2))
    constant, moving = ODEBlock(field, solver=grid), HyperODEBlock(field, drift=(2,), solver=grid, key=KEY)
    outputs = called(constant, h)[0]
    np.testing.assert_allclose(called(moving, h)[0], outputs, rtol=1e-5)
    assert not np.allclose(called(shaken(moving), h)[0], outputs, rtol=1e-2)
