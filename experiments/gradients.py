"""The paper's net for MNIST, trained with gradients of several kinds: what figures 5 and 13 to 15 share.

The convolutions of the package cannot be differentiated forwards, as diffrax does for the stochastic adjoint. So the
field here is one of its own, of the same layers, with XLA's convolutions.
"""

import math
import tempfile
import warnings
from pathlib import Path
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from matplotlib.axes import Axes
from reproduction import Experiment, Found, Scale, Settings, Table
from trained_nets import PAPER_KL, course_of, small_data

import sdebnn
from sdebnn.compare import task_of
from sdebnn.data import pixel_statistics
from sdebnn.integrate import AbstractSolver, Adaptive, FixedGrid
from sdebnn.nets import paper_net
from sdebnn.plots import COLOURS
from sdebnn.processes import OU, Point
from sdebnn.train import Batches, Checkpoints, Objective, Optimizer, Recipe

STEPS, AUGMENT = 20, 2
RTOL = (1e-1, 1e-2, 1e-3)
BACKPROP, CHECKPOINT, REVERSIBLE = (f"fixed steps, {name}" for name in ("backprop", "checkpoint", "reversible"))
FIXED_ADJOINT = "fixed steps, stochastic adjoint"
ADJOINT, ADAPTIVE_BACKPROP = "adaptive, stochastic adjoint", "adaptive, backprop"


class PlainConv(eqx.Module):
    """dh/dt by four convolutions: to the hidden channels, to half the size, back, and to the channels of h.

    Time is a constant channel of each.
    """

    kernels: list[jax.Array]
    biases: list[jax.Array]

    def __init__(self, channels: int, width: int, key: jax.Array):
        sizes = [(channels, width), (width, width), (width, width), (width, channels)]
        keys = jax.random.split(key, len(sizes))
        self.kernels = [jax.random.normal(k, (3, 3, m + 1, n)) for k, (m, n) in zip(keys, sizes, strict=True)]
        self.biases = [jnp.zeros(n) for _, n in sizes]

    def __call__(self, t: jax.Array, h: jax.Array) -> jax.Array:
        for number, (kernel, bias) in enumerate(zip(self.kernels, self.biases, strict=True)):
            x = jnp.concatenate([h, jnp.full((*h.shape[:2], 1), t, h.dtype)], axis=-1)[None]
            layout = ("NHWC", "HWIO", "NHWC")
            if number == 2:
                h = lax.conv_transpose(x, kernel, (2, 2), "SAME", dimension_numbers=layout)[0] + bias
            else:
                stride = (2, 2) if number == 1 else (1, 1)
                h = lax.conv_general_dilated(x, kernel, stride, "SAME", dimension_numbers=layout)[0] + bias
            if number < 3:
                h = jnp.tanh(h)
        return h


def solver_of(name: str, rtol: float | None) -> AbstractSolver:
    """The solver, and how its gradient is computed."""
    if name in (BACKPROP, CHECKPOINT):
        return FixedGrid(STEPS, "heun", "backprop" if name == BACKPROP else "checkpoint", unroll=1)
    if name == REVERSIBLE:
        return FixedGrid(STEPS, "reversible_heun", "reversible", unroll=1)
    if name == FIXED_ADJOINT:  # a tolerance that no step exceeds
        return Adaptive(
            1e6, solver=diffrax.Heun(), adjoint=diffrax.BacksolveAdjoint(), max_step=1 / STEPS, max_steps=2 * STEPS
        )
    assert rtol is not None
    adjoint = diffrax.BacksolveAdjoint() if name == ADJOINT else diffrax.RecursiveCheckpointAdjoint()
    return Adaptive(rtol, solver=diffrax.Heun(), adjoint=adjoint, max_steps=256)


def row_of(scale: Scale, name: str, rtol: float | None = None, seed: int = 0) -> Settings:
    """The settings of one training."""
    full = scale == "full"
    return {
        "gradient": name, "rtol": rtol, "seed": seed, "data": "mnist" if full else "digits", "epochs": 3 if full else 2,
        "batch": 128 if full else 32, "width": 32 if full else 8, "images": 12_800 if full else 128,
    }  # fmt: skip


def title_of(name: str, rtol: float | None) -> str:
    """The name of a row."""
    return name if rtol is None else f"{name}, tolerance {rtol:g}"


