"""How strange inputs are to a trained classifier, by the hidden states through which they pass.

At each layer l, a hidden state is summarised by the mean and the standard deviation of every channel. In training, the
summaries of each class c are nearly normal, so that the distance of an example from the nearest class is

d_l² = min_c (s_l - m_lc)ᵀ C_lc⁻¹ (s_l - m_lc) / dim.

log d_l is standardised by its mean and spread over examples from which m and C were not computed. The mean of that over
layers, minus what 99 % of those examples do not exceed, is the logarithm of the distance.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer, Num, PRNGKeyArray
from scipy import linalg, stats
from scipy.spatial.distance import cdist

from sdebnn.checks import check_array, check_key
from sdebnn.contract import AbstractModel, check_model
from sdebnn.data import USUAL, Inputs
from sdebnn.prediction import in_batches
from sdebnn.programs import compiled

MAX_DIMENSIONS = 64  # of a summary, after a random rotation
MAX_COVARIANCES = 100  # with more classes, all share one
SHRINKAGE = 0.3  # the covariance of all classes counts as this many examples of each class for every dimension
RIDGE = 1e-3  # on correlations
ROUNDING = 1e-5  # relative to the states of a layer: a smaller spread is that of rounding errors
MIN_HELD_OUT = 20  # with fewer, what is usual is found on halves of the training examples
MIN_ROWS_TO_SPLIT = 4
MAX_STATE = 1e38  # in place of states that overflow
MAX_LOG = 50.0  # of a distance, so that it stays finite

Summaries = list[Float[np.ndarray, "example feature"]]


class LayerDistance(NamedTuple):
    """The distance of the summaries of one layer from the nearest class, and its usual logarithm."""

    projection: Float[np.ndarray, "feature dim"]
    means: Float[np.ndarray, "class dim"]
    factors: Float[np.ndarray, "covariance dim dim"]  # L with L Lᵀ = C⁻¹, of each class or of all together
    center: float = 0.0
    spread: float = 1.0

    @staticmethod
    def of(summaries: Float[np.ndarray, "example feature"], labels: Integer[np.ndarray, " example"]) -> "LayerDistance":
        """The distance from these summaries, by class."""
        x = summaries.astype(np.float64)
        projection, rounding = _projection(x)
        z = x @ projection
        classes, index, counts = np.unique(labels, return_inverse=True, return_counts=True)
        means = np.zeros((len(classes), z.shape[1]))
        np.add.at(means, index, z)
        means /= counts[:, None]
        rest = z - means[index]
        covariances = [_shrunk(rest, len(classes), np.eye(z.shape[1]), 1.0)]
        if len(classes) <= MAX_COVARIANCES:
            of_classes = (rest[index == each] for each in range(len(classes)))
            covariances = [_shrunk(of_class, 1, covariances[0], SHRINKAGE) for of_class in of_classes]
        return LayerDistance(projection, means, np.stack([_factor(each + rounding) for each in covariances]))

    def logarithm(self, summaries: Float[np.ndarray, "example feature"]) -> Float[np.ndarray, " example"]:
        """log d of each example, standardised. States that are not finite are as far as can be."""
        x = np.nan_to_num(summaries.astype(np.float64), nan=MAX_STATE, posinf=MAX_STATE, neginf=-MAX_STATE)
        z = x @ self.projection
        if len(self.factors) == len(self.means):
            pairs = zip(self.means, self.factors, strict=True)
            squares = np.min([(((z - mean) @ factor) ** 2).mean(1) for mean, factor in pairs], axis=0)
        else:
            squares = cdist(z @ self.factors[0], self.means @ self.factors[0], "sqeuclidean").min(1) / z.shape[1]
        return (0.5 * np.log(np.maximum(squares, 1e-30)) - self.center) / self.spread


class StateDistance(NamedTuple):
    """How far the hidden states of examples are from those of training: of examples like those, 99 % have at most 1.

        distance = StateDistance.of(net, images, np.asarray(labels), key=key)
        strange = distance.to(net, 255 - images) > 1

    Make one with ``of``. The logarithm of a distance is in standard deviations of the mean logarithmic distance of a
    layer. ``layers`` holds what is known of each layer, and ``limit`` is the logarithm that 99 % do not exceed.
    """

    layers: tuple[LayerDistance, ...]
    limit: float
    key: Integer[np.ndarray, " word"]  # names the function whose states are compared

    @staticmethod
    def of(
        model: AbstractModel,
        x: Inputs,
        labels: Num[np.ndarray, " example"] | None = None,
        *,
        held_out: Inputs | None = None,
        key: PRNGKeyArray,
    ) -> "StateDistance":
        """The distance from the states of these examples, by class if they have labels. Some thousands are enough.

        The ``key`` names the function of the model whose states are compared. What is usual is found on ``held_out``,
        examples on which the model was not trained. If there are fewer than 20, it is found on each half of x by the
        distance from the other half.
        """
        check_key(key)
        classes = np.zeros(x.shape[0], int) if labels is None else np.asarray(labels)
        if labels is not None:
            check_array("labels", classes)
        if classes.shape != (x.shape[0],) or classes.dtype.kind not in "iu":
            raise ValueError(f"labels have shape {classes.shape} of {classes.dtype}: pass a whole number an example.")
        if held_out is not None and held_out.shape[1:] != x.shape[1:]:
            raise ValueError(f"held_out has examples of shape {held_out.shape[1:]}, and x of {x.shape[1:]}.")
        found = summaries(model, x, key=key)
        wrong = next((i for i, of_layer in enumerate(found) if not np.isfinite(of_layer).all()), None)
        if wrong is not None:
            raise ValueError(f"hidden state {wrong} of the model is not finite: train it anew, with a lower rate.")
        if held_out is None or held_out.shape[0] < MIN_HELD_OUT:
            others = [None] * len(found)
        else:
            others = summaries(model, held_out, key=key)
        layers = [_calibrated(of_layer, classes, other) for of_layer, other in zip(found, others, strict=True)]
        limit = _usual(np.mean([held for _, held in layers], axis=0))
        return StateDistance(tuple(layer for layer, _ in layers), limit, np.asarray(jax.random.key_data(key)))

    def to(self, model: AbstractModel, x: Inputs) -> Float[np.ndarray, " example"]:
        """The distance of each example. Above 1, it is stranger than 99 % of what is usual."""
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
    if not model.has_states:
        raise ValueError(f"{type(model).__name__} has no hidden states: pass a net with several layers.")
    parts = in_batches(lambda batch: [np.asarray(part) for part in _summaries(model, batch, key)], x, batch_size)
    return [np.concatenate(layer) for layer in zip(*parts, strict=True)]


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
    layer = LayerDistance.of(of_layer, labels)
    if other is not None:
        held = layer.logarithm(other)
    elif len(labels) < MIN_ROWS_TO_SPLIT:
        held = layer.logarithm(of_layer)
    else:
        held, halves = np.empty(len(labels)), np.empty(len(labels), int)
        halves[np.argsort(labels, kind="stable")] = np.arange(len(labels)) % 2  # half of every class
        for half in (0, 1):
            held[halves == half] = LayerDistance.of(of_layer[halves != half], labels[halves != half]).logarithm(
                of_layer[halves == half]
            )
    center, spread = float(held.mean()), float(held.std())
    spread = spread if spread > 0 else 1.0
    return layer._replace(center=center, spread=spread), (held - center) / spread


def _usual(held: Float[np.ndarray, " held"]) -> float:
    """What another example exceeds with a probability of 1 %: a rank or, with fewer than 99, of a normal law."""
    rows = len(held)
    rank = math.ceil((rows + 1) * USUAL)
    if rank <= rows:
        return float(np.sort(held)[rank - 1])
    if rows == 1:
        return float(held[0])
    return float(held.mean() + stats.t.ppf(USUAL, rows - 1) * held.std(ddof=1) * math.sqrt(1 + 1 / rows))


def _projection(
    x: Float[np.ndarray, "example feature"],
) -> tuple[Float[np.ndarray, "feature dim"], Float[np.ndarray, "dim dim"]]:
    """Divides features by their spread, and turns them to at most 64 random directions; the covariance of rounding."""
    # A constant feature that changes is far, unless the change is one of rounding.
    rounding = ROUNDING * np.maximum(np.abs(x.mean(0)), np.sqrt(np.mean(x**2)))
    scale = np.maximum(np.maximum(x.std(0), rounding), np.finfo(np.float32).tiny)
    features = x.shape[1]
    rotation = np.eye(features)
    if features > MAX_DIMENSIONS:
        drawn = np.random.default_rng(features).normal(size=(features, MAX_DIMENSIONS))
        rotation = np.linalg.qr(drawn)[0]
    return rotation / scale[:, None], (rotation.T * (rounding / scale) ** 2) @ rotation


def _shrunk(
    rest: Float[np.ndarray, "example dim"], means: int, target: Float[np.ndarray, "dim dim"], weight: float
) -> Float[np.ndarray, "dim dim"]:
    """The covariance of residuals from some means, and of a target that counts as ``weight`` examples a dimension."""
    rows, dim = rest.shape
    return (rest.T @ rest + weight * dim * target) / (rows - means + weight * dim)


def _factor(covariance: Float[np.ndarray, "dim dim"]) -> Float[np.ndarray, "dim dim"]:
    """L with L Lᵀ = C⁻¹, with a ridge on the correlations."""
    spread = np.sqrt(np.diag(covariance))
    spread = np.where(spread > 0, spread, 1.0)
    root = linalg.cholesky(covariance / np.outer(spread, spread) + RIDGE * np.eye(len(spread)), lower=True)
    return linalg.solve_triangular(root, np.eye(len(spread)), lower=True).T / spread[:, None]
