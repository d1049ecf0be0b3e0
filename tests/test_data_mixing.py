"""Mixing of images in training: how many are mixed, with what, and how much."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdebnn.artifacts.outlines import from_outline, outline
from sdebnn.data import RandomMixing, RandomView
from sdebnn.data.mixing import altered, combined, patterns
from sdebnn.presets import About, preset

KEY = jax.random.key(3)
IMAGES = np.random.default_rng(0).integers(40, 200, (400, 8, 8, 3)).astype(np.uint8)


def test_a_share_of_the_images_is_mixed_and_the_others_are_only_viewed():
    mixed = np.asarray(RandomMixing(share=0.3)(IMAGES, key=KEY))
    assert mixed.dtype == np.uint8
    changed = (mixed != IMAGES).any((1, 2, 3)).mean()
    assert abs(changed - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 400)
    view = RandomView(1, flip=True)
    np.testing.assert_array_equal(
        RandomMixing(view, share=0.0)(IMAGES, key=KEY), view(IMAGES, key=jax.random.split(KEY, 5)[0])
    )


def test_a_key_names_one_mixture_and_every_image_has_its_own():
    mixing, same = RandomMixing(rounds=2, share=1.0), np.repeat(IMAGES[:1], 50, axis=0)
    one = mixing(same, key=KEY)
    np.testing.assert_array_equal(one, mixing(same, key=KEY))
    assert len(np.unique(np.asarray(one).reshape(50, -1), axis=0)) == 50


def test_more_rounds_and_less_strength_change_images_more():
    def change(**how):
        return np.abs(np.asarray(RandomMixing(share=1.0, **how)(IMAGES, key=KEY), float) - IMAGES).mean()

    assert change(rounds=1, strength=12.0) < change(rounds=1, strength=4.0) < change(rounds=4, strength=4.0)


def test_the_weight_of_the_other_image_has_the_stated_law():
    """Around middle grey, both ways to combine two images are 1/2 + b e for an image that is brighter by a small e."""
    count, strength, e = 20_000, 3.0, 1e-3
    grey = jnp.full((count, 1, 1, 1), 0.5)
    b = (np.asarray(combined(grey, grey + e, strength, key=KEY)).ravel() - 0.5) / e
    size = np.abs(b)
    # 1 - u^(1/s) has the mean 1 / (1 + s) and the distribution function 1 - (1 - b)^s.
    assert abs(size.mean() - 1 / (1 + strength)) < 5 * size.std() / np.sqrt(count) + 1e-3
    for at in (0.1, 0.3, 0.6):
        expected = 1 - (1 - at) ** strength
        assert abs((size < at).mean() - expected) < 5 * np.sqrt(expected * (1 - expected) / count) + 2e-3
    assert abs((b > 0).mean() - 0.5) < 5 * 0.5 / np.sqrt(count)


def test_grey_mixed_with_grey_stays_grey():
    grey = jnp.full((50, 2, 2, 1), 0.5)
    np.testing.assert_allclose(combined(grey, grey, 4.0, key=KEY), grey, atol=1e-6)


def test_patterns_are_images_around_middle_grey_whose_detail_is_bounded():
    coarse, fine = (np.asarray(patterns((600, 16, 16, 1), finest, key=KEY)) for finest in (1.0, 40.0))
    for each in (coarse, fine):
        assert each.min() >= 0
        assert each.max() <= 1
        means = each.mean((1, 2, 3))  # a random phase makes the mean over patterns 1/2
        assert abs(means.mean() - 0.5) < 4 * means.std() / np.sqrt(len(means))
    rough, smooth = (np.abs(np.diff(each, axis=2)).mean() for each in (fine, coarse))
    assert rough > 2 * smooth


def test_altered_copies_are_images():
    copies = np.asarray(altered(jnp.asarray(IMAGES / 255, jnp.float32), key=KEY))
    assert copies.min() >= 0
    assert copies.max() <= 1
    assert (np.abs(copies - IMAGES / 255).max((1, 2, 3)) > 0.01).all()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"share": 1.5}, "share=1.5 must be a number from 0 to 1"),
        ({"rounds": 0}, "rounds=0"),
        ({"strength": 0.0}, "strength=0"),
        ({"finest": -1.0}, "finest=-1"),
    ],
)
def test_wrong_options_are_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        RandomMixing(**wrong)


def test_images_that_are_not_bytes_are_refused():
    with pytest.raises(ValueError, match="float32 cannot be mixed: pass bytes"):
        RandomMixing()(np.float32(IMAGES), key=KEY)


def test_a_preset_mixes_images_and_refuses_to_mix_tables():
    photos = About("photos", (32, 32, 3), ("cat", "dog"), 100, (0.5,) * 3, (0.2,) * 3)
    plain, mixed = (preset("fast", photos, mixing=mixing).training.batches.augment for mixing in (False, True))
    assert isinstance(plain, RandomView)
    assert isinstance(mixed, RandomMixing)
    assert mixed.view.flip
    assert mixed.view.shift == plain.shift
    assert not mixed.view.cutout
    with pytest.raises(ValueError, match="mixing is for images, and numbers has none"):
        preset("fast", About("numbers", (3,), None, 9, (0.0,) * 3, (1.0,) * 3, (0.0,), (1.0,)), mixing=True)


def test_the_outline_of_a_training_keeps_its_mixing():
    mixing = RandomMixing(RandomView(2, flip=True), rounds=2, share=0.25, strength=5.0, finest=9.0)
    assert from_outline(outline(mixing)) == mixing
