"""Long HMC of the finite net of ``SDEBNN.mlp``, for all problems of ``honesty.py`` at once, and its evidence.

The net is that of the package before it sees data: ξ holds w_0, the Brownian increments of the steps and the logarithm
of the scale, all standard normal. Given ξ, the function is linear in the coefficients of the read-out, so it is a
Gaussian process with a kernel of finite rank, and the data have a density in closed form. HMC samples ξ under this
density, and the function is drawn given ξ. This has the same posterior as HMC over all numbers, and mixes far better.
Lengths and scales are sampled, too; only constants that follow from the data alone (``before_training``) are shared
with the fits.

The chains start from the prior and are annealed to the posterior. The annealing yields the evidence, too (annealed
importance sampling).

    python benchmarks/honesty_hmc.py --out FOLDER [--chains 4] [--anneal 200] [--warmup 100] [--keep 600]
"""

import argparse
import json
import math
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from honesty_problems import PROBLEMS, Problem, band, problem, scores, waves_with_gap
from jax import lax
from jax.scipy.linalg import cho_solve, solve_triangular

import sdebnn
from sdebnn.integrate import Noise
from sdebnn.nn import blocks, prior_of

MODEL = prior_of(sdebnn.SDEBNN.mlp(1, 1, key=jax.random.key(0)))
BLOCK = blocks(MODEL)[0]
K, WEIGHTS = BLOCK.solver.steps, BLOCK.weights.size
FEATURES, STATE = MODEL.body.layers[-1].module.count, MODEL.body.layers[0].module.zeros + 1
LEAPS, TARGET = 10, 0.8  # leapfrog steps of a move; acceptance to which step sizes adapt


class Data(NamedTuple):
    """A problem in the units of the net, filled up to equal size."""

    x: jax.Array
    y: jax.Array
    seen: jax.Array  # 0 for rows that fill up
    noise: jax.Array
    at: jax.Array


def features(xi: jax.Array, x: jax.Array) -> jax.Array:
    """Ψ, "point feature": the features of the net that ξ names, times its scale; the last of them is constant."""
    path, log_scale = xi[:-1].reshape(K + 1, WEIGHTS), xi[-1]
    _, stages, _ = BLOCK.solver.drive(BLOCK, path[0], Noise(path[1:] / math.sqrt(K), None))
    h0 = jnp.pad(x[:, None], ((0, 0), (0, STATE - 1)))
    end = BLOCK.solver.hidden(BLOCK.f_h, tuple(map(BLOCK.unravel, stages.weights)), h0).outputs
    ones = jnp.ones((x.shape[0], 1))
    return jnp.exp(log_scale) * jnp.concatenate([end[:, -FEATURES:], ones], axis=1)


def covariance(psi: jax.Array, data: Data) -> jax.Array:
    """Of the standardised targets; rows that fill up are standard normal and independent."""
    kernel = jnp.matmul(psi, psi.T, precision="highest") * data.seen[:, None] * data.seen
    return kernel + jnp.diag(jnp.where(data.seen > 0, data.noise**2, 1.0))


@jax.custom_vjp
def log_normal(covariance: jax.Array, y: jax.Array) -> jax.Array:
    """log N(y; 0, covariance), up to the power of 2π. Its own derivative is faster than that of the factorisation."""
    return _with_slope(covariance, y)[0]


