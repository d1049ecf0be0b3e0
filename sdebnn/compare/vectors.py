"""Vectors, such as a regression on a line: the posteriors of the paper's Figures 2 and 10, and what people use instead.

Inputs and targets are standardised. Nets are an MLP of two hidden layers, or one field of continuous depth. The noise
of a regression is known, or learned with them; the KL weight is 1: the ELBO.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray

from sdebnn.baselines import (
    GP,
    HMC,
    Ensemble,
    Hypernet,
    LastLayerLaplace,
    MCDropout,
    MeanField,
    TemperatureScaled,
    bayes_by_backprop,
)
from sdebnn.compare.rows import Blocks, Row, random_depth
from sdebnn.fields import Augment, TimeMLP
from sdebnn.integrate import FixedGrid
from sdebnn.models import SDEBNN, Deterministic
from sdebnn.processes import Normal

MEMBERS = 8  # as in the paper's figure
WIDTH = 32
MOST = 2000  # examples of an exact Gaussian process: its cost grows with their cube
PRIOR = 2.0  # standard deviation of standardised weights: as the gain of the field
STEPS = 3000
DRAWS = 200  # of functions: a prediction interval needs them, even of a net that has only one


def rows(x: Float[Array, "example feature"], y: Array, classes: int | None) -> list[Row]:
    """Every row that applies to vectors: no ResNet of convolutions, a Gaussian process only of few examples."""
    nets = _Nets(x.shape[1], classes or y.shape[1])
    blocks = Blocks(FixedGrid(10), 0.2, (32, 32), Normal, Normal, -1)
    batch = min(256, x.shape[0])
    training = {
        "epochs": max(1, STEPS * batch // x.shape[0]), "batch_size": batch, "draws": 4, "learning_rate": 1e-2,
        "clip": 100.0,
    }  # fmt: skip
    plain = {**training, "draws": 1}
    evidence = {**plain, "epochs": 300, "batch_size": None, "learning_rate": 5e-2}
    wide = partial(Normal, std=0.05, prior_std=PRIOR)
    slow = {**training, "learning_rate": 5e-3}
    mlp, ode, hyper = nets.mlp, partial(nets.depth, blocks.ode), partial(nets.depth, blocks.hyper)
    gp = [] if classes or len(x) > MOST else [Row("GP (exact)", lambda key: GP(x, y), evidence, DRAWS)]
    scaled = [Row("Temperature scaling", lambda key: TemperatureScaled(mlp(key)), plain)] if classes else []
    return [
        *gp,
        Row("HMC", lambda key: HMC(mlp(key), prior_std=PRIOR, warmup=500, draws=400, doublings=7), training, DRAWS),
        Row("Deep Ensemble", nets.ensemble, plain, DRAWS),
        Row("MFVI", lambda key: MeanField(mlp(key), wide), training, DRAWS),
        Row("Bayes by Backprop", lambda key: bayes_by_backprop(mlp(key), wide=PRIOR, narrow=0.2), training, DRAWS),
        Row("Bayesian hypernet", lambda key: Hypernet(mlp(key), prior_std=PRIOR, key=key), slow, DRAWS),
        Row("MC dropout", lambda key: MCDropout(mlp(key), 0.1, prior_std=PRIOR), training, DRAWS),
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
    ]


class _Nets:
    """The nets for vectors of one size, as functions of a key."""

    def __init__(self, size: int, outputs: int):
        self.size, self.outputs = size, outputs

    def mlp(self, key: PRNGKeyArray) -> eqx.nn.MLP:
        return eqx.nn.MLP(self.size, self.outputs, WIDTH, 2, activation=jax.nn.swish, key=key)

    def depth(self, block: Callable[[TimeMLP, PRNGKeyArray], Any], key: PRNGKeyArray) -> SDEBNN:
        """The net of ``SDEBNN.mlp``, its field made into a block of some kind."""
        field_key, block_key, head_key = jax.random.split(key, 3)
        state = self.size + 2
        field = TimeMLP(state, (16,), activation=jax.nn.swish, gain=2.0, key=field_key)
        head = eqx.nn.Linear(state, self.outputs, key=head_key)
        return SDEBNN((Deterministic(Augment(self.size, 2)), block(field, block_key), Deterministic(head)))

    def ensemble(self, key: PRNGKeyArray) -> Ensemble:
        return Ensemble([self.mlp(k) for k in jax.random.split(key, MEMBERS)])

    def laplace(self, key: PRNGKeyArray) -> LastLayerLaplace:
        body, head = jax.random.split(key)
        features = eqx.nn.MLP(
            self.size, WIDTH, WIDTH, 1, activation=jax.nn.swish, final_activation=jax.nn.swish, key=body
        )
        return LastLayerLaplace(features, WIDTH, self.outputs, prior_std=PRIOR, key=head)
