"""Posteriors whose drift sees the hidden states: a prototype on 40 points with a gap.

    python experiments/seeing_drift.py FAMILY [--seed 0] [--sigma 0.5] [--rate 0.3] [--steps 1500] [--draws 4]

Model: w_0 ~ N(0, I), dw = -rate w dt + sigma dB, dh = f(t, h, w) dt, h_0 = (x, 0, 0), y = v . h_1 + b + noise,
K Euler steps; the readout (v, b) belongs to w_0 and does not move over depth.
Everything is charged: the bound has no free weights.

The drift is shifted by sigma u. Every family's u is a function of the present state, so
KL = KL(q(w_0) || N(0, I)) + 1/2 E sum |u|^2.

  paper      w_0 ~ N(m, diag s^2), u = MLP(t, w) + linear
  seeing     the MLP also sees h_t(Z), the hidden states of M inducing inputs
  guided     u = sd J' (S + J V J')^-1 (y~ - yhat):  yhat(Z) is a look-ahead with the weights frozen, J = d yhat / d w,
             V the variance that the remaining noise gives w, y~ and S learned pseudo-targets and pseudo-noise
  laplace    guided, and w_0 ~ N(m, (diag s^-2 + J(m)' S_0^-1 J(m))^-1)
  conjugate  laplace, and each step's noise has the matching conditional covariance (I + A' S^-1 A)^-1, A = J sd
  evidence   log p(y) of the same model by sequential Monte Carlo with HMC moves, and HMC's band

The rows in results/exploration/seeing-drift/NOTES.md: the defaults for the last three families of posteriors;
--steps 6000 --draws 8 --lr 0.01 for paper and seeing; --chains 512 --temperatures 3000 (on a GPU) for the evidence.
"""

import argparse
import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.linalg import cho_solve

STATE, WIDTH, GAIN, K, M, NOISE, KNOTS = 3, 16, 2.0, 20, 16, 0.1, 6
SHAPES = [(STATE + 1, WIDTH), (WIDTH,), (WIDTH, STATE), (STATE,), (STATE,), (1,)]
SCALES = [GAIN / np.sqrt(STATE + 1), 1.0, GAIN / np.sqrt(WIDTH), 1.0, 1 / np.sqrt(STATE), 1.0]
SIZES = [int(np.prod(s)) for s in SHAPES]
D, MOVING = sum(SIZES), sum(SIZES[:4])
MOVES = jnp.asarray(np.r_[np.ones(MOVING), np.zeros(D - MOVING)], jnp.float32)  # the readout has no noise over depth
LOOK, LOOK_START, LARGEST_SHIFT = 2, 5, 12.0  # steps of the look-ahead during depth and for w_0; bound on |u| of a step


def truth(x):
    return np.sin(3 * x) + 0.3 * x


