import re
import subprocess
import sys
from itertools import pairwise

import matplotlib as mpl
import numpy as np
import pytest
from scipy import stats

mpl.use("agg")
from matplotlib import pyplot as plt
from matplotlib.colors import to_rgb

from sdebnn import metrics, plots
from sdebnn.plots.elements import SINGLE_HUE, chance_band, end_labels, in_percent


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


def with_gid(artists, gid):
    return [artist for artist in artists if artist.get_gid() == gid]


def segments(axes, gid):
    """x, and the two ends in y, of vertical lines."""
    return np.array([(part[0, 0], *part[:, 1]) for part in with_gid(axes.collections, gid)[0].get_segments()]).T


def texts(axes):
    return [text.get_text() for text in axes.texts]


def luminance(colour):
    return np.dot(to_rgb(colour), (0.299, 0.587, 0.114))


def class_forecast(examples=600, seed=0):
    rng = np.random.default_rng(seed)
    samples = rng.dirichlet(np.full(4, 0.5), size=(3, examples))
    return samples, rng.integers(4, size=examples)


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_a_reliability_diagram_shows_accuracies_chances_and_shares_of_the_bins(axes, binning):
    samples, labels = class_forecast()
    plots.reliability_diagram(axes, samples, labels, bins=6, binning=binning)
    probs = samples.mean(0)
    p, right = probs.max(-1), probs.argmax(-1) == labels
    if binning == "width":
        rows = [np.flatnonzero(np.minimum(np.floor(p * 6), 5) == i) for i in range(6)]
    else:
        rows = np.array_split(np.argsort(p), 6)
    rows = [row for row in rows if len(row)]
    count = np.array([len(row) for row in rows])
    x, y = np.array([[p[row].mean(), right[row].mean()] for row in rows]).T
    dots = next(each for each in axes.collections if len(each.get_offsets()) > 1)
    np.testing.assert_allclose(dots.get_offsets(), np.stack([x, y], 1))
    at, low, high = segments(axes, "chance")
    np.testing.assert_allclose(at, x)
    np.testing.assert_allclose(low, stats.binom.ppf(0.025, count, x) / count)
    np.testing.assert_allclose(high, stats.binom.ppf(0.975, count, x) / count)
    _, bottom, top = segments(axes, "share")
    np.testing.assert_allclose((top - bottom) / (top - bottom).sum(), count / 600)
    assert (top < 0).all()  # below accuracy zero
    ece = np.sum(count * np.abs(x - y)) / 600
    assert f"ECE {ece:.3f}, 600 examples" in texts(axes)
    assert f"{100 * count.max() / 600:.0f} %" in texts(axes)


def test_a_forecast_that_is_sure_and_right_has_a_diagram(axes):
    samples = np.tile(np.eye(3)[:1], (2, 50, 1))
    plots.reliability_diagram(axes, samples, np.zeros(50, int))
    np.testing.assert_allclose(segments(axes, "chance")[:, 0], [1, 1, 1])
    assert "ECE 0.000, 50 examples" in texts(axes)


@pytest.mark.parametrize(("count", "p"), [(1, 0.5), (12, 0.97), (300, 0.6), (40, 1.0), (40, 0.0)])
def test_the_band_of_chance_holds_95_percent_and_no_narrower_central_one_does(count, p):
    low, high = (round(float(end) * count) for end in chance_band(count, p))
    law = stats.binom(count, p)
    assert law.cdf(high) - law.cdf(low - 1) >= 0.95
    assert law.cdf(low) >= 0.025
    assert law.sf(high - 1) >= 0.025


def test_risk_coverage_curves_lie_between_the_ideal_order_and_end_at_the_random_one(axes):
    rng = np.random.default_rng(0)
    for name in ("one", "two"):
        wrong = rng.uniform(size=200) < 0.2
        uncertainty = wrong + rng.normal(size=200)
        plots.risk_coverage_curve(axes, uncertainty, wrong, label=name)
        curve, random, ideal = (with_gid(axes.lines, gid)[-1] for gid in ("run", "random", "ideal"))
        order, count = np.argsort(uncertainty), np.arange(1, 201)
        risk = np.cumsum(wrong[order]) / count
        np.testing.assert_allclose(curve.get_xdata(), count / 200)
        np.testing.assert_allclose(curve.get_ydata(), risk)
        np.testing.assert_allclose(random.get_ydata(), wrong.mean())
        np.testing.assert_allclose(ideal.get_ydata(), np.maximum(count - np.sum(~wrong), 0) / count)
        assert curve.get_label() == f"{name}, AURC {risk.mean():.3g}"
    first, second = with_gid(axes.lines, "run")
    assert abs(luminance(first.get_color()) - luminance(second.get_color())) > 0.2
    assert first.get_linestyle() != second.get_linestyle()
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    assert words == [first.get_label(), second.get_label(), "random order", "ideal order"]
    steady = [line.get_ydata()[line.get_xdata() >= 0.05].max() for line in (first, second)]
    assert axes.get_ylim()[1] > max(steady)


