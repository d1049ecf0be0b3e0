"""Cells of the benchmark: one of 19 corruptions at one of 5 severities, as in CIFAR-10-C.

The parameters are the published ones. The published arrays were drawn without a seed, so that cells made here are
"CIFAR-10-C-style", not equal to them, and frost has textures of its own.
"""

from collections.abc import Callable
from functools import partial
from numbers import Integral
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, UInt8, UInt32

from sdebnn.checks import check_choice, check_count, check_process, shown
from sdebnn.corruptions import blur, digital, jpeg, noise, spatter, weather
from sdebnn.corruptions.pixels import Image, grey, truncated

SEVERITIES = (1, 2, 3, 4, 5)
LEAST_SIDE = 8
SEEDS = 2**32
VALUES_AT_ONCE = 2**20  # bytes of images in a batch, which bounds the memory


class Corruption(NamedTuple):
    """A function of one image, and its parameters for a height, a width and a severity.

    ``apply(image, parameters, key=key)`` takes and returns values from 0 to 255 as float32. The parameters of all
    severities have the same shapes, so that they share one program (spatter has two: water and mud).
    """

    apply: Callable[..., Image]
    parameters: Callable[[int, int, int], Any]
    needs_colour: bool = False


def _numbers(table: tuple[int | float | tuple[int | float, ...], ...]) -> Callable[[int, int, int], np.ndarray]:
    """Parameters that do not depend on the shape of the image."""
    return lambda height, width, severity: np.asarray(table[severity - 1], np.float32)


CORRUPTIONS = {
    "gaussian_noise": Corruption(noise.gaussian_noise, _numbers(noise.GAUSSIAN_SIGMA)),
    "shot_noise": Corruption(noise.shot_noise, lambda h, w, severity: noise.shot_table(noise.SHOT_RATE[severity - 1])),
    "impulse_noise": Corruption(noise.impulse_noise, _numbers(noise.IMPULSE_AMOUNT)),
    "defocus_blur": Corruption(blur.defocus_blur, blur.disk_kernel),
    "glass_blur": Corruption(blur.glass_blur, blur.glass_parameters),
    "motion_blur": Corruption(blur.motion_blur, blur.motion_parameters),
    "zoom_blur": Corruption(blur.zoom_blur, blur.zoom_matrices),
    "snow": Corruption(weather.snow, weather.snow_parameters),
    "frost": Corruption(weather.frost, weather.frost_parameters, needs_colour=True),
    "fog": Corruption(weather.fog, _numbers(weather.FOG)),
    "brightness": Corruption(digital.brightness, _numbers(digital.BRIGHTNESS)),
    "contrast": Corruption(digital.contrast, _numbers(digital.CONTRAST)),
    "elastic_transform": Corruption(digital.elastic_transform, digital.elastic_parameters),
    "pixelate": Corruption(digital.pixelate, digital.pixelate_matrices),
    "jpeg_compression": Corruption(
        jpeg.jpeg_compression, lambda h, w, severity: jpeg.jpeg_tables(jpeg.QUALITY[severity - 1])
    ),
    "speckle_noise": Corruption(noise.speckle_noise, _numbers(noise.SPECKLE_SIGMA)),
    "gaussian_blur": Corruption(
        blur.gaussian_blur, lambda h, w, severity: blur.gaussian_matrices(h, w, blur.GAUSSIAN_SIGMA[severity - 1])
    ),
    "spatter": Corruption(spatter.spatter, spatter.spatter_parameters, needs_colour=True),
    "saturate": Corruption(digital.saturate, _numbers(digital.SATURATION), needs_colour=True),
}
NAMES = tuple(CORRUPTIONS)


