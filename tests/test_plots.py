import matplotlib as mpl
import numpy as np
import pytest

mpl.use("agg")
from matplotlib import pyplot as plt

from sdebnn import plots


@pytest.fixture
def axes():
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


def test_bands_span_the_quantiles_of_the_samples(axes):
    x, samples = np.array([0.0, 1.0]), np.random.default_rng(0).normal(size=(999, 2))
    plots.bands(axes, x, samples, levels=(0.5, 0.9))
    for band, level in zip(axes.collections, (0.9, 0.5), strict=True):
        corners = band.get_paths()[0].vertices
        at_zero = corners[corners[:, 0] == 0.0, 1]
        expected = np.quantile(samples[:, 0], [(1 - level) / 2, (1 + level) / 2])
        np.testing.assert_allclose([at_zero.min(), at_zero.max()], expected)


def test_each_draw_is_one_line_and_each_input_of_a_trajectory_one_colour(axes):
    samples = np.arange(6.0).reshape(3, 2)
    plots.draws(axes, np.array([0.0, 1.0]), samples)
    assert [list(line.get_ydata()) for line in axes.lines] == samples.tolist()
    axes.clear()
    states = np.random.default_rng(0).normal(size=(7, 4, 2))
    plots.trajectories(axes, np.linspace(0, 1, 4), states, lines=3)
    np.testing.assert_allclose([line.get_ydata() for line in axes.lines[:3]], states[:3, :, 0])
    assert len({line.get_color() for line in axes.lines}) == 2
