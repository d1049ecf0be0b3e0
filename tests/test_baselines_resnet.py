"""The ResNet against its formula."""

import equinox as eqx
import jax
import numpy as np
import pytest
from jax import lax
from small_models import KEY, shaken

from sdebnn.baselines import ResNet

pytestmark = pytest.mark.usefixtures("_compiled_in_haste")


def test_the_resnet_has_32_layers_of_weights_and_the_parameters_they_need():
    net = eqx.filter_eval_shape(ResNet, 3, 10, key=KEY)
    named = jax.tree_util.tree_flatten_with_path(eqx.filter(net, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct)))[
        0
    ]
    layers = 0
    for path, leaf in named:
        if getattr(path[-1], "name", "") in ("kernel", "weight"):
            layers += int(np.prod(leaf.shape[:-4]))  # the axes before a kernel's last four stack blocks
    assert layers == 32
    conv = lambda m, n: 9 * m * n + n  # noqa: E731
    expected = conv(3, 16) + 10 * conv(16, 16) + conv(16, 32) + 9 * conv(32, 32) + conv(32, 64) + 9 * conv(64, 64) + 650
    assert sum(int(np.prod(leaf.shape)) for _, leaf in named) == expected == 463_018


@eqx.filter_jit
def reference_conv(x, layer, stride):
    return lax.conv_general_dilated(
        x, layer.kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    ) + layer.bias  # fmt: skip


@pytest.fixture(scope="module")
def small_resnet():
    return ResNet(2, 3, widths=(2, 5), blocks=3, key=KEY)


IMAGES = jax.random.normal(KEY, (2, 6, 5, 2))


def test_every_residual_block_starts_as_the_identity(small_resnet):
    h = np.tanh(reference_conv(IMAGES, small_resnet.stem, 1))
    expected = np.concatenate([h[:, ::2, ::2].mean((1, 2)), np.zeros((2, 3))], axis=1)
    np.testing.assert_allclose(small_resnet.features(IMAGES), expected, atol=1e-5)


@eqx.filter_jit
def evaluated(net, x):
    return net(x)


def test_the_resnet_follows_the_pre_activation_formula(small_resnet):
    net = shaken(small_resnet, size=0.3)
    h = reference_conv(IMAGES, net.stem, 1)
    for scale in (0, 1):
        blocks = [net.heads[scale]] + [jax.tree.map(lambda a, i=i: a[i], net.tails[scale]) for i in (0, 1)]
        for number, block in enumerate(blocks):
            stride = 2 if scale == 1 and number == 0 else 1
            change = reference_conv(np.tanh(reference_conv(np.tanh(h), block.first, stride)), block.second, 1)
            h = np.pad(h[:, ::stride, ::stride], [(0, 0)] * 3 + [(0, change.shape[-1] - h.shape[-1])]) + change
    expected = np.tanh(h).mean((1, 2)) @ np.asarray(net.head.weight).T + np.asarray(net.head.bias)
    outputs = evaluated(net, IMAGES)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(outputs, [evaluated(net, image) for image in IMAGES], rtol=1e-4, atol=1e-5)
