"""The worker for one row of the table in JAX: ``python jax_worker.py KIND BATCH DRAWS WHO``.

WHO is "sdebnn", "sdebnn, XLA alone" (without sdebnn-hopper, if it is installed), "sdebnn, float32" (if the others are
bfloat16), "bare lax.scan" or "diffrax, as documented". All train the same net with Adam, and predict with it; they
differ in how a block is solved. Ours are compiled like ``fit``, and run Adam on stacks of arrays like ``fit``. The
commands "train N" and "predict N" on standard input are answered with the milliseconds of a step or a prediction, and
with the losses of the steps.
"""

import math
import sys
import time
from collections.abc import Callable

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import worker_io
from jax import lax
from jobs import STEPS, Job, problem

import sdebnn
from sdebnn.convolutions import kernels
from sdebnn.train.stacks import by_stacks, stacked, unstacked
from sdebnn.train.xla_options import compiler_options


def bare_scan(block: sdebnn.nn.SDEBlock, h0: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A solver as one would write it by hand: (w, h, KL) advance together in one loop."""
    dt, sigma = 1 / STEPS, block.prior.sigma
    w0 = block.initial.value
    dB = jax.random.normal(key, (STEPS, len(w0))) * math.sqrt(dt)

    def step(state, now):
        w, h, kl = state
        t, dB = now
        f = block.drift(t, w)
        h = h + block.f_h(t, h, block.unravel(w)) * dt
        return (w + (f - w) * dt + sigma * dB, h, kl + 0.5 * jnp.sum((f / sigma) ** 2) * dt), None

    (_, h1, kl), _ = lax.scan(step, (w0, h0, jnp.zeros(())), (jnp.arange(STEPS) / STEPS, dB))
    return h1, kl


def through_diffrax(block: sdebnn.nn.SDEBlock, h0: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A solver as diffrax's documentation suggests: a virtual Brownian tree, Euler, the default adjoint."""
    w0 = block.initial.value

    def drift(t, state, _):
        w, h, _kl = state
        f = block.drift(t, w)
        return f - w, block.f_h(t, h, block.unravel(w)), 0.5 * jnp.sum((f / block.prior.sigma) ** 2)

    brownian = diffrax.VirtualBrownianTree(0.0, 1.0, tol=0.5 / STEPS, shape=w0.shape, key=key)
    terms = diffrax.MultiTerm(diffrax.ODETerm(drift), NoiseOnWeights(brownian, block.prior.sigma))
    start = (w0, h0, jnp.zeros(()))
    _, h1, kl = diffrax.diffeqsolve(terms, diffrax.Euler(), 0.0, 1.0, 1 / STEPS, start).ys
    return h1[-1], kl[-1]


class NoiseOnWeights(diffrax.AbstractTerm):
    """σ dB on w, and zero on h and KL."""

    control: diffrax.AbstractBrownianPath
    sigma: float

    def vf(self, t, y, args):
        return jax.tree.map(jnp.zeros_like, y[1:])

    def contr(self, t0, t1, **_):
        return self.control.evaluate(t0, t1)

    def prod(self, vf, control):
        return (self.sigma * control, *vf)


def by_hand(solve_block: Callable, model: sdebnn.SDEBNN, x: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One draw of the net, with its blocks solved by the given function."""
    h, total = x, jnp.zeros(())
    for i, layer in enumerate(model.layers):
        if isinstance(layer, sdebnn.nn.SDEBlock):
            h, kl = solve_block(layer, h, jax.random.fold_in(key, i))
            total += kl
        else:
            h, _ = layer(h, key=key)
    return h, total


def optimizer(who: str) -> optax.GradientTransformation:
    """Adam. For sdebnn it runs as in ``fit``: on stacks, with a state that stays in stacks from step to step."""
    if not who.startswith("sdebnn"):
        return optax.adam(1e-3)
    adam = by_stacks(lambda _: optax.adam(1e-3))

    def update(gradient, state, params=None):
        updates, state = adam.update(gradient, unstacked(state, gradient), params)
        return updates, stacked(state, gradient)

    return optax.GradientTransformation(lambda params: stacked(adam.init(params), params), update)


def programs(who: str, job: Job) -> tuple[Callable, Callable, eqx.Module]:
    """(parameters, optimiser's state, key) -> (loss, the next two); (parameters, key) -> outputs; the parameters."""
    ours = who.startswith("sdebnn")
    bfloat16 = who in ("sdebnn", "sdebnn, XLA alone") and jax.default_backend() == "gpu"
    if who == "sdebnn, XLA alone":
        kernels.installed = lambda: ()
    model, likelihood, x, y = problem(job, "bfloat16" if bfloat16 else "float32")
    parameters, rest = eqx.partition(model, eqx.is_inexact_array)
    one = {"bare lax.scan": bare_scan, "diffrax, as documented": through_diffrax}.get(who)
    at_once = 1 if job.draws == 1 else None

    def draws(model: sdebnn.SDEBNN, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        keys = jax.random.split(key, job.draws)
        draw = model if ours else lambda x, key: by_hand(one, model, x, key)
        if at_once:
            outputs, kl = draw(x, key=keys[0])
            return outputs[None], kl[None]
        return jax.vmap(lambda key: draw(x, key=key))(keys)

    def loss(parameters, key):
        model = eqx.combine(parameters, rest)
        if ours:
            return -sdebnn.elbo(model, likelihood, x, y, key=key, draws=job.draws, draws_at_once=at_once).elbo
        outputs, kl = draws(model, key)
        return jnp.mean(kl - likelihood.log_prob(outputs, y).sum(1))

    adam = optimizer(who)

    def train(parameters, state, key):
        value, gradient = jax.value_and_grad(loss)(parameters, key)
        updates, state = adam.update(gradient, state)
        return value, optax.apply_updates(parameters, updates), state

    def predict(parameters, key):
        return draws(eqx.combine(parameters, rest), key)[0]

    return train, predict, parameters


def several_steps(train: Callable) -> Callable:
    """A function that takes several steps in one program, like ``fit``, so that a GPU does not wait for Python.

    It returns Adam's state and the sum of the losses. Adam's state depends on all previous steps, so that steps run in
    order; the parameters are not changed.
    """

    def steps(parameters, state, key, count):
        def step(i, carry):
            state, total = carry
            value, _, state = train(parameters, state, jax.random.fold_in(key, i))
            return state, total + value

        return lax.fori_loop(0, count, step, (state, jnp.zeros(())))

    return steps


def main() -> None:
    kind, batch, count, who = sys.argv[1:]
    job = Job(kind, int(batch), int(count))
    train, predict, parameters = programs(who, job)
    state = optimizer(who).init(parameters)
    gpu = jax.default_backend() == "gpu"
    seed = iter(range(10**9))
    how = compiler_options() if who.startswith("sdebnn") else None
    clock = time.perf_counter()
    if gpu:
        step = (
            jax.jit(several_steps(train), compiler_options=how).lower(parameters, state, jax.random.key(0), 1).compile()
        )
    else:
        step = jax.jit(train).lower(parameters, state, jax.random.key(0)).compile()
    about = {"compile_s": time.perf_counter() - clock}
    sizes = step.memory_analysis()
    about["memory_mib"] = (sizes.temp_size_in_bytes + sizes.argument_size_in_bytes + sizes.output_size_in_bytes) / 2**20
    forward = jax.jit(predict).lower(parameters, jax.random.key(0)).compile()

    def trained(n: int) -> list[float]:
        nonlocal state
        if gpu:
            state, total = jax.block_until_ready(step(parameters, state, jax.random.key(next(seed)), n))
            return [float(total) / n]
        values = []
        for _ in range(n):
            value, _, state = step(parameters, state, jax.random.key(next(seed)))
            values.append(float(value))
        return values

    def predicted(n: int) -> list[float]:
        for _ in range(n):
            outputs = forward(parameters, jax.random.key(next(seed)))
        jax.block_until_ready(outputs)
        return []

    worker_io.answer(about, {"train": trained, "predict": predicted})


if __name__ == "__main__":
    main()
