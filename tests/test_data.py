"""The catalogue, toy problems, held-out parts, standardisation, and random views of images."""

import re
import tracemalloc

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from scipy import ndimage, optimize, stats

from sdebnn.data import (
    CATALOGUE,
    Entry,
    Part,
    RandomView,
    SelectedRows,
    Standardiser,
    TrainingInputs,
    find,
    held_out,
    load,
    toy,
)

KEY = jax.random.key(0)

# name: the truth and the noise, as the docstrings state them; the range
REGRESSIONS = {
    "wave": (lambda x: np.sin(2.5 * x) * np.exp(-0.1 * x**2) + 0.3 * x, lambda x: 0.1, (-2, 2)),
    "ripple": (lambda x: np.sin(1.5 * x) + 0.2 * x, lambda x: 0.2, (-5, 5)),
    "cubic": (lambda x: x**3, lambda x: 3.0, (-4, 4)),
    "step": (lambda x: np.where(x < 0, 0.0, 1.0), lambda x: 0.1, (-1, 1)),
    "uneven": (lambda x: np.sin(2 * x), lambda x: 0.05 + 0.45 * (x + 3) / 6, (-3, 3)),
    "gap": (lambda x: np.cos(4 * x + 0.8), lambda x: 0.1, (-1, 1)),
    "two_sides": (lambda x: np.sin(3 * x) + 0.3 * x, lambda x: 0.1, (-2, 2)),
}


@pytest.mark.parametrize("name", REGRESSIONS)
def test_a_regression_is_its_mean_plus_noise_of_the_stated_size(name):
    mean, std, (low, high) = REGRESSIONS[name]
    x, y = getattr(toy, name)(4000, key=KEY)
    assert x.shape == y.shape == (4000, 1)
    inputs = np.asarray(x, dtype=float)
    noise = (np.asarray(y, dtype=float) - mean(inputs)) / std(inputs)  # standard normal
    assert abs(noise.mean()) < 4 / np.sqrt(4000)
    assert abs(noise.std() - 1) < 4 / np.sqrt(2 * 4000)
    for feature in (inputs, np.abs(inputs)):  # the noise does not depend on the inputs
        assert abs(np.corrcoef(feature[:, 0], noise[:, 0])[0, 1]) < 4 / np.sqrt(4000)
    width = high - low
    assert low <= inputs.min() < low + 0.01 * width
    assert high - 0.01 * width < inputs.max() <= high
    np.testing.assert_allclose(getattr(toy, f"{name}_mean")(x), mean(inputs), atol=1e-4)
    again, other = getattr(toy, name)(4000, key=KEY), getattr(toy, name)(4000, key=jax.random.key(1))
    assert np.array_equal(again[1], y)
    assert not np.array_equal(other[1], y)


@pytest.mark.parametrize("name", ["wave", "ripple"])
def test_the_mean_is_not_monotonic(name):
    low, high = REGRESSIONS[name][2]
    slope = np.diff(getattr(toy, f"{name}_mean")(jnp.linspace(low, high, 100)))
    assert slope.min() < 0 < slope.max()


def test_the_gap_is_empty_and_its_sides_are_even():
    x, _ = toy.gap(1001, key=KEY)
    assert not np.any((np.asarray(x) > -0.7 + 1e-6) & (np.asarray(x) < 0.5))
    assert np.sum(np.asarray(x) < 0) == 501
    x, _ = toy.two_sides(1001, key=KEY)
    assert np.abs(np.asarray(x)).min() >= 0.7
    assert np.sum(np.asarray(x) < 0) == 500


def test_moons_without_noise_are_two_half_circles():
    x, label = (np.asarray(a) for a in toy.moons(500, noise=0.0, key=KEY))
    assert np.issubdtype(label.dtype, np.integer)
    assert np.bincount(label).tolist() == [250, 250]
    first, second = x[label == 0], x[label == 1]
    np.testing.assert_allclose(np.hypot(*first.T), 1, atol=1e-5)
    np.testing.assert_allclose(np.hypot(*(second - [1, 0.5]).T), 1, atol=1e-5)
    assert first[:, 1].min() >= -1e-5
    assert second[:, 1].max() <= 0.5 + 1e-5


