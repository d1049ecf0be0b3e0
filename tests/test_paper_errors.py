"""The ten slips and traps of this method, one test each: put the slip back and its test fails.

They are numbered as in docs/mathematics.md.
"""

import equinox as eqx
import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import signal, stats

from sdebnn import (
    OU,
    SDEBNN,
    Categorical,
    FixedGrid,
    Gaussian,
    Normal,
    Point,
    bayesianize,
    elbo,
    evaluate,
    metrics,
    verify,
)
from sdebnn.integrate import Posterior
from sdebnn.nn import AbstractModel, Solution, TimeConvLayer, TimeMLP
from sdebnn.processes import AbstractDrift, DriftNet

KEY = jax.random.key(0)


def test_1_with_a_zero_drift_net_the_posterior_is_the_prior():
    """The paper prints f_q = NN - f_p: at NN = 0 that runs away from the prior's mean."""
    prior, w0 = OU(rate=2.0, mean=0.0, sigma=1e-4), jnp.array([1.0, -3.0])
    path = FixedGrid(1000).weights(Posterior(prior, DriftNet(2, (2,), key=KEY), Point(w0), "full"), key=KEY)
    np.testing.assert_allclose(path.w[-1], np.exp(-2.0) * w0, rtol=5e-3)
    assert path.kl == 0


def test_2_stl_lands_at_the_exact_posterior_which_the_wrong_sign_of_u_does_not():
    """With u = (f_p - f_q) / σ in the martingale, the noise of STL's gradient is not small but large."""
    problem = verify.LinearGaussian()
    parts = (verify.ExactDrift(problem), Point(jnp.array([problem.w0])))
    keys = jax.random.split(KEY, 512)
    spread = {
        kl: verify.gradient_samples(problem, parts, kl, FixedGrid(400), keys)[:, :2].std(0)
        for kl in ("analytic", "stl")
    }
    assert np.all(spread["stl"] < 0.05 * spread["analytic"])


def test_3_the_martingale_is_an_ito_sum():
    """Its mean is zero at left ends; taken at midpoints, as a Stratonovich solver does, it is ½ ∫ σ du/dw dt."""
    prior, sigma, n = OU(sigma=0.7), 0.7, 200
    drift = Proportional(-1.4)

    def martingales(key):
        args = (prior, drift, Point(jnp.ones(1)))
        full, analytic = (FixedGrid(n).weights(Posterior(*args, kl), key=key) for kl in ("full", "analytic"))
        w = full.w[:, 0]
        dB = (jnp.diff(w) - (prior.drift(0.0, w[:-1]) + drift(0.0, w[:-1])) / n) / sigma
        midpoint = jnp.sum(0.5 * (drift(0.0, w[1:]) + drift(0.0, w[:-1])) / sigma * dB)
        return full.kl - analytic.kl, midpoint

    ito, stratonovich = (np.asarray(a, dtype=float) for a in jax.vmap(martingales)(jax.random.split(KEY, 4096)))
    assert abs(ito.mean()) < 4 * ito.std() / 64
    assert abs(stratonovich.mean() - 0.5 * -1.4) < 4 * stratonovich.std() / 64 + 0.01  # the slip this guards against


def test_3_the_elbo_never_exceeds_the_log_evidence():
    problem = verify.LinearGaussian()
    sample = eqx.filter_jit(verify.elbo_samples)
    for gain in (0.0, 0.6, 1.0, 1.4):
        for kl in ("analytic", "full"):
            drift, start = verify.ExactDrift(problem, gain), Point(jnp.array([problem.w0]))
            values = np.asarray(
                sample(problem, drift, start, kl, FixedGrid(400), jax.random.split(KEY, 4096)), dtype=float
            )
            assert values.mean() <= problem.log_evidence() + 4 * values.std() / 64


class Proportional(AbstractDrift):
    """A drift in proportion to the weights."""

    factor: float

    def __call__(self, t, w):
        return self.factor * w


class Constant(AbstractDrift):
    """A drift that is one number."""

    value: jax.Array

    def __call__(self, t, w):
        return jnp.full_like(w, self.value)


def test_4_the_horizon_is_one_the_half_is_in_the_kl_and_stl_is_not_the_analytic_estimator():
    constant = Constant(jnp.array(0.6))
    paths = {kl: FixedGrid(50).weights(Posterior(OU(sigma=0.3), constant, Point(jnp.zeros(2)), kl), key=KEY)
             for kl in ("analytic", "full", "stl")}  # fmt: skip
    assert paths["analytic"].t[-1] == 1.0
    assert paths["analytic"].kl == pytest.approx(0.5 * 2 * (0.6 / 0.3) ** 2, rel=1e-5)  # ½ |u|², over exactly 1
    assert paths["stl"].kl == pytest.approx(float(paths["full"].kl), rel=1e-5)
    assert abs(paths["stl"].kl - paths["analytic"].kl) > 0.1

    def end(key):
        law = Posterior(OU(), DriftNet(1, (1,), key=KEY), Point(jnp.ones(1)))
        return FixedGrid(400).weights(law, key=key).w[-1, 0]

    ends = np.asarray(jax.vmap(end)(jax.random.split(KEY, 4096)), dtype=float)
    mean, std = exact.ou_moments(1.0, 0.0, 0.1, 1.0, 1.0)  # at t = 0.53 the mean would be 0.59, not 0.37
    assert abs(ends.mean() - mean) < 4 * std / 64 + 1e-3
    assert abs(ends.std() - std) < 4 * std / np.sqrt(2 * 4096) + 1e-3


