"""A posterior that has become its prior is told; warming up the KL avoids most of them."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from sdebnn import SDEBNN, Categorical, Cauchy, FixedGrid, Gaussian, Laplace, Objective, Point, StudentT, fit
from sdebnn.likelihoods.location_scale import MISFIT
from sdebnn.nn import MeanField
from sdebnn.train.collapse import KL_WARMUP, infers_start, warn_if_collapsed

KEY = jax.random.key(0)
LINE = eqx.nn.Linear(1, 1, key=KEY)


def net(**how):
    return SDEBNN.paper_mlp(1, 1, widths=(4,), drift=(2,), solver=FixedGrid(4), key=KEY, **how)


@pytest.mark.parametrize(
    ("law", "exact"),
    [
        (Gaussian(0.3), stats.norm(scale=0.3)),
        (Laplace(0.3), stats.laplace(scale=0.3)),
        (Cauchy(0.3), stats.cauchy(scale=0.3)),
        (StudentT(3.0, 0.3), stats.t(3.0, scale=0.3)),
        (Gaussian(0.3, learn=True), stats.norm(scale=0.3)),
    ],
)
def test_a_fit_exceeds_the_log_density_of_residuals_of_twice_the_noise_s_variance(law, exact):
    # MISFIT nats below minus the entropy, for each of two targets
    expected = 2 * (-exact.entropy() - MISFIT)
    assert law.log_prob_of_a_fit(jnp.zeros((5, 2)), None) == pytest.approx(expected, abs=1e-5)


def test_the_log_likelihood_of_a_fit_is_unknown_if_the_outputs_give_the_scale():
    assert Gaussian(None).log_prob_of_a_fit(jnp.zeros((5, 2)), None) is None


@pytest.mark.slow
def test_the_kl_is_warmed_up_where_the_start_is_inferred_and_only_there(capfd):
    x = jnp.zeros((4, 1))
    for model, share in ((net(), KL_WARMUP), (net(initial=Point), 0.0), (MeanField(LINE), KL_WARMUP)):
        assert infers_start(model) == (share > 0)
        fit(model, Gaussian(1.0), x, x, key=KEY, epochs=1)
        assert ("over the first 30%" in capfd.readouterr().err) == (share > 0)
    fit(net(), Gaussian(1.0), x, x, key=KEY, epochs=1, objective=Objective(kl_warmup=0.0))
    assert "over the first" not in capfd.readouterr().err


def history(kl, log_likelihood):
    return {"kl": np.full(20, kl), "log_likelihood": np.full(20, log_likelihood)}


def test_a_collapse_is_told_by_its_terms():
    y = jnp.zeros((10, 1))
    expected = -float(stats.norm(scale=0.1).entropy())
    with pytest.warns(RuntimeWarning, match=r"collapsed to its prior: its KL is 0\.4 nats"):
        warn_if_collapsed(Gaussian(0.1), history(0.4, 10 * (expected - 12)), y)
    labels = jnp.arange(10) % 2
    with pytest.warns(RuntimeWarning, match="collapsed"):
        warn_if_collapsed(Categorical(), history(0.0, -10 * np.log(2)), labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_collapsed(Gaussian(0.1), history(30.0, 10 * (expected - 12)), y)  # it pays, and may yet fit
        warn_if_collapsed(Gaussian(0.1), history(0.4, 10 * (expected - 0.1)), y)  # there is nothing to learn
        warn_if_collapsed(Gaussian(None), history(0.0, -1e6), y)
        warn_if_collapsed(Categorical(), history(0.5, -10 * 0.3), labels)


def test_a_net_that_learns_nothing_says_so():
    # Data that a net could fit, and a KL that is charged a thousandfold from the start: the prior is cheaper.
    x = jnp.linspace(-1, 1, 20)[:, None]
    with pytest.warns(RuntimeWarning, match="raise kl_warmup"):
        fit(
            net(), Gaussian(0.1), x, jnp.sin(3 * x), key=KEY, epochs=400,
            objective=Objective(kl_weight=1e3, kl_warmup=0.0), progress=False,
        )  # fmt: skip
