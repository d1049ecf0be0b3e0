"""w_0 inferred: what it costs and what it gives. Image nets whose weights follow an SDE over depth. JAX and numpy only.

    python explore_inferred.py jobs.json --data DIR --out DIR       run the jobs of a file in order
    python explore_inferred.py --queue DIR --data DIR --out DIR     serve jobs dropped into a folder (a file named stop ends it)

A job: {"name", "arch": {...}, "hp": {...}, "epochs", "seconds" or "chunks", "seed", "full": false, "test": false}.
``arch`` is compiled in; ``hp`` are run-time numbers, so jobs that share an architecture share one program.

arch w0 "point": w_0 free, drift net, one draw a step (explore_images.py as it was; noise 0 and lr_drift 0: its deterministic twin).
arch w0 "normal": w_0 ~ N(mu, s^2), mean field, its KL in full; drift a(t) w + b(t), two knots; flipout: with signs of its
own for each example, every example sees a draw of its own (the law of each is exact, the process being Gaussian and
symmetric about its mean).
hp prior, the prior N(0, tau^2) of w_0: 0 tau = 1; tau^2 = mean of mu^2 + s^2 (type-II maximum likelihood, in closed form)
over 1 an array, 2 an output channel, 3 the 3 x 3 taps of a pair of channels, 4 a weight; 5 tau = a x in x out x tap, learned.
hp inf: blocks x 2, 1 where conv1 / conv2's w_0 is inferred, 0 where it is a point.
"""

import argparse
import glob
import gzip
import json
import math
import os
import sys
import threading
import time
import traceback

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

BF16, F32 = jnp.bfloat16, jnp.float32

ARCH = dict(  # stage: channels, blocks, Euler steps; every stage but the first begins with a stride-2 convolution
    data="cifar10",
    stages=[[64, 1, 8], [128, 1, 8], [256, 1, 8]],
    stem=64,
    stem_stride=1,
    w0="point",
    batch=512,
    chunk=88,
    state="f32",
    norm=True,
    drift=64,
    eval_batch=1000,
    fold=False,
    flipout=True,
)
HP = dict(
    sigma=0.1,
    rate=1.0,
    gain1=1.41421356,
    gain2=1.0,
    init1=1.0,
    init2=1.0,
    lr=3e-3,
    lr_drift=0.1,
    wd=0.05,
    wd_w0=0.05,
    b2=0.99,
    warmup=200.0,
    final=0.0,
    ema=0.998,
    clip=1.0,
    kl=1.0,
    kl_warm=0.0,
    kl_from=0.0,
    noise=1.0,
    prior=1.0,
    inf=1.0,
    lr_mu=1.0,
    lr_prior=0.5,
    init_std=0.05,
    lr_std=1.0,
    bscale=0.1,
    lr_det=0.1,
    uclip=1.0,
    shift=4.0,
    flip=0.5,
    cutout=11.0,
    jitter=0.0,
    smooth=0.0,
)


# ---------------------------------------------------------------- data


def load(root, name):
    if name == "cifar10":
        rows = [
            np.fromfile(f"{root}/cifar10/cifar-10-batches-bin/{f}.bin", np.uint8).reshape(-1, 3073)
            for f in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
        ]
        rows = np.concatenate(rows)
        x, y = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), rows[:, 0]
        n = 50000
    elif name == "mnist":

        def idx(f, skip, shape):
            return np.frombuffer(gzip.open(f"{root}/mnist/{f}").read(), np.uint8, offset=skip).reshape(shape)

        x = np.concatenate([idx(f"{p}-images-idx3-ubyte.gz", 16, (-1, 28, 28, 1)) for p in ("train", "t10k")])
        y = np.concatenate([idx(f"{p}-labels-idx1-ubyte.gz", 8, (-1,)) for p in ("train", "t10k")])
        n = 60000
    else:  # random pixels, for timing and for trying the script out
        rng = np.random.default_rng(0)
        y = rng.integers(0, 10, 7000).astype(np.uint8)
        x = (rng.integers(0, 128, (7000, 32, 32, 3)) + 8 * y[:, None, None, None]).astype(np.uint8)
        n = 6000
    order = np.random.default_rng(0).permutation(n)
    held = 5000 if n > 6000 else 1000
    x = np.ascontiguousarray(x)
    mean, std = x[:n].mean((0, 1, 2)) / 255, x[:n].std((0, 1, 2)) / 255
    return dict(
        x=x[:n],
        y=y[:n].astype(np.int32),
        tx=x[n:],
        ty=y[n:].astype(np.int32),
        train=order[:-held],
        val=order[-held:],
        mean=mean.astype(np.float32),
        std=std.astype(np.float32),
    )


