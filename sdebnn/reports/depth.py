"""Weights and hidden units of a trained net over depth, drawn from its posterior for a report."""

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, Num, PRNGKeyArray

from sdebnn.contract import AbstractModel
from sdebnn.models import SDEBNN, Ensemble, SDEBlock
from sdebnn.outcomes import ClassOutcomes, Outcomes
from sdebnn.programs import compiled
from sdebnn.runs import open_run, read_stages
from sdebnn.runs.run import stage_folder
from sdebnn.tables.kind import is_table_run
from sdebnn.train import saved_steps

DRAWS = 256
CHOOSING_DRAWS = 64  # by which weights and units are chosen
SHARES = (0.0, 0.25, 0.5)  # of those that move further than the weights, or the units, that are shown
MAX_WEIGHTS_DRAWN = 400_000_000  # over all steps and draws: fewer draws for larger blocks, so that a report stays quick
LEAST_DRAWS = 32


class Depths(NamedTuple):
    """Draws of some weights of a block, and of some of its hidden units for two examples.

    The examples are the one about which the forecast is surest, and the one about which it is least sure. Weights are
    standardised, as the prior knows them.
    """

    t: Float[np.ndarray, " time"]
    weights: Float[np.ndarray, "draw time weight"]
    units: Float[np.ndarray, "draw time example unit"]
    chosen_weights: Int[np.ndarray, " weight"]
    chosen_units: Int[np.ndarray, " unit"]
    weight_count: int  # of the block
    unit_count: int
    blocks: int  # random ones, of the net
    nets: int  # of the mixture


def depths(run: Path, x: np.ndarray, rows: Int[np.ndarray, " row"], outcomes: Outcomes) -> Depths | None:
    """The first random block of the first net of a run over depth; None if the net is not kept, or has none.

    ``x`` are the examples with the numbers ``rows`` among the outcomes. Weights and units are put in order by how far
    their mean moves from depth 0 to depth 1. The furthest, the one at a quarter of the order, and the middle one are
    chosen. Layers before the block are evaluated with one key, so that all draws start from the same hidden units.
    """
    if is_table_run(run) or not any(saved_steps(stage_folder(run, i)) for i in range(len(read_stages(run)))):
        return None
    made, model, _ = open_run(run)
    found = _first_block(model)
    if found is None or not len(rows):
        return None
    before, block, count = found
    key = jax.random.fold_in(jax.random.key(made.settings.seed), 5)
    h: Array = jnp.asarray(x[_surest_and_least_sure(outcomes, rows)])
    for i, layer in enumerate(before):
        h = layer.solve(h, key=jax.random.fold_in(key, i)).outputs
    first, second = jax.random.split(jax.random.fold_in(key, len(before)))
    times = np.asarray(block.solver.times())
    affordable = max(LEAST_DRAWS, MAX_WEIGHTS_DRAWN // (len(times) * block.weights.size))
    weights, units = _distances(block, h, jax.random.split(first, min(CHOOSING_DRAWS, affordable)))
    chosen_weights, chosen_units = _in_order(weights), _in_order(units)
    keys = jax.random.split(second, min(DRAWS, affordable))
    chosen = jnp.asarray(chosen_weights), jnp.asarray(chosen_units)
    w, states = (np.stack(each) for each in zip(*(_chosen_path(block, h, key, *chosen) for key in keys), strict=True))
    return Depths(
        times, w, states, chosen_weights, chosen_units,
        block.weights.size, units.size, count, len(made.nets),
    )  # fmt: skip


def _first_block(model: AbstractModel) -> tuple[tuple[AbstractModel, ...], SDEBlock, int] | None:
    """The layers before the first random block, that block, and how many there are; None if there is none."""
    net = model.member(0) if isinstance(model, Ensemble) else model
    if not isinstance(net, SDEBNN):
        return None
    places = [i for i, layer in enumerate(net.layers) if isinstance(layer, SDEBlock)]
    if not places:
        return None
    block = net.layers[places[0]]
    assert isinstance(block, SDEBlock)
    return net.layers[: places[0]], block, len(places)


def _surest_and_least_sure(outcomes: Outcomes, rows: Int[np.ndarray, " row"]) -> Int[np.ndarray, " example"]:
    """The places in ``rows`` of two examples."""
    if isinstance(outcomes, ClassOutcomes):
        doubt = 1 - outcomes.probs[rows].max(-1)
    else:
        doubt = (outcomes.mean[:, rows].var(0) + outcomes.variance[:, rows].mean(0)).sum(-1)
    return np.array([doubt.argmin(), doubt.argmax()])


def _in_order(distance: Float[np.ndarray, " one"]) -> Int[np.ndarray, " chosen"]:
    """The numbers of those that move furthest, further than three quarters of all, and further than half of them."""
    order = np.argsort(-distance, kind="stable")
    if len(order) <= len(SHARES):
        return order
    places = sorted({int(share * (len(order) - 1)) for share in SHARES})
    return order[places]


def _distances(
    block: SDEBlock, h: Num[Array, "example *input"], keys: Key[Array, " draw"]
) -> tuple[Float[np.ndarray, " weight"], Float[np.ndarray, " unit"]]:
    """How far the mean over draws of each weight, and of each hidden unit in the mean of the examples, moves."""
    every = [_moved(block, h, key) for key in keys]
    weights, units = (
        np.mean([np.asarray(moved, float) for moved in some], axis=0) for some in zip(*every, strict=True)
    )
    return np.abs(weights), np.abs(units).mean(0)


# One program, called for one draw after the other: convolutions are slow inside a loop over draws.
@compiled
def _moved(
    block: SDEBlock, h: Num[Array, "example *input"], key: PRNGKeyArray
) -> tuple[Float[Array, " weight"], Float[Array, "example unit"]]:
    w, (states, _) = block.draw(key=key).w, block.trajectory(h, key=key)
    return w[-1] - w[0], (states[-1] - states[0]).reshape(h.shape[0], -1)


@compiled
def _chosen_path(
    block: SDEBlock,
    h: Num[Array, "example *input"],
    key: PRNGKeyArray,
    weights: Int[Array, " weight"],
    units: Int[Array, " unit"],
) -> tuple[Float[Array, "time weight"], Float[Array, "time example unit"]]:
    """One draw of some weights, and of some hidden units of every example."""
    w, (states, _) = block.draw(key=key).w, block.trajectory(h, key=key)
    return w[:, weights], states.reshape(*states.shape[:2], -1)[..., units]
