"""MC dropout: moments of its draws, its masks, and its KL."""

import equinox as eqx
import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import KEY, LINEAR, POINTS, SMALL, arrays, covariances, over_keys

from sdebnn.baselines import MCDropout, ResNet
from sdebnn.nn import AbstractModel, Solution

pytestmark = pytest.mark.usefixtures("_compiled_in_haste")


def test_dropout_of_a_linear_model_has_bernoulli_moments_and_one_mask_for_all_examples():
    model = MCDropout(LINEAR, 0.3, where=lambda m: m)
    weight, bias, x = np.asarray(LINEAR.weight), np.asarray(LINEAR.bias), np.asarray(POINTS)
    outputs, _ = over_keys(model, POINTS, 4000)
    mean = x @ weight.T + bias
    assert exact.within(outputs, mean)
    # var z / keep² = (1 - keep) / keep, and examples share z
    assert exact.within(covariances(outputs, mean), 0.3 / 0.7 * np.einsum("nj,oj,mj->onm", x, weight**2, x))


def test_hidden_units_are_dropped_and_inputs_are_not():
    net = eqx.nn.MLP(2, 2, 1, 1, activation=lambda h: h, key=KEY)
    first, second = net.layers
    x = jax.random.normal(KEY, (5, 2))
    unit = np.asarray(x @ first.weight.T + first.bias)
    outputs, _ = over_keys(MCDropout(net, 0.5), x, 60)
    on = unit * np.asarray(second.weight)[:, 0] / 0.5 + np.asarray(second.bias)
    off = np.broadcast_to(np.asarray(second.bias), on.shape)
    are_on = np.array([np.allclose(draw, on, atol=1e-5) for draw in outputs])
    are_off = np.array([np.allclose(draw, off, atol=1e-5) for draw in outputs])
    assert np.all(are_on ^ are_off)
    assert 10 < are_on.sum() < 50


def test_the_kl_of_dropout_is_the_weight_decay_of_gal_and_ghahramani():
    _, kl = MCDropout(SMALL, 0.25, prior_std=2.0)(jnp.ones((1, 2)), key=KEY)
    first, first_bias, second, second_bias = arrays(SMALL)
    # a standardised weight of fan-in n counts n times; the inputs of the second layer are kept with probability 3/4
    squares = 2 * (first**2).sum() + (first_bias**2).sum() + 3 * (second**2).sum() / 0.75 + (second_bias**2).sum()
    assert float(kl) == pytest.approx(squares / (2 * 2.0**2), rel=1e-5)


class Kernels(AbstractModel):
    """A model whose outputs are its kernels, summed over all axes but the block and the input."""

    net: ResNet

    def solve(self, x, *, key, with_roughness=False):
        shown = self.net.tails[0].first.kernel.sum((1, 2, 4))
        return Solution(jnp.broadcast_to(shown, (x.shape[0], *shown.shape)), jnp.zeros(()))


def test_stacked_blocks_have_independent_masks():
    net = ResNet(2, 3, widths=(2, 5), blocks=3, key=KEY)
    outputs, _ = over_keys(MCDropout(Kernels(net), 0.5), jnp.ones((1, 1)), 200)
    on = outputs[:, 0] != 0  # draw, block, input
    apart = (on[:, 0] != on[:, 1]).mean()
    assert abs(apart - 0.5) < 4 * 0.5 / np.sqrt(on[:, 0].size)


class Kernel(AbstractModel):
    """A model whose outputs are the kernel of a convolution of Equinox."""

    plain: eqx.nn.Linear
    conv: eqx.nn.Conv2d

    def solve(self, x, *, key, with_roughness=False):
        weight = self.conv.weight
        return Solution(jnp.broadcast_to(weight, (x.shape[0], *weight.shape)), jnp.zeros(()))


def test_dropout_of_a_convolution_drops_whole_channels():
    model = Kernel(LINEAR, eqx.nn.Conv2d(4, 3, 2, key=KEY))
    outputs, _ = over_keys(MCDropout(model, 0.5), jnp.ones((1, 1)), 50)
    on = outputs[:, 0] != 0  # draw, output, input, row, column
    assert np.array_equal(on, np.broadcast_to(on[:, :1, :, :1, :1], on.shape))
    assert 0.3 < on.mean() < 0.7