def test_severity_shows_medians_quartiles_and_extremes_of_rows_of_any_length(axes):
    rng = np.random.default_rng(0)
    scores = {
        "even": rng.uniform(size=(6, 9)), "ragged": [np.array([0.9]), *rng.uniform(size=(5, 4))],
        "a": rng.uniform(size=(6, 3)), "b": rng.uniform(size=(6, 3)),
    }  # fmt: skip
    plots.severity(axes, scores)
    lines = [line for line in axes.lines if len(line.get_xdata()) == 6]
    for i, (name, rows) in enumerate(scores.items()):
        np.testing.assert_allclose(lines[i].get_ydata(), [np.median(row) for row in rows])
        assert (np.round(lines[i].get_xdata()) == np.arange(6)).all()
        for gid, ends in (("extremes", (0, 100)), ("quartiles", (25, 75))):
            drawn = with_gid(axes.collections, gid)[i].get_segments()
            np.testing.assert_allclose(
                [part[:, 1] for part in drawn], [np.percentile(row, ends) for row in rows], err_msg=name
            )
    assert sorted(texts(axes)) == sorted(scores)
    lightness = sorted(luminance(line.get_color()) for line in lines)
    assert np.diff(lightness).min() > 0.12
    assert len({line.get_marker() for line in lines}) == 4


def test_labels_at_the_ends_of_lines_do_not_overlap(axes):
    end_labels(axes, [(1.0, y, f"run {y}", plots.BLUE) for y in (0.5, 0.5, 0.501, 0.9)])
    axes.figure.canvas.draw()
    boxes = sorted((text.get_window_extent() for text in axes.texts), key=lambda box: box.y0)
    assert all(low.y1 <= high.y0 + 1 for low, high in pairwise(boxes))


def test_strangeness_shows_densities_and_the_probability_that_a_strange_score_is_higher(axes):
    rng = np.random.default_rng(0)
    usual, others = rng.gamma(1, size=300), {"far": 2 + rng.gamma(2, size=200), "near": rng.gamma(1.2, size=100)}
    plots.strangeness(axes, usual, others, bins=10)
    edges = np.linspace(0, max(usual.max(), *(each.max() for each in others.values())), 11)
    for stairs, scores in zip(axes.patches, (usual, *others.values()), strict=True):
        found = stairs.get_data()
        np.testing.assert_allclose(found.edges, edges)
        share = np.array([np.mean((a <= scores) & (scores < b)) for a, b in pairwise(edges)])
        share[-1] += np.mean(scores == edges[-1])
        np.testing.assert_allclose(found.values * np.diff(edges), share, atol=1e-12)
    auroc = [np.mean(each[:, None] > usual) for each in others.values()]
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    assert words == ["usual", f"far, AUROC {auroc[0]:.3f}", f"near, AUROC {auroc[1]:.3f}"]
    far, near = axes.patches[1:]
    assert abs(luminance(far.get_edgecolor()) - luminance(near.get_edgecolor())) > 0.2
    assert far.get_linestyle() != near.get_linestyle()


def test_equal_scores_have_a_density_too(axes):
    plots.strangeness(axes, np.zeros(9), {"same": np.zeros(4)})
    assert "same, AUROC 0.500" in [text.get_text() for text in axes.get_legend().get_texts()]


