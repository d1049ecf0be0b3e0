"""The parts of nets: models and how they are combined, fields over depth, layers for images.

A net is a sequence of models, ``SDEBNN((first, second, ...))``. ``bayesianize`` makes a field a random block, and
``Deterministic`` makes a module of one example a model. ``our_net`` and ``paper_net`` are built from these parts,
from ``sdebnn.processes`` and from ``sdebnn.integrate``.
"""

from sdebnn.contract import AbstractModel, draw_keys
from sdebnn.convolutions import (
    Conv,
    GroupNorm,
    Pixels,
    ResidualConv,
    TimeConv,
    TimeConvLayer,
    pooled,
    squeeze,
    unsqueeze,
)
from sdebnn.fields import AbstractLayer, Augment, Readout, Standardised, TimeMLP, fan_in_scale, over_batch, own_scales
from sdebnn.integrate import Guide, Solution
from sdebnn.models import (
    SDEBNN,
    ConditionedReadout,
    Deterministic,
    Ensemble,
    MeanField,
    ODEBlock,
    SDEBlock,
    Views,
    bayesianize,
    blocks,
    map_blocks,
    prior_of,
    refined,
)
from sdebnn.waves import Waves

__all__ = [
    "SDEBNN",
    "AbstractLayer",
    "AbstractModel",
    "Augment",
    "ConditionedReadout",
    "Conv",
    "Deterministic",
    "Ensemble",
    "GroupNorm",
    "Guide",
    "MeanField",
    "ODEBlock",
    "Pixels",
    "Readout",
    "ResidualConv",
    "SDEBlock",
    "Solution",
    "Standardised",
    "TimeConv",
    "TimeConvLayer",
    "TimeMLP",
    "Views",
    "Waves",
    "bayesianize",
    "blocks",
    "draw_keys",
    "fan_in_scale",
    "map_blocks",
    "over_batch",
    "own_scales",
    "pooled",
    "prior_of",
    "refined",
    "squeeze",
    "unsqueeze",
]
