"""A user writes each part outside the package and runs it through fit, predict, evaluate, exact checks and checkpoints.

Nothing here touches a file of the package. Each class is as short as the docstring of its contract promises.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from sdebnn import (
    OU,
    SDEBNN,
    Batches,
    Checkpoints,
    FixedGrid,
    Gaussian,
    Objective,
    Optimizer,
    Point,
    Validation,
    bayesianize,
    data,
    elbo,
    evaluate,
    fit,
    predict,
    prior_of,
    refined,
    uncertainty_sources,
)
from sdebnn.integrate import AbstractMethod, AbstractSolver, Posterior, RungeKutta, Stages
from sdebnn.likelihoods import AbstractLikelihood
from sdebnn.nn import AbstractModel, Solution, TimeMLP
from sdebnn.processes import AbstractDrift, AbstractInitialLaw, AbstractPrior, NoDrift

pytestmark = pytest.mark.usefixtures("_compiled_in_haste")
KEY = jax.random.key(0)
X = jnp.linspace(-1.0, 1.0, 24)[:, None]
Y = 2 * X + 0.1 * jnp.sin(20 * X)


class SoftPull(AbstractPrior):
    """dw = -strength tanh(w) dt + sigma dB: a restoring force that is bounded, so the process is not OU."""

    strength: jax.Array
    sigma: float = 0.3

    def drift(self, t, w):
        return -self.strength * jnp.tanh(w)

    def constrained(self):
        return eqx.tree_at(lambda prior: prior.strength, self, jnp.maximum(self.strength, 0))


class Shift(AbstractDrift):
    """One number for each weight, the same at every depth."""

    value: jax.Array

    def __call__(self, t, w):
        return self.value


class Uniform(AbstractInitialLaw):
    """q(w_0) is uniform on center ± 1, p(w_0) uniform on ± 10: the KL is known, and not a normal's."""

    center: jax.Array

    def sample(self, *, key):
        return self.center + jax.random.uniform(key, self.center.shape, self.center.dtype, -1.0, 1.0)

    def log_ratio(self, w0):
        return jnp.asarray(w0.size * math.log(10.0), w0.dtype)

    def prior(self):
        return Uniform(jnp.zeros_like(self.center))


class Poisson(AbstractLikelihood):
    """Counts; the outputs are log rates."""

    def log_prob(self, outputs, y):
        return jnp.sum(y * outputs - jnp.exp(outputs) - jax.scipy.special.gammaln(y + 1.0), axis=-1)

    def center(self, outputs):
        return jnp.exp(outputs)

    def variance(self, outputs):
        return jnp.exp(outputs)

    def sample(self, outputs, *, key):
        return jax.random.poisson(key, jnp.exp(outputs)).astype(outputs.dtype)


class Backward(AbstractMethod[jax.Array, jax.Array]):
    """Euler's step with the drift at the end of the step, found by one fixed-point iteration."""

    order: float = eqx.field(default=1.0, static=True)
    shares: tuple[float, ...] = eqx.field(default=(1.0,), static=True)

    def evaluations(self, steps):
        return steps

    def weights_start(self, process, w0):
        return w0

    def weights_step(self, process, state, t, dt, noise):
        correction = process.drift(t, state)  # at the left end, where the martingale of the KL needs it
        slope = process.prior.drift(t, state) + correction
        ahead = state + dt * slope + process.prior.sigma * noise.dB
        slope = process.prior.drift(t + dt, ahead) + correction
        return state + dt * slope + process.prior.sigma * noise.dB, Stages((state,), (correction,))

    def weights_of(self, state):
        return state

    def hidden_start(self, f_h, h0, first):
        return h0, f_h(0.0, h0, first)

    def hidden_step(self, f_h, state, t, dt, stages):
        slope = f_h(t, state, stages[0])
        return state + dt * slope, slope

    def hidden_of(self, state):
        return state


class Randomised(AbstractSolver):
    """A coarse and a fine grid with the same noise, of which the key chooses one for each draw."""

    grids: tuple[FixedGrid, FixedGrid]

    def solve(self, dynamics, h0, *, key, every=False, with_roughness=False):
        coarse, fine = (grid.solve(dynamics, h0, key=key, with_roughness=with_roughness) for grid in self.grids)
        return jax.tree.map(lambda a, b: jnp.where(jax.random.bernoulli(key), a, b), coarse, fine)

    def weights(self, process, *, key):
        return self.grids[1].weights(process, key=key)

    def times(self, dtype=float):
        return self.grids[1].times(dtype)

    def tighter(self):
        return self.grids[1].tighter()

    @property
    def base(self):
        return self.grids[1].base


MIDPOINT = RungeKutta(1.0, shares=(0.0, 1.0), c=(0.0, 0.5), a=((), (0.5,)), alpha=(0.0, 0.5), beta=(0.0, 0.0))


