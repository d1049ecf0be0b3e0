"""A forecaster as a program: one function from a batch of inputs to named outputs, without random numbers.

Programs are traced with 64-bit types enabled. Nets compute in float32, and everything after them in float64.
"""

import dataclasses
import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jaxtyping import Array, Key

from sdebnn.checks import check_count
from sdebnn.columns import Columns
from sdebnn.contract import AbstractModel, draw_keys
from sdebnn.export.freezing import FrozenDraws, frozen_draws
from sdebnn.export.summaries import Outputs, of_classes, of_numbers
from sdebnn.forecasters import Examples, Forecaster, NetForecaster
from sdebnn.integrate import FixedGrid
from sdebnn.models import SDEBlock, map_blocks

INPUT = "x"
(BATCH,) = export.symbolic_shape("batch")  # the number of examples, in all programs


class Compared(NamedTuple):
    """Random inputs, and the outputs of ``sdebnn predict`` for them."""

    x: np.ndarray
    outputs: Mapping[str, np.ndarray]


class Program(NamedTuple):
    """A function of a batch, what it takes, and what it should agree with."""

    function: Callable[[Array], Outputs]
    shape: tuple[int, ...]  # of one example
    dtype: type[np.generic]
    facts: dict[str, Any]  # of the contract: what the inputs and outputs mean
    input_facts: dict[str, Any]
    compared: Callable[[np.random.Generator, int], Compared]  # for so many examples
    unit: float  # the spread of the target, relative to which outputs are compared

    def batch(self) -> jax.ShapeDtypeStruct:
        """The shape and type of a batch, whose size is symbolic."""
        return jax.ShapeDtypeStruct((BATCH, *self.shape), self.dtype)


def program_of(forecaster: Forecaster, draws: int | None = None) -> Program:
    """The program of the model of a run, with the draws of ``sdebnn predict``, or another number of them."""
    if isinstance(forecaster, NetForecaster):
        return net_program(forecaster, draws)
    return importlib.import_module("sdebnn.export.table_programs").table_program(forecaster, draws)


def net_program(forecaster: NetForecaster, draws: int | None = None) -> Program:
    """The program of a net of images or vectors.

    There is no interval: that of ``sdebnn predict`` comes from random numbers, which depend on the other examples of a
    batch.
    """
    if draws is not None:
        check_count("draws", draws)
        forecaster = forecaster._replace(draws=draws)
    about, likelihood = forecaster.about, forecaster.likelihood
    dtype = np.uint8 if about.are_images else np.float32
    frozen = frozen_model(
        forecaster.model, draw_keys(forecaster.key, forecaster.draws, forecaster.model), about.shape, dtype
    )

    def function(x: Array) -> Outputs:
        samples = frozen(x).astype(jnp.float64)
        if about.classes is not None:
            return of_classes(likelihood.center(samples))
        found = of_numbers(likelihood.center(samples), likelihood.variance(samples))
        return {name: jnp.squeeze(array, 1) if array.shape[1] == 1 else array for name, array in found.items()}

    contract = forecaster.contract
    facts = {
        "kind": contract["kind"], "task": contract["task"], "target": forecaster.target, "classes": contract["classes"],
        "draws": frozen.draws,
    }  # fmt: skip
    return Program(
        function, about.shape, dtype, facts, {"range": contract["range"]},
        lambda random, rows: _compared(forecaster, random, rows), max(about.target_spread, default=1.0),
    )  # fmt: skip


def frozen_model(
    model: AbstractModel, keys: Key[Array, " draw"], shape: tuple[int, ...], dtype: type[np.generic]
) -> FrozenDraws:
    """The outputs of a model for fixed keys, as a function of a batch of any size."""
    arrays, rest = eqx.partition(map_blocks(_whole_batch, model), eqx.is_array)
    return frozen_draws(
        lambda arrays, key, x: eqx.combine(arrays, rest).solve(x, key=key).outputs, arrays, keys,
        jax.ShapeDtypeStruct((BATCH, *shape), dtype),
    )  # fmt: skip


def _whole_batch(block: SDEBlock) -> SDEBlock:
    """The block with a solver that does not split the batch, whose size is not known."""
    solver = block.solver
    return block.with_solver(dataclasses.replace(solver, at_once=None)) if isinstance(solver, FixedGrid) else block


def _compared(forecaster: NetForecaster, random: np.random.Generator, rows: int) -> Compared:
    about = forecaster.about
    if about.are_images:
        x = random.integers(0, 256, (rows, *about.shape), np.uint8)
    else:
        x = np.asarray(random.normal(about.center, about.spread, (rows, *about.shape)), np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about these inputs
        columns = forecaster.forecast(Examples(x), where="x")
    parts, targets = ("std", "std_reducible", "std_noise"), len(about.target_spread)
    if about.classes is not None:
        return Compared(x, class_outputs(columns, about.classes))
    if targets == 1:
        return Compared(x, number_outputs(columns, forecaster.target, parts))
    names = [f"y{i + 1}" for i in range(targets)]
    found = {part: np.column_stack([columns[f"{part} of {name}"] for name in names]) for part in parts}
    return Compared(x, {"mean": np.column_stack([columns[name] for name in names]), **found})


def class_outputs(columns: Columns, classes: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The outputs of a classifier from the columns of its forecast."""
    found = {name: columns[name] for name in ("entropy", "entropy_reducible")}
    return {"probabilities": np.column_stack([columns[f"p({label})"] for label in classes]), **found}


def number_outputs(columns: Columns, target: str, parts: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The outputs of a regression from the columns of its forecast."""
    return {"mean": columns[target], **{name: columns[name] for name in parts}}
