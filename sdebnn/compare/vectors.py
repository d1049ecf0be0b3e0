"""Rows for vectors, such as a regression on a line: those of the paper's Figures 2 and 10, and common alternatives.

Inputs and targets are standardised. Each net is an MLP of two hidden layers, or one field of continuous depth. The
noise of a regression is known, or learned with the net. The KL weight is 1, which gives the ELBO.
"""

from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn.baselines import (
    GP,
    HMC,
    Hypernet,
    LastLayerLaplace,
    MCDropout,
    TemperatureScaled,
    bayes_by_backprop,
)
from sdebnn.compare.rows import Blocks, Row, random_depth
from sdebnn.contract import AbstractModel
from sdebnn.fields import TimeMLP
from sdebnn.integrate import FixedGrid
from sdebnn.models import SDEBNN, Ensemble, MeanField
from sdebnn.processes import Normal
from sdebnn.train import Batches, Objective, Optimizer, Recipe

MEMBERS = 8  # as in the paper's figure
WIDTH = 32
MAX_GP_EXAMPLES = 2000  # the cost of an exact Gaussian process grows with the cube of their number
PRIOR_STD = 2.0  # of standardised weights, equal to the gain of the field
STEPS = 3000
OWN_STEPS = 300  # of a posterior that starts near its optimum
DRAWS = 200  # functions; deterministic nets take as many, since a prediction interval needs samples of the noise


def rows(x: Float[Array, "example feature"], y: Array, classes: int | None) -> list[Row]:
    """All rows for vectors. A Gaussian process is among them if there are few examples, and no classes."""
    nets = _VectorNets(x.shape[1], classes or y.shape[1])
    blocks = Blocks(FixedGrid(10), 0.2, (32, 32), Normal, Normal, -1)
    batch = min(256, x.shape[0])
    epochs = max(1, STEPS * batch // x.shape[0])
    own_epochs = max(1, OWN_STEPS * batch // x.shape[0])
    training = Recipe(epochs, Objective(), Batches(batch), Optimizer(1e-2, clip=100.0))
    plain = training._replace(objective=Objective(draws=1))
    evidence = Recipe(300, Objective(draws=1), Batches(), Optimizer(5e-2, clip=100.0))
    wide = partial(Normal, std=0.05, prior_std=PRIOR_STD)
    slow = training._replace(optimizer=Optimizer(5e-3, clip=100.0))
    mlp, ode, hyper = nets.mlp, partial(nets.depth, blocks.ode), partial(nets.depth, blocks.hyper)
    gp = [] if classes or len(x) > MAX_GP_EXAMPLES else [Row("GP (exact)", lambda key: GP(x, y), evidence, DRAWS)]
    scaled = [Row("Temperature scaling", lambda key: TemperatureScaled(mlp(key)), plain)] if classes else []
    return [
        *gp,
        Row("HMC", lambda key: HMC(mlp(key), prior_std=PRIOR_STD, warmup=500, draws=400, doublings=7), training, DRAWS),
        Row("Deep Ensemble", nets.ensemble, plain, DRAWS),
        Row("MFVI", lambda key: MeanField(mlp(key), wide), training, DRAWS),
        Row("Bayes by Backprop", lambda key: bayes_by_backprop(mlp(key), wide=PRIOR_STD, narrow=0.2), training, DRAWS),
        Row("Bayesian hypernet", lambda key: Hypernet(mlp(key), prior_std=PRIOR_STD, key=key), slow, DRAWS),
        Row("MC dropout", lambda key: MCDropout(mlp(key), 0.1, prior_std=PRIOR_STD), training, DRAWS),
        Row("Laplace (last layer)", nets.laplace, plain, DRAWS),
        *scaled,
        Row("ODEnet", ode, plain, DRAWS),
        Row("HyperODEnet", hyper, plain, DRAWS),
        Row("MFVI ODEnet", lambda key: MeanField(ode(key)), training, DRAWS),
        Row("MFVI HyperODEnet", lambda key: MeanField(hyper(key)), training, DRAWS),
        Row(
            "Bayesian neural ODE (HMC)", lambda key: HMC(ode(key), warmup=300, draws=200, doublings=7), training, DRAWS
        ),
        *random_depth(nets.depth, blocks, training, DRAWS),
        Row("SDE-BNN, conditioned read-out (ours)", nets.ours, Recipe(own_epochs, Objective(), Batches(batch)), DRAWS),
    ]


class _VectorNets:
    """The nets for vectors of one size. Each method makes one from a key."""

    def __init__(self, size: int, outputs: int):
        self.size, self.outputs = size, outputs

    def mlp(self, key: PRNGKeyArray) -> eqx.nn.MLP:
        return eqx.nn.MLP(self.size, self.outputs, WIDTH, 2, activation=jax.nn.swish, key=key)

    def depth(self, block: Callable[[TimeMLP, PRNGKeyArray], AbstractModel], key: PRNGKeyArray) -> SDEBNN:
        """The paper's net with blocks of some kind."""
        return SDEBNN.paper_mlp(self.size, self.outputs, block=block, key=key)

    def ours(self, key: PRNGKeyArray) -> AbstractModel:
        return SDEBNN.mlp(self.size, self.outputs, key=key)

    def ensemble(self, key: PRNGKeyArray) -> Ensemble:
        return Ensemble([self.mlp(k) for k in jax.random.split(key, MEMBERS)])

    def laplace(self, key: PRNGKeyArray) -> LastLayerLaplace:
        body, head = jax.random.split(key)
        features = eqx.nn.MLP(
            self.size, WIDTH, WIDTH, 1, activation=jax.nn.swish, final_activation=jax.nn.swish, key=body
        )
        return LastLayerLaplace(features, WIDTH, self.outputs, prior_std=PRIOR_STD, key=head)
