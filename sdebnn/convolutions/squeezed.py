"""All Euler steps of the paper's field on images whose 2×2 patches are packed into channels, which is fast on GPUs.

Every layer is then a convolution of stride 1 over patches. Its kernel holds the taps m of the layer's own kernel, and
zeros elsewhere. Along one axis, with i a patch, and a and e the parities of the pixels that are read and written:

    same    pixel 2i + e reads pixel 2 (i + u) + a    by tap  m = 2u + a - e + 1,   u = -1, 0, 1
    down    pixel i      reads pixel 2 (i + u) + a    by tap  m = 2u + a,           u = 0, 1
    up      pixel 2i + e reads pixel i - u            by tap  m = 2u + e  (of the flipped kernel),   u = 0, 1

This takes more arithmetic on more channels, which costs a GPU's matrix units little if the channels are few. A state of
many channels is not packed: its two outer layers run on pixels, and patches are made for the inner layers within a
step. Everything that does not depend on the batch (kernels and maps of all steps) is made before the first step.
"""

from collections.abc import Callable, Sequence
from typing import TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.extend.core import Primitive
from jaxtyping import Array, Float

from sdebnn.convolutions.operations import Move, add_to_each, shifts, squeeze, taps, unsqueeze

MOVES: tuple[Move, ...] = ("same", "down", "up", "same")
MIN_UNPACKED_CHANNELS = 16  # a state of at least this many channels is not packed into patches
CHANNEL_MULTIPLE = 16  # matrix units need a multiple of 8, but for 24 cuDNN's first choice of algorithm is poor

LayerArrays = tuple[Float[Array, "step 3 3 _ _"], Float[Array, "step 3 3 _"], Float[Array, "step _"]]
Images = Float[Array, "example height width channel"]
Patches = Float[Array, "example _ _ _"]
Step = tuple[tuple[Array, Array], ...]


def fits(
    layers: Sequence[tuple[Array, Array | None, Array]], h0: Array, moves: Sequence[str]
) -> TypeGuard[tuple[LayerArrays, ...]]:
    """Whether the layers are the paper's four, with a leading axis of steps, and the sides of the images are even."""
    return (
        tuple(moves) == MOVES
        and all(time is not None and (kernel.ndim, time.ndim, bias.ndim) == (5, 4, 2) for kernel, time, bias in layers)
        and h0.ndim == 4
        and h0.shape[1] % 2 == h0.shape[2] % 2 == 0
    )


def euler_over_patches(
    layers: Sequence[LayerArrays],
    h0: Images,
    *,
    activation: Callable[[Array], Array],
    compute: str,
    keep: bool,
    unroll: int,
) -> Images:
    """The state after all steps, one for each entry of the layers' arrays, for arguments that ``fits`` accepts.

    With ``keep``, the activations of every step are stored for the backward pass; otherwise only its start.
    """
    steps, wide = layers[0][0].shape[0], h0.shape[-1] >= MIN_UNPACKED_CHANNELS
    into, out_of = jax.vmap(squeeze), jax.vmap(unsqueeze)
    same = jax.nn.identity
    begin, end, inwards, outwards = (same, same, into, out_of) if wide else (into, out_of, same, same)
    start = begin(h0)
    channels, extra = start.shape[-1], -start.shape[-1] % CHANNEL_MULTIPLE

    def slope(h: Array, now: Step) -> Array:
        (k1, m1), (k2, m2), (k3, m3), (k4, m4) = now
        a = activation(inwards(add_to_each(_convolved(h, k1), m1)))
        a = activation(_channels_last(add_to_each(_multiplied_then_shifted(a, k2), m2)))
        a = activation(outwards(add_to_each(_shifted_then_multiplied(a, k3), m3)))
        return add_to_each(_convolved(a, k4), m4)

    kept = jax.checkpoint(slope, policy=_is_activation) if keep else jax.checkpoint(slope)

    def step(h: Array, now: Step) -> tuple[Array, None]:
        """One step. The backward pass stores the rounded state that the field takes, not the one that is carried."""
        return h + kept(h.astype(compute), now).astype(h.dtype) / steps, None

    start = jnp.pad(start, ((0, 0), (0, 0), (0, 0), (0, extra)))
    h1, _ = lax.scan(step, start, _prepared(layers, h0.shape[1:3], extra, compute, wide), unroll=unroll)
    return end(h1[..., :channels])


def _channels_last(x: Patches) -> Patches:
    """Fix the memory layout of images. Otherwise XLA puts the batch last between two products, because the gradient of
    the map is a sum over it, and transposes images four times a step.

    With jax 0.10, this would gather a batch that is sharded over devices, so it is left out.
    """
    return with_layout_constraint(x, Layout((0, 1, 2, 3))) if jax.__version_info__ >= (0, 11) else x


