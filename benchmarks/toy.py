"""The toy job: one training step beside the same work written as a bare lax.scan, and through diffrax, in one run.

1-D regression, f_h 3-32-32-3 (1315 weights), drift 32-32, 20 draws, a batch of 40, 20 Euler steps, value and gradient.
All three draw the same model: the means of their losses must agree within 4 standard errors, or no time is printed.

    python benchmarks/toy.py [--repeats 60] [--json FILE]
"""

import argparse
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import record
from jax import lax

import sdebnn

DRAWS, BATCH, STEPS, SIGMA, NOISE = 20, 40, 20, 0.2, 0.1


def problem() -> tuple[sdebnn.SDEBNN, jax.Array, jax.Array]:
    """The model, its drift moved off zero so that no part of the work can be skipped, and the data."""
    keys = jax.random.split(jax.random.key(0), 4)
    block = sdebnn.bayesianize(
        sdebnn.TimeMLP(3, (32, 32), key=keys[0]),
        prior=sdebnn.OU(sigma=SIGMA),
        solver=sdebnn.FixedGrid(STEPS),
        key=keys[1],
    )
    last = lambda b: b.drift.layers[-1].weight  # noqa: E731
    block = eqx.tree_at(last, block, 0.02 * jax.random.normal(keys[2], last(block).shape))
    model = sdebnn.SDEBNN((sdebnn.Deterministic(sdebnn.Augment(1, 2)), block, sdebnn.Deterministic(lambda h: h[:1])))
    x = jax.random.uniform(keys[3], (BATCH, 1), minval=-2, maxval=2)
    return model, x, jnp.sin(3 * x)


def ours(model: sdebnn.SDEBNN, x: jax.Array, y: jax.Array, key: jax.Array) -> jax.Array:
    return -sdebnn.elbo(model, sdebnn.Gaussian(NOISE), x, y, key=key, draws=DRAWS).elbo


def _loss(draw: Callable, model: sdebnn.SDEBNN, x: jax.Array, y: jax.Array, key: jax.Array) -> jax.Array:
    """-ELBO from a function (block, h0, key) -> (h1, kl) of one draw."""
    h0 = jnp.concatenate([x, jnp.zeros((BATCH, 2))], axis=1)
    h1, kl = jax.vmap(lambda k: draw(model.layers[1], h0, k))(jax.random.split(key, DRAWS))
    log_prob = -0.5 * ((y - h1[..., :1]) / NOISE) ** 2 - math.log(NOISE) - 0.5 * math.log(2 * math.pi)
    return jnp.mean(kl - log_prob.sum((1, 2)))


def _field(block: sdebnn.SDEBlock, w: jax.Array) -> Callable:
    return jax.vmap(eqx.combine(block.weights.unravel(w), block.field), in_axes=(None, 0))