class ConstantKL(AbstractModel):
    """A model whose KL is known."""

    def solve(self, x, *, key, with_roughness=False):
        return Solution(jnp.zeros_like(x), jnp.array(7.0))


def test_5_the_kl_is_that_of_the_whole_data_set_whatever_the_batch():
    x = jnp.linspace(-1.0, 1.0, 40)[:, None]
    whole = float(stats.norm.logpdf(np.asarray(x), 0, 0.5).sum())
    ours = elbo(ConstantKL(), Gaussian(0.5), x, x, key=KEY)
    assert ours.elbo == pytest.approx(whole - 7.0, rel=1e-5)
    batches = [
        elbo(ConstantKL(), Gaussian(0.5), x[i::4], x[i::4], key=KEY, examples=40, kl_weight=0.5) for i in range(4)
    ]
    assert np.mean([b.elbo for b in batches]) == pytest.approx(whole - 0.5 * 7.0, rel=1e-5)
    assert all(b.kl == 7.0 for b in batches)


def test_6_noise_in_a_unit_does_not_grow_with_its_fan_in():
    spreads = []
    for width in (16, 1024):
        layer = eqx.nn.Linear(width, 1, use_bias=False, key=KEY)
        block = bayesianize(Scalar(layer), prior=OU(rate=0.0, sigma=1.0), drift=(1,), solver=FixedGrid(1), key=KEY)
        # the weights' own noise, as the layer sees it, on an input of ones
        ends = jax.vmap(lambda key: block.draw(key=key).w[-1] - block.initial.value)(jax.random.split(KEY, 400))  # noqa: B023
        units = block.weights.unravel(ends).layer.weight.sum((1, 2))
        spreads.append(float(units.std()))
    np.testing.assert_allclose(spreads, 1.0, rtol=4 / np.sqrt(2 * 400))


class Scalar(eqx.Module):
    """A wide unit as a field of one number."""

    layer: eqx.nn.Linear

    def __call__(self, t, h):
        return self.layer(jnp.broadcast_to(h, self.layer.in_features))


def test_7_a_forecast_averages_probabilities():
    logits = jnp.array([[[4.0, 0.0]], [[-9.0, 0.0]]])  # one sure draw, one surer of the opposite
    probs = Categorical().center(logits)
    averaged = np.asarray(probs)[:, 0].mean(0)
    assert averaged[0] > 0.49 > 0.1 > jax.nn.softmax(logits.mean(0))[0, 0]
    assert metrics.brier(probs, jnp.array([0])) == pytest.approx(2 * (1 - averaged[0]) ** 2, rel=1e-4)
    assert metrics.nll(Categorical().log_prob(logits, jnp.array([0]))) == pytest.approx(-np.log(averaged[0]), rel=1e-4)


def test_8_confidence_exactly_one_belongs_to_the_last_bin():
    sure = jnp.array([[[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]])
    assert metrics.ece(sure, jnp.array([0, 1, 1, 1])) == pytest.approx(0.75)


def test_9_what_w0_holds_is_charged_for_once_it_is_inferred_and_the_kl_stands_beside_every_score():
    far = jnp.full(3, 2.0)
    point, inferred = Point(far), Normal(far, 0.1)
    assert point.kl() == 0
    assert inferred.kl() == pytest.approx(3 * exact.normal_kl(2.0, 0.1, 0.0, 1.0), rel=1e-4)
    x = jnp.ones((4, 1))
    for initial in (Point, Normal):
        model = SDEBNN.paper_mlp(1, 1, widths=(2,), drift=(2,), initial=initial, key=KEY)
        scores = evaluate(model, Gaussian(1.0), x, x, draws=2, key=KEY)
        assert scores["kl"] == pytest.approx(float(model.layers[1].initial.kl()), rel=1e-5)


def test_10_time_as_a_constant_channel_sees_the_zero_padding_at_the_borders():
    layer = TimeConvLayer(2, 3, key=KEY)
    layer = eqx.tree_at(lambda c: c.bias, layer, jnp.array([0.1, -0.2, 0.3]))
    h, t = np.asarray(jax.random.normal(jax.random.key(1), (5, 6, 2))), 0.7
    channels = np.concatenate([h, np.full((5, 6, 1), t)], axis=-1)  # literally: one more channel, filled with t
    kernel = np.concatenate([layer.kernel, np.asarray(layer.time)[:, :, None]], axis=2)
    expected = np.stack([
        sum(signal.correlate2d(channels[..., c], kernel[..., c, o], mode="same", boundary="fill") for c in range(3)) + b
        for o, b in enumerate(np.asarray(layer.bias))
    ], axis=-1)  # fmt: skip
    np.testing.assert_allclose(layer(t, jnp.asarray(h)), expected, rtol=1e-4, atol=1e-5)
    added = np.asarray(layer(t, jnp.asarray(h)) - layer(0.0, jnp.asarray(h)))[..., 0]
    assert abs(added[0, 0] - added[2, 2]) > 1e-3  # a number per channel would be the same everywhere


def test_the_untrained_model_is_the_prior_for_every_estimator():
    for kl in ("analytic", "full", "stl"):
        block = bayesianize(TimeMLP(2, (3,), key=KEY), kl=kl, key=KEY)
        assert block.draw(key=KEY).kl == 0
