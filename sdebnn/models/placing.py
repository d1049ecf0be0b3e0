"""Where a guide or a conditioned read-out begins: at which inputs, and with which pseudo-observations."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from sdebnn.checks import as_inputs
from sdebnn.contract import AbstractModel, Data
from sdebnn.likelihoods import AbstractLikelihood
from sdebnn.models.block import SDEBlock

MAX_ROWS = 4096  # of the data, from which points are chosen


def spread_out(x: Float[np.ndarray, "row column"], count: int) -> np.ndarray:
    """The indices of some rows, each as far as possible from those before it, with columns in units of their spread."""
    std = x.std(0)
    z = (x - x.mean(0)) / np.where(std > 0, std, 1.0)
    chosen = [int(np.argmax(np.sum(z**2, axis=1)))]
    distance = np.full(len(x), np.inf)
    while len(chosen) < min(count, len(x)):
        distance = np.minimum(distance, np.sum((z - z[chosen[-1]]) ** 2, axis=1))
        chosen.append(int(np.argmax(distance)))
    return np.array(chosen)


def summarised(
    x: Float[np.ndarray, "row column"],
    targets: Float[np.ndarray, "row output"],
    variances: Float[np.ndarray, "row output"],
    count: int,
) -> tuple[Float[np.ndarray, "point column"], Float[np.ndarray, "point output"], Float[np.ndarray, "point output"]]:
    """At most ``count`` points that say about the same as all rows: inputs, targets and variances.

    Each point is the mean of the rows that are nearest to one of some spread-out rows, weighted by their precision. The
    variance is that of the weighted mean.
    """
    chosen, std = x[spread_out(x, count)], x.std(0)
    unit = np.where(std > 0, std, 1.0)
    nearest = np.argmin(np.sum(((x[:, None] - chosen) / unit) ** 2, axis=-1), axis=1)
    members = (nearest == np.arange(len(chosen))[:, None]).astype(float)
    members = members[members.any(axis=1)]  # equal rows are all nearest to the first of them
    precision = members @ (1 / variances)
    inputs = members @ x / members.sum(axis=1, keepdims=True)
    return inputs, members @ (targets / variances) / precision, 1 / precision


def some_rows(data: Data) -> tuple[Array, Array]:
    """At most ``MAX_ROWS`` inputs and targets, equally far apart in the data."""
    rows = np.unique(np.linspace(0, len(data[1]) - 1, min(len(data[1]), MAX_ROWS)).round().astype(int))
    return as_inputs("x", np.asarray(data[0][rows])), jnp.asarray(data[1][rows])


class PseudoData(NamedTuple):
    """Inputs, and pseudo-observations of the outputs there."""

    points: Num[np.ndarray, "point *input"]
    targets: Float[np.ndarray, "point output"]
    variances: Float[np.ndarray, "point output"]


def pseudo_data(likelihood: AbstractLikelihood, data: Data, outputs: int, count: int) -> PseudoData:
    """At most ``count`` inputs, with pseudo-observations of the outputs there, that say about the same as the data.

    Vectors are averaged, as ``summarised`` does. Of other inputs, such as images, some rows are chosen. If not all rows
    are looked at, variances are as much smaller as there are more rows.
    """
    x, y = some_rows(data)
    targets, variances = (np.asarray(each, np.float64) for each in likelihood.pseudo_observations(y, outputs))
    variances = variances * len(y) / len(data[1])
    inputs = np.asarray(x)
    if inputs.ndim == 2:
        points, targets, variances = summarised(np.asarray(inputs, np.float64), targets, variances, count)
        return PseudoData(points.astype(inputs.dtype), targets, variances)
    chosen = spread_out(inputs.reshape(len(inputs), -1), count)
    return PseudoData(inputs[chosen], targets[chosen], variances[chosen])


def outputs_of(layers: Sequence[AbstractModel], x: Array) -> Array:
    """The outputs of deterministic layers in sequence."""
    for layer in layers:
        x = layer.solve(x, key=jax.random.key(0)).outputs
    return x


def with_placed_guide(
    layers: Sequence[AbstractModel],
    likelihood: AbstractLikelihood,
    data: Data,
    is_last: Callable[[AbstractModel], bool],
) -> tuple[AbstractModel, ...]:
    """The layers, with the first new guide placed at inputs of its block, if the layers before it are deterministic.

    It begins with pseudo-observations of the targets if the block's outputs are those of the model: if ``is_last``
    holds for the layers after it. Otherwise its points know nothing yet, and the posterior begins at the prior.
    """
    found = next(((i, layer) for i, layer in enumerate(layers) if isinstance(layer, SDEBlock)), None)
    if found is None or found[1].guide is None or not found[1].guide.is_new:
        return tuple(layers)
    number, block = found
    before, after = layers[:number], layers[number + 1 :]
    x, y = some_rows(data)
    h = outputs_of(before, x)
    return (*before, _placed(block, np.asarray(h), y, likelihood, all(map(is_last, after))), *after)


def _placed(
    block: SDEBlock, h: Float[np.ndarray, "row *state"], y: Array, likelihood: AbstractLikelihood, sees_targets: bool
) -> SDEBlock:
    guide = block.guide
    assert guide is not None
    if h.shape[1:] != guide.points.shape[1:]:
        raise ValueError(
            f"the guide's points are states of shape {guide.points.shape[1:]}, and the block has states of shape "
            f"{h.shape[1:]}: pass points of that shape."
        )
    count = guide.points.shape[0]
    if not sees_targets:
        return eqx.tree_at(lambda b: b.guide, block, guide.placed(h[spread_out(h, count)]))
    targets, variances = map(np.asarray, likelihood.pseudo_observations(y, guide.targets.shape[1]))
    return eqx.tree_at(lambda b: b.guide, block, guide.placed(*summarised(h, targets, variances, count)))