def bare_scan(block: sdebnn.SDEBlock, h0: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What one writes by hand: (w, h, KL) advance together in one loop."""
    dt = 1 / STEPS
    w0 = block.initial.value
    dB = jax.random.normal(key, (STEPS, len(w0))) * math.sqrt(dt)

    def step(state, now):
        w, h, kl = state
        t, dB = now
        f = block.drift(t, w)
        h = h + _field(block, w)(t, h) * dt
        return (w + (f - w) * dt + SIGMA * dB, h, kl + 0.5 * jnp.sum((f / SIGMA) ** 2) * dt), None

    (_, h1, kl), _ = lax.scan(step, (w0, h0, jnp.zeros(())), (jnp.arange(STEPS) / STEPS, dB))
    return h1, kl


def through_diffrax(block: sdebnn.SDEBlock, h0: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """As diffrax's documentation leads one to write it: a virtual Brownian tree, Euler, the default adjoint."""
    w0 = block.initial.value
    size = len(w0)

    def drift(t, state, _):
        w, h, _kl = state
        f = block.drift(t, w)
        return f - w, _field(block, w)(t, h), 0.5 * jnp.sum((f / SIGMA) ** 2)

    brownian = diffrax.VirtualBrownianTree(0.0, 1.0, tol=0.5 / STEPS, shape=(size,), key=key)
    noise = partial(_NoiseOnWeights, control=brownian)
    terms = diffrax.MultiTerm(diffrax.ODETerm(drift), noise())
    solution = diffrax.diffeqsolve(terms, diffrax.Euler(), 0.0, 1.0, 1 / STEPS, (w0, h0, jnp.zeros(())))
    _, h1, kl = solution.ys
    return h1[-1], kl[-1]


class _NoiseOnWeights(diffrax.AbstractTerm):
    """σ dB on w, nothing on h and KL."""

    control: diffrax.AbstractBrownianPath

    def vf(self, t, y, args):
        return SIGMA

    def contr(self, t0, t1, **_):
        return self.control.evaluate(t0, t1)

    def prod(self, vf, control):
        return vf * control, jnp.zeros((BATCH, 3)), jnp.zeros(())


def measure(losses: dict[str, Callable], repeats: int) -> dict[str, dict[str, float]]:
    """Compile each, check that they agree, then time them in turn so that a busy moment hits all alike."""
    model, x, y = problem()
    parameters, rest = eqx.partition(model, eqx.is_inexact_array)
    compiled, rows = {}, {}
    for name, loss in losses.items():
        step = jax.jit(jax.value_and_grad(lambda p, key, loss=loss: loss(eqx.combine(p, rest), x, y, key)))
        start = time.perf_counter()
        compiled[name] = step.lower(parameters, jax.random.key(0)).compile()
        rows[name] = {"compile_s": time.perf_counter() - start}
        rows[name]["temp_mib"] = compiled[name].memory_analysis().temp_size_in_bytes / 2**20
    values, times = {name: [] for name in losses}, {name: [] for name in losses}
    for i in range(repeats + 3):
        for name, step in compiled.items():
            key = jax.random.key(1000 + i)
            start = time.perf_counter()
            value, _ = jax.block_until_ready(step(parameters, key))
            elapsed = time.perf_counter() - start
            values[name].append(float(value))
            if i >= 3:
                times[name].append(1e3 * elapsed)
    for name, row in rows.items():
        row["step_ms"], row["fastest_ms"] = float(np.median(times[name])), float(np.min(times[name]))
        row["loss"] = float(np.mean(values[name]))
        row["loss_error"] = float(np.std(values[name]) / math.sqrt(len(values[name])))
    first = rows["bare lax.scan"]
    for name, row in rows.items():
        row["time_ratio"] = float(np.median(np.array(times[name]) / np.array(times["bare lax.scan"])))
        gap, error = abs(row["loss"] - first["loss"]), math.hypot(row["loss_error"], first["loss_error"])
        if gap > 4 * error:
            raise SystemExit(f"{name}: loss {row['loss']:.2f} is not {first['loss']:.2f}: not the same work")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    losses = {
        "sdebnn": ours,
        "bare lax.scan": partial(_loss, bare_scan),
        "diffrax, as documented": partial(_loss, through_diffrax),
    }
    rows = measure(losses, options.repeats)
    print(
        f"{'':24}{'compile s':>10}{'ms a step':>11}{'fastest':>9}{'x scan':>8}{'temp MiB':>10}{'loss':>10}{'± s.e.':>8}"
    )
    for name, row in rows.items():
        print(
            f"{name:24}{row['compile_s']:10.2f}{row['step_ms']:11.2f}{row['fastest_ms']:9.2f}"
            f"{row['time_ratio']:8.2f}{row['temp_mib']:10.1f}{row['loss']:10.1f}{row['loss_error']:8.1f}"
        )
    if options.json:
        record.write(options.json, "python benchmarks/toy.py", rows=rows)


if __name__ == "__main__":
    main()