class RandomLine(AbstractModel):
    """A baseline: a line whose slope and intercept are normal, with the KL in closed form."""

    mean: jax.Array
    log_std: jax.Array

    def solve(self, x, *, key, with_roughness=False):
        w = self.mean + jnp.exp(self.log_std) * jax.random.normal(key, (2, 1))
        kl = 0.5 * jnp.sum(jnp.exp(2 * self.log_std) + self.mean**2 - 1 - 2 * self.log_std)
        return Solution(x @ w[:1] + w[1:], kl)


def small(**parts):
    """A net of one random block and a read-out, with some of its parts replaced."""
    return SDEBNN.paper_mlp(1, 1, widths=(4,), **{"drift": (3,), "solver": FixedGrid(4), **parts}, key=KEY)


def shifted():
    """A net whose drift is a user's: the size of its weights is that of the field's."""
    size = small().layers[1].weights.size
    block = bayesianize(TimeMLP(3, (4,), key=KEY), drift=Shift(jnp.zeros(size)), solver=FixedGrid(4), key=KEY)
    return SDEBNN((small().layers[0], block, small().layers[2]))


NETS = {
    "prior": lambda: small(prior=SoftPull(jnp.array(0.5))),
    "drift": shifted,
    "law of w_0": lambda: small(initial=Uniform),
    "Runge-Kutta method": lambda: small(solver=FixedGrid(4, MIDPOINT)),
    "method": lambda: small(solver=FixedGrid(4, Backward())),
    "solver": lambda: small(solver=Randomised((FixedGrid(2, noise_steps=4), FixedGrid(4)))),
    "baseline": lambda: RandomLine(jnp.zeros((2, 1)), jnp.full((2, 1), -1.0)),
}
HOW = {"key": KEY, "epochs": 60, "objective": Objective(draws=2), "optimizer": Optimizer(5e-2), "progress": False}


def arrays(model):
    return jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))


@pytest.fixture(scope="module", params=NETS)
def trained(request, tmp_path_factory):
    """A net with one part of the user's own, the result of a fit, and the folder of its checkpoints."""
    net, folder = NETS[request.param](), tmp_path_factory.mktemp("run")
    checkpoints = Checkpoints(folder, every=0.0, keep=10)
    return net, fit(net, Gaussian(0.3, learn=True), X, Y, checkpoints=checkpoints, **HOW), folder


def test_each_part_learns_by_fit(trained):
    net, fitted, _ = trained
    before, after = (float(elbo(model, Gaussian(0.3), X, Y, key=KEY, draws=16).elbo) for model in (net, fitted.model))
    assert after > before + 5
    assert np.isfinite(fitted.history["elbo"]).all()


def test_each_part_predicts_one_function_for_each_key_and_is_scored(trained):
    _, fitted, _ = trained
    samples = predict(fitted.model, X, draws=3, key=KEY)
    np.testing.assert_allclose(samples, predict(fitted.model, X, draws=5, key=KEY, batch_size=12)[:3], atol=1e-5)
    scores = evaluate(fitted.model, fitted.likelihood, X, Y, draws=8, key=KEY)
    assert scores["rmse"] < float(jnp.std(Y))
    assert all(np.isfinite(value) for value in scores.values())


def test_each_part_resumes_from_a_checkpoint_to_the_same_numbers(trained):
    net, fitted, folder = trained
    for file in (folder / "checkpoints").glob("step-00000060.*"):  # as if the run had been killed before its last save
        file.unlink()
    resumed = fit(net, Gaussian(0.3, learn=True), X, Y, checkpoints=Checkpoints(folder, resume=True), **HOW)
    assert (folder / "checkpoints" / "step-00000060.json").exists()
    assert all(np.array_equal(a, b) for a, b in zip(arrays(resumed.model), arrays(fitted.model), strict=True))


def test_another_value_of_a_part_is_refused_on_resuming(tmp_path):
    how = {**HOW, "epochs": 1}
    fit(small(prior=SoftPull(jnp.array(0.5))), Gaussian(0.3), X, Y, checkpoints=Checkpoints(tmp_path), **how)
    other = small(prior=SoftPull(jnp.array(0.5), sigma=0.4))
    with pytest.raises(ValueError, match=r"sigma=0\.3, this run has 0\.4"):
        fit(other, Gaussian(0.3), X, Y, checkpoints=Checkpoints(tmp_path, resume=True), **how)


def test_a_user_s_prior_is_charged_by_girsanov_s_theorem():
    """A constant drift v costs ½ |v|² / σ² nats, whatever the prior's own drift is."""
    v = jnp.array([0.3, -0.2])
    for kl in ("analytic", "full"):
        process = Posterior(SoftPull(jnp.array(2.0)), Shift(v), Point(jnp.ones(2)), kl)
        draw = jax.jit(jax.vmap(lambda key, process=process: FixedGrid(8).weights(process, key=key).kl))
        nats = np.asarray(draw(jax.random.split(KEY, 4096)), float)
        exact = 0.5 * float(jnp.sum(v**2)) / 0.3**2
        assert abs(nats.mean() - exact) <= 4 * nats.std() / 64 + 1e-5 * exact
    net = small(prior=SoftPull(jnp.array(0.5)))
    assert float(net(X, key=KEY)[1]) == pytest.approx(float(net.layers[1].initial.kl()))  # untrained: w_0's part alone