def _with_slope(covariance: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    factor = jnp.linalg.cholesky(covariance)
    inverse = solve_triangular(factor, jnp.eye(y.shape[0]), lower=True)
    white = jnp.matmul(inverse, y, precision="highest")
    alpha = jnp.matmul(inverse.T, white, precision="highest")
    slope = 0.5 * (jnp.outer(alpha, alpha) - jnp.matmul(inverse.T, inverse, precision="highest"))
    return -0.5 * white @ white - jnp.sum(jnp.log(jnp.diagonal(factor))), slope


log_normal.defvjp(_with_slope, lambda slope, g: (g * slope, None))


def log_likelihood(xi: jax.Array, data: Data) -> jax.Array:
    return log_normal(covariance(features(xi, data.x), data), data.y)


def function(xi: jax.Array, data: Data, key: jax.Array) -> jax.Array:
    """A draw of f given the data and ξ, by Matheron's rule."""
    keys = jax.random.split(key)
    psi, there = features(xi, data.x), features(xi, data.at)
    coefficients = jax.random.normal(keys[0], psi.shape[1:])
    lack = data.y - psi @ coefficients - data.noise * jax.random.normal(keys[1], data.y.shape)
    alpha = cho_solve((jnp.linalg.cholesky(covariance(psi, data)), True), lack * data.seen) * data.seen
    return jnp.matmul(there, coefficients + psi.T @ alpha, precision="highest")


class Chains(NamedTuple):
    """``xi`` is "problem chain number"; the others have one number for each chain, ``eps`` for each problem."""

    xi: jax.Array
    value: jax.Array
    slope: jax.Array
    log_weight: jax.Array
    eps: jax.Array


def over_chains(of: Any) -> Any:
    return jax.vmap(jax.vmap(of, (0, None)), (0, 0))


values = over_chains(jax.value_and_grad(log_likelihood))


def started(data: Data, chains: int, key: jax.Array) -> Chains:
    xi = jax.random.normal(key, (data.x.shape[0], chains, (K + 1) * WEIGHTS + 1))
    value, slope = values(xi, data)
    return Chains(xi, value, slope, jnp.zeros_like(value), jnp.full(data.x.shape[0], 0.1))


def moved(now: Chains, data: Data, beta: jax.Array | float, key: jax.Array) -> tuple[Chains, jax.Array]:
    """One move of HMC for every chain, under the likelihood to the power beta, and how likely it was accepted."""
    keys = jax.random.split(key, 3)
    jitter = jnp.exp(0.2 * jax.random.normal(keys[2], now.value.shape))
    eps = (now.eps[:, None] * jitter)[..., None]
    momentum = jax.random.normal(keys[0], now.xi.shape)

    def leap(carry: tuple[jax.Array, ...], _: None) -> tuple[tuple[jax.Array, ...], None]:
        xi, momentum, _, slope = carry
        momentum = momentum + 0.5 * eps * (beta * slope - xi)
        xi = xi + eps * momentum
        value, slope = values(xi, data)
        return (xi, momentum + 0.5 * eps * (beta * slope - xi), value, slope), None

    (xi, end, value, slope), _ = lax.scan(leap, (now.xi, momentum, now.value, now.slope), None, length=LEAPS)
    energy = 0.5 * jnp.sum(now.xi**2 + momentum**2 - xi**2 - end**2, axis=-1)
    log_ratio = beta * (value - now.value) + energy
    chance = jnp.where(jnp.isfinite(log_ratio), jnp.exp(jnp.minimum(log_ratio, 0.0)), 0.0)
    yes = jax.random.uniform(keys[1], chance.shape) < chance
    wide = yes[..., None]
    after = Chains(
        jnp.where(wide, xi, now.xi), jnp.where(yes, value, now.value), jnp.where(wide, slope, now.slope),
        now.log_weight, now.eps,
    )  # fmt: skip
    return after, chance.mean(1)


def adapted(now: Chains, chance: jax.Array) -> Chains:
    return now._replace(eps=jnp.clip(now.eps * jnp.exp(0.1 * (chance - TARGET)), 1e-3, 0.2))


@partial(jax.jit, static_argnames="steps")
def annealed(now: Chains, data: Data, steps: int, key: jax.Array) -> Chains:
    """From the prior to the posterior, with the weights of annealed importance sampling."""
    betas = jnp.concatenate([jnp.zeros(1), jnp.exp(jnp.linspace(math.log(1e-3), 0.0, steps))])

    def step(now: Chains, inputs: tuple[jax.Array, ...]) -> tuple[Chains, None]:
        before, beta, key = inputs
        now = now._replace(log_weight=now.log_weight + (beta - before) * now.value)
        return adapted(*moved(now, data, beta, key)), None

    return lax.scan(step, now, (betas[:-1], betas[1:], jax.random.split(key, steps)))[0]


@partial(jax.jit, static_argnames="steps")
def warmed(now: Chains, data: Data, steps: int, key: jax.Array) -> Chains:
    return lax.scan(
        lambda now, key: (adapted(*moved(now, data, 1.0, key)), None), now, jax.random.split(key, steps)
    )[0]  # fmt: skip


@partial(jax.jit, static_argnames="steps")
def sampled(now: Chains, data: Data, steps: int, key: jax.Array) -> tuple[Chains, tuple[jax.Array, ...]]:
    """A function, "problem chain point", the likelihood and the acceptance after every second move."""

    def step(now: Chains, key: jax.Array) -> tuple[Chains, tuple[jax.Array, ...]]:
        keys = jax.random.split(key, 3)
        now, first = moved(now, data, 1.0, keys[0])
        now, second = moved(now, data, 1.0, keys[1])
        draw_keys = jax.random.split(keys[2], now.value.shape)
        draws = jax.vmap(jax.vmap(function, (0, None, 0)), (0, 0, 0))(now.xi, data, draw_keys)
        return now, (draws, now.value, 0.5 * (first + second))

    return lax.scan(step, now, jax.random.split(key, steps))


def r_hat(draws: np.ndarray) -> np.ndarray:
    """Of "draw chain ...", each chain split in two."""
    half = len(draws) // 2
    parts = np.concatenate([draws[:half], draws[half : 2 * half]], axis=1)
    within, between = parts.var(0, ddof=1).mean(0), parts.mean(0).var(0, ddof=1)
    return np.sqrt((within * (half - 1) / half + between) / within)


def constants(of: Problem) -> dict[str, float]:
    """What the net takes from the data before training: center and median length of x, offset and unit of y."""
    x, y = (jnp.asarray(column, jnp.float32)[:, None] for column in (of.x, of.y))
    model = sdebnn.SDEBNN.mlp(1, 1, key=jax.random.key(0)).before_training(sdebnn.Gaussian(of.noise), (x, y))
    field = blocks(model)[0].field
    found = {"center": field.center, "length": jnp.exp(field.log_length), "offset": model.offset, "unit": model.unit}
    return {name: float(value[0]) for name, value in found.items()}


def standardised(of: Problem, fit: dict[str, float], size: int) -> Data:
    fill = size - len(of.x)
    columns = [
        np.pad((of.x - fit["center"]) / fit["length"], (0, fill)),
        np.pad((of.y - fit["offset"]) / fit["unit"], (0, fill)),
        np.pad(np.ones(len(of.x)), (0, fill)),
        of.noise / fit["unit"],
        (of.at - fit["center"]) / fit["length"],
    ]
    return Data(*(jnp.asarray(column, jnp.float32) for column in columns))


def stacked(problems: list[Problem], fits: list[dict[str, float]]) -> Data:
    size = max(len(of.x) for of in problems)
    return jax.tree.map(lambda *each: jnp.stack(each), *(map(partial(standardised, size=size), problems, fits)))


def evidence(now: Chains, of: list[Problem], fits: list[dict[str, float]]) -> list[tuple[float, float]]:
    """log p(y) of every problem in its own units, and the standard error."""
    found = []
    for log_weight, each, fit in zip(np.asarray(now.log_weight, np.float64), of, fits, strict=True):
        weight = np.exp(log_weight - log_weight.max())
        nats = log_weight.max() + np.log(weight.mean())
        units = len(each.x) * (math.log(fit["unit"]) + 0.5 * math.log(2 * math.pi))
        found.append((float(nats - units), float(weight.std(ddof=1) / math.sqrt(len(weight)) / weight.mean())))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder for hmc.jsonl and evidence.json")
    for name, default in (("chains", 4), ("anneal", 200), ("warmup", 100), ("keep", 600), ("seconds", 150)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--evidence-chains", type=int, default=64, help="0: only the 50 problems")
    chosen, clock = parser.parse_args(), time.perf_counter()
    jax.config.update("jax_default_matmul_precision", "highest")
    problems = [problem(number) for number in range(PROBLEMS)] + [waves_with_gap()]
    many = [constants(of) for of in problems]
    data, keys = stacked(problems, many), jax.random.split(jax.random.key(0), 4)

    def say(what: str) -> None:
        print(f"{time.perf_counter() - clock:6.1f} s  {what}", flush=True)

    if chosen.evidence_chains:
        alone = stacked(problems[-1:], many[-1:])
        now = annealed(started(alone, chosen.evidence_chains, keys[0]), alone, 4 * chosen.anneal, keys[1])
        nats, error = evidence(now, problems[-1:], many[-1:])[0]
        (chosen.out / "evidence.json").write_text(json.dumps({"evidence": nats, "error": error}))
        say(f"log evidence of the 40 points {nats:.2f} ({error:.2f})")
    now = annealed(started(data, chosen.chains, keys[0]), data, chosen.anneal, keys[1])
    found = evidence(now, problems, many)
    say(f"annealed, steps {np.quantile(now.eps, [0, 0.5, 1]).round(3)}")
    now = warmed(now, data, chosen.warmup, keys[2])
    say(f"warm, steps {np.quantile(now.eps, [0, 0.5, 1]).round(3)}")
    parts, part = [], 25
    for i in range(chosen.keep // part):
        now, kept = sampled(now, data, part, jax.random.fold_in(keys[3], i))
        parts.append([np.asarray(each) for each in kept])
        say(f"{(i + 1) * part} kept, acceptance {parts[-1][2].mean():.2f}, least {parts[-1][2].mean(0).min():.2f}")
        if time.perf_counter() - clock > chosen.seconds:
            break
    draws, value, chance = (np.concatenate(each) for each in zip(*parts, strict=True))
    with (chosen.out / "hmc.jsonl").open("w") as file:
        for p, (of, fit) in enumerate(zip(problems, many, strict=True)):
            mine = fit["offset"] + fit["unit"] * draws[:, p].astype(np.float64)
            flat = mine.reshape(-1, mine.shape[-1])
            agreement = r_hat(mine)
            row = {
                "problem": of.name, "chains": chosen.chains, "kept": len(mine), "moves": 2 * len(mine),
                "device": jax.devices()[0].device_kind, "jax": jax.__version__,
                "acceptance": float(chance[:, p].mean()), "step": float(now.eps[p]),
                "r_hat_max": float(agreement.max()), "r_hat_95": float(np.quantile(agreement, 0.95)),
                "r_hat_likelihood": float(r_hat(value[:, p])),
                "evidence": found[p][0], "evidence_error": found[p][1], "zones": scores(flat, of), "band": band(flat),
            }  # fmt: skip
            file.write(json.dumps(row) + "\n")
    say("scored")


if __name__ == "__main__":
    main()
