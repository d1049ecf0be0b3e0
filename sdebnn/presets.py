"""Presets: nets for data sets, with the options to train them.

"fast" is a single small net, "ours" one or two nets, "best" a mixture of more. "paper" has the numbers of the
paper's table of hyper-parameters; differences are mentioned in its docstring. Ours for colour images were chosen on a
validation part of CIFAR-10, and those for grey ones on one of MNIST, on one H200; with w_0 inferred, and for images of
less than 16 pixels, they are not tuned yet.
"""

import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn.checks import check_choice
from sdebnn.convolutions import Compute
from sdebnn.data import (
    DataSet,
    RandomMixing,
    RandomView,
    Standardiser,
    TrainingInputs,
    evenly_spaced_rows,
    pixel_statistics,
)
from sdebnn.devices import platform
from sdebnn.integrate import FixedGrid
from sdebnn.likelihoods import AbstractLikelihood, Categorical, Gaussian
from sdebnn.models import SDEBNN
from sdebnn.nets import our_net, paper_net
from sdebnn.processes import OU, Normal, Point
from sdebnn.train import Batches, Objective, Optimizer, Recipe, constant_adam, grouped_muon

PRESETS = ("ours", "fast", "best", "paper")


class Preset(NamedTuple):
    """A net as a function of a key, and the options to train it with."""

    net: Callable[[PRNGKeyArray], SDEBNN]
    likelihood: AbstractLikelihood
    training: Recipe
    draws_at_once: int = 1  # in prediction
    members: int = 1  # of the mixture
    in_turn: bool = True  # whether members are trained one after the other


class About(NamedTuple):
    """What a preset needs to know about a data set. A run keeps it, so that its net can be made without the data.

    ``center`` and ``spread`` are those of the columns of a table, or of the channels of images as fractions of 255;
    ``target_center`` and ``target_spread`` those of the targets of a regression.
    """

    name: str
    shape: tuple[int, ...]  # of an example
    classes: tuple[str, ...] | None
    examples: int
    center: tuple[float, ...]
    spread: tuple[float, ...]
    target_center: tuple[float, ...] = ()
    target_spread: tuple[float, ...] = ()

    @staticmethod
    def of(data: DataSet) -> "About":
        """What is to be known about a data set, from some of its training rows."""
        shape, examples = tuple(data.train.x.shape[1:]), len(data.train.x)
        if len(shape) == 3 and data.classes is not None:
            looks = pixel_statistics(data)[1]
            return About(data.name, shape, data.classes, examples, looks["mean"], looks["std"])
        if len(shape) != 1:
            raise ValueError(
                f"{data.name} has examples of shape {shape}: pass vectors, or images with classes and an axis of "
                "channels, such as x[..., None]."
            )
        x, y = (np.asarray(part[evenly_spaced_rows(examples)], dtype=float) for part in data.train)
        targets = () if data.classes is not None else map(_floats, Standardiser.of(y))
        return About(data.name, shape, data.classes, examples, *map(_floats, Standardiser.of(x)), *targets)

    @property
    def are_images(self) -> bool:
        """Whether the examples are images with classes."""
        return len(self.shape) == 3


def _floats(values: np.ndarray) -> tuple[float, ...]:
    return tuple(map(float, values))


def preset(name: str, about: About, *, infer_w0: bool = False, mixing: bool = False) -> Preset:
    """A preset for a data set. If ``infer_w0``, w_0 is random, and otherwise a point.

    With ``mixing``, images are mixed with patterns and with copies of themselves in training (``RandomMixing``).
    """
    check_choice("preset", name, PRESETS)
    if mixing and not about.are_images:
        raise ValueError(f"mixing is for images, and {about.name} has none: leave it out.")
    found = _preset(name, about, infer_w0)
    return _mixed(found) if mixing else found


def _mixed(found: Preset) -> Preset:
    """The preset, with images that are mixed after its augmentation instead of having a square covered."""
    batches = found.training.batches
    view = batches.augment if isinstance(batches.augment, RandomView) else RandomView(0)
    mixed = RandomMixing(view.without_cutout())
    return found._replace(training=found.training._replace(batches=replace(batches, augment=mixed)))


def _preset(name: str, about: About, infer_w0: bool) -> Preset:
    if name == "paper":
        if not about.are_images:
            raise ValueError(f"preset='paper' is for images, and {about.name} has none: choose preset='ours'.")
        return paper(about, infer_w0)
    if not about.are_images:
        return vectors(name, about, infer_w0)
    if min(about.shape[:2]) < 16:
        return small(name, about, infer_w0)
    return inferred(name, about) if infer_w0 else residual(name, about)


