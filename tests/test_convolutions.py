import itertools
import math
import re
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from sdebnn import FixedGrid, bayesianize
from sdebnn.convolutions import Conv, GroupNorm, TimeConv, TimeConvLayer, squeeze, squeezed, unsqueeze
from sdebnn.convolutions.operations import add_to_each, conv, conv_transpose

pytestmark = pytest.mark.usefixtures("_compiled_in_haste")
KEY = jax.random.key(0)
DIMENSIONS = ("NHWC", "HWIO", "NHWC")
SIDES = [(4, 6), (5, 4)]
CHANNELS = [(3, 12), (12, 3), (2, 2), (12, 10)]  # few, or more than nine shifted copies are worth


def lax_conv(x, kernel, stride=1):
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=DIMENSIONS)


def lax_conv_transpose(x, kernel):
    return lax.conv_transpose(x, kernel, (2, 2), "SAME", dimension_numbers=DIMENSIONS)


MOVES = {
    "same": (conv, lax_conv),
    "down": (lambda x, kernel: conv(x, kernel, 2), lambda x, kernel: lax_conv(x, kernel, 2)),
    "up": (conv_transpose, lax_conv_transpose),
}


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(math.prod(shape)).normal(size=shape), jnp.float32)


def filled(make, *args, **kwargs):
    """A module with weights from NumPy: JAX would compile a generator for each shape."""
    shapes = eqx.filter_eval_shape(make, *args, **kwargs, key=KEY)
    is_shape = lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct)  # noqa: E731
    return jax.tree.map(lambda leaf: normal(*leaf.shape) if is_shape(leaf) else leaf, shapes)


def close(a, b, tolerance: float = 2e-5):
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * float(np.abs(b).max()))


@pytest.mark.parametrize("move", MOVES)
def test_a_convolution_and_both_its_gradients_are_those_of_lax(move):
    @jax.jit
    def value_and_gradients(x, kernel):
        pairs = [jax.vjp(f, x, kernel) for f in MOVES[move]]
        return [(y, *pull_back(jnp.cos(y))) for y, pull_back in pairs]

    for sides, channels in zip(itertools.cycle(SIDES), (*CHANNELS, CHANNELS[-1]), strict=False):
        both = value_and_gradients(normal(2, *sides, channels[0]), normal(3, 3, *channels))
        for ours, theirs in zip(*both, strict=True):
            close(ours, theirs)


@pytest.mark.parametrize("move", MOVES)
def test_the_gradient_of_a_gradient_is_that_of_lax(move):
    x, kernel = normal(2, 4, 6, 3), normal(3, 3, 3, 4)

    def second(f):
        first = jax.grad(lambda kernel: jnp.sum(jnp.tanh(f(x, kernel))))
        return jax.jit(jax.grad(lambda kernel: jnp.sum(first(kernel) ** 2)))(kernel)

    close(*map(second, MOVES[move]), tolerance=1e-4)


@pytest.mark.parametrize("channels", CHANNELS)
def test_the_transposed_convolution_is_the_adjoint_of_the_one_of_stride_two(channels):
    x, y, kernel = normal(2, 10, 6, channels[0]), normal(2, 5, 3, channels[1]), normal(3, 3, *channels)
    flipped = kernel[::-1, ::-1].swapaxes(2, 3)
    down, up = (
        np.asarray(jax.jit(conv, static_argnums=2)(x, kernel, 2)),
        np.asarray(jax.jit(conv_transpose)(y, flipped)),
    )
    # <conv(x, w), y> = <x, up(y, w)>
    assert np.vdot(down, y) == pytest.approx(np.vdot(x, up), rel=1e-4)


def test_what_is_not_a_convolution_of_three_by_three_pixels_is_refused():
    with pytest.raises(ValueError, match="stride=3"):
        conv(jnp.ones((4, 4, 1)), jnp.ones((3, 3, 1, 1)), 3)


