from functools import partial

import diffrax
import equinox as eqx
import exact
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from sdebnn import OU, FixedGrid, Gaussian, Normal, Point, bayesianize, elbo, verify
from sdebnn.integrate import METHODS, Noise, Posterior, execution
from sdebnn.nn import TimeMLP
from sdebnn.processes import DriftNet, LinearDrift
from sdebnn.processes import drift as drifts

STEPS = 10
pytestmark = pytest.mark.usefixtures("_compiled_in_haste")
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def drift():
    """A drift net whose last layer has left zero."""
    net = DriftNet(3, (4,), key=jax.random.key(0))
    return eqx.tree_at(lambda n: n.layers[-1].weight, net, jax.random.normal(jax.random.key(1), (3, 4)))


def f_h(t, h, w):
    return jnp.tanh(h * w[0] + w[1] * t) * w[2]


class Given(diffrax.AbstractBrownianPath):
    """A Brownian path in diffrax's form that is known on a grid: its increments and space-time Lévy areas."""

    noise: Noise
    levy_area: type = diffrax.SpaceTimeLevyArea

    @property
    def t0(self):
        return 0.0

    @property
    def t1(self):
        return 1.0

    def evaluate(self, t0, t1=None, left=True, use_levy=False):
        step = jnp.round(t0 * STEPS).astype(int)
        dB, area = (part[step] for part in self.noise)
        return diffrax.SpaceTimeLevyArea(dt=t1 - t0, W=dB, H=area) if use_levy else dB


class OnWeights(diffrax.AbstractTerm):
    """σ dB on w, none on h."""

    sigma: float
    control: Given

    def vf(self, t, y, args):
        return self.sigma

    def contr(self, t0, t1, **options):
        return self.control.evaluate(t0, t1, **options)

    def prod(self, vf, control):
        return vf * control, jnp.zeros((2, 1))


_Coefficients = type(diffrax.SRA1.tableau.coeffs_w)  # diffrax does not name it in public
_BETA = (18 - 3 * np.sqrt(15)) / 14


class Ralston3(diffrax.AbstractSRK, diffrax.AbstractStratonovichSolver):
    """The same coefficients, stepped by diffrax."""

    tableau = diffrax.StochasticButcherTableau(
        c=np.array([0.5, 0.75]),
        a=[np.array([0.5]), np.array([0.0, 0.75])],
        b_sol=np.array([2 / 9, 1 / 3, 4 / 9]),
        b_error=None,
        coeffs_w=_Coefficients(a=np.array([0.0, 0.5, 0.75]), b_sol=np.array(1.0)),
        coeffs_hh=_Coefficients(a=np.array([0.0, 3 - 4 / 3 * _BETA, _BETA]), b_sol=np.array(0.0)),
        coeffs_kk=None,
        ignore_stage_f=None,
        ignore_stage_g=None,
    )


def test_the_coefficients_satisfy_the_conditions_of_their_order():
    method = METHODS["ralston3"]
    b, c, alpha, beta = (np.array(row) for row in (method.shares, method.c, method.alpha, method.beta))
    a = np.array([(*row, *[0.0] * (3 - len(row))) for row in method.a])
    for value, condition in (
        (b.sum(), 1), (b @ c, 1 / 2), (b @ c**2, 1 / 3), (b @ a @ c, 1 / 6),  # order 3 in the drift
        (b @ alpha, 1 / 2), (b @ beta, 1), (b @ (alpha**2 + beta**2 / 12), 1 / 2),  # strong order 1.5
    ):  # fmt: skip
        assert value == pytest.approx(condition, abs=1e-14)


@pytest.mark.parametrize(
    ("method", "solver"),
    [
        ("euler", diffrax.Euler()),
        ("heun", diffrax.Heun()),
        ("ralston3", Ralston3()),
        ("reversible_heun", diffrax.ReversibleHeun()),
    ],
)
def test_weights_and_hidden_units_agree_with_diffrax_under_the_same_noise(drift, method, solver):
    prior, w0, h0 = OU(rate=1.5, mean=0.1, sigma=0.4), jnp.array([0.5, -0.2, 1.0]), jnp.array([[0.3], [-0.7]])
    noise = FixedGrid(STEPS, "ralston3").noise(3, float, key=jax.random.key(2))
    grid = FixedGrid(STEPS, method)
    w, stages, _ = grid.drive(Posterior(prior, drift, Point(w0)), w0, noise)

    def field(t, state, _):
        w, h = state
        return prior.drift(t, w) + drift(t, w), f_h(t, h, w)

    terms = diffrax.MultiTerm(diffrax.ODETerm(field), OnWeights(prior.sigma, Given(noise)))
    solution = diffrax.diffeqsolve(terms, solver, 0.0, 1.0, 1 / STEPS, (w0, h0))
    for ours, theirs in zip((w[-1], grid.hidden(f_h, stages.weights, h0)[0]), solution.ys, strict=True):
        np.testing.assert_allclose(ours, theirs[-1], rtol=1e-4, atol=1e-5)


