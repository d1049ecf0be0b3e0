"""3x3 convolutions of images (..., H, W, C) that are fast inside XLA loops on CPU.

With x an image, w a kernel (3, 3, in, out), s the stride and zeros outside the image, everything here is one trilinear
form T(x, w, y) = sum_{p, m} x[s p + m - l] w[m] y[p], with l = 1 for s = 1 and l = 0 for s = 2 ('SAME' padding):

    down(x, w) = dT/dy    the convolution       y[p] = sum_m x[s p + m - l] w[m]
    up(y, w)   = dT/dx    its adjoint in x      x[s p + m - l] += w[m] y[p]
    corr(x, y) = dT/dw    its adjoint in w      w[m] = sum_p x[s p + m - l] y[p]

and the gradient of each is made of the other two. XLA on CPU runs `corr` as a convolution about 50 times too slowly,
and other convolutions inside a loop on one thread; its matrix products are fast there. So on CPU the sums above are
matrix products over shifted images, while other platforms use `lax.conv_general_dilated` and its own gradient.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

Move = Literal["same", "down", "up"]  # keep, halve or double the size of the image
MAX_SHIFTED_CHANNELS = 8  # up to here, nine shifted copies of an image cost less than XLA's own convolution

FlatImages = Float[Array, "image _ _ _"]
ConvKernel = Float[Array, "3 3 in out"]


def conv(
    x: Float[Array, "*batch height width in"], kernel: ConvKernel, stride: int = 1
) -> Float[Array, "*batch _ _ out"]:
    """'SAME' convolution of stride 1 or 2."""
    _check(kernel, stride)
    images = x.reshape(-1, *x.shape[-3:])
    if stride == 2:  # 'SAME' also pads an odd side by one zero in front; after that the even case applies
        images = jnp.pad(images, ((0, 0), (x.shape[-3] % 2, 0), (x.shape[-2] % 2, 0), (0, 0)))
    y = _down(images, kernel, stride)
    return y.reshape(*x.shape[:-3], *y.shape[1:])


def conv_transpose(
    x: Float[Array, "*batch height width in"], kernel: ConvKernel
) -> Float[Array, "*batch 2*height 2*width out"]:
    """The same as `lax.conv_transpose(x, kernel, (2, 2), 'SAME')`, which doubles the sides."""
    _check(kernel, 2)
    y = _up(x.reshape(-1, *x.shape[-3:]), _flip(kernel), 2)
    return y.reshape(*x.shape[:-3], *y.shape[1:])


def add_to_each(x: Float[Array, "..."], y: Float[Array, "..."]) -> Float[Array, "..."]:
    """Add y, an image or one number for each channel, to every image or pixel of x.

    The gradient of y is summed in at least float32, whatever the type of the images.
    """
    batch = x.ndim - y.ndim
    if x.shape[batch:] != y.shape:
        raise ValueError(f"y has shape {y.shape}, which is not the end of the shape {x.shape} of x.")
    return _add(x.reshape(math.prod(x.shape[:batch]), *y.shape), y.astype(x.dtype)).reshape(x.shape)


def taps(height: int, width: int, move: Move) -> Bool[np.ndarray, "_ _ 3 3"]:
    """Which taps of a kernel lie inside the image, at each output pixel. A convolution of ones sums over these taps."""

    def met(size: int) -> np.ndarray:
        if move == "up":
            source = np.arange(2 * size)[:, None] - 2 + np.arange(3)
            return (source % 2 == 0) & (source >= 0) & (source < 2 * size)
        stride, before = (1, 1) if move == "same" else (2, size % 2)
        source = stride * np.arange(-(-size // stride))[:, None] + np.arange(3) - before
        return (source >= 0) & (source < size)

    return met(height)[:, None, :, None] & met(width)[None, :, None, :]


def squeeze(x: Float[Array, "height width channel"]) -> Float[Array, "_ _ 4*channel"]:
    """Turn each 2×2 patch of pixels into one pixel with four times the channels; ``unsqueeze`` is the inverse.

        net = SDEBNN((Deterministic(squeeze), Deterministic(pooled)))
        small = squeeze(images[0])

    ``x`` is one image, whose sides must be even.
    """
    height, width, channels = x.shape
    if height % 2 or width % 2:
        raise ValueError(f"an image of {height} by {width} pixels cannot be squeezed: its sides must be even.")
    patches = x.reshape(height // 2, 2, width // 2, 2, channels).transpose(0, 2, 1, 3, 4)
    return patches.reshape(height // 2, width // 2, 4 * channels)


def unsqueeze(x: Float[Array, "height width channel"]) -> Float[Array, "2*height 2*width _"]:
    """The inverse of ``squeeze``.

        same = unsqueeze(squeeze(images[0]))

    ``x`` is one image, whose number of channels must be a multiple of 4.
    """
    height, width, channels = x.shape
    patches = x.reshape(height, width, 2, 2, channels // 4).transpose(0, 2, 1, 3, 4)
    return patches.reshape(2 * height, 2 * width, channels // 4)


def _check(kernel: Array, stride: int) -> None:
    if kernel.shape[:2] != (3, 3) or stride not in (1, 2):
        raise ValueError(
            f"a kernel of shape {kernel.shape[:2]} with stride={stride} is not supported: use (3, 3), stride 1 or 2."
        )


def _flip(w: ConvKernel) -> Float[Array, "3 3 out in"]:
    """The kernel of the adjoint: rotated by 180 degrees, with in and out swapped."""
    return w[::-1, ::-1].swapaxes(2, 3)


def _lax(x: FlatImages, w: ConvKernel, stride: int) -> Float[Array, "image _ _ out"]:
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def shifts(x: FlatImages, before: int, after: int, taps: int, stride: int = 1) -> list[Array]:
    """The taps^2 shifted images x[stride p + m - before], zero outside x."""
    x = jnp.pad(x, ((0, 0), (before, after), (before, after), (0, 0)))
    h, w = x.shape[1] - taps + 1, x.shape[2] - taps + 1
    return [x[:, i : i + h : stride, j : j + w : stride] for i in range(taps) for j in range(taps)]


def _down_cpu(x: FlatImages, w: ConvKernel, stride: int) -> FlatImages:
    """y[p] = sum_m x[s p + m - l] w[m]: shift then multiply, or multiply then shift, whichever moves fewer channels."""
    c, out = w.shape[2:]
    if stride == 2 or min(c, out) > MAX_SHIFTED_CHANNELS:
        return _lax(x, w, stride)
    if c <= out:
        return jnp.concatenate(shifts(x, 1, 1, 3), -1) @ w.reshape(9 * c, out)
    z = shifts(x @ w.transpose(2, 0, 1, 3).reshape(c, 9 * out), 1, 1, 3)
    parts = [shifted[..., m * out : (m + 1) * out] for m, shifted in enumerate(z)]
    return sum(parts[1:], start=parts[0])


def _up_cpu(y: FlatImages, w: ConvKernel, stride: int) -> FlatImages:
    """x[s p + m - l] += w[m] y[p]: for s = 2 the four parities of a pixel are four images, of 2x2 taps each."""
    if stride == 1:
        return _down_cpu(y, _flip(w), 1)
    n, height, width, out = y.shape
    c = w.shape[2]
    taps = jnp.pad(w, ((0, 1), (0, 1), (0, 0), (0, 0))).reshape(2, 2, 2, 2, c, out)[::-1, :, ::-1]
    z = jnp.concatenate(shifts(y, 1, 0, 2), -1) @ taps.transpose(0, 2, 5, 1, 3, 4).reshape(4 * out, 4 * c)
    z = z.reshape(n, height, width, 2, 2, c).transpose(0, 1, 3, 2, 4, 5)
    return z.reshape(n, 2 * height, 2 * width, c)


def _corr_cpu(x: FlatImages, y: FlatImages, stride: int) -> ConvKernel:
    """w[m] = sum_p x[s p + m - l] y[p], shifting the image with fewer channels."""
    c, out = x.shape[-1], y.shape[-1]
    if stride == 1 and c > out:
        return _flip(_corr_cpu(y, x, 1))
    shifted, y = shifts(x, 2 - stride, 1, 3, stride), y.reshape(-1, out)
    rows = [jnp.concatenate(shifted[i : i + 3], -1).reshape(-1, 3 * c) for i in (0, 3, 6)]
    return jnp.stack([lax.dot_general(row, y, (((0,), (0,)), ((), ()))) for row in rows]).reshape(3, 3, c, out)


def _up_lax(y: FlatImages, w: ConvKernel, stride: int) -> FlatImages:
    x = jax.ShapeDtypeStruct((y.shape[0], stride * y.shape[1], stride * y.shape[2], w.shape[2]), y.dtype)
    return jax.linear_transpose(lambda x: _lax(x, w, stride), x)(y)[0]


def _corr_lax(x: FlatImages, y: FlatImages, stride: int) -> ConvKernel:
    w = jax.ShapeDtypeStruct((3, 3, x.shape[-1], y.shape[-1]), x.dtype)
    return jax.linear_transpose(lambda w: _lax(x, w, stride), w)(y)[0]


def _by_platform(cpu: Callable[..., Array], default: Callable[..., Array]) -> Callable[[Array, Array, int], Array]:
    def chosen(a: Array, b: Array, stride: int) -> Array:
        return lax.platform_dependent(a, b, cpu=partial(cpu, stride=stride), default=partial(default, stride=stride))

    return chosen


_down = jax.custom_vjp(_by_platform(_down_cpu, _lax), nondiff_argnums=(2,))
_up = jax.custom_vjp(_by_platform(_up_cpu, _up_lax), nondiff_argnums=(2,))
_corr = _by_platform(_corr_cpu, _corr_lax)
_down.defvjp(
    lambda x, w, stride: (_down(x, w, stride), (x, w)),
    lambda stride, xw, y: (_up(y, xw[1], stride), _corr(xw[0], y, stride)),
)
_up.defvjp(
    lambda y, w, stride: (_up(y, w, stride), (y, w)),
    lambda stride, yw, x: (_down(x, yw[1], stride), _corr(x, yw[0], stride)),
)


def _sum_cpu(y: Float[Array, "image ..."]) -> Float[Array, "..."]:
    """The sum over images, by a matrix product: XLA's own sum over a leading axis took ten times as long."""
    images, rows = jnp.ones((1, y.shape[0]), y.dtype), y.reshape(y.shape[0], math.prod(y.shape[1:]))
    summed = jnp.matmul(images, rows, preferred_element_type=jnp.promote_types(y.dtype, jnp.float32))
    return summed.reshape(y.shape[1:]).astype(y.dtype)


_add = jax.custom_vjp(jnp.add)
_add.defvjp(
    lambda x, image: (x + image, None),
    lambda _, y: (y, lax.platform_dependent(y, cpu=_sum_cpu, default=partial(jnp.sum, axis=0))),
)
