"""How strange inputs are to a trained classifier, by the hidden states through which they pass.

At each layer l, a hidden state is summarised by the mean and the standard deviation of every channel. In training, the
summaries of each class c are nearly normal, so that the distance of an example from the nearest class is

d_l² = min_c (s_l - m_lc)ᵀ C_lc⁻¹ (s_l - m_lc) / dim.

log d_l is standardised by its mean and spread over training examples from which m and C were not computed. The mean of
that over layers, relative to what 99 % of those examples do not exceed, is the logarithm of the distance.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer, Num, PRNGKeyArray
from scipy import linalg

from sdebnn.checks import as_inputs, check_array, check_count, check_key
from sdebnn.contract import AbstractModel, check_model
from sdebnn.data import USUAL, Inputs
from sdebnn.programs import compiled

MAX_DIMENSIONS = 64  # of a summary, after a random rotation
SHRINKAGE = 0.3  # the covariance of all classes counts as this many examples of each class for every dimension
RIDGE = 1e-3  # on correlations
MIN_ROWS_TO_SPLIT = 20
MAX_LOG = 50.0  # of a distance, so that it stays finite

Summaries = list[Float[np.ndarray, "example feature"]]


class LayerDistance(NamedTuple):
    """The distance of the summaries of one layer from the nearest class, and its usual logarithm."""

    projection: Float[np.ndarray, "feature dim"]
    means: Float[np.ndarray, "class dim"]
    factors: Float[np.ndarray, "class dim dim"]  # L with L Lᵀ = C⁻¹
    center: float = 0.0
    spread: float = 1.0

    @staticmethod
    def of(summaries: Float[np.ndarray, "example feature"], labels: Integer[np.ndarray, " example"]) -> "LayerDistance":
        """The distance from these summaries, by class."""
        x = summaries.astype(np.float64)
        scale = x.std(0)
        scale = np.where(scale > 0, scale, np.maximum(1e-6 * np.abs(x.mean(0)), 1e-6))  # a constant that changes is far
        features = x.shape[1]
        rotation = np.eye(features)
        if features > MAX_DIMENSIONS:
            drawn = np.random.default_rng(features).normal(size=(features, MAX_DIMENSIONS))
            rotation = np.linalg.qr(drawn)[0]
        projection = rotation / scale[:, None]
        z = x @ projection
        classes = np.unique(labels)
        means = np.stack([z[labels == each].mean(0) for each in classes])
        rest = z - means[np.searchsorted(classes, labels)]
        shared = _shrunk(rest, np.eye(z.shape[1]), 1.0)
        return LayerDistance(
            projection, means, np.stack([_factor(_shrunk(rest[labels == each], shared, SHRINKAGE)) for each in classes])
        )

    def logarithm(self, summaries: Float[np.ndarray, "example feature"]) -> Float[np.ndarray, " example"]:
        """log d of each example, standardised."""
        z = summaries.astype(np.float64) @ self.projection
        squares = [(((z - mean) @ factor) ** 2).mean(1) for mean, factor in zip(self.means, self.factors, strict=True)]
        return (0.5 * np.log(np.maximum(np.min(squares, axis=0), 1e-30)) - self.center) / self.spread


class StateDistance(NamedTuple):
    """How far the hidden states of examples are from those of training: 99 % of training examples have at most 1.

    distance = StateDistance.of(model, x_train, y_train, key=key)
    strange = distance.to(model, x_new) > 1
    """

    layers: tuple[LayerDistance, ...]
    limit: float
    key: Integer[np.ndarray, " word"]  # names the function whose states are compared

    @staticmethod
    def of(
        model: AbstractModel,
        x: Inputs,
        labels: Num[np.ndarray, " example"],
        *,
        held_out: Inputs | None = None,
        key: PRNGKeyArray,
    ) -> "StateDistance":
        """The distance from the states of these examples. Some thousands are enough.

        What is usual is found on ``held_out``, examples on which the model was not trained; by default, on each half of
        x by the distance from the other half.
        """
        check_key(key)
        check_array("labels", labels)
        labels = np.asarray(labels)
        if labels.shape != (x.shape[0],) or labels.dtype.kind not in "iu":
            raise ValueError(f"labels have shape {labels.shape} of {labels.dtype}: pass a whole number an example.")
        found = summaries(model, x, key=key)
        others = [None] * len(found) if held_out is None else summaries(model, held_out, key=key)
        layers = [_calibrated(of_layer, labels, other) for of_layer, other in zip(found, others, strict=True)]
        limit = float(np.quantile(np.mean([held for _, held in layers], axis=0), USUAL, method="higher"))
        return StateDistance(tuple(layer for layer, _ in layers), limit, np.asarray(jax.random.key_data(key)))

    def to(self, model: AbstractModel, x: Inputs) -> Float[np.ndarray, " example"]:
        """The distance of each example. Above 1, it is stranger than 99 % of those of training."""
        found = summaries(model, x, key=jax.random.wrap_key_data(jnp.asarray(self.key)))
        sizes = [of_layer.shape[1] for of_layer in found]
        if sizes != [layer.projection.shape[0] for layer in self.layers]:
            raise ValueError(
                "the states of this model are not those from which distances were measured: pass the same."
            )
        log = np.mean([layer.logarithm(of_layer) for layer, of_layer in zip(self.layers, found, strict=True)], axis=0)
        return np.exp(np.clip(log - self.limit, -MAX_LOG, MAX_LOG))


def summaries(model: AbstractModel, x: Inputs, *, key: PRNGKeyArray, batch_size: int = 500) -> Summaries:
    """The mean and the standard deviation of each channel of each hidden state of the function that a key names."""
    check_model(model)
    check_count("batch_size", batch_size)
    if not model.has_states:
        raise ValueError(f"{type(model).__name__} has no hidden states: pass a net with several layers.")
    parts = [_summaries(model, as_inputs("x", x[i : i + batch_size]), key) for i in range(0, x.shape[0], batch_size)]
    return [np.concatenate([np.asarray(part[layer]) for part in parts]) for layer in range(len(parts[0]))]


@compiled
def _summaries(model: AbstractModel, x: Array, key: PRNGKeyArray) -> list[Array]:
    def summary(state: Array) -> Array:
        pixels, state = tuple(range(1, state.ndim - 1)), state.astype(jnp.float32)
        return jnp.concatenate([state.mean(pixels), state.std(pixels)], axis=-1) if pixels else state

    return [summary(state) for state in model.states(x, key=key)]


def _calibrated(
    of_layer: Float[np.ndarray, "example feature"],
    labels: Integer[np.ndarray, " example"],
    other: Float[np.ndarray, "other feature"] | None,
) -> tuple[LayerDistance, Float[np.ndarray, " held"]]:
    """The distance from all examples, and the logarithms of others, or for each half by that from the other half."""
    layer, halves = LayerDistance.of(of_layer, labels), np.zeros(len(labels), int)
    for each in np.unique(labels):  # half of every class
        halves[labels == each] = np.arange((labels == each).sum()) % 2
    if other is not None:
        held = layer.logarithm(other)
    elif len(labels) < MIN_ROWS_TO_SPLIT:
        held = layer.logarithm(of_layer)
    else:
        held = np.empty(len(labels))
        for half in (0, 1):
            held[halves == half] = LayerDistance.of(of_layer[halves != half], labels[halves != half]).logarithm(
                of_layer[halves == half]
            )
    center, spread = float(held.mean()), float(held.std())
    spread = spread if spread > 0 else 1.0
    return layer._replace(center=center, spread=spread), (held - center) / spread


def _shrunk(
    rest: Float[np.ndarray, "example dim"], target: Float[np.ndarray, "dim dim"], weight: float
) -> Float[np.ndarray, "dim dim"]:
    """The covariance of residuals, mixed with a target that counts as ``weight`` examples for every dimension."""
    rows, dim = rest.shape
    share = weight * dim / (rows + weight * dim)
    return (1 - share) * (rest.T @ rest) / max(rows, 1) + share * target


def _factor(covariance: Float[np.ndarray, "dim dim"]) -> Float[np.ndarray, "dim dim"]:
    """L with L Lᵀ = C⁻¹, with a ridge on the correlations."""
    spread = np.sqrt(np.diag(covariance))
    spread = np.where(spread > 0, spread, 1.0)
    root = linalg.cholesky(covariance / np.outer(spread, spread) + RIDGE * np.eye(len(spread)), lower=True)
    return linalg.solve_triangular(root, np.eye(len(spread)), lower=True).T / spread[:, None]
