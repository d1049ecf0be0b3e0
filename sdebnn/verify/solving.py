"""Theorems on the solvers and their gradients: orders, refinement, tolerances, and reproducibility from a key."""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import pairwise

import diffrax
import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from sdebnn.contract import draw_keys
from sdebnn.fields import TimeMLP
from sdebnn.integrate import (
    METHODS,
    AbstractSolver,
    Adaptive,
    FixedGrid,
    KLEstimator,
    MethodName,
    Noise,
    Posterior,
)
from sdebnn.likelihoods import Gaussian
from sdebnn.models import SDEBNN, Deterministic, bayesianize, refined
from sdebnn.processes import OU, AbstractDrift, Depth, NoDrift, Normal, Point, Weights
from sdebnn.train import elbo
from sdebnn.verify.known_posterior import (
    ESTIMATORS,
    METHOD_NAMES,
    PATHS,
    STANDARD_ERRORS,
    ExactDrift,
    LinearGaussian,
    Theorem,
    elbo_samples,
    gradient_samples,
    within,
)


def coarser(dB: Float[Array, "fine weight"], area: Float[Array, "fine weight"], steps: int) -> Noise:
    """The same Brownian path on fewer steps: increments add up, and areas follow from the finer path."""
    dB, area = (part.reshape(steps, -1, part.shape[-1]) for part in (dB, area))
    before = jnp.cumsum(dB, axis=1) - dB
    total = dB.sum(1)
    return Noise(total, jnp.mean(before + 0.5 * dB + area, axis=1) - 0.5 * total)


class _SineDrift(AbstractDrift):
    """A drift that is nonlinear enough that no method converges faster than its order."""

    def __call__(self, t: Depth, w: Weights) -> Weights:
        return jnp.sin(2 * w + t)


def strong_order(key: PRNGKeyArray) -> Iterator[Theorem]:
    """The error on (w, h) against a much finer grid under the same Brownian path, in float64."""
    finest, counts, paths = 2048, (32, 64, 128, 256), 128
    process = Posterior(OU(sigma=1.0), _SineDrift(), Point(jnp.ones(2)))

    def ends(noise: Noise, method: MethodName) -> Array:
        grid = FixedGrid(len(noise.dB), method)
        w, stages, _ = grid.drive(process, jnp.ones(2), noise)
        h1, *_ = grid.hidden(lambda t, h, w: jnp.tanh(h * w[0] + w[1]), stages.weights, jnp.ones((1, 1)))
        return jnp.append(w[-1], h1)

    with jax.enable_x64(True):
        dB, area = jax.random.normal(key, (2, paths, finest, 2)) / math.sqrt(finest)
        area = area / math.sqrt(12)
        reference = jax.jit(jax.vmap(partial(ends, method="ralston3")))(Noise(dB, area))
        for name in METHOD_NAMES:
            errors = [
                jax.jit(jax.vmap(partial(ends, method=name)))(jax.vmap(partial(coarser, steps=n))(dB, area)) - reference
                for n in counts
            ]
            for part, of in (("w", slice(0, 2)), ("h", slice(2, 3))):
                yield Theorem(
                    f"strong order of {name} on {part}", _order(counts, errors, of), METHODS[name].order, 0.25
                )


def _order(counts: Sequence[int], errors: Sequence[Array], of: slice = slice(None)) -> float:
    """The power of 1 / steps at which the root mean square errors decrease."""
    means = [float(jnp.sqrt(jnp.mean(error[:, of] ** 2))) for error in errors]
    return float(-np.polyfit(np.log(counts), np.log(means), 1)[0])


def small_model(solver: AbstractSolver, kl: KLEstimator = "analytic", *, key: PRNGKeyArray) -> SDEBNN:
    """A net whose drift is not zero, so that every part of it matters."""
    model = SDEBNN.paper_mlp(1, 1, widths=(4,), drift=(3,), solver=solver, kl=kl, key=key)
    last = lambda m: m.layers[1].drift.layers[-1].weight  # noqa: E731
    return eqx.tree_at(last, model, 0.3 * jax.random.normal(key, last(model).shape))


def loss_and_gradient(
    model: SDEBNN,
    x: Array,
    *,
    key: PRNGKeyArray,
    with_roughness: bool = False,
    change: Callable[[SDEBNN], SDEBNN] = lambda model: model,
) -> tuple[Float[Array, ""], Float[Array, " parameter"]]:
    """A loss of the outputs, the KL and, if requested, the roughness of one draw, with its gradient.

    ``change`` is applied to the model without being differentiated.
    """
    parameters, rest = eqx.partition(model, eqx.is_inexact_array)
    flat, unravel = jax.flatten_util.ravel_pytree(parameters)

    def loss(flat: Array) -> Array:
        solution = change(eqx.combine(unravel(flat), rest)).solve(x, key=key, with_roughness=with_roughness)
        return jnp.sum(solution.outputs**2) + solution.kl + solution.roughness

    return jax.jit(jax.value_and_grad(loss))(flat)