@pytest.mark.parametrize("arms", [2, 3])
def test_the_arms_of_a_spiral_are_rotations_of_one_arm(arms):
    x, label = (np.asarray(a, dtype=float) for a in toy.spirals(600, arms=arms, noise=0.0, key=KEY))
    assert np.bincount(label.astype(int)).tolist() == [600 // arms] * arms
    radius = np.hypot(*x.T)
    assert 0.1 - 1e-5 <= radius.min() < 0.15 < 0.95 < radius.max() <= 1 + 1e-5
    turns = (radius - 0.1) / 0.9 + label / arms
    np.testing.assert_allclose(x[:, 0] + 1j * x[:, 1], radius * np.exp(2j * np.pi * turns), atol=1e-4)


@pytest.mark.parametrize("make", [toy.moons, toy.spirals])
def test_noise_has_the_given_standard_deviation(make):
    clean, blurred = make(4000, noise=0.0, key=KEY)[0], make(4000, noise=0.3, key=KEY)[0]
    assert abs(float(np.std(blurred - clean)) - 0.3) < 4 * 0.3 / np.sqrt(2 * 8000)


def parabola(request):
    """A reader as a user writes one, outside the package."""
    x = np.random.default_rng(request.seed).uniform(-1, 1, (30, 1)).astype(np.float32)
    return Part(x[:20], x[:20] ** 2), Part(x[20:], x[20:] ** 2)


def test_a_row_defined_outside_the_package_is_loaded_like_a_name():
    data = load(Entry("parabola", parabola, "A parabola.", shape=(1,)), seed=3)
    assert (data.name, data.classes) == ("parabola", None)
    assert np.array_equal(data.train.y, data.train.x**2)
    assert not np.array_equal(load(Entry("parabola", parabola, "", shape=(1,)), seed=4).train.x, data.train.x)
    with pytest.raises(ValueError, match=r"parabola returned examples of shape \(1,\) .* declares \(2,\)"):
        load(Entry("parabola", parabola, "", shape=(2,)))


def test_the_data_sets_that_need_no_files_have_the_declared_shapes_and_classes():
    entries = [entry for entry in CATALOGUE.values() if entry.built_in]
    assert len(entries) >= 10
    for entry in entries:
        data = load(entry.name)
        assert data.train.x.shape[1:] == data.test.x.shape[1:] == entry.shape
        if entry.classes is None:
            assert data.train.y.shape == (len(data.train.x), 1)
        else:
            assert set(data.test.y.tolist()) == set(range(len(entry.classes)))


def test_a_name_selects_a_row_and_its_options_and_anything_else_is_a_path(tmp_path):
    assert find("uci/concrete/3") == (CATALOGUE["uci"], ("concrete", "3"))
    assert find("digits") == (CATALOGUE["digits"], ())
    for path in ("digits/1", "uci/concrete/3/4", "nonsense", str(tmp_path)):
        assert find(path) is None
    with pytest.raises(ValueError, match=r"data='nonsense' is unknown: choose one of toy, .*uci/NAME/SPLIT, a \.csv"):
        load("nonsense")
    with pytest.raises(ValueError, match="holds neither one folder of pictures for each class, nor x_train"):
        load(str(tmp_path))


def test_a_standardiser_can_be_undone_and_gives_constant_columns_the_given_spread():
    random = np.random.default_rng(0)
    columns = random.normal(3, 2, (100, 4)) * [1e-200, 1e200, 1, 0] + [0, 0, 1.7e9, 0.1]
    for weight in (None, random.uniform(0, 2, 100)):
        scaling = Standardiser.of(columns, weight)
        z = scaling.to(columns)
        np.testing.assert_allclose(np.average(z, axis=0, weights=weight), 0, atol=1e-6)
        np.testing.assert_allclose(np.average(z**2, axis=0, weights=weight), [1, 1, 1, 0], rtol=1e-6)
        np.testing.assert_allclose(scaling.undo(z), columns, rtol=1e-12)
        assert scaling.spread[3] == 1
    assert np.abs(scaling.clipped(columns + 1e250)).max() == 1e6
    assert np.all(Standardiser.of(columns, constant=np.inf).to(columns + 7)[:, 3] == 0)


def test_a_standardiser_of_batches_is_that_of_all_rows():
    columns = np.random.default_rng(0).normal(3, 2, (100, 2)) * [1, 0]
    np.testing.assert_allclose(
        Standardiser.of_batches(np.array_split(columns, 7)), Standardiser.of(columns), rtol=1e-12
    )


@pytest.fixture
def part(tmp_path):
    """A hundred examples on disk."""
    x, y = np.arange(300, dtype=np.float32).reshape(100, 3), np.arange(100, dtype=np.int32)
    np.save(tmp_path / "x.npy", x)
    return Part(np.load(tmp_path / "x.npy", mmap_mode="r"), y)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.25, 0.99])
