"""Every row of the paper's tables, each against something exact or independent; and the laws that all of them obey."""

import equinox as eqx
import exact
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from scipy import integrate, linalg, optimize, special

from sdebnn import (
    OU,
    SDEBNN,
    Augment,
    Categorical,
    Cauchy,
    Deterministic,
    FixedGrid,
    Gaussian,
    MeanField,
    Normal,
    ODEBlock,
    TimeMLP,
    bayesianize,
    draw_keys,
    elbo,
    fit,
    predict,
    refined,
)
from sdebnn.baselines import (
    Ensemble,
    Hypernet,
    HyperODEBlock,
    LastLayerLaplace,
    MCDropout,
    PartlyRandom,
    ResNet,
    ScaleMixture,
    TemperatureScaled,
    bayes_by_backprop,
    bbvi,
)
from sdebnn.baselines.meanfield import LocallyDrawn, passed_once
from sdebnn.contract import training
from sdebnn.integrate import Adaptive

pytestmark = pytest.mark.usefixtures("_compiled_in_haste")
KEY = jax.random.key(0)
QUIET = {"key": KEY, "progress": False}
FOREVER = 1_000_000  # what is refused after training would not be refused in time
GRID = FixedGrid(3, gradient="backprop", unroll=1)


class Matrix(eqx.Module):
    """dh/dt = A h."""

    weight: jax.Array

    def __call__(self, t, h):
        return self.weight @ h


@eqx.filter_jit
def called(model, x, key=KEY):
    """A model of the contract, as one program."""
    return model(x, key=key)


def over_keys(model, x, draws, seed=1):
    """The outputs of many draws, in float64."""
    call = eqx.filter_jit(lambda keys: jax.vmap(lambda key: model(x, key=key))(keys))
    outputs, kl = call(jax.random.split(jax.random.key(seed), draws))
    return np.asarray(outputs, float), np.asarray(kl, float)


