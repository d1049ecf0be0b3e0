"""A model before it has seen any data."""

from typing import TypeVar

import jax
from jaxtyping import PyTree

from sdebnn.contract import AbstractModel
from sdebnn.models.block import SDEBlock
from sdebnn.models.readout import ConditionedReadout
from sdebnn.processes import NoDrift

Model = TypeVar("Model", bound=AbstractModel)


def prior_of(model: Model) -> Model:
    """The same model before any data: no drift, guide or pseudo-observation, and w_0 of its prior, so the KL is 0.

        before = predict(prior_of(model), x, draws=4, key=key)

    Deterministic parameters, and a w_0 that is a point, stay as they are.
    """

    def is_random(node: PyTree) -> bool:
        return isinstance(node, SDEBlock | ConditionedReadout)

    def forget(node: PyTree) -> PyTree:
        if isinstance(node, ConditionedReadout):
            return node.prior().with_body(prior_of(node.body))
        if isinstance(node, SDEBlock):
            law = node.initial.prior()
            return SDEBlock(node.field, node.weights, node.prior, NoDrift(), law, node.solver, node.kl)
        return node

    return jax.tree.map(forget, model, is_leaf=is_random)