class Gradients(Experiment):
    """The trainings of a figure; each is run once for all of them."""

    shares = ("fig5", "fig13", "fig14", "fig15")
    full: tuple[tuple[str, float | None], ...]
    smoke: tuple[tuple[str, float | None], ...]

    def rows(self, scale: Scale) -> dict[str, Settings]:
        return {title_of(*each): row_of(scale, *each) for each in (self.full if scale == "full" else self.smoke)}

    def run(self, settings: Settings) -> Found:
        return _trained(settings)

    def table(self, found: dict[str, Found]) -> Table:
        rows = [
            [name, f"{each['curve'][-1][2]:.4f}", f"{each['nll']:.4f}", f"{each['accuracy']:.2%}",
             f"{each['seconds_an_epoch']:.2f}", f"{each['evaluations_an_epoch']:.0f}", f"{each['memory_mib']:.1f}"]
            for name, each in found.items()
        ]  # fmt: skip
        heads = ("loss", "NLL of the test part", "accuracy", "seconds an epoch", "evaluations an epoch", "MiB")
        return Table(("gradient", *heads), rows)


def draw_curves(axes: Axes, found: dict[str, Found], *, by_time: bool) -> None:
    """The loss of every training against the epochs, or against the seconds since its first call."""
    for number, (name, each) in enumerate(found.items()):
        epoch, seconds, loss = np.array(each["curve"]).T
        x = seconds - seconds[0] if by_time else epoch
        axes.plot(x, loss, color=COLOURS[number % len(COLOURS)], linestyle=("-", "--", ":")[number % 3], label=name)
    axes.set(xlabel="seconds, without compilation" if by_time else "epoch", ylabel="loss in training")


def _trained(settings: Settings) -> Found:
    data = small_data(settings["data"], settings["images"])
    task, key = task_of(data, settings["seed"]), jax.random.key(settings["seed"])
    shape, looks = pixel_statistics(data)
    net_key, fit_key, test_key = jax.random.split(key, 3)
    solver = solver_of(settings["gradient"], settings["rtol"])

    def block(field: Any, key: jax.Array) -> sdebnn.nn.SDEBlock:
        field_key, drift_key = jax.random.split(key)
        plain = PlainConv(shape[2] + AUGMENT, settings["width"], field_key)
        return sdebnn.bayesianize(
            plain, prior=OU(sigma=0.1), drift=(1, 64, 1), initial=Point, solver=solver, key=drift_key
        )  # fmt: skip

    model = paper_net(shape, len(data.classes or ()), augment=AUGMENT, block=block, key=net_key, **looks)
    training = Recipe(
        settings["epochs"], Objective(draws=1, kl_weight=PAPER_KL), Batches(settings["batch"]), Optimizer(2e-2)
    )
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder) / "run")
        fit, course = course_of(model, task.likelihood, task.train, training, fit_key, checkpoints)
    with warnings.catch_warnings(record=True) as warned:  # such as of a reversible method that is unstable
        warnings.simplefilter("always")
        scores = sdebnn.evaluate(fit.model, fit.likelihood, *task.test, draws=4, key=test_key, draws_at_once=1)
    steps = len(task.train.x) // settings["batch"]
    return {
        **course._asdict(), **{name: scores[name] for name in ("nll", "accuracy", "ece")},
        "evaluations_an_epoch": scores["evaluations"] * steps,
        "memory_mib": _memory(fit, task.train, settings["batch"], fit_key) / 2**20,
        "warned": [str(each.message) for each in warned],
    }  # fmt: skip


def _memory(fit: sdebnn.Fit, train: Any, batch: int, key: jax.Array) -> float:
    """The bytes that the gradient of one batch needs besides its inputs and outputs; NaN if the compiler is silent."""
    parameters, rest = eqx.partition(fit.model, eqx.is_inexact_array)
    x, y = (jnp.asarray(part[:batch]) for part in train)

    def loss(parameters: Any) -> jax.Array:
        model = eqx.combine(parameters, rest)
        return -sdebnn.elbo(model, fit.likelihood, x.astype(float), y, key=key, kl_weight=PAPER_KL).elbo

    analysis = jax.jit(jax.grad(loss)).lower(parameters).compile().memory_analysis()
    return math.nan if analysis is None else float(analysis.temp_size_in_bytes)
