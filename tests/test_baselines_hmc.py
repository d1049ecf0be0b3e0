"""HMC, against exact posteriors and published diagnostics; and what HMC and the GP refuse."""

import equinox as eqx
import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import KEY, QUIET, say_nothing

from sdebnn import (
    OU,
    SDEBNN,
    Categorical,
    Deterministic,
    FixedGrid,
    Gaussian,
    Normal,
    Objective,
    bayesianize,
    fit,
    predict,
)
from sdebnn.baselines import GP, HMC
from sdebnn.nn import Augment, MeanField, TimeMLP, draw_keys

pytestmark = pytest.mark.usefixtures("_compiled_in_haste")


X = jax.random.uniform(KEY, (9, 2), minval=-2.0, maxval=2.0)


Y = jnp.stack([jnp.sin(2 * X[:, 0]) + X[:, 1], X[:, 0] * X[:, 1]], axis=1)


# The model y = w·x / √2 + noise has a normal posterior. All tests below use it, so that HMC is compiled once.
STEPS, SIGMA, STD = 10, 0.02, 0.3


LINEAR = eqx.nn.Linear(2, 1, use_bias=False, key=KEY)


def depth_std():
    """The prior's standard deviation of the mean over depth of one standardised weight of the SDE-BNN below."""
    ones = np.ones(STEPS)
    _, cov = exact.random_start(-ones, 0 * ones, SIGMA, 1.0)
    return float(np.sqrt(cov[:STEPS, :STEPS].mean()))  # Euler's integral takes left ends


def targets(x, seed=1):
    return x @ jnp.array([[1.0], [-0.5]]) + STD * jax.random.normal(jax.random.key(seed), (len(x), 1))


def posterior(x, y):
    """Mean and covariance of the two standardised weights."""
    design = np.asarray(x, float) / np.sqrt(2)
    prior = np.zeros(2), depth_std() ** 2 * np.eye(2)
    return exact.gaussian_posterior(*prior, design, STD, np.asarray(y[:, 0], float))[:2]


class Watched(HMC):
    """HMC that also keeps its chains before they are shuffled."""

    def _diagnosed(self, w, x, infos):
        CHAINS.append(np.asarray(w, float))
        return super()._diagnosed(w, x, infos)


CHAINS = []


# Correlated inputs, so that the weights are correlated.
INPUTS = jax.random.normal(KEY, (6, 2)) @ jnp.array([[1.0, 0.8], [0.0, 0.6]])


def hmc():
    return Watched(LINEAR, prior_std=depth_std(), warmup=200, draws=1000)


@pytest.fixture(scope="module")
def sampled():
    """A fitted model, the chains it ran, and the exact posterior."""
    y = targets(INPUTS)
    fitted = fit(hmc(), Gaussian(STD), INPUTS, y, epochs=50, objective=Objective(draws=16), **QUIET).model
    return fitted, CHAINS[-1], posterior(INPUTS, y)


def test_hmc_samples_the_exact_gaussian_posterior(sampled):
    fitted, chains, (mean, cov) = sampled
    assert abs(cov[0, 1]) > 0.3 * np.sqrt(cov[0, 0] * cov[1, 1])
    kept = np.asarray(fitted.samples.value, float)
    assert kept.shape == (4000, 2)
    np.testing.assert_allclose(np.sort(kept, axis=0), np.sort(chains.reshape(-1, 2), axis=0))
    off = chains - mean
    for i in range(2):
        error = np.sqrt(cov[i, i] / exact.effective_size(chains[..., i]))
        assert abs(off[..., i].mean()) < 4 * error < 0.15 * np.sqrt(cov[i, i])
        for j in range(i + 1):
            products = off[..., i] * off[..., j]
            error = products.std() / np.sqrt(exact.effective_size(products))
            assert abs(products.mean() - cov[i, j]) < 4 * error < 0.2 * np.sqrt(cov[i, i] * cov[j, j])
    found = fitted.diagnostics
    assert found.rhat_weights < 1.01
    assert found.rhat_outputs < 1.01
    assert found.divergences == 0
    assert 0.6 < found.acceptance <= 1
    assert min(found.ess_weights, found.ess_outputs) > 400


def test_predictions_of_hmc_use_its_samples_in_turn(sampled):
    fitted = sampled[0]
    x = jnp.array([[1.0, 0.0], [3.0, -2.0]])
    outputs = np.asarray(predict(fitted, x, draws=4000, draws_at_once=4000, key=KEY), float)[..., 0]
    expected = np.asarray(fitted.samples.value) @ np.asarray(x).T / np.sqrt(2)
    np.testing.assert_allclose(np.sort(outputs, axis=0), np.sort(expected, axis=0), atol=1e-4)


