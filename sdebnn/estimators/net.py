"""The net of the estimators: an encoder of the columns, a random field over depth, and a linear read-out."""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn.host_arrays import normals
from sdebnn.integrate import FixedGrid
from sdebnn.models import SDEBNN
from sdebnn.processes import OU, Point

MIN_STATE, MAX_STATE = 32, 64  # sizes of the hidden state
SPARE_STATE = 8  # numbers of the state that hold no column; if there is no room for them, the columns are mixed
BINS, BINS_IF_MIXED = 16, 4  # bins of each column; fewer if the columns are mixed
DRIFT_WIDTHS = (16, 16)  # of the posterior's drift


class Encoder(eqx.Module):
    """The hidden state at depth 0: the standardised columns, padded or mixed to its size, plus a map of all bins."""

    bins: Float[Array, "state bin"]
    columns: Float[Array, "state feature"] | None
    features: int = eqx.field(static=True)

    def __init__(self, features: int, bins: int, *, key: PRNGKeyArray):
        state = min(MAX_STATE, max(MIN_STATE, features + SPARE_STATE))
        self.features, self.bins, self.columns = features, jnp.asarray(normals(key, (state, features * bins))), None
        if features + SPARE_STATE > state:
            self.columns = jnp.asarray(normals(jax.random.fold_in(key, 1), (state, features)))

    @property
    def state(self) -> int:
        """The size of the hidden state."""
        return self.bins.shape[0]

    def __call__(self, x: Float[Array, " input"]) -> Float[Array, " state"]:
        z, bins = x[: self.features], x[self.features :]
        if self.columns is None:
            return jnp.pad(z, (0, self.state - self.features)) + self.bins @ bins
        return self.columns @ z / math.sqrt(self.features) + self.bins @ bins


class NetSizes(NamedTuple):
    """The arguments from which a net is built, except for the key."""

    features: int  # a multiple of eight, so that tables with a few columns more or fewer share a program
    outputs: int
    width: int
    steps: int
    sigma: float

    @property
    def bins(self) -> int:
        """The number of bins of each column."""
        return BINS if self.features + SPARE_STATE <= MAX_STATE else BINS_IF_MIXED

    def model(self, key: PRNGKeyArray) -> SDEBNN:
        """An SDE-BNN before training."""
        encoder_key, key = jax.random.split(key)
        encoder = Encoder(self.features, self.bins, key=encoder_key)
        return SDEBNN.paper_mlp(
            encoder.state, self.outputs, widths=(self.width,), augment=0, prior=OU(sigma=self.sigma),
            drift=DRIFT_WIDTHS, initial=Point, solver=FixedGrid(self.steps, gradient="backprop", unroll=1),
            encoder=encoder, key=key,
        )  # fmt: skip
