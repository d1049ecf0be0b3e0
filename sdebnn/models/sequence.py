"""Models in sequence, and modules of one example as models.

A deterministic model ignores the key, and its KL is 0.
"""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num, PRNGKeyArray

from sdebnn.checks import as_inputs, check_callable, check_count, check_counts, check_key, check_object, shown
from sdebnn.contract import AbstractModel, Data, LayerLine, parameter_count
from sdebnn.fields import Augment, Last, TimeMLP, over_batch
from sdebnn.integrate import AbstractSolver, FixedGrid, KLEstimator, Solution
from sdebnn.likelihoods import AbstractLikelihood
from sdebnn.models.bayesianize import bayesianize
from sdebnn.models.block import SDEBlock
from sdebnn.models.placing import outputs_of, with_placed_guide
from sdebnn.models.readout import START_STD, ConditionedReadout
from sdebnn.processes import OU, AbstractInitialLaw, AbstractPrior, LinearDrift, Normal, Weights
from sdebnn.waves import Waves

KNOTS = 6  # of the drift, over depth


def near_prior(field: Waves) -> Normal:
    """The law of w_0 before training: that of the prior, standard normal, but narrower for inferred lengths."""
    stds = jax.tree.map(jnp.ones_like, field.weights)
    stds = eqx.tree_at(lambda w: w.length, stds, jnp.full_like(stds.length, START_STD))
    log_std = jnp.log(jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(stds)]))
    return eqx.tree_at(lambda law: law.log_std, Normal(jnp.zeros_like(log_std), 1.0), log_std)


class Deterministic(AbstractModel):
    """A module of one example as a model of a batch: no weight is uncertain, and the KL is 0.

        first = Deterministic(eqx.nn.Linear(1, 4, key=key))
        hidden, kl = first(x, key=key)

    ``module`` is any function or Equinox module of one example. Its arrays are trained with the rest of the net.
    """

    module: Callable[[Array], Array]

    def __check_init__(self):
        check_object(self.module)
        check_callable("module", self.module, "eqx.nn.Linear(2, 1, key=key)")

    def layer_line(self, x: Num[Array, "example *input"]) -> LayerLine:
        """The name of the module."""
        name = getattr(self.module, "__name__", type(self.module).__name__)
        return LayerLine(f"{name} (deterministic)", parameter_count(self))

    def as_candidate(self) -> "Deterministic":
        """The model itself."""
        return self

    def solve(self, x: Num[Array, "example *input"], *, key: PRNGKeyArray, with_roughness: bool = False) -> Solution:
        """The outputs, which do not depend on the key."""
        try:
            outputs = over_batch(self.module)(x)
        except TypeError as error:
            name = getattr(self.module, "__name__", type(self.module).__name__)
            raise ValueError(
                f"{name} refuses an example of shape {x.shape[1:]} ({str(error).splitlines()[0]}): check the shape of "
                "x."
            ) from error
        return Solution(outputs, jnp.zeros((), outputs.dtype))


def as_model(module: Callable[..., object]) -> AbstractModel:
    """A model as it is; any other module, of one example, wrapped in ``Deterministic``."""
    return module if isinstance(module, AbstractModel) else Deterministic(module)  # pyright: ignore[reportArgumentType]


