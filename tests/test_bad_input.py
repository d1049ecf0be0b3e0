"""What a user can get wrong: a ValueError at the call, before anything is compiled, with the value and the remedy."""

import re

import diffrax
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
    Batches,
    Categorical,
    FixedGrid,
    Gaussian,
    Normal,
    Objective,
    Optimizer,
    Validation,
    bayesianize,
    our_net,
    paper_net,
)
from sdebnn.integrate import Posterior
from sdebnn.nn import MeanField, TimeConv, TimeMLP
from sdebnn.processes import AbstractDrift, DriftNet, LinearDrift

KEY = jax.random.key(0)
pytestmark = pytest.mark.usefixtures("_as_a_user")
X, Y = np.ones((4, 1)), np.ones((4, 1))


@pytest.fixture(autouse=True)
def _nothing_is_compiled(monkeypatch):
    """Compiling a loop over depth, a fit or a prediction is refused while a bad call is made."""
    from jax._src import compiler

    compile_program = compiler.backend_compile_and_load

    def refuse(backend, module, *rest):
        name = str(module.operation.attributes["sym_name"]).strip('"')
        assert name not in ("jit_scan", "jit__compiled_solve", "jit_advance", "jit__draws", "jit__draw"), (
            f"compiled {name} before refusing the input"
        )
        return compile_program(backend, module, *rest)

    monkeypatch.setattr(compiler, "backend_compile_and_load", refuse)


def test_that_compilation_is_watched():
    with pytest.raises(AssertionError, match="jit__compiled_solve"):
        MLP(BATCH, key=KEY)


class Empty(eqx.Module):
    def __call__(self, t, h):
        return h


class Failing(AbstractDrift):
    def __call__(self, t, w):
        return {}["k"]


class Doubled(AbstractDrift):
    def __call__(self, t, w):
        return w, w


class Shrink(eqx.Module):
    w: jax.Array

    def __call__(self, t, h):
        return (self.w * h)[:1]


def engine_epochs(epochs):
    return sdebnn.fit(MLP, Gaussian(1.0), X, Y, epochs=epochs, key=KEY)


def paper(**how):
    return paper_net((8, 8, 1), 4, width=4, key=KEY, **how)


MLP = SDEBNN.paper_mlp(1, 1, key=KEY)
BATCH = jnp.ones((3, 1))
FIELD = TimeMLP(2, (3,), key=KEY)
OUTPUTS = jnp.zeros((4, 3))
KEYS = jax.random.split(KEY, 2)
LEGACY = jnp.array([0, 42], dtype=jnp.uint32)
SHRINK = bayesianize(Shrink(jnp.ones(2)), key=KEY)
BATCH_OF_TWO = jnp.ones((3, 2))
LABELS = jnp.array([0, 1, 2, 3])
NEGATIVE = jnp.array([0, 1, 2, -1])
LONG = jnp.ones((3, 5))
RATES = jnp.ones(3)
RBG = jax.random.key(0, impl="rbg")
PLAIN = eqx.nn.MLP(2, 2, 4, 1, key=KEY)
PLAIN_LINEAR = eqx.nn.Linear(1, 1, key=KEY)
WIDE_LINEAR = eqx.nn.Linear(2, 1, key=KEY)
NAN_FIELD = jax.tree.map(lambda leaf: leaf * jnp.nan if eqx.is_array(leaf) else leaf, FIELD)
DRIFT, POINT = LinearDrift(2), sdebnn.Point(jnp.ones(2))
FOUR, THREE = SDEBNN.paper_mlp(1, 4, key=KEY), SDEBNN.paper_mlp(1, 2, key=KEY)
LOGITS = jnp.ones((2, 4, 3))
PROBS = LOGITS / 3
ONE_HOT = jnp.zeros((4, 3), int)
HEADLESS = SDEBNN((sdebnn.Deterministic(lambda x: x),))
IMAGES = np.ones((4, 6, 6, 2))


def spoiled(value):
    x = X.copy()
    x[2, 0] = value
    return x


def fit(model=MLP, likelihood=None, x=X, y=Y, key=KEY, **options):
    return sdebnn.fit(model, likelihood or Gaussian(0.1), x, y, key=key, progress=False, **options)


def elbo(x, y, **options):
    return sdebnn.elbo(MLP, Gaussian(0.1), x, y, key=KEY, **options)


