"""Mean-field posteriors and Bayes by Backprop against moments and KLs in closed form or by quadrature."""

import equinox as eqx
import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import GRID, KEY, LINEAR, POINTS, SMALL, Matrix, arrays, called, covariances, over_keys

from sdebnn import SDEBNN, Deterministic, FixedGrid, Gaussian, Normal, bayesianize, elbo
from sdebnn.baselines import ResNet, ScaleMixture, bayes_by_backprop
from sdebnn.models.mean_field import LocallyReparameterised, passed_once
from sdebnn.nn import AbstractModel, MeanField, ODEBlock, TimeMLP

pytestmark = pytest.mark.usefixtures("_compiled_in_haste")


def test_the_kl_of_mean_field_weights_equals_its_integral():
    model = MeanField(SMALL, lambda w: Normal(w, 0.3, prior_std=0.7))
    model = eqx.tree_at(lambda m: m.law.log_std, model, replace_fn=lambda s: s + jnp.linspace(-1, 1, s.size))
    # weights are standardised by their fan-in, biases are as they are
    scales = np.concatenate([np.full(6, np.sqrt(2)), np.ones(3), np.full(3, np.sqrt(3)), np.ones(1)])
    means = scales * np.concatenate([leaf.ravel() for leaf in arrays(SMALL)])
    stds = 0.3 * np.exp(np.linspace(-1, 1, 13))
    expected = sum(exact.normal_kl(m, s, 0.0, 0.7) for m, s in zip(means, stds, strict=True))
    assert float(model(jnp.ones((2, 2)), key=KEY)[1]) == pytest.approx(expected, rel=1e-4)


def test_mean_field_takes_any_model_and_adds_to_its_kl():
    inner = SDEBNN.paper_mlp(2, 1, widths=(3,), drift=(2,), initial=Normal, solver=GRID, key=KEY)
    outer = MeanField(inner, lambda w: Normal(w, 1e-6))
    inner_key = jax.random.fold_in(KEY, 0)
    outputs, kl = called(inner, jnp.ones((2, 2)), inner_key)
    assert float(kl) > 1
    ours, both = called(outer, jnp.ones((2, 2)))
    np.testing.assert_allclose(ours, outputs, atol=1e-3)  # its weights have almost no spread
    assert float(both) == pytest.approx(float(kl) + float(outer.law.kl()), rel=1e-3)
    # all of its arrays are random, those of the drift and of the law of w_0 included
    assert outer.law.mean.size == sum(leaf.size for leaf in arrays(inner))


def linear_posterior():
    model = MeanField(LINEAR, lambda w: Normal(w, 0.2))
    return eqx.tree_at(lambda m: m.law.log_std, model, replace_fn=lambda s: s + jnp.linspace(-0.5, 0.5, s.size))


def linear_moments(model):
    """The mean of W x + b, and the covariance between examples for each output."""
    std = np.exp(np.asarray(model.law.log_std, float))
    weight, bias, x = std[:6].reshape(2, 3) / np.sqrt(3), std[6:], np.asarray(POINTS, float)
    mean = x @ np.asarray(LINEAR.weight).T + np.asarray(LINEAR.bias)
    return mean, np.einsum("nj,oj,mj->onm", x, weight**2, x) + bias[:, None, None] ** 2


def test_draws_of_mean_field_weights_have_the_moments_of_their_law():
    model = linear_posterior()
    mean, cov = linear_moments(model)
    outputs, _ = over_keys(model, POINTS, 4000)
    assert exact.within(outputs, mean)
    assert exact.within(covariances(outputs, mean), cov)  # one function for all examples, which therefore covary


def test_local_reparameterisation_keeps_the_law_of_each_example_and_makes_examples_independent():
    model = linear_posterior()
    assert isinstance(model.for_training(), LocallyReparameterised)
    mean, cov = linear_moments(model)
    outputs, kl = over_keys(model.for_training(), POINTS, 4000)
    assert exact.within(outputs, mean)
    assert exact.within(covariances(outputs, mean), cov * np.eye(3))
    np.testing.assert_allclose(kl, float(model.law.kl()), rtol=1e-5)


class Drawn(AbstractModel):
    """A model whose weights are drawn in training, too."""

    model: MeanField

    def solve(self, x, *, key, with_roughness=False):
        return self.model.solve(x, key=key, with_roughness=with_roughness)


