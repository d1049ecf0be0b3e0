"""Guides and read-outs before and in training: where they begin, what they keep, and what ``fit`` makes of them."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import KEY, QUIET, arrays, guided_net

from sdebnn import Categorical, Cauchy, Ensemble, FixedGrid, Gaussian, Laplace, StudentT, fit, predict
from sdebnn.integrate.guide import SPEED
from sdebnn.likelihoods import Weighted
from sdebnn.models.placing import spread_out, summarised
from sdebnn.nn import SDEBNN, Deterministic, blocks
from sdebnn.train import Checkpoints, Objective, Optimizer
from sdebnn.train.collapse import default_warmup


def small(**options):
    return SDEBNN.mlp(1, 1, width=4, points=4, solver=FixedGrid(3), key=KEY, **options)


def sine(n=10):
    x = jnp.linspace(-2, 2, n)[:, None]
    return x, jnp.sin(2 * x)


def guide_of(model):
    return blocks(model)[0].guide


def test_points_are_spread_over_the_inputs_and_know_their_targets():
    x, y = sine(4)
    guide = guide_of(guided_net().before_training(Gaussian(0.1), (x, y)))
    at = np.asarray(guide.points[:, 0])
    assert {-2.0, 2.0} <= set(at.tolist())
    np.testing.assert_allclose(guide.unit * guide.targets[:, 0], np.sin(2 * at), atol=1e-6)
    np.testing.assert_allclose(np.exp(SPEED * guide.log_noise), 0.01, rtol=1e-5)
    np.testing.assert_array_equal(guide.points[:, 1:], 0)


def test_spread_out_rows_are_farthest_points_in_units_of_each_column():
    x = np.array([[0.0, 0.0], [1.0, 100.0], [2.0, 0.0], [2.0, 200.0], [0.0, 200.0]])
    assert set(spread_out(x, 4).tolist()) == {0, 2, 3, 4}
    assert len(spread_out(x, 9)) == 5


def test_of_more_rows_than_points_each_point_is_the_mean_of_those_nearest_to_it():
    x = np.array([[0.0], [0.2], [5.0], [5.4], [5.2], [9.0]])
    y = 3 * x - 1  # a line: the mean of the targets is the target at the mean
    variances = np.array([[1.0], [1.0], [0.5], [0.5], [0.5], [2.0]])
    at, values, found = summarised(x, y, variances, 3)
    order = np.argsort(at[:, 0])
    np.testing.assert_allclose(at[order, 0], [0.1, 5.2, 9.0])
    np.testing.assert_allclose(values, 3 * at - 1)
    np.testing.assert_allclose(found[order, 0], [1 / 2, 0.5 / 3, 2.0])


def test_more_points_than_rows_leave_the_others_without_knowledge():
    x, y = sine(3)
    model = guided_net(points=5).before_training(Gaussian(0.1), (x, y))
    assert np.sum(SPEED * np.asarray(guide_of(model).log_noise[0, :, 0]) > 10) == 2
    outputs, kl = model(x, key=KEY)
    assert np.isfinite(np.append(outputs, kl)).all()


@pytest.mark.parametrize("make", [small, guided_net])
def test_a_model_that_was_trained_is_left_as_it_is(make):
    x, y = sine()
    model = make().before_training(Gaussian(0.1), (x, y))
    again = model.before_training(Gaussian(0.1), (x + 1, 2 * y))
    for a, b in zip(arrays(model), arrays(again), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_head_of_its_own_leaves_the_guide_without_targets():
    x, y = sine()
    net = SDEBNN((*guided_net().layers[:2], Deterministic(eqx.nn.Linear(2, 1, key=KEY))))
    guide = guide_of(net.before_training(Gaussian(0.1), (x, y)))
    assert np.abs(np.asarray(guide.points)).max() == 2
    assert SPEED * np.asarray(guide.log_noise).min() > 10


def test_members_of_an_ensemble_are_placed_too():
    x, y = sine()
    model = Ensemble([guided_net(), guided_net()]).before_training(Gaussian(0.1), (x, y))
    assert not guide_of(model.member(1)).is_new
    model = Ensemble([small(), small()]).before_training(Gaussian(0.1), (x, y))
    assert not model.member(1).is_new


def test_pseudo_observations_of_classes_have_the_slope_of_the_log_likelihood():
    """At outputs of 0, d/df log N(f; value, variance) = value / variance is the slope of log p(y | f)."""
    y = jnp.array([2])
    values, variances = Categorical().pseudo_observations(y, 3)
    slope = jax.grad(lambda f: jnp.sum(Categorical().log_prob(f, y)))(jnp.zeros((1, 3)))
    np.testing.assert_allclose(values / variances, slope, rtol=1e-5)
    assert np.all(np.asarray(variances) > 0)


@pytest.mark.parametrize(
    "law", [Gaussian, Laplace, Cauchy, partial(StudentT, 4.0)], ids=["N", "Laplace", "Cauchy", "t"]
)
def test_pseudo_observations_of_numbers_are_the_targets_with_the_information_of_their_noise(law):
    """1 / variance is the mean square of the slope of log p, the Fisher information of the location."""
    y, likelihood = jnp.array([[1.5], [700.0]]), law(0.3)
    values, variances = likelihood.pseudo_observations(y, 1)
    np.testing.assert_array_equal(values, y)
    noise = likelihood.sample(jnp.zeros((200_000, 1)), key=KEY)
    slopes = np.asarray(jax.vmap(jax.grad(lambda f, y: likelihood.log_prob(f, y)))(jnp.zeros((200_000, 1)), noise))
    error = 4 * (slopes**2).std() / np.sqrt(200_000)
    assert np.all(np.abs(1 / np.asarray(variances) - (slopes**2).mean()) < error + 1e-4)


def test_if_the_outputs_give_the_noise_it_is_assumed_to_be_a_part_of_the_spread():
    y = jnp.array([[10.0], [30.0]])
    values, variances = Gaussian(None).pseudo_observations(y, 2)
    np.testing.assert_allclose(values[:, 0], y[:, 0])
    np.testing.assert_allclose(Gaussian(None).scale(values), 3.0, rtol=1e-4)
    np.testing.assert_allclose(variances[:, 0], 9.0, rtol=1e-5)


def test_weights_divide_the_variances_of_pseudo_observations():
    y = jnp.array([[1.5, 1.0], [2.5, 4.0]])
    values, variances = Weighted(Gaussian(0.3)).pseudo_observations(y, 1)
    np.testing.assert_allclose(values, y[:, :1])
    np.testing.assert_allclose(variances[:, 0], [0.09, 0.0225], rtol=1e-5)


@pytest.fixture(scope="module")
def fitted():
    x, y = sine(12)
    options = {"epochs": 60, "objective": Objective(draws=2), "optimizer": Optimizer(0.05)}
    return fit(
        SDEBNN.mlp(1, 1, width=16, points=12, solver=FixedGrid(4), key=KEY), Gaussian(0.1), x, y, **QUIET, **options
    )


def test_a_short_fit_follows_the_data_and_returns_to_the_prior_far_from_them(fitted):
    x, y = sine(12)
    elbo = fitted.history["elbo"]
    assert elbo[-10:].mean() > elbo[:3].mean() + 1
    assert elbo[-10:].mean() > -80  # for 12 points a constant has less than -400
    inside = np.asarray(predict(fitted.model, x, draws=60, key=KEY))[..., 0]
    assert np.abs(inside.mean(0) - np.asarray(y)[:, 0]).max() < 0.3
    far = np.asarray(predict(fitted.model, x + 30, draws=60, key=KEY))[..., 0]
    assert far.std(0).min() > 2 * inside.std(0).mean()


def test_a_net_that_starts_near_its_posterior_needs_no_warm_up_of_the_kl_weight():
    assert default_warmup(small()) == default_warmup(guided_net()) == 0
    assert default_warmup(SDEBNN.paper_mlp(1, 1, widths=(2,), drift=(2,), key=KEY)) > 0


@pytest.mark.slow
def test_a_fit_of_a_conditioned_readout_resumes_bit_for_bit(tmp_path):
    x, y = sine(8)
    options = {**QUIET, "objective": Objective(draws=1)}
    whole = fit(small(), Gaussian(0.1), x, y, epochs=6, checkpoints=Checkpoints(tmp_path / "a"), **options)
    fit(small(), Gaussian(0.1), x, y, epochs=6, checkpoints=Checkpoints(tmp_path / "b", every=0.0, keep=4), **options)
    saved = sorted((tmp_path / "b" / "checkpoints").glob("step-*"))
    assert len(saved) >= 4  # two files for each step
    for file in saved[-2:]:
        file.unlink()
    resumed = fit(
        small(), Gaussian(0.1), x, y, epochs=6, checkpoints=Checkpoints(tmp_path / "b", True, 0.0, 4), **options
    )  # fmt: skip
    for a, b in zip(arrays(whole.model), arrays(resumed.model), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_units_do_not_matter():
    x = jnp.array([[-1.9], [-1.2], [-0.8], [0.1], [0.5], [1.3], [2.0]])  # no two choices of points are equally good
    y = jnp.sin(2 * x)
    options = {**QUIET, "epochs": 5, "objective": Objective(draws=1)}
    plain = fit(small(), Gaussian(0.1), x, y, **options).history["elbo"]
    other = fit(small(), Gaussian(50.0), 1000 * x + 7000, 500 * y - 3000, **options).history["elbo"]
    np.testing.assert_allclose(other + 7 * np.log(500), plain, atol=0.5)


def test_a_net_takes_its_center_and_its_first_length_from_the_data():
    x = jnp.linspace(3, 7, 40)[:, None]
    net = SDEBNN.mlp(1, 1, width=4, solver=FixedGrid(3), key=KEY)
    fast = blocks(net.before_training(Gaussian(0.05), (x, jnp.sin(8 * x))))[0]  # many periods: a short length
    np.testing.assert_allclose(fast.field.center, [5.0], atol=1e-5)
    slow = blocks(net.before_training(Gaussian(0.05), (x, 0.1 * x)))[0]
    assert fast.initial.mean[-1] < 0 < slow.initial.mean[-1]
