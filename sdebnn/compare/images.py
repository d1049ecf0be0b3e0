"""Rows for the classification of images: those of the paper's Table 1, and common alternatives.

Each net is the paper's ResNet32 or its continuous-depth net (one block, or 2-2-2 blocks with squeezes between), with
another law of its weights. All are trained by Adam with a cosine schedule, on batches of 64 (128 for images of at least
16 pixels), with the paper's KL weight of 1e-3. Standardised weights have ten times the learning rate of other weights.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from sdebnn.baselines import (
    HMC,
    Hypernet,
    LastLayerLaplace,
    MCDropout,
    ResNet,
    TemperatureScaled,
    bayes_by_backprop,
)
from sdebnn.compare.rows import Blocks, Row, random_depth
from sdebnn.contract import AbstractModel
from sdebnn.convolutions import Pixels, TimeConv
from sdebnn.data import DataSet, pixel_statistics
from sdebnn.integrate import FixedGrid
from sdebnn.models import SDEBNN, Deterministic, Ensemble, MeanField
from sdebnn.nets import euler, paper_net
from sdebnn.processes import Normal, Point
from sdebnn.train import Batches, Objective, Optimizer, Recipe

KL_WEIGHT = 1e-3
MEMBERS = 4


class Size(NamedTuple):
    """The sizes of the nets, and how long they are trained."""

    widths: tuple[int, int, int]  # channels of the ResNet at each scale
    blocks: tuple[int, ...]  # number of continuous-depth blocks at each scale
    width: int  # hidden channels of their fields
    drift: tuple[int, ...]
    grid: FixedGrid
    batch: int
    epochs: int


def size_of(shape: tuple[int, int, int]) -> Size:
    """The paper's sizes; for images below 16 pixels, sizes that two cores train in half a minute."""
    if min(shape[:2]) < 16:
        return Size((8, 16, 32), (1,), 16, (1, 64, 1), FixedGrid(10, unroll=1, at_once=16), 64, 20)
    if shape[2] > 1 and shape[0] % 8 == shape[1] % 8 == 0:
        return Size((16, 32, 64), (2, 2, 2), 64, (2, 128, 2), euler(20, 6), 128, 500)
    return Size((16, 32, 64), (1,), 32, (1, 64, 1), euler(20), 128, 100)


def rows(data: DataSet) -> list[Row]:
    """All rows for the classification of images. An exact Gaussian process is missing, since it needs normal noise."""
    nets = ImageNets(data)
    blocks = Blocks(nets.size.grid, 0.1, nets.size.drift, partial(Normal, std=0.05), Point, 1)
    raw, standardised, slow = (
        Recipe(nets.size.epochs, Objective(draws=1, draws_at_once=1), Batches(nets.size.batch), Optimizer(rate))
        for rate in (2e-3, 2e-2, 5e-3)
    )
    bayes, slow, raw_bayes = (recipe.changed(kl_weight=KL_WEIGHT) for recipe in (standardised, slow, raw))
    resnet, ode, hyper = nets.resnet, partial(nets.depth, blocks.ode), partial(nets.depth, blocks.hyper)
    return [
        Row("ResNet32", resnet, raw),
        Row("ODEnet", ode, standardised),
        Row("HyperODEnet", hyper, standardised),
        Row("MFVI ResNet32", lambda key: MeanField(resnet(key)), bayes, 16),
        Row("MFVI ODEnet (Bayesian neural ODE)", lambda key: MeanField(ode(key)), bayes, 16),
        Row("MFVI HyperODEnet", lambda key: MeanField(hyper(key)), bayes, 16),
        Row("Bayes by Backprop", lambda key: bayes_by_backprop(resnet(key)), bayes, 16),
        Row("Bayesian hypernet", lambda key: Hypernet(ode(key), key=key), slow, 16),
        *random_depth(nets.depth, blocks, bayes, 16),
        Row("Deep Ensemble", nets.ensemble, raw, MEMBERS),
        Row("HMC", nets.hmc, standardised.changed(epochs=3 * nets.size.epochs), 100),
        Row("Temperature scaling", lambda key: TemperatureScaled(resnet(key)), raw),
        Row("Laplace (last layer)", nets.laplace, raw, 16),
        Row("MC dropout", lambda key: MCDropout(resnet(key), 0.1), raw_bayes, 16),
    ]


class ImageNets:
    """The nets for one data set. Each method makes one from a key."""

    def __init__(self, data: DataSet):
        self.shape, self.looks = pixel_statistics(data)
        self.classes = len(data.classes or ())
        self.size = size_of(self.shape)

    def pixels(self) -> Deterministic:
        return Deterministic(Pixels(self.shape, self.looks["mean"], self.looks["std"]))

    def resnet(self, key: PRNGKeyArray) -> SDEBNN:
        body, head = jax.random.split(key)
        features = ResNet(self.shape[2], None, widths=self.size.widths, key=body)
        linear = eqx.nn.Linear(self.size.widths[-1], self.classes, key=head)
        return SDEBNN((self.pixels(), Deterministic(features), Deterministic(linear)))

    def depth(self, block: Callable[[TimeConv, PRNGKeyArray], AbstractModel], key: PRNGKeyArray) -> SDEBNN:
        """The paper's net of continuous depth with blocks of some kind."""
        size = self.size
        return paper_net(
            self.shape, self.classes, blocks=size.blocks, width=size.width, solver=size.grid, block=block,
            mean=self.looks["mean"], std=self.looks["std"], key=key,
        )  # fmt: skip

    def ensemble(self, key: PRNGKeyArray) -> Ensemble:
        return Ensemble([self.resnet(k) for k in jax.random.split(key, MEMBERS)])

    def laplace(self, key: PRNGKeyArray) -> LastLayerLaplace:
        *body, _ = self.resnet(key).layers
        head_key = jax.random.split(key)[1]
        return LastLayerLaplace(SDEBNN(tuple(body)), self.size.widths[-1], self.classes, prior_std=3.0, key=head_key)

    def hmc(self, key: PRNGKeyArray) -> HMC:
        """HMC on a net of one hidden layer: two cores cannot sample a larger one, since each step needs all data."""
        size = self.shape[0] * self.shape[1] * self.shape[2]
        mlp = eqx.nn.MLP(size, self.classes, 16, 1, activation=jnp.tanh, key=key)
        net = SDEBNN((self.pixels(), Deterministic(jnp.ravel), Deterministic(mlp)))
        return HMC(net, prior_std=3.0, warmup=150, draws=150, doublings=7)
