"""Images mixed with patterns and with altered copies of themselves, in the training step.

A net that is trained so is less disturbed by corruptions that it has never seen. The idea is that of AugMix and PixMix
(Hendrycks and others, 2020 and 2022). The patterns are sine networks of the position with random weights, which are
drawn anew for every image:

h_1 = sin(A v + a),   h_2 = sin(B h_1 + b),   pattern = (1 + sin(C h_2 + c)) / 2,   v = the position in [-1, 1]^2

Copies are turned, stretched and shifted, and their tones cut, inverted in part or spread. None of this is an operation
of CIFAR-10-C.
"""

from numbers import Real

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num, PRNGKeyArray

from sdebnn.checks import check_count, check_instance, check_key, check_positive, shown
from sdebnn.data.augment import RandomView

Images = Float[Array, "example height width channel"]  # from 0 to 1
PATTERN_UNITS = 16
COARSEST = 1.0  # frequency of a pattern's first layer, in radians for half the side of an image
INNER_GAINS = (0.7, 2.0)  # of its other layers
MAX_BITS_CUT = 4
UNCHANGED = RandomView(0)


class RandomMixing(eqx.Module):
    """Applies ``view`` to each image, and mixes some of them with up to ``rounds`` patterns and copies.

        mixing = sdebnn.data.RandomMixing(sdebnn.data.RandomView(2, flip=True), share=0.5)
        batches = Batches(128, augment=mixing)  # for fit, with images of bytes

    ``share`` is the share of images that are mixed at all; for each of them, the number of rounds is uniform. In a
    round, the image is mixed with a random pattern or with an altered copy of itself, by addition or by multiplication.
    The weight of the other image has the density ``strength`` · (1 - b)^(``strength`` - 1): larger values mix less.
    ``finest`` is the largest frequency of a pattern's first layer, in radians for half the side of an image.
    """

    view: RandomView
    rounds: int = eqx.field(static=True)
    share: float = eqx.field(static=True)
    strength: float = eqx.field(static=True)
    finest: float = eqx.field(static=True)

    def __init__(
        self,
        view: RandomView = UNCHANGED,
        *,
        rounds: int = 3,
        share: float = 0.5,
        strength: float = 4.0,
        finest: float = 40.0,
    ):
        check_instance("view", view, RandomView, "a random view", "RandomView(4, flip=True)")
        check_count("rounds", rounds)
        if isinstance(share, bool) or not isinstance(share, Real) or not 0 <= share <= 1:
            raise ValueError(f"share={shown(share)} must be a number from 0 to 1.")
        check_positive("strength", strength)
        check_positive("finest", finest)
        self.view, self.rounds, self.share = view, rounds, float(share)
        self.strength, self.finest = float(strength), float(finest)

    def __call__(
        self, images: Num[Array | np.ndarray, "example height width channel"], *, key: PRNGKeyArray
    ) -> Num[Array, "example height width channel"]:
        check_key(key)
        if images.dtype != np.uint8:
            raise ValueError(f"images of {images.dtype} cannot be mixed: pass bytes, 0 to 255, as uint8.")
        view_key, count_key, *keys = jax.random.split(key, 2 + self.rounds)
        viewed = self.view(images, key=view_key)
        own = viewed.astype(jnp.float32) / 255
        chosen_key, rounds_key = jax.random.split(count_key)
        count = jax.random.randint(rounds_key, (len(own),), 1, self.rounds + 1)
        count = jnp.where(jax.random.bernoulli(chosen_key, self.share, (len(own),)), count, 0)
        mixed = own
        for number, round_key in enumerate(keys):
            active = (number < count)[:, None, None, None]
            mixed = jnp.where(active, self._round(mixed, own, key=round_key), mixed)
        return jnp.where((count > 0)[:, None, None, None], jnp.rint(255 * mixed).astype(jnp.uint8), viewed)

    def _round(self, mixed: Images, own: Images, *, key: PRNGKeyArray) -> Images:
        """The images of the last round, each mixed with a pattern or with a copy of the original."""
        which_key, pattern_key, copy_key, mix_key = jax.random.split(key, 4)
        which = jax.random.bernoulli(which_key, shape=(len(own), 1, 1, 1))
        other = jnp.where(which, patterns(own.shape, self.finest, key=pattern_key), altered(own, key=copy_key))
        return combined(mixed, other, self.strength, key=mix_key)


