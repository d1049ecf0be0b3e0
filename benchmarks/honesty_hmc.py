"""Long HMC of the finite net of ``SDEBNN.mlp``, for all problems of ``honesty.py`` at once, and its evidence.

With x and y standardised by the learned center, length, offset and scale, the net of K Euler steps is

    w_k = Σ_j L_kj ξ_j,   ξ_j standard normal: the start (j = 0) and the Brownian increments of the steps before k
    f(x) = 1/K Σ_k (B_k φ_k(x) + b_k + G_k x / 4)
    φ_k(x) = √(2 / width) sin(A_k x + E_k z_k / √augment + f_k t_k + π a_k)

f is linear in the numbers ξ of B, b and G. Given all others, it is thus a Gaussian process with a kernel of finite
rank, and the data have a density in closed form. HMC samples the others under this density, and f is drawn given them.
This has the same posterior as HMC over all numbers, and mixes far better. ``check`` compares the net with a draw of the
package.

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

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from honesty_problems import Problem, band, problem, scores, waves_with_gap
from jax import lax
from jax.scipy.linalg import cho_solve, solve_triangular

import sdebnn
from sdebnn.integrate.paths import start_of
from sdebnn.waves import TREND

K, WIDTH, AUGMENT = 20, 32, 2
SHAPES = ((WIDTH, 1), (WIDTH, AUGMENT), (WIDTH,), (WIDTH,), (AUGMENT, WIDTH), (AUGMENT,))  # all weights but B, b and G
INNER = sum(math.prod(shape) for shape in SHAPES)
PRIOR = sdebnn.processes.OU(rate=0.02, sigma=0.2)
LEAPS, TARGET = 10, 0.8  # leapfrog steps of a move; acceptance to which step sizes adapt


def from_increments() -> np.ndarray:
    """L, "step number": the weights with which each step is taken, from ξ."""
    decay, law = 1 - PRIOR.rate / K, np.zeros((K, K))
    law[:, 0] = decay ** np.arange(K)
    for j in range(1, K):
        law[j:, j] = PRIOR.sigma / math.sqrt(K) * decay ** np.arange(K - j)
    return law.astype(np.float32)


L = from_increments()
MEAN = L.mean(0)  # f = Ψ ξ_B + MEAN ξ_b + TREND x MEAN ξ_G


class Data(NamedTuple):
    """A problem in the units of the net, filled up to equal size."""

    x: jax.Array
    y: jax.Array
    seen: jax.Array  # 0 for rows that fill up
    noise: jax.Array
    at: jax.Array


def features(xi: jax.Array, x: jax.Array) -> jax.Array:
    """Ψ, "point number": for each ξ of B, the function that it multiplies."""
    parts = jnp.split(jnp.asarray(L) @ xi, np.cumsum([math.prod(shape) for shape in SHAPES])[:-1], axis=1)
    arrays = tuple(part.reshape(K, *shape) for part, shape in zip(parts, SHAPES, strict=True))

    def step(z: jax.Array, now: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
        t, (inputs, states, depth, phase, inner, inner_bias) = now
        angle = x[:, None] * inputs[:, 0] + z @ states.T / math.sqrt(AUGMENT) + t * depth + math.pi * phase
        wave = math.sqrt(2 / WIDTH) * jnp.sin(angle)
        return z + (wave @ inner.T + inner_bias) / K, wave

    _, waves = lax.scan(step, jnp.zeros((x.shape[0], AUGMENT)), (jnp.arange(K) / K, arrays))
    return jnp.einsum("kj,knw->njw", jnp.asarray(L) / K, waves, precision="highest").reshape(x.shape[0], -1)


def line(a: jax.Array, b: jax.Array) -> jax.Array:
    """The kernel of b and G."""
    return float(MEAN @ MEAN) * (1 + TREND**2 * a[:, None] * b)


def covariance(psi: jax.Array, data: Data) -> jax.Array:
    """Of the standardised targets; rows that fill up are standard normal and independent."""
    kernel = (jnp.matmul(psi, psi.T, precision="highest") + line(data.x, data.x)) * data.seen[:, None] * data.seen
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
    """A draw of f given the data and the numbers of all weights but B, b and G, by Matheron's rule."""
    keys = jax.random.split(key, 3)
    psi, there = features(xi, data.x), features(xi, data.at)
    outer, (bias, trend) = jax.random.normal(keys[0], (K * WIDTH,)), jax.random.normal(keys[1], (2, K)) @ MEAN
    lack = data.y - psi @ outer - bias - TREND * trend * data.x - data.noise * jax.random.normal(keys[2], data.y.shape)
    alpha = cho_solve((jnp.linalg.cholesky(covariance(psi, data)), True), lack * data.seen) * data.seen
    gain = jnp.matmul(there, psi.T @ alpha, precision="highest") + line(data.at, data.x) @ alpha
    return there @ outer + bias + TREND * trend * data.at + gain


class Chains(NamedTuple):
    """``xi`` is "problem chain number weight"; the others have one number for each chain, ``eps`` for each problem."""

    xi: jax.Array
    value: jax.Array
    slope: jax.Array
    log_weight: jax.Array
    eps: jax.Array


def over_chains(of: Any) -> Any:
    return jax.vmap(jax.vmap(of, (0, None)), (0, 0))


values = over_chains(jax.value_and_grad(log_likelihood))


def started(data: Data, chains: int, key: jax.Array) -> Chains:
    xi = jax.random.normal(key, (data.x.shape[0], chains, K, INNER))
    value, slope = values(xi, data)
    return Chains(xi, value, slope, jnp.zeros_like(value), jnp.full(data.x.shape[0], 0.1))