def test_a_key_names_one_sample_and_samples_are_in_random_order(sampled):
    fitted = sampled[0]
    few, many = (jax.random.key_data(draw_keys(KEY, n, fitted)) for n in (5, 50))
    assert np.array_equal(few, many[:5])
    x = INPUTS[:4]
    outputs = predict(fitted, x, draws=3, key=KEY)
    assert np.array_equal(outputs, predict(fitted, x, draws=3, key=KEY))
    others = predict(fitted, jnp.flip(x, 0).at[:3].add(0.7), draws=3, key=KEY)
    np.testing.assert_allclose(others[:, 3], outputs[:, 0], rtol=1e-5)
    # shuffled samples are not autocorrelated
    samples = np.asarray(fitted.samples.value, float)
    lagged = [np.corrcoef(samples[:-1, i], samples[1:, i])[0, 1] for i in range(2)]
    assert np.abs(lagged).max() < 4 / np.sqrt(4000)
    assert fitted(x, key=KEY)[1] == 0


def test_the_diagnostics_agree_with_vehtari_et_al(sampled):
    fitted, chains, _ = sampled
    assert fitted.diagnostics.rhat_weights == pytest.approx(max(exact.rhat(chains[..., i]) for i in range(2)), abs=2e-4)
    # chains x_{k+1} = ρ x_k + ε, whose effective size is known: n (1 - ρ) / (1 + ρ)
    rng, rho, draws = np.random.default_rng(0), 0.6, 1000
    w = np.zeros((4, draws, 2))
    for k in range(1, draws):
        w[:, k] = rho * w[:, k - 1] + np.sqrt(1 - rho**2) * rng.standard_normal((4, 2))
    infos = [(np.arange(draws) < np.array([[3], [0], [0], [4]]), np.full((4, draws), 0.7), np.full((4, draws), 5))]
    good = fitted._diagnosed(jnp.asarray(w), INPUTS, infos)
    assert good.rhat_weights == pytest.approx(max(exact.rhat(w[..., i]) for i in range(2)), abs=2e-4)
    assert good.rhat_weights < 1.01
    # the smaller of two estimates, each with an error of about 10 %
    assert good.ess_weights == pytest.approx(4 * draws * (1 - rho) / (1 + rho), rel=0.3)
    assert (good.divergences, good.leapfrogs) == (7, 5)
    assert good.acceptance == pytest.approx(0.7)
    w[..., 1] += 0.3 * np.arange(4)[:, None]  # the chains disagree on one weight
    poor = fitted._diagnosed(jnp.asarray(w), INPUTS, infos)
    assert poor.rhat_weights == pytest.approx(exact.rhat(w[..., 1]), abs=2e-4)
    assert poor.rhat_weights > 1.05
    assert poor.ess_weights < 100
    outputs = w @ np.asarray(INPUTS).T / np.sqrt(2)
    assert poor.rhat_outputs == pytest.approx(max(exact.rhat(outputs[..., i]) for i in range(6)), abs=2e-4)


class Square(eqx.Module):
    """y = w² x, so that w and -w give the same function."""

    w: jax.Array

    def __call__(self, x):
        return self.w**2 * x


@pytest.mark.slow
def test_chains_in_equivalent_modes_differ_in_their_weights_but_not_in_their_outputs():
    x = jnp.linspace(0.5, 2.0, 10)[:, None]
    # starting from N(0, 3²), some chains find w = 2 and some w = -2, and none changes between them
    model = HMC(Square(jnp.zeros(1)), std=3.0, prior_std=3.0, warmup=100, draws=100)
    fitted = model.after_training(Gaussian(0.1), (x, 4 * x), validation=None, key=KEY, say=say_nothing)
    signs = np.sign(np.asarray(fitted.samples.value))
    assert 0.1 < (signs > 0).mean() < 0.9
    assert fitted.diagnostics.rhat_weights > 1.5
    assert fitted.diagnostics.rhat_outputs < 1.05


DESIGN = jnp.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0], [2.0, 0.5], [-0.5, 2.0]])  # orthogonal columns


AT = jnp.array([[1.0, 0.0], [0.0, 1.0], [2.0, -1.0], [5.0, 5.0]])


class Reading(eqx.Module):
    """dh/dt = (0, 0, w·x) for h = (x, y), so that y at depth 1 is x times the mean of w over depth."""

    weight: jax.Array

    def __call__(self, t, h):
        return jnp.concatenate([jnp.zeros(2), self.weight @ h[:2]])


def last(h):
    return h[2:]