def combined(images: Images, others: Images, strength: float, *, key: PRNGKeyArray) -> Images:
    """Each image with some of another: a x + b z around grey, or x^a z^b, by chance.

    Two weights c and d are drawn independently, each as 1 - u^(1/strength) with u uniform. With equal chances,
    a = 1 - c and b = d, or a = 1 + c and b = -d.
    """
    times_key, sign_key, weight_key = jax.random.split(key, 3)
    small = 1 - jax.random.uniform(weight_key, (2, len(images), 1, 1, 1)) ** (1 / strength)
    positive = jax.random.bernoulli(sign_key, shape=(len(images), 1, 1, 1))
    a, b = jnp.where(positive, 1 - small[0], 1 + small[0]), jnp.where(positive, small[1], -small[1])
    # Powers of doubled values leave a middle grey as it is.
    darkest = 1 / 255
    product = jnp.maximum(2 * images, darkest) ** a * jnp.maximum(2 * others, darkest) ** b / 2
    added = 0.5 + a * (images - 0.5) + b * (others - 0.5)
    times = jax.random.bernoulli(times_key, shape=(len(images), 1, 1, 1))
    return jnp.clip(jnp.where(times, product, added), 0, 1)


def patterns(shape: tuple[int, ...], finest: float, *, key: PRNGKeyArray) -> Images:
    """A pattern for each image of a batch of this shape; the first frequency is log-uniform up to ``finest``."""
    examples, height, width, channels = shape
    keys = iter(jax.random.split(key, 8))
    rows, columns = jnp.meshgrid(jnp.linspace(-1, 1, height), jnp.linspace(-1, 1, width), indexing="ij")
    position = jnp.stack([rows.ravel(), columns.ravel()], axis=-1)

    def layer(h: Array, units: int, gains: tuple[float, float]) -> Array:
        """Sines of random sums, whose size is log-uniform between two gains."""
        low, high = np.log(gains)
        gain = jnp.exp(jax.random.uniform(next(keys), (examples, 1, 1), minval=low, maxval=high))
        weights = gain * jax.random.normal(next(keys), (examples, h.shape[-1], units)) / np.sqrt(h.shape[-1])
        phases = jax.random.uniform(next(keys), (examples, 1, units), maxval=2 * np.pi)
        return jnp.sin(h @ weights + phases)

    h = layer(jnp.broadcast_to(position, (examples, *position.shape)), PATTERN_UNITS, (COARSEST, max(COARSEST, finest)))
    keys = iter(jax.random.split(next(keys), 6))
    h = layer(h, PATTERN_UNITS, INNER_GAINS)
    return (1 + layer(h, channels, INNER_GAINS).reshape(shape)) / 2


def altered(images: Images, *, key: PRNGKeyArray) -> Images:
    """Copies that are turned, stretched and shifted, with tones that are cut, inverted in part, spread, or kept."""
    place_key, which_key, bits_key, threshold_key = jax.random.split(key, 4)
    moved = RandomView(min(images.shape[1:3]) // 5, turn=30, stretch=0.3)(images, key=place_key)
    one = (len(images), 1, 1, 1)
    levels = 2.0 ** (8 - jax.random.randint(bits_key, one, 1, MAX_BITS_CUT + 1))
    cut = jnp.floor(moved * levels) / levels
    inverted = jnp.where(moved > jax.random.uniform(threshold_key, one), 1 - moved, moved)
    low, high = moved.min((1, 2), keepdims=True), moved.max((1, 2), keepdims=True)
    spread = (moved - low) / jnp.maximum(high - low, 1 / 255)
    which = jax.random.randint(which_key, one, 0, 4)
    return jnp.select([which == 0, which == 1, which == 2], [cut, inverted, spread], moved)