def data(n=40):
    r = np.random.RandomState(0)
    x = np.r_[r.uniform(-2, -0.7, n // 2), r.uniform(0.7, 2, n // 2)][:, None].astype("f")
    return jnp.asarray(x), jnp.asarray((truth(x) + NOISE * r.randn(n, 1)).astype("f"))


def farthest_points(x, m):
    """Indices of m inputs, each as far as possible from those before it."""
    x = np.asarray(x)
    chosen = [int(np.argmin(x[:, 0]))]
    while len(chosen) < m:
        chosen.append(int(np.argmax(np.min(np.abs(x - x[chosen].T), axis=1))))
    return np.array(sorted(chosen))


# The model ---------------------------------------------------------------------------------------------------------


def parts(w):
    return [c * p.reshape(s) for p, s, c in zip(jnp.split(w, np.cumsum(SIZES)[:-1]), SHAPES, SCALES, strict=True)]


def field(t, h, w):
    A, a, B, b, _, _ = parts(w)
    return jax.nn.swish(h @ A[:-1] + t * A[-1] + a) @ B + b


def readout(h, w):
    *_, v, b = parts(w)
    return (h @ v)[..., None] + b


def augmented(x):
    return jnp.concatenate([x, jnp.zeros((x.shape[0], STATE - 1))], 1)


def log_likelihood(y, outputs):
    return jnp.sum(-0.5 * ((y - outputs) / NOISE) ** 2 - np.log(NOISE) - 0.5 * np.log(2 * np.pi))


# The guide ---------------------------------------------------------------------------------------------------------


# Own derivatives: differentiating through the factorisation itself takes more than twice as long.
@jax.custom_vjp
def cholesky_solve(S, b):
    return cho_solve((jnp.linalg.cholesky(S), True), b)


def _solve_forward(S, b):
    C = jnp.linalg.cholesky(S)
    e = cho_solve((C, True), b)
    return e, (C, e)


def _solve_backward(saved, g):
    C, e = saved
    b = cho_solve((C, True), g)
    return -(jnp.outer(b, e) if b.ndim == 1 else b @ e.T), b


cholesky_solve.defvjp(_solve_forward, _solve_backward)


@jax.custom_vjp
def log_determinant(S):
    return 2 * jnp.sum(jnp.log(jnp.diagonal(jnp.linalg.cholesky(S))))


def _log_determinant_forward(S):
    C = jnp.linalg.cholesky(S)
    return 2 * jnp.sum(jnp.log(jnp.diagonal(C))), C


def _log_determinant_backward(C, g):
    return (g * cho_solve((C, True), jnp.eye(C.shape[0])),)


log_determinant.defvjp(_log_determinant_forward, _log_determinant_backward)


def look_ahead(t, hz, w, steps):
    """yhat(Z), "M", and J = d yhat / d w, "M D", with the weights frozen from depth t on."""
    dt = (1 - t) / steps

    def one(h, w):
        for i in range(steps):
            h = h + dt * field(t + (i + 0.5) * dt, h[None], w)[0]
        return readout(h[None], w)[0, 0]

    return jax.vmap(jax.value_and_grad(one, argnums=1), (0, None))(hz, w)


def conditioned_noise(A, s2, B, key):
    """A draw of N(0, C), C = (I + A' S^-1 A)^-1 and S = diag s2 + BB', by Matheron's rule.

    Also log det C, diag C, and the log density of the draw without its 2 pi.
    """
    k = jax.random.split(key, 3)
    n = jax.random.normal(k[0], (D,))
    S = jnp.diag(s2) + B @ B.T
    T = S + A @ A.T
    observed = A @ n + jnp.sqrt(s2) * jax.random.normal(k[1], (M,)) + B @ jax.random.normal(k[2], (D,))
    E = cholesky_solve(T, jnp.concatenate([A, observed[:, None]], 1))
    draw = n - A.T @ E[:, -1]
    log_det = log_determinant(S) - log_determinant(T)
    seen = A @ draw
    log_q = -0.5 * (draw @ draw + seen @ cholesky_solve(S, seen) + log_det)
    return draw, log_det, 1 - jnp.sum(A * E[:, :-1], 0), log_q


def at_knots(values, t):
    q = t * (KNOTS - 1)
    i = jnp.clip(jnp.floor(q), 0, KNOTS - 2).astype(int)
    return (1 - (q - i)) * values[i] + (q - i) * values[i + 1]


# The families ------------------------------------------------------------------------------------------------------


def initial(family, key, y_inducing):
    k = jax.random.split(key, 3)
    p = {"m": jax.random.normal(k[0], (D,)), "log_s": jnp.full(D, np.log(0.2)), "linear": jnp.zeros((KNOTS, 2, D))}
    if family in ("paper", "seeing"):
        i, w = D + 2 + (M * STATE if family == "seeing" else 0), 64
        p["net"] = [
            (jax.random.normal(k[1], (i, w)) / np.sqrt(i), jnp.zeros(w)),
            (jax.random.normal(k[2], (w, w)) / np.sqrt(w), jnp.zeros(w)),
            (jnp.zeros((w, D)), jnp.zeros(D)),
        ]
    else:
        p["guide"] = {
            "targets": y_inducing[:, 0],
            "log_noise": jnp.zeros((KNOTS, M)),
            "log_future": jnp.zeros(KNOTS),
            "gain": jnp.zeros(KNOTS),
        }
    if family in ("laplace", "conjugate"):
        p["start"] = {"log_noise": jnp.zeros(M), "log_future": jnp.zeros(())}
    return p


def step_size(path):
    """Multiples of the learning rate: nets learn slower, pseudo-noise faster."""
    names = [getattr(e, "key", None) for e in path]
    return 0.3 if "net" in names else 3.0 if names[-1] in ("log_noise", "log_future") and "guide" in names else 1.0


def start(p, key, hz, sigma):
    """A draw of w_0, the closed-form KL of its law, and the draw's log density ratio."""
    s = jnp.exp(p["log_s"])
    if "start" not in p:
        n = jax.random.normal(key, (D,))
        log_det, diagonal, log_q = 0.0, jnp.ones(D), -0.5 * n @ n
    else:
        _, J = look_ahead(0.0, hz, p["m"], LOOK_START)
        future = jnp.exp(0.5 * p["start"]["log_future"]) * sigma / np.sqrt(3) * J * MOVES
        n, log_det, diagonal, log_q = conditioned_noise(
            J * s, NOISE**2 * jnp.exp(p["start"]["log_noise"]) + 1e-5, future, key
        )
    w = p["m"] + s * n
    kl = 0.5 * (jnp.sum(s**2 * diagonal + p["m"] ** 2 - 1 - 2 * p["log_s"]) - log_det)
    return w, kl, log_q - jnp.sum(p["log_s"]) + 0.5 * w @ w


def draw(family, p, key, x, Z, sigma, rate):
    """Outputs at x, the KL of the start, the KL of the path, and the exact log density ratio of the draw."""
    k_start, k_path = jax.random.split(key)
    dt, hz = 1 / K, augmented(Z)
    w, kl_start, ratio = start(p, k_start, hz, sigma)
    sd = sigma * np.sqrt(dt) * MOVES

    def step(carry, inputs):
        w, h, hz, kl, ratio = carry
        k, key = inputs
        t, progress = (k + 1) * dt, k / (K - 2)
        # w_k moves the hidden states first: the shift may see h_{k+1}(Z), and its noise acts from there on.
        h, hz, w = h + dt * field(k * dt, h, w), hz + dt * field(k * dt, hz, w), w - rate * dt * MOVES * w
        a, b = at_knots(p["linear"], progress)
        u, covariance = (a * w + b) * np.sqrt(dt), None
        if "net" in p:
            z = jnp.concatenate([w, jnp.array([progress, progress**2])] + ([hz.ravel()] if family == "seeing" else []))
            for weight, bias in p["net"][:-1]:
                z = jnp.tanh(z @ weight + bias)
            u = u + (z @ p["net"][-1][0] + p["net"][-1][1]) * np.sqrt(dt)
        else:
            g = p["guide"]
            yhat, J = look_ahead(t, hz, w, LOOK)
            s2 = NOISE**2 * jnp.exp(at_knots(g["log_noise"], progress)) + 1e-5
            # With J proportional to the remaining depth, noise still to come has variance sigma^2 (1 - t) / 3 J J'.
            B = jnp.exp(0.5 * at_knots(g["log_future"], progress)) * sigma * jnp.sqrt((1 - t) / 3) * J * MOVES
            A = J * sd
            shift = (
                (1 + at_knots(g["gain"], progress))
                * A.T
                @ cholesky_solve(jnp.diag(s2) + A @ A.T + B @ B.T, g["targets"] - yhat)
            )
            u = u + shift / jnp.sqrt(1 + shift @ shift / LARGEST_SHIFT**2)
            covariance = (A, s2, B)
        u = u * MOVES
        if family == "conjugate":
            n, log_det, diagonal, log_q = conditioned_noise(*covariance, key)
            # Entries of n for the readout are standard normal, move nothing, and cancel in both KL and ratio.
            kl = kl + 0.5 * (u @ u + jnp.sum(diagonal - 1) - log_det)
            ratio = ratio + log_q + 0.5 * (n + u) @ (n + u)
        else:
            n = jax.random.normal(key, (D,)) * MOVES
            kl, ratio = kl + 0.5 * u @ u, ratio + 0.5 * u @ u + u @ n
        return (w + sd * (n + u), h, hz, kl, ratio), None

    carry = (w, augmented(x), hz, 0.0, ratio)
    (w, h, hz, kl_path, ratio), _ = jax.lax.scan(step, carry, (jnp.arange(K - 1.0), jax.random.split(k_path, K - 1)))
    h = h + dt * field((K - 1) * dt, h, w)  # the last increment would move nothing, so there is none
    return readout(h, w), kl_start, kl_path, ratio


def trained(family, seed, sigma, rate, steps, draws, learning_rate, x, y):
    chosen = farthest_points(x, M)
    Z, key = x[chosen], jax.random.key(seed)
    p = initial(family, key, y[chosen])
    scale = jax.tree_util.tree_map_with_path(lambda path, _: step_size(path), p)
    adam = optax.chain(optax.clip_by_global_norm(100.0), optax.scale_by_adam(b2=0.99))

    def loss(p, key, beta):
        out, kl_start, kl_path, _ = jax.vmap(lambda k: draw(family, p, k, x, Z, sigma, rate))(
            jax.random.split(key, draws)
        )
        return -jnp.mean(jax.vmap(lambda o: log_likelihood(y, o))(out) - beta * (kl_start + kl_path))

    def update(carry, i):
        p, state = carry
        low, share = (0.0, 0.4) if "net" in p else (0.2, 0.3)  # the nets collapse without a slower warm-up
        beta = jnp.minimum(1.0, low + (1 - low) * (i + 1) / (share * steps))
        g = jax.grad(loss)(p, jax.random.fold_in(key, i), beta)
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(v)) for v in jax.tree.leaves(g)]))
        d, state = adam.update(jax.tree.map(lambda v: jnp.where(finite, v, 0.0), g), state, p)
        rate_now = learning_rate * 0.5 * (1 + jnp.cos(np.pi * i / steps)) * jnp.minimum(1.0, (i + 1) / 50)
        return (jax.tree.map(lambda v, d, c: v - rate_now * c * d, p, d, scale), state), None

    (p, _), _ = jax.jit(lambda p: jax.lax.scan(update, (p, adam.init(p)), jnp.arange(steps)))(p)
    return p, Z