def sde_bnn():
    block = bayesianize(
        Reading(0.1 * jnp.ones((1, 2))),
        prior=OU(sigma=SIGMA),
        drift=(4,),
        initial=Normal,
        solver=FixedGrid(STEPS, unroll=1),
        key=KEY,
    )
    return SDEBNN((Deterministic(Augment(2, 1)), block, Deterministic(last)))


ROWS = {
    "MFVI": (lambda: MeanField(LINEAR, lambda w: Normal(w, 0.2, prior_std=depth_std())), 300),
    "HMC": (hmc, 50),
    "SDE-BNN": (sde_bnn, 1000),
}


@pytest.mark.parametrize("row", ROWS)
def test_mfvi_hmc_and_the_sde_bnn_reach_the_posterior_predictive_of_the_linear_model(row):
    # Orthogonal columns: the posterior factorises, as mean-field does.
    assert abs(float(DESIGN[:, 0] @ DESIGN[:, 1])) < 1e-6
    y = targets(DESIGN)
    mean, cov = posterior(DESIGN, y)
    at = np.asarray(AT, float) / np.sqrt(2)
    stds = np.sqrt(np.diag(at @ cov @ at.T))
    make, epochs = ROWS[row]
    fitted = fit(make(), Gaussian(STD), DESIGN, y, epochs=epochs, objective=Objective(draws=16), **QUIET).model
    outputs = np.asarray(predict(fitted, AT, draws=4000, draws_at_once=4000, key=KEY), float)[..., 0]
    # 4 standard errors of 4000 draws (an effective size of at least 1000 for HMC), plus 0.05 for the optimiser
    draws, rest = (1000, 0.0) if row == "HMC" else (4000, 0.05)
    np.testing.assert_allclose((outputs.mean(0) - at @ mean) / stds, 0.0, atol=4 / np.sqrt(draws) + rest)
    np.testing.assert_allclose(outputs.std(0), stds, rtol=4 / np.sqrt(2 * draws) + rest)
    assert np.abs(at @ mean / stds).max() > 3  # the data are informative
    assert np.all(stds < 0.5 * depth_std() * np.linalg.norm(at, axis=1))


REFUSED = {
    "no neighbours": (lambda: GP(X, Y, kernel="cubic"), "kernel='cubic'.*'matern32'"),
    "no length": (lambda: GP(X, Y, length=0.0), "length=0.0"),
    "no amplitude": (lambda: GP(X, Y, amplitude=-1.0), "amplitude=-1.0"),
    "no noise": (lambda: GP(X, Y, noise=0), "noise=0"),
    "no features": (lambda: GP(X, Y, features=0), "features=0"),
    "no column": (lambda: GP(X, Y[:, 0]), r"y has shape \(9,\)"),
    "images": (lambda: GP(X[:, None], Y), r"\(9, 1, 2\)"),
    "other data": (lambda: GP(X, Y[:3]), "9 examples.* 3"),
    "nan": (lambda: GP(X.at[2, 1].set(jnp.nan), Y), r"x holds 1 NaN.*\(2, 1\)"),
    "no points": (lambda: GP(X, Y).posterior(X[0]), "x has shape"),
    "no chains": (lambda: HMC(LINEAR, chains=0), "chains=0"),
    "no warm-up": (lambda: HMC(LINEAR, warmup=5), "warmup=5"),
    "no draws": (lambda: HMC(LINEAR, draws=3), "draws=3"),
    "no doublings": (lambda: HMC(LINEAR, doublings=0), "doublings=0"),
    "no prior": (lambda: HMC(LINEAR, prior_std=0.0), "prior_std=0.0"),
    "no spread": (lambda: HMC(LINEAR, std=-1.0), "std=-1.0"),
    "no weights": (lambda: HMC(jnp.tanh), "no weights to learn"),
    "a random net": (lambda: HMC(bayesianize(TimeMLP(2, (2,), key=KEY), key=KEY)), "HMC.*holds an SDEBlock"),
    "no numbers for a gp": (
        lambda: fit(GP(X, Y), Categorical(), X, Y, epochs=1, **QUIET),
        "y has dtype float32",
    ),
}


@pytest.mark.usefixtures("_as_a_user")
@pytest.mark.parametrize("call", REFUSED)
def test_a_bad_argument_is_refused_in_one_line_with_a_remedy(call, refused):
    refused(*REFUSED[call])


@pytest.mark.parametrize(("library", "make"), [("tinygp", lambda: GP(X, Y)), ("blackjax", lambda: HMC(LINEAR))])
def test_a_missing_library_is_named_with_the_command_that_installs_it(library, make, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, library, None)
    with pytest.raises(ValueError, match=rf"needs {library}: pip install 'sdebnn\[baselines\]'"):
        make()
