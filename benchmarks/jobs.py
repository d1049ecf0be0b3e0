"""The jobs that ``python benchmarks`` times: a net, a batch and a likelihood, and the arithmetic of one step.

toy     1-D regression: f_h 3-32-32-3 (1315 weights), drift 32-32, 20 draws, 40 examples
wide    the same through f_h 3-256-256-3 (67,843 weights), drift 1-64-1, 4 draws, 128 examples
mnist   the paper's block for MNIST (21,150 weights), 1 draw
cifar   the paper's net for CIFAR-10, 2-2-2 blocks, 1 draw
All take 20 Euler steps. No drift is zero, so that no part of the work can be skipped.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

import sdebnn
from sdebnn.convolutions import Conv, Pixels, ResidualConv, TimeConv, squeeze
from sdebnn.nets import paper_net

STEPS, SIGMA, NOISE = 20, 0.2, 0.1


class Job(NamedTuple):
    """The work of some rows of the table, which differ in the library that does it."""

    kind: str
    batch: int
    draws: int

    @property
    def name(self) -> str:
        return f"{self.kind} {self.batch}" if self.kind in ("mnist", "cifar") else self.kind


ON_CPU = (Job("toy", 40, 20), Job("wide", 128, 4))
ON_GPU = (Job("mnist", 128, 1), Job("mnist", 1024, 1), Job("cifar", 128, 1), Job("cifar", 512, 1))


def problem(job: Job, compute: str = "float32") -> tuple[sdebnn.SDEBNN, Any, jax.Array, jax.Array]:
    """The net, the likelihood and a batch, the same in every process."""
    keys = jax.random.split(jax.random.key(0), 5)
    if job.kind in ("toy", "wide"):
        widths, drift = ((32, 32), (32, 32)) if job.kind == "toy" else ((256, 256), (1, 64, 1))
        model = _regression(widths, drift, keys)
        x = jax.random.uniform(keys[3], (job.batch, 1), minval=-2, maxval=2)
        return _with_nonzero_drift(model, keys[2]), sdebnn.Gaussian(NOISE), x, jnp.sin(3 * x)
    shape = (28, 28, 1) if job.kind == "mnist" else (32, 32, 3)
    large = {"blocks": (2, 2, 2), "width": 64, "drift": (2, 128, 2)} if job.kind == "cifar" else {}
    model = paper_net(shape, 10, compute=compute, key=keys[0], **large)
    x = jax.random.randint(keys[3], (job.batch, *shape), 0, 256).astype(jnp.float32)
    y = jax.random.randint(keys[4], (job.batch,), 0, 10)
    return _with_nonzero_drift(model, keys[2]), sdebnn.Categorical(), x, y


def _regression(widths: tuple[int, ...], drift: tuple[int, ...], keys: jax.Array) -> sdebnn.SDEBNN:
    block = sdebnn.bayesianize(
        sdebnn.nn.TimeMLP(3, widths, key=keys[0]), prior=sdebnn.OU(sigma=SIGMA), drift=drift,
        solver=sdebnn.FixedGrid(STEPS), key=keys[1],
    )  # fmt: skip
    return sdebnn.SDEBNN((sdebnn.Deterministic(sdebnn.nn.Augment(1, 2)), block, sdebnn.Deterministic(first)))


def first(h: jax.Array) -> jax.Array:
    """The head of the regressions: the first number of the state."""
    return h[:1]


def _with_nonzero_drift(model: sdebnn.SDEBNN, key: jax.Array) -> sdebnn.SDEBNN:
    def moved(block: sdebnn.nn.SDEBlock) -> sdebnn.nn.SDEBlock:
        weight = block.drift.layers[-1].weight
        return eqx.tree_at(lambda b: b.drift.layers[-1].weight, block, 0.02 * jax.random.normal(key, weight.shape))

    layers = tuple(moved(layer) if isinstance(layer, sdebnn.nn.SDEBlock) else layer for layer in model.layers)
    return sdebnn.SDEBNN(layers)


def gflop(job: Job) -> float:
    """Useful arithmetic of one training step of a job."""
    model, _, x, _ = problem(job)
    return gflop_of(model, x, job.draws)


def gflop_of(model: sdebnn.SDEBNN, x: Any, draws: int) -> float:
    """Useful arithmetic of a step on a batch: the products of the blocks and the layers between them, once forward and
    twice backward, without recomputation, the weight path and the optimiser."""
    total, h = 0.0, jax.ShapeDtypeStruct(x.shape, x.dtype)
    for layer in model.layers:
        if isinstance(layer, sdebnn.nn.SDEBlock):
            field = eqx.combine(layer.unravel(jnp.zeros(layer.weights.size)), layer.field)
            total += layer.solver.steps * _products(field, h.shape)
        else:
            total += _products(getattr(layer, "module", None), h.shape)
        h = jax.eval_shape(lambda h, layer=layer: layer(h, key=jax.random.key(0))[0], h)
    return 3 * draws * total / 1e9


def _products(module: Any, shape: tuple[int, ...]) -> float:
    """Floating-point operations of one evaluation on a batch."""
    if isinstance(module, TimeConv | ResidualConv):
        pixels, total = math.prod(shape[:3]), 0.0
        for layer in module.layers:
            pixels = pixels // 4 if layer.move == "down" else pixels
            total += 2.0 * pixels * layer.kernel.size  # for a transposed convolution, the pixels that it reads
            pixels = 4 * pixels if layer.move == "up" else pixels
        return total
    if isinstance(module, Conv):
        return 2.0 * math.prod(shape[:3]) / module.stride**2 * module.kernel.size
    return sum(2.0 * shape[0] * leaf.size for leaf in jax.tree.leaves(module) if eqx.is_array(leaf) and leaf.ndim == 2)


def exported(job: Job) -> tuple[dict[str, Any], dict[str, jax.Array]]:
    """The same problem as plain data, for a peer without JAX: a description of each layer, and its arrays."""
    model, _, x, y = problem(job)
    arrays, layers = {"x": x, "y": y}, []
    for i, layer in enumerate(model.layers):
        if isinstance(layer, sdebnn.nn.SDEBlock):
            field = eqx.combine(layer.unravel(layer.initial.value), layer.field)
            moves = [part.move for part in field.layers] if isinstance(field, TimeConv) else None
            sizes = {"shapes": layer.weights.shapes, "scales": layer.weights.scales, "drift": len(layer.drift.layers)}
            layers.append({"kind": "block", "moves": moves, "sigma": layer.prior.sigma, **sizes})
            arrays[f"{i}.w0"] = layer.initial.value
            for j, part in enumerate(layer.drift.layers):
                arrays |= {f"{i}.{j}.{name}": value for name, value in vars(part).items()}
        else:
            layers.append(_description(layer.module))
            if layers[-1]["kind"] == "readout":
                arrays |= {f"{i}.weight": layer.module.weight, f"{i}.bias": layer.module.bias}
    about = {
        "layers": layers,
        "draws": job.draws,
        "steps": STEPS,
        "noise": NOISE,
        "classes": job.kind not in ("toy", "wide"),
    }
    return about, arrays


def _description(module: Any) -> dict[str, Any]:
    if isinstance(module, Pixels):
        return {"kind": "pixels", "mean": module.mean, "std": module.std, "zeros": module.zeros}
    if isinstance(module, sdebnn.nn.Augment):
        return {"kind": "augment", "zeros": module.zeros}
    functions = {id(first): "first", id(squeeze): "squeeze", id(jnp.ravel): "ravel"}
    return {"kind": functions.get(id(module), "readout")}