def test_a_pit_histogram_shows_shares_and_the_band_of_a_uniform_law(axes):
    values = np.random.default_rng(0).beta(2, 2, size=(150, 2))
    plots.pit_histogram(axes, values, bins=8)
    bars, (band,) = axes.patches[:8], axes.patches[8:]
    shares = [np.mean((i / 8 <= values) & (values < (i + 1) / 8)) for i in range(8)]
    np.testing.assert_allclose([bar.get_height() for bar in bars], shares)
    np.testing.assert_allclose([bar.get_x() for bar in bars], np.arange(8) / 8)
    low, high = stats.binom.ppf([0.025, 0.975], 300, 1 / 8) / 300
    np.testing.assert_allclose([band.get_y(), band.get_y() + band.get_height()], [low, high])
    assert axes.get_ylim()[1] > max(shares)


def test_a_coverage_curve_is_drawn_in_order_within_the_band_of_its_number_of_examples(axes):
    levels, observed = np.array([0.9, 0.1, 0.5]), np.array([0.8, 0.2, 0.45])
    plots.coverage_curve(axes, levels, observed, examples=40)
    (line,) = (line for line in axes.lines if len(line.get_xdata()) == 3)
    np.testing.assert_allclose(line.get_xydata(), [[0.1, 0.2], [0.5, 0.45], [0.9, 0.8]])
    corners = with_gid(axes.collections, "chance")[0].get_paths()[0].vertices
    at_half = corners[np.isclose(corners[:, 0], 0.5), 1]
    np.testing.assert_allclose(
        [at_half.min(), at_half.max()], stats.binom.ppf([0.025, 0.975], 40, 0.5) / 40
    )  # fmt: skip


def number_forecast(examples):
    rng = np.random.default_rng(0)
    mean, spread = rng.normal(size=examples), rng.uniform(0.5, 1, size=examples)
    return mean, mean - 1.5 * spread, mean + 1.5 * spread, mean + spread * rng.normal(size=examples)