# The evidence ------------------------------------------------------------------------------------------------------


def outputs_of(xi, x, sigma, rate):
    """The net of standard normal numbers xi: first w_0, then the K - 1 increments."""
    v, noises = xi[MOVING:D], jnp.concatenate([xi[D:].reshape(K - 1, MOVING), jnp.zeros((1, MOVING))])

    def step(carry, inputs):
        w, h = carry
        k, n = inputs
        h = h + field(k / K, h, jnp.concatenate([w, v])) / K
        return (w - rate / K * w + sigma / np.sqrt(K) * n, h), None

    (w, h), _ = jax.lax.scan(step, (xi[:MOVING], augmented(x)), (jnp.arange(float(K)), noises))
    return readout(h, jnp.concatenate([w, v]))


def evidence(key, x, y, sigma, rate, chains, temperatures, leaps, blocks=8):
    """log p(y) by `blocks` independent runs of sequential Monte Carlo, and their final states."""
    value = jax.vmap(jax.value_and_grad(lambda xi: log_likelihood(y, outputs_of(xi, x, sigma, rate))))
    per = chains // blocks

    def hmc(key, xi, lik, g, beta, eps):
        k = jax.random.split(key, 3)
        m0, e = jax.random.normal(k[0], xi.shape), eps * jnp.exp(0.2 * jax.random.normal(k[2], (chains, 1)))

        def leap(carry, _):
            q, m, lik, g = carry
            m = m + 0.5 * e * (beta * g - q)
            q = q + e * m
            lik, g = value(q)
            return (q, m + 0.5 * e * (beta * g - q), lik, g), None

        (q, m, lik1, g1), _ = jax.lax.scan(leap, (xi, m0, lik, g), None, length=leaps)
        log_a = beta * (lik1 - lik) + 0.5 * jnp.sum(xi**2 + m0**2 - q**2 - m**2, 1)
        log_a = jnp.where(jnp.isfinite(log_a), log_a, -jnp.inf)
        yes = jnp.log(jax.random.uniform(k[1], (chains,))) < log_a
        return (
            jnp.where(yes[:, None], q, xi),
            jnp.where(yes, lik1, lik),
            jnp.where(yes[:, None], g1, g),
            jnp.mean(jnp.minimum(1.0, jnp.exp(log_a))),
        )

    def temperature(carry, inputs):
        xi, lik, g, lw, lz, eps = carry
        b0, b1, key = inputs
        k0, k1 = jax.random.split(key)
        L = (lw + (b1 - b0) * lik).reshape(blocks, per)
        top = L.max(1, keepdims=True)
        weight = jnp.exp(L - top)
        again = weight.sum(1) ** 2 / (weight**2).sum(1) < 0.5 * per
        places = (jnp.arange(per) + jax.random.uniform(k0, (blocks, 1))) / per
        taken = jax.vmap(lambda c, u: jnp.clip(jnp.searchsorted(c, u), 0, per - 1))(
            jnp.cumsum(weight, 1) / weight.sum(1, keepdims=True), places
        )
        source = (jnp.where(again[:, None], taken, jnp.arange(per)) + per * jnp.arange(blocks)[:, None]).ravel()
        lz = jnp.where(again, lz + top[:, 0] + jnp.log(weight.mean(1)), lz)
        xi, lik, g, a = hmc(k1, xi[source], lik[source], g[source], b1, eps)
        return (
            xi,
            lik,
            g,
            jnp.where(again[:, None], 0.0, L).ravel(),
            lz,
            jnp.clip(eps * jnp.exp(0.1 * (a - 0.75)), 1e-3, 0.5),
        ), None

    xi = jax.random.normal(key, (chains, D + (K - 1) * MOVING))
    betas = jnp.concatenate([jnp.zeros(1), jnp.exp(jnp.linspace(np.log(1e-4), 0, temperatures))])
    carry = (xi, *value(xi), jnp.zeros(chains), jnp.zeros(blocks), jnp.float32(0.2))
    (xi, _, _, lw, lz, _), _ = jax.lax.scan(
        temperature, carry, (betas[:-1], betas[1:], jax.random.split(jax.random.fold_in(key, 1), temperatures))
    )
    return lz + jax.scipy.special.logsumexp(lw.reshape(blocks, per), axis=1) - np.log(per), xi


