import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdebnn.nn import Augment, Standardised, TimeMLP, fan_in_scale


@pytest.mark.parametrize(
    ("activation", "formula"),
    [
        (jnp.tanh, np.tanh),
        (jax.nn.softplus, lambda z: np.log1p(np.exp(z))),
        (jax.nn.swish, lambda z: z / (1 + np.exp(-z))),
    ],
)
def test_the_time_mlp_is_its_formula(activation, formula):
    field = TimeMLP(2, (5, 4), activation=activation, key=jax.random.key(0))
    z = np.array([0.3, -0.8, 0.6])  # h, then t
    for i, layer in enumerate(field.layers):
        z = np.asarray(layer.weight) @ z + np.asarray(layer.bias)
        z = formula(z) if i < 2 else z
    np.testing.assert_allclose(field(0.6, jnp.array([0.3, -0.8])), z, rtol=1e-5)


def test_the_toy_field_has_the_size_its_widths_imply():
    field = TimeMLP(3, (32, 32), key=jax.random.key(0))
    assert Standardised(eqx.filter(field, eqx.is_array)).size == (4 * 32 + 32) + (32 * 32 + 32) + (32 * 3 + 3)


def test_fan_in_is_everything_that_feeds_one_output():
    assert fan_in_scale(jnp.zeros((7, 16))) == 1 / 4
    assert fan_in_scale(jnp.zeros((7, 4, 3, 3)), gain=3.0) == pytest.approx(3 / 6)
    assert fan_in_scale(jnp.zeros(7)) == fan_in_scale(jnp.zeros(())) == 1.0


def test_standardising_is_a_bijection_and_keeps_paths_apart():
    tree = {"weight": jnp.arange(6.0).reshape(2, 3), "bias": jnp.array([7.0, 8.0]), "gain": jnp.array(9.0)}
    weights = Standardised(tree)
    w = weights.ravel(tree)
    assert w.shape == (weights.size,) == (9,)
    back = weights.unravel(jnp.stack([w, 2 * w]))
    for name, leaf in tree.items():
        np.testing.assert_allclose(back[name], jnp.stack([leaf, 2 * leaf]), rtol=1e-6)
    np.testing.assert_allclose(jnp.sort(w)[-3:], [8.0, 5 * math.sqrt(3), 9.0], rtol=1e-6)


def test_a_bias_has_scale_one_whatever_its_shape():
    conv = eqx.filter(eqx.nn.Conv2d(2, 3, 3, key=jax.random.key(0)), eqx.is_array)
    weights = Standardised(conv, lambda leaf: fan_in_scale(leaf, gain=5.0))
    assert conv.bias.shape == (3, 1, 1)
    assert sorted(weights.scales) == pytest.approx([1.0, 5 / math.sqrt(18)])


def test_augmenting_appends_zeros():
    assert np.array_equal(Augment(2, 3)(jnp.array([1.0, 2.0])), [1, 2, 0, 0, 0])
