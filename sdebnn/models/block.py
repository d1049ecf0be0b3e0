"""A layer of infinite depth:   h_1 = h_0 + ∫ f_h(t, h_t, w_t) dt,   with w drawn from the posterior."""

from collections.abc import Callable
from typing import TypeVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Num, PRNGKeyArray, PyTree

from sdebnn.checks import as_inputs, as_precise, check_instance, check_key
from sdebnn.contract import AbstractModel, LayerLine, check_solution
from sdebnn.fields import AbstractLayer, Standardised
from sdebnn.integrate import (
    AbstractSolver,
    Guide,
    Hidden,
    KLEstimator,
    Solution,
    WeightPath,
    refined_solver,
)
from sdebnn.integrate.paths import check_estimator
from sdebnn.models.field_block import AbstractFieldBlock, check_field
from sdebnn.processes import AbstractDrift, AbstractInitialLaw, AbstractPrior, Normal
from sdebnn.programs import compiled

Model = TypeVar("Model", bound=AbstractModel)


class SDEBlock(AbstractFieldBlock):
    """A layer of infinite depth: h_1 = h_0 + ∫ f_h(t, h_t, w_t) dt, along one posterior draw of w.

        block = bayesianize(field, drift=(8,), key=key)
        hidden, kl = block(jnp.ones((5, 4)), key=key)
        states, kl = block.trajectory(jnp.ones((5, 4)), key=key)

    ``bayesianize`` builds it. ``field`` holds what is not random; ``weights`` puts the rest into it. The other fields
    are the arguments of ``bayesianize``.
    """

    field: PyTree
    weights: Standardised
    prior: AbstractPrior
    drift: AbstractDrift
    initial: AbstractInitialLaw
    solver: AbstractSolver
    kl: KLEstimator = eqx.field(static=True)
    guide: Guide | None = None

    def __check_init__(self):
        if self.guide is not None:
            check_instance("guide", self.guide, Guide, "a guide", "Guide(points)")
        check_estimator(self.kl)
        check_parts(self.prior, self.drift, self.solver)
        check_instance("initial", self.initial, AbstractInitialLaw, "a law of w_0", "Point or Normal")
        self.solver.check_kl(self.kl)
        self.solver.check_process(self)

    def with_solver(self, solver: AbstractSolver) -> "SDEBlock":
        """The same block with another solver.

        If its KL estimator would be biased under that solver, it takes the analytic one.
        """
        kl = self.kl if self.kl in solver.estimators else "analytic"
        return SDEBlock(self.field, self.weights, self.prior, self.drift, self.initial, solver, kl, self.guide)

    def with_estimator(self, kl: KLEstimator) -> "SDEBlock":
        """The same block with another estimator of the KL."""
        return SDEBlock(self.field, self.weights, self.prior, self.drift, self.initial, self.solver, kl, self.guide)

    def as_candidate(self) -> "SDEBlock | None":
        """The same block on the grid of its noise, with the estimator "full"; None if its solver lacks one of them."""
        solver = self.solver.with_steps(self.solver.base)
        return self.with_solver(solver).with_estimator("full") if solver and "full" in solver.estimators else None

    def suited_to(
        self,
        points: Num[Array, "point *input"],
        targets: Float[np.ndarray, "point output"],
        variances: Float[np.ndarray, "point output"],
    ) -> "SDEBlock":
        """The same block, its field suited to these states at depth 0, and a normal w_0 started where it is likely."""
        if not isinstance(self.field, AbstractLayer):
            return self
        arrays, states = self.unravel(self.initial.sample(key=jax.random.key(0))), np.asarray(points, np.float64)
        random = jax.tree.map(lambda leaf: leaf is not None, arrays, is_leaf=lambda leaf: leaf is None)
        layer = eqx.combine(arrays, self.field).suited_to(states)
        block = eqx.tree_at(lambda b: b.field, self, eqx.partition(layer, random)[1])
        start = layer.likely_weights(states, targets, variances)
        if start is None or not isinstance(block.initial, Normal):
            return block
        return eqx.tree_at(lambda b: b.initial.mean, block, block.weights.ravel(eqx.filter(start, random)))

    def draw(self, *, key: PRNGKeyArray) -> WeightPath:
        """The path of standardised weights that the key names, and its KL.

            path = bayesianize(field, key=key).draw(key=key)
            at_depth_1 = path.w[-1]

        Row i of ``path.w`` are the weights at the depth ``path.t[i]``.
        """
        check_key(key)
        return self.solver.weights(self, key=key)

    def solve(self, x: Num[Array, "example *input"], *, key: PRNGKeyArray, with_roughness: bool = False) -> Solution:
        """The hidden states at depth 1 and the KL; the number of evaluations and, if asked, the roughness."""
        return self._solve(x, key, every=False, with_roughness=with_roughness)

    def trajectory(
        self, h: Hidden, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "time example *state"], Float[Array, ""]]:
        """The hidden states of a batch at every depth of ``solver.times()``, from h_0 to h_1, and the KL."""
        return self._solve(h, key, every=True)[:2]

    def _solve(
        self, h: Num[Array, "example *input"], key: PRNGKeyArray, every: bool, with_roughness: bool = False
    ) -> Solution:
        check_key(key)
        solution = _compiled_solve(self, self._as_state(h), key, every, with_roughness)
        check_solution(solution)
        return solution

    def layer_line(self, x: Num[Array, "example *input"]) -> LayerLine:
        """State, random weights, drift, law of w_0 and solver, and how a solve is executed."""
        h = self._as_state(x)
        guide = () if self.guide is None else (f"guide of {self.guide.points.shape[0]} points",)
        facts = (f"drift {self.drift.description}", *guide, f"w_0 {self.initial.description}", self.solver.description)
        return self.line(h, self.weights.size, *facts, execution=self.solver.execution(self, h))

    def _as_state(self, h: Num[Array, "example *input"]) -> Hidden:
        """A batch at least as precise as the weights; refused if the field does not accept it."""
        w0 = jax.eval_shape(lambda key: self.initial.sample(key=key), jax.random.key(0))
        state = as_precise(as_inputs("h", h), w0)
        check_field(self.f_h, state, jax.eval_shape(self.unravel, w0))
        return state


