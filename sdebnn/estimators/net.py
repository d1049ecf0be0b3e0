"""The net of the estimators: encoded columns into a hidden state, a random field over its depth, a linear read-out."""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn.integrate import FixedGrid
from sdebnn.models import SDEBNN, Deterministic
from sdebnn.processes import OU, Point
from sdebnn.starts import normals

STATE = (32, 64)  # numbers in the hidden state: at least, and at most
ZEROS = 8  # of which are no column of the table, at least, or columns are mixed
BINS, BINS_OF_MANY = 16, 4  # of a column; where there are too many columns for the state to hold
DRIFT = (16, 16)  # widths of the net of the posterior's drift


class Encoder(eqx.Module):
    """h_0: the standardised columns and zeros, or a map of the columns if they are many; plus a map of all bins."""

    bins: Float[Array, "state bin"]
    columns: Float[Array, "state feature"] | None
    features: int = eqx.field(static=True)

    def __init__(self, features: int, bins: int, *, key: PRNGKeyArray):
        least, most = STATE
        state = min(most, max(least, features + ZEROS))
        self.features, self.bins, self.columns = features, jnp.asarray(normals(key, (state, features * bins))), None
        if features + ZEROS > state:
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


class Net(NamedTuple):
    """All that a net is built from, beside a key."""

    features: int  # a multiple of eight: tables of a few columns more or fewer share a program
    outputs: int
    width: int
    steps: int
    sigma: float

    @property
    def bins(self) -> int:
        """The bins of each column."""
        return BINS if self.features + ZEROS <= STATE[1] else BINS_OF_MANY

    def model(self, key: PRNGKeyArray) -> SDEBNN:
        """An SDE-BNN before any data."""
        encoder_key, key = jax.random.split(key)
        encoder = Encoder(self.features, self.bins, key=encoder_key)
        inner = SDEBNN.mlp(
            encoder.state, self.outputs, widths=(self.width,), augment=0, prior=OU(sigma=self.sigma), drift=DRIFT,
            initial=Point, solver=FixedGrid(self.steps, gradient="backprop", unroll=1), key=key,
        )  # fmt: skip
        return SDEBNN((Deterministic(encoder), *inner.layers))
