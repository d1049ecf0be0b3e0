"""Corruptions against brute force, SciPy and Pillow; noises in distribution; cells on disk; the published table."""

import colorsys
import hashlib
import io
import itertools
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage, stats

from sdebnn.corruptions import (
    NAMES,
    SEVERITIES,
    blur,
    cached,
    corrupted,
    digital,
    geometry,
    noise,
    published,
    spatter,
    storage,
    weather,
)
from sdebnn.corruptions.frost_textures import textures
from sdebnn.corruptions.pixels import length_scale
from sdebnn.data import CATALOGUE, home, is_here, load

# Mean |Δpixel| over the first 1,000 test images of CIFAR-10 at severities 1 to 5, from the published generator.
REFERENCE = {
    "gaussian_noise": (8.0, 11.9, 15.7, 17.7, 19.5),
    "shot_noise": (5.9, 8.3, 13.1, 15.0, 18.3),
    "impulse_noise": (1.3, 2.6, 3.9, 6.4, 8.9),
    "defocus_blur": (1.4, 3.3, 5.0, 6.5, 9.3),
    "glass_blur": (11.1, 11.3, 11.1, 18.1, 17.3),
    "motion_blur": (7.0, 10.4, 13.0, 13.2, 15.2),
    "zoom_blur": (8.8, 10.3, 12.3, 14.4, 16.3),
    "snow": (10.6, 23.6, 25.3, 37.0, 51.6),
    "frost": (30.3, 44.9, 49.1, 45.2, 43.5),
    "fog": (10.9, 21.6, 27.7, 32.6, 38.7),
    "brightness": (10.0, 20.3, 30.1, 39.4, 55.9),
    "contrast": (10.7, 21.4, 25.6, 29.9, 36.3),
    "elastic_transform": (21.8, 19.8, 17.8, 16.4, 13.5),
    "pixelate": (1.8, 3.4, 4.1, 6.2, 8.6),
    "jpeg_compression": (5.3, 6.6, 7.0, 7.5, 8.1),
    "speckle_noise": (5.7, 9.4, 11.1, 14.7, 18.2),
    "gaussian_blur": (1.3, 4.9, 6.3, 7.4, 9.5),
    "spatter": (1.0, 2.7, 6.8, 3.0, 5.1),
    "saturate": (11.5, 14.9, 8.0, 20.3, 29.5),
}
WITHOUT_CHANCE = (
    "defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression", "gaussian_blur", "saturate",
)  # fmt: skip
KEY = jax.random.key(0)
ROUNDING = 5e-3  # of float32 arithmetic, in units of a byte