def test_a_batch_of_images_is_one_image_after_the_other():
    field = eqx.filter_jit(filled(TimeConv, 9, (9, 9, 9)))
    h = normal(4, 4, 6, 9)
    close(field(0.3, h), np.stack([field(0.3, image) for image in h]))
    close(field(0.3, h.reshape(2, 2, 4, 6, 9)).reshape(h.shape), field(0.3, h))


@pytest.mark.parametrize("shape", [(4, 5, 6), (6,)])  # an image, or a number for each channel
def test_what_is_added_to_each_is_pulled_by_their_sum(shape):
    x, added, y = normal(2, 3, 4, 5, 6), normal(*shape), normal(2, 3, 4, 5, 6)
    out, pull_back = jax.vjp(jax.jit(add_to_each), x, added)
    close(out, np.asarray(x) + np.asarray(added))
    summed = np.asarray(y).sum(tuple(range(5 - len(shape))))
    for ours, exact in zip(pull_back(y), (np.asarray(y), summed), strict=True):
        close(ours, exact)


def test_what_is_added_in_bfloat16_is_summed_in_float32():
    x, added = jnp.zeros((8, 32, 32, 2), jnp.bfloat16), jnp.zeros(2, jnp.bfloat16)
    _, pull_back = jax.vjp(jax.jit(add_to_each), x, added)
    ones = jnp.ones_like(x)  # in bfloat16, 256 and one are 256
    assert pull_back(ones)[1].tolist() == [8192, 8192]
    elsewhere = jax.jit(lambda y: jax.vjp(add_to_each, x, added)[1](y)[1]).trace(ones)
    program = elsewhere.lower(lowering_platforms=("cuda",)).as_text()
    sums = [line for line in program.splitlines() if "stablehlo.reduce" in line]
    assert sums
    assert not any("bf16" in line for line in sums)


def literally(move, layer: TimeConvLayer, t, h):
    """Time as one more channel, filled with t."""
    with_time = jnp.concatenate([h, jnp.full((*h.shape[:-1], 1), t)], -1)
    return MOVES[move][1](with_time, jnp.concatenate([layer.kernel, layer.time[:, :, None]], 2)) + layer.bias


@pytest.mark.parametrize("move", MOVES)
def test_time_is_one_more_channel_constant_over_the_image_and_zero_outside(move):
    layer = filled(TimeConvLayer, 2, 3, move=move)
    for sides in SIDES:
        h = normal(2, *sides, 2)
        at = jax.jit(lambda t, h=h: layer(t, h))
        close(at(0.7), jax.jit(lambda h: literally(move, layer, 0.7, h))(h))
        added = np.asarray(at(0.7)[0]) - np.asarray(at(0.0)[0])
        assert np.ptp(added, (0, 1)).min() > 1e-3  # a number per channel would be the same everywhere


@pytest.mark.parametrize("move", MOVES)
def test_gradients_through_time_are_those_of_the_channel(move):
    layer, h = filled(TimeConvLayer, 2, 4, move=move), normal(2, 4, 6, 2)

    def gradient(f):
        return jax.jit(jax.grad(lambda pair: jnp.sum(jnp.sin(f(*pair, h)))))((layer, 0.7))

    expected = gradient(lambda layer, t, h: literally(move, layer, t, h))
    jax.tree.map(close, gradient(lambda layer, t, h: layer(t, h)), expected)


def test_half_precision_rounds_what_layers_are_given_and_never_the_state():
    exact, rounded = (filled(TimeConv, 3, (9, 9, 9), compute=compute) for compute in ("float32", "bfloat16"))
    h = normal(2, 8, 8, 3)
    expected, result = eqx.filter_jit(exact)(0.5, h), eqx.filter_jit(rounded)(0.5, h)
    assert result.dtype == jnp.float32
    error = np.linalg.norm(result - expected) / np.linalg.norm(expected)
    assert 1e-4 < error < 8 * 2**-8  # four layers, each rounding its input and its kernel to eight bits


