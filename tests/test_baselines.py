"""What all baselines have in common: training, functions named by keys, and refused arguments."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import GRID, KEY, LINEAR, POINTS, QUIET, SMALL, X, Y, arrays, members

from sdebnn import (
    SDEBNN,
    Categorical,
    Deterministic,
    Gaussian,
    Normal,
    Objective,
    Validation,
    bayesianize,
    fit,
    predict,
    refined,
)
from sdebnn.baselines import (
    Hypernet,
    HyperODEBlock,
    LastLayerLaplace,
    MCDropout,
    PartlyRandom,
    ResNet,
    TemperatureScaled,
    bayes_by_backprop,
    bbvi,
)
from sdebnn.integrate import Adaptive
from sdebnn.nn import Augment, Ensemble, MeanField, ODEBlock, TimeMLP

pytestmark = pytest.mark.usefixtures("_compiled_in_haste")
TOO_LONG = 1_000_000  # epochs: a fit that is not refused before training would not end


def deep(layer):
    """A net with one layer of three hidden units between an augmentation and a read-out."""
    return SDEBNN((Deterministic(Augment(2, 1)), layer, Deterministic(eqx.nn.Linear(3, 1, key=KEY))))


def field():
    return TimeMLP(3, (3,), key=KEY)


ROWS = {
    "mean-field resnet": lambda: MeanField(ResNet(1, 3, widths=(2,), blocks=2, key=KEY)),
    "odenet": lambda: deep(ODEBlock(field(), solver=GRID)),
    "mean-field mlp": lambda: MeanField(SMALL),
    "mean-field hyperodenet": lambda: MeanField(deep(HyperODEBlock(field(), drift=(2,), solver=GRID, key=KEY))),
    "bayes by backprop": lambda: bayes_by_backprop(SMALL),
    "dropout": lambda: MCDropout(SMALL, 0.5),
    "hypernet": lambda: Hypernet(SMALL, couplings=2, width=3, key=KEY),
    "bbvi": lambda: deep(bbvi(field(), knots=2, solver=GRID, key=KEY)),
    "partly random": lambda: deep(PartlyRandom(bayesianize(field(), drift=(2,), solver=GRID, key=KEY), 0.7)),
    "ensemble": lambda: Ensemble([MeanField(member) for member in members(2)]),
    "temperature": lambda: TemperatureScaled(MeanField(eqx.nn.Linear(2, 3, key=KEY)), draws=2),
    "laplace": lambda: LastLayerLaplace(eqx.nn.Linear(2, 4, key=KEY), 4, 1, key=KEY),
}


@pytest.mark.parametrize("row", ROWS)
def test_every_baseline_trains_and_its_keys_name_functions_that_do_not_depend_on_the_batch(row):
    likelihood = Categorical() if row in ("mean-field resnet", "temperature") else Gaussian(0.3)
    x = jax.random.normal(KEY, (4, 4, 4, 1)) if "resnet" in row else X[:4]
    y = jnp.array([0, 2, 1, 0]) if isinstance(likelihood, Categorical) else Y[:4]
    start = ROWS[row]()
    validation = Validation(x, y) if row == "temperature" else None
    fitted = fit(start, likelihood, x, y, epochs=2, objective=Objective(draws=2), validation=validation, **QUIET)
    assert all(np.all(np.isfinite(fitted.history[name])) for name in ("elbo", "log_likelihood", "kl"))
    model = fitted.model
    moved = [np.abs(a - b).max() for a, b in zip(arrays(model), arrays(start), strict=True)]
    assert max(moved) > 0.005
    drawn = lambda x, key=KEY: predict(model, x, draws=3, draws_at_once=1, key=key)  # noqa: E731
    outputs = drawn(x)
    assert np.all(np.isfinite(outputs))
    assert np.array_equal(outputs, drawn(x))
    # the first example last, among other examples
    others = jnp.flip(x, 0).at[:3].multiply(-2.0)
    np.testing.assert_allclose(drawn(others)[:, 3], outputs[:, 0], rtol=1e-4, atol=1e-5)
    elsewhere = drawn(x, jax.random.key(9))
    assert np.array_equal(outputs, elsewhere) == (row == "odenet")


class Bare(eqx.Module):
    """A field without weights."""

    def __call__(self, t, h):
        return -h


class Adam:
    """Not a model at all."""

    __slots__ = ()


FIELD = TimeMLP(2, (2,), key=KEY)


BLOCK = bayesianize(FIELD, drift=(2,), key=KEY)


TARGETS = POINTS[:, :2]


REFUSED = {
    "no key": (lambda: ResNet(1, 2, key=0), "key=0"),
    "one class": (lambda: ResNet(1, 1, key=KEY), "classes=1"),
    "one block": (lambda: ResNet(1, 2, blocks=1, key=KEY), "blocks=1"),
    "no width": (lambda: ResNet(1, 2, widths=(4, 0), key=KEY), r"widths\[1\]=0"),
    "no widths": (lambda: ResNet(1, 2, widths=(), key=KEY), r"widths=\(\)"),
    "no activation": (lambda: ResNet(1, 2, activation="relu", key=KEY), "activation='relu'"),
    "an ode in adaptive steps": (lambda: ODEBlock(FIELD, solver=Adaptive(1e-3)), "Adaptive.*FixedGrid"),
    "an ode without weights": (lambda: ODEBlock(Bare()), "Bare.*no weights"),
    "a hyper ode in adaptive steps": (
        lambda: HyperODEBlock(FIELD, solver=Adaptive(1e-3), key=KEY),
        "Adaptive.*FixedGrid",
    ),
    "a hyper ode without weights": (lambda: HyperODEBlock(Bare(), key=KEY), "Bare.*no weights"),
    "a hyper ode's widths": (lambda: HyperODEBlock(FIELD, drift=(0,), key=KEY), r"drift\[0\]=0"),
    "no weights": (lambda: MeanField(jnp.tanh), "no weights to learn"),
    "no model": (lambda: MeanField(3), "module=3 is not a function"),
    "no spread": (lambda: MeanField(SMALL, lambda w: Normal(w, 0.0)), "std=0.0"),
    "all wide": (lambda: bayes_by_backprop(SMALL, share=1.0), "share=1.0"),
    "no width of the wide": (lambda: bayes_by_backprop(SMALL, wide=-1.0), "wide=-1.0"),
    "no width of the narrow": (lambda: bayes_by_backprop(SMALL, narrow=0), "narrow=0"),
    "all units off": (lambda: MCDropout(SMALL, 1.0), "rate=1.0"),
    "no units off": (lambda: MCDropout(SMALL, 0.0), "rate=0.0"),
    "nothing but data to switch off": (lambda: MCDropout(LINEAR), "Linear has no units to drop"),
    "nowhere": (lambda: MCDropout(SMALL, where=lambda m: m.head), "where does not pick"),
    "dropout's prior": (lambda: MCDropout(SMALL, prior_std=0), "prior_std=0"),
    "one weight": (lambda: Hypernet(eqx.nn.Linear(1, 1, use_bias=False, key=KEY), key=KEY), "only one weight"),
    "no couplings": (lambda: Hypernet(SMALL, couplings=0, key=KEY), "couplings=0"),
    "no hidden units": (lambda: Hypernet(SMALL, width=0, key=KEY), "width=0"),
    "a hypernet's spread": (lambda: Hypernet(SMALL, std=-0.1, key=KEY), "std=-0.1"),
    "a hypernet's prior": (lambda: Hypernet(SMALL, prior_std=np.inf, key=KEY), "prior_std=inf"),
    "a hypernet's key": (lambda: Hypernet(SMALL, key=1), "key=1"),
    "one knot": (lambda: bbvi(FIELD, knots=1, key=KEY), "knots=1"),
    "bbvi of nothing": (lambda: bbvi(Bare(), key=KEY), "Bare holds no floating-point array"),
    "never random": (lambda: PartlyRandom(BLOCK, 0.0), r"until=0.0"),
    "beyond the end": (lambda: PartlyRandom(BLOCK, 1.5), r"until=1.5"),
    "a depth in words": (lambda: PartlyRandom(BLOCK, "half"), "until='half'"),
    "less than a step": (lambda: PartlyRandom(BLOCK, 0.01), "until=0.01"),
    "no block": (lambda: PartlyRandom(SMALL, 0.5), "got MLP: use FixedGrid"),
    "no grid": (lambda: PartlyRandom(BLOCK.with_solver(Adaptive(1e-3)), 0.5), "FixedGrid"),
    "a grid exchanged for a tolerance": (
        lambda: refined(PartlyRandom(BLOCK, 0.5), rtol=1e-2)(TARGETS, key=KEY),
        "FixedGrid",
    ),
    "no members": (lambda: Ensemble([]), "at least one"),
    "one member for many": (lambda: Ensemble(SMALL), "members"),
    "members of other widths": (lambda: Ensemble([*members(2), SMALL]), "member 2 is not like"),
    "members of other kinds": (lambda: Ensemble([SMALL, LINEAR]), "member 1 is not like"),
    "members that act otherwise": (
        lambda: Ensemble([SMALL, eqx.tree_at(lambda m: m.activation, SMALL, jnp.tanh)]),
        "member 1 is not like",
    ),
    "no draws": (lambda: TemperatureScaled(SMALL, draws=0), "draws=0"),
    "no model to scale": (lambda: TemperatureScaled(Adam()), "Adam.* is not a function"),
    "no validation": (
        lambda: fit(TemperatureScaled(LINEAR), Categorical(), POINTS, jnp.array([0, 1, 0]), epochs=TOO_LONG, **QUIET),
        r"pass validation=Validation\(x, y\)",
    ),
    "no logits": (
        lambda: fit(
            TemperatureScaled(LINEAR), Gaussian(1.0), POINTS, TARGETS, validation=Validation(POINTS, TARGETS),
            epochs=TOO_LONG, **QUIET,
        ),
        "Gaussian has no temperature.*Categorical",
    ),
    "laplace of a random net": (lambda: LastLayerLaplace(BLOCK, 1, 1, key=KEY), "LastLayerLaplace.*holds an SDEBlock"),
    "laplace inside a sequence": (
        lambda: fit(
            SDEBNN((LastLayerLaplace(SMALL, 1, 1, key=KEY),)), Gaussian(1.0), X, Y, epochs=TOO_LONG, **QUIET
        ),
        "LastLayerLaplace learns from the data by itself, and cannot do so inside SDEBNN: put it outermost",
    ),
    "no features": (lambda: LastLayerLaplace(SMALL, 0, 1, key=KEY), "size=0"),
    "no outputs": (lambda: LastLayerLaplace(SMALL, 1, 0, key=KEY), "outputs=0"),
    "laplace's prior": (lambda: LastLayerLaplace(SMALL, 1, 1, prior_std=0.0, key=KEY), "prior_std=0.0"),
    "laplace's key": (lambda: LastLayerLaplace(SMALL, 1, 1, key=None), "key=None"),
    "too many features": (lambda: LastLayerLaplace(SMALL, 2000, 10, key=KEY), "20010 weights"),
    "other features": (lambda: LastLayerLaplace(SMALL, 2, 1, key=KEY)(X, key=KEY), r"shape \(1,\), and size=2"),
}  # fmt: skip


@pytest.mark.usefixtures("_as_a_user")
@pytest.mark.parametrize("call", REFUSED)
def test_a_bad_argument_is_refused_in_one_line_with_a_remedy(call, refused):
    refused(*REFUSED[call])
