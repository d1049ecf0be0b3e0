"""Views as a part of a model: one view for each draw, the same for all images."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdebnn import SDEBNN, Deterministic, predict
from sdebnn.data import RandomView
from sdebnn.nn import Views, draw_keys

KEY = jax.random.key(0)
IMAGES = np.arange(2 * 4 * 4, dtype=np.float32).reshape(2, 4, 4, 1)


def test_every_draw_mirrors_all_images_or_none_and_both_occur():
    net = SDEBNN((Views(RandomView(0, flip=True)), Deterministic(jnp.ravel)))
    draws = np.asarray(predict(net, IMAGES, draws=32, key=KEY))
    plain, mirrored = IMAGES.reshape(2, 16), IMAGES[:, :, ::-1].reshape(2, 16)
    same, other = (np.all(draws == each, axis=(1, 2)) for each in (plain, mirrored))
    assert np.all(same | other)
    assert 8 <= other.sum() <= 24


def test_a_key_names_one_view_whatever_the_batch():
    layer = Views(RandomView(2, flip=True))
    for key in draw_keys(KEY, 6):
        whole, kl = layer(jnp.asarray(IMAGES), key=key)
        alone, _ = layer(jnp.asarray(IMAGES[1:]), key=key)
        np.testing.assert_array_equal(whole[1:], alone)
        assert kl == 0


@pytest.mark.usefixtures("_as_a_user")
def test_a_view_that_is_none_is_refused():
    with pytest.raises(ValueError, match="RandomView"):
        Views(lambda x: x)