def moved(now: Chains, data: Data, beta: jax.Array | float, key: jax.Array) -> tuple[Chains, jax.Array]:
    """One move of HMC for every chain, under the likelihood to the power beta, and how likely it was accepted."""
    keys = jax.random.split(key, 3)
    jitter = jnp.exp(0.2 * jax.random.normal(keys[2], now.value.shape))
    eps = (now.eps[:, None] * jitter)[..., None, None]
    momentum = jax.random.normal(keys[0], now.xi.shape)

    def leap(carry: tuple[jax.Array, ...], _: None) -> tuple[tuple[jax.Array, ...], None]:
        xi, momentum, _, slope = carry
        momentum = momentum + 0.5 * eps * (beta * slope - xi)
        xi = xi + eps * momentum
        value, slope = values(xi, data)
        return (xi, momentum + 0.5 * eps * (beta * slope - xi), value, slope), None

    (xi, end, value, slope), _ = lax.scan(leap, (now.xi, momentum, now.value, now.slope), None, length=LEAPS)
    energy = 0.5 * jnp.sum(now.xi**2 + momentum**2 - xi**2 - end**2, axis=(-2, -1))
    log_ratio = beta * (value - now.value) + energy
    chance = jnp.where(jnp.isfinite(log_ratio), jnp.exp(jnp.minimum(log_ratio, 0.0)), 0.0)
    yes = jax.random.uniform(keys[1], chance.shape) < chance
    wide = yes[..., None, None]
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


def standardised(of: Problem, fit: dict[str, Any], size: int) -> Data:
    fill = size - len(of.x)
    columns = [
        np.pad((of.x - fit["center"]) / fit["length"], (0, fill)),
        np.pad((of.y - fit["offset"]) / fit["scale"], (0, fill)),
        np.pad(np.ones(len(of.x)), (0, fill)),
        of.noise / fit["scale"],
        (of.at - fit["center"]) / fit["length"],
    ]
    return Data(*(jnp.asarray(column, jnp.float32) for column in columns))


def stacked(problems: list[Problem], fits: list[dict[str, Any]]) -> Data:
    size = max(len(of.x) for of in problems)
    return jax.tree.map(lambda *each: jnp.stack(each), *(map(partial(standardised, size=size), problems, fits)))


def evidence(now: Chains, of: list[Problem], fits: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """log p(y) of every problem in its own units, and the standard error."""
    found = []
    for log_weight, each, fit in zip(np.asarray(now.log_weight, np.float64), of, fits, strict=True):
        weight = np.exp(log_weight - log_weight.max())
        nats = log_weight.max() + np.log(weight.mean())
        units = len(each.x) * (math.log(fit["scale"]) + 0.5 * math.log(2 * math.pi))
        found.append((float(nats - units), float(weight.std(ddof=1) / math.sqrt(len(weight)) / weight.mean())))
    return found


def check() -> None:
    """The net of given numbers is a draw of the package's model before it sees data."""
    key, x = jax.random.key(3), jnp.linspace(-3.0, 9.0, 50)[:, None]
    model = sdebnn.SDEBNN.mlp(1, 1, length=2.5, scale=0.7, solver=sdebnn.FixedGrid(20), key=jax.random.key(0))
    offset = lambda model: (model.layers[1].field.center, model.layers[1].field.offset)  # noqa: E731
    model = sdebnn.prior_of(eqx.tree_at(offset, model, (jnp.array([1.5]), jnp.array([-4.0]))))
    block = model.layers[1]
    start = start_of(block, jax.random.fold_in(key, 1))
    dB = block.solver.noise(start.w0.shape[0], start.w0.dtype, key=start.path_key).dB
    xi = jnp.concatenate([start.w0[None], dB[:-1] * math.sqrt(K)])
    at = (x[:, 0] - 1.5) / 2.5
    outer = features(xi[:, :INNER], at) @ xi[:, INNER:-2].ravel()
    ours = -4.0 + 0.7 * (outer + MEAN @ xi[:, -2] + TREND * at * (MEAN @ xi[:, -1]))
    np.testing.assert_allclose(ours, model(x, key=key)[0][:, 0], rtol=1e-4, atol=1e-4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder with ours.jsonl")
    for name, default in (("chains", 4), ("anneal", 200), ("warmup", 100), ("keep", 600), ("seconds", 150)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--evidence-chains", type=int, default=64)
    chosen, clock = parser.parse_args(), time.perf_counter()
    jax.config.update("jax_default_matmul_precision", "highest")
    check()
    fits = [json.loads(line) for line in (chosen.out / "ours.jsonl").read_text().splitlines()]
    many = [fit for fit in fits if fit["problem"] != "waves" or fit["seed"] == 0]
    problems = [waves_with_gap() if fit["problem"] == "waves" else problem(int(fit["problem"])) for fit in many]
    data, keys = stacked(problems, many), jax.random.split(jax.random.key(0), 4)

    def say(what: str) -> None:
        print(f"{time.perf_counter() - clock:6.1f} s  {what}", flush=True)

    seeds = [fit for fit in fits if fit["problem"] == "waves"]
    same = [waves_with_gap()] * len(seeds)
    small = stacked(same, seeds)
    now = annealed(started(small, chosen.evidence_chains, keys[0]), small, 2 * chosen.anneal, keys[1])
    rows = [
        {"seed": fit["seed"], "elbo": fit["elbo"], "evidence": nats, "error": error}
        for fit, (nats, error) in zip(seeds, evidence(now, same, seeds), strict=True)
    ]
    (chosen.out / "evidence.json").write_text(json.dumps(rows, indent=1))
    say(f"evidence {rows[:3]}")
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
            mine = fit["offset"] + fit["scale"] * draws[:, p].astype(np.float64)
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