def shaken(module, key=KEY, size=0.5):
    """The same module, its arrays moved at random: what starts at zero no longer is."""
    leaves, structure = jax.tree.flatten(module)
    keys = jax.random.split(key, len(leaves))
    moved = [
        leaf + size * jax.random.normal(k, leaf.shape) if eqx.is_inexact_array(leaf) else leaf
        for leaf, k in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(structure, moved)


def arrays(module):
    return [np.asarray(leaf, float) for leaf in jax.tree.leaves(eqx.filter(module, eqx.is_inexact_array))]


# ODEnet and HyperODEnet


def test_a_linear_ode_net_is_the_matrix_exponential():
    a = jax.random.normal(KEY, (3, 3))
    h0 = jax.random.normal(jax.random.key(1), (4, 3))
    truth = np.asarray(h0, float) @ linalg.expm(np.asarray(a, float)).T

    def error(grid):
        outputs, kl = called(ODEBlock(Matrix(a), solver=grid), h0)
        assert kl == 0
        return np.abs(outputs - truth).max()

    coarse, fine = error(FixedGrid(100)), error(FixedGrid(200))
    assert coarse / fine == pytest.approx(2.0, rel=0.05)  # Euler's error is halved with the step
    assert error(FixedGrid(40, method="ralston3")) < 4e-4 < 0.1 * fine


def test_the_weights_of_a_hyper_ode_net_solve_the_coupled_equations():
    block = shaken(HyperODEBlock(Matrix(jnp.eye(2)), drift=(3,), solver=FixedGrid(40, method="ralston3"), key=KEY))
    h0 = np.array([[0.4, -1.0], [1.0, 0.3]])

    def slopes(t, state):
        w, h = state[:4], state[4:].reshape(2, 2)
        # standardised by the fan-in of 2
        return np.concatenate(
            [np.asarray(block.drift(t, jnp.asarray(w))), (h @ (w.reshape(2, 2) / np.sqrt(2)).T).ravel()]
        )

    start = np.concatenate([block.value, h0.ravel()])
    truth = integrate.solve_ivp(slopes, (0, 1), start, rtol=1e-8, atol=1e-8).y[:, -1]
    assert np.abs(truth[:4] - start[:4]).min() > 0.05  # the weights move
    outputs, kl = called(block, jnp.asarray(h0))
    np.testing.assert_allclose(eqx.filter_jit(block.path)()[0][-1], truth[:4], atol=1e-4)
    np.testing.assert_allclose(outputs, truth[4:].reshape(2, 2), atol=1e-4)
    assert kl == 0


def test_a_hyper_ode_net_whose_weights_do_not_move_is_an_ode_net():
    field, grid = TimeMLP(2, (3,), key=KEY), FixedGrid(4)
    h = jax.random.normal(KEY, (3, 2))
    still, moving = ODEBlock(field, solver=grid), HyperODEBlock(field, drift=(2,), solver=grid, key=KEY)
    outputs = called(still, h)[0]
    np.testing.assert_allclose(called(moving, h)[0], outputs, rtol=1e-5)
    assert not np.allclose(called(shaken(moving), h)[0], outputs, rtol=1e-2)


# MFVI


SMALL = eqx.nn.MLP(2, 1, 3, 1, key=KEY)


def test_the_kl_of_mean_field_weights_is_the_integral_it_stands_for():
    model = MeanField(SMALL, lambda w: Normal(w, 0.3, prior_std=0.7))
    model = eqx.tree_at(lambda m: m.law.log_std, model, replace_fn=lambda s: s + jnp.linspace(-1, 1, s.size))
    # weights are standardised by their fan-in, biases are as they are
    scales = np.concatenate([np.full(6, np.sqrt(2)), np.ones(3), np.full(3, np.sqrt(3)), np.ones(1)])
    means = scales * np.concatenate([leaf.ravel() for leaf in arrays(SMALL)])
    stds = 0.3 * np.exp(np.linspace(-1, 1, 13))
    expected = sum(exact.normal_kl(m, s, 0.0, 0.7) for m, s in zip(means, stds, strict=True))
    assert float(model(jnp.ones((2, 2)), key=KEY)[1]) == pytest.approx(expected, rel=1e-4)


def test_mean_field_takes_any_model_and_adds_to_its_kl():
    inner = SDEBNN.mlp(2, 1, widths=(3,), drift=(2,), initial=Normal, solver=GRID, key=KEY)
    outer = MeanField(inner, lambda w: Normal(w, 1e-6))
    inner_key = jax.random.fold_in(KEY, 0)
    outputs, kl = called(inner, jnp.ones((2, 2)), inner_key)
    assert float(kl) > 1
    ours, both = called(outer, jnp.ones((2, 2)))
    np.testing.assert_allclose(ours, outputs, atol=1e-3)  # its weights hardly vary
    assert float(both) == pytest.approx(float(kl) + float(outer.law.kl()), rel=1e-3)
    # all of its arrays are random: those of the drift and of the law of w_0, too
    assert outer.law.mean.size == sum(leaf.size for leaf in arrays(inner))


LINEAR = eqx.nn.Linear(3, 2, key=KEY)
POINTS = jnp.array([[1.0, -0.5, 2.0], [0.3, 0.8, -1.0], [1.0, 1.0, 1.0]])


def linear_posterior():
    model = MeanField(LINEAR, lambda w: Normal(w, 0.2))
    return eqx.tree_at(lambda m: m.law.log_std, model, replace_fn=lambda s: s + jnp.linspace(-0.5, 0.5, s.size))


def linear_moments(model):
    """Mean of W x + b and, of each output, the covariance between examples."""
    std = np.exp(np.asarray(model.law.log_std, float))
    weight, bias, x = std[:6].reshape(2, 3) / np.sqrt(3), std[6:], np.asarray(POINTS, float)
    mean = x @ np.asarray(LINEAR.weight).T + np.asarray(LINEAR.bias)
    return mean, np.einsum("nj,oj,mj->onm", x, weight**2, x) + bias[:, None, None] ** 2


def covariances(outputs, mean):
    """Products of deviations, whose mean is the covariance between examples, for each output: "draw output n m"."""
    off = outputs - mean
    return np.einsum("dno,dmo->donm", off, off)


def test_draws_of_mean_field_weights_have_the_moments_of_their_law():
    model = linear_posterior()
    mean, cov = linear_moments(model)
    outputs, _ = over_keys(model, POINTS, 4000)
    assert exact.within(outputs, mean)
    assert exact.within(covariances(outputs, mean), cov)  # one function for all examples: they vary together


def test_local_reparameterisation_keeps_each_example_s_law_and_parts_the_examples():
    model = linear_posterior()
    assert isinstance(training(model), LocallyDrawn)
    mean, cov = linear_moments(model)
    outputs, kl = over_keys(training(model), POINTS, 4000)
    assert exact.within(outputs, mean)
    assert exact.within(covariances(outputs, mean), cov * np.eye(3))
    np.testing.assert_allclose(kl, float(model.law.kl()), rtol=1e-5)


def test_local_reparameterisation_is_as_true_and_less_noisy():
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


class Drawn(eqx.Module):
    """A model whose weights are drawn in training too: it offers nothing less noisy."""

    model: MeanField

    def __call__(self, x, *, key):
        return self.model(x, key=key)


def test_only_layers_that_an_example_passes_once_draw_their_sums():
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
    assert training(inside) is inside
    assert training(bayes_by_backprop(SMALL)).law.share == 0.5  # no closed form of its KL: the draw itself is needed


def test_a_field_s_weights_are_one_function_in_training_while_the_head_s_sums_are_not():
    field = Matrix(0.1 * jnp.eye(2))
    head = eqx.tree_at(lambda m: m.weight, eqx.nn.Linear(2, 1, use_bias=False, key=KEY), jnp.ones((1, 2)))
    net = SDEBNN((ODEBlock(field, solver=FixedGrid(1)), Deterministic(head)))
    twice = jnp.array([[1.0, 2.0], [1.0, 2.0]])  # two examples alike differ only if each has a draw of its own
    model = MeanField(net, lambda w: Normal(w, 0.5))
    still = eqx.tree_at(lambda m: m.law.log_std, model, model.law.log_std.at[4:].set(-20.0))
    outputs, _ = over_keys(training(still), twice, 50)
    np.testing.assert_allclose(outputs[:, 0], outputs[:, 1], atol=1e-4)
    assert outputs[:, 0].std() > 0.3
    outputs, _ = over_keys(training(model), twice, 50)
    assert np.abs(outputs[:, 0] - outputs[:, 1]).mean() > 0.3


# Bayes by Backprop


def test_the_scale_mixture_s_ratio_averages_to_the_kl_by_quadrature():
    law = ScaleMixture(jnp.array([0.0, 0.02, -0.6]), 0.04, share=0.3, wide=0.8, narrow=0.01)
    expected = sum(exact.mixture_kl(m, 0.04, 0.3, 0.8, 0.01) for m in (0.0, 0.02, -0.6))
    keys = jax.random.split(KEY, 20000)
    assert exact.within(jax.jit(jax.vmap(lambda key: law.log_ratio(law.sample(key=key))))(keys), expected)


def test_bayes_by_backprop_charges_each_draw_by_its_own_ratio():
    model = bayes_by_backprop(SMALL, 0.1, share=0.25, wide=2.0, narrow=0.05)
    _, kl = over_keys(model, jnp.ones((1, 2)), 20000)
    w = np.asarray(model.law.posterior.mean, float)
    assert exact.within(kl, sum(exact.mixture_kl(m, 0.1, 0.25, 2.0, 0.05) for m in w))


# MC dropout


def test_dropout_of_a_linear_model_has_bernoulli_moments_and_one_mask_for_all_examples():
    model = MCDropout(LINEAR, 0.3, where=lambda m: m)
    weight, bias, x = np.asarray(LINEAR.weight), np.asarray(LINEAR.bias), np.asarray(POINTS)
    outputs, _ = over_keys(model, POINTS, 4000)
    mean = x @ weight.T + bias
    assert exact.within(outputs, mean)
    # var z / keep² = (1 - keep) / keep, and examples share z
    assert exact.within(covariances(outputs, mean), 0.3 / 0.7 * np.einsum("nj,oj,mj->onm", x, weight**2, x))


def test_units_are_switched_off_whole_and_never_the_data():
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


def test_the_kl_of_dropout_is_the_decay_of_its_authors():
    _, kl = MCDropout(SMALL, 0.25, prior_std=2.0)(jnp.ones((1, 2)), key=KEY)
    first, first_bias, second, second_bias = arrays(SMALL)
    # standardised: a weight of fan-in n counts n times; the second layer's inputs are kept with 3/4
    squares = 2 * (first**2).sum() + (first_bias**2).sum() + 3 * (second**2).sum() / 0.75 + (second_bias**2).sum()
    assert float(kl) == pytest.approx(squares / (2 * 2.0**2), rel=1e-5)


class Shown(eqx.Module):
    """A model whose outputs are the kernels it holds, summed over all but their block and their input."""

    net: ResNet

    def __call__(self, x, *, key):
        shown = self.net.tails[0].first.kernel.sum((1, 2, 4))
        return jnp.broadcast_to(shown, (x.shape[0], *shown.shape)), jnp.zeros(())


def test_stacked_blocks_have_masks_of_their_own(small_resnet):
    outputs, _ = over_keys(MCDropout(Shown(small_resnet), 0.5), jnp.ones((1, 1)), 200)
    on = outputs[:, 0] != 0  # draw, block, input
    apart = (on[:, 0] != on[:, 1]).mean()
    assert abs(apart - 0.5) < 4 * 0.5 / np.sqrt(on[:, 0].size)


class Kernel(eqx.Module):
    """A model whose outputs are the kernel of Equinox's convolution that it holds."""

    plain: eqx.nn.Linear
    conv: eqx.nn.Conv2d

    def __call__(self, x, *, key):
        return jnp.broadcast_to(self.conv.weight, (x.shape[0], *self.conv.weight.shape)), jnp.zeros(())


def test_a_convolution_loses_whole_channels():
    model = Kernel(LINEAR, eqx.nn.Conv2d(4, 3, 2, key=KEY))
    outputs, _ = over_keys(MCDropout(model, 0.5), jnp.ones((1, 1)), 50)
    on = outputs[:, 0] != 0  # draw, output, input, row, column
    assert np.array_equal(on, np.broadcast_to(on[:, :1, :, :1, :1], on.shape))
    assert 0.3 < on.mean() < 0.7


# Bayesian hypernet


def flow(module, **how):
    return shaken(Hypernet(module, 0.3, couplings=3, width=4, prior_std=1.5, key=KEY, **how), size=0.4)


@pytest.mark.parametrize("inputs", [3, 4])  # with the bias: an even and an odd number of weights
def test_the_hypernet_s_density_is_that_of_its_jacobian(inputs):
    model = flow(eqx.nn.Linear(inputs, 1, key=KEY))
    noise = jax.random.normal(jax.random.key(1), (20, inputs + 1))

    def by_autodiff(noise):
        _, log_det = jnp.linalg.slogdet(jax.jacfwd(lambda e: model.push(e)[0])(noise))
        return jnp.sum(jax.scipy.stats.norm.logpdf(noise)) - log_det

    @jax.jit
    def densities(noise):
        w, log_det = model.push(noise)
        return by_autodiff(noise), jnp.sum(jax.scipy.stats.norm.logpdf(noise)) - log_det, model.log_prob(w), log_det

    expected, pushed, pulled, log_dets = jax.vmap(densities)(noise)
    assert np.std(log_dets) > 0.05  # the flow is no longer linear
    np.testing.assert_allclose(pushed, expected, atol=1e-4)
    np.testing.assert_allclose(pulled, expected, atol=1e-3)
    drawn, log_q = model.draw(key=KEY)
    assert float(log_q) == pytest.approx(float(model.log_prob(drawn)), abs=1e-3)


def test_the_density_of_two_weights_integrates_to_one():
    model = flow(eqx.nn.Linear(2, 1, use_bias=False, key=KEY))
    w = np.asarray(jax.jit(jax.vmap(lambda key: model.draw(key=key)[0]))(jax.random.split(KEY, 2000)))
    axes = [np.linspace(c - 12 * s, c + 12 * s, 401) for c, s in zip(w.mean(0), w.std(0), strict=True)]
    grid = jnp.stack(jnp.meshgrid(*axes, indexing="ij"), axis=-1)
    density = np.exp(np.asarray(jax.jit(jax.vmap(jax.vmap(model.log_prob)))(grid), float))
    cell = np.prod([a[1] - a[0] for a in axes])
    assert density.sum() * cell == pytest.approx(1.0, abs=2e-3)
    # and it is the density of these draws, not of others: the means agree
    mean = np.einsum("ij,ijk->k", density, np.asarray(grid, float)) * cell
    assert exact.within(w, mean)


def test_a_fresh_hypernet_is_the_factorised_normal_law():
    linear = eqx.nn.Linear(2, 1, key=KEY)
    model = Hypernet(linear, 0.3, prior_std=1.5, key=KEY)
    mean = np.concatenate([np.sqrt(2) * np.asarray(linear.weight[0], float), np.asarray(linear.bias, float)])
    _, kl = over_keys(model, jnp.ones((1, 2)), 20000)
    assert exact.within(kl, sum(exact.normal_kl(m, 0.3, 0.0, 1.5) for m in mean))


# BBVI for SDEs


STEPS = 20


class Last(eqx.Module):
    """h_1 = h_0 + w at the last step: one weight of the path is observed, and no other."""

    w: jax.Array

    def __call__(self, t, h):
        return jnp.where(t > 1 - 1.5 / STEPS, STEPS * self.w, 0.0)


def test_the_gaussian_process_posterior_over_paths_is_the_exact_one():
    y, noise, ones = 1.4, 0.7, np.ones(STEPS)
    prior = exact.random_start(-ones, 0 * ones, 1.0, 1.0)
    seen = np.zeros((1, STEPS + 1))
    seen[0, STEPS - 1] = 1.0
    mean, cov, evidence = exact.gaussian_posterior(*prior, seen, noise, np.array([y]))
    stds = np.sqrt(np.diag(cov))
    # the posterior is not the prior, from which training starts
    assert mean[STEPS - 1] > 0.6
    assert stds[STEPS - 1] < 0.75 * np.sqrt(prior[1][STEPS - 1, STEPS - 1])
    block = bbvi(
        Last(jnp.zeros(1)), knots=11, prior=OU(sigma=1.0), initial=Normal, solver=FixedGrid(STEPS), kl="stl", key=KEY
    )
    x, targets = jnp.zeros((1, 1)), jnp.full((1, 1), y)
    fitted = fit(block, Gaussian(noise), x, targets, epochs=200, draws=32, learning_rate=0.2, **QUIET).model

    @jax.jit
    @jax.vmap
    def drawn(key):
        return fitted.draw(key=key).w[:, 0], elbo(fitted, Gaussian(noise), x, targets, key=key).elbo

    paths, bounds = (np.asarray(part, float) for part in drawn(jax.random.split(jax.random.key(3), 20_000)))
    # 4 standard errors, and what is left by training and by steps of one variance: the exact ones have up to 9 % less
    np.testing.assert_allclose(paths.mean(0), mean, atol=4 / np.sqrt(20_000) + 0.01)
    np.testing.assert_allclose(paths.std(0), stds, rtol=4 / np.sqrt(40_000) + 0.03)
    error = bounds.std() / np.sqrt(20_000)
    assert evidence - 0.02 < bounds.mean() < evidence + 4 * error


# Partially stochastic


def partly(kl="analytic", method="euler", until=0.5):
    field = TimeMLP(2, (2,), key=KEY)
    block = bayesianize(
        field, prior=OU(sigma=0.7), drift=(3,), initial=Normal, solver=FixedGrid(8, method=method), kl=kl, key=KEY
    )
    return PartlyRandom(eqx.tree_at(lambda b: b.drift, block, shaken(block.drift)), until)


def test_beyond_until_the_weights_follow_the_drift_without_noise_and_nothing_charges_for_it():
    model, other = partly("full"), partly("analytic")
    block = model.block

    @eqx.filter_jit
    def drawn(h, key):
        path = model.draw(key=key)
        correction = jax.vmap(block.drift)(path.t[:-1], path.w[:-1])
        starts = block.initial.kl(), block.initial.log_ratio(path.w[0])

        def step(h, now):  # the same weights carry the hidden units
            return h + eqx.combine(block.unravel(now[1]), block.field)(now[0], h) / 8, None

        by_hand, _ = lax.scan(step, h[0], (path.t[:-1], path.w[:-1]))
        return path, correction, starts, other.draw(key=key).kl, block.draw(key=key).w, by_hand, model(h, key=key)

    path, correction, starts, analytic, whole, by_hand, (outputs, charged) = drawn(jnp.ones((1, 2)), KEY)
    w = np.asarray(path.w, float)
    kicks = np.diff(w, axis=0) - (np.asarray(correction) - w[:-1]) / 8
    np.testing.assert_allclose(kicks[4:], 0.0, atol=1e-6)
    assert np.all(np.abs(kicks[:4]).max(1) > 0.1)
    np.testing.assert_allclose(path.w[:5], whole[:5], rtol=1e-5)  # the block's own path, as far as it is random
    u = np.asarray(correction[:4], float) / 0.7
    energy = (0.5 * u**2).sum() / 8
    assert float(analytic) == pytest.approx(float(starts[0]) + energy, rel=1e-4)
    assert float(path.kl) == pytest.approx(float(starts[1]) + energy + (u * kicks[:4] / 0.7).sum(), rel=1e-4)
    assert float(charged) == pytest.approx(float(path.kl), rel=1e-5)
    np.testing.assert_allclose(outputs[0], by_hand, rtol=1e-4)


def test_random_to_the_end_is_the_block_itself():
    model = partly("full", "ralston3", until=1.0)
    h = jax.random.normal(KEY, (3, 2))
    both = eqx.filter_jit(lambda h, key: [m.solve(h, key=key, rough=True) for m in (model, model.block)])(h, KEY)
    for ours, theirs in zip(*both, strict=True):  # the outputs, the KL, and what they took
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


# Deep ensembles


X = jax.random.normal(jax.random.key(5), (8, 2))
Y = jnp.sin(X[:, :1]) + 0.1


def members(count=3):
    return [eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(i)) for i in range(count)]


