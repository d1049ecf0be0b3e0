import subprocess
import sys

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
        expected = np.quantile(samples[:, 0], [(1 - level) / 2, (1 + level) / 2], method="weibull")
        np.testing.assert_allclose([at_zero.min(), at_zero.max()], expected)


def test_the_shades_of_a_trajectory_span_the_same_quantiles(axes):
    states = np.random.default_rng(0).normal(size=(199, 3, 1))
    plots.trajectories(axes, np.linspace(0, 1, 3), states)
    for shade, level in zip(axes.collections, (0.95, 0.7, 0.4), strict=False):
        corners = shade.get_paths()[0].vertices
        at_zero = corners[corners[:, 0] == 0.0, 1]
        expected = np.quantile(states[:, 0, 0], [(1 - level) / 2, (1 + level) / 2], method="weibull")
        np.testing.assert_allclose([at_zero.min(), at_zero.max()], expected)
    axes.clear()
    plots.trajectories(axes, np.linspace(0, 1, 3), states[:1])  # one draw has no density to shade
    assert len(axes.lines) == 1


def test_without_matplotlib_the_import_says_how_to_install_it():
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "try:\n    import sdebnn.plots\n"
        "except ImportError as error:\n"
        "    assert str(error) == \"sdebnn.plots needs Matplotlib: pip install 'sdebnn[plot]'.\", error\n"
        "    assert error.__suppress_context__\n"
        "else:\n    raise SystemExit('nothing was said')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_each_draw_is_one_line_and_each_input_of_a_trajectory_one_colour(axes):
    samples = np.arange(6.0).reshape(3, 2)
    plots.draws(axes, np.array([0.0, 1.0]), samples)
    assert [list(line.get_ydata()) for line in axes.lines] == samples.tolist()
    axes.clear()
    states = np.random.default_rng(0).normal(size=(7, 4, 2))
    plots.trajectories(axes, np.linspace(0, 1, 4), states, lines=3)
    np.testing.assert_allclose([line.get_ydata() for line in axes.lines[:3]], states[:3, :, 0])
    assert len({line.get_color() for line in axes.lines}) == 2
