"""Adaptive steps: every solver of diffrax either solves or is refused, and what it solves is right."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdebnn import OU, Adaptive, FixedGrid, Gaussian, Point, Posterior, bayesianize, fit, verify
from sdebnn.integrate.terms import evaluations_a_step
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


def test_a_solver_in_half_steps_finds_the_draw_that_the_key_names(fine):
    law = Adaptive(1e-3, solver=diffrax.SEA())
    found = small_model(law, key=KEY).solve(X, key=KEY)
    np.testing.assert_allclose(found.outputs, fine.outputs, atol=0.02)
    assert float(found.kl) == pytest.approx(float(fine.kl), rel=0.02)
    assert int(found.evaluations) % SOLVERS["SEA"] == 0
    assert int(found.evaluations) > 0


@pytest.mark.parametrize("name", ["ReversibleHeun", "SPaRK"])
def test_the_elbo_is_the_evidence_under_other_solvers_too(name):
    """At the exact posterior, within 4 standard errors; verify has Heun, SEA, SRA1 and ShARK."""
    problem, law = verify.LinearGaussian(), Adaptive(1e-2, solver=getattr(diffrax, name)())
    parts = (verify.PosteriorDrift(problem), Point(jnp.array([problem.w0])))
    samples = eqx.filter_jit(verify.elbo_samples)(problem, *parts, "analytic", law, jax.random.split(KEY, 512))
    values = np.asarray(samples, dtype=float)
    assert abs(values.mean() - problem.log_evidence()) < 4 * values.std() / np.sqrt(512)


def test_evaluations_are_counted_by_stages_and_half_steps():
    for name, evaluations in SOLVERS.items():
        solver = getattr(diffrax, name)()
        counts = {evaluations_a_step(solver), evaluations_a_step(diffrax.HalfSolver(solver))}
        assert evaluations in counts, name


def test_a_tighter_tolerance_costs_more_and_errs_less(fine):
    solutions = [small_model(Adaptive(rtol), key=KEY).solve(X, key=KEY) for rtol in (1e-2, 1e-4)]
    errors = [float(jnp.abs(s.outputs - fine.outputs).max()) for s in solutions]
    assert errors[1] < 0.2 * errors[0]
    assert int(solutions[1].evaluations) > 2 * int(solutions[0].evaluations)


def test_the_longest_step_bounds_the_steps():
    solution = small_model(Adaptive(10.0, solver=diffrax.Heun(), max_step=1 / 40), key=KEY).solve(X, key=KEY)
    assert int(solution.evaluations) == 2 * 40


def test_a_batch_cannot_hide_behind_the_weights():
    """The tolerance holds for h alone: a thousand still weights do not dilute its error."""

    class Fast(eqx.Module):
        still: jax.Array

        def __call__(self, t, h):
            return 30.0 * jnp.cos(60.0 * t) + 0 * jnp.sum(self.still) + 0 * h

    evaluations = [
        int(
            bayesianize(Fast(jnp.zeros(size)), prior=OU(sigma=1e-6), drift=(1,), solver=Adaptive(1e-3), key=KEY)
            .solve(jnp.zeros((1, 1)), key=KEY)
            .evaluations
        )
        for size in (1, 1000)
    ]
    assert evaluations[1] >= 0.9 * evaluations[0]


def test_the_gradient_of_adaptive_steps_is_that_of_a_fine_grid():
    base = 256
    _, reference = verify.loss_and_gradient(small_model(FixedGrid(base, "ralston3"), key=KEY), X, key=KEY)
    law = Adaptive(1e-3, solver=diffrax.Heun(), adjoint=diffrax.DirectAdjoint(), noise_steps=base)
    _, gradient = verify.loss_and_gradient(small_model(law, key=KEY), X, key=KEY)
    assert verify.relative(gradient, reference) < 0.01


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
    law = Posterior(prior, verify.PosteriorDrift(verify.LinearGaussian(), gain=0.0), Point(w0))
    ends = jax.jit(jax.vmap(lambda key: Adaptive(1e-2).weights(law, key=key).w[-1, 0]))(jax.random.split(KEY, 2048))
    mean, std = (float(part[0]) for part in prior.marginal(1.0, w0))
    assert abs(float(ends.mean()) - mean) < 4 * std / np.sqrt(2048)
    assert abs(float(ends.std()) - std) < 4 * std / np.sqrt(2 * 2048)


def test_a_model_of_adaptive_steps_trains():
    model = small_model(Adaptive(1e-1, solver=diffrax.Heun()), key=KEY)
    fitted = fit(model, Gaussian(0.3), X, jnp.sin(3 * X), key=KEY, epochs=30, draws=2, progress=False)
    assert np.mean(fitted.history["elbo"][-5:]) > np.mean(fitted.history["elbo"][:5])


def test_steps_exhausted_in_training_lose_nothing():
    model = small_model(Adaptive(1e-3, max_steps=4), key=KEY)
    with pytest.warns(RuntimeWarning, match="more max_steps"):
        fitted = fit(model, Gaussian(0.3), X, jnp.sin(3 * X), key=KEY, epochs=2, draws=1, progress=False)
    assert eqx.tree_equal(fitted.model, model)