# Rows --------------------------------------------------------------------------------------------------------------

GRID = jnp.linspace(-4, 4, 161)[:, None]


def zones(functions):
    """Mean sd of the functions, and the share of the truth inside their 95 % band, by zone."""
    g = np.asarray(GRID)[:, 0]
    low, high = np.quantile(functions, [0.025, 0.975], 0)
    covered, sd, far = (low <= truth(g)) & (truth(g) <= high), functions.std(0), np.abs(g)
    where = {"data": (far >= 0.7) & (far <= 2), "gap": far < 0.6, "2-3": (far > 2.05) & (far <= 3), "3-4": far > 3}
    return {name: [round(float(sd[z].mean()), 3), round(float(covered[z].mean()), 2)] for name, z in where.items()}


def main():
    args = argparse.ArgumentParser()
    args.add_argument("family", choices=["paper", "seeing", "guided", "laplace", "conjugate", "evidence"])
    for name, kind, default in [
        ("seed", int, 0),
        ("sigma", float, 0.5),
        ("rate", float, 0.3),
        ("steps", int, 1500),
        ("draws", int, 4),
        ("lr", float, 0.02),
        ("chains", int, 256),
        ("temperatures", int, 1200),
        ("leaps", int, 8),
    ]:
        args.add_argument(f"--{name}", type=kind, default=default)
    a = args.parse_args()
    (x, y), began = data(), time.time()
    row = {"family": a.family, "sigma": a.sigma, "rate": a.rate, "seed": a.seed}
    if a.family == "evidence":
        lz, xi = jax.jit(lambda k: evidence(k, x, y, a.sigma, a.rate, a.chains, a.temperatures, a.leaps))(
            jax.random.key(a.seed)
        )
        z = np.exp(np.asarray(lz) - float(lz.max()))
        row |= {
            "log evidence": float(lz.max()) + float(np.log(z.mean())),
            "se": float(z.std(ddof=1) / np.sqrt(len(z)) / z.mean()),
            "blocks": np.asarray(lz).round(2).tolist(),
        }
        functions = np.asarray(jax.jit(jax.vmap(lambda q: outputs_of(q, GRID, a.sigma, a.rate)[:, 0]))(xi))
    else:
        p, Z = jax.block_until_ready(trained(a.family, a.seed, a.sigma, a.rate, a.steps, a.draws, a.lr, x, y))
        row["seconds"] = round(time.time() - began, 1)
        one = lambda k: draw(a.family, p, k, jnp.concatenate([x, GRID]), Z, a.sigma, a.rate)  # noqa: E731
        out, kl_start, kl_path, ratio = jax.jit(lambda ks: jax.lax.map(one, ks, batch_size=40))(
            jax.random.split(jax.random.key(99), 400)
        )
        lik = np.asarray(jax.vmap(lambda o: log_likelihood(y, o))(out[:, : len(x)]))
        log_w = lik - np.asarray(ratio)
        row |= {
            "elbo": float(log_w.mean()),
            "se": float(log_w.std() / 20),
            "log likelihood": float(lik.mean()),
            "KL of w_0": float(kl_start.mean()),
            "KL of the path": float(kl_path.mean()),
            "importance-weighted, 400": float(log_w.max() + np.log(np.exp(log_w - log_w.max()).mean())),
        }
        functions = np.asarray(out[:, len(x) :, 0])
    print(json.dumps({k: round(v, 2) if isinstance(v, float) else v for k, v in (row | zones(functions)).items()}))


if __name__ == "__main__":
    main()
