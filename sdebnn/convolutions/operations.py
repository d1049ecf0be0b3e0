"""3x3 convolutions of images (..., H, W, C) that stay fast inside XLA loops on CPU.

With x an image, w a kernel (3, 3, in, out), s the stride and zeros outside the image, everything here is one trilinear
form T(x, w, y) = sum_{p, m} x[s p + m - l] w[m] y[p], with l = 1 for s = 1 and l = 0 for s = 2 ('SAME' padding):

    down(x, w) = dT/dy    the convolution       y[p] = sum_m x[s p + m - l] w[m]
    up(y, w)   = dT/dx    its adjoint in x      x[s p + m - l] += w[m] y[p]
    corr(x, y) = dT/dw    its adjoint in w      w[m] = sum_p x[s p + m - l] y[p]

and the gradient of each is made of the other two. XLA on CPU runs `corr` as a convolution some 50 times too slowly, and
other convolutions on one thread when they sit in a loop; its matrix products are fast there. So on CPU the sums above are
matrix products over shifted images, and other platforms keep `lax.conv_general_dilated` and its own gradient.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

NARROW = 8  # with at most this many channels, nine shifted copies of an image cost less than XLA's own convolution


def conv(x: Array, kernel: Array, stride: int = 1) -> Array:
    """'SAME' convolution of x (..., H, W, in) with kernel (3, 3, in, out), stride 1 or 2."""
    _check(kernel, stride)
    images = x.reshape(-1, *x.shape[-3:])
    if stride == 2:  # 'SAME' pads an odd side by one zero in front too, which makes it the even case
        images = jnp.pad(images, ((0, 0), (x.shape[-3] % 2, 0), (x.shape[-2] % 2, 0), (0, 0)))
    y = _down(images, kernel, stride)
    return y.reshape(*x.shape[:-3], *y.shape[1:])


def conv_transpose(x: Array, kernel: Array) -> Array:
    """`lax.conv_transpose(x, kernel, (2, 2), 'SAME')`: x (..., H, W, in), kernel (3, 3, in, out) to (..., 2H, 2W, out)."""
    _check(kernel, 2)
    y = _up(x.reshape(-1, *x.shape[-3:]), _flip(kernel), 2)
    return y.reshape(*x.shape[:-3], *y.shape[1:])


def _check(kernel: Array, stride: int) -> None:
    if kernel.shape[:2] != (3, 3) or stride not in (1, 2):
        raise ValueError(f"need a 3x3 kernel and stride 1 or 2, got {kernel.shape[:2]} and {stride}")


def _flip(w: Array) -> Array:
    """The kernel of the adjoint: turned by half a circle, in and out swapped."""
    return w[::-1, ::-1].swapaxes(2, 3)


def _lax(x: Array, w: Array, stride: int) -> Array:
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _shifts(x: Array, before: int, after: int, taps: int, stride: int = 1) -> list[Array]:
    """The taps^2 shifted images x[stride p + m - before], zero outside x."""
    x = jnp.pad(x, ((0, 0), (before, after), (before, after), (0, 0)))
    h, w = x.shape[1] - taps + 1, x.shape[2] - taps + 1
    return [x[:, i : i + h : stride, j : j + w : stride] for i in range(taps) for j in range(taps)]


def _down_cpu(x: Array, w: Array, stride: int) -> Array:
    """y[p] = sum_m x[s p + m - l] w[m]: shift then multiply, or multiply then shift, whichever moves fewer channels."""
    c, out = w.shape[2:]
    if stride == 2 or min(c, out) > NARROW:
        return _lax(x, w, stride)
    if c <= out:
        return jnp.concatenate(_shifts(x, 1, 1, 3), -1) @ w.reshape(9 * c, out)
    z = _shifts(x @ w.transpose(2, 0, 1, 3).reshape(c, 9 * out), 1, 1, 3)
    return sum(shifted[..., m * out : (m + 1) * out] for m, shifted in enumerate(z))


def _up_cpu(y: Array, w: Array, stride: int) -> Array:
    """x[s p + m - l] += w[m] y[p]: for s = 2 the four parities of a pixel are four images, of 2x2 taps each."""
    if stride == 1:
        return _down_cpu(y, _flip(w), 1)
    n, height, width, out = y.shape
    c = w.shape[2]
    taps = jnp.pad(w, ((0, 1), (0, 1), (0, 0), (0, 0))).reshape(2, 2, 2, 2, c, out)[::-1, :, ::-1]
    z = jnp.concatenate(_shifts(y, 1, 0, 2), -1) @ taps.transpose(0, 2, 5, 1, 3, 4).reshape(4 * out, 4 * c)
    z = z.reshape(n, height, width, 2, 2, c).transpose(0, 1, 3, 2, 4, 5)
    return z.reshape(n, 2 * height, 2 * width, c)


def _corr_cpu(x: Array, y: Array, stride: int) -> Array:
    """w[m] = sum_p x[s p + m - l] y[p], shifting the image with fewer channels."""
    c, out = x.shape[-1], y.shape[-1]
    if stride == 1 and c > out:
        return _flip(_corr_cpu(y, x, 1))
    shifts, y = _shifts(x, 2 - stride, 1, 3, stride), y.reshape(-1, out)
    rows = [jnp.concatenate(shifts[i : i + 3], -1).reshape(-1, 3 * c) for i in (0, 3, 6)]
    return jnp.stack([lax.dot_general(row, y, (((0,), (0,)), ((), ()))) for row in rows]).reshape(3, 3, c, out)


def _up_lax(y: Array, w: Array, stride: int) -> Array:
    x = jax.ShapeDtypeStruct((y.shape[0], stride * y.shape[1], stride * y.shape[2], w.shape[2]), y.dtype)
    return jax.linear_transpose(lambda x: _lax(x, w, stride), x)(y)[0]


def _corr_lax(x: Array, y: Array, stride: int) -> Array:
    w = jax.ShapeDtypeStruct((3, 3, x.shape[-1], y.shape[-1]), x.dtype)
    return jax.linear_transpose(lambda w: _lax(x, w, stride), w)(y)[0]


def _corr(x: Array, y: Array, stride: int) -> Array:
    return lax.platform_dependent(
        x, y, cpu=partial(_corr_cpu, stride=stride), default=partial(_corr_lax, stride=stride)
    )


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _down(x: Array, w: Array, stride: int) -> Array:
    return lax.platform_dependent(x, w, cpu=partial(_down_cpu, stride=stride), default=partial(_lax, stride=stride))


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _up(y: Array, w: Array, stride: int) -> Array:
    return lax.platform_dependent(y, w, cpu=partial(_up_cpu, stride=stride), default=partial(_up_lax, stride=stride))


_down.defvjp(
    lambda x, w, stride: (_down(x, w, stride), (x, w)),
    lambda stride, xw, y: (_up(y, xw[1], stride), _corr(xw[0], y, stride)),
)
_up.defvjp(
    lambda y, w, stride: (_up(y, w, stride), (y, w)),
    lambda stride, yw, x: (_down(x, yw[1], stride), _corr(x, yw[0], stride)),
)