def _of_images(about: About) -> dict[str, Any]:
    """The arguments of a net that follow from the images."""
    height, width, channels = about.shape
    return {
        "shape": (height, width, channels), "classes": len(about.classes or ()), "mean": about.center,
        "std": about.spread,
    }  # fmt: skip


def paper(about: About, infer_w0: bool) -> Preset:
    """The paper's nets: one block for grey images, 2-2-2 blocks with squeezes between for images in colour.

    The paper's weights are not standardised, and ours are. In these units, its learning rates of 1e-3 and 7e-4 are
    larger by about √fan-in: 4e-2 on MNIST was chosen on a validation part, 1.7e-2 on CIFAR-10 is not tuned. The moving
    average of the parameters is an addition of ours. The paper's code multiplies the KL by 1e-3; here the weight is 1
    unless it is given.
    """
    shape = about.shape
    large = shape[2] > 1 and shape[0] % 8 == shape[1] % 8 == 0
    net = partial(
        paper_net,
        blocks=(2, 2, 2) if large else (1,),
        width=64 if large else 32,
        drift=(2, 128, 2) if large else (1, 64, 1),
        prior=OU(sigma=0.1),
        initial=partial(Normal, std=0.1) if infer_w0 else Point,
        compute=_compute(),
        **_of_images(about),
    )
    rate = 1.7e-2 if large else 4e-2
    training = Recipe(
        500 if large else 100,
        Objective(draws=1, draws_at_once=1),
        Batches(128),
        Optimizer(rate, partial(constant_adam, rate), ema=0.998),
    )
    return Preset(lambda key: net(key=key), Categorical(), training)


class ImageSize(NamedTuple):
    """The size of nets for images, and how they are trained."""

    channels: tuple[int, ...]
    epochs: int
    members: int


COLOUR = {"fast": ImageSize((64, 128, 256), 10, 1), "ours": ImageSize((128, 256, 512), 24, 2),
          "best": ImageSize((128, 256, 512), 48, 3)}  # fmt: skip
GREY = {"fast": ImageSize((32, 64), 10, 1), "ours": ImageSize((64, 128), 20, 2), "best": ImageSize((64, 128), 40, 5)}
SMALL = {"fast": ImageSize((16, 32), 15, 1), "ours": ImageSize((16, 32), 30, 1), "best": ImageSize((16, 32), 30, 8)}
MAX_RATIO_OF_SPREADS = 10.0  # of several targets that share one noise
MEMBERS_OF_VECTORS = {"fast": 1, "ours": 1, "best": 5}


def residual(name: str, about: About) -> Preset:
    """Our nets for images of at least 16 pixels, w_0 a point.

    Photos are shifted, mirrored and have a square covered in training; grey images are turned and stretched instead of
    mirrored. Each draw of a prediction sees them shifted, and photos mirrored, in its own way, too.
    """
    shape = about.shape
    photos = shape[2] > 1
    size = (COLOUR if photos else GREY)[name]
    net = partial(
        our_net, channels=size.channels, stem_stride=1 if photos else 2,
        views=RandomView(1, flip=photos), compute=_compute(), **_of_images(about),
    )  # fmt: skip
    fill = tuple(255 * m for m in about.center)
    grey = RandomView(2, cutout=9, fill=fill, turn=15, stretch=0.15)
    view = RandomView(4, flip=True, cutout=11, fill=fill) if photos else grey
    training = Recipe(
        size.epochs,
        Objective(draws=1, draws_at_once=1),
        Batches(256, augment=view),
        Optimizer(8e-2, partial(grouped_muon, 8e-2), clip=1.0, ema=0.995),
    )
    return Preset(lambda key: net(key=key), Categorical(), training, members=size.members)


def inferred(name: str, about: About) -> Preset:
    """Our nets for images of at least 16 pixels, w_0 inferred for one of the two convolutions of each field.

    On these data sets, inferring all of w_0 costs more nats than it saves: the ELBO then prefers blocks that do
    nothing.
    """
    shape = about.shape
    photos = shape[2] > 1
    epochs = (100 if photos else 60) // (4 if name == "fast" else 1)
    net = partial(
        our_net, channels=(64, 128, 256) if photos else (64, 128),
        stem_stride=1 if photos else 2, prior=OU(sigma=0.1), infer_w0_of=(1,), compute=_compute(), **_of_images(about),
    )  # fmt: skip
    rate = 4e-2 if photos else 2e-2
    training = Recipe(
        epochs,
        Objective(draws=1, draws_at_once=1, kl_warmup=0.5),
        Batches(512, accumulate=8 if photos else 4, augment=RandomView(4 if photos else 2, flip=photos)),
        Optimizer(rate, partial(grouped_muon, rate), clip=1.0, ema=0.998),
    )
    return Preset(lambda key: net(key=key), Categorical(), training, members=4 if name == "best" else 1)


