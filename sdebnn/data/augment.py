"""Random augmentations of images: shifts, reflections, turns, stretches and cutouts, drawn in the training step.

The row and the column from which a pixel is taken are computed first, so that a shift and a reflection together are a
single gather, and with a turn or a stretch four, between which is interpolated.
"""

from functools import partial
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Num, PRNGKeyArray

from sdebnn.checks import check_choice, check_count, check_key, check_parameter, shown


class RandomView(eqx.Module):
    """Shifts each image by up to ``shift`` pixels, mirrors it at random if ``flip``, and fills a square in it.

        view = sdebnn.data.RandomView(2, flip=True, cutout=3)
        views = view(images, key=key)
        batches = Batches(128, augment=view)  # for fit

    It is turned about its centre by up to ``turn`` degrees either way, and its height and width are each multiplied by
    a factor between 1 - ``stretch`` and 1 + ``stretch``.
    Pixels from beyond the border are taken from the reflected image, or have the value ``fill`` with padding="fill".
    The centre of the square of side ``cutout`` is uniform over the image, so that part of the square may lie outside.
    The square has the value ``fill``: one number, or one for each channel. RandomView(0) is the identity.
    """

    shift: int = eqx.field(static=True)
    flip: bool = eqx.field(static=True)
    cutout: int = eqx.field(static=True)
    fill: tuple[int | float, ...] = eqx.field(static=True)
    padding: Literal["reflect", "fill"] = eqx.field(static=True)
    turn: float = eqx.field(static=True)
    stretch: float = eqx.field(static=True)

    def __init__(
        self,
        shift: int = 4,
        *,
        flip: bool = False,
        cutout: int = 0,
        fill: int | float | tuple[int | float, ...] = 0,
        padding: Literal["reflect", "fill"] = "reflect",
        turn: int | float = 0,
        stretch: int | float = 0,
    ):
        check_count("shift", shift, least=0)
        check_count("cutout", cutout, least=0)
        check_choice("padding", padding, ("reflect", "fill"))
        for name, value, most in (("turn", turn, 180), ("stretch", stretch, 0.5)):
            if not (isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most):
                raise ValueError(f"{name}={shown(value)} must be a number from 0 to {most}.")
        if not isinstance(flip, bool):
            raise ValueError(f"flip={shown(flip)} must be True or False.")
        self.fill = tuple(fill) if isinstance(fill, tuple) else (fill,)
        for i, value in enumerate(self.fill):
            check_parameter(f"fill[{i}]", value)
        self.shift, self.flip, self.cutout, self.padding = shift, flip, cutout, padding
        self.turn, self.stretch = float(turn), float(stretch)

    def without_cutout(self) -> "RandomView":
        """The same view, in which no square is filled."""
        return RandomView(
            self.shift, flip=self.flip, fill=self.fill, padding=self.padding, turn=self.turn, stretch=self.stretch
        )

    def __call__(
        self, images: Num[Array | np.ndarray, "example height width channel"], *, key: PRNGKeyArray
    ) -> Num[Array, "example height width channel"]:
        check_key(key)
        _check_images(images, self)
        images = jnp.asarray(images)
        examples, height, width, _ = images.shape
        shift_key, flip_key, cutout_key, warp_key = jax.random.split(key, 4)
        fill = np.asarray(self.fill)
        if jnp.issubdtype(images.dtype, jnp.integer):
            fill = np.rint(fill)
        fill = jnp.asarray(fill, images.dtype)

        views = images
        if self.shift or self.flip or self.turn or self.stretch:
            down, right = jax.random.randint(shift_key, (2, examples, 1), -self.shift, self.shift + 1)
            mirrored = jax.random.bernoulli(flip_key, shape=(examples, 1)) & self.flip
            column = jnp.arange(width)
            rows = jnp.arange(height) + down
            columns = jnp.where(mirrored, column[::-1], column) + right
            if self.turn or self.stretch:
                views = self._warped(images, rows, columns, fill, key=warp_key)
            else:
                views = self._taken(images, rows[:, :, None], columns[:, None, :], fill)
        if self.cutout:
            centre = jax.random.uniform(cutout_key, (2, examples, 1))
            rows, columns = _hole(centre[0], height, self.cutout), _hole(centre[1], width, self.cutout)
            views = jnp.where((rows[:, :, None] & columns[:, None, :])[..., None], fill, views)
        return views

    def _taken(
        self, images: Num[Array, "example height width channel"], rows: Int[Array, "example #height #width"],
        columns: Int[Array, "example #height #width"], fill: Num[Array, " value"],
    ) -> Num[Array, "example height width channel"]:  # fmt: skip
        """The pixels in these rows and columns, some of which may lie beyond the border."""
        row, row_inside = _source(rows, images.shape[1])
        column, column_inside = _source(columns, images.shape[2])
        # Image by image, so that a batch that is divided over devices is gathered where it is.
        pixels = jax.vmap(lambda image, row, column: image[row, column])(images, row, column)
        return pixels if self.padding == "reflect" else jnp.where((row_inside & column_inside)[..., None], pixels, fill)

    def _warped(
        self, images: Num[Array, "example height width channel"], rows: Int[Array, "example height"],
        columns: Int[Array, "example width"], fill: Num[Array, " value"], *, key: PRNGKeyArray,
    ) -> Num[Array, "example height width channel"]:  # fmt: skip
        """Images turned and stretched about their centre, from rows and columns that are shifted and mirrored."""
        examples, height, width, _ = images.shape
        angle, *factors = jax.random.uniform(key, (3, examples, 1, 1), minval=-1.0)
        angle, (tall, wide) = jnp.deg2rad(self.turn * angle), [1 + self.stretch * factor for factor in factors]
        y, x = (rows - (height - 1) / 2)[:, :, None] / tall, (columns - (width - 1) / 2)[:, None, :] / wide
        row = (height - 1) / 2 + jnp.cos(angle) * y - jnp.sin(angle) * x
        column = (width - 1) / 2 + jnp.sin(angle) * y + jnp.cos(angle) * x
        top, left = jnp.floor(row).astype(int), jnp.floor(column).astype(int)
        below, right = (row - top)[..., None], (column - left)[..., None]
        taken = partial(self._taken, images, fill=fill)
        upper = (1 - right) * taken(top, left) + right * taken(top, left + 1)
        lower = (1 - right) * taken(top + 1, left) + right * taken(top + 1, left + 1)
        warped = (1 - below) * upper + below * lower
        return (jnp.rint(warped) if jnp.issubdtype(images.dtype, jnp.integer) else warped).astype(images.dtype)


def _source(index: Int[Array, "*shape"], size: int) -> tuple[Int[Array, "*shape"], Bool[Array, "*shape"]]:
    """The reflection of an index beyond the border, without repeating the border; and whether it was inside."""
    reflected = (size - 1) - jnp.abs((size - 1) - jnp.abs(index))
    return jnp.clip(reflected, 0, size - 1), (index >= 0) & (index < size)


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