def test_holding_out_partitions_the_examples(share, part):
    for whole in (part, Part(np.array(part.x), part.y)):
        train, validation = held_out(whole, share, seed=3)
        assert len(validation.x) == len(validation.y) == round(100 * share)
        assert sorted([*train.y, *validation.y]) == list(range(100))
        for x, y in (train, validation):
            assert np.array_equal(np.asarray(x), part.x[y])  # each input still has its own target
        again, other = held_out(whole, share, seed=3), held_out(whole, share, seed=4)
        assert np.array_equal(again[1].y, validation.y)
        assert not np.array_equal(other[1].y, validation.y)


def test_selected_rows_are_indexed_like_an_array(part):
    train, _ = held_out(part, seed=0)
    rows, copy = train.x, np.asarray(train.x)
    assert isinstance(rows, SelectedRows)
    assert (rows.shape, rows.dtype, rows.ndim, len(rows)) == (copy.shape, copy.dtype, 2, 90)
    for key in (0, -1, slice(5, 50, 7), np.array([3, 3, 89]), [2, 1], copy[:, 0] % 2 == 0, slice(0)):
        assert np.array_equal(rows[key], copy[key])
    twice = held_out(train, seed=1)[1]
    assert twice.x.array is part.x
    assert np.array_equal(np.asarray(twice.x), part.x[twice.y])


def test_the_origin_of_a_selected_row_is_its_row_in_the_file(part):
    train, validation = held_out(part, 0.3, seed=0)
    again = held_out(train, 0.5, seed=1)[1]
    for rows, numbers in ((train.x, train.y), (validation.x, validation.y), (again.x, again.y)):
        for key in (0, -1, slice(5, 20, 7), [3, 3, 8], np.arange(len(rows)) % 2 == 0, slice(0)):
            found = rows.origin(key)
            assert found.ndim == 1
            assert np.array_equal(found, np.atleast_1d(numbers[key]))  # y counts the rows of the file
            assert np.array_equal(part.x[found], np.atleast_2d(rows[key]))


def test_splitting_an_array_larger_than_memory_reads_only_the_selected_rows(tmp_path):
    path, examples, width = tmp_path / "x", 20_000, 2**20
    with path.open("wb") as stream:
        stream.truncate(examples * width)  # 20 GB of a sparse file
    whole = Part(np.memmap(path, np.uint8, "r", shape=(examples, width)), np.zeros(examples, np.int32))
    tracemalloc.start()
    train, validation = held_out(whole, seed=0)
    assert train.x[[0, 5, 17_000]].shape == (3, width)
    assert validation.x.shape == (2000, width)
    assert tracemalloc.get_traced_memory()[1] < 5 * width
    tracemalloc.stop()


IMAGES = np.random.default_rng(0).integers(0, 256, (1000, 9, 12, 2), np.uint8)


def views_of(images, shift, mode):
    """Every view there can be, by brute force: "shift shift mirror" of images."""
    padded = np.pad(images, ((0, 0), (shift, shift), (shift, shift), (0, 0)), mode=mode)
    height, width = images.shape[1:3]
    ways = range(2 * shift + 1)
    crops = np.array([[padded[:, i : i + height, j : j + width] for j in ways] for i in ways])
    return np.stack([crops, crops[:, :, :, :, ::-1]], axis=2)


@pytest.mark.parametrize(("padding", "mode"), [("reflect", "reflect"), ("fill", "constant")])
@pytest.mark.parametrize(
    ("shift", "flip", "dtype"), [(1, True, np.float32), (2, False, np.uint8), (4, True, np.uint8), (0, True, np.uint8)]
)
def test_each_view_is_a_crop_and_all_crops_are_equally_likely(shift, flip, dtype, padding, mode):
    images = IMAGES.astype(dtype)
    view = RandomView(shift, flip=flip, padding=padding)
    views = np.asarray(jax.jit(lambda images, key: view(images, key=key))(images, KEY))
    assert views.dtype == dtype
    hits = (views_of(images, shift, mode) == views).all((-1, -2, -3))
    assert np.all(hits.sum((0, 1, 2)) == 1)
    frequency = hits.mean(-1)
    assert flip or frequency[:, :, 1].sum() == 0
    found = frequency if flip else frequency[:, :, :1]
    expected = 1 / found.size
    assert np.all(np.abs(found - expected) < 5 * np.sqrt(expected * (1 - expected) / len(images)))


