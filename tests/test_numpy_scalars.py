"""Fixed numbers: a NumPy scalar means what a Python number means, and is never trained."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sdebnn
from sdebnn import (
    OU,
    SDEBNN,
    Adaptive,
    Cauchy,
    FixedGrid,
    Gaussian,
    Laplace,
    Normal,
    Objective,
    StudentT,
    bayesianize,
    our_net,
    paper_net,
)
from sdebnn.baselines import (
    GP,
    HMC,
    Hypernet,
    LastLayerLaplace,
    MCDropout,
    PartlyRandom,
    ScaleMixture,
    bayes_by_backprop,
)
from sdebnn.nn import TimeConv, TimeConvLayer, TimeMLP

pytestmark = pytest.mark.usefixtures("_as_a_user", "_compiled_in_haste")
KEY = jax.random.key(0)
W = jnp.array([0.5, -1.0])
MLP = eqx.nn.MLP(2, 1, 3, 1, key=KEY)
BLOCK = bayesianize(TimeMLP(2, (2,), key=KEY), drift=(2,), solver=FixedGrid(4), key=KEY)
NET = {"width": 2, "drift": (1,), "key": KEY}

# Every number below is exact in each of the types.
MADE = {
    "OU": lambda n: OU(rate=n(0.5), mean=n(0.25), sigma=n(0.125)),
    "Adaptive": lambda n: Adaptive(n(0.125), n(0.25), max_step=n(0.5)),
    "OU of whole numbers": lambda n: OU(rate=n(2), mean=n(1), sigma=n(1)),
    "Normal": lambda n: Normal(W, n(0.5), prior_mean=n(0.25), prior_std=n(2.0)),
    "Gaussian": lambda n: Gaussian(n(0.5)),
    "Gaussian, learned": lambda n: Gaussian(n(0.5), learn=True),
    "Laplace": lambda n: Laplace(n(0.5)),
    "Cauchy": lambda n: Cauchy(n(0.5)),
    "StudentT": lambda n: StudentT(n(3.0), n(0.5)),
    "TimeMLP": lambda n: TimeMLP(2, (3,), gain=n(2.0), key=KEY),
    "TimeConvLayer": lambda n: TimeConvLayer(1, 2, gain=n(2.0), bias_scale=n(0.5), key=KEY),
    "TimeConv": lambda n: TimeConv(1, (2,), ("same", "same"), gains=n(2.0), bias_scale=n(0.5), key=KEY),
    "TimeConv, gains": lambda n: TimeConv(1, (2,), ("same", "same"), gains=(n(2.0), n(1.0)), key=KEY),
    "MCDropout": lambda n: MCDropout(MLP, n(0.25), prior_std=n(2.0)),
    "ScaleMixture": lambda n: ScaleMixture(W, n(0.5), share=n(0.25), wide=n(2.0), narrow=n(0.125)),
    "bayes_by_backprop": lambda n: bayes_by_backprop(MLP, n(0.5), share=n(0.25), wide=n(2.0), narrow=n(0.125)),
    "Hypernet": lambda n: Hypernet(MLP, n(0.5), couplings=1, width=2, prior_std=n(2.0), key=KEY),
    "LastLayerLaplace": lambda n: LastLayerLaplace(MLP, 1, 1, prior_std=n(2.0), key=KEY),
    "HMC": lambda n: HMC(MLP, prior_std=n(2.0), std=n(0.5)),
    "GP": lambda n: GP(jnp.ones((3, 1)), jnp.ones((3, 1)), length=n(2.0), amplitude=n(0.5), noise=n(0.25)),
    "PartlyRandom": lambda n: PartlyRandom(BLOCK, n(0.5)),
    "SDEBNN.mlp": lambda n: SDEBNN.paper_mlp(1, 1, widths=(2,), gain=n(2.0), prior=OU(sigma=n(0.5)), key=KEY),
    "paper_net": lambda n: paper_net((4, 4, 1), 2, mean=(n(0.5),), std=(n(0.25),), **NET),
    "our_net": lambda n: our_net((4, 4, 1), 2, channels=(2,), gain=n(2.0), mean=(n(0.5),), drift=(1,), key=KEY),
}
NUMPY = {"float64": np.float64, "float32": np.float32, "an array of no axis": partial(np.array, dtype=np.float32)}


def numbers_of(tree):
    """Every number of a module that is not in an array, wherever it is stored."""
    if isinstance(tree, eqx.Module):
        return [number for value in vars(tree).values() for number in numbers_of(value)]
    if isinstance(tree, tuple | list):
        return [number for value in tree for number in numbers_of(value)]
    return [tree] if isinstance(tree, int | float | np.generic) or np.ndim(tree) == 0 != np.size(tree) else []


@pytest.mark.parametrize("kind", NUMPY)
@pytest.mark.parametrize("case", MADE)
def test_a_numpy_scalar_is_the_number_it_holds(case, kind):
    plain, same = MADE[case](lambda number: number), MADE[case](NUMPY[kind])
    trained, also = (jax.tree.leaves_with_path(eqx.filter(made, eqx.is_inexact_array)) for made in (plain, same))
    assert [path for path, _ in also] == [path for path, _ in trained]
    for (_, ours), (_, theirs) in zip(also, trained, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    assert not [number for number in numbers_of(same) if isinstance(number, np.generic | np.ndarray)]


def test_an_array_is_trained_and_a_number_is_not():
    """What OU promises: arrays of JAX, and those of NumPy with an axis, are parameters."""
    for rate, parameters in ((1.0, 0), (np.float32(1), 0), (np.array(1.0), 0), (jnp.array(1.0), 1), (np.ones(2), 1)):
        leaves = jax.tree.leaves(eqx.filter(OU(rate=rate), eqx.is_inexact_array))
        assert len(leaves) == parameters, rate
        assert all(isinstance(leaf, jax.Array) for leaf in leaves)


def test_a_net_with_a_numpy_sigma_is_trained_as_with_a_number():
    x = np.linspace(-1, 1, 4)[:, None]
    ends = []
    for sigma, df in ((0.25, 3.0), (np.float64(0.25), np.float64(3.0))):
        net = SDEBNN.paper_mlp(1, 1, widths=(2,), drift=(2,), prior=OU(sigma=sigma), solver=FixedGrid(2), key=KEY)
        fitted = sdebnn.fit(
            net, StudentT(df, 0.5), x, x, epochs=2, objective=Objective(draws=1), key=KEY, progress=False
        )
        ends.append(jax.tree.leaves(eqx.filter(fitted[:2], eqx.is_inexact_array)))
    for ours, theirs in zip(*ends, strict=True):
        np.testing.assert_array_equal(ours, theirs)