@pytest.mark.parametrize("time", [True, False])
def test_standardised_weights_are_scaled_by_gain_over_the_root_of_the_fan_in(time):
    field = eqx.filter_eval_shape(
        TimeConv, 6, (4, 4, 4), time=time, gains=(1.0, 2.0, 3.0, 4.0), bias_scale=0.1, key=KEY
    )
    for scales, channels, gain in zip(
        [layer.scales for layer in field.layers], (6, 4, 4, 4), (1, 2, 3, 4), strict=True
    ):
        scale = pytest.approx(gain / math.sqrt(9 * (channels + time)))
        assert (scales.kernel, scales.time, scales.bias) == (scale, scale if time else None, 0.1)


def test_a_layer_starts_with_the_scale_of_its_standardised_weights():
    layer = TimeConvLayer(15, 16, gain=3.0, key=KEY)
    assert np.std(layer.kernel) == pytest.approx(layer.scales.kernel, rel=0.05)
    assert np.std(layer.time) == pytest.approx(3 / 12, rel=0.2)


def test_the_deterministic_convolution_doubles_the_variance_which_relus_halve():
    x = normal(8, 16, 16, 16)
    for stride in (1, 2):
        y = eqx.filter_jit(filled(Conv, 16, 32, stride=stride, compute="float32"))(x)
        assert y.shape == (8, 16 // stride, 16 // stride, 32)
        assert np.var(y[:, 1:-1, 1:-1]) == pytest.approx(2.0, rel=0.1)


def test_group_norm_is_its_formula():
    norm = GroupNorm(12, groups=8)
    assert norm.groups == 4  # the most that divide both
    norm = eqx.tree_at(lambda n: (n.scale, n.shift), norm, (normal(12), 1 + normal(12)))
    x = 3 + 2 * normal(2, 4, 5, 12)
    expected = np.empty(x.shape)
    for image, out in zip(np.asarray(x, float), expected, strict=True):
        for first in range(0, 12, 3):
            group = image[..., first : first + 3]
            out[..., first : first + 3] = (group - group.mean()) / np.sqrt(group.var() + 1e-5)
    expected = expected * np.asarray(norm.scale) + np.asarray(norm.shift)
    for images, out in ((x, expected), (x[0], expected[0])):
        np.testing.assert_allclose(eqx.filter_jit(norm)(images), out, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 4, 5, 12), (4, 5, 12)])
def test_gradients_of_group_norm_are_those_of_its_formula(shape):
    x, scale, shift = 3 + 2 * normal(*shape), normal(12), 1 + normal(12)
    weights = jax.random.normal(KEY, shape)
    norm = GroupNorm(12, activation=jax.nn.gelu)

    def by_norm(x, scale, shift):
        return eqx.tree_at(lambda n: (n.scale, n.shift), norm, (scale, shift))(x)

    def by_formula(x, scale, shift):
        grouped = x.reshape(*shape[:-1], 4, 3)
        over = (-4, -3, -1)
        spread = jnp.sqrt(grouped.var(over, keepdims=True) + 1e-5)
        return jax.nn.gelu(((grouped - grouped.mean(over, keepdims=True)) / spread).reshape(shape) * scale + shift)

    def first(function, *at):
        return jax.grad(lambda *at: jnp.sum(weights * function(*at)), (0, 1, 2))(*at)

    def second(function, *at):
        return jax.grad(lambda *at: sum(jnp.sum(each**2) for each in first(function, *at)), (0, 1, 2))(*at)

    for gradients in (first, second):
        found, expected = (jax.jit(partial(gradients, function))(x, scale, shift) for function in (by_norm, by_formula))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4 * np.abs(other).max())


def test_gradients_of_group_norm_have_the_types_of_what_they_are_of():
    norm = GroupNorm(6, activation=jnp.tanh)
    norm = eqx.tree_at(lambda n: n.shift, norm, norm.shift.astype(jnp.bfloat16))
    gradient = eqx.filter_grad(lambda n, x: jnp.sum(n(x)))(norm, normal(4, 4, 6))
    assert (gradient.scale.dtype, gradient.shift.dtype) == (jnp.float32, jnp.bfloat16)


