"""Models: blocks of infinite depth, any module made random, sequences of models, and their deterministic parts."""

from sdebnn.models.bayesianize import bayesianize, picked
from sdebnn.models.block import SDEBlock, blocks, map_blocks, refined
from sdebnn.models.ensemble import Ensemble, index_of, keys_in_turn
from sdebnn.models.field_block import AbstractFieldBlock
from sdebnn.models.mean_field import MeanField
from sdebnn.models.ode import ODEBlock, check_grid
from sdebnn.models.prior import prior_of
from sdebnn.models.readout import ConditionedReadout
from sdebnn.models.sequence import SDEBNN, Deterministic, as_model
from sdebnn.models.views import Views
from sdebnn.models.weights import Frozen, WeightFunction, check_deterministic, taken_apart

__all__ = [
    "SDEBNN",
    "AbstractFieldBlock",
    "ConditionedReadout",
    "Deterministic",
    "Ensemble",
    "Frozen",
    "MeanField",
    "ODEBlock",
    "SDEBlock",
    "Views",
    "WeightFunction",
    "as_model",
    "bayesianize",
    "blocks",
    "check_deterministic",
    "check_grid",
    "index_of",
    "keys_in_turn",
    "map_blocks",
    "picked",
    "prior_of",
    "refined",
    "taken_apart",
]