def photographs(count, height, width, channels):
    """Smooth random images with a few edges."""
    random = np.random.default_rng(0)
    smooth = ndimage.gaussian_filter(random.normal(size=(count, height, width, channels)), (0, 2, 2, 0), mode="wrap")
    edges = np.sign(ndimage.gaussian_filter(random.normal(size=(count, height, width, 1)), (0, 3, 3, 0)))
    return np.clip(128 + 400 * smooth + 40 * edges, 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def images():
    return photographs(4, 32, 32, 3)


def on_device(parameters):
    return jax.tree.map(jnp.asarray, parameters)


def assert_truncated(result, exact):
    """A result is the truncation of exact values, up to the rounding of float32."""
    exact = np.clip(exact, 0, 255)
    assert np.all((np.floor(exact - ROUNDING) <= result) & (result <= np.floor(exact + ROUNDING)))


# Blurs.


@pytest.mark.parametrize("severity", SEVERITIES)
def test_gaussian_blur_is_that_of_scipy(images, severity):
    sigma = blur.GAUSSIAN_SIGMA[severity - 1]
    exact = ndimage.gaussian_filter(images.astype(float), (0, sigma, sigma, 0), mode="nearest", truncate=4)
    assert_truncated(corrupted(images, "gaussian_blur", severity), exact)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_defocus_is_a_convolution_with_a_smoothed_disk(images, severity):
    radius, sigma = blur.DEFOCUS[severity - 1]
    at = np.arange(-8, 9)
    disk = (at[:, None] ** 2 + at**2 <= radius**2).astype(float)
    smooth = np.exp(-0.5 * (np.arange(-1, 2) / sigma) ** 2)
    kernel = ndimage.convolve(disk / disk.sum(), np.outer(smooth, smooth) / smooth.sum() ** 2, mode="constant")
    exact = ndimage.convolve(images.astype(float), kernel[None, :, :, None], mode="mirror")
    assert_truncated(corrupted(images, "defocus_blur", severity), exact)


@pytest.mark.parametrize("severity", [1, 5])
def test_glass_copies_pixels_one_after_the_other_from_the_last_to_the_first(images, severity):
    sigma, passes = blur.GLASS[severity - 1]
    image = images[0].astype(float)
    pixels = np.floor(ndimage.gaussian_filter(image, (sigma, sigma, 0), mode="nearest", truncate=4) + 1e-3)
    for i in range(passes):
        down, right = np.asarray(
            jax.random.bernoulli(jax.random.fold_in(KEY, i), jnp.float32(0.5), (2, 32, 32))
        ).astype(int)
        for h, w in itertools.product(range(31, 1, -1), repeat=2):
            pixels[h, w] = pixels[h - down[h, w], w - right[h, w]]
    exact = ndimage.gaussian_filter(pixels, (sigma, sigma, 0), mode="nearest", truncate=4)
    found = blur.glass_blur(jnp.float32(image), on_device(blur.glass_parameters(32, 32, severity)), key=KEY)
    np.testing.assert_allclose(found, exact, atol=1e-3)


@pytest.mark.parametrize("degrees", [-130.0, -45.0, 0.0, 17.0])
def test_motion_blur_follows_a_ray_from_each_pixel(images, degrees):
    image, kernel = images[0].astype(float), geometry.motion_kernel(6, 2.0, 17)
    assert np.count_nonzero(kernel) == 13
    np.testing.assert_allclose(kernel[:13], stats.norm.pdf(np.arange(13), scale=2) / kernel.sum() /
                               stats.norm.pdf(np.arange(13), scale=2).sum(), rtol=1e-5)  # fmt: skip
    exact = np.zeros_like(image)
    for y, x, i in itertools.product(range(32), range(32), range(13)):
        down, right = i * np.sin(np.deg2rad(degrees)), i * np.cos(np.deg2rad(degrees))
        row, column = (int(np.clip(start + np.ceil(move - 0.5), 0, 31)) for start, move in ((y, down), (x, right)))
        exact[y, x] += kernel[i] * image[row, column]
    found = geometry.motion_blurred(jnp.float32(image), jnp.asarray(kernel), jnp.float32(degrees))
    np.testing.assert_allclose(found, exact, atol=1e-3)


@pytest.mark.parametrize("severity", [1, 5])
def test_zoom_blur_is_the_mean_of_magnifications_by_scipy(severity):
    images = photographs(2, 32, 24, 3)
    layers = [images.astype(float)]
    for factor in np.arange(1, blur.ZOOM[severity - 1], 0.01):
        crop = [int(np.ceil(size / factor)) for size in (32, 24)]
        top, left = ((size - part) // 2 for size, part in zip((32, 24), crop, strict=True))
        middle = images[:, top : top + crop[0], left : left + crop[1]].astype(float)
        zoomed = ndimage.zoom(middle, (1, factor, factor, 1), order=1)
        top, left = (zoomed.shape[1] - 32) // 2, (zoomed.shape[2] - 24) // 2
        layers.append(zoomed[:, top : top + 32, left : left + 24])
    assert_truncated(corrupted(images, "zoom_blur", severity), np.mean(layers, axis=0))


# Noises, each with statistics within four standard errors.


@pytest.mark.parametrize("name", ["gaussian_noise", "speckle_noise"])
def test_gaussian_and_speckle_noise_have_the_published_spread(name):
    sigmas, size = {"gaussian_noise": (noise.GAUSSIAN_SIGMA, 255), "speckle_noise": (noise.SPECKLE_SIGMA, 100)}[name]
    flat = np.full((10, 32, 32, 3), 100, np.uint8)
    for severity in (1, 5):
        residual = corrupted(flat, name, severity).astype(float) + 0.5 - 100  # truncation takes half a byte on average
        spread = sigmas[severity - 1] * size
        assert abs(residual.mean()) < 4 * spread / np.sqrt(flat.size)
        assert abs(residual.var() - 1 / 12 - spread**2) < 4 * spread**2 * np.sqrt(2 / flat.size)
        assert abs(np.corrcoef(residual[..., 0].ravel(), residual[..., 1].ravel())[0, 1]) < 4 / np.sqrt(10240)


@pytest.mark.parametrize(("severity", "value"), [(1, 200), (3, 90), (5, 2), (5, 255)])
def test_shot_noise_is_poisson(severity, value):
    rate = noise.SHOT_RATE[severity - 1]
    flat = np.full((10, 32, 32, 3), value, np.uint8)
    found = np.bincount(corrupted(flat, "shot_noise", severity).ravel(), minlength=256) / flat.size
    n = np.arange(1000)
    exact = np.bincount((np.minimum(n / rate, 1) * 255).astype(int), stats.poisson(rate * value / 255).pmf(n), 256)
    assert abs(exact.sum() - 1) < 1e-9
    assert np.all(abs(found - exact) <= 5 * np.sqrt(exact * (1 - exact) / flat.size) + 1e-4)
    assert not corrupted(np.zeros((1, 8, 8, 1), np.uint8), "shot_noise", severity).any()


def test_impulse_noise_is_salt_and_pepper_in_equal_shares():
    flat = np.full((10, 32, 32, 3), 100, np.uint8)
    for severity, amount in zip(SEVERITIES, noise.IMPULSE_AMOUNT, strict=True):
        found = corrupted(flat, "impulse_noise", severity)
        error = np.sqrt(amount / 2 / flat.size)
        assert set(np.unique(found)) == {0, 100, 255}
        for value in (0, 255):
            assert abs((found == value).mean() - amount / 2) < 4 * error


# Weather.


def test_snow_is_symmetric_on_black_and_has_the_expected_mass():
    black = np.zeros((300, 32, 32, 3), np.uint8)
    for severity in (1, 2):
        loc, spread, zoom, threshold, *_, mix = weather.SNOW[severity - 1]
        assert zoom == 1
        found = corrupted(black, "snow", severity).astype(float)
        assert np.array_equal(found, found[:, ::-1, ::-1])
        values = np.clip(np.linspace(-2, 3, 50001), 0, 1)
        weights = stats.norm.pdf(np.linspace(-2, 3, 50001), loc, spread) * 1e-4 * (values >= threshold)
        mean, square = (2 * 255 * values) @ weights, (2 * 255 * values) ** 2 @ weights
        # The blur repeats pixels of the border, so that the standard error is doubled; sums above 255 are cut off.
        error = 2 * np.sqrt(square / (300 * 1024)) + 0.5
        assert abs(found.mean() - (1 - mix) * 127.5 - mean) < 4 * error


def test_frost_is_a_piece_of_a_texture():
    layers = textures(32, 32)
    weights = weather.FROST[2]
    found = corrupted(np.full((3, 32, 32, 3), 50, np.uint8), "frost", 3)
    frosted = np.clip(weights[0] * 50 + weights[1] * layers, 0, 255)
    first_rows = np.lib.stride_tricks.sliding_window_view(frosted, 32, axis=2)  # texture, row, start, channel, column
    for result in found:
        matches = np.argwhere((abs(first_rows - 0.5 - result[0].T) <= 0.5 + ROUNDING).all((3, 4)))
        assert len(matches) == 1
        which, row, column = matches[0]
        assert_truncated(result, frosted[which, row : row + 32, column : column + 32])
    assert abs(layers.mean((1, 2, 3)) - layers.mean()).max() < 5  # about as bright as each other


def test_fog_on_white_spans_all_values_that_remain():
    for severity in (1, 5):
        strength, _ = weather.FOG[severity - 1]
        fog = corrupted(np.full((5, 32, 32, 3), 255, np.uint8), "fog", severity)
        assert np.all(fog.min((1, 2, 3)) == int(255 / (1 + strength) + 1e-3))
        assert np.all(fog.max((1, 2, 3)) == 255)
    assert not corrupted(np.zeros((1, 32, 32, 3), np.uint8), "fog", 1).any()


def test_the_noise_of_a_plasma_decays_by_the_square_of_the_given_factor():
    decay = 1.5
    maps = jax.vmap(lambda key: weather.plasma(32, jnp.float32(decay), key=key))(jax.random.split(KEY, 200))

    def centre_noise(step):
        """Centres of squares less the means of their corners; maps are periodic."""
        corners, centres = maps[:, ::step, ::step], maps[:, step // 2 :: step, step // 2 :: step]
        return centres - sum(jnp.roll(corners, (-i, -j), (1, 2)) for i in (0, 1) for j in (0, 1)) / 4

    fine, coarse = (np.asarray(centre_noise(step)) for step in (2, 4))
    ratios = coarse.std((1, 2)) / fine.std((1, 2))  # each map was scaled by itself
    assert abs(ratios.mean() - decay**2) < 4 * ratios.std() / np.sqrt(200) + 0.02  # of the ratio's bias


# Colour and contrast.


def test_brightness_and_saturation_are_those_of_hsv(images):
    for severity in SEVERITIES:
        added, (factor, offset) = digital.BRIGHTNESS[severity - 1], digital.SATURATION[severity - 1]
        brighter, saturated = corrupted(images, "brightness", severity), corrupted(images, "saturate", severity)
        for index in [(0, 3, 4), (1, 20, 9), (2, 31, 31), (3, 16, 2), (3, 0, 0), (1, 8, 8)]:
            hue, saturation, value = colorsys.rgb_to_hsv(*(images[index] / 255))
            exact = colorsys.hsv_to_rgb(hue, saturation, min(value + added, 1))
            assert_truncated(brighter[index], 255 * np.array(exact))
            exact = colorsys.hsv_to_rgb(hue, min(factor * saturation + offset, 1), value)
            assert_truncated(saturated[index], 255 * np.array(exact))


def test_saturation_turns_grey_red_and_black_brightens_to_grey():
    grey = np.full((1, 8, 8, 3), 200, np.uint8)
    assert corrupted(grey, "saturate", 5)[0, 0, 0].tolist() == [200, 160, 160]
    assert np.array_equal(corrupted(grey, "saturate", 3), grey)
    assert np.all(corrupted(np.zeros_like(grey), "brightness", 2) == 25)


def test_contrast_keeps_the_mean_of_each_channel(images):
    mean = images.mean((1, 2), keepdims=True)
    for severity, factor in zip(SEVERITIES, digital.CONTRAST, strict=True):
        assert_truncated(corrupted(images, "contrast", severity), mean + factor * (images - mean))


# Deformation, resolution and compression.


@pytest.mark.parametrize("severity", [1, 3])
def test_elastic_transform_is_an_affine_map_and_displacements_by_scipy(severity):
    height, width = 32, 40
    image = photographs(1, height, width, 1)[0].astype(float)
    affine_key, smooth_key = jax.random.split(KEY)
    alpha, sigma, jitter = (32 * number for number in digital.ELASTIC[severity - 1])
    corners = np.array([[20, 16]] * 3) + 10 * np.array([[1, 1], [1, -1], [-1, -1]])  # x, y
    moved = corners + jitter * np.asarray(jax.random.uniform(affine_key, (3, 2), jnp.float32, minval=-1))
    inverse = np.linalg.solve(np.column_stack([moved, np.ones(3)]), corners)  # from the moved corners back
    y, x = np.mgrid[:height, :width].astype(float)
    source = np.stack([x, y, np.ones_like(x)], -1) @ inverse
    turned = ndimage.map_coordinates(image[..., 0], [source[..., 1], source[..., 0]], order=1, mode="mirror")
    moves = np.asarray(jax.random.uniform(smooth_key, (height, width, 2), jnp.float32, minval=-1))
    across, along = (
        alpha * (ndimage.gaussian_filter(moves[..., i], sigma, mode="reflect", truncate=3) if sigma else moves[..., i])
        for i in (0, 1)
    )
    exact = ndimage.map_coordinates(turned, [y + along, x + across], order=1, mode="reflect")
    parameters = on_device(digital.elastic_parameters(height, width, severity))
    found = digital.elastic_transform(jnp.float32(image), parameters, key=KEY)[..., 0]
    np.testing.assert_allclose(found, exact, atol=0.01)


@pytest.mark.parametrize("shape", [(32, 32, 3), (28, 29, 3), (28, 28, 1)])
def test_pixelate_and_jpeg_are_those_of_pillow(shape):
    pillow = pytest.importorskip("PIL.Image")
    images = photographs(4, *shape)
    for severity in (1, 3, 5):
        pixelated, compressed = (corrupted(images, name, severity) for name in ("pixelate", "jpeg_compression"))
        decoded = []
        for i, image in enumerate(images):
            picture = pillow.fromarray(image.squeeze())
            scale = digital.PIXELATE[severity - 1]
            small = picture.resize((int(shape[1] * scale), int(shape[0] * scale)), pillow.Resampling.BOX)
            large = small.resize(picture.size, pillow.Resampling.BOX)
            assert np.array_equal(np.asarray(large).reshape(shape), pixelated[i])
            file = io.BytesIO()
            picture.save(file, "JPEG", quality=(80, 65, 58, 50, 40)[severity - 1])
            decoded.append(np.asarray(pillow.open(file)).reshape(shape).astype(int))
        # Its cosines have 13 bits: a coefficient in a thousand is rounded the other way, which changes a block.
        difference = abs(compressed - np.stack(decoded))
        assert (difference <= 1).mean() > 0.97
        assert difference.mean() < 0.2


# Spatter.


def drops():
    """Drops of water as bytes."""
    layer = ndimage.gaussian_filter(np.random.default_rng(0).normal(0.65, 0.3, (32, 24)), 1)
    return np.floor(255 * np.clip(np.where(layer < 0.69, 0, layer), 0, 1))


def test_canny_edges_are_thin_maxima_connected_with_strong_ones():
    layer = np.round(drops() * np.linspace(0.02, 0.6, 24))  # weak edges on the left, strong ones on the right
    smooth = np.pad(layer, 1, mode="edge")
    dx = ndimage.sobel(smooth, 1, mode="nearest")[1:-1, 1:-1]
    dy = ndimage.sobel(smooth, 0, mode="nearest")[1:-1, 1:-1]
    size = abs(dx) + abs(dy)
    around, thin = np.pad(size, 1), np.zeros(size.shape, bool)
    for y, x in np.ndindex(*size.shape):
        angle = np.degrees(np.arctan2(abs(dy[y, x]), abs(dx[y, x])))
        side = -1 if dx[y, x] * dy[y, x] < 0 else 1
        down, right = (0, 1) if angle < 22.5 else (1, 0) if angle > 67.5 else (1, side)
        before, after = around[1 + y - down, 1 + x - right], around[1 + y + down, 1 + x + right]
        ties = 22.5 <= angle <= 67.5
        thin[y, x] = size[y, x] > before and (size[y, x] > after if ties else size[y, x] >= after)
    weak = thin & (size > 50)
    parts, _ = ndimage.label(weak, np.ones((3, 3)))
    exact = weak & np.isin(parts, parts[weak & (size > 150)])
    assert 0 < exact.sum() < weak.sum() < thin.sum()
    assert np.array_equal(spatter.canny(jnp.float32(layer)), exact)


def test_the_distance_is_the_least_sum_of_steps_to_an_edge():
    edges = np.random.default_rng(1).random((40, 24)) < 0.003
    y, x = np.mgrid[:40, :24]
    far, near = [], []
    for row, column in np.argwhere(edges):
        moves = np.sort([abs(y - row), abs(x - column)], axis=0)
        near.append(moves[0])
        far.append(moves[1])
    near, far = np.stack(near), np.stack(far)
    knights = np.minimum(near, far - near)  # then along the axis, or along the diagonal
    diagonals = np.maximum(2 * near - far, 0)
    steps = np.maximum(far - 2 * near, 0)
    exact = np.minimum((steps + 1.4 * diagonals + 2.1969 * knights).min(0), 20)
    np.testing.assert_allclose(spatter.distance(jnp.asarray(edges)) / 2**16, exact, atol=1e-3)
    assert np.all(spatter.distance(jnp.zeros((8, 8), bool)) == 20 * 2**16)


def test_equalised_levels_are_ranks_above_the_lowest():
    level = np.random.default_rng(0).integers(3, 7, (8, 8))
    others = (level > 3).sum()
    exact = [[round(255 * ((level <= value).sum() - 64 + others) / others) for value in row] for row in level]
    assert np.array_equal(spatter.equalised(jnp.asarray(level), 21), exact)
    assert np.all(spatter.equalised(jnp.full((8, 8), 20), 21) == 20)


def test_water_brightens_and_mud_covers():
    dark = np.full((20, 32, 32, 3), 60, np.uint8)
    water, mud = corrupted(dark, "spatter", 3), corrupted(dark, "spatter", 5)
    assert np.all(water >= 60)
    assert np.all(water.max((1, 2)) == [147, 179, 179])  # 60 + 175/2, 60 + 238/2
    covered = mud[..., 2] <= 28  # four fifths of mud's 20 and a fifth of 60, at most
    assert 0.02 < covered.mean() < 0.3
    assert np.all(mud[~covered] == 60)
    assert np.all((mud[covered] >= [60, 42, 20]) & (mud[covered] <= [63, 45, 28]))


# Cells.


@pytest.mark.parametrize("name", NAMES)
def test_an_image_depends_on_its_index_and_the_seed_and_not_on_the_number_of_images(name):
    images = np.repeat(photographs(1, 32, 32, 3), 345, axis=0)  # more than a batch
    found = corrupted(images, name, 4, seed=1)
    assert (found.dtype, found.shape) == (np.uint8, images.shape)
    assert np.array_equal(corrupted(images[:2], name, 4, seed=1), found[:2])
    other = corrupted(images[:2], name, 4, seed=2)
    if name in WITHOUT_CHANCE:
        assert np.all(found == found[0])
        assert np.array_equal(other, found[:2])
    else:
        assert len(np.unique(found[[0, 1, 2, 341, 344]], axis=0)) == 5
        assert not np.array_equal(other, found[:2])
    assert not np.array_equal(found[0], images[0])


@pytest.mark.parametrize("name", NAMES)
def test_grey_images_of_8_by_8_pixels_are_corrupted(name):
    images = photographs(50, 8, 8, 1)
    found = corrupted(images, name, 5)
    change = abs(found - images.astype(float)).mean()
    assert found.shape == images.shape
    assert 2 < change < 120
    if name in ("brightness", "contrast", "gaussian_blur", "defocus_blur", "zoom_blur", "pixelate"):
        colour = corrupted(np.repeat(images, 3, axis=-1), name, 5)
        assert np.array_equal(colour, np.repeat(found, 3, axis=-1))


@pytest.mark.parametrize(
    ("name", "severity"),
    [
        *[
            (name, 5)
            for name in ("defocus_blur", "glass_blur", "motion_blur", "gaussian_blur", "fog", "spatter", "snow")
        ],
        ("snow", 1),
    ],
)
def test_lengths_grow_with_the_image(name, severity):
    """An image magnified twice changes about as much."""
    images = photographs(40, 32, 32, 3)
    large = images.repeat(2, axis=1).repeat(2, axis=2)
    change = [abs(corrupted(x, name, severity) - x.astype(float)).mean() for x in (images, large)]
    assert 0.75 < change[1] / change[0] < 1.33


def test_the_shorter_side_sets_the_scale_of_images_above_32_pixels():
    assert [length_scale(*shape) for shape in ((8, 8), (28, 28), (32, 99), (64, 48))] == [1, 1, 1, 1.5]
    images = photographs(2, 64, 48, 3)
    exact = ndimage.gaussian_filter(images.astype(float), (0, 1.5, 1.5, 0), mode="nearest", truncate=4)
    assert_truncated(corrupted(images, "gaussian_blur", 5), exact)


def test_cells_of_different_names_and_severities_have_different_keys():
    flat = np.full((1, 32, 32, 3), 128, np.uint8)
    signs = [np.sign(corrupted(flat, name, s).astype(int) - 127.5).ravel()
             for name in ("gaussian_noise", "speckle_noise") for s in (1, 2)]  # fmt: skip
    correlation = np.corrcoef(signs) - np.eye(4)
    assert abs(correlation).max() < 5 / np.sqrt(flat.size)


@pytest.mark.usefixtures("_as_a_user")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "rain"}, r"name='rain' is unknown: choose one of 'gaussian_noise', "),
        ({"severity": 6}, "severity=6 is unknown: choose one of 1, 2, 3, 4, 5"),
        ({"severity": True}, "severity=True"),
        ({"severity": 2.0}, r"severity=2\.0 is unknown"),
        ({"seed": -1}, "seed=-1 must be"),
        ({"seed": 2**32}, "seed=4294967296 must be less than 4294967296"),
        ({"images": np.zeros((2, 32, 32, 3), np.float32)}, "images are of dtype float32: pass an array of uint8"),
        ({"images": [[0]]}, r"images are \[\[0\]\]: pass an array of uint8"),
        ({"images": np.zeros((32, 32, 3), np.uint8)}, r"shape \(32, 32, 3\): pass a batch"),
        ({"images": np.zeros((2, 32, 32, 2), np.uint8)}, "1 or 3"),
        ({"images": np.zeros((0, 32, 32, 3), np.uint8)}, "pass at least one"),
        ({"images": np.zeros((2, 7, 32, 3), np.uint8)}, "sides of at least 8 pixels"),
    ],
)
def test_bad_input_is_refused_in_one_line(refused, tmp_path, change, words):
    given = {"images": np.zeros((2, 32, 32, 3), np.uint8), "name": "fog", "severity": 1, **change}
    refused(lambda: corrupted(**given), words)
    refused(lambda: cached(**given, folder=tmp_path), words)
    assert not list(tmp_path.iterdir())


