"""What all corruptions share: the type of an image, its grey, its bytes, and the scale of lengths."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

AnyArray = Array | np.ndarray
Image = Float[Array, "height width channel"]  # from 0 to 255
SIDE = 32  # pixels, for which the severities were published
LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue in grey


def length_scale(height: int, width: int) -> float:
    """The factor by which lengths in pixels are multiplied: the shorter side over 32 pixels, but at least 1.

    Smaller images keep the published lengths, because most blurs would otherwise be narrower than a pixel.
    """
    return max(1.0, min(height, width) / SIDE)


def grey(image: Image) -> Float[Array, "height width 1"]:
    """The luma of a colour image; a grey image is its own."""
    if image.shape[-1] == 1:
        return image
    return (image * jnp.array(LUMA, jnp.float32)).sum(-1, keepdims=True)


def truncated(image: Image) -> Image:
    """Whole numbers from 0 to 255, truncated, not rounded.

    A whole number may come out of float32 arithmetic slightly smaller, so that 1/1024 is added first.
    """
    return jnp.floor(jnp.clip(image, 0, 255) + 2**-10)
