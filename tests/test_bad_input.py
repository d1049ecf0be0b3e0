"""What a user can get wrong: a ValueError at the call, before anything is compiled, with the value and the remedy."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import sdebnn
from sdebnn import (
    OU,
    SDEBNN,
    Categorical,
    DriftNet,
    FixedGrid,
    Gaussian,
    LinearDrift,
    Normal,
    TimeMLP,
    bayesianize,
)

KEY = jax.random.key(0)
X, Y = np.ones((4, 1)), np.ones((4, 1))


@pytest.fixture(autouse=True)
def _as_a_user():
    """Users have no shape checks switched on."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture(autouse=True)
def _nothing_is_compiled(monkeypatch):
    """Compiling a loop over depth, a fit or a prediction is refused while a bad call is made."""
    from jax._src import compiler

    compile_program = compiler.backend_compile_and_load

    def refuse(backend, module, *rest):
        name = str(module.operation.attributes["sym_name"]).strip('"')
        assert name not in ("jit_scan", "jit__epochs", "jit__batch"), f"compiled {name} before refusing the input"
        return compile_program(backend, module, *rest)

    monkeypatch.setattr(compiler, "backend_compile_and_load", refuse)


def test_that_compilation_is_watched():
    with pytest.raises(AssertionError, match="jit_scan"):
        MLP(BATCH, key=KEY)


class Empty(eqx.Module):
    def __call__(self, t, h):
        return h


class Shrink(eqx.Module):
    w: jax.Array

    def __call__(self, t, h):
        return (self.w * h)[:1]


MLP = SDEBNN.mlp(1, 1, key=KEY)
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


def spoiled(value):
    x = X.copy()
    x[2, 0] = value
    return x


def fit(model=MLP, likelihood=None, x=X, y=Y, key=KEY, **options):
    return sdebnn.fit(model, likelihood or Gaussian(0.1), x, y, key=key, progress=False, **options)


CASES = {
    "sigma zero": (lambda: OU(sigma=0.0), "sigma=0.0", "greater than zero"),
    "sigma negative": (lambda: OU(sigma=-1), "sigma=-1", "greater than zero"),
    "sigma nan": (lambda: OU(sigma=float("nan")), "sigma=nan", "finite"),
    "sigma a word": (lambda: OU(sigma="big"), "sigma='big'", "greater than zero"),
    "rate negative": (lambda: OU(rate=-0.5), "rate=-0.5", "zero or more"),
    "mean infinite": (lambda: OU(mean=float("inf")), "mean=inf", "finite"),
    "steps zero": (lambda: FixedGrid(0), "steps=0", "at least 1"),
    "steps fractional": (lambda: FixedGrid(2.5), "steps=2.5", "whole number"),
    "steps true": (lambda: FixedGrid(True), "steps=True", "whole number"),
    "unknown method": (lambda: FixedGrid(method="rk4"), "method='rk4'", "'euler'"),
    "unknown estimator": (lambda: bayesianize(FIELD, kl="exact", key=KEY), "kl='exact'", "'stl'"),
    "no arrays": (lambda: bayesianize(Empty(), key=KEY), "Empty", "no floating-point array"),
    "not callable": (lambda: bayesianize(3.0, key=KEY), "3.0", "maps (t, h) to dh/dt"),
    "where nothing": (lambda: bayesianize(FIELD, where=lambda f: (), key=KEY), "TimeMLP", "layers[0].weight"),
    "where no array": (
        lambda: bayesianize(FIELD, where=lambda f: f.activation, key=KEY),
        "TimeMLP",
        "weight",
    ),
    "where astray": (lambda: bayesianize(FIELD, where=lambda f: f.nowhere, key=KEY), "nowhere", "layers[0]"),
    "where elsewhere": (lambda: bayesianize(FIELD, where=lambda f: jnp, key=KEY), "where", "layers[0]"),
    "drift of another size": (lambda: bayesianize(FIELD, drift=LinearDrift(2), key=KEY), "20 weights", "size 20"),
    "stl of a function": (
        lambda: bayesianize(FIELD, drift=lambda t, w: w, kl="stl", key=KEY),
        "kl='stl'",
        "Equinox module",
    ),
    "widths zero": (lambda: TimeMLP(2, (3, 0), key=KEY), "widths[1]=0", "at least 1"),
    "widths a number": (lambda: TimeMLP(2, 32, key=KEY), "widths=32", "(32, 32)"),
    "drift widths": (lambda: DriftNet(2, (-1,), key=KEY), "widths[0]=-1", "at least 1"),
    "knots": (lambda: LinearDrift(2, knots=1), "knots=1", "at least 2"),
    "std": (lambda: Normal(jnp.ones(2), std=0.0), "std=0.0", "greater than zero"),
    "augment": (lambda: SDEBNN.mlp(1, 1, augment=-1, key=KEY), "augment=-1", "at least 0"),
    "no layers": (lambda: SDEBNN(()), "layers=()", "bayesianize"),
    "scale": (lambda: Gaussian(0.0), "scale=0.0", "greater than zero"),
    "scale learned and read": (lambda: Gaussian(None, learn=True), "learn=True", "outputs give the scale"),
    "key a number": (lambda: MLP(BATCH, key=0), "key=0", "jax.random.key(0)"),
    "key missing": (lambda: MLP(BATCH, key=None), "key=None", "jax.random.key(0)"),
    "key legacy": (lambda: MLP(BATCH, key=LEGACY), "uint32", "wrap_key_data"),
    "key legacy in fit": (lambda: fit(key=LEGACY), "uint32", "jax.random.key(0)"),
    "key legacy in construction": (lambda: SDEBNN.mlp(1, 1, key=LEGACY), "uint32", "jax.random.key(0)"),
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
    "words": (lambda: fit(x=np.array([["a"]] * 4)), "dtype", "numbers"),
    "ragged": (lambda: fit(x=[[1.0], [1.0, 2.0]]), "rectangular", "numbers"),
    "odd outputs": (lambda: fit(likelihood=Gaussian(None)), "there are 1", "two outputs"),
    "labels too high": (lambda: Categorical().log_prob(OUTPUTS, LABELS), "class 3", "0 to 2"),
    "labels below zero": (lambda: Categorical().log_prob(OUTPUTS, NEGATIVE), "class -1", "0 to 2"),
    "labels not whole": (lambda: Categorical().log_prob(OUTPUTS, LABELS * 0.5), "float32", "whole numbers"),
    "labels of another length": (lambda: Categorical().log_prob(OUTPUTS, LABELS[:3]), "(3,)", "4 examples"),
    "epochs": (lambda: fit(epochs=0), "epochs=0", "at least 1"),
    "batch size": (lambda: fit(batch_size=0), "batch_size=0", "at least 1"),
    "draws": (lambda: fit(draws=0), "draws=0", "at least 1"),
    "draws of a prediction": (lambda: sdebnn.predict(MLP, X, draws=-2, key=KEY), "draws=-2", "at least 1"),
    "kl weight": (lambda: fit(kl_weight=-1.0), "kl_weight=-1.0", "zero or more"),
    "learning rate": (lambda: fit(learning_rate=0.0), "learning_rate=0.0", "greater than zero"),
    "bins": (lambda: sdebnn.metrics.ece(OUTPUTS[None], LABELS, bins=0), "bins=0", "at least 1"),
    "level": (lambda: sdebnn.metrics.coverage(OUTPUTS[None], OUTPUTS, level=95), "level=95", "0.95"),
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