def _is_activation(primitive: Primitive, *_: object, **__: object) -> bool:
    """Whether to store a value for the backward pass: the rest of a step is cheap to recompute from activations."""
    return primitive.name in ("tanh", "logistic", "erf", "max", "exp")


def _prepared(layers: Sequence[LayerArrays], sides: Sequence[int], extra: int, compute: str, wide: bool) -> Step:
    """The kernels and the maps of all steps, over patches, or over pixels for the outer layers of a ``wide`` state."""
    t = jnp.arange(layers[0][0].shape[0]) / layers[0][0].shape[0]
    prepared = []
    for number, ((kernel, time, bias), move) in enumerate(zip(layers, MOVES, strict=True)):
        met = jnp.asarray(taps(sides[0], sides[1], move), time.dtype)
        of_time = jnp.einsum("hwij,sijo->shwo", met, time, precision="highest")
        image = bias[:, None, None] + t[:, None, None, None] * of_time
        kernel = kernel[:, ::-1, ::-1] if move == "up" else kernel
        if not wide or move != "same":
            kernel = _over_patches(kernel, _places(move))
            image = image if move == "down" else jax.vmap(squeeze)(image)
        before, after = extra * (number == 0), extra * (number == len(MOVES) - 1)
        kernel = jnp.pad(kernel, ((0, 0), (0, 0), (0, 0), (0, before), (0, after)))
        image = jnp.pad(image, ((0, 0), (0, 0), (0, 0), (0, after)))
        if move == "down":  # the four offsets side by side, so that one product computes them
            kernel = kernel.transpose(0, 3, 1, 2, 4).reshape(kernel.shape[0], kernel.shape[3], -1)
        elif move == "up":
            kernel = kernel.reshape(kernel.shape[0], -1, kernel.shape[-1])
        prepared.append((kernel.astype(compute), image.astype(compute)))
        scale = {"same": 1.0, "down": 0.5, "up": 2.0}[move]
        sides = [round(scale * side) for side in sides]
    return tuple(prepared)


def _places(move: Move) -> np.ndarray:
    """Whether, along one axis, a tap connects two parities at an offset: [offset, parity read, parity written, tap]."""
    u, a, e, m = np.ogrid[-1:2, :2, :2, :3]
    if move == "same":
        return m == 2 * u + a - e + 1
    u = u[1:]
    if move == "down":
        return (m == 2 * u + a)[:, :, :1]
    return (m == 2 * (1 - u) + e)[:, :1]  # the offset is -u


def _over_patches(kernel: Float[Array, "step 3 3 in out"], places: np.ndarray) -> Float[Array, "step _ _ _ _"]:
    offsets, read, written, _ = places.shape
    steps, *_, c, out = kernel.shape
    spread = _spread(_spread(kernel, places, 1), places, 2)
    spread = spread.reshape(steps, *2 * (offsets, read, written), c, out).transpose(0, 1, 4, 2, 5, 7, 3, 6, 8)
    return spread.reshape(steps, offsets, offsets, read**2 * c, written**2 * out)


def _spread(kernel: Array, places: np.ndarray, axis: int) -> Array:
    """Place each tap along one axis where ``places`` says, with zeros elsewhere, by copying instead of a product."""
    each = [lax.index_in_dim(kernel, m, axis) for m in range(3)]
    return jnp.concatenate(
        [each[row.argmax()] if row.any() else jnp.zeros_like(each[0]) for row in places.reshape(-1, 3)], axis
    )


def _convolved(x: Patches, kernel: Float[Array, "3 3 in out"]) -> Patches:
    out = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return lax.optimization_barrier(out)  # otherwise the map is copied for every image, so that cuDNN can add it


def _multiplied(x: Patches, matrix: Float[Array, "in out"]) -> Patches:
    """Multiply every patch by one matrix. The product has two axes, because XLA transposes images if it has four."""
    return (x.reshape(-1, x.shape[-1]) @ matrix).reshape(*x.shape[:-1], matrix.shape[-1])


def _shifted_then_multiplied(x: Patches, matrix: Float[Array, "in out"]) -> Patches:
    """One product with patches i - 1 and i along each axis."""
    return _multiplied(jnp.concatenate(shifts(x, 1, 0, 2), -1), matrix)


def _multiplied_then_shifted(x: Patches, matrix: Float[Array, "in out"]) -> Patches:
    """One product for patches i and i + 1 along each axis, summed in float32."""
    parts, out = shifts(_multiplied(x, matrix), 0, 1, 2), matrix.shape[1] // 4
    each = [part[..., m * out : (m + 1) * out].astype(jnp.float32) for m, part in enumerate(parts)]
    return sum(each[1:], start=each[0]).astype(x.dtype)
