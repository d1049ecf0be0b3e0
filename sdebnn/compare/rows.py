"""The rows of a comparison: a net, how to train it, how to score it; and the rows that all kinds of data share."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from jaxtyping import Array, PRNGKeyArray, PyTree

from sdebnn.baselines import HyperODEBlock, PartlyRandom, bbvi
from sdebnn.contract import AbstractModel
from sdebnn.integrate import FixedGrid, KLEstimator
from sdebnn.models import ODEBlock, SDEBlock, bayesianize
from sdebnn.processes import OU, AbstractInitialLaw, Point, Weights
from sdebnn.train import Recipe

Field = Callable[..., Array]


class Row(NamedTuple):
    """A net as a function of a key, the options to train it with, and the number of draws to score it with."""

    name: str
    net: Callable[[PRNGKeyArray], AbstractModel]
    training: Recipe
    draws: int = 1


class Blocks(NamedTuple):
    """Kinds of blocks. Each method makes a block of a field and a key."""

    grid: FixedGrid
    sigma: float
    drift: Sequence[int]
    inferred: Callable[[Weights], AbstractInitialLaw]  # law of w_0 in rows named "w0 inferred"
    plain: Callable[[Weights], AbstractInitialLaw]  # law of w_0 in rows whose name does not say
    layer: int  # index of the random layer if only one is random

    def ode(self, field: Field, key: PRNGKeyArray) -> ODEBlock:
        """A deterministic block with constant weights."""
        return ODEBlock(field, solver=self.grid)

    def hyper(self, field: Field, key: PRNGKeyArray) -> HyperODEBlock:
        """A deterministic block whose weights follow a learned drift."""
        return HyperODEBlock(field, drift=self.drift, solver=self.grid, key=key)

    def gaussian(self, field: Field, key: PRNGKeyArray) -> SDEBlock:
        """A block with a Gaussian process as its posterior."""
        return bbvi(field, prior=OU(sigma=self.sigma), initial=self.plain, solver=self.grid, key=key)

    def sde(
        self,
        initial: Callable[[Weights], AbstractInitialLaw],
        kl: KLEstimator,
        field: Field,
        key: PRNGKeyArray,
        where: Callable[[PyTree], PyTree] | None = None,
    ) -> SDEBlock:
        """The paper's block."""
        return bayesianize(
            field, where, prior=OU(sigma=self.sigma), drift=self.drift, initial=initial, solver=self.grid, kl=kl,
            key=key,
        )  # fmt: skip

    def half(self, field: Field, key: PRNGKeyArray) -> PartlyRandom:
        """A block that is random in the first half of its depth."""
        return PartlyRandom(self.sde(self.plain, "analytic", field, key), 0.5)

    def one_layer(self, field: Field, key: PRNGKeyArray) -> SDEBlock:
        """A block that is random in one layer."""
        return self.sde(self.plain, "analytic", field, key, where=lambda field: field.layers[self.layer])


def random_depth(net: Callable[..., AbstractModel], blocks: Blocks, training: Recipe, draws: int) -> list[Row]:
    """The rows whose weights are a process over depth; ``net(block, key)`` makes a net with blocks of some kind."""
    sde = blocks.sde
    kinds = {
        "BBVI for SDEs": blocks.gaussian,
        "SDE-BNN": partial(sde, Point, "analytic"),
        "SDE-BNN + STL": partial(sde, Point, "stl"),
        "SDE-BNN, w0 inferred": partial(sde, blocks.inferred, "analytic"),
        "SDE-BNN, w0 inferred + STL": partial(sde, blocks.inferred, "stl"),
        "SDE-BNN, random to depth 1/2": blocks.half,
        "SDE-BNN, random in one layer": blocks.one_layer,
    }
    return [Row(name, partial(net, kind), training, draws) for name, kind in kinds.items()]