# On disk.


def test_a_stored_cell_is_read_and_not_made_again(images, tmp_path, monkeypatch):
    folder = tmp_path / "new"
    found = cached(images, "contrast", 2, folder=folder)
    assert np.array_equal(found, corrupted(images, "contrast", 2))
    made = []
    monkeypatch.setattr(storage, "corrupted", lambda images, *_, **__: made.append(1) or images)
    assert np.array_equal(cached(images, "contrast", 2, folder=folder), found)
    assert not made
    for change in ({"seed": 1}, {"severity": 3}, {"name": "fog"}, {"images": images[:3]}):
        cached(**{"images": images, "name": "contrast", "severity": 2, "folder": folder, **change})
    monkeypatch.setattr(storage, "VERSION", storage.VERSION + 1)
    cached(images, "contrast", 2, folder=folder)
    assert len(made) == len(list(folder.iterdir())) - 1 == 5


def test_cells_are_stored_in_the_user_s_cache(images, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cached(images, "contrast", 1)
    assert len(list((tmp_path / "sdebnn-corruptions").iterdir())) == 1


def test_a_damaged_cell_is_made_again(images, tmp_path):
    found = cached(images, "contrast", 2, folder=tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[5000] ^= 1
    header = b"\x93NUMPY\x01\x00\xff\xff not a header"
    for damaged in (b"", whole[:-1], whole[:100], flipped, header + hashlib.sha256(header).digest()):
        path.write_bytes(damaged)
        assert np.array_equal(cached(images, "contrast", 2, folder=tmp_path), found)
        assert path.read_bytes() == whole
    assert np.array_equal(np.load(path), found)  # which ignores the digest after the array


def test_a_folder_that_cannot_be_written_costs_only_a_warning(images, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match=r"cannot be written .* will be made again"):
        found = cached(images, "contrast", 2, folder=tmp_path / "file")
    assert np.array_equal(found, corrupted(images, "contrast", 2))


def test_threads_may_store_the_same_cell_at_once(images, tmp_path):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: cached(images, "contrast", 2, folder=tmp_path), range(16)))
    assert all(np.array_equal(one, found[0]) for one in found)
    (path,) = tmp_path.iterdir()
    assert np.array_equal(np.load(path), found[0])