def test_an_activation_after_a_norm_has_no_parameters():
    with pytest.raises(ValueError, match="has parameters, which would not be trained"):
        GroupNorm(6, activation=eqx.nn.PReLU())


@pytest.mark.parametrize("layer", [partial(TimeConvLayer, 3, 4, time=False), partial(TimeConvLayer, 3, 4)])
def test_no_images_have_no_gradient(layer):
    gradient = eqx.filter_grad(lambda layer: jnp.sum(layer(0.3, jnp.zeros((0, 4, 4, 3)))))(layer(key=KEY))
    assert not np.any(gradient.bias)
    assert GroupNorm(6)(jnp.zeros((0, 4, 4, 6))).shape == (0, 4, 4, 6)


def test_what_is_added_must_look_like_an_image():
    with pytest.raises(ValueError, match=r"shape \(4,\), which is not the end of the shape \(3, 2, 6\)"):
        add_to_each(jnp.zeros((3, 2, 6)), jnp.zeros(4))


def test_squeezing_moves_pixels_and_loses_none():
    x = jnp.arange(4.0 * 6 * 3).reshape(4, 6, 3)
    y = squeeze(x)
    assert y.shape == (2, 3, 12)
    assert np.array_equal(np.sort(y, axis=None), np.ravel(x))
    assert np.array_equal(y[1, 2], np.ravel(x[2:4, 4:6]))  # a patch of pixels is one pixel
    assert np.array_equal(unsqueeze(y), x)
    with pytest.raises(ValueError, match="5 by 6"):
        squeeze(jnp.zeros((5, 6, 1)))


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize(("channels", "sides"), [(3, (8, 12)), (5, (6, 4)), (18, (4, 6))])  # the last: a wide state
def test_over_patches_all_steps_and_all_gradients_are_those_of_the_plain_loop(keep, channels, sides):
    """Borders, the time channel and odd numbers of channels included; float32 against float32, so rounding alone."""
    steps = 3
    one = filled(TimeConv, channels, (4, 6, 4))
    field = jax.tree.map(lambda leaf: 0.4 * normal(steps, *leaf.shape) if eqx.is_array(leaf) else leaf, one)
    layers = tuple((layer.kernel, layer.time, layer.bias) for layer in field.layers)
    h0 = normal(2, *sides, channels)
    assert squeezed.fits(layers, h0, [layer.move for layer in field.layers])
    assert (channels >= squeezed.MIN_UNPACKED_CHANNELS) is (channels == 18)

    def plain(layers, h):
        for i in range(steps):
            arrays = [array[i] for layer in layers for array in layer]
            where = lambda f: [a for layer in f.layers for a in (layer.kernel, layer.time, layer.bias)]  # noqa: E731
            at = eqx.tree_at(where, field, arrays)
            h = h + at(i / steps, h) / steps
        return h

    def ours(layers, h):
        return squeezed.euler_over_patches(layers, h, activation=jnp.tanh, compute="float32", keep=keep, unroll=2)

    @jax.jit
    def both(layers, h):
        pairs = [jax.vjp(f, layers, h) for f in (ours, plain)]
        return [(h1, *jax.tree.leaves(pull_back(jnp.cos(h1)))) for h1, pull_back in pairs]

    for mine, theirs in zip(*both(layers, h0), strict=True):
        close(mine, theirs, 1e-4)


