"""Adaptive steps: every solver of diffrax either solves or is refused, and what it solves is right."""

import diffrax
import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

from sdebnn import OU, Adaptive, FixedGrid, Gaussian, Normal, Objective, Point, bayesianize, fit, verify
from sdebnn.integrate import Brownian, BrownianPath, Posterior
from sdebnn.integrate.terms import NoiseOnWeights, adaptive_solver, evaluations_a_step
from sdebnn.processes import LinearDrift
from sdebnn.verify import small_model

KEY = jax.random.key(3)
X = jnp.linspace(-1.0, 1.0, 5)[:, None]
SOLVERS = {  # evaluations a step, half steps included
    "Heun": 2, "Midpoint": 2, "Ralston": 2, "ReversibleHeun": 1, "SPaRK": 3, "SRA1": 2, "ShARK": 2,
    "SEA": 3, "EulerHeun": 3, "GeneralShARK": 6, "SlowRK": 6, "ItoMilstein": 3, "StratonovichMilstein": 3,
}  # fmt: skip
REFUSED = {
    "ALIGN", "Bosh3", "Dopri5", "Dopri8", "Euler", "ImplicitEuler", "KenCarp3", "KenCarp4", "KenCarp5", "Kvaerno3",
    "Kvaerno4", "Kvaerno5", "LeapfrogMidpoint", "QUICSORT", "SemiImplicitEuler", "ShOULD", "Sil3", "Tsit5",
}  # fmt: skip


@pytest.fixture(scope="module")
def fine():
    """The same draw on a grid so fine that its own error does not count."""
    return small_model(FixedGrid(2000, "ralston3", noise_steps=1), key=KEY).solve(X, key=KEY)


def test_every_solver_of_diffrax_is_accounted_for():
    kinds = vars(diffrax).values()
    names = {
        kind.__name__
        for kind in kinds
        if isinstance(kind, type) and issubclass(kind, diffrax.AbstractSolver) and kind.__name__[:8] != "Abstract"
    }
    assert names - {"HalfSolver"} <= set(SOLVERS) | REFUSED


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_adapt_here_is_refused_at_construction(name):
    with pytest.raises(ValueError, match=r"cannot adapt its steps.*use diffrax\.ShARK"):
        Adaptive(solver=getattr(diffrax, name)())


@pytest.mark.slow
def test_a_solver_in_half_steps_finds_the_draw_that_the_key_names(fine):
    law = Adaptive(1e-3, solver=diffrax.SEA())
    found = small_model(law, key=KEY).solve(X, key=KEY)
    np.testing.assert_allclose(found.outputs, fine.outputs, atol=0.02)
    assert float(found.kl) == pytest.approx(float(fine.kl), rel=0.02)
    assert int(found.evaluations) % SOLVERS["SEA"] == 0
    assert int(found.evaluations) > 0


@pytest.mark.parametrize("name", ["ReversibleHeun", "SPaRK"])
def test_the_elbo_is_the_evidence_under_other_solvers_too(name):
    """At the exact posterior, within 4 standard errors; verify has Heun and ShARK."""
    problem, law = verify.LinearGaussian(), Adaptive(1e-2, solver=getattr(diffrax, name)())
    parts = (verify.ExactDrift(problem), Point(jnp.array([problem.w0])))
    samples = eqx.filter_jit(verify.elbo_samples)(problem, *parts, "analytic", law, jax.random.split(KEY, 512))
    values = np.asarray(samples, dtype=float)
    assert abs(values.mean() - problem.log_evidence()) < 4 * values.std() / np.sqrt(512)


def test_evaluations_are_counted_by_stages_and_half_steps():
    for name, evaluations in SOLVERS.items():
        solver = getattr(diffrax, name)()
        counts = {evaluations_a_step(solver), evaluations_a_step(diffrax.HalfSolver(solver))}
        assert evaluations in counts, name


@pytest.mark.slow
def test_a_tighter_tolerance_costs_more_and_errs_less(fine):
    solutions = [small_model(Adaptive(rtol), key=KEY).solve(X, key=KEY) for rtol in (1e-2, 1e-4)]
    errors = [float(jnp.abs(s.outputs - fine.outputs).max()) for s in solutions]
    assert errors[1] < 0.2 * errors[0]
    assert int(solutions[1].evaluations) > 2 * int(solutions[0].evaluations)