def test_local_reparameterisation_is_unbiased_and_has_less_variance():
    x = jax.random.normal(KEY, (32, 3))
    y = x[:, :2]
    model = linear_posterior()

    def gradients(wrapped):
        def loss(law, key):
            return -elbo(wrapped(eqx.tree_at(lambda m: m.law, model, law)), Gaussian(0.5), x, y, key=key).elbo

        each = eqx.filter_jit(jax.vmap(lambda key: eqx.filter_grad(loss)(model.law, key)))(jax.random.split(KEY, 1000))
        return np.concatenate([each.mean, each.log_std], axis=1).astype(float)

    plain, local = gradients(Drawn), gradients(lambda model: model)
    error = np.sqrt((plain.var(0) + local.var(0)) / 1000)
    assert np.all(np.abs(plain.mean(0) - local.mean(0)) < 4 * error)
    assert local.var(0).sum() < 0.5 * plain.var(0).sum()


def test_only_linear_layers_that_an_example_passes_once_draw_their_outputs():
    field = TimeMLP(2, (3,), key=KEY)
    conv = eqx.nn.Conv2d(1, 1, 3, key=KEY)
    head = eqx.nn.Linear(2, 1, key=KEY)
    assert passed_once(Deterministic(SMALL)) == list(SMALL.layers)
    assert passed_once(eqx.nn.Sequential([head, eqx.nn.Lambda(jnp.tanh), SMALL])) == [head, *SMALL.layers]
    assert passed_once(SDEBNN((bayesianize(field, key=KEY), Deterministic(head)))) == [head]
    assert passed_once(eqx.nn.Linear("scalar", 1, key=KEY)) == []
    for untouched in (field, Deterministic(conv), ODEBlock(field), eqx.filter_eval_shape(ResNet, 1, 2, key=KEY)):
        assert passed_once(untouched) == []
    inside = MeanField(SDEBNN((ODEBlock(field),)))
    assert inside.for_training() is inside
    assert bayes_by_backprop(SMALL).for_training().law.share == 0.5  # its KL is estimated from the draw


def test_in_training_all_examples_share_a_draw_of_the_field_but_not_of_the_head():
    field = Matrix(0.1 * jnp.eye(2))
    head = eqx.tree_at(lambda m: m.weight, eqx.nn.Linear(2, 1, use_bias=False, key=KEY), jnp.ones((1, 2)))
    net = SDEBNN((ODEBlock(field, solver=FixedGrid(1)), Deterministic(head)))
    twice = jnp.array([[1.0, 2.0], [1.0, 2.0]])  # equal examples differ only if each has its own draw
    model = MeanField(net, lambda w: Normal(w, 0.5))
    fixed_head = eqx.tree_at(lambda m: m.law.log_std, model, model.law.log_std.at[4:].set(-20.0))
    outputs, _ = over_keys(fixed_head.for_training(), twice, 50)
    np.testing.assert_allclose(outputs[:, 0], outputs[:, 1], atol=1e-4)
    assert outputs[:, 0].std() > 0.3
    outputs, _ = over_keys(model.for_training(), twice, 50)
    assert np.abs(outputs[:, 0] - outputs[:, 1]).mean() > 0.3


def test_the_log_ratio_of_the_scale_mixture_averages_to_the_kl_by_quadrature():
    law = ScaleMixture(jnp.array([0.0, 0.02, -0.6]), 0.04, share=0.3, wide=0.8, narrow=0.01)
    expected = sum(exact.mixture_kl(m, 0.04, 0.3, 0.8, 0.01) for m in (0.0, 0.02, -0.6))
    keys = jax.random.split(KEY, 20000)
    assert exact.within(jax.jit(jax.vmap(lambda key: law.log_ratio(law.sample(key=key))))(keys), expected)


def test_the_kl_of_bayes_by_backprop_averages_to_the_kl_by_quadrature():
    model = bayes_by_backprop(SMALL, 0.1, share=0.25, wide=2.0, narrow=0.05)
    _, kl = over_keys(model, jnp.ones((1, 2)), 20000)
    w = np.asarray(model.law.posterior.mean, float)
    assert exact.within(kl, sum(exact.mixture_kl(m, 0.1, 0.25, 2.0, 0.05) for m in w))