@pytest.mark.parametrize("channels", [3, 18])
def test_over_patches_bfloat16_is_near_float32_and_maps_are_kept_from_cudnn(channels):
    """Within 2 % of the largest; every product and convolution is of bfloat16, and each convolution behind a barrier.

    The convolutions of a wide state are of its pixels; otherwise they are of patches.
    """
    field = jax.tree.map(
        lambda leaf: 0.4 * normal(2, *leaf.shape) if eqx.is_array(leaf) else leaf,
        filled(TimeConv, channels, (4, 6, 4)),
    )
    layers, h0 = tuple((layer.kernel, layer.time, layer.bias) for layer in field.layers), normal(2, 6, 4, channels)

    def at(compute):
        how = {"activation": jnp.tanh, "compute": compute, "keep": True, "unroll": 1}
        return lambda layers, h: squeezed.euler_over_patches(layers, h, **how)

    full, half = (at(compute)(layers, h0) for compute in ("float32", "bfloat16"))
    assert 0 < float(jnp.max(jnp.abs(full - half))) < 0.02 * float(jnp.max(jnp.abs(full)))
    found = str(jax.make_jaxpr(at("bfloat16"))(layers, h0))
    pixels = "bf16[2,6,4," if channels == 18 else "bf16[2,3,2,"
    convolutions = re.findall(r"\w+:(\S+) = conv_general_dilated", found)
    assert len(convolutions) == 2
    assert all(each.startswith(pixels) for each in convolutions)
    assert found.count("optimization_barrier") == 2
    assert found.count("layout_constraint") == (jax.__version_info__ >= (0, 11))
    products = re.findall(r"\w+:(\S+) = dot_general", found)
    assert sum(each.startswith("bf16[12,") for each in products) == 2


def test_over_patches_refuses_what_it_is_not_for():
    field = jax.tree.map(lambda leaf: leaf[None] if eqx.is_array(leaf) else leaf, filled(TimeConv, 3, (4, 4, 4)))
    layers = tuple((layer.kernel, layer.time, layer.bias) for layer in field.layers)
    moves = [layer.move for layer in field.layers]
    assert squeezed.fits(layers, normal(1, 8, 8, 3), moves)
    assert not squeezed.fits(layers, normal(1, 7, 8, 3), moves)  # an odd side
    assert not squeezed.fits(layers, normal(1, 8, 8, 3), ["same"] * 4)
    assert not squeezed.fits([(k[0], t[0], b[0]) for k, t, b in layers], normal(1, 8, 8, 3), moves)  # of one step
    assert not squeezed.fits([(k, None, b) for k, _, b in layers], normal(1, 8, 8, 3), moves)


class Leaky(TimeConv):
    """A field of a user's own."""

    def __call__(self, t, h):
        return super().__call__(t, h) - h


def softmax(x):
    return jax.nn.softmax(x, axis=-1)


@pytest.mark.parametrize(
    ("make", "activation", "taken"),
    [
        (TimeConv, jnp.tanh, True),
        (TimeConv, jax.nn.relu, True),
        (TimeConv, softmax, False),  # over channels, which patches arrange otherwise
        (TimeConv, eqx.nn.PReLU(0.3), False),  # arrays of its own
        (Leaky, jnp.tanh, False),
    ],
)
def test_a_block_computes_the_same_the_way_a_gpu_would(monkeypatch, make, activation, taken):
    """The path over patches, on this machine: taken where it is the same function, and only there."""
    field = make(3, (4, 4, 4), activation=activation, key=KEY)
    block = bayesianize(field, drift=(2,), solver=FixedGrid(3), key=KEY)
    h0 = normal(2, 6, 4, 3)
    there = []
    original = squeezed.euler_over_patches
    monkeypatch.setattr(squeezed, "euler_over_patches", lambda *args, **how: there.append(1) or original(*args, **how))

    def value_and_gradient():
        jax.clear_caches()
        loss = lambda block: jnp.sum(block(h0, key=KEY)[0] ** 2)  # noqa: E731
        return jax.tree.leaves(eqx.filter_value_and_grad(loss)(block))

    plain = value_and_gradient()
    assert not there
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for ours, theirs in zip(value_and_gradient(), plain, strict=True):
        close(ours, theirs, 1e-4)
    assert bool(there) is taken