SHAPES = dict(cifar10=(50000, 5000, (32, 32, 3)), mnist=(60000, 5000, (28, 28, 1)), fake=(6000, 1000, (32, 32, 3)))


def augment(images, idx, mean, std, hp, key):
    """Shifted, mirrored, cut out: one gather from the bytes on the device."""
    H = images.shape[1]
    n = idx.shape[0]
    k = jax.random.split(key, 6)
    shift = jax.random.uniform(k[0], (2, n, 1), minval=-1.0, maxval=1.0) * (hp["shift"] + 0.49)
    at = jnp.arange(H)[None] + jnp.round(shift).astype(int)
    at = (H - 1) - jnp.abs((H - 1) - jnp.abs(at))
    flip = jax.random.uniform(k[1], (n, 1)) < hp["flip"]
    rows, cols = at[0], jnp.where(flip, H - 1 - at[1], at[1])
    x = images[idx[:, None, None], rows[:, :, None], cols[:, None, :]]
    x = (x.astype(F32) / 255 - mean) / std
    jit = jax.random.uniform(k[2], (2, n, 1, 1, 1), minval=-1.0, maxval=1.0) * hp["jitter"]
    x = x * (1 + jit[0]) + jit[1]
    centre = jax.random.randint(k[3], (2, n, 1), 0, H)
    near = jnp.abs(jnp.arange(H)[None] - centre) <= (hp["cutout"] - 1) / 2
    return jnp.where((near[0][:, :, None] & near[1][:, None, :])[..., None], 0.0, x)


def pad_channels(x):
    return jnp.pad(x, ((0, 0),) * 3 + ((0, 8 - x.shape[-1]),))


# ---------------------------------------------------------------- the net


