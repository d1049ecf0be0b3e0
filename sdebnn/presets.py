"""Nets and how to train them, as rows of a table: the paper's settings, and ours.

A preset is a net for a data set and the arguments of ``fit`` that suit it. The paper's rows have its numbers (its table
of hyper-parameters); departures are said where they stand. Ours were chosen on a validation part, on one H200.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from sdebnn.checks import warn_if_unlike
from sdebnn.convolutions import Compute
from sdebnn.data import DataSet, RandomView
from sdebnn.integrate import FixedGrid
from sdebnn.likelihoods import Categorical, Gaussian, Likelihood
from sdebnn.models import SDEBNN, Deterministic
from sdebnn.nets import our_net, paper_net
from sdebnn.processes import OU, Normal, Point
from sdebnn.train.stacks import by_row, by_stacks

ROWS_FOR_MOMENTS = 10_000  # of a set that may be larger than memory
# Of the rate, for what is not standardised (drifts, biases, norms), and for the spread of w_0.
SHARES = {"drift": 0.1, "scale": 0.1, "shift": 0.1, "bias": 0.1, "log_std": 0.5}


class Preset(NamedTuple):
    """A net, made from a key, and the arguments of ``fit`` to train it with."""

    net: Callable[[PRNGKeyArray], Any]
    likelihood: Likelihood
    training: dict[str, Any]
    draws_at_once: int = 1  # in prediction


def preset(name: str, data: DataSet, *, inferred: bool = False) -> Preset:
    """The row of that name, "paper" or "ours", for a data set; with w_0 a point, or inferred."""
    image = len(data.train.x.shape) == 4 and data.classes is not None
    if name == "paper":
        if not image:
            raise ValueError(f"preset='paper' is for images; {data.name} has none: choose preset='ours'.")
        return paper(data, inferred)
    if not image:
        return table(data, inferred)
    return small(data, inferred) if min(data.train.x.shape[1:3]) < 16 else ours(data, inferred)


def paper(data: DataSet, inferred: bool) -> Preset:
    """The paper's nets: one block at 28 pixels, 2-2-2 blocks with squeezes between for larger images in colour.

    Its weights are not standardised; here they are, and its rates of 1e-3 and 7e-4 are, in these units, larger by about
    √fan-in: 4e-2 on MNIST is chosen on the validation part, 1.7e-2 on CIFAR-10 is not tuned. The average of parameters
    is ours. Its code multiplies the KL by 1e-3; here the weight is 1, unless told.
    """
    shape, looks = looks_of(data)
    large = shape[2] > 1 and shape[0] % 8 == shape[1] % 8 == 0
    net = partial(
        paper_net,
        shape,
        len(data.classes or ()),
        blocks=(2, 2, 2) if large else (1,),
        width=64 if large else 32,
        drift=(2, 128, 2) if large else (1, 64, 1),
        prior=OU(sigma=0.1),
        initial=partial(Normal, std=0.1) if inferred else Point,
        compute=_compute(),
        **looks,
    )
    rate = 1.7e-2 if large else 4e-2
    training = {
        "epochs": 500 if large else 100, "batch_size": 128, "draws": 1, "draws_at_once": 1, "learning_rate": rate,
        "optimizer": partial(_constant_adam, rate), "ema": 0.998,
    }  # fmt: skip
    return Preset(lambda key: net(key=key), Categorical(), training)


def ours(data: DataSet, inferred: bool) -> Preset:
    """Our nets for images of 16 pixels and more: with w_0 a point, or inferred for one of a field's two convolutions.

    Inferring all of w_0 costs more nats than it saves on these data sets: the bound prefers blocks that do nothing.
    """
    shape, looks = looks_of(data)
    photos = shape[2] > 1
    steps = 4 if inferred else 8
    net = partial(
        our_net,
        shape,
        len(data.classes or ()),
        channels=(64, 128, 256) if photos else (64, 128),
        stem_stride=1 if photos else 2,
        gain=8.0 if photos else 4.0,
        prior=OU(sigma=0.1 if inferred else 0.2),
        inferred=(1,) if inferred else (),
        solver=FixedGrid(steps, gradient="backprop", unroll=steps),
        compute=_compute(),
        **looks,
    )
    rate = 4e-2 if photos else 2e-2
    cutout = 11 if photos and not inferred else 0
    fill = tuple(255 * m for m in looks["mean"])
    training = {
        "epochs": (150 if inferred else 45) if photos else (80 if inferred else 50), "batch_size": 512, "draws": 1,
        "draws_at_once": 1, "accumulate": (8 if photos else 4) if inferred else 1, "learning_rate": rate,
        "optimizer": partial(grouped_adam, rate), "kl_warmup": 0.5 if inferred else 0.0, "clip": 1.0, "ema": 0.998,
        "augment": RandomView(4 if photos else 2, flip=photos, cutout=cutout, fill=fill),
    }  # fmt: skip
    return Preset(lambda key: net(key=key), Categorical(), training)


def _compute() -> Compute:
    """A processor has no units for bfloat16: there it is slower than what it rounds."""
    return "float32" if jax.default_backend() == "cpu" else "bfloat16"


def small(data: DataSet, inferred: bool) -> Preset:
    """Small images, such as 8 by 8 pixels, on a processor within minutes."""
    shape, looks = looks_of(data)
    net = partial(
        our_net, shape, len(data.classes or ()), channels=(16, 32), gain=4.0, prior=OU(sigma=0.2),
        inferred=(1,) if inferred else (), solver=FixedGrid(4, unroll=1, at_once=16), compute="float32", **looks,
    )  # fmt: skip
    training = {
        "epochs": 40, "batch_size": 64, "draws": 1, "draws_at_once": 1, "kl_warmup": 0.5 if inferred else 0.0,
        "learning_rate": 1e-2, "optimizer": partial(grouped_adam, 1e-2), "clip": 1.0, "ema": 0.99,
        "augment": RandomView(1, padding="fill"),
    }  # fmt: skip
    return Preset(lambda key: net(key=key), Categorical(), training)


def table(data: DataSet, inferred: bool) -> Preset:
    """Vectors: the net of ``SDEBNN.mlp``, inputs and targets standardised inside."""
    x, y = (np.asarray(part[some_rows(len(part))], dtype=float) for part in data.train)
    if x.ndim != 2:
        raise ValueError(f"{data.name} has examples of shape {x.shape[1:]}: ours are vectors, or images with classes.")
    size = x.shape[1]
    outputs = len(data.classes) if data.classes is not None else y.shape[1]
    into = Affine(-x.mean(0) / _spread(x), 1 / _spread(x))
    out = Affine(np.zeros(outputs), np.ones(outputs)) if data.classes is not None else Affine(y.mean(0), _spread(y))
    # Noise of a tenth of the targets' spread, to start with.
    likelihood = Categorical() if data.classes is not None else Gaussian(0.1 * float(_spread(y).mean()), learn=True)

    def net(key: PRNGKeyArray) -> SDEBNN:
        initial = Normal if inferred else Point
        middle = SDEBNN.mlp(size, outputs, widths=(32,), initial=initial, key=key)
        return SDEBNN((Deterministic(into), *middle.layers, Deterministic(out)))

    batch = min(256, len(x))
    training = {
        "epochs": max(10, 20_000 * batch // (4 * len(data.train.x))), "batch_size": batch, "draws": 4,
        "learning_rate": 1e-2, "clip": 100.0, "ema": 0.998,
    }  # fmt: skip
    return Preset(net, likelihood, training, draws_at_once=16)


class Affine(eqx.Module):
    """shift + scale · x, of numbers that are not trained."""

    shift: tuple[float, ...] = eqx.field(static=True)
    scale: tuple[float, ...] = eqx.field(static=True)

    def __init__(self, shift: Any, scale: Any):
        self.shift, self.scale = tuple(map(float, shift)), tuple(map(float, scale))

    def warn_if_unlike(self, x: np.ndarray) -> None:
        """Warn if inputs are on another scale than those that this standardises."""
        shift, scale = np.array(self.shift), np.array(self.scale)
        cause = "Pass columns in the units and the order of those that it was trained on."
        warn_if_unlike(-shift / scale, 1 / scale, x, column="column", cause=cause, table=True)

    def __call__(self, x: Float[Array, " feature"]) -> Float[Array, " feature"]:
        if x.shape != (len(self.shift),):
            raise ValueError(f"an example has shape {x.shape}, this model takes ({len(self.shift)},).")
        return jnp.asarray(self.shift, x.dtype) + jnp.asarray(self.scale, x.dtype) * x


def grouped_adam(rate: float, steps: int) -> optax.GradientTransformation:
    """Adam for standardised weights: warm-up, cosine, decay, no array moved by more than the rate (root mean square).

    A tenth of the rate for what is not standardised (drifts, biases, norms), half of it for the spread of w_0.
    """
    warmup = min(200, max(1, steps // 10))
    schedule = optax.warmup_cosine_decay_schedule(0.0, rate, warmup, max(steps, warmup + 1))

    def make(like: PyTree) -> optax.GradientTransformation:
        decays = by_row(lambda path: 0.05 * (_group(path) in ("kernel", "value")), like)
        shares = by_row(lambda path: SHARES.get(_group(path), 1.0), like)

        def shared(rows: Array, now: Array, decay: np.ndarray, share: np.ndarray) -> Array:
            size = jnp.sqrt(jnp.mean(rows**2, axis=tuple(range(1, rows.ndim)), keepdims=True))
            moved = rows / jnp.maximum(1.0, size) + jnp.asarray(decay, rows.dtype) * now
            return jnp.asarray(share, rows.dtype) * moved

        return optax.chain(
            optax.scale_by_adam(b1=0.9, b2=0.99),
            optax.stateless(lambda updates, now: jax.tree.map(shared, updates, now, decays, shares)),
            optax.scale_by_learning_rate(schedule),
        )

    return by_stacks(make)


def _constant_adam(rate: float, steps: int) -> optax.GradientTransformation:
    return by_stacks(lambda _: optax.adam(rate))


def _group(path: tuple[Any, ...]) -> str:
    """Of an array in a drift, "drift"; of others the last name on their path."""
    names = [str(getattr(part, "name", "")) for part in path]
    return "drift" if "drift" in names else names[-1]


def looks_of(data: DataSet) -> tuple[tuple[int, int, int], dict[str, tuple[float, ...]]]:
    """The shape of an image, and the mean and spread of each channel, as shares of 255."""
    if data.train.x.dtype != np.uint8:
        raise ValueError(f"{data.name} has images of {data.train.x.dtype}: save them as bytes, uint8, 0 to 255.")
    height, width, channels = data.train.x.shape[1:]
    rows = some_rows(len(data.train.x))
    sums = np.zeros((2, channels))
    for part in np.array_split(rows, max(1, len(rows) // 500)):  # a few at a time: they may be large
        pixels = np.asarray(data.train.x[part], dtype=np.float32).reshape(-1, channels) / 255
        sums += [pixels.sum(0, dtype=float), np.square(pixels).sum(0, dtype=float)]
    mean, square = sums / (len(rows) * height * width)
    spread = np.sqrt(np.maximum(square - mean**2, 0))
    mean, std = (tuple(round(float(v), 4) for v in moment) for moment in (mean, spread))
    return (height, width, channels), {"mean": mean, "std": tuple(s or 1.0 for s in std)}


def some_rows(examples: int) -> np.ndarray:
    """Rows by which a net is standardised: all, or as many as are enough, spread through the set."""
    return np.linspace(0, examples - 1, min(examples, ROWS_FOR_MOMENTS)).astype(int)


def _spread(columns: np.ndarray) -> np.ndarray:
    std = columns.std(0)
    return np.where(std > 0, std, 1.0)