@pytest.fixture
def benchmark_folder(tmp_path):
    """CIFAR-10-C of 20 images in place of 10,000."""
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    images = np.random.default_rng(0).integers(0, 256, (100, 32, 32, 3), np.uint8)
    np.save(folder / "fog.npy", images)
    np.save(folder / "labels.npy", np.tile(np.arange(20, dtype=np.uint8) % 10, 5))
    return tmp_path, images


def test_published_cells_are_blocks_of_the_published_array(benchmark_folder):
    folder, images = benchmark_folder
    labels = np.arange(20) % 10
    for severity in SEVERITIES:
        found = published("fog", severity, labels, folder=folder)
        assert isinstance(found, np.memmap)
        assert np.array_equal(found, images[20 * (severity - 1) : 20 * severity])
    assert np.array_equal(published("fog", 2, labels[:7], folder=folder), images[20:27])
    assert published("snow", 2, labels, folder=folder) is None
    assert published("fog", 2, labels, folder=folder / "nowhere") is None


def test_published_cells_of_other_labels_or_shapes_are_refused(benchmark_folder, refused):
    folder, images = benchmark_folder
    labels = np.arange(20) % 10
    refused(lambda: published("fog", 6, labels, folder=folder), "severity=6")
    refused(lambda: published("rain", 1, labels, folder=folder), "name='rain'")
    refused(lambda: published("fog", 1, labels[::-1], folder=folder), r"labels\[0\]=9 is 0 in .*labels.npy: pass")
    refused(lambda: published("fog", 1, np.arange(21), folder=folder), "labels has 21 entries: pass from 1 to 20")
    np.save(folder / "CIFAR-10-C" / "fog.npy", images[:99])
    refused(lambda: published("fog", 1, labels, folder=folder), r"have shapes \(99, 32, 32, 3\) and \(100,\)")
    (folder / "CIFAR-10-C" / "labels.npy").unlink()
    refused(lambda: published("fog", 1, labels, folder=folder), "labels.npy is missing")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_mean_change_on_cifar10_is_the_published_one(name):
    if not is_here(CATALOGUE["cifar10"], home()):
        pytest.skip("CIFAR-10 is not here: run sdebnn data get cifar10")
    images = np.asarray(load("cifar10", parts=("test",)).test.x[:1000])
    tolerance = 0.1 if name in ("frost", "fog") else 0.05
    found = [abs(corrupted(images, name, severity).astype(int) - images).mean() for severity in SEVERITIES]
    np.testing.assert_allclose(found, REFERENCE[name], rtol=tolerance)