def test_a_view_without_shift_flip_or_cutout_is_the_identity():
    assert np.array_equal(RandomView(0)(IMAGES, key=KEY), IMAGES)


def test_a_key_determines_the_view():
    view = RandomView(2, flip=True, cutout=2)
    draw = jax.jit(lambda key: view(IMAGES, key=key))
    first, again, other = (np.asarray(draw(key)) for key in (KEY, KEY, jax.random.key(1)))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_cutout_of_one_pixel_is_uniform_and_changes_nothing_else():
    images = np.full((6000, 6, 5, 2), 9, np.uint8)
    holes = np.asarray(RandomView(0, cutout=1, fill=(3, 7.4))(images, key=KEY)) != 9
    assert np.all(holes.sum((1, 2, 3)) == 2)
    frequency = holes[..., 0].mean(0)
    assert np.all(np.abs(frequency - 1 / 30) < 5 * np.sqrt(1 / 30 * 29 / 30 / 6000))


@pytest.mark.parametrize("padding", ["reflect", "fill"])
def test_turns_and_stretches_are_affine_maps_of_the_plane_and_uniform_in_their_ranges(padding):
    # An image of its own coordinates shows from where each pixel was taken: interpolation of it is exact.
    height, width, examples = 21, 25, 4000
    at = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij"), -1).astype(np.float32)
    view = RandomView(1, turn=30, stretch=0.2, padding=padding, fill=-1)
    taken = np.asarray(view(np.broadcast_to(at, (examples, *at.shape)), key=KEY), float)
    middle = np.s_[:, 6:15, 8:17]  # pixels that no such view takes from beyond the border
    here = at[middle[1:]].reshape(-1, 2) - [(height - 1) / 2, (width - 1) / 2]
    design = np.column_stack([here, np.ones(len(here))])
    taken = taken[middle].reshape(examples, -1, 2)
    found = np.linalg.pinv(design) @ taken
    assert np.abs(design @ found - taken).max() < 1e-3
    down, right = found[:, 0], found[:, 1]  # where a step down, and a step to the right, lead in the image
    assert np.abs((down * right[:, :2]).sum(-1)).max() < 1e-3  # they stay at right angles
    angles = np.degrees(np.arctan2(down[:, 1], down[:, 0]))
    for values, bound in [(angles, 30), (1 / np.hypot(*down.T) - 1, 0.2), (1 / np.hypot(*right.T) - 1, 0.2)]:
        assert stats.kstest(values, stats.uniform(-bound, 2 * bound).cdf).pvalue > 1e-3


def test_pixels_of_a_turned_image_are_interpolated_and_those_beyond_the_border_reflected():
    image = np.random.default_rng(1).uniform(0, 255, (1, 10, 13, 1)).astype(np.float32)
    whole, rounded = (np.asarray(RandomView(0, turn=45)(each, key=KEY)) for each in (image, np.rint(image).astype(int)))
    assert np.abs(whole - rounded).max() <= 1  # whole numbers are rounded
    row, column = np.mgrid[:10, :13] - np.array([4.5, 6.0])[:, None, None]

    def turned(angle):
        where = [4.5 + np.cos(angle) * row - np.sin(angle) * column, 6 + np.sin(angle) * row + np.cos(angle) * column]
        return ndimage.map_coordinates(image[0, ..., 0], where, order=1, mode="mirror")

    found = optimize.differential_evolution(
        lambda angle: np.abs(turned(angle[0]) - whole[0, ..., 0]).mean(), [(-np.pi / 4, np.pi / 4)], seed=0, tol=1e-10
    )
    assert found.fun < 0.01


def test_a_half_turn_of_any_image_stays_inside_its_values():
    views = np.asarray(RandomView(8, flip=True, turn=180, stretch=0.5, cutout=3, fill=7)(IMAGES, key=KEY))
    assert views.dtype == np.uint8
    assert views.shape == IMAGES.shape