def test_the_longest_step_bounds_the_steps():
    solution = small_model(Adaptive(10.0, solver=diffrax.Heun(), max_step=1 / 40), key=KEY).solve(X, key=KEY)
    assert int(solution.evaluations) == 2 * 40


@pytest.mark.slow
def test_a_batch_cannot_hide_behind_the_weights():
    """The tolerance holds for h alone: a thousand still weights do not dilute its error."""

    class Fast(eqx.Module):
        still: jax.Array

        def __call__(self, t, h):
            return 30.0 * jnp.cos(60.0 * t) + 0 * jnp.sum(self.still) + 0 * h

    evaluations = [
        int(
            bayesianize(Fast(jnp.zeros(size)), prior=OU(sigma=1e-4), drift=(1,), solver=Adaptive(1e-3), key=KEY)
            .solve(jnp.zeros((1, 1)), key=KEY)
            .evaluations
        )
        for size in (1, 1000)
    ]
    assert evaluations[1] >= 0.9 * evaluations[0]


@pytest.mark.slow
def test_the_gradient_of_adaptive_steps_is_that_of_a_fine_grid():
    base = 256
    _, reference = verify.loss_and_gradient(small_model(FixedGrid(base, "ralston3"), key=KEY), X, key=KEY)
    law = Adaptive(1e-3, solver=diffrax.Heun(), adjoint=diffrax.DirectAdjoint(), noise_steps=base)
    _, gradient = verify.loss_and_gradient(small_model(law, key=KEY), X, key=KEY)
    assert verify.relative(gradient, reference) < 0.01


@pytest.mark.slow
def test_paths_and_trajectories_are_read_off_at_equal_depths(fine):
    block = small_model(Adaptive(1e-3), key=KEY).layers[1]
    h0 = jnp.concatenate([X, jnp.zeros((5, 2))], axis=1)
    states, kl = block.trajectory(h0, key=KEY)
    h1, same_kl = block(h0, key=KEY)
    assert states.shape == (21, 5, 3)
    assert np.array_equal(states[0], h0)
    np.testing.assert_allclose(states[-1], h1, atol=1e-5)
    assert float(kl) == pytest.approx(float(same_kl), rel=1e-5)
    assert float(block.draw(key=KEY).kl) == pytest.approx(float(kl), rel=0.02)


def test_the_weights_alone_follow_the_priors_law():
    prior, w0 = OU(rate=1.0, mean=0.3, sigma=0.5), jnp.array([1.5])
    law = Posterior(prior, verify.ExactDrift(verify.LinearGaussian(), gain=0.0), Point(w0))
    ends = jax.jit(jax.vmap(lambda key: Adaptive(1e-2).weights(law, key=key).w[-1, 0]))(jax.random.split(KEY, 2048))
    mean, std = (float(part[0]) for part in prior.marginal(1.0, w0))
    assert abs(float(ends.mean()) - mean) < 4 * std / np.sqrt(2048)
    assert abs(float(ends.std()) - std) < 4 * std / np.sqrt(2 * 2048)


@pytest.fixture(scope="module")
def noise():
    """One Brownian path of two weights, whose base grid has three steps."""
    with jax.enable_x64(True):
        return BrownianPath(Brownian(3, 2, jnp.float64, KEY))


@pytest.mark.parametrize("name", SOLVERS)
def test_a_step_of_length_zero_is_the_identity_in_value_and_gradient(noise, name):
    """Such are the steps of a draw that has finished before the others of its batch."""
    solver = adaptive_solver(getattr(diffrax, name)())
    with jax.enable_x64(True):
        slopes = diffrax.ODETerm(lambda t, y, rate: (jnp.sin(rate * y[0]),))
        terms = diffrax.MultiTerm(slopes, NoiseOnWeights(0.5, noise, ()))
        t, y0 = jnp.asarray(1.0), jnp.array([0.4, -0.8])

        def end(y0, rate):
            state = solver.init(terms, t, t, (y0,), rate)
            return solver.step(terms, t, t, (y0,), rate, state, made_jump=False)[0][0]

        assert np.array_equal(end(y0, 1.5), y0)
        along_y, along_rate = jax.jacrev(end, (0, 1))(y0, jnp.asarray(1.5))
    np.testing.assert_allclose(along_y, np.eye(2), atol=1e-15)
    assert np.array_equal(along_rate, np.zeros(2))