def _compute() -> Compute:
    """The type to compute in: bfloat16, or float32 on a CPU, where bfloat16 is slower."""
    return "float32" if platform() == "cpu" else "bfloat16"


def small(name: str, about: About, infer_w0: bool) -> Preset:
    """Our nets for small images, such as 8 by 8 pixels, which a CPU trains within minutes."""
    size = SMALL[name]
    net = partial(
        our_net, channels=size.channels, blocks=1, infer_w0_of=(1,) if infer_w0 else (),
        solver=FixedGrid(4, unroll=1, at_once=16), views=RandomView(1, padding="fill"), compute="float32",
        **_of_images(about),
    )  # fmt: skip
    training = Recipe(
        size.epochs,
        Objective(draws=1, draws_at_once=1, kl_warmup=0.5 if infer_w0 else 0.0),
        Batches(64, augment=RandomView(1, padding="fill")),
        Optimizer(2e-2, partial(grouped_muon, 2e-2), clip=1.0, ema=0.99),
    )
    return Preset(lambda key: net(key=key), Categorical(), training, members=size.members)


def vectors(name: str, about: About, infer_w0: bool) -> Preset:
    """Our net for vectors in arrays, which may be larger than memory, with inputs and targets standardised inside.

    Tables with columns, from a .csv file or by name, are learned by the estimators instead.
    """
    (size,) = about.shape
    outputs = len(about.target_center) if about.classes is None else len(about.classes)
    columns = Standardiser(np.array(about.center), np.array(about.spread))
    targets = Standardiser.identity(outputs)
    if about.classes is None:
        targets = Standardiser(np.array(about.target_center), np.array(about.target_spread))
    least, most = targets.spread.min(), targets.spread.max()
    if most > MAX_RATIO_OF_SPREADS * least:
        warnings.warn(
            f"the targets of {about.name} have spreads from {least:.3g} to {most:.3g}, and one noise for all: divide "
            "each target by its spread.",
            stacklevel=2,
        )
    into, out = Affine(-columns.center / columns.spread, 1 / columns.spread), Affine(*targets)
    # The noise starts at a tenth of the targets' spread.
    likelihood = (
        Categorical() if about.classes is not None else Gaussian(0.1 * float(targets.spread.mean()), learn=True)
    )

    def net(key: PRNGKeyArray) -> SDEBNN:
        initial = Normal if infer_w0 else Point
        return SDEBNN.paper_mlp(size, outputs, widths=(32,), initial=initial, encoder=into, decoder=out, key=key)

    batch = min(256, about.examples)
    epochs = max(10, 20_000 * batch // (4 * about.examples))
    training = Recipe(epochs, Objective(), Batches(batch), Optimizer(1e-2, clip=100.0, ema=0.998))
    return Preset(
        net, likelihood, training, draws_at_once=16, members=MEMBERS_OF_VECTORS[name], in_turn=False
    )  # fmt: skip


class Affine(eqx.Module):
    """shift + scale · x, where shift and scale are not trained."""

    shift: tuple[float, ...] = eqx.field(static=True)
    scale: tuple[float, ...] = eqx.field(static=True)

    def __init__(self, shift: Iterable[float], scale: Iterable[float]):
        self.shift, self.scale = tuple(map(float, shift)), tuple(map(float, scale))

    def training_inputs(self) -> TrainingInputs:
        """The columns that this layer standardises: those of the training, as it is an encoder."""
        shift, scale = np.array(self.shift), np.array(self.scale)
        return TrainingInputs.table(Standardiser(-shift / scale, 1 / scale))

    def __call__(self, x: Float[Array, " feature"]) -> Float[Array, " feature"]:
        if x.shape != (len(self.shift),):
            raise ValueError(
                f"an example has shape {x.shape}, and the model takes ({len(self.shift)},): pass such examples."
            )
        return jnp.asarray(self.shift, x.dtype) + jnp.asarray(self.scale, x.dtype) * x