def relative(value: Array | np.ndarray, reference: Array | np.ndarray) -> float:
    """|value - reference| / |reference|."""
    value, reference = np.asarray(value), np.asarray(reference)
    return float(np.linalg.norm(value - reference) / np.linalg.norm(reference))


def refining(key: PRNGKeyArray) -> Iterator[Theorem]:
    """A key has one Brownian path: draws at 20, 40 and 80 steps converge at the method's order, in float64."""
    counts, paths = (20, 40, 80), 128
    with jax.enable_x64(True):
        x = jnp.linspace(-1.0, 1.0, 5)[:, None]
        for name in ("euler", "ralston3"):
            block = bayesianize(
                TimeMLP(1, (4,), key=key), prior=OU(sigma=1.0), drift=_SineDrift(), solver=FixedGrid(20, name), key=key
            )
            laws = [refined(block, steps=steps) for steps in counts]
            draws = [jax.jit(jax.vmap(lambda k, law=law: law(x, key=k)[0]))(draw_keys(key, paths)) for law in laws]
            steps = [(coarse - fine).reshape(paths, -1) for coarse, fine in pairwise(draws)]
            yield Theorem(
                f"order of refining one draw by {name}", _order(counts[:-1], steps), METHODS[name].order, 0.25
            )


def stability(key: PRNGKeyArray) -> Iterator[Theorem]:
    """Under a strongly contracting prior, stable methods keep its spread, and reversible Heun's shadow moves away.

    Euler's spread is 1 + rate dt / 4 times the exact one: 0.6 % more here, well within four standard errors of 4.4 %.
    """
    rate, w0 = 10.0, jnp.ones(1)
    prior = OU(rate, 0.0, 1.0)
    process = Posterior(prior, NoDrift(), Point(w0))
    std = float(prior.marginal(1.0, w0)[1][0])

    def end(key: PRNGKeyArray, method: MethodName) -> Array:
        return FixedGrid(400, method).weights(process, key=key).w[-1, 0]

    for name in METHOD_NAMES[:3]:
        ends = jax.jit(jax.vmap(partial(end, method=name)))(draw_keys(key, PATHS))
        measured = float(jnp.std(ends, ddof=1))
        tolerance = STANDARD_ERRORS * std / math.sqrt(2 * PATHS)
        yield Theorem(f"standard deviation of an OU of rate {rate:g} by {name}", measured, std, tolerance)
    with jax.enable_x64(True):
        steps = 40
        # Without noise the distance starts small, and after some steps it consists of the growing mode alone.
        w, stages, _ = FixedGrid(steps, "reversible_heun").drive(
            process, jnp.ones(1), Noise(jnp.zeros((steps, 1)), None)
        )
        apart = np.asarray(stages.weights[1] - w[1:])[:, 0]
        growth = math.exp(math.asinh(rate / steps))
        yield Theorem("growth of reversible Heun's shadow a step", float(-apart[-1] / apart[-2]), growth, 1e-5)


