"""JPEG compression and decompression: what is lost, without the file.

Y, Cb and Cr in bytes, Cb and Cr halved in both directions; in blocks of 8 x 8, the cosine transform B = D X Dᵀ, divided
by a table, rounded, and back. Tables are those of the standard's annex K, scaled by the quality as libjpeg does.
Lossless steps (zigzag, Huffman codes) change nothing and are left out.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sdebnn.corruptions.pixels import Image

QUALITY = (80, 65, 58, 50, 40)
LUMINANCE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
CHROMINANCE = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *[(99,) * 8] * 4,
)
BLOCK = 8
TO_YCC = ((0.299, 0.587, 0.114), (-0.168735892, -0.331264108, 0.5), (0.5, -0.418687589, -0.081312411))
ONE = 2**16  # weights have 16 bits after the point, as in libjpeg
OFFSET = (ONE // 2, 128 * ONE + ONE // 2 - 1, 128 * ONE + ONE // 2 - 1)
FREQUENCY = np.arange(BLOCK)[:, None]
COSINES = np.cos(np.pi * FREQUENCY * (2 * np.arange(BLOCK) + 1) / 16) * np.where(FREQUENCY > 0, 0.5, np.sqrt(0.125))
Plane = Float[Array, "height width"]


def jpeg_tables(quality: int) -> tuple[Int[np.ndarray, "8 8"], Int[np.ndarray, "8 8"]]:
    """The divisors of the coefficients of luminance and chrominance."""
    percent = 5000 // quality if quality < 50 else 200 - 2 * quality
    luminance, chrominance = (
        np.clip((np.array(table) * percent + 50) // 100, 1, 255).astype(np.int32) for table in (LUMINANCE, CHROMINANCE)
    )
    return luminance, chrominance


def jpeg_compression(image: Image, tables: tuple[Array, Array], *, key: PRNGKeyArray) -> Image:
    """The image after JPEG; a grey image is compressed as one plane."""
    luminance, chrominance = tables
    if image.shape[-1] == 1:
        return decoded(image[..., 0], luminance)[..., None]
    weights, offset = np.round(np.array(TO_YCC) * ONE).astype(np.int32), np.array(OFFSET, np.int32)
    ycc = ((image.astype(jnp.int32)[..., None, :] * weights).sum(-1) + offset) // ONE
    y, cb, cr = jnp.moveaxis(ycc.astype(jnp.float32), -1, 0)
    height, width, _ = image.shape
    y = decoded(y, luminance)
    # Beyond the border, Cb and Cr are known only to the encoder.
    blue, red = (
        doubled(decoded(halved(plane), chrominance)[:, : (width + 1) // 2])[:height, :width] - 128 for plane in (cb, cr)
    )
    green = jnp.floor(-0.344136286 * blue - 0.714136286 * red + 0.5)
    return jnp.stack([y + jnp.round(1.402 * red), y + green, y + jnp.round(1.772 * blue)], -1)


def decoded(plane: Plane, table: Int[Array, "8 8"]) -> Plane:
    """A plane of bytes after its coefficients were rounded; its last pixels fill up incomplete blocks."""
    height, width = plane.shape
    padded = jnp.pad(plane, ((0, -height % BLOCK), (0, -width % BLOCK)), mode="edge") - 128
    blocks = padded.reshape(padded.shape[0] // BLOCK, BLOCK, padded.shape[1] // BLOCK, BLOCK)
    cosines = jnp.sqrt(8) * jnp.array(COSINES, jnp.float32)
    # As in libjpeg, the first pass is rounded to quarters and the second to whole numbers, which are 8 coefficients.
    rows = _rounded(4 * jnp.einsum("aibj,vj->aibv", blocks, cosines, precision="highest"))
    eighths = _rounded(jnp.einsum("ui,aibv->aubv", cosines, rows, precision="highest") / 4).astype(jnp.int32)
    divisor = table[:, None]
    kept = jnp.sign(eighths) * ((abs(eighths) + 4 * divisor) // (8 * divisor)) * divisor
    columns = _rounded(4 * jnp.einsum("ui,aubv->aibv", cosines, kept.astype(jnp.float32), precision="highest"))
    blocks = _rounded(jnp.einsum("aibv,vj->aibj", columns, cosines, precision="highest") / 32)
    return jnp.clip(blocks.reshape(padded.shape) + 128, 0, 255)[:height, :width]


def _rounded(values: Float[Array, "..."]) -> Float[Array, "..."]:
    """The nearest whole numbers; halves are rounded up."""
    return jnp.floor(values + 0.5)


def halved(plane: Plane) -> Float[Array, "half_height half_width"]:
    """Means of 2 x 2 pixels; halves are rounded down in even columns and up in odd ones.

    As in libjpeg, incomplete blocks are filled up before columns are halved, but after rows are.
    """
    height, width = plane.shape
    padded = jnp.pad(plane, ((0, height % 2), (0, -width % (2 * BLOCK))), mode="edge")
    total = padded.reshape(padded.shape[0] // 2, 2, padded.shape[1] // 2, 2).sum((1, 3))
    return jnp.floor((total + 1 + jnp.arange(total.shape[1]) % 2) / 4)


def doubled(plane: Float[Array, "half_height half_width"]) -> Plane:
    """Linear interpolation to twice the size: weights 3/4 and 1/4 along each axis; the border repeats."""
    padded = jnp.pad(plane, ((1, 1), (0, 0)), mode="edge")
    rows = jnp.stack([3 * plane + padded[:-2], 3 * plane + padded[2:]], 1).reshape(-1, plane.shape[1])
    padded = jnp.pad(rows, ((0, 0), (1, 1)), mode="edge")
    left, right = 3 * rows + padded[:, :-2] + 8, 3 * rows + padded[:, 2:] + 7
    return jnp.floor(jnp.stack([left, right], 2).reshape(len(rows), -1) / 16)