def test_members_trained_together_are_members_trained_alone():
    how = {"epochs": 40, "batch_size": 4, "learning_rate": 1e-2, **QUIET}
    together = fit(Ensemble(members()), Gaussian(0.3), X, Y, draws=1, **how).model
    for number, member in enumerate(members()):
        alone = fit(Deterministic(member), Gaussian(0.3), X, Y, draws=1, **how).model
        for ours, theirs, before in zip(arrays(together.member(number)), arrays(alone), arrays(member), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
            assert np.abs(ours - before).max() > 0.01


def test_a_wrapped_net_tells_what_its_solve_took():
    net = SDEBNN((ODEBlock(FIELD, solver=GRID),))
    for wrapped in (MeanField(net), Hypernet(net, key=KEY), Ensemble([net, net]), TemperatureScaled(net)):
        assert wrapped.solve(TARGETS, key=KEY).evaluations == GRID.steps, type(wrapped).__name__


def test_predictions_hold_every_member_in_turn_and_a_key_names_one():
    ensemble = Ensemble(members())
    each = np.stack([jax.vmap(member)(X) for member in members()])
    for seed in range(4):
        key = jax.random.key(seed)
        outputs = predict(ensemble, X, draws=6, key=key)
        order = [int(np.abs(each - draw).max((1, 2)).argmin()) for draw in outputs]
        np.testing.assert_allclose(outputs, each[order], atol=1e-6)
        assert sorted(order[:3]) == [0, 1, 2] == sorted(order[3:])
        few, many = (jax.random.key_data(draw_keys(key, n, ensemble)) for n in (3, 6))
        assert np.array_equal(few, many[:3])
    # keys from anywhere name members, all of them, about as often: 300 draws, 4 standard errors
    numbers = [int(np.abs(each - draw).max((1, 2)).argmin()) for draw in over_keys(ensemble, X, 300)[0]]
    assert np.all(np.abs(np.bincount(numbers, minlength=3) - 100) < 4 * np.sqrt(300 * 2 / 9))


@pytest.mark.parametrize("draws", [1, 5, 7])
def test_every_member_of_an_ensemble_has_the_same_weight_in_a_prediction(draws):
    """Seven draws of five members are rounded up to ten: the mean is exactly that of the members."""
    nets = members(5)
    each = np.stack([jax.vmap(member)(X) for member in nets])
    for ensemble in (Ensemble(nets), Ensemble(nets).training(), TemperatureScaled(Ensemble(nets))):
        outputs = np.asarray(predict(ensemble, X, draws=draws, draws_at_once=10, key=KEY), float)
        assert len(outputs) == 5 * -(-draws // 5)
        np.testing.assert_allclose(outputs.mean(0), each.mean(0), atol=1e-6)


# Temperature scaling


def softmax_nll(logits, labels, temperature):
    log_p = special.log_softmax(np.asarray(logits, float) / temperature, axis=-1)
    picked = log_p[..., np.arange(len(labels)), np.asarray(labels)]
    return -np.mean(special.logsumexp(picked, axis=0) - np.log(len(picked)) if picked.ndim > 1 else picked)


def best_temperature(logits, labels):
    return optimize.minimize_scalar(lambda t: softmax_nll(logits, labels, t), bounds=(0.1, 15), method="bounded").x


def test_an_overconfident_classifier_is_cooled_to_the_truth():
    z = 2 * jax.random.normal(KEY, (2000, 3))
    labels = jax.random.categorical(jax.random.key(1), z)
    loud = eqx.tree_at(lambda m: m.weight, eqx.nn.Linear(3, 3, use_bias=False, key=KEY), 3 * jnp.eye(3))
    how = {"epochs": 1, "draws": 1, "optimizer": optax.sgd(0.0), **QUIET}
    fitted = fit(TemperatureScaled(loud), Categorical(), z[:5], labels[:5], validation=(z, labels), **how).model
    found = float(jnp.exp(fitted.log_temperature))
    assert found == pytest.approx(best_temperature(3 * z, labels), rel=1e-3)
    # the information on T that 2000 labels hold is the curvature of their log-likelihood
    step = 0.05
    ends = [2000 * softmax_nll(3 * z, labels, 3 + s * step) for s in (-1, 0, 1)]
    error = 1 / np.sqrt((ends[0] - 2 * ends[1] + ends[2]) / step**2)
    assert abs(found - 3) < 4 * error < 1
    outputs = predict(fitted, z, draws=1, key=KEY)[0]
    np.testing.assert_allclose(outputs, 3 * z / found, rtol=1e-4, atol=1e-5)
    assert np.array_equal(outputs.argmax(-1), z.argmax(-1))


def test_a_temperature_is_chosen_for_the_averaged_probabilities_and_stays_out_of_training():
    z = jax.random.normal(KEY, (400, 2))
    labels = jax.random.categorical(jax.random.key(1), z)
    gains = [jnp.diag(jnp.array(d)) for d in ([4.0, 1.0], [1.0, 5.0])]
    base = eqx.nn.Linear(2, 2, use_bias=False, key=KEY)
    both = Ensemble([eqx.tree_at(lambda m: m.weight, base, gain) for gain in gains])
    scaled = TemperatureScaled(both, draws=2)
    found = scaled.conditioned(
        Categorical(), z, labels, validation=(z, labels), key=KEY, say=lambda text: None
    )  # fmt: skip
    logits = np.stack([z @ gain for gain in gains])
    best = best_temperature(logits, labels)
    assert float(jnp.exp(found.log_temperature)) == pytest.approx(best, rel=1e-3)
    assert abs(best - best_temperature(logits.mean(0), labels)) > 0.05  # averaging logits would choose another
    # in training there is no temperature yet
    bounds = [float(elbo(model, Categorical(), z, labels, key=KEY, draws=2).elbo) for model in (both, found)]
    assert bounds[0] == bounds[1]


def test_a_temperature_is_chosen_for_the_model_as_it_is_once_all_is_learned():
    x = jax.random.normal(KEY, (60, 2))
    labels = (x[:, 0] > 0).astype(int)
    inner = LastLayerLaplace(lambda x: x, 2, 2, prior_std=3.0, key=KEY)
    how = {"epochs": 20, "draws": 1, **QUIET}
    fitted = fit(TemperatureScaled(inner, draws=4), Categorical(), x, labels, validation=(x, labels), **how).model
    assert fitted.model.factor is not None  # without it the draws are all one


# Laplace


def identity(x):
    return x


def test_laplace_of_a_linear_gaussian_model_is_the_exact_posterior():
    # features that go together: the weights' covariance is far from diagonal
    x = jax.random.normal(KEY, (30, 2)) @ jnp.array([[1.0, 0.8], [0.0, 0.6]]) + 1.0
    y = x @ jnp.array([[1.0, -0.5], [0.3, 2.0]]) + 0.4 * jax.random.normal(jax.random.key(1), (30, 2))
    model = LastLayerLaplace(identity, 2, 2, prior_std=0.8, key=KEY)
    fitted = fit(model, Gaussian(0.4), x, y, epochs=1000, draws=1, learning_rate=5e-2, **QUIET).model
    phi = np.column_stack([np.asarray(x, float) / np.sqrt(2), np.ones(30)])
    prior = np.zeros(3), 0.8**2 * np.eye(3)
    laws = [exact.gaussian_posterior(*prior, phi, 0.4, np.asarray(y[:, k], float)) for k in (0, 1)]
    mean, cov = np.stack([law[0] for law in laws], axis=1), np.kron(laws[0][1], np.eye(2))
    np.testing.assert_allclose(fitted.w, mean, atol=2e-3)
    factor = np.asarray(fitted.factor.value, float)
    np.testing.assert_allclose(np.linalg.inv(factor @ factor.T), cov, rtol=1e-3, atol=1e-6)
    # a draw is a function with these weights; at the points 0 and (1, -2), whose φ are
    at = np.array([[0.0, 0.0, 1.0], [1 / np.sqrt(2), -2 / np.sqrt(2), 1.0]])
    outputs, kl = over_keys(fitted, jnp.array([[0.0, 0.0], [1.0, -2.0]]), 4000)
    center = at @ np.asarray(fitted.w, float)
    assert exact.within(outputs, center)
    assert exact.within(covariances(outputs, center), np.stack([at @ laws[0][1] @ at.T] * 2))
    expected = exact.gaussian_kl(np.ravel(fitted.w), cov, np.zeros(6), 0.64 * np.eye(6))
    np.testing.assert_allclose(kl, expected, rtol=1e-4)


def test_the_precision_of_laplace_is_the_hessian_of_the_log_joint():
    x = jax.random.normal(KEY, (12, 2))
    labels = jax.random.randint(jax.random.key(1), (12,), 0, 3)
    net = eqx.nn.MLP(2, 4, 3, 1, key=KEY)
    fitted = fit(LastLayerLaplace(net, 4, 3, prior_std=0.5, key=KEY), Categorical(), x, labels, epochs=3, **QUIET).model
    phi = jnp.column_stack([jax.vmap(fitted.features.module)(x) / 2, jnp.ones(12)])

    def log_joint(w):
        log_p = jax.nn.log_softmax(phi @ w.reshape(5, 3))
        return log_p[jnp.arange(12), labels].sum() - 0.5 * jnp.sum(w**2) / 0.5**2

    factor = np.asarray(fitted.factor.value)
    expected = -jax.jit(jax.hessian(log_joint))(fitted.w.ravel())
    np.testing.assert_allclose(factor @ factor.T, expected, rtol=1e-3, atol=1e-4)


def test_where_a_likelihood_curves_the_wrong_way_laplace_takes_the_prior_s_word():
    x = jnp.zeros((2, 1))
    y = jnp.array([[0.2], [3.0]])  # around 0, Cauchy's log density is concave to ±1, and convex beyond
    model = eqx.tree_at(lambda m: m.w, LastLayerLaplace(identity, 1, 1, key=KEY), jnp.zeros((2, 1)))
    after = model.conditioned(Cauchy(1.0), x, y, validation=None, key=KEY, say=lambda text: None)
    factor = np.asarray(after.factor.value)
    inner = 2 * (1 - 0.2**2) / (1 + 0.2**2) ** 2
    np.testing.assert_allclose(factor @ factor.T, np.diag([1.0, 1.0 + inner]), rtol=1e-5)


# ResNet


def test_the_resnet_has_32_layers_of_weights_and_the_parameters_they_need():
    net = eqx.filter_eval_shape(ResNet, 3, 10, key=KEY)
    named = jax.tree_util.tree_flatten_with_path(eqx.filter(net, lambda leaf: hasattr(leaf, "shape")))[0]
    layers = 0
    for path, leaf in named:
        if getattr(path[-1], "name", "") in ("kernel", "weight"):
            layers += int(np.prod(leaf.shape[:-4]))  # four axes of a kernel; those in front stack blocks
    assert layers == 32
    conv = lambda m, n: 9 * m * n + n  # noqa: E731
    expected = conv(3, 16) + 10 * conv(16, 16) + conv(16, 32) + 9 * conv(32, 32) + conv(32, 64) + 9 * conv(64, 64) + 650
    assert sum(int(np.prod(leaf.shape)) for _, leaf in named) == expected == 463_018


def reference_conv(x, layer, stride):
    return lax.conv_general_dilated(
        x, layer.kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    ) + layer.bias  # fmt: skip


@pytest.fixture(scope="module")
def small_resnet():
    return ResNet(2, 3, widths=(2, 5), blocks=3, key=KEY)


IMAGES = jax.random.normal(KEY, (2, 6, 5, 2))


def test_at_first_every_residual_block_is_the_identity(small_resnet):
    h = np.tanh(reference_conv(IMAGES, small_resnet.stem, 1))
    expected = np.concatenate([h[:, ::2, ::2].mean((1, 2)), np.zeros((2, 3))], axis=1)
    np.testing.assert_allclose(small_resnet.features(IMAGES), expected, atol=1e-5)


def test_the_resnet_is_the_pre_activation_formula(small_resnet):
    net = shaken(small_resnet, size=0.3)
    h = reference_conv(IMAGES, net.stem, 1)
    for scale in (0, 1):
        blocks = [net.heads[scale]] + [jax.tree.map(lambda a, i=i: a[i], net.tails[scale]) for i in (0, 1)]
        for number, block in enumerate(blocks):
            stride = 2 if scale == 1 and number == 0 else 1
            change = reference_conv(np.tanh(reference_conv(np.tanh(h), block.first, stride)), block.second, 1)
            h = np.pad(h[:, ::stride, ::stride], [(0, 0)] * 3 + [(0, change.shape[-1] - h.shape[-1])]) + change
    expected = np.tanh(h).mean((1, 2)) @ np.asarray(net.head.weight).T + np.asarray(net.head.bias)
    np.testing.assert_allclose(net(IMAGES), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(net(IMAGES), [net(image) for image in IMAGES], rtol=1e-4, atol=1e-5)


# All of them


def deep(layer):
    """A net of continuous depth around some layer of three units."""
    return SDEBNN((Deterministic(Augment(2, 1)), layer, Deterministic(eqx.nn.Linear(3, 1, key=KEY))))


def field():
    return TimeMLP(3, (3,), key=KEY)


ROWS = {
    "mean-field resnet": lambda: MeanField(ResNet(1, 3, widths=(2,), blocks=2, key=KEY)),
    "odenet": lambda: deep(ODEBlock(field(), solver=GRID)),
    "mean-field mlp": lambda: MeanField(SMALL),
    "mean-field hyperodenet": lambda: MeanField(deep(HyperODEBlock(field(), drift=(2,), solver=GRID, key=KEY))),
    "bayes by backprop": lambda: bayes_by_backprop(SMALL),
    "dropout": lambda: MCDropout(SMALL, 0.5),
    "hypernet": lambda: Hypernet(SMALL, couplings=2, width=3, key=KEY),
    "bbvi": lambda: deep(bbvi(field(), knots=2, solver=GRID, key=KEY)),
    "partly random": lambda: deep(PartlyRandom(bayesianize(field(), drift=(2,), solver=GRID, key=KEY), 0.7)),
    "ensemble": lambda: Ensemble([MeanField(member) for member in members(2)]),
    "temperature": lambda: TemperatureScaled(MeanField(eqx.nn.Linear(2, 3, key=KEY)), draws=2),
    "laplace": lambda: LastLayerLaplace(eqx.nn.Linear(2, 4, key=KEY), 4, 1, key=KEY),
}


@pytest.mark.parametrize("row", ROWS)
def test_every_row_trains_and_its_key_names_one_function_whatever_the_batch(row):
    likelihood = Categorical() if row in ("mean-field resnet", "temperature") else Gaussian(0.3)
    x = jax.random.normal(KEY, (4, 4, 4, 1)) if "resnet" in row else X[:4]
    y = jnp.array([0, 2, 1, 0]) if isinstance(likelihood, Categorical) else Y[:4]
    start = ROWS[row]()
    held_out = (x, y) if row == "temperature" else None
    fitted = fit(start, likelihood, x, y, epochs=2, draws=2, validation=held_out, **QUIET)
    assert all(np.all(np.isfinite(fitted.history[name])) for name in ("elbo", "log_likelihood", "kl"))
    model = fitted.model
    moved = [np.abs(a - b).max() for a, b in zip(arrays(model), arrays(start), strict=True)]
    assert max(moved) > 0.005
    drawn = lambda x, key=KEY: predict(model, x, draws=3, draws_at_once=1, key=key)  # noqa: E731
    outputs = drawn(x)
    assert np.all(np.isfinite(outputs))
    assert np.array_equal(outputs, drawn(x))
    # the first example in another place, among others
    others = jnp.flip(x, 0).at[:3].multiply(-2.0)
    np.testing.assert_allclose(drawn(others)[:, 3], outputs[:, 0], rtol=1e-4, atol=1e-5)
    elsewhere = drawn(x, jax.random.key(9))
    assert np.array_equal(outputs, elsewhere) == (row == "odenet")


# What is refused


class Bare(eqx.Module):
    """A field without weights."""

    def __call__(self, t, h):
        return -h


class Adam:
    """Not a model at all."""

    __slots__ = ()


FIELD = TimeMLP(2, (2,), key=KEY)
BLOCK = bayesianize(FIELD, drift=(2,), key=KEY)
TARGETS = POINTS[:, :2]

REFUSED = {
    "no key": (lambda: ResNet(1, 2, key=0), "key=0"),
    "one class": (lambda: ResNet(1, 1, key=KEY), "classes=1"),
    "one block": (lambda: ResNet(1, 2, blocks=1, key=KEY), "blocks=1"),
    "no width": (lambda: ResNet(1, 2, widths=(4, 0), key=KEY), r"widths\[1\]=0"),
    "no widths": (lambda: ResNet(1, 2, widths=(), key=KEY), r"widths=\(\)"),
    "no activation": (lambda: ResNet(1, 2, activation="relu", key=KEY), "activation='relu'"),
    "an ode in adaptive steps": (lambda: ODEBlock(FIELD, solver=Adaptive(1e-3)), "Adaptive.*FixedGrid"),
    "an ode without weights": (lambda: ODEBlock(Bare()), "Bare.*no weights"),
    "a hyper ode in adaptive steps": (
        lambda: HyperODEBlock(FIELD, solver=Adaptive(1e-3), key=KEY),
        "Adaptive.*FixedGrid",
    ),
    "a hyper ode without weights": (lambda: HyperODEBlock(Bare(), key=KEY), "Bare.*no weights"),
    "a hyper ode's widths": (lambda: HyperODEBlock(FIELD, drift=(0,), key=KEY), r"drift\[0\]=0"),
    "no weights": (lambda: MeanField(jnp.tanh), "no weights to learn"),
    "no model": (lambda: MeanField(3), "3 is no model"),
    "no spread": (lambda: MeanField(SMALL, lambda w: Normal(w, 0.0)), "std=0.0"),
    "all wide": (lambda: bayes_by_backprop(SMALL, share=1.0), "share=1.0"),
    "no width of the wide": (lambda: bayes_by_backprop(SMALL, wide=-1.0), "wide=-1.0"),
    "no width of the narrow": (lambda: bayes_by_backprop(SMALL, narrow=0), "narrow=0"),
    "all units off": (lambda: MCDropout(SMALL, 1.0), "rate=1.0"),
    "no units off": (lambda: MCDropout(SMALL, 0.0), "rate=0.0"),
    "nothing but data to switch off": (lambda: MCDropout(LINEAR), "Linear has no units to switch off"),
    "nowhere": (lambda: MCDropout(SMALL, where=lambda m: m.head), "where does not pick"),
    "dropout's prior": (lambda: MCDropout(SMALL, prior_std=0), "prior_std=0"),
    "one weight": (lambda: Hypernet(eqx.nn.Linear(1, 1, use_bias=False, key=KEY), key=KEY), "one weight only"),
    "no couplings": (lambda: Hypernet(SMALL, couplings=0, key=KEY), "couplings=0"),
    "no hidden units": (lambda: Hypernet(SMALL, width=0, key=KEY), "width=0"),
    "a hypernet's spread": (lambda: Hypernet(SMALL, std=-0.1, key=KEY), "std=-0.1"),
    "a hypernet's prior": (lambda: Hypernet(SMALL, prior_std=np.inf, key=KEY), "prior_std=inf"),
    "a hypernet's key": (lambda: Hypernet(SMALL, key=1), "key=1"),
    "one knot": (lambda: bbvi(FIELD, knots=1, key=KEY), "knots=1"),
    "bbvi of nothing": (lambda: bbvi(Bare(), key=KEY), "Bare holds no floating-point array"),
    "never random": (lambda: PartlyRandom(BLOCK, 0.0), r"until=0.0"),
    "beyond the end": (lambda: PartlyRandom(BLOCK, 1.5), r"until=1.5"),
    "a depth in words": (lambda: PartlyRandom(BLOCK, "half"), "until='half'"),
    "less than a step": (lambda: PartlyRandom(BLOCK, 0.01), "until=0.01"),
    "no block": (lambda: PartlyRandom(SMALL, 0.5), "got MLP: use FixedGrid"),
    "no grid": (lambda: PartlyRandom(BLOCK.with_solver(Adaptive(1e-3)), 0.5), "FixedGrid"),
    "a grid exchanged for a tolerance": (
        lambda: refined(PartlyRandom(BLOCK, 0.5), rtol=1e-2)(TARGETS, key=KEY),
        "FixedGrid",
    ),
    "no members": (lambda: Ensemble([]), "at least one"),
    "one member for many": (lambda: Ensemble(SMALL), "members"),
    "members of other widths": (lambda: Ensemble([*members(2), SMALL]), "member 2 is not like"),
    "members of other kinds": (lambda: Ensemble([SMALL, LINEAR]), "member 1 is not like"),
    "members that act otherwise": (
        lambda: Ensemble([SMALL, eqx.tree_at(lambda m: m.activation, SMALL, jnp.tanh)]),
        "member 1 is not like",
    ),
    "no draws": (lambda: TemperatureScaled(SMALL, draws=0), "draws=0"),
    "no model to scale": (lambda: TemperatureScaled(Adam()), "is no model"),
    "no validation": (
        lambda: fit(TemperatureScaled(LINEAR), Categorical(), POINTS, jnp.array([0, 1, 0]), epochs=FOREVER, **QUIET),
        r"pass validation=\(x, y\)",
    ),
    "no logits": (
        lambda: fit(
            TemperatureScaled(LINEAR), Gaussian(1.0), POINTS, TARGETS, validation=(POINTS, TARGETS), epochs=FOREVER,
            **QUIET,
        ),
        r"likelihood=Gaussian\(\).*Categorical",
    ),
    "laplace of a random net": (lambda: LastLayerLaplace(BLOCK, 1, 1, key=KEY), "LastLayerLaplace.*holds an SDEBlock"),
    "laplace inside a sequence": (
        lambda: fit(
            SDEBNN((LastLayerLaplace(SMALL, 1, 1, key=KEY),)), Gaussian(1.0), X, Y, epochs=FOREVER, **QUIET
        ),
        "LastLayerLaplace learns from the data by itself, and cannot do so inside SDEBNN: put it outermost",
    ),
    "no features": (lambda: LastLayerLaplace(SMALL, 0, 1, key=KEY), "size=0"),
    "no outputs": (lambda: LastLayerLaplace(SMALL, 1, 0, key=KEY), "outputs=0"),
    "laplace's prior": (lambda: LastLayerLaplace(SMALL, 1, 1, prior_std=0.0, key=KEY), "prior_std=0.0"),
    "laplace's key": (lambda: LastLayerLaplace(SMALL, 1, 1, key=None), "key=None"),
    "too many features": (lambda: LastLayerLaplace(SMALL, 2000, 10, key=KEY), "20010 weights"),
    "other features": (lambda: LastLayerLaplace(SMALL, 2, 1, key=KEY)(X, key=KEY), r"shape \(1,\), size=2"),
}  # fmt: skip


@pytest.mark.usefixtures("_as_a_user")
@pytest.mark.parametrize("call", REFUSED)
def test_a_bad_argument_is_named_in_one_line_with_its_remedy(call, refused):
    refused(*REFUSED[call])