def test_few_predictions_have_an_interval_each_and_diamonds_outside_it(axes):
    mean, low, high, y = number_forecast(60)
    plots.predicted(axes, mean, low, high, y, level=0.9, unit="kg")
    bars, inside, outside = axes.collections
    np.testing.assert_allclose(
        np.array(bars.get_segments()), np.stack([np.stack([mean, low], 1), np.stack([mean, high], 1)], 1)
    )  # fmt: skip
    missed = (y < low) | (y > high)
    assert missed.any()
    np.testing.assert_allclose(inside.get_offsets(), np.stack([mean, y], 1)[~missed])
    np.testing.assert_allclose(outside.get_offsets(), np.stack([mean, y], 1)[missed])
    assert outside.get_sizes() > 2 * inside.get_sizes()  # another size and shape, not colour alone
    assert len(outside.get_paths()[0].vertices) != len(inside.get_paths()[0].vertices)
    assert f"90 % intervals contain {100 * np.mean(~missed):.1f} % of 60" in texts(axes)[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted (kg)", "true (kg)")


def test_many_predictions_are_counted_in_cells_beside_the_median_interval(axes):
    mean, low, high, y = number_forecast(3000)
    plots.predicted(axes, mean, low, high, y)
    assert axes.collections[0].get_array().sum() == 3000
    window = np.minimum((40 * (mean - mean.min()) / np.ptp(mean)).astype(int), 39)
    used = [i for i in range(40) if np.sum(window == i) >= 10]
    for line, end in zip(with_gid(axes.lines, "interval"), (low, high), strict=True):
        expected = [(np.median(mean[window == i]), np.median(end[window == i])) for i in used]
        np.testing.assert_allclose(line.get_xydata(), expected)


def test_an_image_is_captioned_with_what_was_said_and_what_it_is_and_framed_if_wrong():
    figure, panels = plt.subplots(1, 4)
    images = np.random.default_rng(0).integers(256, size=(3, 5, 4, 3)).astype(np.uint8)
    said, true, probability = np.array([0, 1, 1]), np.array([0, 0, 1]), np.array([0.5, 0.9, 0.9999])
    plots.pictures(panels, images, said, true, probability, names=["cat", "dog"])
    for axes, image in zip(panels, images, strict=False):
        np.testing.assert_array_equal(axes.images[0].get_array(), image)
    captions = [axes.xaxis.label for axes in panels[:3]]
    assert [each.get_text() for each in captions] == [
        "said cat (50 %)\nright", "said dog (90 %)\n× is cat", "said dog (> 99 %)\nright",
    ]  # fmt: skip
    assert [each.get_fontweight() for each in captions] == ["normal", "bold", "normal"]
    assert [axes.spines["left"].get_visible() for axes in panels[:3]] == [False, True, False]
    assert not panels[3].get_visible()
    plots.pictures(panels, images[..., :1], said, true, probability)
    assert panels[0].images[-1].get_clim() == (0, 255)  # the greys of all images are comparable
    assert captions[1].get_text() == "said 1 (90 %)\n× is 0"
    plt.close(figure)


def test_a_density_over_depth_is_that_of_scipy_at_each_depth_divided_by_its_highest(axes):
    depth, values = np.array([0.0, 0.25, 1.0]), np.random.default_rng(0).normal(size=(80, 3, 2)) * [[[0], [2], [3]]]
    plots.densities(axes, depth, values, lines=2)
    mesh = axes.collections[0]
    shares, corners = np.ma.filled(mesh.get_array(), 0), mesh.get_coordinates()
    columns, rows = ((corners[1:, 1:, i] + corners[:-1, :-1, i]) / 2 for i in (0, 1))
    paths = np.concatenate([values[..., 0], values[..., 1]])
    for place in (30, 79):
        at, row = columns[0, place], rows[:, 0]
        between = np.array([np.interp(at, depth, path) for path in paths])
        expected = stats.gaussian_kde(between, "silverman")(row)
        expected /= expected.max()
        np.testing.assert_allclose(shares[:, place], np.where(expected < 0.02, 0, expected), atol=1e-3)
    assert (shares[:, 0] > 0).sum() <= 7  # a point is no wider than its kernel
    first, last = with_gid(axes.lines, "draw")
    np.testing.assert_allclose([first.get_ydata(), last.get_ydata()], [values[0, :, 0], values[-1, :, -1]])


def test_the_colours_of_densities_darken_steadily():
    lightness = np.array([luminance(SINGLE_HUE(share)) for share in np.linspace(0, 1, 50)])
    assert (np.diff(lightness) < -0.005).all()
    assert lightness[0] < 0.93  # a single example is visible on white paper


def test_the_height_of_learning_curves_is_not_that_of_their_start(axes):
    rows = [{"epoch": float(i), "loss": 1000.0 if i < 4 else 2.0 + 0.01 * i} for i in range(101)]
    plots.learning_curves(axes, rows)
    low, high = axes.get_ylim()
    assert low == pytest.approx(2.05 - 0.05 * 0.95)
    assert high == pytest.approx(3.0 + 0.05 * 0.95)
    axes.clear()
    plots.learning_curves(axes, [{"epoch": float(i), "loss": 10.0 - 0.1 * i} for i in range(101)])
    assert axes.get_ylim()[1] > 10


def test_learning_curves_leave_out_rows_without_a_number(axes):
    rows = [
        {"epoch": 0.5, "loss": 3.0}, {"epoch": 1.0, "loss": 2.0, "validation_nll": 2.5},
        {"epoch": 1.5, "loss": None, "validation_nll": None}, {"epoch": 2.0, "loss": float("nan")},
        {"epoch": None, "loss": 7.0}, {"epoch": 3.0, "loss": 1.0, "validation_nll": 1.25},
    ]  # fmt: skip
    plots.learning_curves(axes, rows)
    training, validation = axes.lines
    np.testing.assert_allclose(training.get_xydata(), [[0.5, 3.0], [1.0, 2.0], [3.0, 1.0]])
    np.testing.assert_allclose(validation.get_xydata(), [[1.0, 2.5], [3.0, 1.25]])
    assert sorted(texts(axes)) == ["training 1", "validation 1.25"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("epoch", "loss (nats per example)")
    assert abs(luminance(training.get_color()) - luminance(validation.get_color())) > 0.3
    axes.clear()
    plots.learning_curves(axes, rows[:1], validation_column=None)
    assert texts(axes) == ["training 3"]
    axes.clear()
    plots.learning_curves(axes, [{"step": 4, "accuracy": 0.5}], column="accuracy")
    assert axes.get_xlabel() == "step"


@pytest.mark.parametrize("examples", [10, 5000])
def test_a_split_of_uncertainty_has_a_dot_for_each_example_or_counts_all_of_them(axes, examples):
    samples = np.random.default_rng(0).dirichlet(np.ones(3), size=(5, examples))
    split = metrics.entropy_split(samples)
    plots.uncertainty_split(axes, split.reducible, split.noise)
    (cells,) = axes.collections
    if examples == 10:
        np.testing.assert_allclose(cells.get_offsets(), np.stack([split.noise, split.reducible], 1))
    else:
        assert cells.get_array().sum() == examples
    share = np.sum(np.asarray(split.reducible, float)) / np.sum(np.asarray(split.total, float))
    assert f"{100 * share:.1f} % of the sum is reducible" in texts(axes)[0]


def test_the_history_of_a_sweep_falls_to_the_best_complete_score_and_marks_what_lies_above(axes):
    scores, stopped = np.array([3.0, 2.0, 1.0, 2.5, 1.5, 90.0]), [False, False, True, False, False, False]
    plots.sweep_history(axes, np.arange(6), scores, stopped)
    (best,) = axes.lines
    np.testing.assert_array_equal(best.get_ydata(), [3, 2, 2, 1.5, 1.5, 1.5])  # trial 2 was stopped early
    points = [(tuple(offset), len(each.get_paths()[0].vertices)) for each in axes.collections
              for offset in each.get_offsets()]  # fmt: skip
    assert len(points) == 6
    triangles = [offset for offset, corners in points if corners == 4]
    assert triangles == [(5.0, 3.0)]
    low, high = axes.get_ylim()
    assert low < 1
    assert high < 90


def test_bars_of_importance_have_their_shares_largest_first(axes):
    plots.importances(axes, {"rate": 0.75, "sigma": 0.25})
    assert [bar.get_width() for bar in axes.patches] == [0.25, 0.75]  # from below
    assert [label.get_text() for label in axes.get_yticklabels()] == ["sigma", "rate"]
    assert texts(axes) == ["25 %", "75 %"]


def test_parallel_coordinates_draw_numbers_to_scale_and_better_trials_darker(axes):
    trials = [{"rate": 0.1, "w0": True, "s": 0.1}, {"rate": 0.001, "w0": False}, {"rate": 0.01, "w0": True, "s": 0.5},
              {"rate": 0.05, "w0": True, "s": 0.4}]  # fmt: skip
    plots.parallel_coordinates(axes, trials, np.array([4.0, 1.0, 2.0, 3.0]), logarithmic=["rate"])
    lines = {line.get_gid(): line for line in axes.lines}
    heights = {i: np.asarray(lines[f"density-trial-{i}"].get_ydata()) for i in range(4)}
    low, middle, high = heights[1][0], heights[2][0], heights[0][0]
    assert middle == pytest.approx((low + high) / 2)  # of 0.001, 0.01 and 0.1
    assert heights[0][1] == heights[2][1] != heights[1][1]
    assert heights[1][2] < 0 < heights[0][2]  # the trial without s passes below its axis
    assert heights[0][3] > heights[3][3] > heights[2][3] > heights[1][3]
    shades = [sum(to_rgb(lines[f"density-trial-{i}"].get_color())) for i in (1, 2, 3, 0)]
    assert shades == sorted(shades)
    widths = [lines[f"density-trial-{i}"].get_linewidth() for i in (1, 2, 3, 0)]
    assert widths == sorted(widths, reverse=True)
    assert [i for i in range(4) if lines[f"density-trial-{i}"].get_marker() == "o"] == [1]


def test_a_title_given_before_stays_and_every_axis_is_labelled(axes):
    axes.set_title("CIFAR-10", loc="left")
    plots.pit_histogram(axes, np.linspace(0.1, 0.9, 9))
    assert axes.get_title(loc="left") == "CIFAR-10"
    assert axes.get_xlabel()
    assert axes.get_ylabel()


def test_a_share_is_written_as_all_or_nothing_only_if_it_is():
    assert [in_percent(share) for share in (0.0, 1e-9, 0.125, 0.9999, 1.0)] == [
        "0 %", "< 0.1 %", "12.5 %", "> 99.9 %", "100 %",
    ]  # fmt: skip


ONES, NAN, SAMPLES = np.ones(3), np.array([1.0, np.nan, 1.0]), np.full((1, 3, 2), 0.5)
IMAGES, LABELS = np.zeros((3, 2, 2), np.uint8), np.zeros(3, int)
BAD = {
    "labels of others": (lambda a: plots.reliability_diagram(a, SAMPLES, np.zeros(2, int)), "labels have shape (2,)"),
    "no bins": (lambda a: plots.reliability_diagram(a, SAMPLES, LABELS, bins=0), "bins=0"),
    "NaN uncertainty": (lambda a: plots.risk_coverage_curve(a, NAN, ONES, label=""), "uncertainty holds 1 NaN"),
    "errors of others": (lambda a: plots.risk_coverage_curve(a, ONES, np.ones(2), label=""), "errors has shape (2,)"),
    "no runs": (lambda a: plots.severity(a, {}), "scores={}"),
    "no severity": (lambda a: plots.severity(a, {"b": []}), "scores['b'] holds no severity"),
    "an empty row": (lambda a: plots.severity(a, {"b": [ONES, np.ones(0)]}), "scores['b'][1] has shape (0,)"),
    "no sets": (lambda a: plots.strangeness(a, ONES, {}), "others={}"),
    "an empty set": (lambda a: plots.strangeness(a, ONES, {"b": np.ones(0)}), "others['b'] has shape (0,)"),
    "an infinite score": (lambda a: plots.strangeness(a, np.array([np.inf]), {"b": ONES}), "usual holds 1 NaN or inf"),
    "a PIT of 2": (lambda a: plots.pit_histogram(a, 2 * ONES), "values holds 2.0, outside [0, 1]"),
    "no PIT": (lambda a: plots.pit_histogram(a, np.ones(0)), "values has shape (0,)"),
    "levels in percent": (lambda a: plots.coverage_curve(a, 95 * ONES, ONES, examples=3), "levels holds 95.0"),
    "two levels": (lambda a: plots.coverage_curve(a, np.ones(2), ONES, examples=3), "levels has 2, observed has 3"),
    "no values": (lambda a: plots.coverage_curve(a, ONES, ONES, examples=0), "examples=0"),
    "ends in another order": (lambda a: plots.predicted(a, ONES, ONES, 0 * ONES, ONES), "lower=1 is above upper=0"),
    "a column": (lambda a: plots.predicted(a, ONES[:, None], ONES, ONES, ONES), "mean has shape (3, 1)"),
    "a level of 95": (lambda a: plots.predicted(a, ONES, ONES, ONES, ONES, level=95), "level=95"),
    "few panels": (lambda a: plots.pictures([a], IMAGES, LABELS, LABELS, ONES), "3 images, 3 answers and 1 panels"),
    "float images": (lambda a: plots.pictures([a] * 3, 1.0 * IMAGES, LABELS, LABELS, ONES), "dtype float64"),
    "a class without name": (
        lambda a: plots.pictures([a] * 3, IMAGES, LABELS + 2, LABELS, ONES, names=["a", "b"]), "holds 2.0",
    ),
    "depth of others": (lambda a: plots.densities(a, ONES, np.ones((5, 4))), "shape (5, 4) and depth has 3"),
    "depth backwards": (lambda a: plots.densities(a, -np.arange(3.0), np.ones((5, 3))), "not ascending at index 1"),
    "a column unknown": (lambda a: plots.learning_curves(a, [{"epoch": 1, "kl": 2.0}]), "choose from kl"),
    "no rows": (lambda a: plots.learning_curves(a, []), "choose from none"),
    "marks of others": (lambda a: plots.sweep_history(a, ONES, ONES, [True]), "3 scores and 1 marks"),
    "no trials": (lambda a: plots.sweep_history(a, np.ones(0), np.ones(0), []), "numbers has shape (0,)"),
    "no parameters": (lambda a: plots.importances(a, {}), "shares={} holds no parameter"),
    "scores of others": (lambda a: plots.parallel_coordinates(a, [{"a": 1}], ONES), "1 trials and 3 scores"),
    "negative noise": (lambda a: plots.uncertainty_split(a, ONES, -ONES), "noise holds -1.0"),
    "no examples": (lambda a: plots.uncertainty_split(a, np.ones(0), np.ones(0)), "noise has shape (0,)"),
}  # fmt: skip


@pytest.mark.usefixtures("_as_a_user")
@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_drawn_is_refused_in_words(name, axes):
    call, words = BAD[name]
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        call(axes)
    assert "\n" not in str(error.value)
    assert not [*axes.lines, *axes.patches, *axes.collections, *axes.images]  # nothing is left half drawn
