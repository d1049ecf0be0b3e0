"""Random augmentations of images: shifts, reflections and cutouts, drawn on the device in the training step.

The row and the column from which a pixel is taken are computed first, so that a shift and a reflection together are a
single gather.
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Num, PRNGKeyArray

from sdebnn.checks import check_choice, check_count, check_key, check_parameter, shown


class RandomView(eqx.Module):
    """Shifts each image by up to ``shift`` pixels, mirrors it at random if ``flip``, and fills a square in it.

    Pixels from beyond the border are taken from the reflected image, or have the value ``fill`` with padding="fill".
    The centre of the square of side ``cutout`` is uniform over the image, so that part of the square may lie outside.
    The square has the value ``fill``: one number, or one for each channel. RandomView(0) is the identity.
    """

    shift: int = eqx.field(static=True)
    flip: bool = eqx.field(static=True)
    cutout: int = eqx.field(static=True)
    fill: tuple[int | float, ...] = eqx.field(static=True)
    padding: Literal["reflect", "fill"] = eqx.field(static=True)

    def __init__(
        self,
        shift: int = 4,
        *,
        flip: bool = False,
        cutout: int = 0,
        fill: int | float | tuple[int | float, ...] = 0,
        padding: Literal["reflect", "fill"] = "reflect",
    ):
        check_count("shift", shift, least=0)
        check_count("cutout", cutout, least=0)
        check_choice("padding", padding, ("reflect", "fill"))
        if not isinstance(flip, bool):
            raise ValueError(f"flip={shown(flip)} must be True or False.")
        self.fill = tuple(fill) if isinstance(fill, tuple) else (fill,)
        for i, value in enumerate(self.fill):
            check_parameter(f"fill[{i}]", value)
        self.shift, self.flip, self.cutout, self.padding = shift, flip, cutout, padding

    def __call__(
        self, images: Num[Array | np.ndarray, "example height width channel"], *, key: PRNGKeyArray
    ) -> Num[Array, "example height width channel"]:
        check_key(key)
        _check_images(images, self)
        images = jnp.asarray(images)
        examples, height, width, _ = images.shape
        shift_key, flip_key, cutout_key = jax.random.split(key, 3)
        fill = np.asarray(self.fill)
        if jnp.issubdtype(images.dtype, jnp.integer):
            fill = np.rint(fill)
        fill = jnp.asarray(fill, images.dtype)

        views = images
        if self.shift or self.flip:
            down, right = jax.random.randint(shift_key, (2, examples, 1), -self.shift, self.shift + 1)
            mirrored = jax.random.bernoulli(flip_key, shape=(examples, 1)) & self.flip
            column = jnp.arange(width)
            row, row_inside = _source(jnp.arange(height) + down, height)
            column, column_inside = _source(jnp.where(mirrored, column[::-1], column) + right, width)
            views = images[jnp.arange(examples)[:, None, None], row[:, :, None], column[:, None, :]]
            if self.padding == "fill" and self.shift:
                views = jnp.where((row_inside[:, :, None] & column_inside[:, None, :])[..., None], views, fill)
        if self.cutout:
            centre = jax.random.uniform(cutout_key, (2, examples, 1))
            rows, columns = _hole(centre[0], height, self.cutout), _hole(centre[1], width, self.cutout)
            views = jnp.where((rows[:, :, None] & columns[:, None, :])[..., None], fill, views)
        return views


def _source(index: Int[Array, "example size"], size: int) -> tuple[Int[Array, "example size"], Bool[Array, "..."]]:
    """The reflection of an index beyond the border, without repeating the border; and whether it was inside."""
    return (size - 1) - jnp.abs((size - 1) - jnp.abs(index)), (index >= 0) & (index < size)


def _hole(centre: Num[Array, "example 1"], size: int, side: int) -> Bool[Array, "example size"]:
    """Which of ``size`` pixels lie in an interval of length ``side`` around a centre in [0, 1)."""
    start = jnp.floor(centre * size).astype(int) - side // 2
    at = jnp.arange(size)
    return (at >= start) & (at < start + side)


def _check_images(images: Array | np.ndarray, view: RandomView) -> None:
    """Refuse images that do not suit the shift and the fill of a view."""
    shape = np.shape(images)
    if len(shape) != 4:
        raise ValueError(f"images have shape {shape}: pass a batch of shape (examples, height, width, channels).")
    if view.shift >= min(shape[1:3]):
        raise ValueError(f"shift={view.shift} needs images larger than {shape[1]}x{shape[2]}: choose a smaller shift.")
    if len(view.fill) not in (1, shape[3]):
        raise ValueError(
            f"fill={shown(view.fill)} has {len(view.fill)} values for {shape[3]} channels: pass one, or one for each."
        )
    if images.dtype == np.uint8 and not all(0 <= value <= 255 for value in view.fill):
        raise ValueError(f"fill={shown(view.fill)} does not fit into uint8: pass values from 0 to 255.")