def corrupted(
    images: UInt8[np.ndarray, "example height width channel"], name: str, severity: int, *, seed: int = 0
) -> UInt8[np.ndarray, "example height width channel"]:
    """Images under a corruption of ``NAMES`` at a severity from 1 to 5.

        from sdebnn import corruptions

        pixels = np.uint8(255 * images)
        fog = corruptions.corrupted(pixels, "fog", 3)

    The result for an image depends on the image, its index, the name, the severity and the seed, and on nothing else;
    other devices may differ by one in a few values. Images have one or three channels and sides of at least 8 pixels.
    Lengths that were published for 32 pixels grow with larger images: see ``pixels.length_scale``. A grey image
    is corrupted as one channel; frost, spatter and saturate, which use colours, treat it as three equal channels
    and return the luma of the result.
    """
    check_process()
    check_cell(images, name, severity, seed)
    images = np.asarray(images)
    _, height, width, channels = images.shape
    parameters = jax.device_put(CORRUPTIONS[name].parameters(height, width, severity))
    key = _key(name, severity, seed)
    batch = max(1, VALUES_AT_ONCE // (height * width * channels))
    result = np.empty_like(images)
    for start in range(0, len(images), batch):
        part = images[start : start + batch]
        # Always a whole batch: programs for different numbers of images could round differently.
        padded = np.pad(part, ((0, batch - len(part)), (0, 0), (0, 0), (0, 0)))
        index = np.arange(start, start + batch, dtype=np.uint32)
        result[start : start + batch] = _batch(name, padded, index, parameters, key)[: len(part)]
    return result


def check_cell(images: np.ndarray, name: str, severity: int, seed: int) -> None:
    """Refuse an unknown name or severity, a seed out of range, and anything but a batch of uint8 images."""
    check_choice("name", name, NAMES)
    check_severity(severity)
    check_count("seed", seed, least=0)
    if seed >= SEEDS:
        raise ValueError(f"seed={seed} must be less than {SEEDS}.")
    if getattr(images, "dtype", None) != np.uint8:
        what = f"of dtype {images.dtype}" if hasattr(images, "dtype") else shown(images)
        raise ValueError(f"images are {what}: pass an array of uint8 from 0 to 255.")
    shape = np.shape(images)
    if len(shape) != 4 or shape[3] not in (1, 3):
        raise ValueError(f"images have shape {shape}: pass a batch of shape (examples, height, width, 1 or 3).")
    if shape[0] == 0 or min(shape[1:3]) < LEAST_SIDE:
        raise ValueError(f"images have shape {shape}: pass at least one, with sides of at least {LEAST_SIDE} pixels.")


def check_severity(severity: int) -> None:
    """Refuse anything but a whole number from 1 to 5."""
    if isinstance(severity, bool) or not isinstance(severity, Integral) or severity not in SEVERITIES:
        raise ValueError(f"severity={shown(severity)} is unknown: choose one of 1, 2, 3, 4, 5.")


def _key(name: str, severity: int, seed: int) -> PRNGKeyArray:
    """The key of a cell."""
    key = jax.random.key(np.uint32(seed), impl="threefry2x32")
    return jax.random.fold_in(key, NAMES.index(name) * len(SEVERITIES) + severity)


@partial(jax.jit, static_argnames="name")
def _batch(
    name: str, images: UInt8[Array, "example height width channel"], index: UInt32[Array, " example"], parameters: Any,
    key: PRNGKeyArray,
) -> UInt8[Array, "example height width channel"]:  # fmt: skip
    """A batch of images whose indices are given."""
    corruption = CORRUPTIONS[name]

    def one(image: UInt8[Array, "height width channel"], i: UInt32[Array, ""]) -> UInt8[Array, "height width channel"]:
        pixels = image.astype(np.float32)
        as_colour = corruption.needs_colour and image.shape[-1] == 1
        if as_colour:
            pixels = jnp.repeat(pixels, 3, axis=-1)
        pixels = jnp.clip(corruption.apply(pixels, parameters, key=jax.random.fold_in(key, i)), 0, 255)
        return truncated(grey(pixels) if as_colour else pixels).astype(np.uint8)

    return jax.vmap(one)(images, index)