def conv(x, k, stride=1):
    return lax.conv_general_dilated(x, k, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def group_norm(p, x, groups=8):
    shape = x.shape
    x = x.astype(F32).reshape(shape[0], -1, groups, shape[-1] // groups)
    mean = x.mean((1, 3), keepdims=True)
    var = jnp.square(x).mean((1, 3), keepdims=True) - jnp.square(mean)
    x = ((x - mean) * lax.rsqrt(jnp.maximum(var, 0) + 1e-5)).reshape(shape)
    return x * p["scale"] + p["shift"]


def dims(C):
    return [(3, 3, C, C), (C,), (3, 3, C, C), (C,)]


def init(arch, hp, key):
    def normal(*shape):
        nonlocal key
        key, k = jax.random.split(key)
        return jax.random.normal(k, shape, F32)

    def norm(C):
        return dict(scale=jnp.ones(C), shift=jnp.zeros(C))

    C0 = arch["stem"]
    C1 = arch["stages"][0][0]
    p = dict(stem1=dict(k=normal(3, 3, 8, C0)), stem2=dict(k=normal(3, 3, C0, C1)), stem_norm=norm(C0))
    blocks, C = [], C1
    for s, (width, n, _) in enumerate(arch["stages"]):
        if s:
            p[f"down{s}"] = dict(k=normal(3, 3, C, width), norm=norm(C))
        C = width
        for _ in range(n):
            sizes = [math.prod(d) for d in dims(C)]
            D = sum(sizes)
            w0 = jnp.concatenate(
                [normal(sizes[0]) * hp["init1"], jnp.zeros(C), normal(sizes[2]) * hp["init2"], jnp.zeros(C)]
            )
            M = arch["drift"]
            if arch["w0"] == "normal":
                prior = dict(a=jnp.zeros(2), i=jnp.zeros((2, C)), o=jnp.zeros((2, C)), t=jnp.zeros((2, 3, 3)))
                b = dict(
                    mu=w0,
                    log_s=jnp.full(D, 1.0) * jnp.log(hp["init_std"]),
                    prior=prior,
                    drift=dict(a0=jnp.zeros(D), a1=jnp.zeros(D), b0=jnp.zeros(D), b1=jnp.zeros(D)),
                )
                blocks.append(b)
                continue
            b = dict(
                w0=w0,
                drift=dict(  # ConcatSquash layers D -> 1 -> M -> 1 -> D, the last one zero
                    w1=normal(D) / math.sqrt(D),
                    g1=normal(1),
                    w2=normal(M),
                    b2=jnp.zeros(M),
                    g2=normal(M),
                    w3=normal(M) / math.sqrt(M),
                    g3=normal(1),
                    w4=jnp.zeros(D),
                    b4=jnp.zeros(D),
                    g4=normal(D) * 0 + 1.0,
                    h4=jnp.zeros(D),
                    s4=jnp.zeros(D),
                ),
            )
            blocks.append(b)
    p["blocks"] = blocks
    p["head"] = dict(k=normal(C, 10), b=jnp.zeros(10), norm=norm(C))
    return p


def drift(d, t, w):
    """NN(t, w): from w to w through widths (1, M, 1); zero at the start."""
    x = jnp.tanh(jnp.sum(d["w1"] * w) * jax.nn.sigmoid(d["g1"] * t))
    x = jnp.tanh((d["w2"] * x + d["b2"]) * jax.nn.sigmoid(d["g2"] * t))
    x = jnp.tanh(jnp.sum(d["w3"] * x) * jax.nn.sigmoid(d["g3"] * t))
    return (d["w4"] * x + d["b4"]) * jax.nn.sigmoid(d["g4"] * t + d["h4"]) + d["s4"] * t


def split(C, w):
    """A vector of weights as kernel, bias, kernel, bias."""
    sizes = np.cumsum([math.prod(d) for d in dims(C)])[:-1]
    return [a.reshape(d) for a, d in zip(jnp.split(w, sizes), dims(C))]


def inferred(arch, hp, i):
    """1 where w_0 is inferred, for the four arrays of block i."""
    m = jnp.broadcast_to(hp["inf"], (sum(n for _, n, _ in arch["stages"]), 2))[i]
    return [m[0], m[0], m[1], m[1]]


def kl_arrays(arch, hp, p):
    """KL(q(w_0) | p(w_0)) in nats, block x (kernel 1, bias 1, kernel 2, bias 2)."""

    def parts(f):
        rows, i = [], 0
        for C, n, _ in arch["stages"]:
            for _ in range(n):
                b = p["blocks"][i]
                pairs = zip(split(C, b["mu"]), split(C, b["log_s"]), inferred(arch, hp, i))
                rows.append(jnp.stack([f(j, b["prior"], m, ls) * on for j, (m, ls, on) in enumerate(pairs)]))
                i += 1
        return jnp.stack(rows)

    def fixed(j, r, m, ls):
        return 0.5 * jnp.sum(jnp.expm1(2 * ls) - 2 * ls + m**2)

    def grouped(axes):
        def f(j, r, m, ls):
            second = m**2 + jnp.exp(2 * ls)
            if axes is None:
                return jnp.sum(0.5 * jnp.log(second) - ls)
            at = axes if m.ndim == 4 else (0,)
            return jnp.sum(0.5 * jnp.log(second.mean(at, keepdims=True)) - ls)

        return f

    def rank1(j, r, m, ls):
        if m.ndim == 1:
            return grouped((0, 1, 2, 3))(j, r, m, ls)
        k = j // 2
        lt = r["a"][k] + r["t"][k][:, :, None, None] + r["i"][k][:, None] + r["o"][k]
        return jnp.sum(lt - ls + 0.5 * (m**2 + jnp.exp(2 * ls)) * jnp.exp(-2 * lt) - 0.5)

    kinds = [fixed, grouped((0, 1, 2, 3)), grouped((0, 1, 2)), grouped((0, 1)), grouped(None), rank1]
    return lax.switch(hp["prior"].astype(int), [lambda f=f: parts(f) for f in kinds])


def draw_normal(arch, hp, p, key, flip):
    """A draw for w_0 inferred. flip: every step's (mean, deviation) kernels; else their sums."""
    out, kl_path, i = [], 0.0, 0
    for C, n, steps in arch["stages"]:
        for _ in range(n):
            b, key_b = p["blocks"][i], jax.random.fold_in(key, i)
            sizes = [math.prod(d) for d in dims(C)]
            on = jnp.concatenate([jnp.full(m, 1.0) * o for m, o in zip(sizes, inferred(arch, hp, i))])
            i += 1
            m = b["mu"]
            e = on * jnp.exp(b["log_s"]) * jax.random.normal(jax.random.fold_in(key_b, 1), m.shape)
            dB = hp["noise"] * jax.random.normal(key_b, (steps, m.shape[0])) / math.sqrt(steps)
            d = b["drift"]
            scales = [hp["gain1"] / math.sqrt(9 * C), hp["bscale"], hp["gain2"] / math.sqrt(9 * C), hp["bscale"]]

            def kernels(w):
                return [(a * s).astype(BF16) for a, s in zip(split(C, w), scales)]

            path = []
            for s in range(steps):
                t = s / steps
                path.append((kernels(m), kernels(e)) if flip else kernels(m + e))
                a, c = (1 - t) * d["a0"] + t * d["a1"], (1 - t) * d["b0"] + t * d["b1"]
                kl_path += 0.5 * jnp.sum(((a * (m + e) + c) / hp["sigma"]) ** 2) / steps
                m = m + (a * m + c - hp["rate"] * m) / steps
                e = e + (a * e - hp["rate"] * e) / steps + hp["sigma"] * dB[s]
            out.append(path)
    return out, kl_path, jnp.sum(kl_arrays(arch, hp, p))


def draw(arch, hp, p, key):
    """One posterior draw: every step's kernels of every block, the path KL and the KL of w0, in nats."""
    if arch["w0"] == "normal":
        return draw_normal(arch, hp, p, key, False)
    out, kl_path, kl_w0, i = [], 0.0, 0.0, 0
    for C, n, steps in arch["stages"]:
        for _ in range(n):
            b, key_b = p["blocks"][i], jax.random.fold_in(key, i)
            i += 1
            w = b["w0"]
            dB = hp["noise"] * jax.random.normal(key_b, (steps, w.shape[0])) / math.sqrt(steps)
            path = []
            for s in range(steps):
                path.append(w)
                c = drift(b["drift"], s / steps, w)
                kl_path += 0.5 * jnp.sum((c / hp["sigma"]) ** 2) / steps
                w = w + (c - hp["rate"] * w) / steps + hp["sigma"] * dB[s]
            scales = [hp["gain1"] / math.sqrt(9 * C), hp["bscale"], hp["gain2"] / math.sqrt(9 * C), hp["bscale"]]
            kernels = []
            for w in path:
                start, ks = 0, []
                for d, scale in zip(dims(C), scales):
                    m = math.prod(d)
                    ks.append((w[start : start + m] * scale).reshape(d).astype(BF16))
                    start += m
                kernels.append(ks)
            out.append(kernels)
    return out, kl_path, kl_w0


def apply(arch, p, kernels, x, key=None):
    """Logits of a batch under one draw; with a key, kernels are (mean, deviation) and each example has signs of its own."""
    ST = F32 if arch["state"] == "f32" else BF16
    C0 = arch["stem"]

    def det(q, fan, gain=1.41421356):
        return (q["k"] * (gain / math.sqrt(fan))).astype(BF16)

    h = conv(pad_channels(x).astype(BF16), det(p["stem1"], 27), arch["stem_stride"])
    h = jax.nn.gelu(group_norm(p["stem_norm"], h)).astype(BF16)
    h = conv(h, det(p["stem2"], 9 * C0)).astype(ST)
    i = 0
    for s, (C, n, steps) in enumerate(arch["stages"]):
        if s:
            q = p[f"down{s}"]
            h = jax.nn.gelu(group_norm(q["norm"], h)).astype(BF16)
            h = conv(h, det(q, 9 * h.shape[-1]), 2).astype(ST)
        for _ in range(n):
            if key is not None:
                z = jax.random.rademacher(jax.random.fold_in(key, i), (6, h.shape[0], 1, 1, C), BF16)
            for step in kernels[i]:
                if key is not None:
                    (k1, b1, k2, b2), (d1, e1, d2, e2) = step
                    a = h.astype(BF16)
                    a = jax.nn.gelu(conv(a, k1) + b1 + z[0] * conv(a * z[1], d1) + z[2] * e1)
                    a = conv(a, k2) + b2 + z[3] * conv(a * z[4], d2) + z[5] * e2
                    h = h + (a.astype(ST) * (1 / steps)).astype(ST)
                    continue
                k1, b1, k2, b2 = step
                a = jax.nn.gelu(conv(h.astype(BF16), k1) + b1)
                h = h + ((conv(a, k2) + b2).astype(ST) * (1 / steps)).astype(ST)
            i += 1
    q = p["head"]
    h = jax.nn.gelu(group_norm(q["norm"], h)).mean((1, 2))
    return (h @ q["k"]) / math.sqrt(h.shape[-1]) * 1.0 + q["b"]


def flops(arch, H):
    """Forward convolution FLOPs of one example."""
    H = -(-H // arch["stem_stride"])
    C1 = arch["stages"][0][0]
    total = 2 * 9 * H * H * (3 * arch["stem"] + arch["stem"] * C1)
    C = C1
    for s, (width, n, steps) in enumerate(arch["stages"]):
        if s:
            H = -(-H // 2)
            total += 2 * 9 * H * H * C * width
        C = width
        total += 2 * 9 * H * H * C * C * 2 * n * steps
    return total


# ---------------------------------------------------------------- training


def decayed(path):
    names = [getattr(q, "key", None) for q in path]
    return "w0" if names[-1] == "w0" else "wd" if names[-1] == "k" else None


def make(arch):
    def loss_fn(p, hp, x, y, key, beta):
        if arch["w0"] == "normal" and arch["flipout"]:
            kernels, kl_path, kl_w0 = draw_normal(arch, hp, p, key, True)
            logits = apply(arch, p, kernels, x, jax.random.fold_in(key, 99))
        else:
            kernels, kl_path, kl_w0 = draw(arch, hp, p, key)
            logits = apply(arch, p, kernels, x)
        lp = jax.nn.log_softmax(logits)
        ce = -jnp.mean(jnp.take_along_axis(lp, y[:, None], 1)) * (1 - hp["smooth"]) - hp["smooth"] * lp.mean()
        acc = jnp.mean(jnp.argmax(logits, -1) == y)
        return ce + beta * (kl_path + kl_w0) / hp["n"], (ce, acc, kl_path, kl_w0)

    def step(carry, idx, hp, images, labels, mean, std):
        p, m, v, ema, n, key = carry
        key, k1, k2 = jax.random.split(key, 3)
        x, y = augment(images, idx, mean, std, hp, k1), labels[idx]
        ramp = jnp.minimum(1.0, (n + 1) / (hp["kl_warm"] * hp["total"] + 1))  # geometric from kl_from, else linear
        beta = hp["kl"] * jnp.where(hp["kl_from"] > 0, jnp.maximum(hp["kl_from"], 1e-9) ** (1 - ramp), ramp)
        g, aux = jax.grad(loss_fn, has_aux=True)(p, hp, x, y, k2, beta)
        norm = jnp.sqrt(sum(jnp.sum(a * a) for a in jax.tree.leaves(g)))
        g = jax.tree.map(lambda a: a * jnp.minimum(1.0, hp["clip"] / (norm + 1e-9)), g)
        frac = jnp.clip((n - hp["warmup"]) / (hp["total"] - hp["warmup"]), 0, 1)
        rate = jnp.minimum(1.0, (n + 1) / hp["warmup"]) * (
            hp["final"] + (1 - hp["final"]) * 0.5 * (1 + jnp.cos(jnp.pi * frac))
        )
        lr = hp["lr"] * rate
        c1, c2 = 1 - 0.9 ** (n + 1), 1 - hp["b2"] ** (n + 1)
        decay = jnp.minimum(hp["ema"], (n + 1) / (n + 10))

        def one(path, p, m, v, g, e):
            names = [getattr(q, "key", None) for q in path]
            m, v = 0.9 * m + 0.1 * g, hp["b2"] * v + (1 - hp["b2"]) * g * g
            mult = (
                hp["lr_drift"]
                if "drift" in names
                else hp["lr_std"]
                if names[-1] == "log_s"
                else hp["lr_prior"]
                if "prior" in names
                else hp["lr_mu"]
                if names[-1] in ("mu", "w0")
                else hp["lr_det"]
                if names[-1] in ("scale", "shift", "b")
                else 1.0
            )
            d = (m / c1) / (jnp.sqrt(v / c2) + 1e-9)
            d = d / jnp.maximum(1.0, jnp.sqrt(jnp.mean(d * d)) / hp["uclip"])  # block RMS at most uclip
            kind = decayed(path)
            if kind:
                d = d + hp["wd_w0" if kind == "w0" else "wd"] * p
            p = p - lr * mult * d
            return p, m, v, decay * e + (1 - decay) * p

        out = jax.tree_util.tree_map_with_path(one, p, m, v, g, ema)
        p, m, v, ema = (
            jax.tree.map(lambda o, i=i: o[i], out, is_leaf=lambda o: isinstance(o, tuple)) for i in range(4)
        )
        return (p, m, v, ema, n + 1, key), jnp.stack([*aux, norm])

    def chunk(state, idx, hp, images, labels, mean, std):
        return lax.scan(lambda c, i: step(c, i, hp, images, labels, mean, std), state, idx)

    def evaluate(p, hp, images, keys, mean, std):
        def one(_, key):
            kernels, kl_path, kl_w0 = draw(arch, hp, p, key)
            f = lambda _, x: (None, jax.nn.softmax(apply(arch, p, kernels, (x.astype(F32) / 255 - mean) / std)))
            return None, (lax.scan(f, None, images)[1].reshape(-1, 10), kl_path, kl_w0)

        return lax.scan(one, None, keys)[1]

    def start(hp, key):
        p = init(arch, hp, key)
        zero = jax.tree.map(jnp.zeros_like, p)
        return (
            p,
            zero,
            jax.tree.map(jnp.zeros_like, p),
            jax.tree.map(jnp.array, p),
            jnp.zeros((), F32),
            jax.random.fold_in(key, 1),
        )

    return chunk, evaluate, start


def metrics(probs, y):
    """probs: draws x examples x classes. Means of probabilities over draws; 10 bins, confidence 1 in the last."""
    q = probs.astype(np.float64).mean(0)
    conf, hit = q.max(1), q.argmax(1) == y
    bins = np.minimum((conf * 10).astype(int), 9)
    ece = sum(abs(conf[bins == b].sum() - hit[bins == b].sum()) for b in range(10)) / len(y)
    single = np.mean([(d.argmax(1) == y).mean() for d in probs])
    return dict(
        acc=float(hit.mean()),
        nll=float(-np.log(q[np.arange(len(y)), y] + 1e-12).mean()),
        ece=float(ece),
        over=float(conf.mean() - hit.mean()),
        single=float(single),
    )


class Lab:
    def __init__(self, data, out):
        self.root, self.out, self.sets, self.programs, self.lock = data, out, {}, {}, threading.Lock()
        os.makedirs(out, exist_ok=True)
        self.log = open(f"{out}/log.txt", "a")
        self.t0 = time.time()

    def say(self, *words):
        line = f"{time.time() - self.t0:7.1f} " + " ".join(str(w) for w in words)
        print(line, flush=True)
        print(line, file=self.log, flush=True)

    def data(self, name):
        if name not in self.sets:
            while name != "fake" and not os.path.exists(f"{self.root}/{name}"):
                time.sleep(0.2)
            raw = load(self.root, name)
            dev = {k: jnp.asarray(raw[k]) for k in ("x", "y", "mean", "std")}
            self.sets[name] = raw, dev
        return self.sets[name]

    def program(self, arch):
        """Compiled: the training chunk, the evaluation, the initialisation."""
        key = json.dumps(arch, sort_keys=True)
        if key in self.programs:
            return self.programs[key]
        with self.lock:
            if key not in self.programs:
                self.programs[key] = self.build(arch)
        return self.programs[key]

    def build(self, arch):
        total, held, image = SHAPES[arch["data"]]
        chunk, evaluate, start = make(arch)
        hp = self.numbers(arch, HP, 1.0, 1.0)
        shape = jax.eval_shape(start, hp, jax.random.key(0))
        S = jax.ShapeDtypeStruct
        idx, x, y = S((arch["chunk"], arch["batch"]), jnp.int32), S((total, *image), jnp.uint8), S((total,), jnp.int32)
        moment, eb = S((image[2],), F32), arch["eval_batch"]
        keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 4))
        t = time.time()
        train = jax.jit(chunk, donate_argnums=0).lower(shape, idx, hp, x, y, moment, moment).compile()
        t1 = time.time() - t
        images = S((held // eb, eb, *image), jnp.uint8)
        test = jax.jit(evaluate).lower(shape[0], hp, images, keys, moment, moment).compile()
        start = jax.jit(start).lower(hp, jax.random.key(0)).compile()
        kl = (
            jax.jit(lambda hp, p: kl_arrays(arch, hp, p)).lower(hp, shape[0]).compile()
            if arch["w0"] == "normal"
            else None
        )
        self.say("compiled", arch["data"], arch["w0"], arch["stages"], f"train {t1:.1f} s, all {time.time() - t:.1f} s")
        return {"train": train, "eval": test, "start": start, "kl": kl, "compile_s": time.time() - t}

    def numbers(self, arch, hp, n, total):
        blocks = sum(b for _, b, _ in arch["stages"])
        out = {k: jnp.asarray(v, F32) for k, v in {**hp, "n": n, "total": total}.items()}
        out["inf"] = jnp.broadcast_to(out["inf"], (blocks, 2))
        return out

    def anatomy(self, prog, arch, hp, p):
        """Where the KL of w_0 sits."""
        if arch["w0"] != "normal":
            return None
        kls, rows, i = np.asarray(prog["kl"](hp, p)), [], 0
        for C, n, _ in arch["stages"]:
            for _ in range(n):
                b = p["blocks"][i]
                for j, (m, ls) in enumerate(zip(split(C, b["mu"]), split(C, b["log_s"]))):
                    m, s = np.asarray(m, np.float64), np.exp(np.asarray(ls, np.float64))
                    rows.append(
                        dict(
                            block=i,
                            array=["conv1", "bias1", "conv2", "bias2"][j],
                            weights=m.size,
                            kl=float(kls[i, j]),
                            kl_per_weight=float(kls[i, j] / m.size),
                            rms_mu=float(np.sqrt((m**2).mean())),
                            rms_s=float(np.sqrt((s**2).mean())),
                            median_s=float(np.median(s)),
                            snr_above_1=float((abs(m) > s).mean()),
                        )
                    )
                i += 1
        return rows

    def predict(self, prog, arch, hp, p, x, draws, seed):
        raw, dev = self.data(arch["data"])
        held, eb = len(raw["val"]), arch["eval_batch"]
        probs, kls = [], []
        for d in range(draws // 4):
            keys = jax.random.split(jax.random.fold_in(jax.random.key(seed + 1000), d), 4)
            parts = []
            for i in range(0, len(x), held):
                q, kp, k0 = prog["eval"](
                    p, hp, jnp.asarray(x[i : i + held]).reshape(-1, eb, *x.shape[1:]), keys, dev["mean"], dev["std"]
                )
                parts.append(np.asarray(q))
            kls.append([np.mean(kp), np.mean(k0)])
            probs.append(np.concatenate(parts, 1))
        return np.concatenate(probs), np.mean(kls, 0)

    def run(self, job):
        began = time.time()
        arch = {**ARCH, **job.get("arch", {})}
        known = json.dumps(arch, sort_keys=True) in self.programs
        prog = self.program(arch)
        raw, dev = self.data(arch["data"])
        hpf = {**HP, **job.get("hp", {})}
        unknown = (set(arch) - set(ARCH)) | (set(hpf) - set(HP))
        assert not unknown, unknown
        seed = job.get("seed", 0)
        pool = np.arange(len(raw["x"])) if job.get("full") else raw["train"]
        n = len(pool)
        rng = np.random.default_rng(seed + 17)
        K, B = arch["chunk"], arch["batch"]

        stream = np.zeros(0, np.int64)

        def indices():
            nonlocal stream
            while len(stream) < K * B:
                perm = rng.permutation(pool)
                stream = np.concatenate([stream, perm[: n // B * B] if n >= B else perm])
            out, stream = stream[: K * B], stream[K * B :]
            return jnp.asarray(out.reshape(K, B).astype(np.int32))

        hp = self.numbers(arch, hpf, n, 1e6)
        args = dev["x"], dev["y"], dev["mean"], dev["std"]
        if "chunk_s" not in prog:  # warm up, then time
            state = prog["start"](hp, jax.random.key(0))
            times = []
            for _ in range(3):
                t = time.time()
                state, aux = prog["train"](state, indices(), hp, *args)
                np.asarray(aux)
                times.append(time.time() - t)
            prog["chunk_s"] = min(times[1:])
            f = 3 * flops(arch, raw["x"].shape[1]) * B
            ms = prog["chunk_s"] / K * 1e3
            prog["ms"], prog["tflops"] = ms, f / ms / 1e9
            self.say(f"speed {ms:.2f} ms/step {prog['tflops']:.0f} TFLOP/s", f"{times[0]:.1f} s first")
        if "chunks" in job:
            chunks = job["chunks"]
        elif "seconds" in job:
            chunks = max(1, int((job["seconds"]) / (prog["chunk_s"] * 1.01)))
        else:
            chunks = max(1, round(job["epochs"] * n / (K * B)))
        hp["total"] = jnp.asarray(chunks * K, F32)
        state = prog["start"](hp, jax.random.key(seed))
        every = job.get("every", max(1, chunks // 6))
        curve, t0 = [], time.time()
        self.say("start", job["name"], f"{chunks} chunks, {chunks * K * B / n:.1f} epochs")
        out = dict(
            job=job,
            arch=arch,
            hp=hpf,
            n=n,
            versions=dict(jax=jax.__version__, numpy=np.__version__, python=sys.version.split()[0]),
            device=jax.devices()[0].device_kind,
            ms_per_step=prog["ms"],
            tflops=prog["tflops"],
            compile_s=0 if known else prog["compile_s"],
            parameters=int(sum(a.size for a in jax.tree.leaves(state[0]))),
            weights=int(sum(b["w0" if "w0" in b else "mu"].size for b in state[0]["blocks"])),
            epochs=chunks * K * B / n,
            steps=chunks * K,
            batch=B,
            curve=curve,
        )
        for c in range(1, chunks + 1):
            state, aux = prog["train"](state, indices(), hp, *args)
            if c % every == 0 or c == chunks:
                a = np.asarray(aux)
                ce, acc, klp, kl0, norm = a[-min(K, 80) :].mean(0)
                line = dict(
                    epoch=c * K * B / n,
                    seconds=time.time() - t0,
                    train_ce=float(ce),
                    train_acc=float(acc),
                    kl_path=float(klp),
                    kl_w0=float(kl0),
                    norm=float(norm),
                )
                if not np.isfinite(ce):
                    self.say("diverged")
                    out["diverged"] = True
                    curve.append(line)
                    break
                if not job.get("full"):
                    q, kl = self.predict(prog, arch, hp, state[3], raw["x"][raw["val"]], 4, seed)
                    line["val"] = metrics(q, raw["y"][raw["val"]])
                    line["kl_draws"] = [float(k) for k in kl]
                curve.append(line)
                self.say(
                    job["name"],
                    "ep %.1f %.0fs ce %.3f acc %.4f klp %.1f kl0 %.0f |g| %.2f"
                    % (line["epoch"], line["seconds"], ce, acc, klp, kl0, norm),
                    "val " + " ".join(f"{k} {v:.4f}" for k, v in line["val"].items()) if "val" in line else "",
                )
                self.write(job, out)
                accs = [l["val"]["acc"] for l in curve if "val" in l]
                if (
                    os.path.exists(f"{self.out}/cancel")
                    or (accs and accs[-1] < max(accs) - 0.2)
                    or (not accs and acc < 0.3 and c > 10)
                ):
                    self.say("ABORTED", job["name"])
                    out["aborted"] = True
                    if os.path.exists(f"{self.out}/cancel"):
                        os.remove(f"{self.out}/cancel")
                    break
        jax.block_until_ready(state[0])
        out["train_s"] = time.time() - t0
        if not job.get("full"):
            q, kl = self.predict(prog, arch, hp, state[3], raw["x"][raw["val"]], 16, seed)
            out["val16"] = metrics(q, raw["y"][raw["val"]])
        else:
            _, kl = self.predict(prog, arch, hp, state[3], raw["x"][raw["val"]], 4, seed)
        out["kl_path"], out["kl_w0"] = float(kl[0]), float(kl[1])
        if job.get("test"):
            q, _ = self.predict(prog, arch, hp, state[3], raw["tx"], 16, seed)
            out["test16"] = metrics(q, raw["ty"])
            out["test1"] = metrics(q[:1], raw["ty"])
        out["anatomy"] = self.anatomy(prog, arch, hp, state[3])
        for r in out["anatomy"] or []:
            if r["weights"] > 1000:
                self.say(
                    f"   {r['block']} {r['array']} {r['weights']} kl {r['kl']:.0f} mu {r['rms_mu']:.3f} s {r['rms_s']:.3f}"
                    f" med {r['median_s']:.3f} snr>1 {r['snr_above_1']:.4f}"
                )
        out["total_s"] = time.time() - began
        short = lambda m: m and " ".join(f"{k} {100 * v:.2f}" if k != "nll" else f"nll {v:.4f}" for k, v in m.items())
        self.say(
            f"DONE {job['name']} VAL {short(out.get('val16'))} TEST {short(out.get('test16'))} kl {kl[0]:.1f} {kl[1]:.0f}",
            f"train {out['train_s']:.1f} s total {out['total_s']:.1f} s",
        )
        self.write(job, out)
        if job.get("save"):
            flat = {
                jax.tree_util.keystr(k): np.asarray(v).astype(np.float16)
                for k, v in jax.tree_util.tree_flatten_with_path(state[3])[0]
            }
            np.savez(f"{self.out}/{job['name']}.npz", **flat)

    def write(self, job, out):
        with open(f"{self.out}/{job['name']}.json", "w") as f:
            json.dump(out, f, indent=1)

    def idle(self, yes):
        flag = f"{self.out}/idle"
        if yes and not os.path.exists(flag):
            open(flag, "w").close()
        if not yes and os.path.exists(flag):
            os.remove(flag)

    def safe(self, job):
        try:
            self.run(job)
        except Exception:
            self.say("FAILED", job.get("name"), traceback.format_exc()[-1500:])


def main():
    a = argparse.ArgumentParser()
    a.add_argument("jobs", nargs="?")
    a.add_argument("--queue")
    a.add_argument("--data", required=True)
    a.add_argument("--out", required=True)
    a = a.parse_args()
    lab = Lab(a.data, a.out)
    lab.say(jax.__version__, jax.devices())
    if a.jobs:
        for job in json.load(open(a.jobs)):
            lab.safe(job)
        return
    os.makedirs(a.queue, exist_ok=True)
    while not os.path.exists(f"{a.queue}/stop"):
        for path in sorted(glob.glob(f"{a.queue}/*.json"))[:1]:
            lab.idle(False)
            job = json.load(open(path))
            os.rename(path, path + ".taken")
            if job.get("compile_only"):
                f = lambda a={**ARCH, **job.get("arch", {})}: lab.program(a)
                f() if job.get("wait", True) else threading.Thread(target=f).start()
            else:
                lab.safe(job)
            break
        else:
            lab.idle(True)
            time.sleep(0.2)


if __name__ == "__main__":
    main()
