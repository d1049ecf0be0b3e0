"""One key, one Brownian path: its law at every resolution, and that all resolutions see the same one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdebnn import verify
from sdebnn.integrate import Brownian, BrownianPath, noise_on_grid

KEY = jax.random.key(4)


@pytest.fixture(scope="module")
def path():
    with jax.enable_x64(True):
        return BrownianPath(Brownian(20, 3, jnp.float64, KEY))


@pytest.mark.parametrize("steps", [40, 60])
def test_finer_grids_add_up_to_the_base_grid_with_its_levy_areas(path, steps):
    with jax.enable_x64(True):
        base = path.base.every_step()
        seen = verify.coarser(*noise_on_grid(path.base, steps), 20)
    np.testing.assert_allclose(seen.dB, base.dB, atol=1e-14)
    np.testing.assert_allclose(seen.area, base.area, atol=1e-14)


@pytest.mark.parametrize(("fine", "coarse"), [(63, 7), (20, 5)])
def test_grids_that_share_no_points_with_the_base_grid_agree_with_each_other(path, fine, coarse):
    with jax.enable_x64(True):
        seen, asked = verify.coarser(*noise_on_grid(path.base, fine), coarse), noise_on_grid(path.base, coarse)
    np.testing.assert_allclose(seen.dB, asked.dB, atol=1e-12)
    np.testing.assert_allclose(seen.area, asked.area, atol=1e-12)


def test_what_an_adaptive_solver_is_told_is_what_a_grid_sees(path):
    with jax.enable_x64(True):
        grid = noise_on_grid(path.base, 30)
        for k in (0, 11, 29):
            told = path.evaluate(k / 30, (k + 1) / 30, use_levy=True)
            np.testing.assert_allclose(told.W, grid.dB[k], atol=1e-9)
            np.testing.assert_allclose(told.H, grid.area[k], atol=1e-9)
            assert float(told.dt) == pytest.approx(1 / 30)
        whole = path.evaluate(0.0, 1.0)
        parts = path.evaluate(0.0, 0.37) + path.evaluate(0.37, 1.0)
        np.testing.assert_allclose(whole, parts, atol=1e-12)
        np.testing.assert_allclose(path.evaluate(0.37), path.evaluate(0.0, 0.37), atol=1e-12)


def test_a_step_of_length_zero_has_no_noise(path):
    """Finished lanes of a vmapped adaptive solve take such steps: at depth 0 and 1, on the base grid and off it."""
    with jax.enable_x64(True):
        depths = jnp.array([0.0, 1 / 20, 0.37, 0.6, 1.0])
        told = jax.vmap(lambda t: path.evaluate(t, t, use_levy=True))(depths)
    for part in (told.dt, told.W, told.H):
        assert np.array_equal(part, np.zeros_like(part))


@pytest.mark.parametrize("steps", [7])
def test_a_bridged_grid_has_the_law_of_brownian_motion(steps):
    n = 40_000
    noise = jax.jit(lambda key: noise_on_grid(Brownian(4, n, jnp.float32, key), steps))(KEY)
    together = np.concatenate([noise.dB * np.sqrt(steps), noise.area * np.sqrt(12 * steps)]).astype(float)
    covariance = together @ together.T / n
    # Entries of a sample covariance of independent unit normals: standard error √2/√n on the diagonal, 1/√n off it.
    error = np.where(np.eye(2 * steps) == 1, np.sqrt(2), 1) / np.sqrt(n)
    assert np.all(np.abs(covariance - np.eye(2 * steps)) < 5 * error)
    assert np.all(np.abs(together.mean(1)) < 5 / np.sqrt(n))


def test_single_precision_tells_fine_steps_apart():
    """Areas of steps of 1/2000, in float32: their variance is dt / 12, not the rounding of the path's own size."""
    noise = jax.jit(lambda key: noise_on_grid(Brownian(20, 50, jnp.float32, key), 2000))(KEY)
    assert float(jnp.var(noise.area) * 12 * 2000) == pytest.approx(1, abs=4 * np.sqrt(2 / 100_000))
    assert float(jnp.var(noise.dB) * 2000) == pytest.approx(1, abs=4 * np.sqrt(2 / 100_000))