def adaptive(key: PRNGKeyArray) -> Iterator[Theorem]:
    """Adaptive steps: the ELBO is tight at the exact posterior, and a draw's gradient does not depend on other draws.

    Draws of the same key finish together, so that a batch of four copies behaves like a single draw. The gradient of
    the stochastic adjoint converges to the exact one.
    """
    problem, keys = LinearGaussian(), draw_keys(key, PATHS // 4)
    exact, parts = problem.log_evidence(), (ExactDrift(problem), Point(jnp.array([problem.w0])))
    for solver in (diffrax.Heun(), diffrax.ShARK()):
        law = Adaptive(1e-3, solver=solver)
        samples = eqx.filter_jit(elbo_samples)(problem, *parts, "analytic", law, keys)
        yield Theorem(f"ELBO = log evidence, adaptive {type(solver).__name__}", *within(samples, exact))
    gradient = partial(gradient_samples, problem, parts, "analytic", Adaptive(1e-2, max_steps=256))
    together = gradient(keys[:4])
    alone = jnp.stack([gradient(jnp.stack([key] * 4))[0] for key in keys[:4]])
    yield Theorem("gradients of four adaptive draws at once / alone - 1", relative(together, alone), 0.0, 1e-5)
    with jax.enable_x64(True):
        x = jnp.linspace(-1.0, 1.0, 5)[:, None]
        base = 512
        _, reference = loss_and_gradient(small_model(FixedGrid(base, "ralston3"), key=key), x, key=key)
        law = Adaptive(solver=diffrax.Heun(), adjoint=diffrax.BacksolveAdjoint(), noise_steps=base)
        model = small_model(law, key=key)

        tolerances = lambda m: (m.layers[1].solver.rtol, m.layers[1].solver.atol)  # noqa: E731

        @jax.jit  # one program for both tolerances
        def gradient_at(rtol: Array) -> Array:
            return loss_and_gradient(model, x, key=key, change=lambda m: eqx.tree_at(tolerances, m, (rtol, rtol)))[1]

        errors = [relative(gradient_at(jnp.asarray(rtol)), reference) for rtol in (1e-2, 1e-4)]
        yield Theorem("stochastic adjoint's error, rtol 1e-4 / 1e-2", errors[1] / errors[0], 0.0, 0.3)


def gradients(key: PRNGKeyArray) -> Iterator[Theorem]:
    """Reverse-mode gradients agree with central differences, in float64, along a random direction of all parameters."""
    with jax.enable_x64(True):
        model_key, direction_key, draw_key = jax.random.split(key, 3)
        x = jnp.linspace(-1.0, 1.0, 5)[:, None]
        for kl in ESTIMATORS[:2]:
            model = SDEBNN.paper_mlp(1, 1, widths=(4,), drift=(3,), initial=Normal, kl=kl, key=model_key)
            parameters, rest = eqx.partition((model, Gaussian(0.3, learn=True)), eqx.is_inexact_array)
            leaves, structure = jax.tree.flatten(parameters)
            keys = jax.random.split(direction_key, len(leaves))
            direction = [jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)]

            def along(
                step: Array,
                leaves: list[Array] = leaves,
                direction: list[Array] = direction,
                structure: Hashable = structure,
                rest: PyTree = rest,
            ) -> Array:
                # Away from the initial parameters, where the drift and half of the gradient are zero.
                moved = [p + (0.1 + step) * d for p, d in zip(leaves, direction, strict=True)]
                model, likelihood = eqx.combine(jax.tree.unflatten(structure, moved), rest)
                return elbo(model, likelihood, x, jnp.sin(x), key=draw_key, draws=2).elbo

            both = jax.jit(jax.value_and_grad(along))
            step = 1e-5
            difference = (both(step)[0] - both(-step)[0]) / (2 * step)
            yield Theorem(f"gradient / finite difference ({kl})", float(both(0.0)[1] / difference), 1.0, 1e-6)


def temporary_bytes(function: Callable[..., PyTree], *arguments: PyTree) -> int:
    """The memory that the compiled function needs besides its arguments and its result, in bytes."""
    analysis = jax.jit(function).lower(*arguments).compile().memory_analysis()
    return analysis.temp_size_in_bytes if analysis else 0


def reversible(key: PRNGKeyArray) -> Iterator[Theorem]:
    """Reversible steps give the gradient of backpropagation, in memory that does not grow with the number of steps."""
    with jax.enable_x64(True):
        x = jnp.linspace(-1.0, 1.0, 5)[:, None]
        for kl in ("analytic", "stl"):
            laws = [
                small_model(FixedGrid(20, "reversible_heun", how), kl, key=key) for how in ("reversible", "backprop")
            ]
            ours, backprop = (loss_and_gradient(law, x, key=key, with_roughness=True)[1] for law in laws)
            yield Theorem(f"reversible gradient / backprop's - 1 ({kl})", relative(ours, backprop), 0.0, 1e-10)
    memory = []
    for steps in (20, 1280):
        model = small_model(FixedGrid(steps, "reversible_heun", "reversible"), key=key)
        parameters, rest = eqx.partition(model, eqx.is_inexact_array)
        loss = lambda p, rest=rest: jnp.sum(eqx.combine(p, rest)(jnp.ones((64, 1)), key=key)[0])  # noqa: E731
        memory.append(temporary_bytes(jax.grad(loss), parameters))
    yield Theorem("reversible's memory, 1280 steps / 20 steps", memory[1] / memory[0], 1.0, 0.2)


def reproducible(key: PRNGKeyArray) -> Iterator[Theorem]:
    """A key gives the same function each time, bit for bit, and another key another function."""
    field_key, drift_key, head_key, input_key, one, other = jax.random.split(key, 6)
    block = bayesianize(TimeMLP(2, (8,), key=field_key), initial=Normal, key=drift_key)
    model = SDEBNN((block, Deterministic(eqx.nn.Linear(2, 1, key=head_key))))
    x = jax.random.normal(input_key, (7, 2))
    call = eqx.filter_jit(lambda model, x, key: model(x, key=key)[0])
    first, again, different = call(model, x, one), call(model, x, one), call(model, x, other)
    yield Theorem("outputs that differ when a key is used again", float(jnp.sum(first != again)), 0.0, 0.0)
    yield Theorem("outputs that agree under another key", float(jnp.sum(first == different)), 0.0, 0.0)