class Two(Posterior):
    """Two weights, each of which carries one hidden unit."""

    def unravel(self, w):
        return w

    def f_h(self, t, h, w):
        return jnp.tanh(h * w)

    def all_euler_steps(self, arrays, h):
        return None


@pytest.mark.parametrize(
    ("solver", "adjoint", "noise_steps", "every"),
    [
        (diffrax.SRA1(), diffrax.DirectAdjoint(), 3, True),
        (diffrax.Heun(), diffrax.BacksolveAdjoint(), 3, False),
    ],
    ids=["SRA1", "Heun"],
)
@pytest.mark.usefixtures("_compiled_in_haste")
@pytest.mark.slow
def test_draws_that_finish_at_different_times_do_not_disturb_each_other(solver, adjoint, noise_steps, every):
    """The gradient of four draws at once is the sum of the four alone, to 1e-12 in float64; so are the values.

    Verify has ShARK with checkpoints.

    Four copies of a draw finish together, and so are that draw alone, in the same compiled program.
    """
    law = Adaptive(1e-3, solver=solver, adjoint=adjoint, max_steps=128, noise_steps=noise_steps)
    with jax.enable_x64(True):
        drift = eqx.tree_at(lambda d: d.offset, LinearDrift(2, knots=2), jnp.array([[1.0, -2.0], [3.0, 0.5]]))
        process = Two(OU(jnp.array(1.5), sigma=0.5), drift, Normal(jnp.array([0.5, -0.3]), 0.5))
        process = jax.tree.map(lambda x: x.astype(jnp.float64) if eqx.is_inexact_array(x) else x, process)
        parameters, rest = eqx.partition(process, eqx.is_inexact_array)
        flat, unravel = jax.flatten_util.ravel_pytree(parameters)

        def loss(flat, keys):
            process = eqx.combine(unravel(flat), rest)
            solution = jax.vmap(lambda key: law.solve(process, jnp.ones((1, 2)), key=key, every=every))(keys)
            return jnp.sum(jnp.sin(solution.outputs)) + jnp.sum(solution.kl), solution

        gradient, keys = jax.jit(jax.grad(loss, has_aux=True)), jax.random.split(KEY, 4)
        together, solution = gradient(flat, keys)
        alone, solutions = zip(*(gradient(flat, jnp.stack([key] * 4)) for key in keys), strict=True)
    assert len(set(solution.evaluations.tolist())) > 1
    np.testing.assert_allclose(solution.outputs, [each.outputs[0] for each in solutions], rtol=1e-12)
    np.testing.assert_allclose(solution.kl, [each.kl[0] for each in solutions], rtol=1e-12)
    assert verify.relative(together, np.sum(alone, axis=0) / 4) < 1e-12


@pytest.mark.slow
def test_a_model_of_adaptive_steps_trains_on_several_draws_at_once():
    """Warnings are errors here: no step is skipped."""
    model = small_model(Adaptive(1e-1), key=KEY)
    fitted = fit(
        model, Gaussian(0.3), X, jnp.sin(3 * X), key=KEY, epochs=30, objective=Objective(draws=2), progress=False
    )
    bound = fitted.history["log_likelihood"] - fitted.history["kl"]  # whatever share of the KL training began with
    assert np.mean(bound[-5:]) > np.mean(bound[:5])


@pytest.mark.slow
def test_steps_exhausted_in_training_lose_nothing():
    model = small_model(Adaptive(1e-3, max_steps=4), key=KEY)
    with pytest.warns(RuntimeWarning, match="more max_steps"):
        fitted = fit(
            model, Gaussian(0.3), X, jnp.sin(3 * X), key=KEY, epochs=2, objective=Objective(draws=1), progress=False
        )
    assert eqx.tree_equal(fitted.model, model)