def low_rank(widths, kl="analytic", rate=1.5):
    """The posterior of 30 weights under a drift of these widths, all of whose arrays have left their beginnings."""
    net = DriftNet(30, widths, key=jax.random.key(0))
    arrays, rest = eqx.partition(net, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(arrays)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    moved = [leaf + 0.5 * jax.random.normal(k, leaf.shape) for leaf, k in zip(leaves, keys, strict=True)]
    drift = eqx.combine(jax.tree.unflatten(structure, moved), rest)
    return Posterior(OU(rate, 0.1, 0.4), drift, Point(jax.random.normal(jax.random.key(2), (30,))), kl)


def test_the_low_rank_path_agrees_with_diffrax(monkeypatch):
    process = low_rank((2, 5, 2))
    noise = FixedGrid(STEPS, "ralston3").noise(30, float, key=jax.random.key(3))
    monkeypatch.setattr(execution, "CHOICES", {"cpu": execution.CHOICES["gpu"]})
    w, stages, _ = FixedGrid(STEPS).drive(process, process.initial.value, noise)
    monkeypatch.undo()

    def field(t, state, _):
        return process.prior.drift(t, state[0]) + process.drift(t, state[0]), jnp.zeros((2, 1))

    terms = diffrax.MultiTerm(diffrax.ODETerm(field), OnWeights(process.prior.sigma, Given(noise)))
    start = (process.initial.value, jnp.zeros((2, 1)))
    every = diffrax.SaveAt(t0=True, steps=True)
    solution = diffrax.diffeqsolve(terms, diffrax.Euler(), 0.0, 1.0, 1 / STEPS, start, saveat=every, max_steps=STEPS)
    path = solution.ys[0]
    np.testing.assert_allclose(w, path, rtol=1e-4, atol=1e-5)
    there = jax.vmap(process.drift)(jnp.arange(STEPS) / STEPS, path[:-1])
    np.testing.assert_allclose(stages.corrections[0], there, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("widths", "kl"), [((1, 5, 1), "stl"), ((2, 4, 2), "analytic"), ((2,), "full")])
def test_the_low_rank_path_has_the_gradient_of_the_steps(monkeypatch, widths, kl):
    process = low_rank(widths, kl, rate=jnp.array(1.5))
    taken = []
    recursion = drifts.euler_path
    monkeypatch.setattr(drifts, "euler_path", lambda *given: taken.append(widths) or recursion(*given))

    def gradient():
        def loss(process):
            path = FixedGrid(STEPS, unroll=3).weights(process, key=KEY)
            return path.kl + jnp.sum(jnp.sin(path.w) * jnp.arange(STEPS + 1.0)[:, None]) + jnp.sum(path.stages[0])

        return jax.tree.leaves(eqx.filter_jit(eqx.filter_value_and_grad(loss))(process))

    by_steps = gradient()
    assert not taken
    monkeypatch.setattr(execution, "CHOICES", {"cpu": execution.CHOICES["gpu"]})
    for ours, theirs in zip(gradient(), by_steps, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4 * float(jnp.abs(theirs).max()))
    assert taken


def test_only_narrow_nets_under_a_linear_prior_have_a_low_rank_path():
    def has_recursion(process):
        return process.drift.euler_path(process.prior, jnp.zeros(30), jnp.zeros((2, 30))) is not None

    assert has_recursion(low_rank((2, 7, 2)))
    assert not has_recursion(low_rank((2, 7, 3)))
    assert not has_recursion(low_rank((1, 100, 100, 1)))
    assert not has_recursion(low_rank((2, 2), rate=jnp.ones(30)))
    assert not has_recursion(Posterior(OU(), LinearDrift(30), Point(jnp.zeros(30))))


def test_the_kl_is_the_log_density_ratio_of_the_chains_step_by_step(drift):
    prior, sigma = OU(rate=1.5, mean=0.1, sigma=0.4), 0.4
    law = Posterior(prior, drift, Point(jnp.array([0.5, -0.2, 1.0])), "full")
    path = FixedGrid(STEPS).weights(law, key=jax.random.key(2))
    w, t = path.w[:-1], path.t[:-1]
    f_p = np.asarray(jax.vmap(prior.drift)(t, w))
    f_q = f_p + np.asarray(jax.vmap(drift)(t, w))
    after, std = np.asarray(path.w[1:]), sigma / np.sqrt(STEPS)
    log_q, log_p = (stats.norm.logpdf(after, w + f / STEPS, std).sum() for f in (f_q, f_p))
    assert float(path.kl) == pytest.approx(log_q - log_p, rel=1e-4)


def test_the_analytic_kl_averages_to_the_dense_kl_of_the_two_chains():
    slope, offset, sigma, w0 = -0.8, 0.6, 0.5, 0.7
    drift = LinearDrift(1, knots=2)
    full = jnp.full((2, 1), 1.0)
    drift = eqx.tree_at(lambda d: (d.slope, d.offset), drift, (slope * full, offset * full))
    ones = np.ones(STEPS)
    q = exact.euler_chain((-1 + slope) * ones, offset * ones, sigma, w0)
    p = exact.euler_chain(-1 * ones, 0 * ones, sigma, w0)
    kl = exact.gaussian_kl(*q, *p)
    keys = jax.random.split(jax.random.key(0), 4096)
    for estimator in ("analytic", "full", "stl"):
        draw = partial(FixedGrid(STEPS).weights, Posterior(OU(sigma=sigma), drift, Point(jnp.array([w0])), estimator))
        nats = np.asarray(jax.vmap(lambda key, draw=draw: draw(key=key).kl)(keys), dtype=float)
        assert abs(nats.mean() - kl) < 4 * nats.std() / 64


def test_the_closed_form_between_ou_paths_is_the_limit_of_the_dense_kl():
    prior, posterior, w0 = OU(1.0, 0.0, 0.5), OU(2.0, 0.4, 0.5), 0.8
    gaps = []
    for n in (100, 200):
        ones = np.ones(n)
        q = exact.euler_chain(-2.0 * ones, 0.8 * ones, 0.5, w0)
        p = exact.euler_chain(-1.0 * ones, 0 * ones, 0.5, w0)
        gaps.append(exact.gaussian_kl(*q, *p) - verify.ou_kl(prior, posterior, w0))
    assert abs(gaps[1]) < 2e-3
    assert gaps[0] / gaps[1] == pytest.approx(2, rel=0.05)  # first order in the step


def test_the_evidence_of_the_yardstick_is_that_of_the_dense_chain():
    problem = verify.LinearGaussian()
    n = 800
    ones = np.ones(n)
    rate, mean, sigma = problem.prior.rate, problem.prior.mean, problem.prior.sigma
    chain = exact.euler_chain(-rate * ones, rate * mean * ones, sigma, problem.w0)
    expected = exact.log_evidence_of_end(*chain, problem.noise, problem.y)
    assert problem.log_evidence() == pytest.approx(expected, abs=2e-3)


def test_how_gradients_flow_changes_neither_values_nor_gradients():
    with jax.enable_x64(True):
        x = jnp.linspace(-1.0, 1.0, 5)[:, None]
        grids = [FixedGrid(12, "reversible_heun", how) for how in ("backprop", "checkpoint", "reversible")]
        outcomes = [
            verify.loss_and_gradient(verify.small_model(grid, "full", key=KEY), x, key=KEY, with_roughness=True)
            for grid in grids
        ]
    for value, gradient in outcomes[1:]:
        assert float(value) == pytest.approx(float(outcomes[0][0]), rel=1e-13)
        assert verify.relative(gradient, outcomes[0][1]) < 1e-12


def test_reversible_steps_undo_bridged_noise_and_many_draws_too():
    """The gradient of an ELBO of three draws, on a grid of 30 steps whose noise was drawn on 20."""
    with jax.enable_x64(True):
        x = jnp.linspace(-1.0, 1.0, 5)[:, None]

        def gradient(how):
            model = verify.small_model(FixedGrid(30, "reversible_heun", how, noise_steps=20), "full", key=KEY)
            loss = lambda model: elbo(model, Gaussian(0.3), x, jnp.sin(x), key=KEY, draws=3).elbo  # noqa: E731
            return jax.flatten_util.ravel_pytree(eqx.filter_jit(eqx.filter_grad(loss))(model))[0]

        assert verify.relative(gradient("reversible"), gradient("backprop")) < 1e-12


def test_the_roughness_is_the_change_of_slope_from_step_to_step(drift):
    grid, h0 = FixedGrid(STEPS), jnp.array([[0.3], [-0.7]])
    path = grid.weights(Posterior(OU(), drift, Normal(jnp.ones(3))), key=KEY)
    states, roughness, _ = grid.hidden(f_h, path.stages, h0, every=True, with_roughness=True)
    slopes = np.diff(np.asarray(states, dtype=float), axis=0) * STEPS
    assert float(roughness) == pytest.approx(np.mean(np.diff(slopes, axis=0) ** 2, axis=(1, 2)).sum(), rel=1e-3)
    assert grid.hidden(f_h, path.stages, h0)[1] == 0


def test_checkpointing_changes_memory_and_nothing_else(drift):
    h0 = jnp.ones((512, 1))
    outcomes, memory = [], []
    for gradient in ("checkpoint", "backprop"):
        grid = FixedGrid(64, gradient=gradient)

        def loss(h0, grid=grid):
            path = grid.weights(Posterior(OU(sigma=0.3), drift, Point(jnp.ones(3))), key=jax.random.key(0))
            deep = lambda t, h, w: jnp.sin(jnp.tanh(jnp.cos(f_h(t, h, w))) * jnp.exp(-h))  # noqa: E731
            return jnp.sum(grid.hidden(deep, path.stages, h0)[0] ** 2)

        compiled = jax.jit(jax.value_and_grad(loss)).lower(h0).compile()
        outcomes.append(compiled(h0))
        memory.append(compiled.memory_analysis().temp_size_in_bytes)
    np.testing.assert_allclose(outcomes[0][0], outcomes[1][0], rtol=1e-6)
    np.testing.assert_allclose(outcomes[0][1], outcomes[1][1], rtol=1e-4, atol=1e-6)
    assert memory[0] < 0.6 * memory[1]


def test_every_state_starts_at_the_input_and_ends_at_the_output(drift):
    grid, h0 = FixedGrid(STEPS), jnp.array([[0.3], [-0.7]])
    path = grid.weights(Posterior(OU(), drift, Normal(jnp.ones(3))), key=jax.random.key(0))
    states, *_ = grid.hidden(f_h, path.stages, h0, every=True)
    assert states.shape == (STEPS + 1, 2, 1)
    assert np.array_equal(states[0], h0)
    assert np.array_equal(states[-1], grid.hidden(f_h, path.stages, h0)[0])


@pytest.mark.parametrize("method", ["euler", "ralston3", "reversible_heun"])
@pytest.mark.parametrize("kl", ["analytic", "stl"])
def test_many_weights_advance_with_the_hidden_units_to_the_same_numbers(monkeypatch, method, kl):
    """Value, KL, roughness and gradients, by the loop that weights first does not use; float32 rounds either way."""
    key = jax.random.key(3)
    field = TimeMLP(2, (9,), key=key)
    block = bayesianize(field, drift=(3,), solver=FixedGrid(6, method), kl=kl, key=key)
    last = lambda b: b.drift.layers[-1].weight  # noqa: E731
    block = eqx.tree_at(last, block, jax.random.normal(key, last(block).shape))
    h0 = jnp.array([[0.3, -0.2], [1.0, 0.4]])

    @eqx.filter_value_and_grad(has_aux=True)
    def loss(block):
        solution = block.solve(h0, key=key, with_roughness=True)
        return jnp.sum(solution.outputs**2) + solution.kl + solution.roughness, solution

    (_, first), gradient = loss(block)
    monkeypatch.setitem(execution.CHOICES, "cpu", execution.CHOICES["cpu"]._replace(one_loop_from=1))
    jax.clear_caches()
    (_, together), other = loss(block)
    for ours, theirs in zip(jax.tree.leaves((first, gradient)), jax.tree.leaves((together, other)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_path_of_many_weights_is_not_kept():
    """The memory of one gradient, as compiled: a path of 20 steps is 20 times the weights, and would be kept twice."""
    block = bayesianize(TimeMLP(2, (100, 100), key=KEY), drift=(1, 8, 1), key=KEY)
    parameters, rest = eqx.partition(block, eqx.is_inexact_array)

    def loss(parameters):
        return eqx.combine(parameters, rest).solve(jnp.ones((4, 2)), key=KEY).kl

    compiled = jax.jit(jax.grad(loss)).lower(parameters).compile()
    weights = 4 * block.weights.size
    assert block.weights.size > 2**13
    assert compiled.memory_analysis().temp_size_in_bytes < 35 * weights
