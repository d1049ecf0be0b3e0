"""How a solve on a fixed grid is executed on each platform.

The plain way draws the whole weight path in one loop over depth, and then carries the batch through it in a second
loop. The other ways give the same numbers up to rounding, and are chosen where they were measured to be faster. Tests
compare each of them with the plain way. ``sdebnn.describe(model, x)`` prints how a model is executed.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
from jaxtyping import Array, Float, PyTree

from sdebnn.fields import FasterSteps
from sdebnn.integrate.paths import Dynamics, Hidden, Process
from sdebnn.processes import AbstractInitialLaw, Weights
from sdebnn.processes.low_rank import EulerPath

AllEulerSteps = Callable[[PyTree[Array], Hidden], FasterSteps | None]


class Execution(NamedTuple):
    """The choices for one platform."""

    unroll: int  # steps of the loop over the hidden units that are compiled as one
    unroll_weights: bool  # whether the loop over the weights is unrolled, too
    low_rank_drift: bool  # whether a drift may take all Euler steps by a recursion of its own
    field_steps: bool  # whether a field may take all Euler steps by kernels of its own
    one_loop_from: int | None  # number of weights from which weights and hidden units advance in one loop
    why: str


PLAIN = Execution(
    5,
    False,
    False,
    False,
    None,
    "equal steps run as two plain loops, the weights first, five hidden steps compiled as one",
)
CHOICES = {
    "cpu": PLAIN._replace(
        unroll=4,
        one_loop_from=2**13,
        why="equal steps run as two plain loops, the weights first, four hidden steps compiled as one; from 8192 "
        "weights on as one loop, because their path no longer fits the cache",
    ),
    "gpu": PLAIN._replace(
        unroll_weights=True,
        low_rank_drift=True,
        field_steps=True,
        why="equal steps run as two loops, the weights first, five steps compiled as one, because an iteration costs "
        "more than its arithmetic; narrow drifts by a low-rank recursion; convolutional fields by packed matrices or "
        "by installed kernels",
    ),
}


def execution_on(platform: str) -> Execution:
    """The choices for a platform; the plain way if it was not measured."""
    return CHOICES.get(platform, PLAIN)


class Loops(NamedTuple):
    """How weights and hidden units advance: in one loop, in two, or in one that is undone for the gradient."""

    kind: Literal["one", "two", "reversible"]
    why: str


class Plan(NamedTuple):
    """How the solves of one ``FixedGrid`` are executed: its options, and the choices for the platform.

    The grid asks this class what to do, and ``describe`` asks it for the words.
    """

    choices: Execution
    steps: int
    is_euler: bool
    gradient: str
    fixed_unroll: int | None
    at_once: int | None
    noise_steps: int | None  # None if the noise is drawn on the grid itself

    @property
    def unroll(self) -> int:
        """Steps of the loop over the hidden units that are compiled as one."""
        return self.fixed_unroll or self.choices.unroll

    @property
    def unroll_weights(self) -> int:
        """Steps of the loop over the weights that are compiled as one."""
        # If the loop over the hidden units is fully unrolled, so is the loop over the weights.
        return self.unroll if self.choices.unroll_weights or self.unroll >= self.steps else 1

    def loops(self, initial: AbstractInitialLaw, every: bool = False) -> Loops:
        """Whether one loop is faster: storing the weight path costs more time than drawing it first saves."""
        if self.gradient == "reversible" and not every:
            return Loops("reversible", "one loop, whose steps are undone for the gradient")
        smallest = self.choices.one_loop_from
        if smallest is None:
            return Loops("two", "two loops, the default on this platform")
        needs_path = {
            "the states at every depth": every,
            f"at_once={self.at_once}": self.at_once is not None,
            f"noise_steps={self.noise_steps}": self.noise_steps is not None,
            "gradient='backprop'": self.gradient == "backprop",
        }
        reason = next((option for option, is_given in needs_path.items() if is_given), None)
        if reason is not None:
            return Loops("two", f"two loops, because of {reason}")
        if initial.size < smallest:
            return Loops("two", f"two loops, because a path of fewer than {smallest} weights fits the cache")
        return Loops("one", f"one loop, because a path of at least {smallest} weights does not fit the cache")

    def faster_path(self, process: Process, w0: Weights, dB: Float[Array, "step weight"]) -> EulerPath | None:
        """The path of the weights by a recursion of the drift's own, if there is one and it is faster here."""
        if process.guide is not None or not (self.is_euler and self.choices.low_rank_drift):
            return None
        return process.drift.euler_path(process.prior, w0, dB)

    def faster_steps(
        self, all_euler_steps: AllEulerSteps | None, arrays: PyTree[Array], h: Hidden
    ) -> FasterSteps | None:
        """The field's own way to take all steps, if there is one and it is faster here."""
        if all_euler_steps is None or not (self.is_euler and self.choices.field_steps):
            return None
        return all_euler_steps(arrays, h)

    def examples_together(self, examples: int) -> int:
        """How many of so many examples are carried through the depth together."""
        return examples if self.at_once is None or examples % self.at_once else self.at_once

    def words(self, dynamics: Dynamics, h: Hidden) -> str:
        """How weights and hidden units are solved, and why."""
        loops = self.loops(dynamics.initial)
        if loops.kind != "two":
            return loops.why
        w = jax.eval_shape(lambda key: dynamics.initial.sample(key=key), jax.random.key(0))
        hidden = self.words_for_hidden(dynamics.unravel, dynamics.all_euler_steps, w, h)
        return f"{loops.why}: {self.words_for_weights(dynamics)}; {hidden}"

    def words_for_weights(self, process: Process) -> str:
        """How the path of the weights is drawn."""
        w0 = jax.eval_shape(lambda key: process.initial.sample(key=key), jax.random.key(0))
        dB = jax.ShapeDtypeStruct((self.steps, *w0.shape), w0.dtype)
        if jax.eval_shape(lambda *given: self.faster_path(process, *given), w0, dB) is not None:
            return "weights by the recursion of their low-rank drift"
        guided = "" if process.guide is None else f" with {process.guide.points.shape[0]} states that the guide sees"
        return f"weights step by step{self._compiled_together(self.unroll_weights)}{guided}"

    def words_for_hidden(
        self,
        unravel: Callable[[Float[Array, "*step weight"]], PyTree[Array]],
        all_euler_steps: AllEulerSteps,
        w: jax.ShapeDtypeStruct,
        h: Hidden,
    ) -> str:
        """How a batch is carried along a known path of weights like ``w``."""
        found: list[FasterSteps | None] = []

        def ask(path: Float[Array, "step weight"], h: Hidden) -> None:
            found.append(self.faster_steps(all_euler_steps, unravel(path), h))

        together = self.examples_together(h.shape[0])
        path = jax.ShapeDtypeStruct((self.steps, *w.shape), w.dtype)
        jax.eval_shape(ask, path, jax.ShapeDtypeStruct((together, *h.shape[1:]), h.dtype))
        how = f"step by step{self._compiled_together(self.unroll)}" if found[0] is None else f"by {found[0].how}"
        return f"hidden units {how}" + ("" if together == h.shape[0] else f", {together} examples at a time")

    def _compiled_together(self, unroll: int) -> str:
        if unroll == 1:
            return ""
        return ", all unrolled" if unroll >= self.steps else f", {unroll} compiled as one"
