"""What a row of the table is: a net, and how to train and to judge it; and the rows that every kind of data has."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from jaxtyping import PRNGKeyArray

from sdebnn.baselines import HyperODEBlock, ODEBlock, PartlyRandom, bbvi
from sdebnn.integrate import Estimator, FixedGrid
from sdebnn.models import SDEBlock, bayesianize
from sdebnn.processes import OU, Law, Point, Weights


class Row(NamedTuple):
    """A net, made from a key, the arguments of ``fit`` to train it with, and the draws that judge it."""

    name: str
    net: Callable[[PRNGKeyArray], Any]
    training: dict[str, Any]
    draws: int = 1


class Blocks(NamedTuple):
    """What a field of continuous depth may be made into, by functions of it and a key."""

    grid: FixedGrid
    sigma: float
    drift: Sequence[int]
    inferred: Callable[[Weights], Law]  # w_0, where it is
    plain: Callable[[Weights], Law]  # w_0, in rows that do not say
    layer: int  # the one that is random, where only one is

    def ode(self, field: Any, key: PRNGKeyArray) -> ODEBlock:
        """Deterministic, weights constant over depth."""
        return ODEBlock(field, solver=self.grid)

    def hyper(self, field: Any, key: PRNGKeyArray) -> HyperODEBlock:
        """Deterministic, weights moved by a learned drift."""
        return HyperODEBlock(field, drift=self.drift, solver=self.grid, key=key)

    def gaussian(self, field: Any, key: PRNGKeyArray) -> SDEBlock:
        """A Gaussian process as the posterior."""
        return bbvi(field, prior=OU(sigma=self.sigma), initial=self.plain, solver=self.grid, key=key)

    def sde(
        self, initial: Callable[[Weights], Law], kl: Estimator, field: Any, key: PRNGKeyArray, where: Any = None
    ) -> SDEBlock:
        """The paper's."""
        return bayesianize(
            field, where, prior=OU(sigma=self.sigma), drift=self.drift, initial=initial, solver=self.grid, kl=kl,
            key=key,
        )  # fmt: skip

    def half(self, field: Any, key: PRNGKeyArray) -> PartlyRandom:
        """Random in the first half of its depth."""
        return PartlyRandom(self.sde(self.plain, "analytic", field, key), 0.5)

    def one_layer(self, field: Any, key: PRNGKeyArray) -> SDEBlock:
        """Random in one layer."""
        return self.sde(self.plain, "analytic", field, key, where=lambda field: field.layers[self.layer])


def random_depth(net: Callable[..., Any], blocks: Blocks, training: dict[str, Any], draws: int) -> list[Row]:
    """The rows whose weights are a process over depth; ``net`` puts blocks of a kind into a net, made from a key."""
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