class SDEBNN(AbstractModel):
    """Models in sequence: the outputs of each are the inputs of the next, and their KLs add up.

        first = Deterministic(eqx.nn.Linear(1, 4, key=key))
        last = Deterministic(eqx.nn.Linear(4, 1, key=key))
        net = SDEBNN((first, bayesianize(field, drift=(8,), key=key), last))
        outputs, kl = net(x, key=key)

    ``layers`` are models; wrap a module of one example in ``Deterministic``. ``SDEBNN.mlp`` and ``SDEBNN.paper_mlp``
    make whole nets for vectors, ``our_net`` and ``paper_net`` for images.
    """

    layers: tuple[AbstractModel, ...]

    def __check_init__(self):
        if not isinstance(self.layers, tuple | list) or not self.layers:
            raise ValueError(
                f"layers={shown(self.layers)} must be a tuple of models, such as (bayesianize(field, key=key),)."
            )
        for i, layer in enumerate(self.layers):
            check_object(layer)
            if not isinstance(layer, AbstractModel):
                name = getattr(layer, "__name__", type(layer).__name__)
                raise ValueError(f"layer {i}, {name}, is not a model: wrap a module of one example in Deterministic.")

    def solve(self, x: Num[Array, "example *input"], *, key: PRNGKeyArray, with_roughness: bool = False) -> Solution:
        """The outputs, the sum of the KLs, and the sums of the other terms."""
        parts = self._solutions(x, key=key, with_roughness=with_roughness)
        kl, evaluations, finished, roughness, shadow_distance = (
            jnp.stack([jnp.asarray(term) for term in terms])
            for terms in zip(*(part[1:] for part in parts), strict=True)
        )
        return Solution(
            parts[-1].outputs, kl.sum(), evaluations.sum(), finished.all(), roughness.sum(), shadow_distance.max()
        )

    def _solutions(
        self, x: Num[Array, "example *input"], *, key: PRNGKeyArray, with_roughness: bool = False
    ) -> list[Solution]:
        """The solution of each layer, whose inputs are the outputs of the one before."""
        check_key(key)
        h, parts = as_inputs("x", x), []
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(len(self.layers)))  # compiled once
        for i, layer in enumerate(self.layers):
            parts.append(layer.solve(h, key=keys[i], with_roughness=with_roughness))
            h = parts[-1].outputs
        return parts

    @property
    def has_states(self) -> bool:
        """Whether a layer before the last one has parameters."""
        return any(map(parameter_count, self.layers[:-1]))

    def states(self, x: Num[Array, "example *input"], *, key: PRNGKeyArray) -> tuple[Num[Array, "example *state"], ...]:
        """The outputs of every layer that has parameters, but the last."""
        parts = zip(self.layers[:-1], self._solutions(x, key=key), strict=False)
        return tuple(part.outputs for layer, part in parts if parameter_count(layer))

    def layer_line(self, x: Num[Array, "example *input"]) -> LayerLine:
        """One line for each layer."""
        lines = []
        for layer in self.layers:
            line = layer.layer_line(x)
            lines.append(line)
            x = layer.solve(x, key=jax.random.key(0)).outputs if line.outputs is None else jnp.zeros_like(line.outputs)
        name = f"{type(self).__name__} of {len(self.layers)} layers"
        return LayerLine(name, parameter_count(self), inside=tuple(lines), outputs=jax.typeof(x))

    def for_training(self) -> "SDEBNN":
        """The same sequence, each model as it is trained."""
        return SDEBNN(tuple(layer.for_training() for layer in self.layers))

    def as_candidate(self) -> "SDEBNN | None":
        """The same sequence of candidates, if each layer has one."""
        found = [layer.as_candidate() for layer in self.layers]
        layers = tuple(layer for layer in found if layer is not None)
        return SDEBNN(layers) if len(layers) == len(found) else None

    def suited_to(
        self,
        points: Num[Array, "point *input"],
        targets: Float[np.ndarray, "point output"],
        variances: Float[np.ndarray, "point output"],
    ) -> "SDEBNN":
        """The same sequence, its first block suited to these data; the layers before it must be deterministic."""
        number = next((i for i, layer in enumerate(self.layers) if isinstance(layer, SDEBlock)), None)
        if number is None:
            return self
        h = outputs_of(self.layers[:number], points)
        new = self.layers[number].suited_to(h, targets, variances)
        return SDEBNN((*self.layers[:number], new, *self.layers[number + 1 :]))

    def before_training(self, likelihood: AbstractLikelihood, data: Data) -> "SDEBNN":
        """The same sequence with its first guide placed, if it is new."""

        def picks_outputs(layer: AbstractModel) -> bool:
            return isinstance(layer, Deterministic) and isinstance(layer.module, Last)

        layers = with_placed_guide(self.layers, likelihood, data, picks_outputs)
        return self if all(new is old for new, old in zip(layers, self.layers, strict=True)) else SDEBNN(layers)

    @staticmethod
    def mlp(
        in_size: int,
        out_size: int,
        *,
        length: float | Sequence[float] | None = None,
        scale: float | Sequence[float] | None = None,
        width: int = 64,
        augment: int = 2,
        points: int = 128,
        candidates: int = 16,
        prior: AbstractPrior = OU(rate=0.02, sigma=0.2),
        solver: AbstractSolver = FixedGrid(10, "heun"),
        kl: KLEstimator = "analytic",
        key: PRNGKeyArray,
    ) -> ConditionedReadout:
        """The net for vectors: one block of ``Waves`` and a linear read-out, conditioned at some of the inputs.

            net = SDEBNN.mlp(in_size=1, out_size=1, key=key)
            wide = SDEBNN.mlp(3, 2, length=[1.0, 0.5, 10.0], width=128, key=key)

        ``in_size`` and ``out_size`` are the numbers of inputs and outputs. Before it sees data, its draws are smooth
        functions.

        - ``length`` is the distance in x over which they change, ``scale`` their size in y: one number for all columns
          or one for each, in the units of x and y. What is not given is inferred: it is random, like everything else
          that is learned, and the KL charges for it.
        - ``width`` is the number of waves, and ``augment`` the number of states through which they act on each other.
        - ``points`` is the number of inputs at which the read-out is conditioned. ``fit`` takes all inputs, or
          summarises them if there are more; more points follow more data.
        - ``candidates`` are those of ``ConditionedReadout``: more are nearer to the exact posterior, and take longer.
        - ``prior``, ``solver`` and ``kl`` are those of ``bayesianize``.
        """
        check_counts("sizes", (in_size, out_size))
        check_key(key)
        field = Waves(in_size, width, augment, length=length, key=key)
        size = sum(leaf.size for leaf in jax.tree.leaves(field.weights))
        block = bayesianize(
            field, lambda field: field.weights, prior=prior, drift=LinearDrift(size, KNOTS),
            initial=lambda _: near_prior(field), solver=solver, kl=kl, key=key,
        )  # fmt: skip
        start = Deterministic(Augment(in_size, field.state_size - in_size))
        body = SDEBNN((start, block, Deterministic(Last(field.feature_count))))
        return ConditionedReadout(body, out_size, count=points, scale=scale, candidates=candidates, kl=kl)

    @staticmethod
    def paper_mlp(
        in_size: int,
        out_size: int,
        *,
        widths: Sequence[int] = (16,),
        augment: int = 2,
        activation: Callable[[Array], Array] = jax.nn.swish,
        gain: float = 2.0,
        prior: AbstractPrior = OU(sigma=0.2),
        drift: Sequence[int] = (32, 32),
        initial: Callable[[Weights], AbstractInitialLaw] = Normal,
        solver: AbstractSolver = FixedGrid(),
        kl: KLEstimator = "analytic",
        block: Callable[[TimeMLP, PRNGKeyArray], AbstractModel] | None = None,
        encoder: Callable[[Array], Array] | None = None,
        decoder: Callable[[Array], Array] | None = None,
        key: PRNGKeyArray,
    ) -> "SDEBNN":
        """The paper's net for vectors: ``augment`` zeros appended, one random MLP, and a deterministic linear read-out.

            net = SDEBNN.paper_mlp(in_size=1, out_size=1, widths=(8,), key=key)
            outputs, kl = net(x, key=key)

        Its drift sees the weights alone. The defaults suit inputs and targets of about unit scale, and infer w_0, so
        that the KL charges for everything that is learned but the read-out.

        - ``in_size`` and ``out_size`` are the numbers of inputs and outputs.
        - ``widths``, ``activation`` and ``gain`` are those of the random MLP, a ``TimeMLP``.
        - ``prior``, ``drift``, ``initial``, ``solver`` and ``kl`` are those of ``bayesianize``.
        - ``block``: a function of a field and a key that makes the random part, instead of ``bayesianize``.
        - ``encoder`` and ``decoder`` are deterministic modules of one example, applied before and after the net;
          ``in_size`` is then the size of what the encoder returns.
        """
        check_count("in_size", in_size)
        check_count("out_size", out_size)
        check_count("augment", augment, least=0)
        check_key(key)
        field_key, block_key, head_key = jax.random.split(key, 3)
        state = in_size + augment
        field = TimeMLP(state, widths, activation=activation, gain=gain, key=field_key)
        if block is None:
            middle = bayesianize(
                field, prior=prior, drift=drift, initial=initial, solver=solver, kl=kl, key=block_key
            )  # fmt: skip
        else:
            middle = block(field, block_key)
        head = eqx.nn.Linear(state, out_size, key=head_key)
        layers = (Deterministic(Augment(in_size, augment)), middle, Deterministic(head))
        first = () if encoder is None else (Deterministic(encoder),)
        last = () if decoder is None else (Deterministic(decoder),)
        return SDEBNN((*first, *layers, *last))
