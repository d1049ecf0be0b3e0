"""Blocks whose field is kept apart from its weights:   h_1 = h_0 + ∫ f_h(t, h_t, w_t) dt   along a path of w."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num, PyTree

from sdebnn.checks import as_inputs, as_precise
from sdebnn.contract import AbstractModel, LayerLine, parameter_count
from sdebnn.fields import AbstractLayer, FasterSteps, Standardised, over_batch
from sdebnn.integrate import FixedGrid, Hidden, Solution
from sdebnn.processes import Depth


class AbstractFieldBlock(AbstractModel):
    """A block that is solved over depth. ``field`` holds what is not in w, and ``weights`` puts w into it.

    A subclass has these two fields, and in ``solve`` makes the path of w along which the batch is carried:

        class ConstantBlock(AbstractFieldBlock):
            field: PyTree
            weights: Standardised
            value: Array

            def solve(self, x, *, key, with_roughness=False):
                path = jnp.broadcast_to(self.value, (20, self.value.size))
                return self.carried(FixedGrid(20), (path,), x, with_roughness)
    """

    field: eqx.AbstractVar[PyTree]
    weights: eqx.AbstractVar[Standardised]

    @property
    def has_dynamics(self) -> bool:
        """True."""
        return True

    def unravel(self, w: Float[Array, "*step weight"]) -> PyTree[Array]:
        """The arrays of the field that belong to standardised weights."""
        return self.weights.unravel(w)

    def f_h(self, t: Depth, h: Hidden, arrays: PyTree[Array]) -> Hidden:
        """dh/dt of a batch, with these arrays in place."""
        return over_batch(eqx.combine(arrays, self.field), t)(h)

    def all_euler_steps(self, arrays: PyTree[Array], h: Hidden) -> FasterSteps | None:
        """A faster way to take all Euler steps, with the arrays of each step, if the field has one."""
        field = eqx.combine(arrays, self.field)
        return field.all_euler_steps(h) if isinstance(field, AbstractLayer) else None

    def line(self, h: Hidden, random_weights: int, *facts: str, execution: str) -> LayerLine:
        """The line of ``describe`` for this block and a state like h."""
        name, like = f"{type(self).__name__} of {type(self.field).__name__}", jax.ShapeDtypeStruct(h.shape, h.dtype)
        facts = (f"state {h.shape[1:]}", *facts)
        return LayerLine(name, parameter_count(self), random_weights, facts, execution, outputs=like)

    def hidden_execution(self, solver: FixedGrid, w: Float[Array, " weight"], h: Hidden) -> str:
        """How a state like h is carried along a known path of weights like w."""
        like = jax.ShapeDtypeStruct(w.shape, w.dtype)
        return solver.plan.words_for_hidden(self.unravel, self.all_euler_steps, like, h)

    def carried(
        self,
        solver: FixedGrid,
        stages: tuple[Float[Array, "step weight"], ...],
        x: Num[Array, "example *input"],
        with_roughness: bool,
    ) -> Solution:
        """Carry a batch through the field along a known path of w. The KL is 0."""
        h = as_precise(as_inputs("h", x), stages[0])
        arrays = tuple(map(self.unravel, stages))
        check_field(self.f_h, h, jax.tree.map(lambda leaf: leaf[0], arrays[0]))
        outputs, roughness, shadow_distance = solver.hidden(
            self.f_h, arrays, h, with_roughness=with_roughness, all_euler_steps=self.all_euler_steps
        )
        zero = jnp.zeros((), h.dtype)
        return Solution(outputs, zero, jnp.asarray(solver.evaluations), jnp.asarray(True), roughness, shadow_distance)


def check_field(f_h: Callable[[Depth, Hidden, PyTree], Hidden], h: Hidden, arrays: PyTree) -> None:
    """Refuse a field whose dh/dt has another shape or dtype than h."""
    try:
        out = jax.eval_shape(f_h, jnp.zeros((), h.dtype), h, arrays)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the field, called as field(t, h), refuses an example of shape {h.shape[1:]} "
            f"({str(error).splitlines()[0]})."
        ) from error
    if getattr(out, "shape", None) != h.shape or out.dtype != h.dtype:
        raise ValueError(
            f"the field maps a state of shape {h.shape[1:]} and dtype {h.dtype} to "
            f"{getattr(out, 'shape', (None,))[1:]} and {getattr(out, 'dtype', type(out))}: "
            "dh/dt must look like h; give the field its own last layer, or cast x."
        )