def test_a_trained_prior_stays_in_its_range():
    net = small(prior=SoftPull(jnp.array(1e-3)))
    fitted = fit(net, Gaussian(0.1), X, 5 * Y, **{**HOW, "optimizer": Optimizer(0.5)})
    assert float(fitted.model.layers[1].prior.strength) >= 0


def test_a_user_s_law_of_w_0_is_charged_by_its_log_density_ratio():
    net = small(initial=Uniform)
    size = net.layers[1].weights.size
    assert float(net(X, key=KEY)[1]) == pytest.approx(size * math.log(10), rel=1e-5)
    assert float(jnp.abs(prior_of(net).layers[1].initial.center).max()) == 0


@pytest.mark.parametrize("method", [MIDPOINT, Backward()], ids=["midpoint", "backward"])
def test_a_user_s_method_converges_to_the_exact_mean_of_an_ou_process(method):
    """Without noise, w_1 = exp(-rate): the error halves with the step for order 1, and falls faster above."""
    process = Posterior(OU(rate=2.0, sigma=0.1), NoDrift(), Point(jnp.ones(1)))
    errors = []
    for steps in (20, 40, 80):
        grid = FixedGrid(steps, method)
        noise = jax.tree.map(jnp.zeros_like, grid.noise(1, float, key=KEY))
        w, _, _ = grid.drive(process, jnp.ones(1), noise)
        errors.append(abs(float(w[-1, 0]) - math.exp(-2.0)))
    assert errors[1] / errors[0] < 0.55
    assert errors[2] / errors[1] < 0.55


def test_a_user_s_method_has_a_compute_dial_and_an_error_estimate():
    net = small(solver=FixedGrid(4, MIDPOINT))
    coarse, fine = (refined(net, steps=steps).layers[1].solver for steps in (2, 8))
    assert coarse.method == fine.method == MIDPOINT
    sources = uncertainty_sources(net, Gaussian(0.1), X, draws=4, key=KEY)
    assert 0 < float(sources.solver.mean()) < 1


def test_a_user_s_likelihood_agrees_with_scipy_and_trains():
    rates = np.exp(1 + np.asarray(X))
    counts = np.random.default_rng(0).poisson(rates).astype(np.float32)
    ours = Poisson().log_prob(jnp.log(rates), jnp.asarray(counts))
    np.testing.assert_allclose(ours, stats.poisson.logpmf(counts, rates).sum(-1), rtol=1e-5)
    fitted = fit(small(), Poisson(), X, counts, validation=Validation(X, counts, every=20), **HOW)
    scores = evaluate(fitted.model, Poisson(), X, counts, draws=16, key=KEY)
    constant = -stats.poisson.logpmf(counts, counts.mean()).mean()
    assert scores["nll"] < constant
    assert {"rmse", "coverage_95"} <= set(scores)


def test_a_user_s_baseline_has_an_elbo_equal_to_the_evidence_at_its_exact_posterior():
    """X is symmetric, so slope and intercept are independent given the data, as the model assumes."""
    x, y, noise = np.asarray(X, float)[:, 0], np.asarray(Y, float)[:, 0], 0.3
    precisions = 1 + np.array([x @ x, len(x)]) / noise**2
    means = np.array([x @ y, y.sum()]) / noise**2 / precisions
    model = RandomLine(jnp.asarray(means[:, None], float), jnp.asarray(-0.5 * np.log(precisions)[:, None], float))
    draws = jax.jit(jax.vmap(lambda key: elbo(model, Gaussian(noise), X, Y, key=key).elbo))(jax.random.split(KEY, 4096))
    values = np.asarray(draws, float)
    covariance = noise**2 * np.eye(len(x)) + np.outer(x, x) + 1
    evidence = stats.multivariate_normal.logpdf(y, np.zeros(len(x)), covariance)
    assert abs(values.mean() - evidence) <= 4 * values.std() / 64


def slope(request):
    """A reader: 40 training rows and 20 test rows."""
    x = np.random.default_rng(request.seed).uniform(-1, 1, (60, 1)).astype(np.float32)
    return data.Part(x[:40], 2 * x[:40]), data.Part(x[40:], 2 * x[40:])


def test_a_user_s_data_set_is_trained_on_and_scored():
    rows = data.load(data.Entry("slope", slope, "A line through the origin.", shape=(1,)), seed=1)
    fitted = fit(small(), Gaussian(0.3, learn=True), *rows.train, **{**HOW, "batches": Batches(20)})
    scores = evaluate(fitted.model, fitted.likelihood, *rows.test, draws=8, key=KEY)
    assert scores["rmse"] < 0.5 * float(rows.test.y.std())
