import jax
import numpy as np

from sdebnn.data import toy


def test_the_wave_is_its_mean_plus_noise_of_the_stated_size_and_is_not_monotonic():
    x, y = toy.wave(4000, key=jax.random.key(0))
    inputs = np.asarray(x, dtype=float)
    expected = np.sin(2.5 * inputs) * np.exp(-0.1 * inputs**2) + 0.3 * inputs
    noise = np.asarray(y, dtype=float) - expected
    assert abs(noise.mean()) < 4 * 0.1 / np.sqrt(4000)
    assert abs(noise.std() - 0.1) < 4 * 0.1 / np.sqrt(2 * 4000)
    assert -2 <= inputs.min() < -1.99
    assert 1.99 < inputs.max() <= 2
    slope = np.diff(toy.wave_mean(jax.numpy.linspace(-2, 2, 100)))
    assert slope.min() < 0 < slope.max()