@pytest.mark.parametrize("side", [2, 3, 8])
def test_a_cutout_is_a_square_of_the_given_colour_around_a_pixel(side):
    views = np.asarray(RandomView(0, cutout=side, fill=(3, 200))(IMAGES, key=KEY))
    centred = {}
    for i in range(9):
        for j in range(12):
            made = IMAGES.copy()
            top, left = i - side // 2, j - side // 2
            made[:, max(top, 0) : top + side, max(left, 0) : left + side] = (3, 200)
            centred[i, j] = (made == views).all((1, 2, 3))
    assert np.all(np.any(list(centred.values()), axis=0))


BAD = {
    "examples": (lambda: toy.cubic(0, key=KEY), "examples=0", "at least 1"),
    "key": (lambda: toy.gap(3, key=3), "key=3", "jax.random.key(0)"),
    "noise": (lambda: toy.moons(3, noise=-1.0, key=KEY), "noise=-1.0", "zero or more"),
    "arms": (lambda: toy.spirals(3, arms=1, key=KEY), "arms=1", "at least 2"),
    "share of all": (lambda: held_out(Part(IMAGES, IMAGES), 1.0, seed=0), "share=1.0 of 1000", "such as 0.1"),
    "share of too few": (lambda: held_out(Part(IMAGES[:3], IMAGES[:3]), 0.1, seed=0), "share=0.1 of 3", "both"),
    "share by name": (
        lambda: held_out(Part(IMAGES, IMAGES), 1.5, seed=0, name="validation"),
        "validation=1.5 of",
        "0.1",
    ),
    "share a word": (lambda: held_out(Part(IMAGES, IMAGES), "all", seed=0), "share='all'", "between 0 and 1"),
    "seed": (lambda: held_out(Part(IMAGES, IMAGES), seed=-1), "seed=-1", "at least 0"),
    "shift": (lambda: RandomView(-1), "shift=-1", "at least 0"),
    "flip": (lambda: RandomView(flip=1), "flip=1", "True or False"),
    "cutout": (lambda: RandomView(cutout=2.5), "cutout=2.5", "whole number"),
    "turn": (lambda: RandomView(turn=-3), "turn=-3", "from 0 to 180"),
    "stretch": (lambda: RandomView(stretch="wide"), "stretch='wide'", "from 0 to 0.5"),
    "padding": (lambda: RandomView(padding="zero"), "padding='zero'", "'fill'"),
    "fill": (lambda: RandomView(fill=float("nan")), "fill[0]=nan", "finite"),
    "fill of three": (lambda: RandomView(fill=(1, 2, 3))(IMAGES, key=KEY), "3 values for 2 channels", "one for each"),
    "fill of no byte": (lambda: RandomView(fill=300)(IMAGES, key=KEY), "fill=(300,)", "0 to 255"),
    "shift beyond": (lambda: RandomView(9)(IMAGES, key=KEY), "shift=9", "smaller"),
    "one image": (lambda: RandomView(1)(IMAGES[0], key=KEY), "(9, 12, 2)", "(examples, height, width, channels)"),
    "key of a view": (lambda: RandomView(1)(IMAGES, key=0), "key=0", "jax.random.key(0)"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_one_line(case, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as a user has it
    call, value, remedy = BAD[case]
    with pytest.raises(ValueError, match=re.escape(value)) as caught:
        call()
    assert remedy in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_in_another_unit_is_unlike_the_training_inputs_and_more_rows_of_the_same_kind_are_not():
    rng = np.random.default_rng(0)
    rows = rng.normal((1.0, 300.0), (1.0, 20.0), (400, 2))
    known = TrainingInputs.table(Standardiser.of(rows[:200]))
    known.warn_if_unlike(rows[200:])
    known.warn_if_unlike(1000 * rows[:29])  # too few to judge
    with pytest.warns(UserWarning, match="column 1 has mean -?1[0-9.]* and spread 1[0-9.]* .* the units and the order"):
        known.warn_if_unlike(rows[200:] * (1, 2))
    with pytest.warns(UserWarning, match="column 0 .* the units and the order"):
        known.warn_if_unlike(rows[200:, ::-1])


def test_images_scaled_to_fractions_are_unlike_training_inputs_of_bytes():
    images = np.random.default_rng(0).integers(0, 256, (4, 5, 5, 1)).astype(np.uint8)
    known = TrainingInputs.images((0.5,), (0.29,))
    known.warn_if_unlike(images)
    with pytest.warns(UserWarning, match="channel 0 .* The net takes bytes, 0 to 255"):
        known.warn_if_unlike(images / 255)
