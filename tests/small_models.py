"""Small models, data and helper functions that several test files share."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sdebnn import FixedGrid
from sdebnn.fields import Last
from sdebnn.integrate import Guide, Solution
from sdebnn.nn import SDEBNN, AbstractModel, Augment, Deterministic, TimeMLP, bayesianize
from sdebnn.processes import NoDrift, Normal

KEY = jax.random.key(0)
QUIET = {"key": KEY, "progress": False}
GRID = FixedGrid(3, gradient="backprop", unroll=1)

SMALL = eqx.nn.MLP(2, 1, 3, 1, key=KEY)
LINEAR = eqx.nn.Linear(3, 2, key=KEY)
POINTS = jnp.array([[1.0, -0.5, 2.0], [0.3, 0.8, -1.0], [1.0, 1.0, 1.0]])
X = jax.random.normal(jax.random.key(5), (8, 2))
Y = jnp.sin(X[:, :1]) + 0.1


def members(count=3):
    """MLPs of the same sizes from different keys."""
    return [eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(i)) for i in range(count)]


def say_nothing(text):
    """Stands in for the messages of ``after_training``."""


class Matrix(eqx.Module):
    """dh/dt = A h."""

    weight: jax.Array

    def __call__(self, t, h):
        return self.weight @ h


@eqx.filter_jit
def called(model, x, key=KEY):
    """The outputs and the KL of a model, compiled."""
    return model(x, key=key)


def over_keys(model, x, draws, seed=1):
    """The outputs and the KLs of many draws, in float64."""
    call = eqx.filter_jit(lambda keys: jax.vmap(lambda key: model(x, key=key))(keys))
    outputs, kl = call(jax.random.split(jax.random.key(seed), draws))
    return np.asarray(outputs, float), np.asarray(kl, float)


def shaken(module, key=KEY, size=0.5):
    """The same module with noise added to its arrays, so that none of them is zero."""
    leaves, structure = jax.tree.flatten(module)
    keys = jax.random.split(key, len(leaves))
    moved = [
        leaf + size * jax.random.normal(k, leaf.shape) if eqx.is_inexact_array(leaf) else leaf
        for leaf, k in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(structure, moved)


def arrays(module):
    """The floating-point arrays of a module, in float64."""
    return [np.asarray(leaf, float) for leaf in jax.tree.leaves(eqx.filter(module, eqx.is_inexact_array))]


def covariances(outputs, mean):
    """Products of deviations, "draw output n m"; their mean over draws is the covariance between examples n and m."""
    off = outputs - mean
    return np.einsum("dno,dmo->donm", off, off)


def linear_data(n=200):
    """y = x_1 - 2 x_2 + 0.5, with noise of 0.3."""
    key, noise_key = jax.random.split(KEY)
    x = jax.random.normal(key, (n, 2))
    return x, x @ jnp.array([[1.0], [-2.0]]) + 0.5 + 0.3 * jax.random.normal(noise_key, (n, 1))


class Sums(eqx.Module):
    """x (Σ a + 3 Σ b): two arrays of one shape, whose gradients differ."""

    a: jax.Array
    b: jax.Array

    def __call__(self, x):
        return x * (jnp.sum(self.a) + 3 * jnp.sum(self.b))


class Push(eqx.Module):
    """dh/dt = w, so that h_1 = h_0 + ∫ w dt is Gaussian."""

    w: jax.Array

    def __call__(self, t, h):
        return self.w


class Belief(AbstractModel):
    """y = θ, q(θ) = N(mean, 1), p(θ) = N(0, 1): a KL of mean² / 2."""

    mean: jax.Array

    def solve(self, x, *, key, with_roughness=False):
        return Solution(jnp.full_like(x, self.mean + jax.random.normal(key)), 0.5 * self.mean**2)


def guided_net(points=4, solver=GRID):
    """An MLP over depth from one input to one output, whose drift sees the hidden states of some inputs."""
    block = bayesianize(
        TimeMLP(2, (3,), key=KEY), drift=NoDrift(), initial=lambda w: Normal(jnp.zeros_like(w), 1.0),
        guide=Guide(jnp.zeros((points, 2)), 1), solver=solver, key=KEY,
    )  # fmt: skip
    return SDEBNN((Deterministic(Augment(1, 1)), block, Deterministic(Last(1))))