def check_parts(prior: object, drift: object, solver: object) -> None:
    """Refuse a prior, drift or solver that is not one."""
    sigma = prior if isinstance(prior, float) and prior > 0 else 0.1  # a number is probably meant as sigma
    check_instance("prior", prior, AbstractPrior, "a prior", f"OU(sigma={sigma})")
    check_instance("drift", drift, AbstractDrift, "a drift", "widths such as (32, 32), or an AbstractDrift")
    check_instance("solver", solver, AbstractSolver, "a solver", "FixedGrid(20, 'euler') or Adaptive()")


@compiled  # for calls outside jit: the loops are compiled once, not at every call
def _compiled_solve(block: SDEBlock, h: Hidden, key: PRNGKeyArray, every: bool, with_roughness: bool) -> Solution:
    return block.solver.solve(block, h, key=key, every=every, with_roughness=with_roughness)


def _is_block(node: PyTree) -> bool:
    return isinstance(node, SDEBlock)


def blocks(model: AbstractModel) -> list[SDEBlock]:
    """Every ``SDEBlock`` in a model, in order.

        solvers = [block.solver for block in blocks(net)]

    Blocks inside of other models count, too, such as that of ``SDEBNN.mlp``.
    """
    return [node for node in jax.tree.leaves(model, is_leaf=_is_block) if _is_block(node)]


def map_blocks(change: Callable[[SDEBlock], SDEBlock], model: Model) -> Model:
    """The same model with each of its blocks changed.

        euler = FixedGrid(4)
        changed = map_blocks(lambda block: block.with_solver(euler), net)

    ``change`` is a function from an ``SDEBlock`` to another.
    """
    return jax.tree.map(lambda node: change(node) if _is_block(node) else node, model, is_leaf=_is_block)


def refined(model: Model, *, steps: int | None = None, rtol: float | None = None) -> Model:
    """The same model, with its blocks solved in so many steps or to this tolerance, without retraining.

        fine = refined(model, steps=8)
        samples = predict(fine, x, draws=4, key=key)

    Give either ``steps``, a number of equal steps, or ``rtol``, an error tolerance for adaptive steps. A key names one
    Brownian path at every resolution, so that refining converges to one function.
    """
    return map_blocks(lambda block: block.with_solver(refined_solver(block.solver, steps=steps, rtol=rtol)), model)
