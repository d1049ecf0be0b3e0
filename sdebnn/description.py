"""``describe``: the layers of a model, and how they will be executed."""

from collections.abc import Iterator
from typing import NamedTuple

import jax

from sdebnn.checks import shown
from sdebnn.contract import AbstractModel, LayerLine, check_model
from sdebnn.data import Inputs, batch_dtype
from sdebnn.devices import platform_of, tracing_for


class Description(NamedTuple):
    """What ``describe`` returns. ``print`` shows it as text, one line for each layer and one for all of them."""

    line: LayerLine
    examples: int
    platform: str

    @property
    def parameters(self) -> int:
        """The number of parameters that ``fit`` trains."""
        return self.line.parameters

    @property
    def random_weights(self) -> int:
        """The number of weights that each draw samples, of an ensemble in one of its members."""
        return sum(line.random_weights for line, _ in _walked(self.line))

    @property
    def layers(self) -> tuple[LayerLine, ...]:
        """The lines of all layers and of the models around them, in order."""
        return tuple(line for line, _ in _walked(self.line))

    def __str__(self) -> str:
        lines = [f"{'  ' * depth}{_text(line)}" for line, depth in _walked(self.line)]
        total = f"{self.parameters:,} parameters, {self.random_weights:,} random weights"
        return "\n".join([*lines, f"Total: {total}; {self.examples} examples on {self.platform}"])


def describe(model: AbstractModel, x: Inputs) -> Description:
    """The layers of a model, and how they will be executed for a batch like x on the device on which x is.

        print(describe(SDEBNN.mlp(1, 1, key=key), x))
        weights = describe(net, images).random_weights

    For each block that is solved over depth: the shape of its state, its random weights, drift, law of w_0 and solver,
    and whether weights and hidden units are solved in one loop or two, by which faster ways, and why. Nothing is
    computed or compiled: the code that decides is asked with shapes alone.
    """
    check_model(model)
    if not hasattr(x, "shape") or len(x.shape) < 2:
        raise ValueError(f"x={shown(x)} is not a batch of examples: pass an array of at least 2 axes.")
    lines: list[LayerLine] = []
    platform = platform_of((model, x))
    with tracing_for(platform):
        batch = jax.ShapeDtypeStruct(x.shape, batch_dtype(x.dtype))
        jax.eval_shape(lambda x: lines.append(model.layer_line(x)), batch)
    return Description(lines[0], x.shape[0], platform)


def _walked(line: LayerLine, depth: int = 0) -> Iterator[tuple[LayerLine, int]]:
    """A line and all lines inside it, with their depth."""
    yield line, depth
    for inner in line.inside:
        yield from _walked(inner, depth + 1)


def _text(line: LayerLine) -> str:
    counts = [f"{line.parameters:,} parameters"]
    if line.random_weights:
        counts.append(f"{line.random_weights:,} random weights")
    return f"{line.name}: {'; '.join([*counts, *line.facts, *filter(None, [line.execution])])}"
