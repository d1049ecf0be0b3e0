"""``describe``: what a model consists of, and how it is executed, against what a solve does."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdebnn import SDEBNN, Adaptive, Deterministic, Ensemble, FixedGrid, Point, bayesianize, describe, paper_net
from sdebnn.baselines import HMC, Hypernet, HyperODEBlock, MCDropout, PartlyRandom, TemperatureScaled
from sdebnn.convolutions import TimeConv, kernels
from sdebnn.fields import TimeMLP
from sdebnn.integrate import execution
from sdebnn.models import MeanField, ODEBlock

KEY = jax.random.key(0)
X = jnp.ones((4, 1))
MLP = eqx.nn.MLP(1, 1, 8, 1, key=KEY)


class Kernels(kernels.AbstractKernels):
    """Kernels that run on CPUs for three channels."""

    def unavailable(self, device):
        return None if device.platform == "cpu" else "it needs a cpu"

    def refusal(self, steps):
        return None if steps.h0.shape[-1] == 3 else f"{steps.h0.shape[-1]} channels"

    def euler(self, steps, plain):
        return plain(steps.layers, steps.h0)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """The choices for GPUs on this machine, with no kernels installed."""
    monkeypatch.setattr(execution, "CHOICES", {"cpu": execution.CHOICES["gpu"]})
    monkeypatch.setattr(kernels, "installed", lambda: ())


def block_line(model, x=X):
    """The only line about a block that is solved over depth."""
    (line,) = [line for line in describe(model, x).layers if line.execution]
    return line


def mlp(**options):
    return SDEBNN.paper_mlp(1, 1, **options, key=KEY)


def test_the_text_of_a_net_has_a_line_for_each_layer_and_a_total():
    model = mlp(solver=FixedGrid(7, "heun"), initial=Point, drift=(8, 3))
    text = str(describe(model, X)).splitlines()
    parameters = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)))
    weights = model.layers[1].weights.size
    assert len(text) == 1 + 3 + 1
    for word in (
        "SDEBlock of TimeMLP", f"{weights} random weights", "state (3,)", "DriftNet (8, 3) of rank 3",
        "w_0 Point, a trained value", "7 steps of heun",
    ):  # fmt: skip
        assert word in text[2]
    assert text[3].strip() == "Linear (deterministic): 4 parameters"
    assert text[-1] == f"Total: {parameters:,} parameters, {weights} random weights; 4 examples on cpu"


@pytest.mark.parametrize(("size", "loops"), [(8191, "two loops"), (8192, "one loop")])
def test_from_8192_weights_on_a_cpu_solves_in_one_loop(size, loops):
    class Long(eqx.Module):
        weight: jax.Array

        def __call__(self, t, h):
            return self.weight.sum() * h

    block = bayesianize(Long(jnp.ones(size)), drift=(1,), key=KEY)
    line = block_line(block)
    assert line.random_weights == size
    assert line.execution.startswith(loops)
    one = "one" in loops
    assert one == (_loops_of_solve(block) == 1)  # what the program of a solve contains
    backprop = block.with_solver(FixedGrid(gradient="backprop"))
    assert block_line(backprop).execution.startswith("two loops, because of gradient='backprop'" if one else "two")


def _loops_of_solve(block):
    jaxpr = jax.make_jaxpr(lambda h: block.solver.solve(block, h, key=KEY).outputs)(X)
    return len(re.findall(r"\bscan\[", str(jaxpr)))


@pytest.mark.parametrize(
    ("solver", "words"),
    [
        (FixedGrid(5, "reversible_heun", "reversible"), "one loop, whose steps are undone"),
        (FixedGrid(5, unroll=5), "weights step by step, all unrolled; hidden units step by step, all unrolled"),
        (FixedGrid(5, unroll=2), "weights step by step; hidden units step by step, 2 compiled as one"),
        (FixedGrid(5, at_once=2), "hidden units step by step, 4 compiled as one, 2 examples at a time"),
        (FixedGrid(5, at_once=3), "hidden units step by step, 4 compiled as one"),  # 3 does not divide 4
        (Adaptive(1e-2), "one solve by diffrax"),
    ],
)
def test_the_options_of_a_solver_are_seen_in_its_execution(solver, words):
    line = block_line(mlp(solver=solver))
    assert words in line.execution
    assert solver.description in line.facts


def test_a_narrow_drift_is_drawn_by_its_recursion_where_that_is_faster(as_on_a_gpu):
    assert "low-rank" in block_line(mlp(drift=(1, 8, 1))).execution
    assert "low-rank" not in block_line(mlp(drift=(8, 8))).execution
    assert "low-rank" not in block_line(mlp(drift=(1, 8, 1), solver=FixedGrid(5, "heun"))).execution


def test_the_kernels_that_compute_a_field_are_named_and_otherwise_the_reason_is(as_on_a_gpu, monkeypatch):
    def execution_of(channels):
        block = bayesianize(TimeConv(channels, (4, 4, 4), key=KEY), drift=(1,), solver=FixedGrid(2), key=KEY)
        return block_line(block, jnp.ones((2, 6, 4, channels))).execution

    assert execution_of(3).endswith("packed matrices of 2 x 2 patches, plain path (no kernels installed)")
    monkeypatch.setattr(kernels, "installed", lambda: (kernels.Installed("some-kernels 1.2", Kernels()),))
    assert execution_of(3).endswith("hidden units by kernels of some-kernels 1.2")
    assert execution_of(5).endswith("plain path (some-kernels 1.2: 5 channels)")


def test_on_a_cpu_no_kernel_is_asked_for(monkeypatch):
    monkeypatch.setattr(kernels, "installed", lambda: (kernels.Installed("some-kernels 1.2", Kernels()),))
    net = paper_net((8, 8, 1), 4, mean=(0.5,), std=(0.3,), blocks=(1,), width=4, solver=FixedGrid(8), key=KEY)
    line = block_line(net, np.zeros((2, 8, 8, 1), np.uint8))
    assert line.execution.endswith("hidden units step by step, 4 compiled as one")
    assert line.facts[0].startswith("state (8, 8, ")


RANDOM = {
    "ensemble": (lambda: Ensemble([SDEBNN.paper_mlp(1, 1, key=k) for k in jax.random.split(KEY, 3)]), 131),
    "mean field": (lambda: MeanField(MLP), 25),
    "mean field of an ODE": (lambda: MeanField(mlp(block=lambda field, _: ODEBlock(field))), 135),
    "HMC": (lambda: HMC(MLP), 25),
    "hypernet": (lambda: Hypernet(MLP, key=KEY), 25),
    "dropout": (lambda: MCDropout(MLP), 0),
    "temperature": (lambda: TemperatureScaled(mlp()), 131),
    "HyperODE": (lambda: mlp(block=lambda field, key: HyperODEBlock(field, key=key)), 0),
    "partly random": (lambda: mlp(block=lambda field, key: PartlyRandom(bayesianize(field, key=key), 0.5)), 131),
    "deterministic": (lambda: Deterministic(MLP), 0),
}


@pytest.mark.parametrize("name", RANDOM)
def test_every_model_is_described_with_its_parameters_and_random_weights(name):
    make, random_weights = RANDOM[name]
    model = make()
    described = describe(model, X)
    assert described.random_weights == random_weights
    assert described.parameters == sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)))
    assert any(line.execution for line in described.layers) == model.has_dynamics


def test_a_partly_random_block_is_solved_in_two_loops_at_any_size():
    block = bayesianize(TimeMLP(1, (100, 100), key=KEY), drift=(1,), key=KEY)
    assert block_line(block).execution.startswith("one loop")
    assert block_line(PartlyRandom(block, 0.5)).execution.startswith("two loops: weights")


def test_describing_traces_and_compiles_no_solve(monkeypatch):
    def solve(*given, **named):
        raise AssertionError("a solve was traced")

    monkeypatch.setattr(FixedGrid, "solve", solve)
    assert block_line(mlp(drift=(5,))).execution


def test_one_example_is_not_a_batch():
    with pytest.raises(ValueError, match="is not a batch of examples"):
        describe(mlp(), jnp.ones(4))