def evaluate(likelihood, y, model=MLP):
    return sdebnn.evaluate(model, likelihood, X, y, key=KEY)


CASES = {
    "sigma zero": (lambda: OU(sigma=0.0), "sigma=0.0", "greater than zero"),
    "sigma an array": (lambda: OU(sigma=jnp.array(0.1)), "sigma=", "must be a number"),
    "sigma negative": (lambda: OU(sigma=-1), "sigma=-1", "greater than zero"),
    "sigma nan": (lambda: OU(sigma=float("nan")), "sigma=nan", "finite"),
    "sigma a word": (lambda: OU(sigma="big"), "sigma='big'", "greater than zero"),
    "rate negative": (lambda: OU(rate=-0.5), "rate=-0.5", "at least 0"),
    "a prior's mean a word": (lambda: OU(mean="x"), "mean='x'", "finite number"),
    "rate of another size": (lambda: bayesianize(FIELD, prior=OU(rate=RATES), key=KEY), "prior's drift", "(20,)"),
    "prior a number": (lambda: bayesianize(FIELD, prior=0.2, key=KEY), "prior=0.2 is not a prior", "OU(sigma=0.2)"),
    "prior a class": (lambda: bayesianize(FIELD, prior=OU, key=KEY), "prior is the class OU", "OU(sigma=0.1)"),
    "prior a law": (lambda: SDEBNN.paper_mlp(1, 1, prior=POINT, key=KEY), "prior=Point(", "OU(sigma=0.1)"),
    "solver a number": (lambda: bayesianize(FIELD, solver=20, key=KEY), "solver=20 is not a solver", "FixedGrid(20,"),
    "solver a word": (lambda: SDEBNN.paper_mlp(1, 1, solver="euler", key=KEY), "'euler' is not a solver", "Adaptive()"),
    "solver a class": (lambda: bayesianize(FIELD, solver=FixedGrid, key=KEY), "class FixedGrid", "FixedGrid(20,"),
    "solver of diffrax": (lambda: bayesianize(FIELD, solver=diffrax.Euler(), key=KEY), "Euler() is not", "Adaptive("),
    "solver of an ode a word": (lambda: sdebnn.nn.ODEBlock(FIELD, solver="euler"), "solver='euler'", "FixedGrid(20)"),
    "initial a word": (lambda: bayesianize(FIELD, initial="normal", key=KEY), "initial='normal'", "Point or Normal"),
    "initial an object": (lambda: bayesianize(FIELD, initial=POINT, key=KEY), "initial=Point(", "Point or Normal"),
    "initial a prior": (lambda: bayesianize(FIELD, initial=OU, key=KEY), "initial=<class", "Point or Normal"),
    "initial that gives no law": (lambda: bayesianize(FIELD, initial=jnp.sin, key=KEY), "initial=", "Point or Normal"),
    "drift a number": (lambda: bayesianize(FIELD, drift=32, key=KEY), "drift=32", "(32, 32)"),
    "drift a word": (lambda: bayesianize(FIELD, drift="net", key=KEY), "drift='net'", "(32, 32)"),
    "drift of no width": (lambda: bayesianize(FIELD, drift=(0,), key=KEY), "drift[0]=0", "at least 1"),
    "drift a class": (lambda: bayesianize(FIELD, drift=DriftNet, key=KEY), "drift is the class DriftNet", "(32, 32)"),
    "drift of an ode": (lambda: sdebnn.baselines.HyperODEBlock(FIELD, drift=3, key=KEY), "drift=3", "(32, 32)"),
    "kl a number": (lambda: bayesianize(FIELD, kl=0.5, key=KEY), "kl=0.5", "'analytic'"),
    "kl a list": (lambda: bayesianize(FIELD, kl=["stl"], key=KEY), "kl=['stl']", "'analytic'"),
    "field a class": (lambda: bayesianize(TimeMLP, key=KEY), "TimeMLP is a class", "an object"),
    "field of an ode a class": (lambda: sdebnn.nn.ODEBlock(TimeMLP), "TimeMLP is a class", "an object"),
    "layer a class": (lambda: SDEBNN((eqx.nn.Linear,)), "Linear is a class", "an object"),
    "module a class": (lambda: sdebnn.Deterministic(eqx.nn.Linear), "Linear is a class", "an object"),
    "model a class": (lambda: sdebnn.predict(SDEBNN, X, key=KEY), "SDEBNN is a class", "an object"),
    "wrapped model a class": (lambda: MeanField(eqx.nn.Linear), "Linear is a class", "an object"),
    "a net without a head": (
        lambda: sdebnn.fit(HEADLESS, Categorical(), IMAGES, LABELS, key=KEY),
        "outputs of shape (6, 6, 2), where a vector is needed",
        "head",
    ),
    "a regression without a head": (
        lambda: sdebnn.fit(HEADLESS, Gaussian(0.1), IMAGES, Y, key=KEY),
        "outputs of shape (6, 6, 2), where a vector is needed",
        "head",
    ),
    "labels of other draws": (lambda: Categorical().log_prob(LOGITS, LABELS[:2]), "(2, 4, 3)", "(draws, examples, "),
    "mean of other channels": (lambda: paper(mean=(0.5, 0.5)), "mean=(0.5, 0.5)", "one for each of 1 channel"),
    "std of no spread": (lambda: paper(std=(0.0,)), "std[0]=0.0", "greater than zero"),
    "mean a word": (lambda: paper(mean="grey"), "mean='grey'", "one for each of 1 channel"),
    "scale a number": (lambda: bayesianize(FIELD, scale=0.5, key=KEY), "scale=0.5", "fan_in_scale"),
    "scale zero": (lambda: bayesianize(FIELD, scale=lambda leaf: 0.0, key=KEY), "weight=0.0", "greater than zero"),
    "weights nan": (lambda: bayesianize(NAN_FIELD, key=KEY), "NaN", "remove or impute"),
    "drift that fails": (lambda: bayesianize(FIELD, drift=Failing(), key=KEY), "drift maps 20", "(20,)"),
    "drift of two": (lambda: bayesianize(FIELD, drift=Doubled(), key=KEY), "drift maps 20", "(20,)"),
    "a module of x alone": (lambda: bayesianize(PLAIN, key=KEY), "MLP", "field(t, h)"),
    "activation a word": (lambda: TimeMLP(2, activation="tanh", key=KEY), "activation='tanh'", "jnp.tanh"),
    "layers not a tuple": (lambda: SDEBNN(FIELD), "layers=", "tuple"),
    "layer not a model": (lambda: SDEBNN((PLAIN_LINEAR,))(BATCH, key=KEY), "layer 0, Linear", "Deterministic"),
    "layer of another size": (lambda: fit(model=sdebnn.Deterministic(WIDE_LINEAR)), "Linear refuses", "(1,)"),
    "mean infinite": (lambda: OU(mean=float("inf")), "mean=inf", "finite"),
    "steps zero": (lambda: FixedGrid(0), "steps=0", "at least 1"),
    "steps fractional": (lambda: FixedGrid(2.5), "steps=2.5", "whole number"),
    "steps true": (lambda: FixedGrid(True), "steps=True", "whole number"),
    "unknown method": (lambda: FixedGrid(method="rk4"), "method='rk4'", "'euler'"),
    "unknown estimator": (lambda: bayesianize(FIELD, kl="exact", key=KEY), "kl='exact'", "'stl'"),
    "no arrays": (lambda: bayesianize(Empty(), key=KEY), "Empty", "no floating-point array"),
    "not callable": (lambda: bayesianize(3.0, key=KEY), "float", "maps (t, h) to dh/dt"),
    "where nothing": (lambda: bayesianize(FIELD, where=lambda f: (), key=KEY), "TimeMLP", "layers[0].weight"),
    "where no array": (
        lambda: bayesianize(FIELD, where=lambda f: f.activation, key=KEY),
        "TimeMLP",
        "weight",
    ),
    "where astray": (lambda: bayesianize(FIELD, where=lambda f: f.nowhere, key=KEY), "nowhere", "layers[0]"),
    "where elsewhere": (lambda: bayesianize(FIELD, where=lambda f: jnp, key=KEY), "where", "layers[0]"),
    "drift of another size": (lambda: bayesianize(FIELD, drift=LinearDrift(2), key=KEY), "20 weights", "(20,)"),
    "a drift that is a function": (
        lambda: bayesianize(FIELD, drift=lambda t, w: w, key=KEY),
        "is not a drift",
        "AbstractDrift",
    ),
    "widths zero": (lambda: TimeMLP(2, (3, 0), key=KEY), "widths[1]=0", "at least 1"),
    "widths a number": (lambda: TimeMLP(2, 32, key=KEY), "widths=32", "(32, 32)"),
    "drift widths": (lambda: DriftNet(2, (-1,), key=KEY), "widths[0]=-1", "at least 1"),
    "knots": (lambda: LinearDrift(2, knots=1), "knots=1", "at least 2"),
    "std": (lambda: Normal(jnp.ones(2), std=0.0), "std=0.0", "greater than zero"),
    "augment": (lambda: SDEBNN.paper_mlp(1, 1, augment=-1, key=KEY), "augment=-1", "at least 0"),
    "no layers": (lambda: SDEBNN(()), "layers=()", "bayesianize"),
    "scale": (lambda: Gaussian(0.0), "scale=0.0", "greater than zero"),
    "scale learned and read": (lambda: Gaussian(None, learn=True), "learn=True", "outputs give the scale"),
    "key a number": (lambda: MLP(BATCH, key=0), "key=0", "jax.random.key(0)"),
    "key missing": (lambda: MLP(BATCH, key=None), "key=None", "jax.random.key(0)"),
    "key of another implementation": (lambda: MLP(BATCH, key=RBG), "rbg", "threefry2x32"),
    "unknown gradient": (lambda: FixedGrid(gradient="magic"), "gradient='magic'", "'checkpoint'"),
    "steps that cannot be undone": (
        lambda: FixedGrid(gradient="reversible"),
        "method='euler'",
        "method='reversible_heun'",
    ),
    "noise steps": (lambda: FixedGrid(noise_steps=0), "noise_steps=0", "at least 1"),
    "steps beyond the tree": (lambda: FixedGrid(100_000, noise_steps=20), "steps=100000", "65536"),
    "base beyond the tree": (lambda: Adaptive(noise_steps=10**6), "noise_steps=1000000", "65536"),
    "rtol zero": (lambda: Adaptive(rtol=0.0), "rtol=0.0", "greater than zero"),
    "rtol below zero": (lambda: Adaptive(rtol=-1e-3), "rtol=-0.001", "greater than zero"),
    "rtol nan": (lambda: Adaptive(rtol=float("nan")), "rtol=nan", "greater than zero"),
    "atol zero": (lambda: Adaptive(atol=0), "atol=0", "greater than zero"),
    "max steps": (lambda: Adaptive(max_steps=0), "max_steps=0", "at least 1"),
    "max step": (lambda: Adaptive(max_step=0.0), "max_step=0.0", "greater than zero"),
    "adaptive euler": (lambda: Adaptive(solver=diffrax.Euler()), "solver=Euler()", "diffrax.ShARK()"),
    "half steps of euler": (lambda: Adaptive(solver=diffrax.HalfSolver(diffrax.Euler())), "HalfSolver", "ShARK()"),
    "an ODE solver": (lambda: Adaptive(solver=diffrax.Tsit5()), "not made for SDEs", "diffrax.ShARK()"),
    "a Langevin solver": (lambda: Adaptive(solver=diffrax.ALIGN(0.1)), "solver=ALIGN()", "diffrax.ShARK()"),
    "a solver's name": (lambda: Adaptive(solver="heun"), "solver='heun'", "diffrax.ShARK()"),
    "a solver's class": (lambda: Adaptive(solver=diffrax.Heun), "solver=", "diffrax.ShARK()"),
    "adjoint of an additive solver": (
        lambda: Adaptive(adjoint=diffrax.BacksolveAdjoint()),
        "adjoint=BacksolveAdjoint()",
        "solver=diffrax.Heun()",
    ),
    "adjoint of convolutions": (
        lambda: bayesianize(
            TimeConv(3, (4, 4, 4), key=KEY),
            solver=Adaptive(solver=diffrax.Heun(), adjoint=diffrax.BacksolveAdjoint()),
            key=KEY,
        )(jnp.ones((2, 8, 8, 3)), key=KEY),
        "adjoint=BacksolveAdjoint()",
        "'reversible_heun', 'reversible'",
    ),
    "adjoint of a steady state": (lambda: Adaptive(adjoint=diffrax.ImplicitAdjoint()), "adjoint=Implicit", "Direct"),
    "adjoint's name": (lambda: Adaptive(adjoint="backprop"), "adjoint='backprop'", "DirectAdjoint()"),
    "martingale of adaptive steps": (
        lambda: bayesianize(FIELD, solver=Adaptive(), kl="full", key=KEY),
        "kl='full'",
        "kl='analytic'",
    ),
    "stl of adaptive steps": (
        lambda: SDEBNN.paper_mlp(1, 1, solver=Adaptive(), kl="stl", key=KEY),
        "kl='stl'",
        "FixedGrid",
    ),
    "stl of adaptive weights": (
        lambda: Adaptive().weights(Posterior(OU(), DRIFT, POINT, "stl"), key=KEY),
        "kl='stl'",
        "FixedGrid",
    ),
    "dial at no steps": (lambda: sdebnn.predict(MLP, X, steps=0, key=KEY), "steps=0", "at least 1"),
    "dial at no tolerance": (lambda: sdebnn.predict(MLP, X, rtol=0.0, key=KEY), "rtol=0.0", "greater than zero"),
    "dial at both": (lambda: sdebnn.predict(MLP, X, steps=3, rtol=0.1, key=KEY), "steps=3 and rtol=0.1", "one of the"),
    "dial at neither": (lambda: sdebnn.refined(MLP), "steps=None and rtol=None", "one of the two"),
    "dial of a deterministic net": (
        lambda: sdebnn.predict(sdebnn.Deterministic(jnp.sin), X, steps=3, key=KEY),
        "steps=3",
        "no block",
    ),
    "solver error of no likelihood": (
        lambda: sdebnn.uncertainty_sources(MLP, "normal", X, key=KEY),
        "'normal'",
        "Gaussian",
    ),
    "roughness below zero": (
        lambda: fit(objective=Objective(roughness_weight=-1.0)),
        "roughness_weight=-1.0",
        "zero or more",
    ),
    "roughness of nothing": (
        lambda: fit(model=sdebnn.Deterministic(jnp.sin), objective=Objective(roughness_weight=0.1)),
        "roughness_weight=0.1",
        "leave it at 0",
    ),
    "roughness of adaptive steps": (
        lambda: fit(
            model=SDEBNN.paper_mlp(1, 1, solver=Adaptive(), key=KEY), objective=Objective(roughness_weight=0.1)
        ),
        "adaptive steps have no roughness",
        "FixedGrid",
    ),
    "key legacy on the grid": (
        lambda: FixedGrid().weights(Posterior(OU(), DRIFT, POINT, "full"), key=LEGACY),
        "uint32",
        "jax.random.key(0)",
    ),
    "estimator on the grid": (
        lambda: FixedGrid().weights(Posterior(OU(), DRIFT, POINT, "exact"), key=KEY),
        "kl='exact'",
        "'stl'",
    ),
    "a process whose drift is a function": (
        lambda: Posterior(OU(), lambda t, w: w, POINT),
        "is not a drift",
        "AbstractDrift",
    ),
    "key legacy": (lambda: MLP(BATCH, key=LEGACY), "uint32", "wrap_key_data"),
    "key legacy in fit": (lambda: fit(key=LEGACY), "uint32", "jax.random.key(0)"),
    "key legacy in construction": (lambda: SDEBNN.paper_mlp(1, 1, key=LEGACY), "uint32", "jax.random.key(0)"),
    "keys": (lambda: MLP(BATCH, key=KEYS), "(2,)", "keys[0]"),
    "x of other features": (lambda: MLP(LONG, key=KEY), "(5,)", "(examples, 1)"),
    "x flat": (lambda: MLP(BATCH[:, 0], key=KEY), "(3,)", "x[:, None]"),
    "field of another shape": (lambda: SHRINK(BATCH_OF_TWO, key=KEY), "(2,)", "must look like h"),
    "nan in x": (lambda: fit(x=spoiled(np.nan)), "1 NaN or infinite value", "(2, 0)"),
    "infinity in y": (lambda: fit(y=spoiled(np.inf)), "inf", "remove or impute"),
    "too large for float32": (lambda: fit(x=spoiled(1e300)), "inf", "remove or impute"),
    "nan in prediction": (lambda: sdebnn.predict(MLP, spoiled(np.nan), key=KEY), "NaN", "remove or impute"),
    "empty": (lambda: fit(x=X[:0], y=Y[:0]), "(0, 1)", "at least one example"),
    "lengths differ": (lambda: fit(y=Y[:3]), "4 examples and y has 3", "first axes must agree"),
    "x of one axis": (lambda: fit(x=X[:, 0]), "(4,)", "x[:, None]"),
    "y of one axis": (lambda: fit(y=Y[:, 0]), "(4,)", "(examples, 1)"),
    "y of two columns": (lambda: fit(y=np.ones((4, 2))), "(4, 2)", "(examples, 1)"),
    "y of three axes": (lambda: fit(y=np.ones((4, 1, 1))), "(4, 1, 1)", "(examples, 1)"),
    "y flat, as many as outputs": (lambda: fit(model=FOUR, y=np.ones(4)), "(4,)", "(examples, 4)"),
    "complex": (lambda: fit(x=X * 1j), "complex", "real numbers"),
    "no model": (lambda: fit(model=None, likelihood=Gaussian(0.1)), "model=None", "SDEBNN"),
    "likelihood a class": (lambda: fit(likelihood=Gaussian), "likelihood=", "Gaussian(0.1)"),
    "optimizer a word": (lambda: fit(optimizer=Optimizer(rule="adam")), "rule='adam'", "optax.adam"),
    "elbo of unequal lengths": (lambda: elbo(X, Y[:1]), "4 examples and y has 1", "first axes must agree"),
    "elbo of nan": (lambda: elbo(X, spoiled(np.nan)), "NaN", "remove or impute"),
    "elbo of fewer examples than the batch": (lambda: elbo(X, Y, examples=3), "examples=3", "at least 4"),
    "elbo of a negative weight": (lambda: elbo(X, Y, kl_weight=-2.0), "kl_weight=-2.0", "zero or more"),
    "evaluate of lengths": (lambda: evaluate(Gaussian(0.1), Y[:3]), "y has 3", "first axes must agree"),
    "evaluate of labels": (lambda: evaluate(Categorical(), np.array([0, 1, 1, 2]), THREE), "class", "0 to"),
    "evaluate of flat targets": (lambda: evaluate(Gaussian(0.1), Y[:, 0]), "(4,)", "(examples, 1)"),
    "one class": (lambda: evaluate(Categorical(), np.array([0, 0, 0, 0])), "1 output", "two or more"),
    "one-hot labels": (lambda: Categorical().log_prob(OUTPUTS, ONE_HOT), "(4, 3)", "one class number"),
    "logits as probabilities": (lambda: sdebnn.metrics.ece(LOGITS, LABELS % 3), "do not add up", "center(logits)"),
    "labels of another shape": (lambda: sdebnn.metrics.brier(PROBS, LABELS[:, None]), "(4, 1)", "(examples,)"),
    "labels beyond the classes": (lambda: sdebnn.metrics.brier(PROBS, LABELS), "class 3", "0 to 2"),
    "targets of another shape": (lambda: sdebnn.metrics.rmse(PROBS, LABELS * 1.0), "(4,)", "(examples, targets)"),
    "level a word": (lambda: sdebnn.metrics.coverage(PROBS, OUTPUTS, level="a"), "level='a'", "0.95"),
    "words": (lambda: fit(x=np.array([["a"]] * 4)), "dtype", "numbers"),
    "ragged": (lambda: fit(x=[[1.0], [1.0, 2.0]]), "rectangular", "numbers"),
    "odd outputs": (lambda: fit(likelihood=Gaussian(None)), "there are 1", "two outputs"),
    "labels too high": (lambda: Categorical().log_prob(OUTPUTS, LABELS), "class 3", "0 to 2"),
    "labels below zero": (lambda: Categorical().log_prob(OUTPUTS, NEGATIVE), "class -1", "0 to 2"),
    "labels not whole": (lambda: Categorical().log_prob(OUTPUTS, LABELS * 0.5), "float32", "whole numbers"),
    "labels of another length": (lambda: Categorical().log_prob(OUTPUTS, LABELS[:3]), "(3,)", "4 examples"),
    "epochs": (lambda: fit(epochs=0), "epochs=0", "at least 1"),
    "batch size": (lambda: fit(batches=Batches(0)), "size=0", "at least 1"),
    "draws": (lambda: fit(objective=Objective(draws=0)), "draws=0", "at least 1"),
    "draws of a prediction": (lambda: sdebnn.predict(MLP, X, draws=-2, key=KEY), "draws=-2", "at least 1"),
    "kl weight": (lambda: fit(objective=Objective(kl_weight=-1.0)), "kl_weight=-1.0", "zero or more"),
    "learning rate": (lambda: fit(optimizer=Optimizer(learning_rate=0.0)), "learning_rate=0.0", "greater than zero"),
    "bins": (lambda: sdebnn.metrics.ece(OUTPUTS[None], LABELS, bins=0), "bins=0", "at least 1"),
    "level": (lambda: sdebnn.metrics.coverage(OUTPUTS[None], OUTPUTS, level=95), "level=95", "0.95"),
    "parts that do not divide": (lambda: fit(batches=Batches(accumulate=3)), "accumulate=3", "the batch of 4"),
    "an average beyond 1": (lambda: Optimizer(ema=1.5), "ema=1.5", "between 0 and 1"),
    "a warm-up beyond the end": (lambda: Objective(kl_warmup=2.0), "kl_warmup=2.0", "from 0 to 1"),
    "no gradient at all": (lambda: Optimizer(clip=0), "clip=0", "greater than zero"),
    "validation a pair": (lambda: fit(validation=(X, Y)), "is not Validation(...)", "Validation(x, y)"),
    "an unknown watch": (lambda: Validation(X, Y, watch="accuracy"), "watch='accuracy'", "'nll', 'elbo'"),
    "augment a number": (lambda: Batches(augment=3), "augment=3", "is not a function"),
    "batches a number": (lambda: fit(batches=128), "batches=128", "Batches(128)"),
    "checkpoints a path": (lambda: fit(checkpoints="run"), "checkpoints='run'", "Checkpoints('run')"),
    "no skipped steps": (lambda: Optimizer(max_skipped=0), "max_skipped=0", "at least 1"),
    "no such optimiser": (lambda: fit(optimizer=Optimizer(rule=lambda steps: 3)), "rule=3", "optax.adam"),
    "validation of other lengths": (lambda: fit(validation=Validation(X, Y[:3])), "x has 4 examples", "must agree"),
    "a block that is not there": (lambda: paper(deterministic=(3,)), "deterministic=(3,)", "there are 1, from 0"),
    "an image without channels": (lambda: paper_net((8, 8), 4, key=KEY), "shape=(8, 8)", "(28, 28, 1)"),
    "a net of one class": (lambda: paper_net((8, 8, 1), 1, key=KEY), "classes=1", "at least 2"),
    "a third convolution": (
        lambda: our_net((8, 8, 1), 4, infer_w0_of=(2,), key=KEY),
        "infer_w0_of=(2,)",
        "(1,) or (0, 1)",
    ),
    "moves of other layers": (lambda: TimeConv(3, (4, 4), key=KEY), "widths=(4, 4)", "one for each layer"),
    "moves that shrink": (lambda: TimeConv(3, (4,), ("down", "same"), key=KEY), "('down', 'same')", "pair down and up"),
    "an unknown move": (lambda: TimeConv(3, (4,), ("left", "same"), key=KEY), "move='left'", "'same', 'down', 'up'"),
    "an unknown precision": (lambda: TimeConv(3, compute="int8", key=KEY), "compute='int8'", "'bfloat16'"),
    "squeezed too often": (lambda: paper(blocks=(1, 1, 1, 1, 1)), "blocks=(1, 1, 1, 1, 1)", "multiples of 32"),
    "images of another size": (lambda: paper()(jnp.zeros((2, 8, 4, 1)), key=KEY), "(8, 4, 1)", "takes (8, 8, 1)"),
    "no examples at once": (lambda: FixedGrid(3, at_once=0), "at_once=0", "at least 1"),
    "too many steps": (lambda: engine_epochs(10**9), "epochs=1000000000", "raise the batch size"),
    "nothing to infer": (lambda: MeanField(jnp.tanh), "no floating-point array", "no weights"),
    "too few draws to measure noise": (
        lambda: sdebnn.train.estimator_noise(MLP, Gaussian(1.0), BATCH, BATCH, key=KEY, draws=2),
        "draws=2",
        "at least 4",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused_in_one_line(case):
    call, value, remedy = CASES[case]
    with pytest.raises(ValueError, match=re.escape(value)) as caught:
        call()
    message = str(caught.value)
    assert remedy in message
    assert "\n" not in message


def test_a_key_used_before_is_refused_while_jax_tracks_reuse():
    with jax.debug_key_reuse(True):
        used = jax.random.key(3)
        object.__setattr__(used, "_consumed", True)  # as any use would leave it
        with pytest.raises(ValueError, match="split it first"):
            MLP(BATCH, key=used)
